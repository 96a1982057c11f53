"""Run folders: what a run leaves behind, and everything it needs to go on after being killed at any moment."""

import errno
import json
import os
import platform
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from scns import __version__, methods
from scns.data import Images
from scns.errors import InputError
from scns.files import atomic, save_tensors
from scns.lock import held
from scns.recipe import Recipe, differences, from_dict, own_root

_FORMAT = 1
_COPIES = 3  # of a checkpoint's size: the last one, the next one beside it, and less than one for the student
_RESULT: dict[str, Any] = {
    "test": (int, float),
    "seconds": (int, float),
    "epochs": int,
    "seed": int,
    "student": str,
    "method": str,
    "data": str,
}  # what every result has
_LAST, _LOST = "last.safetensors", "diverged.json"
_PARTS = (".*.part", ".tmp" + 6 * "[0-9A-Za-z]")  # what files are called until they are whole: by us, by safetensors
_PROGRESS: dict[str, Any] = {
    "stage": int,
    "epoch": int,
    "place": int,
    "seconds": (int, float),
    "names": list,
    "history": list,
}  # what every checkpoint says of it
_NEW, _WHOLE = ".new", "folder"  # a file that stands for a recipe, or folder, of ours that was not trained yet
AGAIN = "remove it and give the run's command again, which writes it anew from the checkpoint"


class Folder:
    """A run folder: recipe.json, log.jsonl, last.safetensors + state.json, model.safetensors, result.json.

    Or, of a run that diverged, diverged.json instead of the last two.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def open(self, recipe: Recipe) -> bool:
        """Make the folder for a recipe, or find the same recipe in it; True when the run is finished already."""
        kept = self.path / "recipe.json"
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"'{self.path}' is a file, not a run folder; choose another --out.")
        # Listed before the recipe is looked for: another process may be writing it.
        used = self.path.exists() and any(not each.name.startswith(".") for each in self.path.iterdir())
        if kept.exists():
            self.check(recipe)
        elif used:
            raise InputError(f"'{self.path}' is not empty and no run folder (no recipe.json); choose another --out.")
        if self.finished:
            return True
        made = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        with held(self.path):
            if not kept.exists():
                self._mark_new(made)
            for name in _PARTS:
                for part in self.path.glob(name):  # of a process that was killed while it wrote
                    part.unlink(missing_ok=True)
            self._begin_anew(recipe)
        return False

    def _begin_anew(self, recipe: Recipe) -> None:
        """Describe the run; a checkpoint of the very beginning by another recipe, whose weights are others, goes.

        Another process may have had the folder since it was looked at, so that is done again.
        """
        if (self.path / "recipe.json").exists():
            self.check(recipe)
            if self.changes(recipe):
                (self.path / _LAST).unlink(missing_ok=True)
        self._describe(recipe)

    def _mark_new(self, made: bool) -> None:
        """Note that the folder was `made`, or was empty, for a run that may come to nothing."""
        try:
            (self.path / _NEW).write_text(_WHOLE if made else "")
        except OSError as error:  # a full disk, which names no file
            with suppress(OSError):
                (self.path / _NEW).unlink()
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def _describe(self, recipe: Recipe) -> None:
        with atomic(self.path / "recipe.json") as temporary:
            known = {"version": __version__, "format": _FORMAT, **recipe.as_dict(), "resolved": resolved(recipe)}
            temporary.write_text(json.dumps(known, indent=1))

    def check(self, recipe: Recipe, but: Collection[str] = ()) -> None:
        """Raise where something was trained by another recipe, keys in `but` apart; else nothing would be lost."""
        changed = self.changes(recipe, but)
        if changed and (self.finished or self._trained):
            words = ", ".join(f"{key} ({old!r} there, {new!r} asked)" for key, (old, new) in changed.items())
            raise InputError(f"'{self.path}' holds a run with another recipe: {words}; choose another --out.")

    @property
    def _trained(self) -> bool:
        """Whether a checkpoint is of more than the beginning, which a run leaves that could not do its first step."""
        try:
            known = self.progress()
        except InputError:  # it cannot be read, but somebody may want it
            return True
        return known is not None and any(known[key] for key in ("stage", "epoch", "place"))

    @contextmanager
    def kept(self, recipe: Recipe) -> Iterator[None]:
        """Keep the folder to this process while it trains; bad input that shows before that removes what `open` made.

        So that nobody wonders about a folder with a recipe and no run.
        """
        emptied = False
        try:
            with held(self.path):
                self._begin_anew(recipe)
                try:
                    yield
                except (InputError, OSError):
                    with suppress(OSError):
                        emptied = self._forget()
                    raise
        finally:
            if emptied:
                with suppress(OSError):  # somebody has begun something there
                    self.path.rmdir()

    def _forget(self) -> bool:
        """Remove the recipe that `open` wrote where nothing came of it; True where the folder was its own too."""
        new, there = self.path / _NEW, {each.name for each in self.path.iterdir()}
        if _NEW not in there or there - {_NEW, ".lock"} != {"recipe.json"}:
            return False
        whole = new.read_text() == _WHOLE
        (self.path / "recipe.json").unlink()
        new.unlink()
        return whole

    def mark(self, rank: int) -> None:
        """Show that this rank can write here."""
        try:
            (self.path / f".rank-{rank}.part").write_text("")
        except OSError as error:
            raise InputError(
                f"'{self.path}' cannot be written ({error.strerror}); give an --out on storage that all ranks share "
                "and may write, because torchrun can restart any of them as the first."
            ) from None

    def check_mark(self) -> None:
        """Raise where this is another folder than rank 0's."""
        if not (self.path / ".rank-0.part").exists():
            raise InputError(
                f"'{self.path}' is not the folder that rank 0 writes to; give an --out on storage that all ranks share."
            )

    def unmark(self, rank: int) -> None:
        with suppress(OSError):
            (self.path / f".rank-{rank}.part").unlink()

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    def recipe(self) -> Recipe:
        """The recipe of an existing run."""
        try:
            values = json.loads((self.path / "recipe.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(
                f"'{self.path}' is no run folder: it has no recipe.json; `scns runs` lists those in runs/."
            ) from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(
                f"'{self.path / 'recipe.json'}' cannot be read ({why}); put it right, or train in another --out."
            ) from None
        if not isinstance(values, dict):
            raise InputError(f"'{self.path / 'recipe.json'}' must hold keys and values.")
        made_by, made_in = values.pop("version", "?"), values.pop("format", 0)
        noted = values.pop("resolved", {})
        if not isinstance(noted, dict):
            raise InputError(f"'{self.path / 'recipe.json'}' must hold keys and values in 'resolved', or leave it out.")
        if not isinstance(made_in, int) or made_in > _FORMAT:
            raise InputError(
                f"'{self.path}' was made by scns {made_by}, which is newer than this one ({__version__}); update scns."
            )
        return as_it_was(from_dict(values, f"'{self.path / 'recipe.json'}'"), noted)

    def result(self) -> dict[str, Any]:
        """What came out of a finished run, with all that every result has."""
        path = self.path / "result.json"
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            raise
        except OSError as error:
            raise InputError(f"'{path}' cannot be read ({error.strerror}); check its permissions.") from None
        except ValueError as error:
            raise InputError(f"'{path}' cannot be read ({error}); {AGAIN}.") from None
        known = found if isinstance(found, dict) else {}
        if wrong := _lacking(known, _RESULT):
            raise InputError(f"'{path}' lacks {', '.join(wrong)}; {AGAIN}.")
        return known

    def resolved(self) -> dict[str, Any]:
        """Every argument of the method as it was when the run began; {} where that was not written down."""
        try:
            found = json.loads((self.path / "recipe.json").read_text()).get("resolved")
        except (OSError, ValueError, AttributeError):
            return {}
        return found if isinstance(found, dict) else {}

    def changes(self, recipe: Recipe, but: Collection[str] = ()) -> dict[str, tuple[Any, Any]]:
        """What another recipe has otherwise than the run's, keys in `but` apart; of the same one, what its method means
        otherwise by now."""
        then, now = self.resolved(), resolved(recipe)
        meant = {f"method.{key}": (then[key], now[key]) for key in then if key in now and then[key] != now[key]}
        kept = self.recipe()
        changed = differences(kept, recipe)
        if self.finished and own_root(kept) != own_root(recipe):  # what goes on is told by its images
            changed["root"] = (kept.root, recipe.root)
        old, new = changed.pop("arguments", ({}, {}))
        if then and now and "method" not in changed and "preset" in changed:
            del changed["preset"]  # it is what it means
            changed |= meant
        for key in sorted({*old, *new}):  # one by one; what only one of them gives, or gives as None, is a default
            pair = then.get(key, old.get(key)), now.get(key, new.get(key))
            if pair[0] != pair[1]:
                changed[f"method.{key}"] = pair
        return {key: pair for key, pair in changed.items() if key not in but} or meant

    def save(self, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Write a checkpoint: one file, so that weights and progress can never disagree."""
        kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        self._check_space(sum(value.nbytes for value in kept.values()))
        with self.told("A checkpoint"):
            with atomic(self.path / _LAST) as temporary:
                save_tensors(kept, temporary, {"progress": json.dumps(progress)})
            with atomic(self.path / "state.json") as temporary:  # for people; the file above decides
                temporary.write_text(json.dumps(progress, indent=1))

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """What the system refuses to write, in a sentence."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{what} cannot be written to '{self.path}' ({error}); the last checkpoint is intact: free space there "
                "and give the same command again."
            ) from None

    def _check_space(self, size: int) -> None:
        """Before the first checkpoint, the disk must hold it, its successor beside it and the student."""
        free = shutil.disk_usage(self.path).free
        if not (self.path / _LAST).exists() and free < _COPIES * size:
            raise InputError(
                f"'{self.path}' has {free / 1e6:,.0f} MB of free space, but the run needs {_COPIES * size / 1e6:,.0f}; "
                "free some, or choose another --out."
            )

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last checkpoint, or None."""
        progress = self.progress()
        return None if progress is None else (load_file(self.path / _LAST), progress)

    def progress(self) -> dict[str, Any] | None:
        """How far the last checkpoint is, or None; its header is small, so no weights are read."""
        path = self.path / _LAST
        if not path.exists():
            return None
        open(path, "rb").close()  # safetensors would say of a file that may not be read that it is not there
        try:
            with safe_open(path, framework="pt") as file:
                known = json.loads((file.metadata() or {})["progress"])
            if not isinstance(known, dict) or _lacking(known, _PROGRESS):
                raise ValueError("it does not say how far it is")
        except (SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"'{path}' is cut short or of another kind ({error}); remove it to start over.") from None
        return known

    def log(self, lines: list[dict[str, Any]]) -> None:
        """Write the log anew with these lines: those after a checkpoint happen again."""
        with atomic(self.path / "log.jsonl") as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (self.path / _NEW).unlink(missing_ok=True)
        (self.path / _LOST).unlink(missing_ok=True)  # it is tried again, or done

    def diverge(self, done: int, seconds: float, reason: str) -> None:
        """Keep that the run came to no end, for whoever lists it; where that cannot be written, it is told now."""
        with suppress(OSError), atomic(self.path / _LOST) as temporary:
            temporary.write_text(json.dumps({"done": done, "seconds": seconds, "reason": reason}, indent=1) + "\n")

    def diverged(self) -> dict[str, Any] | None:
        """After how many epochs and seconds a run diverged, and the sentence that says so; else None."""
        try:
            known = json.loads((self.path / _LOST).read_text())
            return {"done": int(known["done"]), "seconds": float(known["seconds"]), "reason": str(known["reason"])}
        except (OSError, ValueError, KeyError, TypeError):  # not there; cut short, it says nothing
            return None

    def note(self, line: dict[str, Any]) -> None:
        """Add a line to the log, in one piece, so that it can be watched while the run goes on.

        A line that is lost with the machine, or cut short by a full disk, is written again from the checkpoint.
        """
        told = (json.dumps(line) + "\n").encode()
        with self.told("The log"), open(self.path / "log.jsonl", "ab", buffering=0) as file:
            if file.write(told) < len(told):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def save_model(self, student: nn.Module, images: Images) -> None:
        """Write the student alone, with what its user must know of the images it was trained on."""
        kept = {name: value.detach().cpu().contiguous() for name, value in student.state_dict().items()}
        known = {"classes": images.names, "size": images.size, "mean": images.mean, "std": images.std}
        about = {"student": self.recipe().student, **{key: json.dumps(value) for key, value in known.items()}}
        with self.told("The student"), atomic(self.path / "model.safetensors") as temporary:
            save_tensors(kept, temporary, about)

    def finish(self, result: dict[str, Any]) -> None:
        with atomic(self.path / "result.json") as temporary:
            temporary.write_text(json.dumps(result, indent=1) + "\n")
        (self.path / "error.txt").unlink(missing_ok=True)  # of a sweep in which it failed


def run_folders(folder: str | Path) -> tuple[list[Path], dict[Path, str]]:
    """(the run folders in a folder and below, by path; a sentence for each folder that cannot be looked into)."""
    closed: dict[Path, str] = {}

    def refused(error: OSError) -> None:
        closed[Path(error.filename)] = f"'{error.filename}' cannot be opened ({error.strerror}); check its permissions."

    walked = os.walk(folder, onerror=refused)
    return sorted(Path(where) for where, _, files in walked if "recipe.json" in files), closed


def resolved(recipe: Recipe) -> dict[str, Any]:
    """Every argument of the recipe's method, as JSON keeps it; {} for a method that this version lacks."""
    try:
        taken = methods.of_recipe(recipe)
    except InputError:
        return {}
    return json.loads(json.dumps(taken, default=str))  # str: one's own method may have any kind of default


def as_it_was(recipe: Recipe, noted: dict[str, Any]) -> Recipe:
    """The recipe of a run that noted those arguments, with what it left to defaults that are others by now."""
    now = resolved(recipe)
    moved = {key: value for key, value in noted.items() if key in now and now[key] != value}
    return replace(recipe, arguments={**recipe.arguments, **moved})


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


def _lacking(known: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """The keys that are not there, or with a value of another kind."""
    return [key for key, kind in wanted.items() if not isinstance(known.get(key), kind)]


def put(state: dict[str, Tensor], tensors: dict[str, Tensor], where: Path) -> None:
    """Copy tensors into a module's state, name by name. (`load_state_dict` would ask for batch-norm counters.)"""
    both = set(state) & set(tensors)
    odd = sorted({*state, *tensors} - {name for name in both if state[name].shape == tensors[name].shape})
    if odd:
        raise InputError(
            f"The checkpoint in '{where}' does not fit its recipe: {', '.join(odd[:3])}; remove it to start over."
        )
    with torch.no_grad():
        for name, value in state.items():
            value.copy_(tensors[name])


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def without_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
