"""Accuracy over epochs or another number as inline SVG: complete without a script; with one, curves can be read off."""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

COLOURS, DASHES = 6, 4  # of page.css: together they tell 24 curves apart
_DASH_OF_THREE = (0, 1, 2, 3, 1, 0, 3, 2)  # three colours with one dash are apart to every eye, six are not
_WIDTH, _HEIGHT = 720, 340
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 26, 36, 56  # room for tick labels of 22 px, as on a phone
_TICKS = 5  # about as many on each axis

Place = Callable[[float], float]


@dataclass(frozen=True)
class Curve:
    """Accuracies in percent after the epochs, which are counted from 1; or with other numbers that an `Axis` names."""

    name: str
    epochs: Sequence[int]
    accuracies: Sequence[float]
    halves: Sequence[float] = ()  # of their intervals; nan where there is none


@dataclass(frozen=True)
class Axis:
    """What lies across a chart. Marked: the numbers are few, and stand at the places of their logarithms."""

    label: str = "epoch"
    told: str = "after epoch #"  # of the point that is read off
    summary: str = "over epochs"
    marked: bool = False


EPOCHS = Axis()
_ASIDE = 6  # px between marked points of one number, less where many would reach those of the next


def chart(curves: Sequence[Curve], title: str, axis: Axis = EPOCHS, about: str = "") -> str:
    """A <figure> with up to 24 curves, a legend that hides them, and a line of text for the one under the pointer."""
    marks = sorted({epoch for curve in curves for epoch in curve.epochs})
    first, last = (marks[0] / 1.6, marks[-1] * 1.6) if axis.marked else (1.0, float(marks[-1]))
    values = [value for curve in curves for value in (*curve.accuracies, *_ends(curve))]
    step = _step(max(values) - min(values))
    low = step * math.floor(min(values) / step)
    high = max(low + step, step * math.ceil(max(values) / step))

    def across(epoch: float) -> float:
        if axis.marked:
            share = math.log(epoch / first) / math.log(last / first)
        else:
            share = (epoch - 1) / (last - 1) if last > 1 else 0.5
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * share

    def down(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    grid = [_horizontal(down(tick), f"{tick:g}") for tick in _between(low, high, step)]
    grid += [_vertical(across(epoch), epoch) for epoch in (marks if axis.marked else _epochs(marks[-1]))]
    room = min((across(b) - across(a) for a, b in pairwise(marks)), default=_WIDTH) / 2
    apart = axis.marked * min(_ASIDE, room / len(curves))
    asides = [apart * (number - (len(curves) - 1) / 2) for number in range(len(curves))]
    paths = [
        _path(curve, number, lambda epoch, aside=aside: across(epoch) + aside, down, axis.marked)  # type: ignore[misc]
        for number, (curve, aside) in enumerate(zip(curves, asides, strict=True))
    ]
    legend = "".join(_legend(curve, number, axis) for number, curve in enumerate(curves))
    below = f'<p class="soft">{html.escape(about)}</p>' if about else ""
    return (
        f'<figure class="chart" data-told="{html.escape(axis.told)}"><figcaption>{html.escape(title)}</figcaption>'
        f"{below}"
        f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" tabindex="0" role="img" '
        f'aria-label="{html.escape(_summary(curves, title, axis))}">{"".join(grid)}'
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 6}" text-anchor="end">{html.escape(axis.label)}</text>'
        f'<text x="{_LEFT}" y="{_TOP - 14}">test accuracy, %</text>'
        f'<line class="cross" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>{"".join(paths)}<circle class="dot" r="5"/></svg>'
        '<div class="tip" role="status">Point at a curve, or focus the chart and use the arrow keys.</div>'
        f'<ul class="legend">{legend}</ul></figure>'
    )


def _path(curve: Curve, number: int, across: Place, down: Place, marked: bool) -> str:
    places = [
        (epoch, value, f"{across(epoch):.1f}", f"{down(value):.1f}")
        for epoch, value in zip(curve.epochs, curve.accuracies, strict=True)
    ]
    drawn = "M" + "L".join(f"{x} {y}" for _, _, x, y in places)
    marks = "".join(f"M{float(x) - 3:.1f} {y}a3 3 0 1 0 6 0a3 3 0 1 0-6 0" for _, _, x, y in places if marked)  # rings
    for (_, value, x, _), half in zip(places, curve.halves, strict=False):
        if math.isfinite(half):
            low, high, left = down(value - half), down(value + half), float(x) - 3
            marks += f"M{x} {low:.1f}V{high:.1f}M{left:.1f} {low:.1f}h6M{left:.1f} {high:.1f}h6"
    points = " ".join(f"{epoch}:{value:.2f}:{x}:{y}" for epoch, value, x, y in places)
    name = html.escape(curve.name)
    paths = f'<path d="{drawn}"/>' + (f'<path class="marks" d="{marks}"/>' if marks else "")
    return f'<g class="curve {_look(number)}" data-name="{name}" data-points="{points}">{paths}</g>'


def _legend(curve: Curve, number: int, axis: Axis) -> str:
    swatch = f'<svg viewBox="0 0 36 8" aria-hidden="true"><path class="{_look(number)}" d="M0 4H36"/></svg>'
    told = html.escape(curve.name) + (f": {curve.accuracies[-1]:.2f}&nbsp;%" if not axis.marked else "")
    return f'<li><label><input type="checkbox" checked>{swatch}{told}</label></li>'


def _look(number: int) -> str:
    return f"k{number % COLOURS} d{_DASH_OF_THREE[number // 3 % 8]}"


def _summary(curves: Sequence[Curve], title: str, axis: Axis) -> str:
    ends = "; ".join(f"{curve.name} ends at {curve.accuracies[-1]:.2f} %" for curve in curves)
    return f"Test accuracy {axis.summary}, {title}: {ends}"


def _ends(curve: Curve) -> list[float]:
    """Of the intervals."""
    pairs = [pair for pair in zip(curve.accuracies, curve.halves, strict=False) if math.isfinite(pair[1])]
    return [end for value, half in pairs for end in (value - half, value + half)]


def _horizontal(y: float, text: str) -> str:
    line = f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return f'{line}<text x="{_LEFT - 8}" y="{y:.1f}" dy=".35em" text-anchor="end">{text}</text>'


def _vertical(x: float, epoch: int) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 24}" text-anchor="middle">{epoch:,}</text>'


def _epochs(last: int) -> list[int]:
    """1, then round numbers up to the last epoch."""
    step = max(1, int(_step(last)))
    return [1] + [epoch for epoch in range(step, last + 1, step) if epoch > max(1, step // 2)]


def _between(low: float, high: float, step: float) -> list[float]:
    return [round(low + i * step, 6) for i in range(round((high - low) / step) + 1)]


def _step(span: float) -> float:
    """1, 2 or 5 times a power of ten, so that about 5 of them make the span."""
    rough = max(span, 1e-3) / _TICKS  # curves that are flat still have an axis
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
