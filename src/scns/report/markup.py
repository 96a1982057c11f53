"""Pieces of HTML: escaped text, numbers with what they sort by, and tables whose headers are buttons."""

import html
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scns.claims import Difference


class Value(NamedTuple):
    """A cell: its HTML, and the plain text it is sorted by ("": none, sorted last)."""

    shown: str
    key: str


def text(words: str) -> str:
    """Words as HTML that shows them and does nothing else."""
    return html.escape(words, quote=True)


def anchor(words: str) -> str:
    """An id for a heading, another for others."""
    plain = re.sub(r"[^a-z0-9]+", "-", words.lower())
    return f"on-{plain}" if plain == words else f"on-{plain}-{zlib.crc32(words.encode(errors='replace')):x}"


def number(value: float | None, digits: int = 2) -> Value:
    """A number that sorts by its value; nothing for None."""
    return Value("", "") if value is None else Value(f"{value:,.{digits}f}", f"{value:.6g}")


def spread(value: float | None, deviation: float | None) -> Value:
    """A mean with its deviation."""
    if value is None or deviation is None:
        return number(value)
    return Value(f"{value:.2f} ± {deviation:.2f}", f"{value:.6g}")


def beside(value: Value, words: str) -> Value:
    """The same with a few words below, in small letters; "" adds nothing."""
    return value._replace(shown=f"{value.shown}<small>{text(words)}</small>") if words else value


def mark(points: float, digits: int, *, sure: bool, half: str = "") -> str:
    """A change, its sign as an arrow and a colour, none where it reads 0.0; a dashed frame if it may be chance."""
    shown = f"{points:+.{digits}f}"
    kind, arrow = ("", "=") if not float(shown) else ("up", "▲") if points > 0 else ("down", "▼")
    unsure = "" if sure else " unsure"
    number = shown if kind else shown[1:]
    return f'<span class="mark {kind}{unsure}"><span aria-hidden="true">{arrow}</span> {number}{half}</span>'


def difference(value: float | Difference | None) -> Value:
    """A difference in points: its sign is an arrow and a colour too; below it the interval, where there is one."""
    if value is None:
        return Value("", "")
    points = value.mean if isinstance(value, Difference) else value
    shown = mark(points, 2, sure=not isinstance(value, Difference) or bool(value.sign))
    if isinstance(value, Difference):
        known = math.isfinite(value.low)
        shown += f"<small>[{value.low:+.2f}, {value.high:+.2f}]</small>" if known else "<small>one pair</small>"
    return Value(shown, f"{points:.6g}")


def sortable(name: str, caption: str, heads: Mapping[str, str], rows: Sequence[Sequence[Value]]) -> str:
    """A table that scrolls where it is too wide; `heads` maps a heading to the class of its column."""
    top = "".join(
        f'<th scope="col" class="{kind}" aria-sort="none"><button type="button">{text(head)}</button></th>'
        for head, kind in heads.items()
    )
    longest = max(
        (len(row[0].key) for row in rows), default=0
    )  # so that a column of short names leaves room for others
    body = "".join(f"<tr>{_row(row, list(heads.values()))}</tr>" for row in rows)
    return (
        f'<p class="soft" id="{name}-about">{text(caption)}</p>'
        '<div class="wide long" tabindex="0" role="region" aria-label="Table, scrolls">'
        f'<table class="sortable" id="{name}" aria-describedby="{name}-about" style="--longest:{longest}ch">'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _row(row: Sequence[Value], kinds: Sequence[str]) -> str:
    first, *others = row
    cells = [f'<th scope="row" data-value="{text(first.key)}">{first.shown}</th>']
    for value, kind in zip(others, kinds[1:], strict=True):
        cells.append(f'<td class="{kind}" data-value="{text(value.key)}">{value.shown}</td>')
    return "".join(cells)
