"""Test accuracy over epochs: read from run folders, and when it has converged."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from scns.errors import InputError
from scns.phrases import count

WINDOW = 5  # epochs in a trailing mean: the paper says "converges" without a rule, and this is ours
WITHIN = (0.1, 0.2, 0.5)  # points below the best trailing mean
MARKED = 0.2  # the one that stands for "converged"; the others say how much it depends on the rule


def epochs_to_converge(accuracies: Sequence[float], within: float = MARKED) -> int:
    """The first epoch, counted from 1, whose trailing mean over w = WINDOW epochs is within points of the best one.

    e* = min{e >= w: mean(a_{e-w+1} .. a_e) >= max_e mean - within}
    """
    if len(accuracies) < WINDOW:
        raise InputError(f"{len(accuracies)} epochs are too few to judge convergence; at least {WINDOW} are needed.")
    if not np.isfinite(accuracies).all():
        raise InputError("Some accuracies are not finite; convergence needs the test accuracy of every epoch.")
    trailing = np.convolve(accuracies, np.full(WINDOW, 1 / WINDOW), mode="valid")  # [epochs - w + 1]
    near = trailing >= trailing.max() - within - 1e-9  # the rounding of a mean of accuracies near 100
    return int(near.argmax()) + WINDOW


def read_curves(folder: str | Path) -> tuple[dict[str, list[float]], list[str]]:
    """The test accuracies of each run in a folder and its sub-folders by path, and a sentence for each run left out."""
    root = Path(folder)
    found = sorted(root.rglob("log.jsonl"))
    if not found:
        raise InputError(f"'{root}' holds no log.jsonl of a run; give a folder that scns train or scns sweep wrote to.")
    curves, left_out = {}, []
    for path in found:
        label = path.parent.relative_to(root).as_posix()
        try:
            curves[root.resolve().name if label == "." else label] = accuracies(path)
        except InputError as error:
            left_out.append(str(error))
    if not curves:
        raise InputError(f"No run in '{root}' has a curve; the first says: {left_out[0]}")
    return curves, left_out


def accuracies(path: Path) -> list[float]:
    """The test accuracy of every epoch of the main stage, from a run's log.jsonl."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        main = [line for line in lines if "stage" not in line]
        tested = [float(line["test"]) for line in main if "test" in line]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"'{path}' cannot be read ({error}); it was left out.") from None
    if len(tested) < len(main):
        few = f"{len(tested)} of {len(main)} epochs"
        raise InputError(f"'{path}' has the test accuracy of {few}; run with evaluate_every=1 to draw it.")
    if len(tested) < WINDOW:
        raise InputError(f"'{path}' has {count(len(tested), 'epoch')}, but convergence needs at least {WINDOW}.")
    return tested
