"""`scns demo`: the main job on bundled data."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from scns.cli import screen

_NEXT = """\
Next, with your own data:
  scns train demo-instance --set data=folder --set root=PICTURES --set teacher=RUN   # train/<class>/*.jpg, test/<class>/*.jpg
  scns neighbors build --embeddings x.npy --labels y.npy -k 500 --out t.safetensors  # negatives for a loop of your own
  scns recipes demo-instance                                                         # everything that was set here"""


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to; give it again to see the same results.")] = Path(
        "scns-demo"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="40 seconds: a fifth of the epochs.")] = False,
) -> None:
    """See it work: a teacher, few labels, chosen negatives; two to three minutes on 2 cores, no download."""
    from scns import demo
    from scns.watch import watching

    start = time.perf_counter()
    folder = out / "quick" if quick else out
    with watching(screen.err, sys.stderr.isatty(), False) as watch:
        outcome = demo.run(
            folder,
            scale=demo.QUICK if quick else demo.Scale(),
            say=lambda line: screen.out.print(line, markup=False),
            watch=watch,
        )
    columns = {"network": "left", "what it had": "left", "accuracy %": "right", "retrieval %": "right", "s": "right"}
    rows: list[list[object]] = [
        [row.name, row.changed, row.accuracy, row.retrieval, "" if row.seconds is None else f"{row.seconds:.0f}"]
        for row in outcome.rows
    ]
    screen.out.print()
    screen.table("", columns, rows)
    screen.out.print()
    for finding in outcome.findings:
        screen.out.print(finding, markup=False)
    screen.out.print(
        "± is the 95 % interval over the 2,000 test images; another seed changes more. Retrieval is mean average precision.",
        markup=False,
    )
    seconds = time.perf_counter() - start
    screen.out.print(f"\n{seconds:.0f} s. Open {outcome.page}: whom each sampler picks, and these runs.", markup=False)
    screen.out.print(_NEXT, markup=False)
