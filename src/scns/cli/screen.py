"""What the commands print with: results to stdout, progress and errors to stderr."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from scns.results import Results

_WIDE = 160  # a file or a pipe has no width: do not wrap help and notes at 80 columns there
_GAP = 2  # blanks between the columns of a table
_TOLD = 20  # runs that are told one by one below a table, which should stay in sight

# Without markup and emoji: names such as "[old]/run" and "a:cat:b" are printed as they are.
out = Console(
    width=None if sys.stdout.isatty() else _WIDE,
    highlight=False,
    emoji=False,
    markup=False,
    soft_wrap=not sys.stdout.isatty(),
)
err = Console(stderr=True, width=None if sys.stderr.isatty() else _WIDE, highlight=False, emoji=False, markup=False)


def redraws() -> bool:
    """Whether stderr is a terminal on which a bar can be drawn again and again; others get lines."""
    return sys.stderr.isatty() and not err.is_dumb_terminal


def complain(sentence: str) -> None:
    """One sentence, on stderr."""
    err.print(Text("scns: ", style="bold red") + Text(sentence), soft_wrap=True)


def tell(sentence: str) -> None:
    """A sentence beside the results, on stderr, in one line."""
    err.print(sentence, soft_wrap=True)


def tell_lost(found: "Results") -> None:
    """Which runs have no number in what was made of a folder, and why."""
    lost = {each.path: each.diverged for each in found.diverged}
    for what, whys in (("Diverged", lost), ("Skipped", found.skipped)):
        for path, reason in list(whys.items())[:_TOLD]:
            tell(f"{what} {path}: {reason}")
        if len(whys) > _TOLD:
            tell(f"{what}: {len(whys) - _TOLD:,} more; `scns results --json FILE` writes all of them.")


@contextmanager
def stoppable() -> Iterator[None]:
    """Training that is asked to stop ends the command with one sentence, and the exit code that a shell expects."""
    from scns.train import Stopped

    try:
        yield
    except Stopped as stopped:
        complain(str(stopped))
        raise typer.Exit(stopped.code) from None


def table(title: str, columns: dict[str, str], rows: list[list[object]]) -> None:
    """Print a table; `columns` maps a heading to its alignment ("left", "right").

    Nothing is ever cut: words wrap on a narrow terminal, numbers do not, and a file or a pipe gets one line a row.
    """
    cells = [[str(value) for value in row] for row in rows]
    named = any(heading.strip() for heading in columns)
    shown = Table(
        title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False, show_header=named
    )
    widths = _widths(columns, cells, out.width if sys.stdout.isatty() else None)
    for (heading, justify), width in zip(columns.items(), widths, strict=True):
        shown.add_column(heading, justify=justify, width=width)  # type: ignore[arg-type]
    for row in cells:
        shown.add_row(*row)
    shown.width = sum(widths) + _GAP * (len(widths) - 1)
    out.print(shown, crop=False)


def _widths(columns: dict[str, str], cells: list[list[str]], room: int | None) -> list[int]:
    """The width of each column: that of its longest line or, where there is no room for all, less of the widest."""
    words, widths = [], []
    for place, (heading, justify) in enumerate(columns.items()):
        own = [row[place] for row in cells]
        whole = own if justify == "right" else [word for cell in own for word in cell.split()]
        words.append(max(map(cell_len, [*heading.split(), *whole]), default=0))  # the longest of what never breaks
        widths.append(max(map(cell_len, [heading, *own])))
    while room is not None and sum(widths) + _GAP * (len(widths) - 1) > room:
        wide = [place for place, width in enumerate(widths) if width > words[place]]
        if not wide:
            break  # the terminal itself breaks the lines
        widths[max(wide, key=lambda place: widths[place])] -= 1
    return widths


@contextmanager
def progress(what: str, unit: str = "rows") -> Iterator[Callable[[int, int], None]]:
    """A bar with rate and time left on a terminal (nothing elsewhere); yields `advance(done, total)`."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{{task.fields[rate]}} {unit}/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True, disable=not redraws()) as bar:
        task = bar.add_task(what, total=None, rate="")

        def advance(done: int, total: int) -> None:
            speed = bar.tasks[task].speed
            bar.update(task, completed=done, total=total, rate=f"{speed:,.0f}" if speed else "")

        yield advance


def numbered(notes: Iterable[str]) -> dict[str, str]:
    """Marks for the notes of a table, the same for the same words; "" has none."""
    return {words: f"[{number}]" for number, words in enumerate(dict.fromkeys(filter(None, notes)), 1)} | {"": ""}


def show_notes(marks: dict[str, str]) -> None:
    """The notes that stand behind the marks, below their table."""
    for words, mark in marks.items():
        if words:
            out.print(f"{mark} {words}", style="dim", soft_wrap=True)
