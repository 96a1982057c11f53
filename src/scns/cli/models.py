"""`scns models`: the networks and their sizes."""

from typing import Annotated

import typer

from scns.cli import screen

_SIZES = (32, 64)  # pixels of CIFAR and of Tiny-ImageNet


def table(
    classes: Annotated[int, typer.Option(help="Classes of the classifier, which is part of the parameters.")] = 10,
) -> None:
    """List the networks: parameters, MFLOPs, embedding width.

    MFLOPs count one image forward, 2 for each multiply-add. Train one: scns train mini-ce --set student=wrn-16-2
    """
    from scns import models

    rows: list[list[object]] = []
    for family, names in models.families().items():
        networks = {name: models.outline(name, classes) for name in names}
        for name in sorted(names, key=lambda name: models.parameters(networks[name])):
            network = networks[name]
            costs = [f"{models.flops(network, size) / 1e6:,.1f}" for size in _SIZES]
            rows.append([family, name, f"{models.parameters(network):,}", *costs, network.width])
    columns = {"family": "left", "network": "left", "parameters": "right"}
    columns |= {f"MFLOPs {size} px": "right" for size in _SIZES}
    screen.table(f"{len(rows)} networks, {classes} classes", columns | {"embedding": "right"}, rows)
    screen.out.print("MFLOPs: one image forward, 2 for each multiply-add of convolutions and classifier.", style="dim")
