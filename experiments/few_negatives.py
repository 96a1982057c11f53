"""The law of few negatives: accuracy of a distilled student against the number M and the kind of its negatives.

  python experiments/few_negatives.py --teacher runs/wrn-40-2 --root data --out runs/few            the whole grid
  python experiments/few_negatives.py ... --kinds 'uniform*,own' --numbers 16,64 --seeds 0,1,2      a part of it
  python experiments/few_negatives.py ... --dry-run                                                 what would run
  python experiments/few_negatives.py --out runs/few --draw few.png                                 table and figure

CIFAR-100, resnet20, batch 128, lr 0.05 cosine, CE + 0.8 x symmetric InfoNCE (student against the teacher's table and
back), temperature 0.1, the positive is the same image. Kinds of one seed and number share their batches, so
differences are paired. Runs that are finished are skipped; the same line goes on after a stop. `scns results` and
`scns report` read the folders it leaves; denominator.jsonl in them has, epoch by epoch, how far the log of the
estimated sum over negatives was from the log of the whole sum.
"""

import argparse
import fnmatch
import json
import math
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from scns.recipe import Recipe
from scns.run import Run
from scns.sampling import AllNegatives
from scns.sweep import Job, sweep
from scns.train import Watch

NUMBERS = (1, 4, 16, 64, 256, 1024, 4096)
CONTRAST = {"weight": 0.8, "tau": 0.1, "positive": "instance", "momentum": 0.5}
NEAR = {"k": 1000, "scale": 5.0}  # the paper's scale
SOFT = {"sampler": "soft", "correct": True}

# kind of negatives -> arguments of the method "infonce"
KINDS: dict[str, dict[str, object]] = {
    "uniform": {"sampler": "uniform"},
    "uniform-corrected": {"sampler": "uniform", "correct": True},
    "class": {"sampler": "class", "k": 5, "scale": 5.0},
    "instance": {"sampler": "instance", **NEAR},
    "mixed-corrected": {"sampler": "mixed", "correct": True, **NEAR},
    "soft": {**SOFT, "scale": 7.5},  # by the teacher's embeddings; the best scale of docs/speed.md
    "soft-200": {**SOFT, "scale": 7.5, "clusters": 200},
    "own": {**SOFT, "scale": 10.0, "refresh": True},  # by the table itself at the epoch's beginning; 1 / tau
    "own-200": {**SOFT, "scale": 10.0, "refresh": True, "clusters": 200},
}
# kinds without a number of negatives
FIXED: dict[str, dict[str, object]] = {
    "ce": {"method": "ce"},
    "kld": {"method": "kld"},
    "all": {"method": "infonce", "arguments": {**CONTRAST, "sampler": "all"}},
}


def recipe(given: argparse.Namespace, kind: str, number: int, seed: int) -> Recipe:
    """The run of one point of the grid."""
    if kind in FIXED:
        values = FIXED[kind]
    else:
        values = {"method": "infonce", "arguments": {**CONTRAST, "negatives": number, **KINDS[kind]}}
    taught = {} if kind == "ce" else {"teacher": str(given.teacher)}
    schedule = {"epochs": given.epochs, "batch": 128, "lr": 0.05, "schedule": "cosine"}
    where = {"data": given.data, "root": str(given.root), "subset": given.subset, "device": given.device}
    how = {"precision": given.precision, "compile": given.compile, "evaluate_every": given.evaluate_every}
    return Recipe(**{"student": given.student, "seed": seed, **schedule, **where, **how, **taught, **values})


class Denominators(Watch):
    """Notes after every epoch how well the negatives of a run estimate the sum over all of them, on 512 samples."""

    @torch.no_grad()
    def epoch(self, run: Run, line: dict[str, Any]) -> None:
        method: Any = run.method
        if run.recipe.method != "infonce" or method.teacher_table is None:
            return
        anchors = torch.linspace(0, len(run.data.train) - 1, 512, device=run.device).long()
        similarity = method.student_table.features[anchors] @ method.teacher_table.features.T / method.tau
        _, allowed = AllNegatives(run.data.train.labels).weights(anchors, 1)
        whole = torch.logsumexp(similarity + allowed, 1)
        drawn, weights = method.sampler.weights(anchors, method.negatives, epoch=line["epoch"], correct=method.correct)
        error = torch.logsumexp(similarity.gather(1, drawn) + weights, 1) - whole
        told = {"epoch": line["epoch"], "mean": error.mean().item(), "deviation": error.std().item()}
        with open(run.folder.path / "denominator.jsonl", "a") as file:
            file.write(json.dumps(told) + "\n")


def finished(out: Path) -> dict[tuple[str, int], dict[int, float]]:
    """Test accuracy by (kind, number; 0 where it has none) and seed, of the runs that ended."""
    found: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for path in sorted(out.glob("*/result.json")):
        kind, _, seed = path.parent.name.rpartition("-")
        stem, _, number = kind.rpartition("-")
        point = (stem, int(number)) if stem in KINDS else (kind, 0)
        found[point][int(seed)] = json.loads(path.read_text())["test"]
    return found


def draw(out: Path, picture: str) -> None:
    """A table of mean, 95 % interval and n, and accuracy against the number of negatives as a figure."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    points = finished(out)
    for order, kind in enumerate(dict.fromkeys(kind for kind, _ in points)):
        numbers = sorted(number for each, number in points if each == kind)
        values = [list(points[kind, number].values()) for number in numbers]
        spread = [interval(each) for each in values]
        for number, each, half in zip(numbers, values, spread, strict=True):
            print(f"{kind:20} {number or '':>6} {mean(each):6.2f} +- {half:.2f}  n={len(each)}")
        if kind in FIXED:
            axes.axhline(mean(values[0]), color="0.4", linestyle=["-", "--", ":"][order % 3], label=kind)
        else:
            axes.errorbar(numbers, list(map(mean, values)), spread, marker="o", capsize=3, label=kind)
    axes.set(xscale="log", xlabel="negatives of each anchor", ylabel="test accuracy, %")
    axes.legend(fontsize=8)
    figure.savefig(picture, dpi=150)


def interval(values: list[float]) -> float:
    """Half the 95 % interval of the mean, by Student's t; nan for one value."""
    t = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}.get(len(values), math.nan)
    return t * stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def jobs(given: argparse.Namespace) -> list[Job]:
    """Seed by seed, so that a stop leaves whole comparisons behind."""
    chosen = [k for k in (*KINDS, *FIXED) if any(fnmatch.fnmatch(k, p) for p in given.kinds.split(","))]
    listed = []
    for seed in map(int, given.seeds.split(",")):
        points = [(kind, n) for n in map(int, given.numbers.split(",")) for kind in chosen if kind in KINDS]
        points += [(kind, 0) for kind in chosen if kind in FIXED]
        for kind, number in points:
            name = f"{kind}-{number}" if number else kind
            listed.append(Job(recipe(given, kind, number, seed), given.out / f"{name}-{seed}"))
    return listed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", type=Path, default="", help="run folder of the teacher")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--kinds", default="*", help="patterns, separated by commas")
    parser.add_argument("--numbers", default=",".join(map(str, NUMBERS)))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--epochs", type=int, default=45)
    parser.add_argument("--pack", type=int, default=8)
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--root", default="data")
    parser.add_argument("--student", default="resnet20")
    parser.add_argument("--subset", type=int, default=0, help="training images, for a trial run")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--compile", default="network", help="no, network or all")
    parser.add_argument("--evaluate-every", type=int, default=1)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--draw", metavar="PICTURE", help="tell and draw the runs in --out instead")
    given = parser.parse_args()
    if given.draw:
        draw(given.out, given.draw)
        return
    listed = jobs(given)
    for job in listed if given.dry_run else []:
        print(job.out)
    for outcome in [] if given.dry_run else sweep(listed, pack=given.pack, watch=Denominators()):
        test = f"{outcome.result['test']:.2f}" if outcome.result else outcome.error
        print(f"{outcome.job.out.name:32} {test}", flush=True)


if __name__ == "__main__":
    main()
