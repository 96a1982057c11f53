"""From cells of the paper's tables to jobs of a sweep: teachers first, seeds, shrinking, and how long it may take."""

import shlex
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from scns import datasets, models, preflight, recognise, tables
from scns.checkpoint import Folder
from scns.errors import InputError
from scns.lock import held
from scns.recipe import Recipe
from scns.sweep import Job
from scns.tables import Cell

_OF_THE_STUDENT = (
    "method",
    "preset",
    "teacher",
    "distil",
    "weights=",
)  # settings that a teacher's own training does not take
_OF_TEACHERS = ("teacher", "teacher_network", "teacher_mode", "teacher_size", "distil")  # keys of a recipe


class _Measured(NamedTuple):
    """Of one H200 with `bench/epoch.py`: resnet20, 50,000 images of 32 px, seconds an epoch."""

    seconds: dict[int, float]  # cross-entropy, by batch
    live: float  # what a live resnet110 as teacher adds to a cached one
    contrast: float  # what InfoNCE or CRD adds to distilled logits
    packed: float  # of the time, for each of 8 at once


_TF32 = _Measured({64: 1.56, 128: 1.03}, 2.37 - 1.70, 2.09 - 1.70, 0.99 / 1.56)
_COMPILED = _Measured({64: 0.65, 128: 0.42}, 1.01 - 0.66, 0.80 - 0.66, 0.23 / 0.65)  # and bf16
_TRAINING = {"cifar10": (50_000, 32), "cifar100": (50_000, 32), "tiny-imagenet-200": (100_000, 64)}  # images, px
_TRAINING["cifar10-mini"] = (2_500, 32)


def plan(
    cells: Sequence[Cell],
    out: Path,
    *,
    seeds: int | Sequence[int] = 1,
    settings: Sequence[str] = (),
    epochs: int | None = None,
    subset: int | None = None,
    same_batches: bool = False,
    weights: Path | None = None,
) -> list[Job]:
    """Jobs for the cells with so many seeds (0, 1, ...) or these; each teacher once, with seed 0, before its students.

    Fewer epochs keep the shape of the schedule: milestones move with them. Settings change teachers too, apart from
    those that choose the method or the teacher; `teacher=` puts a teacher of one's own in place of the table's, and
    cross-entropy alone stays without one.
    `weights` is a folder with published weights, by network, from which teachers of t2 start that have a file there.
    """
    if weights is not None:
        _check_weights(cells, weights)
    jobs: dict[Path, Job] = {}

    def add(recipe: Recipe, run: str, seed: int, after: tuple[Path, ...]) -> Path:
        place = tables.folder(run, seed, out)
        recipe = seeded(recipe, seed, same_batches)
        if place not in jobs:
            preflight.check(recipe)
            jobs[place] = Job(recipe, place, after)
        return place

    own_teacher = any(word.startswith("teacher=") for word in settings)
    for cell in cells:
        own = _begun(cell, weights)
        recipe = _shrunk(own.with_settings(list(settings)), own, epochs, subset)
        if recipe.method in ("ce", "ce-lm") and not recipe.arguments.get("kld"):
            recipe = replace(recipe, **{key: getattr(own, key) for key in _OF_TEACHERS})
        after: tuple[Path, ...] = ()
        if cell.teacher and not own_teacher:
            source = _begun(tables.of_run(cell.teacher)[0], weights)
            kept = [word for word in settings if not word.startswith(_OF_THE_STUDENT)]
            after = (add(_shrunk(source.with_settings(kept), source, epochs, subset), cell.teacher, 0, ()),)
            recipe = replace(recipe, teacher=str(after[0]))
        for seed in range(seeds) if isinstance(seeds, int) else seeds:
            add(recipe, cell.run, seed, after)
    needed = {path for job in jobs.values() for path in job.after}
    return sorted(jobs.values(), key=lambda job: job.out not in needed)


def seeded(recipe: Recipe, seed: int, same_batches: bool) -> Recipe:
    """The recipe with a seed of a sweep; with `same_batches`, data_seed is 0 unless it is given."""
    return replace(recipe, seed=seed, data_seed=0 if same_batches and recipe.data_seed < 0 else recipe.data_seed)


def single(
    name: str,
    out: Path | None = None,
    *,
    seed: int | None = None,
    settings: Sequence[str] = (),
    epochs: int | None = None,
    subset: int | None = None,
) -> Job:
    """The job that a sweep has for one cell and seed, where its teacher is trained already.

    Without `out` it is the sweep's folder below runs/, and so it is where the teacher is looked for, unless `out` is
    itself such a folder of another sweep.
    """
    cell = tables.find(name)
    seed = cell.recipe.with_settings(list(settings)).seed if seed is None else seed
    root = Path("runs")
    if out is not None and tables.run_at(out.absolute()) == cell.run:
        root = (out if len(out.parts) >= 3 else out.absolute()).parents[2]
    jobs = plan([cell], root, seeds=[seed], settings=settings, epochs=epochs, subset=subset)
    (job,) = (each for each in jobs if each.out == tables.folder(cell.run, seed, root))
    for teacher in job.after:
        if not (teacher / "model.safetensors").exists():
            line = _teacher_line(cell.teacher, teacher, root, settings, epochs, subset)
            raise InputError(
                f"'{name}' needs its teacher, and '{teacher}' is no finished run; train it with: {line} -- or give "
                "another one with --set teacher=RUN."
            )
    return replace(job, out=out or job.out)


def _teacher_line(
    run: str, place: Path, root: Path, settings: Sequence[str], epochs: int | None, subset: int | None
) -> str:
    words = ["scns", "train", run]
    for setting in settings:
        if not setting.startswith((*_OF_THE_STUDENT, "seed=")):
            words += ["--set", setting]
    for option, value in (("--epochs", epochs), ("--subset", subset)):
        words += [option, str(value)] if value is not None else []
    return shlex.join(words + (["--out", str(place)] if root != Path("runs") else []))


def notes(jobs: Sequence[Job]) -> dict[Path, str]:
    """What a reader of each cell's run must know, such as how its teacher begins; runs without notes are left out."""
    recipes = {job.out: job.recipe for job in jobs}
    found = {}
    for job in jobs:
        for cell in tables.of_run(tables.run_at(job.out.absolute()))[:1]:
            teacher = recipes.get(job.after[0]) if job.after else recognise.teacher_recipe(job.out, job.recipe)
            found[job.out] = tables.notes(cell, teacher or job.recipe)
    return {path: words for path, words in found.items() if words}


def _begun(cell: Cell, weights: Path | None) -> Recipe:
    """The recipe of a cell; that of a t2 teacher starts from its published weights where the folder has them."""
    file = tables.published(cell.recipe.student, weights) if weights is not None and tables.starts(cell) else None
    return cell.recipe if file is None else tables.started(cell.recipe, str(file))


def _check_weights(cells: Sequence[Cell], weights: Path) -> None:
    """Weights are for t2's teachers, and a folder with none of them is probably the wrong one."""
    networks = sorted({cell.column.teacher for cell in cells if cell.column.imagenet})
    if not networks:
        raise InputError(f"--weights {weights} is for the teachers of t2 from ImageNet; these cells have none.")
    if not weights.is_dir():
        raise InputError(f"--weights {weights} is no folder; give the one that holds files such as {networks[0]}.pth.")
    if not any(tables.published(network, weights) for network in networks):
        listed = ", ".join(f"{network}.pth" for network in networks)
        raise InputError(f"'{weights}' has no weights of these teachers; put there {listed} (or .safetensors, .pt).")


def check_folders(jobs: Sequence[Job]) -> None:
    """Raise where a folder holds a run of another recipe, which a sweep would take for the one that is asked for.

    And where two recipes have the same name, and so the same folder.
    """
    for job in jobs:
        if sum(other.out == job.out for other in jobs) > 1:
            raise InputError(f"'{job.out}' is asked for twice; give every recipe once, and files names of their own.")
        folder = Folder(job.out)
        if not (job.out / "recipe.json").exists():
            preflight.check_used(job.recipe)
            continue
        # The teacher of a finished run may be reached by another path.
        folder.check(job.recipe, but=("teacher",) if folder.finished else ())


def check_free(jobs: Sequence[Job]) -> None:
    """Raise where another process trains in one of the folders: the same sweep was probably started twice.

    On a cluster, nodes that are lost may still hold a folder; it is taken from them.
    """
    for job in jobs:
        if job.out.is_dir() and not (job.out / ".owner").exists():
            with held(job.out):
                pass


def check_data(jobs: Sequence[Job]) -> None:
    """Raise where a data set is not there, which every run of it would otherwise fail for."""
    for data, root, size in {(job.recipe.data, job.recipe.root, job.recipe.size): None for job in jobs}:
        datasets.load(data, root, "test", **({"size": size} if size else {}))


def hours(jobs: Sequence[Job], pack: int = 1, done: Collection[Path] = ()) -> float | None:
    """Estimated hours on one H200 of the jobs that are not `done`; None where a data set's size is not known.

    seconds an epoch = images / 50,000 * (measured resnet20 * MFLOPs / resnet20's + teacher + contrast), less what
    packing saves. Deep narrow networks are slower than their MFLOPs say, large ones faster: good to a factor of 2.
    """
    recipes = {job.out: job.recipe for job in jobs}
    waiting = [job for job in jobs if job.out not in done]
    company = (min(pack, len(waiting), 8) - 1) / 7 if waiting else 0.0  # measured at 8, a line in between
    total = 0.0
    for job in waiting:
        if job.recipe.data not in _TRAINING:
            return None
        taught = next((recipes[path] for path in job.after if path in recipes), None)
        teacher = job.recipe.teacher_network or (taught.student if taught else "")
        pixels = job.recipe.teacher_size or (taught.input_size if taught else 0)
        saved = (1 - _speed(job.recipe).packed) * company
        total += _epoch_seconds(job.recipe, teacher, pixels) * job.recipe.epochs * (1 - saved)
    return total / 3600


def _speed(recipe: Recipe) -> _Measured:
    return _COMPILED if recipe.precision == "bf16" and recipe.compile != "no" else _TF32


def _epoch_seconds(recipe: Recipe, teacher: str, teacher_pixels: int) -> float:
    images, pixels = _TRAINING[recipe.data]
    seen = recipe.input_size or pixels
    speed = _speed(recipe)
    student = speed.seconds[128 if recipe.batch >= 128 else 64] * _flops(recipe.student, seen) / _flops("resnet20", 32)
    seconds = student * _forwards(recipe)
    if recipe.teacher and recipe.distil and recipe.teacher_mode == "live" and teacher:
        seconds += speed.live * _flops(teacher, teacher_pixels or pixels) / _flops("resnet110", 32)
    if recipe.method in ("infonce", "crd", "crd-lm"):
        seconds += speed.contrast
    return seconds * min(images, recipe.subset or images) / 50_000


def _forwards(recipe: Recipe) -> int:
    """Images a step forwards for each anchor: itself, and companions of the methods that have them."""
    if recipe.method in ("pc", "cka"):
        return 6 if recipe.preset.startswith("contrastive") else 3  # a positive, and 4 negatives or 1
    return 2 if recipe.method == "ce-lm" else 1


@cache
def _flops(network: str, pixels: int) -> int:
    return models.flops(models.outline(network, 100), pixels)


def _shrunk(recipe: Recipe, own: Recipe, epochs: int | None, subset: int | None) -> Recipe:
    if subset is not None:
        recipe = replace(recipe, subset=subset)
    if epochs is None or epochs == recipe.epochs:
        return recipe
    if recipe.milestones != own.milestones:
        return replace(recipe, epochs=epochs)
    moved = {max(1, round(milestone * epochs / recipe.epochs)) for milestone in recipe.milestones}
    return replace(recipe, epochs=epochs, milestones=tuple(sorted(moved)))
