"""`scns theory`: what the coupon collector says about negatives."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from scns.cli import screen
from scns.phrases import count

if TYPE_CHECKING:
    import numpy as np

app = typer.Typer(help="What theory says about drawing negatives.", no_args_is_help=True)

_EPOCHS = (1, 10, 100, 200)  # 200 is the length of the usual training run


class _Way(NamedTuple):
    """One way to draw negatives: the chance of each of the top in a draw, and what it takes to see them all."""

    label: str
    chances: "np.ndarray"  # [top], or one for all of them
    draws: float
    batches: float


@app.callback()
def _group() -> None:
    pass


@app.command()
def draws(
    pool: Annotated[int, typer.Option(help="Negatives an anchor has: the samples of other classes.")] = 49500,
    top: Annotated[int, typer.Option(help="The nearest of them, which are to be seen.")] = 500,
    batch: Annotated[int, typer.Option(help="Draws in a batch.")] = 64,
    negatives: Annotated[int, typer.Option(help="Draws for an anchor in an epoch.")] = 1024,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Add softmax weights within the top: softmax(SCALE * c), c = 0.9 i^-0.3 for the i-th nearest."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the coverage curves to this .png, .pdf or .svg.")] = None,
) -> None:
    """Draws, batches and epochs until an anchor has met all of its nearest negatives: uniform against conditioned.

    Example: scns theory draws --pool 49500 --top 500 --batch 64
    """
    from scns import plots
    from scns.errors import InputError

    if pool < 1:
        raise InputError(f"--pool is {pool}, but an anchor needs at least 1 negative.")
    if not 1 <= top <= pool:
        raise InputError(f"--top is {top}, but an anchor has --pool {pool} negatives; give a --top from 1 to {pool}.")
    if batch < 1:
        raise InputError(f"--batch is {batch}, but a batch has at least 1 draw.")
    if negatives < 1:
        raise InputError(f"--negatives is {negatives}, but an epoch has at least 1 draw.")
    if plot:
        plots.check_ending(plot)
    ways = _ways(pool, top, batch, scale)
    columns = ("draws", f"batches of {batch:,}", f"epochs of {count(negatives, 'draw')}", "fewer draws")
    screen.table(
        f"Expected until all of an anchor's {top:,} nearest have been seen",
        {"negatives drawn": "left"} | dict.fromkeys(columns, "right"),
        [_needed(way, ways[0], negatives) for way in ways],
    )
    screen.out.print()
    screen.table(
        f"Expected share of the {top:,} seen after",
        {"negatives drawn": "left"} | {count(n, "epoch"): "right" for n in _EPOCHS},
        [[way.label, *(f"{_share(way, n * negatives):.1%}" for n in _EPOCHS)] for way in ways],
    )
    if plot:
        _plot(ways, top, negatives, plot)
        screen.out.print(f"\nCoverage curves: {plot}")


def _ways(pool: int, top: int, batch: int, scale: float | None) -> list[_Way]:
    import numpy as np

    from scns import theory
    from scns.errors import InputError

    ways = []
    for label, size in ((f"uniform over all {pool:,}", pool), (f"uniform over the top {top:,}", top)):
        needed = theory.expected_draws_uniform(size, top), theory.expected_batches_uniform(size, top, batch)
        ways.append(_Way(label, np.array([1 / size]), *needed))
    if scale is not None:
        if not 0 <= scale < float("inf"):
            raise InputError(f"--scale is {scale:g}, but it must be a number of at least 0; 5 is the usual one.")
        # Similarities fall as a power of the rank, as the paper assumes; a shift keeps a large scale from overflowing.
        weights = np.exp(scale * 0.9 * (np.arange(1, top + 1) ** -0.3 - 1))
        chances = weights / weights.sum()
        if chances.min() < 1e-100:
            raise InputError(f"--scale {scale:g} leaves the last of the top no chance to be drawn; use a smaller one.")
        needed = theory.expected_draws_unequal(chances), theory.expected_batches_unequal(chances, batch)
        ways.append(_Way(f"softmax({scale:g} c) over the top {top:,}", chances, *needed))
    return ways


def _needed(way: _Way, first: _Way, negatives: int) -> list[object]:
    fewer = "" if way is first else f"{first.draws / way.draws:,.1f}x"
    return [way.label, f"{way.draws:,.1f}", f"{way.batches:,.1f}", f"{way.draws / negatives:,.1f}", fewer]


def _share(way: _Way, number: int) -> float:
    from scns import theory

    return theory.expected_distinct(way.chances, number) / len(way.chances)


def _plot(ways: list[_Way], top: int, negatives: int, path: Path) -> None:
    import numpy as np

    from scns import plots

    last = 1.5 * max(way.draws for way in ways)
    counts = np.unique(np.rint(np.geomspace(1, last, 300)).astype(np.int64))
    curves = {way.label: (counts, [_share(way, int(n)) for n in counts]) for way in ways}
    marks = {count(n, "epoch"): n * negatives for n in (1, 10, 100) if n * negatives < last}
    plots.save(plots.coverage_curves(curves, top=top, marks=marks), path)
