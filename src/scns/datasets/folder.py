"""Your own images: train/<class>/* and test/<class>/* (JPEG, PNG or WebP), at a size of your choice.

Classes are the sorted names of train's folders, and test must have the same. The middle square of every image is
resized to `size`. Mean and standard deviation are those of the training images.
"""

from pathlib import Path

from scns.data import Images
from scns.datasets import _decode, _layout, _own
from scns.errors import InputError

NAMES = {"folder": "your own JPEG, PNG or WebP files in train/<class>/ and test/<class>/"}


def load(
    name: str,
    root: Path | None,
    split: str,
    *,
    size: int = 32,
    skip_bad: bool = False,
    progress: _decode.Progress | None = None,
) -> Images:
    """The images of a split; `skip_bad` leaves corrupt files out. Decoded once, then mapped from the cache."""
    _own.check_size(size)
    remedy = "give the folder that holds your images in train/<class>/ and test/<class>/"
    if root is None:
        raise InputError(f"{name} needs a root; {remedy}.")
    place = root
    try:
        if not (place / "train").exists():
            wrong = "does not exist" if not place.exists() else "is no folder with a folder 'train'"
            raise InputError(f"The root '{place}' {wrong}; {remedy}.")
        names = _layout.folders(place / "train")
    except PermissionError as error:
        raise _layout.unreadable(name, error) from error
    if not names:
        raise InputError(f"'{place / 'train'}' has no class folders; put your images in train/<class>/.")
    return _own.load(
        name,
        place,
        split,
        lambda each: _layout.by_class(place / each, names, "train"),
        lambda _: tuple(names),
        size,
        skip_bad,
        progress,
    )
