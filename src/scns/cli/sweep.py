"""`scns sweep`: many runs at once."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from scns.cli import screen
from scns.errors import InputError


def sweep(
    recipes: Annotated[list[str], typer.Argument(help="Names (see `scns recipes`) or .toml and .json files.")],
    out: Annotated[Path, typer.Option(help="The folder for all runs.")] = Path("runs"),
    seeds: Annotated[int, typer.Option(help="Runs of each recipe, with seeds 0, 1, 2, ...")] = 1,
    pack: Annotated[int, typer.Option(help="Runs at once on one device.")] = 8,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of every recipe.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs; the same as --set epochs=N.")] = None,
    subset: Annotated[int | None, typer.Option(help="Training images to use; all by default.")] = None,
    same_batches: Annotated[
        bool, typer.Option(help="All seeds see the same batches: they share one teacher pass and compare pairwise.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would run.")] = False,
) -> None:
    """Run several recipes and seeds, packed on one device; started again, it goes on where it stopped."""
    from scns import preflight
    from scns.recipes import load_recipe
    from scns.sweep import Job, finished
    from scns.sweep import sweep as run
    from scns.watch import watching

    if seeds < 1 or pack < 1:
        raise InputError(f"--seeds {seeds} and --pack {pack} must be at least 1.")
    jobs = []
    for name in recipes:
        base = load_recipe(name).with_settings(settings or [])
        base = replace(base, epochs=epochs or base.epochs, subset=base.subset if subset is None else subset)
        for seed in range(seeds):
            recipe = replace(base, seed=seed, data_seed=0 if same_batches else -1)
            preflight.check(recipe)
            jobs.append(Job(recipe, out / f"{Path(name).stem}-{seed}"))
    rows: list[list[object]] = [
        [
            job.out,
            job.recipe.student,
            job.recipe.method,
            job.recipe.epochs,
            "finished" if finished(job.out) else "to do",
        ]
        for job in jobs
    ]
    screen.table("", {"run": "left", "student": "left", "method": "left", "epochs": "right", "state": "left"}, rows)
    if dry_run:
        return
    with watching(screen.err, sys.stderr.isatty(), False) as watch:
        outcomes = run(jobs, pack=pack, say=lambda line: screen.err.print(line, markup=False), watch=watch)
    screen.table(
        "",
        {"run": "left", "test %": "right", "s": "right", "": "left"},
        [
            [o.job.out, f"{o.result['test']:.2f}", f"{o.result['seconds']:,}", ""]
            if o.result
            else [o.job.out, "", "", o.error]
            for o in outcomes
        ],
    )
    if any(outcome.result is None for outcome in outcomes):
        raise typer.Exit(1)
