"""`scns tune`: search a grid on held-out images."""

from pathlib import Path
from typing import Annotated

import typer

from scns.cli import screen
from scns.cli.sweep import how
from scns.cli.train import Named, named_recipe


def tune(
    recipe: Named,
    grid: Annotated[list[str] | None, typer.Option(help="KEY=VALUE,VALUE,...; several make all combinations.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of every run, such as --set lr=0.1."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of every run; the recipe's by default.")] = None,
    subset: Annotated[int | None, typer.Option(help="Training images to use; all by default.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for all runs.")] = Path("runs/tune"),
    pack: Annotated[int, typer.Option(help="Runs at once on one device.")] = 8,
) -> None:
    """Search a grid: judged on 5 % of the training images, the winner trained again on all of them.

    Example: scns tune mini-uniform --grid method.negatives=16,256 --grid method.tau=0.07,0.2 --epochs 3
    """
    from scns import preflight
    from scns.files import check_writable
    from scns.plan import check_data, check_folders, check_free
    from scns.sweep import finished
    from scns.tune import jobs
    from scns.tune import tune as search
    from scns.watch import watching

    chosen, _ = named_recipe(recipe, settings or [], epochs=epochs, subset=subset, seed=None, out=None)
    listed = [job for _, job in jobs(chosen, grid or [], out)]
    for job in listed:
        preflight.check(job.recipe)
    check_folders(listed)
    waiting = [job for job in listed if finished(job.out) is None]
    check_free(waiting)
    for job in waiting:
        preflight.check_device(job.recipe)
    check_data(waiting)
    check_writable(out / ".written")  # said once, not once a point
    with screen.stoppable(), watching(screen.err, screen.redraws(), True, under=out) as watch:
        found = search(chosen, grid or [], out, pack=pack, say=screen.tell, watch=watch)
    rows: list[list[object]] = [
        [
            " ".join(trial.settings),
            how(trial.outcome) if trial.validation is None else f"{trial.validation:.2f}",
            "best" if trial is found.best else trial.outcome.error,
        ]
        for trial in found.trials
    ]
    screen.table("", {"settings": "left", "validation %": "right", "": "left"}, rows)
    used = found.final.job.recipe.subset
    trained_on = f"on {used:,} images" if used else "on all images"
    if found.final.result is None:
        screen.complain(f"The winner could not be trained {trained_on}: {found.final.error}")
        raise typer.Exit(1)
    screen.out.print(
        f"{' '.join(found.best.settings)}, {trained_on}: {found.final.result['test']:.2f} % of the test images.",
    )
    screen.out.print(f"run: {found.final.job.out}")
