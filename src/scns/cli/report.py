"""`scns report`: the page of many runs."""

from pathlib import Path
from typing import Annotated

import typer

from scns.cli import screen
from scns.phrases import count


def report(
    runs: Annotated[Path, typer.Argument(help="The folder that holds the runs.")] = Path("runs"),
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    pictures: Annotated[
        bool, typer.Option(help="Show whom each sampler picks, for runs on the images that come with scns.")
    ] = True,
) -> None:
    """Write one page about many runs: ours beside the paper, curves, negatives, and how to repeat each run.

    Example: scns report runs --out report.html
    """
    from scns.report.page import write_report
    from scns.results import read

    found = read(runs)
    with screen.progress("Embedding images", "images") as advance:
        write_report(found, runs, out, gallery=pictures, progress=advance)
    screen.tell_lost(found)
    runs_found = count(len({entry.path for entry in found.entries}), "run")
    screen.out.print(
        f"Wrote {out}: {runs_found}, {out.stat().st_size / 1e6:.2f} MB. Open it in a browser.",
        soft_wrap=True,
    )
