"""`scns figures`: the paper's figures, from its printed numbers or from runs."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scns.cli import screen

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMES = ("classes", "cifar100", "tiny-imagenet", "beta-k", "convergence", "boxes", "sphere")
_SOURCES = ("paper", "runs", "both")


def figures(
    out: Annotated[Path, typer.Option(help="The folder to write to.")],
    source: Annotated[
        str, typer.Option(help="'paper' (its printed numbers), 'runs' (those of --runs), or 'both'.")
    ] = "paper",
    runs: Annotated[Path | None, typer.Option(help="A folder with run folders, for --source runs and both.")] = None,
    formats: Annotated[str, typer.Option("--format", help="png, svg or pdf, separated by commas.")] = "png,svg",
    only: Annotated[str | None, typer.Option(help=f"Some of them, separated by commas: {', '.join(_NAMES)}.")] = None,
) -> None:
    """Draw the paper's seven figures, from its numbers or from runs; what runs lack is said, with what to train.

    Example: scns figures --out figures --source both --runs runs --only classes,sphere
    """
    from scns import plots

    endings, wanted = _listed(formats), _listed(only) if only else list(_NAMES)
    _check(out, source, runs, endings, wanted)
    drawn: dict[str, Callable[[], Figure]] = {}
    if source != "runs":
        drawn |= _of_the_paper(wanted)
    if source != "paper" and runs is not None:
        drawn |= _of_runs(runs, wanted)
    told = []
    for name, draw in drawn.items():
        figure = draw()
        told += [plots.save(figure, out / f"{name}.{ending}") for ending in endings]
        screen.out.print(f"{name}: {', '.join(str(out / f'{name}.{ending}') for ending in endings)}")
    for sentence in dict.fromkeys(filter(None, told)):
        screen.tell(sentence)


def _listed(words: str) -> list[str]:
    return list(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))


def _check(out: Path, source: str, runs: Path | None, endings: list[str], wanted: list[str]) -> None:
    """Everything that can be wrong is said before the first figure is drawn."""
    from scns.errors import InputError, unknown
    from scns.plots import ENDINGS

    if source not in _SOURCES:
        raise unknown("source", source, _SOURCES)
    for kind, names, known in (("format", endings, ENDINGS), ("figure", wanted, _NAMES)):
        if not names:
            raise InputError(f"No {kind} is named; known: {', '.join(known)}.")
        for name in names:
            if name not in known:
                raise unknown(kind, name, known)
    if out.exists() and not out.is_dir():
        raise InputError(f"--out is '{out}', which is a file; give a folder.")
    if (source == "paper") != (runs is None):
        needed = "needs --runs, a folder with run folders" if runs is None else "does not read --runs; leave it out"
        raise InputError(f"--source {source} {needed}.")


def _of_the_paper(wanted: list[str]) -> "dict[str, Callable[[], Figure]]":
    """File name -> how to draw it."""
    from scns.report import figures, sphere

    drawn: dict[str, dict[str, Callable[[], Figure]]] = {
        "classes": _classes() if "classes" in wanted else {},
        "beta-k": {"beta-k": figures.paper_beta_and_k},
        "convergence": {"convergence": figures.convergence_bars},
        "boxes": {"boxes": figures.paper_box_plots},
        "sphere": {"sphere": sphere.sphere},
    }
    for name, table in (("cifar100", "t3"), ("tiny-imagenet", "t2")):
        drawn[name] = {
            f"accuracy-{name}": partial(figures.paper_heatmap, table, normalised=False),
            f"accuracy-{name}-normalised": partial(figures.paper_heatmap, table, normalised=True),
        }
    return {file: draw for name in _NAMES if name in wanted for file, draw in drawn[name].items()}


def _classes() -> "dict[str, Callable[[], Figure]]":
    """CIFAR-100's classes that the paper speaks of, and all of them in blocks of like classes."""
    from scns import words
    from scns.cli.words import pages_of
    from scns.report.figures import class_heatmap

    names = words.label_names("cifar100")
    vectors = words.label_vectors(names)
    cosine = words.class_cosines(vectors)
    chosen = pages_of("cifar100", names, cosine, None, every=False)
    blocks = pages_of("cifar100", names, cosine, None, every=True)
    files = ["classes", *(f"classes-block-{number}" for number in range(1, len(blocks) + 1))]
    return {
        file: partial(class_heatmap, names, vectors, "cosine of the label vectors", rows)
        for file, rows in zip(files, [*chosen, *blocks], strict=True)
    }


def _of_runs(runs: Path, wanted: list[str]) -> "dict[str, Callable[[], Figure]]":
    from scns.errors import InputError
    from scns.report import from_runs
    from scns.results import Results, read

    if not runs.is_dir():
        raise InputError(f"There is no folder '{runs}'; give the one that holds your runs.")
    why = ""
    try:
        found = read(runs)
    except InputError as error:  # none is finished: their curves may be drawn nevertheless
        found, why = Results([], {}), str(error)
    with screen.progress("Embedding images", "images") as advance:
        drawn = from_runs.drawn(found, runs, wanted, advance)
    if not drawn.figures:
        raise InputError(why or f"From these runs nothing can be drawn. {drawn.missing[0]}")
    screen.tell_lost(found)
    for sentence in drawn.remarks:
        screen.tell(sentence)
    for sentence in drawn.missing:
        screen.tell(f"Not drawn, {sentence}")
    return drawn.figures
