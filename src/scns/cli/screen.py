"""What the commands print with: results to stdout, progress and errors to stderr."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

_WIDE = 160  # a file or a pipe has no width: do not cut tables to 80 columns there

out = Console(width=None if sys.stdout.isatty() else _WIDE, highlight=False, soft_wrap=not sys.stdout.isatty())
err = Console(stderr=True, width=None if sys.stderr.isatty() else _WIDE, highlight=False)


def complain(sentence: str) -> None:
    """One sentence, on stderr."""
    err.print(Text("scns: ", style="bold red") + Text(sentence), soft_wrap=True)


def table(title: str, columns: dict[str, str], rows: list[list[object]]) -> None:
    """Print a table; `columns` maps a heading to its alignment ("left", "right")."""
    named = any(heading.strip() for heading in columns)
    shown = Table(
        title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False, show_header=named
    )
    for heading, justify in columns.items():
        shown.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        shown.add_row(*[str(value) for value in row])
    out.print(shown)


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
    with Progress(*columns, console=err, transient=True, disable=not sys.stderr.isatty()) as bar:
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
            out.print(f"{mark} {words}", style="dim", markup=False, soft_wrap=True)
