"""The law of few negatives: accuracy of a distilled student against the number M and the kind of its negatives.

  python experiments/few_negatives.py --teacher runs/wrn-40-2 --root data --out runs/few            the whole grid
  python experiments/few_negatives.py ... --kinds 'uniform*,own' --numbers 16,64 --seeds 0,1,2      a part of it
  python experiments/few_negatives.py ... --dry-run                                                 what would run

CIFAR-100, resnet20, batch 128, lr 0.05 cosine, CE + 0.8 x symmetric InfoNCE (student against the teacher's table and
back), temperature 0.1, the positive is the same image. Kinds of one seed and number share their batches, so
differences are paired. Runs that are finished are skipped; the same line goes on after a stop. `scns results` and
`scns report` read the folders it leaves.
"""

import argparse
import fnmatch
from pathlib import Path

from scns.recipe import Recipe
from scns.sweep import Job, sweep

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
    parser.add_argument("--teacher", type=Path, required=True, help="run folder of the teacher")
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
    given = parser.parse_args()
    listed = jobs(given)
    for job in listed if given.dry_run else []:
        print(job.out)
    for outcome in [] if given.dry_run else sweep(listed, pack=given.pack):
        test = f"{outcome.result['test']:.2f}" if outcome.result else outcome.error
        print(f"{outcome.job.out.name:32} {test}", flush=True)


if __name__ == "__main__":
    main()
