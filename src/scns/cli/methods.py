"""`scns methods`: the training objectives, what they need and where their numbers come from."""

import inspect
import re
from types import ModuleType
from typing import Annotated

import typer

from scns.cli import screen

app = typer.Typer(help="List the training objectives and their arguments.")

# One argument a line, as every method writes them: name, annotation and default, comment.
_ARGUMENT = re.compile(r"^\s+(?P<name>\w+):.*?#\s*(?P<comment>.+)$", re.MULTILINE)


@app.callback(invoke_without_command=True)
def table(context: typer.Context) -> None:
    """List the training objectives: what each uses beside labels, its weight and its source."""
    if context.invoked_subcommand:
        return
    from scns import methods

    rows: list[list[object]] = []
    for name in methods.names():
        module = methods.module(name)
        needs = ", ".join(need.replace("preacts", "pre-activations") for need in module.Objective.needs)
        weight, source = _weight(name, module)
        rows.append([name, needs, weight, source, getattr(module, "REFERENCE", "")])
    columns = {"method": "left", "uses": "left", "weight": "right", "weight from": "left", "reference": "left"}
    screen.table(f"{len(rows)} methods", columns, rows)
    screen.out.print("The paper: O'Neill and Bollegala, 2021. Other published weights are presets.", style="dim")
    screen.out.print("Equation, arguments and presets of one method: scns methods show NAME", style="dim")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A method: see `scns methods`.", show_default=False)],
) -> None:
    """Print a method's equation, arguments and presets.

    Example: scns methods show crd. Then: scns train mini-kld --set method=crd --set method.tau=0.1
    """
    from scns import methods

    module = methods.module(name)
    screen.out.print(inspect.getdoc(module) or "")
    screen.out.print()
    comments = _comments(module)
    arguments: list[list[object]] = [
        [key, _shown(default), comments.get(key, _COMMON.get(key, ""))]
        for key, default in methods.hyperparameters(name).items()
    ]
    screen.table("", {"argument": "left", "default": "left", "": "left"}, arguments)
    presets: dict[str, dict[str, object]] = getattr(module, "PRESETS", {})
    if presets:
        screen.out.print()
        shared = _shared(presets)
        values: list[list[object]] = [
            [preset, _listed({key: value for key, value in chosen.items() if key not in shared})]
            for preset, chosen in presets.items()
        ]
        values += [["each of them", _listed(shared)]] if shared else []
        screen.table("", {"preset": "left", "sets": "left"}, values)


# What every method has, so that no method needs to say it again.
_COMMON = {
    "weight": "of the method's own loss",
    "ce": "weight of the cross-entropy with the labels",
    "kld": "weight of the distillation of logits",
    "temperature": "of the distillation of logits",
}


def _weight(name: str, module: ModuleType) -> tuple[str, str]:
    """The default weight of the method's own loss and where it comes from."""
    from scns import methods

    known = methods.hyperparameters(name)
    for key in ("weight", "kld"):
        if known.get(key):
            return _shown(known[key]), _comments(module).get(key, "")
    return ("0", _comments(module).get("weight", "")) if "weight" in known else ("", "")


def _comments(module: ModuleType) -> dict[str, str]:
    """What the source says behind each argument."""
    signature = inspect.getsource(module.Objective.__init__).split(") -> None:")[0]
    return {found["name"]: found["comment"].strip() for found in _ARGUMENT.finditer(signature)}


def _shared(presets: dict[str, dict[str, object]]) -> dict[str, object]:
    """What all of several presets set to the same value."""
    first, *others = presets.values()
    return {key: value for key, value in first.items() if others and all((key, value) in o.items() for o in others)}


def _listed(values: dict[str, object]) -> str:
    return ", ".join(f"{key}={_shown(value)}" for key, value in values.items())


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
