"""Networks: one file a family, with `NAMES` and `build(name, classes) -> Network`."""

import sys

from scns import plugins
from scns.errors import InputError
from scns.models._network import Network

__all__ = ["Network", "build", "names"]


def names() -> list[str]:
    """Every network's name."""
    return sorted(plugins.names(sys.modules[__name__]))


def build(name: str, classes: int) -> Network:
    """The network of that name with random weights and a classifier for `classes` classes."""
    module = plugins.find(sys.modules[__name__], "network", name)
    if classes < 1:
        raise InputError(f"A network needs at least 1 class, but classes = {classes}.")
    return module.build(name, classes)
