"""Data sets, networks and methods are modules of a folder, found by name: a new one is a new file and nothing else."""

import importlib
import pkgutil
from types import ModuleType

from scns.errors import unknown


def names(package: ModuleType) -> dict[str, str]:
    """Every name that the modules of `package` offer -> its module: `NAMES` of a module, else the module's own name."""
    offered = {}
    for info in pkgutil.iter_modules(package.__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            offered.update(dict.fromkeys(getattr(module, "NAMES", [info.name.replace("_", "-")]), module.__name__))
    return offered


_found: dict[tuple[str, ...], dict[str, str]] = {}  # what a package offered, by its name and folders, at the last look


def find(package: ModuleType, kind: str, name: str) -> ModuleType:
    """The module of `package` that offers `name`; only an unknown one is looked for in the folders again."""
    place = (package.__name__, *package.__path__)
    if name not in _found.get(place, {}):
        _found[place] = names(package)
    if name not in _found[place]:
        raise unknown(kind, name, _found[place])
    return importlib.import_module(_found[place][name])
