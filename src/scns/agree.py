"""What the processes of a run make sure of before they train together: one recipe, folder, data set and state."""

from pathlib import Path

import torch

from scns import __version__, preflight
from scns.checkpoint import Folder
from scns.errors import InputError
from scns.memory import divided
from scns.recipe import Recipe
from scns.run import Data, Run
from scns.world import World


def open_folder(recipe: Recipe, out: str | Path, world: World) -> bool:
    """Make or find the run folder of a recipe that can be trained; True when the run is finished already."""
    world.each(lambda: preflight.check(recipe))
    if world.size > 1:
        known = {"scns": __version__, "torch": torch.__version__, **recipe.as_dict()}
        del known["root"]  # machines may keep their data where they like
        world.same("recipe", known, "give every rank the same command")
        with world.alike():
            _check_world(recipe, world)
    folder = Folder(out)
    begun = (folder.path / "recipe.json").exists()  # perhaps by an earlier version, and it is to go on
    world.each(lambda: None if begun else preflight.check_used(recipe))  # each rank asks: folders may differ
    world.each(lambda: None if folder.finished else preflight.check_device(recipe))  # before there is a folder
    finished = world.together(lambda: folder.open(recipe))
    if world.size > 1 and not finished:
        world.each(lambda: folder.mark(world.rank))
        try:
            world.each(folder.check_mark)
        finally:
            folder.unmark(world.rank)
    return finished


def _check_world(recipe: Recipe, world: World) -> None:
    if world.size > recipe.batch:
        raise InputError(
            f"{world.size} processes cannot share a batch of {recipe.batch}; start at most {recipe.batch}, or raise "
            "batch, which is that of all processes together."
        )
    if recipe.tables == "sharded" and recipe.gather == "never":
        raise InputError("tables=sharded needs the features of the whole batch, so gather=never cannot be; use auto.")


def check_same_data(data: Data, world: World) -> None:
    """Ranks on other machines read their own copy."""
    if world.size > 1:
        labels = data.train.labels
        weighted = int((labels * torch.arange(1, len(labels) + 1, device=labels.device)).sum())  # knows their order
        known = {"images": len(labels), "checksum of labels": weighted, "test images": len(data.test)}
        world.same("data set", known, "give every rank the same data under root")


def resume_alike(run: Run) -> bool:
    """Go on from a checkpoint, if there is one: all ranks from the same."""
    world = run.world
    resumed = world.each(run.resume)
    place = {"stage": run.stage, "epoch": run.epoch, "place": run.place, "seconds": run.seconds}
    world.same("checkpoint", place, "give an --out on storage that all ranks share")
    shared = {name for name, _ in divided(run.method)}
    world.align_([*run.student.parameters(), *run.student.buffers(), *run.method.parameters()])
    world.align_([each for name, each in run.method.named_buffers() if name not in shared])
    return resumed
