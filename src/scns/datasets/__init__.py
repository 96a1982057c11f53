"""Data sets: one file each, with `NAMES` and `load(name, root, split) -> Images`."""

import sys
from pathlib import Path

from scns import plugins
from scns.data import Images
from scns.errors import unknown


def names() -> list[str]:
    """Every data set's name."""
    return sorted(plugins.names(sys.modules[__name__]))


def load(name: str, root: str | Path | None = None, split: str = "train", **options: object) -> Images:
    """The images of a split ("train" or "test"); `root` is the folder that holds the data set's own folder."""
    module = plugins.find(sys.modules[__name__], "data set", name)
    if split not in ("train", "test"):
        raise unknown("split", split, ["train", "test"])
    return module.load(name, None if root is None else Path(root), split, **options)
