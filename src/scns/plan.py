"""From cells of the paper's tables to jobs of a sweep: teachers first, seeds, shrinking, and how long it may take."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from scns import models, preflight, tables
from scns.checkpoint import Folder
from scns.errors import InputError
from scns.recipe import Recipe, differences
from scns.sweep import Job
from scns.tables import Cell

_OF_THE_STUDENT = ("method", "preset", "teacher", "distil")  # settings that a teacher's own training does not take

# Measured on one H200 with `bench/epoch.py`: resnet20, 50,000 images of 32 px, seconds an epoch.
_SECONDS = {64: 1.56, 128: 1.03}  # cross-entropy, by batch
_LIVE = 3.03 - 1.70  # what a live resnet110 as teacher adds to a cached one
_CONTRAST = 2.09 - 1.70  # what InfoNCE or CRD adds to distilled logits
_PACKED = 0.99 / 1.56  # of the time, for each of 8 at once
_TRAINING = {"cifar10": (50_000, 32), "cifar100": (50_000, 32), "tiny-imagenet-200": (100_000, 64)}  # images, px
_TRAINING["cifar10-mini"] = (2_500, 32)


def plan(
    cells: Sequence[Cell],
    out: Path,
    *,
    seeds: int = 1,
    settings: Sequence[str] = (),
    epochs: int | None = None,
    subset: int | None = None,
    same_batches: bool = True,
) -> list[Job]:
    """Jobs for the cells with seeds 0, 1, ...; each teacher once, with seed 0, before its students.

    Fewer epochs keep the shape of the schedule: milestones move with them. Settings change teachers too, apart from
    those that choose the method or the teacher; `teacher=` puts a teacher of one's own in place of the table's.
    """
    jobs: dict[Path, Job] = {}

    def add(recipe: Recipe, run: str, seed: int, after: tuple[Path, ...]) -> Path:
        place = tables.folder(run, seed, out)
        recipe = replace(recipe, seed=seed, data_seed=0 if same_batches else -1)
        if place not in jobs:
            preflight.check(recipe)
            jobs[place] = Job(recipe, place, after)
        return place

    own_teacher = any(word.startswith("teacher=") for word in settings)
    for cell in cells:
        recipe = _shrunk(cell.recipe.with_settings(list(settings)), cell.recipe, epochs, subset)
        after: tuple[Path, ...] = ()
        if cell.teacher and not own_teacher:
            source = tables.of_run(cell.teacher)[0].recipe
            kept = [word for word in settings if not word.startswith(_OF_THE_STUDENT)]
            after = (add(_shrunk(source.with_settings(kept), source, epochs, subset), cell.teacher, 0, ()),)
            recipe = replace(recipe, teacher=str(after[0]))
        for seed in range(seeds):
            add(recipe, cell.run, seed, after)
    needed = {path for job in jobs.values() for path in job.after}
    return sorted(jobs.values(), key=lambda job: job.out not in needed)


def check_folders(jobs: Sequence[Job]) -> None:
    """Raise where a folder holds a run of another recipe, which a sweep would take for the one that is asked for."""
    for job in jobs:
        folder = Folder(job.out)
        if not (job.out / "recipe.json").exists():
            continue
        changed = differences(folder.recipe(), job.recipe)
        if folder.finished:
            changed.pop("teacher", None)  # the same teacher may be reached by another path
        if changed:
            words = ", ".join(f"{key} ({old!r} there, {new!r} asked)" for key, (old, new) in changed.items())
            raise InputError(f"'{job.out}' holds a run with another recipe: {words}; choose another --out.")


def hours(jobs: Sequence[Job], pack: int = 1, done: Collection[Path] = ()) -> float | None:
    """Estimated hours on one H200 of the jobs that are not `done`; None where a data set's size is not known.

    seconds an epoch = images / 50,000 * (measured resnet20 * MFLOPs / resnet20's + teacher + contrast), less what
    packing saves. Deep narrow networks are slower than their MFLOPs say, large ones faster: good to a factor of 2.
    """
    teachers = {job.out: job.recipe.student for job in jobs}
    waiting = [job for job in jobs if job.out not in done]
    total = 0.0
    for job in waiting:
        if job.recipe.data not in _TRAINING:
            return None
        teacher = job.recipe.teacher_network or next((teachers[path] for path in job.after if path in teachers), "")
        total += _epoch_seconds(job.recipe, teacher) * job.recipe.epochs
    saved = (1 - _PACKED) * (min(pack, len(waiting), 8) - 1) / 7 if waiting else 0.0  # measured at 8, a line in between
    return total * (1 - saved) / 3600


def _epoch_seconds(recipe: Recipe, teacher: str) -> float:
    images, pixels = _TRAINING[recipe.data]
    student = _SECONDS[128 if recipe.batch >= 128 else 64] * _flops(recipe.student, pixels) / _flops("resnet20", 32)
    seconds = student * _forwards(recipe)
    if recipe.teacher and recipe.distil and recipe.teacher_mode == "live" and teacher:
        seconds += _LIVE * _flops(teacher, recipe.teacher_size or pixels) / _flops("resnet110", 32)
    if recipe.method in ("infonce", "crd", "crd-lm"):
        seconds += _CONTRAST
    return seconds * min(images, recipe.subset or images) / 50_000


def _forwards(recipe: Recipe) -> int:
    """Images a step forwards for each anchor: itself, and companions of the methods that have them."""
    if recipe.method in ("pc", "cka"):
        return 6 if recipe.preset.startswith("contrastive") else 3  # a positive, and 4 negatives or 1
    return 2 if recipe.method == "ce-lm" else 1


@cache
def _flops(network: str, pixels: int) -> int:
    with torch.device("meta"):
        return models.flops(models.build(network, 100), pixels)


def _shrunk(recipe: Recipe, own: Recipe, epochs: int | None, subset: int | None) -> Recipe:
    if subset is not None:
        recipe = replace(recipe, subset=subset)
    if epochs is None or epochs == recipe.epochs:
        return recipe
    if recipe.milestones != own.milestones:
        return replace(recipe, epochs=epochs)
    moved = {max(1, round(milestone * epochs / recipe.epochs)) for milestone in recipe.milestones}
    return replace(recipe, epochs=epochs, milestones=tuple(sorted(moved)))
