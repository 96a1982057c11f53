"""The law of few negatives: accuracy of a distilled student against the number M and the kind of its negatives.

  python experiments/few_negatives.py --teacher runs/wrn-40-2 --root data --out runs/few            the whole grid
  python experiments/few_negatives.py ... --kinds 'uniform*,own' --numbers 16,64 --seeds 0,1,2      a part of it
  python experiments/few_negatives.py ... --kinds own,instance --numbers 16 --levers '*'            one setting changed
  python experiments/few_negatives.py ... --dry-run                                                 what would run
  python experiments/few_negatives.py ... --time 100                    seconds an epoch of each point, from 100 steps
  python experiments/few_figure.py runs/few --picture few.png           tables and figure

CIFAR-100, resnet20, batch 128, lr 0.05 cosine, CE + 0.8 x symmetric InfoNCE (student against the teacher's table and
back), temperature 0.1, the positive is the same image. Runs of one seed see the same batches and start with the same
weights, so differences are paired. Runs that are finished are skipped; the same line goes on after a stop. `scns
results` and `scns report` read the folders it leaves; denominator.jsonl in them has how far the log of the estimated
sum over negatives was from the log of the whole sum, and times.jsonl beside them what --time measured.
"""

import argparse
import fnmatch
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from scns.plan import check_folders
from scns.recipe import Recipe
from scns.run import Run, backends
from scns.sampling import AllNegatives
from scns.sweep import Job, sweep
from scns.train import Pack, Shelf, Watch, prepare

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
    "soft": {**SOFT, "scale": 7.5, "refresh": 0},  # by the teacher's embeddings; the best scale of docs/speed.md
    "soft-200": {**SOFT, "scale": 7.5, "refresh": 0, "clusters": 200},
    "own": {**SOFT, "scale": 10.0, "refresh": 1},  # by the table itself at the epoch's beginning; 1 / tau
    "own-200": {**SOFT, "scale": 10.0, "refresh": 1, "clusters": 200},
}
# one setting of a kind changed -> (its arguments, the samplers it is for; empty: all)
LEVERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "positive-class": ({"positive": "class"}, ()),
    **{f"tau-{tau}": ({"tau": tau}, ()) for tau in (0.05, 0.07, 0.2)},
    **{f"weight-{weight}": ({"weight": weight}, ()) for weight in (0.4, 1.6)},
    **{f"k-{k}": ({"k": k}, ("instance", "mixed")) for k in (100, 2500)},
    **{f"scale-{scale}": ({"scale": float(scale)}, ("instance", "mixed", "soft")) for scale in (0, 5, 20)},
    "lm": ({"lm_weight": 0.1}, ()),
    "kld": ({"kld": 1.0}, ()),
    "refresh-20": ({"refresh": 20}, ("instance", "soft")),
}
# kinds without a number of negatives
FIXED: dict[str, dict[str, object]] = {
    "ce": {"method": "ce"},
    "kld": {"method": "kld"},
    "all": {"method": "infonce", "arguments": {**CONTRAST, "sampler": "all", "negatives": 1024}},  # it draws none
}


def recipe(given: argparse.Namespace, kind: str, number: int, seed: int) -> Recipe:
    """The run of one point of the grid; `kind` may have a lever: own+kld."""
    kind, _, lever = kind.partition("+")
    if kind in FIXED:
        values = FIXED[kind]
    else:
        changed = LEVERS[lever][0] if lever else {}
        if kind.startswith("own") and "tau" in changed:
            changed = {**changed, "scale": 1 / changed["tau"]}  # the scale of `own` is that by default
        values = {"method": "infonce", "arguments": {**CONTRAST, "negatives": number, **KINDS[kind], **changed}}
    taught = {} if kind == "ce" else {"teacher": str(given.teacher)}
    schedule = {"epochs": given.epochs, "batch": 128, "lr": 0.05, "schedule": "cosine"}
    where = {"data": given.data, "root": str(given.root), "subset": given.subset, "device": given.device}
    how = {"precision": given.precision, "compile": given.compile, "evaluate_every": given.evaluate_every}
    return Recipe(**{"student": given.student, "seed": seed, **schedule, **where, **how, **taught, **values})


class Denominators(Watch):
    """Notes every five epochs how well the negatives of a run estimate the sum over all of them, on 512 samples."""

    @torch.no_grad()
    def epoch(self, run: Run, line: dict[str, Any]) -> None:
        method: Any = run.method
        if run.recipe.method != "infonce" or method.teacher_table is None or line["epoch"] % 5:
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


def jobs(given: argparse.Namespace) -> list[Job]:
    """Seed by seed, so that a stop leaves whole comparisons behind."""
    chosen = [k for k in (*KINDS, *FIXED) if any(fnmatch.fnmatch(k, p) for p in given.kinds.split(","))]
    listed = []
    for seed in map(int, given.seeds.split(",")):
        points = [(kind, n) for n in map(int, given.numbers.split(",")) for kind in chosen if kind in KINDS]
        points += [(kind, 0) for kind in chosen if kind in FIXED]
        if given.levers:
            points = [(f"{kind}+{lever}", n) for kind, n in points for lever in levers(kind, given.levers)]
        for kind, number in points:
            name = f"{kind}-{number}" if number else kind
            listed.append(Job(recipe(given, kind, number, seed), given.out / f"{name}-{seed}"))
    return listed


def levers(kind: str, patterns: str) -> list[str]:
    """The levers of that name which change something of the kind."""
    own: dict[str, object] = {**CONTRAST, **KINDS.get(kind, {})}
    return [
        lever
        for lever, (changed, samplers) in LEVERS.items()
        if any(fnmatch.fnmatch(lever, pattern) for pattern in patterns.split(",")) and kind in KINDS
        and (not samplers or own["sampler"] in samplers) and any(own.get(key) != changed[key] for key in changed)
    ]  # fmt: skip


def measure(listed: list[Job], steps: int, out: Path) -> None:
    """Time `steps` steps of every job alone, and its draws for an epoch, and write seconds an epoch to times.jsonl.

    The teacher's look at the epoch's views is left out: it is the same for all.
    """
    shelf = Shelf()
    out.mkdir(parents=True, exist_ok=True)
    for job in listed:
        with tempfile.TemporaryDirectory() as folder, backends([job.recipe]):
            run = prepare([(job.recipe, Path(folder) / "run")], shelf)[0]
            stepping = Pack([run]).launch(Watch())
            for _ in range(3):  # captured in the first
                next(stepping)
            _wait(run.device)
            start = time.perf_counter()
            done = sum(1 for _ in zip(range(steps), stepping, strict=False))
            _wait(run.device)
            seconds = (time.perf_counter() - start) / done * len(run.data.train) / job.recipe.batch
            for epoch in (2, 3):  # the second is what an epoch takes
                start = time.perf_counter()
                run.method.begin_epoch(epoch, fresh=True)
                _wait(run.device)
                drawn = time.perf_counter() - start
        point = job.out.name.rpartition("-")[0]
        told = {
            "point": point,
            "epoch_s": round(seconds + drawn, 4),
            "draws_s": round(drawn, 4),
            "precision": job.recipe.precision,
        }
        print(json.dumps(told), flush=True)
        with open(out / "times.jsonl", "a") as file:
            file.write(json.dumps(told) + "\n")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", type=Path, default="", help="run folder of the teacher")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--kinds", default="*", help="patterns, separated by commas")
    parser.add_argument("--numbers", default=",".join(map(str, NUMBERS)))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--levers", default="", help="patterns: instead of the kinds themselves, each with one change")
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
    parser.add_argument("--time", type=int, default=0, metavar="STEPS", help="time so many steps of each run instead")
    given = parser.parse_args()
    listed = jobs(given)
    if given.time and not given.dry_run:
        measure(listed, given.time, given.out)
        return
    check_folders(listed)
    for job in listed if given.dry_run else []:
        print(job.out)
    failed = 0
    for outcome in [] if given.dry_run else sweep(listed, pack=given.pack, watch=Denominators()):
        test = f"{outcome.result['test']:.2f}" if outcome.result else outcome.error
        print(f"{outcome.job.out.name:32} {test}", flush=True)
        failed += not outcome.result
    if failed:
        sys.exit(f"{failed} of {len(listed)} runs have no result; the same line goes on with them.")


if __name__ == "__main__":
    main()
