"""`scns demo`: the main job on bundled data."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from scns.cli import screen


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to; give it again to see the same results.")] = Path(
        "scns-demo"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="A quarter of the epochs.")] = False,
) -> None:
    """See it work: neighbours, negatives and students on bundled images, no download."""
    from scns import demo
    from scns.watch import watching

    start = time.perf_counter()
    with watching(screen.err, sys.stderr.isatty(), False) as watch:
        folder = out / "quick" if quick else out
        rows = demo.run(
            folder, epochs=5 if quick else 20, say=lambda line: screen.out.print(line, markup=False), watch=watch
        )
    columns = {
        "student (resnet8)": "left",
        "test accuracy %": "right",
        "same class among 10 nearest %": "right",
        "s": "right",
    }
    screen.out.print()
    screen.table("", columns, [list(row) for row in rows])
    screen.out.print(
        "± is the 95 % interval of 2,000 test images: differences inside it mean nothing. Always clear are the\n"
        "pictures of whom each sampler picks.",
        markup=False,
    )
    seconds = time.perf_counter() - start
    screen.out.print(f"\n{seconds:.0f} s. Open in {folder}: report.html, negatives.html, classes.png.", markup=False)
    screen.out.print("Next, with your own embeddings and labels:", markup=False)
    screen.out.print(
        "  scns neighbors build --embeddings x.npy --labels y.npy -k 500 --out t.safetensors", markup=False
    )
