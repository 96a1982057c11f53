"""Networks: one file a family, with `NAMES` and `build(name, classes) -> Network`."""

import sys

import torch

from scns import checks, plugins
from scns.errors import InputError
from scns.models._cost import flops, outputs, parameters
from scns.models._fold import folded
from scns.models._fuse import fused, fusible
from scns.models._hooks import HookedNetwork, features_of
from scns.models._network import Network
from scns.models._weights import OtherClassesError, load_weights, start_from

__all__ = [
    "HookedNetwork",
    "Network",
    "OtherClassesError",
    "build",
    "families",
    "features_of",
    "flops",
    "folded",
    "fused",
    "fusible",
    "load_weights",
    "names",
    "outline",
    "outputs",
    "parameters",
    "start_from",
]


def names() -> list[str]:
    """Every network's name."""
    return sorted(plugins.names(sys.modules[__name__]))


def families() -> dict[str, list[str]]:
    """The names of the networks of each family, in the order of its file."""
    found: dict[str, list[str]] = {}
    for name, module in plugins.names(sys.modules[__name__]).items():
        found.setdefault(module.rpartition(".")[2].replace("_", "-"), []).append(name)
    return found


def build(name: str, classes: int) -> Network:
    """The network of that name for `classes` classes, with random weights (`torch.manual_seed`)."""
    module = plugins.find(sys.modules[__name__], "network", name)
    if not checks.is_whole(classes) or classes < 1:
        raise InputError(f"A network needs at least 1 class, a whole number, but classes = {classes!r}.")
    return module.build(name, int(classes))


def outline(name: str, classes: int) -> Network:
    """The network of that name in shapes alone, on the device "meta": no numbers, no memory, no waiting."""
    with torch.device("meta"):
        return build(name, classes)
