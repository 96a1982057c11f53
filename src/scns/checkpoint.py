"""Run folders: what a run leaves behind, and everything it needs to go on after being killed at any moment."""

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from scns import __version__
from scns.errors import InputError
from scns.files import atomic
from scns.recipe import Recipe, differences, from_dict

_FORMAT = 1


class Folder:
    """A run folder: recipe.json, log.jsonl, last.safetensors + state.json, model.safetensors, result.json."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def open(self, recipe: Recipe) -> bool:
        """Make the folder for a recipe, or find the same recipe in it; True when the run is finished already."""
        kept = self.path / "recipe.json"
        if kept.exists():
            changed = differences(self.recipe(), recipe)
            if changed:
                words = ", ".join(f"{key} ({old!r} there, {new!r} asked)" for key, (old, new) in changed.items())
                raise InputError(f"'{self.path}' holds a run with another recipe: {words}; choose another --out.")
        self.path.mkdir(parents=True, exist_ok=True)
        with atomic(kept) as temporary:
            temporary.write_text(json.dumps({"version": __version__, "format": _FORMAT, **recipe.as_dict()}, indent=1))
        return (self.path / "result.json").exists()

    def recipe(self) -> Recipe:
        """The recipe of an existing run."""
        try:
            values = json.loads((self.path / "recipe.json").read_text())
        except FileNotFoundError:
            raise InputError(f"'{self.path}' is no run folder: it has no recipe.json.") from None
        except ValueError as error:
            raise InputError(f"'{self.path / 'recipe.json'}' cannot be read: {error}.") from None
        made_by, made_in = values.pop("version", "?"), values.pop("format", 0)
        if made_in > _FORMAT:
            raise InputError(
                f"'{self.path}' was made by scns {made_by}, which is newer than this one ({__version__}); update scns."
            )
        return from_dict(values, f"'{self.path / 'recipe.json'}'")

    def save(self, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Write a checkpoint: one file, so that weights and progress can never disagree."""
        kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        with atomic(self.path / "last.safetensors") as temporary:
            save_file(kept, temporary, metadata={"progress": json.dumps(progress)})
        with atomic(self.path / "state.json") as temporary:  # for people; the file above decides
            temporary.write_text(json.dumps(progress, indent=1))

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last checkpoint, or None."""
        path = self.path / "last.safetensors"
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                progress = json.loads((file.metadata() or {})["progress"])
            return load_file(path), progress
        except (SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"'{path}' is cut short or of another kind ({error}); remove it to start over.") from None

    def log(self, lines: list[dict[str, Any]]) -> None:
        """Write all lines of the log; short, so always whole."""
        with atomic(self.path / "log.jsonl") as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def save_model(self, student: nn.Module, classes: tuple[str, ...]) -> None:
        """Write the student alone."""
        kept = {name: value.detach().cpu().contiguous() for name, value in student.state_dict().items()}
        with atomic(self.path / "model.safetensors") as temporary:
            save_file(kept, temporary, metadata={"student": self.recipe().student, "classes": json.dumps(classes)})

    def finish(self, result: dict[str, Any]) -> None:
        with atomic(self.path / "result.json") as temporary:
            temporary.write_text(json.dumps(result, indent=1) + "\n")


def versions(device: torch.device) -> dict[str, str]:
    """What a result was made with."""
    name = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, {os.cpu_count()} cores"
    )
    return {
        "scns": __version__,
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "hardware": name,
    }


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
