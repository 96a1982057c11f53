"""Many runs: packed on one device, spread over several by processes, resumable, none lost to another's failure."""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scns.checkpoint import Folder
from scns.errors import InputError
from scns.files import atomic
from scns.recipe import Recipe, from_dict
from scns.train import Stopped, Watch, fit_packed


@dataclass(frozen=True)
class Job:
    """A recipe and the folder it is run in; `after` names folders whose runs must be finished first (its teacher)."""

    recipe: Recipe
    out: Path
    after: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a job ended: finished, with its result; or failed, with the reason."""

    job: Job
    result: dict[str, Any] | None
    error: str = ""


def sweep(
    jobs: list[Job], *, pack: int = 1, say: Callable[[str], None] = print, watch: Watch | None = None
) -> list[Outcome]:
    """Run jobs, at most `pack` at a time, those that others wait for first; finished ones are skipped.

    A pack that fails, or does not fit the device's memory, is halved until the bad job stands alone; that one is tried
    once more. So one bad job costs no other its result, and little of its speed.
    """
    if pack < 1:
        raise InputError(f"--pack {pack} must be at least 1.")
    ended = already(jobs)
    while waiting := ready(jobs, ended):
        for batch in batches(waiting, pack):
            for outcome in _run(batch, say, watch):
                ended[outcome.job.out] = outcome
    return in_order(jobs, ended)


def run_everywhere(
    jobs: list[Job],
    *,
    pack: int,
    folder: Path,
    say: Callable[[str], None] = print,
    watch: Watch | None = None,
    devices: int | None = None,
) -> list[Outcome]:
    """`sweep`, with one process a GPU where there are several; what others wait for comes first, on the first GPU."""
    devices = torch.cuda.device_count() if devices is None else devices
    if devices > 1:
        first = [job for job in jobs if any(job.out in other.after for other in jobs)]
        sweep(first, pack=pack, say=say, watch=watch)
        rest = [job for job in jobs if job not in first and finished(job.out) is None]
        say(f"{len(rest)} runs on {devices} GPUs, a process each.")
        workers = [_worker(rest[device::devices], device, pack, folder) for device in range(min(devices, len(rest)))]
        for listing, worker in workers:
            worker.wait()
            listing.unlink(missing_ok=True)
    return sweep(jobs, pack=pack, say=say, watch=watch)  # finished ones are read; what a lost worker left is done here


def _worker(jobs: list[Job], device: int, pack: int, folder: Path) -> tuple[Path, subprocess.Popen]:
    listing = folder / f".jobs-{device}.json"
    write_jobs(jobs, listing)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(device)}
    return listing, subprocess.Popen([sys.executable, "-m", "scns.sweep", str(listing), str(pack)], env=environment)


def finished(out: Path) -> dict[str, Any] | None:
    """The result of a finished run folder, or None."""
    path = Path(out) / "result.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def write_jobs(jobs: list[Job], path: Path) -> None:
    listed = [
        {"recipe": job.recipe.as_dict(), "out": str(job.out), "after": [str(a) for a in job.after]} for job in jobs
    ]
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(listed))


def read_jobs(path: Path) -> list[Job]:
    listed = json.loads(path.read_text())
    return [
        Job(from_dict(each["recipe"], f"'{path}'"), Path(each["out"]), tuple(Path(a) for a in each["after"]))
        for each in listed
    ]


def already(jobs: list[Job]) -> dict[Path, Outcome]:
    """The outcomes of jobs that were finished before, by folder."""
    results = {job.out: finished(job.out) for job in jobs}
    return {job.out: Outcome(job, results[job.out]) for job in jobs if results[job.out] is not None}


def in_order(jobs: list[Job], ended: dict[Path, Outcome]) -> list[Outcome]:
    """An outcome a job; those that never became ready have failed with what they waited for."""
    outcomes = []
    for job in jobs:
        lost = [str(path) for path in job.after if path not in ended or ended[path].result is None]
        reason = f"what it waits for has failed: {', '.join(lost)}"
        outcomes.append(ended.get(job.out) or Outcome(job, None, reason))
    return outcomes


def ready(jobs: list[Job], ended: dict[Path, Outcome]) -> list[Job]:
    """Jobs that are not done and wait for nothing any more."""
    done = {path for path, outcome in ended.items() if outcome.result is not None}
    own = {job.out for job in jobs}
    return [job for job in jobs if job.out not in ended and all(path in done or path not in own for path in job.after)]


def batches(jobs: list[Job], pack: int) -> list[list[Job]]:
    """At most `pack` jobs each; jobs that can share batches and teacher stand together."""

    def kind(job: Job) -> str:
        r = job.recipe
        shared = (r.precision, r.deterministic, r.data, r.batch, r.order_seed, r.teacher, r.teacher_mode, r.epochs)
        return json.dumps(shared)

    ordered = sorted(jobs, key=kind)
    groups: list[list[Job]] = []
    for job in ordered:
        alike = groups and (groups[-1][0].recipe.precision, groups[-1][0].recipe.deterministic) == (
            job.recipe.precision,
            job.recipe.deterministic,
        )
        if alike and len(groups[-1]) < pack:
            groups[-1].append(job)
        else:
            groups.append([job])
    return groups


def _run(batch: list[Job], say: Callable[[str], None], watch: Watch | None) -> list[Outcome]:
    """Outcomes of a batch: together if it goes well, else in halves."""
    try:
        runs = fit_packed([(job.recipe, job.out) for job in batch], watch=watch)
        return [Outcome(job, run.result) for job, run in zip(batch, runs, strict=True)]
    except Stopped:
        raise
    except torch.OutOfMemoryError:
        if len(batch) == 1:
            return [Outcome(batch[0], None, "one run alone does not fit the device's memory; lower batch")]
        half = (len(batch) + 1) // 2
        say(f"{len(batch)} runs at once do not fit the device's memory; trying {half}.")
        torch.cuda.empty_cache()
        return [outcome for part in (batch[:half], batch[half:]) for outcome in _run(part, say, watch)]
    except Exception as error:
        reason = _reason(error)
        if len(batch) == 1:
            say(f"{batch[0].out} failed ({reason}); trying once more.")
            return [_once_more(batch[0], watch)]
        half = (len(batch) + 1) // 2
        say(f"A pack of {len(batch)} failed ({reason}); trying it in halves.")
        return [outcome for part in (batch[:half], batch[half:]) for outcome in _run(part, say, watch)]


def _once_more(job: Job, watch: Watch | None) -> Outcome:
    try:
        return Outcome(job, fit_packed([(job.recipe, job.out)], watch=watch)[0].result)
    except Stopped:
        raise
    except Exception as error:
        if Folder(job.out).path.is_dir():
            with atomic(Path(job.out) / "error.txt") as temporary:
                temporary.write_text(traceback.format_exc())
        return Outcome(job, None, _reason(error))


def _reason(error: Exception) -> str:
    return str(error).split("\n")[0] or type(error).__name__


if __name__ == "__main__":
    sweep(read_jobs(Path(sys.argv[1])), pack=int(sys.argv[2]))
