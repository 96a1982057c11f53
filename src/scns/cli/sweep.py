"""`scns sweep`: many runs at once, of recipes or of the paper's tables."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scns.cli import screen
from scns.errors import InputError, unknown
from scns.phrases import count

if TYPE_CHECKING:
    from scns.sweep import Job, Outcome
    from scns.tables import Cell

_ENGINES = ("local", "ray")
_TABLE = re.compile(r"(t\d+)(?:/([^/]+)/([^/]+))?")  # a table, or a cell of it


def sweep(
    recipes: Annotated[
        list[str],
        typer.Argument(help="Names (see `scns recipes`), .toml and .json files, or tables of the paper: t1, t2, t3."),
    ],
    out: Annotated[Path, typer.Option(help="The folder for all runs.")] = Path("runs"),
    rows: Annotated[
        str, typer.Option(help="Of a table: patterns such as 'instance*,kld'; by default all that the paper prints.")
    ] = "",
    columns: Annotated[
        str, typer.Option(help="Of a table: patterns such as 'resnet110-*'; by default all that the paper prints.")
    ] = "",
    seeds: Annotated[int, typer.Option(help="Runs of each recipe, with seeds 0, 1, 2, ...")] = 1,
    pack: Annotated[int, typer.Option(help="Runs at once on one device.")] = 8,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of every recipe, such as --set lr=0.1."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs; a table's learning rate drops move with them.")] = None,
    subset: Annotated[int | None, typer.Option(help="Training images to use; all by default.")] = None,
    same_batches: Annotated[
        bool,
        typer.Option(
            help="All seeds see seed 0's batches and negatives: one teacher pass, but deviations leave those out."
        ),
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(help="Of t2: a folder with published ImageNet weights, such as resnet50.pth, to start teachers."),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local: this machine; ray: a cluster that shares the folder --out.")
    ] = "local",
    address: Annotated[
        str, typer.Option(help="Of --engine ray: HOST:PORT, or auto; by default $RAY_ADDRESS, else this machine alone.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would run.")] = False,
) -> None:
    """Run several recipes and seeds, packed on one device; started again, it goes on where it stopped.

    Example: scns sweep mini-ce mini-class mini-uniform --seeds 3

    A table of the paper is its cells and, first, their teachers: scns sweep t3 --rows 'instance*,kld' --columns
    resnet110-resnet20 --seeds 3. Cells have names too: scns sweep t3/kld/resnet110-resnet20
    """
    from scns import preflight
    from scns.files import check_writable
    from scns.plan import check_data, check_folders, check_free, plan
    from scns.sweep import finished
    from scns.watch import watching
    from scns.workers import run_everywhere

    for option, number in (("--seeds", seeds), ("--pack", pack), ("--epochs", epochs)):
        if number is not None and number < 1:
            raise InputError(f"{option} {number} must be at least 1.")
    for word in settings or []:
        if word.startswith("seed="):
            raise InputError(f"--set {word} is for `scns train`; the seeds of a sweep are 0, 1, ... as --seeds says.")
    if engine not in _ENGINES:
        raise unknown("engine", engine, _ENGINES)
    if address and engine != "ray":
        raise InputError(f"--address {address} belongs to --engine ray; add it, or leave out the address.")
    cells = [cell for name in recipes if _TABLE.fullmatch(name) for cell in _cells(name, rows, columns)]
    if (rows or columns or weights) and not cells:
        raise InputError("--rows, --columns and --weights belong to a table; name t1, t2 or t3.")
    jobs = plan(
        cells,
        out,
        seeds=seeds,
        settings=settings or [],
        epochs=epochs,
        subset=subset,
        same_batches=same_batches,
        weights=weights,
    )
    for name in recipes:
        if not _TABLE.fullmatch(name):
            jobs += _jobs(name, out, seeds, settings or [], epochs, subset, same_batches)
    check_folders(jobs)
    _show_plan(jobs, pack, bool(cells), engine == "local")
    if dry_run:
        return
    waiting = [job for job in jobs if finished(job.out) is None]
    check_free(waiting)
    if engine == "local":  # on a cluster the data lie where the runs are
        for job in waiting:
            preflight.check_device(job.recipe)
        check_data(waiting)
        if any(not job.out.exists() for job in waiting):
            check_writable(out / ".written")  # a folder that cannot be, or be written, is said now, not once a run
    with screen.stoppable():
        if engine == "ray":
            from scns.cluster import sweep_on_ray

            outcomes = sweep_on_ray(jobs, pack=pack, folder=out, address=address, say=screen.tell)
        else:
            with watching(screen.err, screen.redraws(), True, under=out) as watch:
                outcomes = run_everywhere(jobs, pack=pack, folder=out, say=screen.tell, watch=watch)
    _show_outcomes(outcomes)
    if cells:
        screen.out.print(f"Averages over seeds, beside the paper's: scns results {shlex.quote(str(out))}", style="dim")
    if any(outcome.result is None for outcome in outcomes):
        raise typer.Exit(1)


def _cells(name: str, rows: str, columns: str) -> "list[Cell]":
    """The cells of a table that the options select, or of a name such as t3/kld/resnet110-*."""
    from scns import tables

    table, row, column = _TABLE.fullmatch(name).groups()  # type: ignore[union-attr]
    if row and (rows or columns):
        raise InputError(f"'{name}' says which row and column; leave --rows and --columns out, or name {table} alone.")
    cells = tables.select(table, row or rows, column or columns)
    if not cells:
        raise InputError(f"No cell of {table} has both --rows {row or rows} and --columns {column or columns}.")
    return cells


def _jobs(
    name: str, out: Path, seeds: int, settings: list[str], epochs: int | None, subset: int | None, same_batches: bool
) -> "list[Job]":
    """The runs of a recipe that is no table's."""
    from scns import preflight, tables
    from scns import recipes as named
    from scns.plan import seeded
    from scns.sweep import Job

    if "/" not in name and not name.endswith((".toml", ".json")) and name not in named.names():
        raise unknown("recipe or table", name, [*named.names(), *tables.TABLES])
    base = named.load_recipe(name, settings)
    base = replace(base, epochs=epochs or base.epochs, subset=base.subset if subset is None else subset)
    jobs = []
    for seed in range(seeds):
        recipe = seeded(base, seed, same_batches)
        preflight.check(recipe)
        jobs.append(Job(recipe, out / f"{Path(name).stem}-{seed}"))
    return jobs


def _show_plan(jobs: "list[Job]", pack: int, estimated: bool, local: bool) -> None:
    from scns.plan import hours, notes
    from scns.preflight import choose_device
    from scns.sweep import finished

    done = {job.out for job in jobs if finished(job.out)}
    told = notes(jobs)
    marks = screen.numbered(told.values())
    rows: list[list[object]] = [
        [
            job.out,
            job.recipe.student,
            job.recipe.method,
            job.recipe.epochs,
            "finished" if job.out in done else "to do",
            marks[told.get(job.out, "")],
        ]
        for job in jobs
    ]
    columns = {"run": "left", "student": "left", "method": "left", "epochs": "right", "state": "left"}
    screen.table("", columns | {"": "left"} if told else columns, rows if told else [row[:-1] for row in rows])
    screen.show_notes(marks)
    if not estimated:
        return
    left = f"{count(len(jobs), 'run')}, {len(jobs) - len(done)} to do"
    time = hours(jobs, pack, done)
    if time is None:
        screen.out.print(f"{left}; how long is not known for this data.")
        return
    shown = f"about {time:,.1f} hours" if time >= 0.1 else f"about {60 * time:.0f} min" if time > 1 / 60 else "seconds"
    slow = local and any(choose_device(job.recipe).type == "cpu" for job in jobs)
    here = "how long on this CPU is not known, " if slow else ""
    screen.out.print(f"{left}; {here}{shown} on one H200, packed by {pack} (scaled by MFLOPs, give or take 2x).")


def _show_outcomes(outcomes: "list[Outcome]") -> None:
    rows: list[list[object]] = [
        [o.job.out, f"{o.result['test']:.2f}", f"{o.result['seconds']:,}"] if o.result else [o.job.out, how(o), ""]
        for o in outcomes
    ]
    screen.table("", {"run": "left", "test %": "right", "s": "right"}, rows)
    for outcome in outcomes:
        if outcome.result is None:
            screen.out.print(f"{outcome.job.out} {how(outcome)}: {outcome.error}", soft_wrap=True)


def how(outcome: "Outcome") -> str:
    """In a word, what became of a run without a result."""
    from scns.checkpoint import Folder

    return "diverged" if Folder(outcome.job.out).diverged() else "failed"
