"""Where a data set lies on disk, and what to say when it is not there."""

import os
from pathlib import Path

from scns.errors import InputError

ENDINGS = (".jpg", ".jpeg", ".png", ".webp")


def find(name: str, root: Path | None, layouts: dict[str, str]) -> Path:
    """The first of the folders `layouts` under `root` (or `root` itself) that holds its marker file.

    `layouts` maps a folder's name to the file or folder that shows it is there.
    """
    remedy = f"`scns data get {name} --root {root or 'DIR'}` fetches it"
    expected = " or ".join(f"{folder}/{marker}" for folder, marker in layouts.items())
    if root is None:
        raise InputError(f"{name} needs a root, the folder that holds {expected}; {remedy}.")
    try:
        if root.exists() and not root.is_dir():
            raise InputError(f"The root of {name}, '{root}', is a file; it must be the folder that holds {expected}.")
        for folder, marker in layouts.items():
            for candidate in (root / folder, root):
                if (candidate / marker).exists():
                    return candidate
    except PermissionError as error:
        raise unreadable(name, error) from error
    raise InputError(f"There is no {name} in '{root}': expected {expected} there; {remedy}.")


def unreadable(name: str, error: OSError) -> InputError:
    """The error for a file or folder of the data set that exists and cannot be read."""
    return InputError(f"{name} cannot be read: '{error.filename}': {error.strerror}; check its permissions.")


def lines(path: Path, expected: int | None = None) -> list[str]:
    """The lines of a text file that are not blank; `expected` is how many there must be."""
    if not path.is_file():
        raise InputError(f"'{path}' is missing: the folder is incomplete, fetch the data set again.")
    try:
        text = path.read_text(encoding="utf-8-sig")  # editors of Windows begin a file with a mark that is no name's
    except UnicodeDecodeError:
        raise InputError(f"'{path}' is not a text file in UTF-8; save it as one, a name a line.") from None
    found = [line.strip() for line in text.split("\n") if line.strip()]
    if expected is not None and len(found) != expected:
        raise InputError(f"'{path}' holds {len(found)} names, but there must be {expected}; fetch the data set again.")
    return found


def folders(parent: Path) -> list[str]:
    """The sorted names of the folders in `parent`, hidden ones left out."""
    if not parent.is_dir():
        raise InputError(f"The folder '{parent}' is missing; the data set is incomplete.")
    return sorted(entry.name for entry in os.scandir(parent) if entry.is_dir() and not entry.name.startswith("."))


def same_classes(parent: Path, expected: list[str], listed_in: str) -> None:
    """Checks that `parent` has a folder for every class and no other."""
    present = folders(parent)
    for problem, names in (
        ("lacks a folder for", sorted(set(expected) - set(present))),
        ("has a folder for", sorted(set(present) - set(expected))),
    ):
        if names:
            shown = ", ".join(f"'{name}'" for name in names[:5]) + (", ..." if len(names) > 5 else "")
            which = "class" if len(names) == 1 else f"{len(names)} classes"
            remedy = f"which {listed_in} has" if problem.startswith("lacks") else f"which {listed_in} does not have"
            raise InputError(f"'{parent}' {problem} {which} {shown}, {remedy}; the classes must be the same.")


def image_files(parent: Path) -> list[str]:
    """The sorted paths of the image files in `parent`, by their endings; there must be one at least."""
    if not parent.is_dir():
        raise InputError(f"The folder '{parent}' is missing; the data set is incomplete.")
    found = sorted(
        entry.path
        for entry in os.scandir(parent)
        if entry.name.lower().endswith(ENDINGS) and not entry.name.startswith(".")
    )
    if not found:
        raise InputError(f"'{parent}' holds no image; put {', '.join(ENDINGS)} files there.")
    return found


def by_class(parent: Path, names: list[str], listed_in: str, inside: str = "") -> tuple[list[str], list[int]]:
    """(paths of the images in parent/<class>/`inside`, their labels), class by class; classes as in `same_classes`."""
    same_classes(parent, names, listed_in)
    found = [image_files(parent / name / inside) for name in names]
    return [path for paths in found for path in paths], [label for label, paths in enumerate(found) for _ in paths]
