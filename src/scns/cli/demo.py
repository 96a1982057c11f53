"""`scns demo`: the main job on bundled data."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scns.cli import screen

if TYPE_CHECKING:
    from scns.demo import Outcome
    from scns.scores import Estimate


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to; give it again to see the same results.")] = Path(
        "scns-demo"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="In 40 seconds: three students, fewer epochs.")] = False,
) -> None:
    """See it work on bundled data: a teacher, few labels, chosen negatives. Two to three minutes, no download.

    Example: scns demo --quick. Then open scns-demo/quick/report.html
    """
    from scns import demo
    from scns.watch import watching

    start = time.perf_counter()
    folder = out / "quick" if quick else out
    with screen.stoppable(), watching(screen.err, screen.redraws(), False) as watch:
        outcome = demo.run(folder, scale=demo.QUICK if quick else demo.Scale(), say=screen.out.print, watch=watch)
    _tell(outcome)
    screen.out.print(
        f"\n{time.perf_counter() - start:.0f} s. Open {outcome.page}: whom each sampler picks, and all of this."
    )
    screen.out.print("Next, with your own data:")
    for line in demo.FOLLOWING.splitlines():
        screen.out.print(f"  {line}")


def _tell(outcome: "Outcome") -> None:
    """The networks at the end, and what each change did."""
    from scns.report.opening import RETRIEVAL

    columns = {"network": "left", "trained with": "left", "accuracy %": "right", "retrieval %": "right", "s": "right"}
    rows: list[list[object]] = [
        [each.name, each.had, each.accuracy, each.retrieval, "" if each.seconds is None else f"{each.seconds:.0f}"]
        for each in outcome.networks
    ]
    screen.out.print()
    screen.table("", columns, rows)
    screen.out.print()
    columns = {"what changed": "left", "accuracy": "right", "retrieval": "right"}
    screen.table("", columns, [[each.what, _gain(each.accuracy), _gain(each.retrieval)] for each in outcome.changes])
    screen.out.print(f"In brackets: chance may explain it. {outcome.chance}\n{RETRIEVAL}")


def _gain(value: "Estimate") -> str:
    shown = f"{value.mean:+.1f} ± {value.half:.1f}"
    return shown if value.sign else f"({shown})"
