"""Data sets: one file each, found by name.

A file has `NAMES` (a name -> one line about it) and `load(name, root, split, *, its own options) -> Images`.
"""

import inspect
import sys
from pathlib import Path

from scns import plugins
from scns.data import Images
from scns.errors import InputError, unknown


def names() -> list[str]:
    """Every data set's name."""
    return sorted(plugins.names(sys.modules[__name__]))


def describe(name: str) -> str:
    """One line about a data set: its module's `NAMES[name]`."""
    return plugins.find(sys.modules[__name__], "data set", name).NAMES[name]


def options(name: str) -> list[str]:
    """The keyword options of a data set, such as `size` for "folder"."""
    module = plugins.find(sys.modules[__name__], "data set", name)
    parameters = inspect.signature(module.load).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def load(name: str, root: str | Path | None = None, split: str = "train", **chosen: object) -> Images:
    """The images of a split ("train" or "test"); `root` is the folder that holds the data set's own folder."""
    module = plugins.find(sys.modules[__name__], "data set", name)
    if split not in ("train", "test"):
        raise unknown("split", split, ["train", "test"])
    known = options(name)
    for option in chosen:
        if option not in known:
            raise InputError(f"{name} has no option '{option}'; it takes {', '.join(known) or 'none'}.")
    return module.load(name, None if root is None else Path(root).expanduser(), split, **chosen)
