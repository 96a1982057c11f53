"""The frozen teacher: live on the student's view, or cached (one forward a sample), at any input size.

It sees images as it learnt to: resized, and normalised by the mean and deviation of its own training images, where its
file says them (weights of others say none, and are given what the student is given).
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from scns import augment, checks, models
from scns.checkpoint import Folder
from scns.data import Images
from scns.errors import InputError, unknown
from scns.features import Batch, Features

_BUNDLED = "bundled:"  # teacher=bundled:wrn-16-2-cifar10
TABLE_BYTES = 4 << 30  # of the tables that hold its answers; beyond, it is asked batch by batch
LOOK_PIXELS = 1024 * 1000  # of the images a teacher looks at in one go: 1,000 of 32 px take half as long as in 64s


Moments = tuple[Sequence[float], Sequence[float]]  # mean and standard deviation of each channel
_CIFAR10: Moments = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201))  # which the bundled ones learnt


class Teacher:
    """A network in evaluation mode without gradients; called with a batch, it gives its features."""

    def __init__(self, network: nn.Module, *, size: int = 0, bf16: bool = False, compiled: bool = False) -> None:
        self.network = network.eval().requires_grad_(False)
        self.moments: Moments | None = getattr(network, "moments", None)
        self.again: tuple[list[float], list[float]] | None = None  # scale and shift of what others have normalised
        self.size, self.bf16, self.compiled = size or getattr(network, "input_size", 0), bf16, compiled
        self.network.input_size = self.size  # type: ignore[assignment]  # not the one it was trained with, where they differ
        self.quick: nn.Module | None = None  # the network with its batch norms folded; made at the first look
        self.live: nn.Module | None = None  # the same for batches of training: compiled, where that is asked for
        self.logits: Tensor | None = None
        self.embeddings: Tensor | None = None
        self.look: Callable[[int, int], None] = lambda done, total: None  # told how far it is with a set of images
        self.clean: tuple[Images, Tensor, Tensor] | None = None  # the last set it was asked about, with its answers

    def takes(self, images: Images) -> "Teacher":
        """From now on batches are normalised as these images are, for a student of theirs."""
        mean, std = self.moments or (images.mean, images.std)
        scale = [theirs / own for theirs, own in zip(images.std, std, strict=True)]
        shift = [(theirs - own) / s for theirs, own, s in zip(images.mean, mean, std, strict=True)]
        alike = all(abs(value - 1) < 1e-6 for value in scale) and all(abs(value) < 1e-6 for value in shift)
        self.again = None if alike else (scale, shift)
        return self

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of its weights and of how it sees images."""
        digest = hashlib.sha256(repr(self.moments).encode())
        for name, value in sorted(self.network.state_dict().items()):
            digest.update(f"{name} {checks.fingerprint(value)}".encode())
        return digest.hexdigest()

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Features:
        if self.logits is not None and self.embeddings is not None:
            return Features(self.logits[batch.index], self.embeddings[batch.index])
        if self.live is None:
            quick = self._quick(batch.images)
            self.live = torch.compile(quick, dynamic=False) if self.compiled else quick  # type: ignore[assignment]
        assert self.live is not None
        return self._look(self.live, self._as_learnt(batch.images))

    @torch.no_grad()
    def see(self, images: Tensor) -> Features:
        """Features of normalised images, resized to the teacher's input where it has its own."""
        return self._look(self._quick(images), self._as_learnt(images))

    def _as_learnt(self, images: Tensor) -> Tensor:
        if self.again is None:
            return images
        scale, shift = (augment.per_channel(values, images) for values in self.again)
        return images * scale + shift

    def _quick(self, images: Tensor) -> nn.Module:
        if self.quick is None:
            self.quick = models.folded(self.network, images[:1])
            if self.bf16 and not any(isinstance(module, nn.BatchNorm2d) for module in self.quick.modules()):
                self.quick = self.quick.to(torch.bfloat16)  # once, where autocast would cast every weight every step
        return self.quick

    def _look(self, network: nn.Module, images: Tensor) -> Features:
        images = augment.resize(images, self.size)
        with torch.autocast(images.device.type, torch.bfloat16) if self.bf16 else nullcontext():
            seen = network(images.bfloat16() if self.bf16 else images, features=True)
        return Features(seen.logits.float(), seen.embedding.float(), seen.maps, seen.preacts)

    def holds(self, images: Images) -> Features | None:
        """Its answer about one image, where tables of those about all of them are small enough to hold; else None."""
        one = self.see(augment.normalise(images.take(slice(1)), images.mean, images.std))
        needed = 4 * len(images) * (one.logits.shape[1] + one.embedding.shape[1])
        return one if needed <= TABLE_BYTES else None

    def answers(self, images: Images) -> tuple[Tensor, Tensor]:
        """(logits, embeddings) of every image, without augmentation; the runs of a pack ask about the same: once."""
        if self.clean is None or self.clean[0] is not images:
            self.clean = (images, *self.embed(images))
        return self.clean[1:]

    @torch.no_grad()
    def embed(self, images: Images, chunk: int = 0) -> tuple[Tensor, Tensor]:
        """(logits, embeddings) of every image, without augmentation, `chunk` at a time (0: what suits the device)."""
        cuda = images.labels.device.type == "cuda"
        chunk = chunk or (max(64, LOOK_PIXELS // max(images.size, self.size) ** 2) if cuda else 500)
        parts = []
        mean, std = self.moments or (images.mean, images.std)
        for start in range(0, len(images), chunk):
            pixels = augment.normalise(images.take(slice(start, start + chunk)), mean, std)
            seen = self._look(self._quick(pixels), pixels)
            parts.append((seen.logits, seen.embedding))
            self.look(min(start + chunk, len(images)), len(images))
        return torch.cat([logits for logits, _ in parts]), torch.cat([embedding for _, embedding in parts])

    def cache(self, images: Images, needs: tuple[str, ...]) -> None:
        """Answer from one forward a sample from now on."""
        if "maps" in needs or "preacts" in needs:
            raise InputError(
                "The method needs the teacher's feature maps, which are not cached; use teacher_mode=live."
            )
        self.logits, self.embeddings = self.answers(images)


def load_network(source: str, network: str, classes: int, names: Sequence[str] = ()) -> nn.Module:
    """The network of a run folder, of a weights file and the name of its architecture, or one that comes with scns.

    Given the names of the images' classes, a teacher that has them in another order is refused.
    """
    path, size = Path(source), 0
    if source.startswith(_BUNDLED):
        path = bundled(source.removeprefix(_BUNDLED))
        own = path.stem.rpartition("-")[0]  # NETWORK-DATA.safetensors
        if network not in ("", own):
            raise InputError(f"{source} is a {own}; leave teacher_network={network} out.")
        network = own
    elif path.is_dir():
        if not (path / "recipe.json").exists() or not (path / "model.safetensors").exists():
            raise InputError(
                f"'{path}' is no finished run: it needs recipe.json and model.safetensors; train it to its end."
            )
        taught = Folder(path).recipe()
        if network not in ("", taught.student):
            raise InputError(f"'{path}' is the run of a {taught.student}; leave teacher_network={network} out.")
        network, size, path = taught.student, taught.input_size, path / "model.safetensors"
    elif not path.exists():
        raise InputError(
            f"The teacher '{source}' does not exist; give a run folder, or a weights file and teacher_network."
        )
    elif not network:
        raise InputError(f"teacher={source} is a file of weights: say which network with teacher_network=wrn-40-2.")
    built = models.build(network, classes)
    built.input_size = size
    built.moments = _CIFAR10 if source.startswith(_BUNDLED) else _moments(path)  # type: ignore[assignment]
    try:
        models.load_weights(built, path)
    except models.OtherClassesError as error:
        raise InputError(
            f"The teacher '{source}' knows {error.found} classes, but the images have {error.wanted}; give one trained "
            "on the same classes."
        ) from None
    except InputError as error:
        raise InputError(f"{error} The teacher must be a {network} trained on the same {classes} classes.") from None
    _check_order(source, path, names)
    return built


def _moments(path: Path) -> Moments | None:
    """Mean and deviation of the images that a run of ours learnt; of another file nothing is known."""
    try:
        with safe_open(path, framework="pt") as file:
            told = file.metadata() or {}
        mean, std = ([float(value) for value in json.loads(told[key])] for key in ("mean", "std"))
    except (SafetensorError, OSError, KeyError, ValueError, TypeError):
        return None
    return (mean, std) if len(mean) == len(std) == 3 and min(std) > 0 else None


def _check_order(source: str, path: Path, names: Sequence[str]) -> None:
    """Raise where the weights were learnt with the same class names in another order: every answer would be wrong."""
    if path.suffix != ".safetensors":
        return
    with safe_open(path, framework="pt") as file:
        told = (file.metadata() or {}).get("classes", "")
    try:
        known = [str(name) for name in json.loads(told)]
    except (ValueError, TypeError):  # a file that is not ours says something else by it, or nothing
        return
    if {*known} != {*names}:
        return  # other words may mean the same classes
    for label, (own, other) in enumerate(zip(known, names, strict=True)):
        if own != other:
            raise InputError(
                f"The teacher '{source}' knows these classes in another order: its class {label} is '{own}', that of "
                f"the images '{other}'; number the images as its data were, or train it on these."
            )


def bundled(name: str) -> Path:
    """The weights file of a network that comes with scns; named after the network and the data it learnt."""
    known = {path.stem: path for path in sorted((Path(__file__).parent / "assets").glob("*.safetensors"))}
    if name not in known:
        raise unknown("bundled teacher", name, known)
    return known[name]
