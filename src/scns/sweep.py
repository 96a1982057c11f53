"""Many runs: packed on one device, resumable, none lost to another's failure."""

import gc
import json
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scns.admission import Admission
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
    jobs: list[Job],
    *,
    pack: int = 1,
    say: Callable[[str], None] = print,
    watch: Watch | None = None,
    ended: dict[Path, Outcome] | None = None,
) -> list[Outcome]:
    """Run jobs, at most `pack` at a time, those that others wait for first; finished ones are skipped.

    On a GPU fewer are tried at a time where an estimate says that its free memory cannot hold them (see `Admission`).
    A pack that fails, or does not fit nevertheless, is halved until the bad job stands alone; that one is tried once
    more if it crashed, not if its input is wrong or its loss no number, which another attempt would say again. So one
    bad job costs no other its result, and little of its speed. Jobs that have `ended` elsewhere, by folder, are not
    tried again.
    """
    if pack < 1:
        raise InputError(f"--pack {pack} must be at least 1.")
    ended = already(jobs) | (ended or {})
    engine = _Engine(say, watch)
    while waiting := ready(jobs, ended):
        for batch in batches(waiting, pack):
            for outcome in engine.run(batch):
                ended[outcome.job.out] = outcome
    return in_order(jobs, ended)


def finished(out: Path) -> dict[str, Any] | None:
    """The result of a finished run folder, or None."""
    try:
        return Folder(out).result()
    except (InputError, OSError):
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
    """An outcome a job; those that never became ready have failed with what they waited for.

    A run that failed here, because another process was training it, may be finished by now.
    """
    done = already([job for job in jobs if job.out not in ended or ended[job.out].result is None])
    outcomes = []
    for job in jobs:
        lost = [str(path) for path in job.after if path not in ended or ended[path].result is None]
        reason = f"what it waits for has failed: {', '.join(lost)}"
        outcomes.append(done.get(job.out) or ended.get(job.out) or Outcome(job, None, reason))
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


@dataclass(frozen=True)
class _Failure:
    """Why an attempt failed, in words alone: the error itself would keep the runs of the attempt in memory."""

    reason: str
    told: str  # with the traceback
    memory: bool  # the device had too little
    certain: bool  # another attempt would end the same


class _Engine:
    """Tries batches of jobs, together or in parts."""

    def __init__(self, say: Callable[[str], None], watch: Watch | None) -> None:
        self.say, self.watch, self.admission = say, watch, Admission()
        self.said: set[int] = set()  # how many were tried instead: told once each

    def run(self, batch: list[Job]) -> list[Outcome]:
        """The outcomes of a batch: as many at once as may fit, and of those that fail in halves."""
        outcomes: list[Outcome] = []
        while len(outcomes) < len(batch):
            left = batch[len(outcomes) :]
            free_memory()
            fitting = self.admission.fits([job.recipe for job in left])
            if fitting < len(left) and fitting not in self.said:
                self.said.add(fitting)
                self.say(f"{len(left)} runs at once do not fit the device's memory; trying {fitting}.")
            outcomes += self._try(left[:fitting])
        return outcomes

    def _try(self, batch: list[Job]) -> list[Outcome]:
        ended = self._attempt(batch)
        if not isinstance(ended, _Failure):
            return ended
        half = (len(batch) + 1) // 2
        if ended.memory:
            if len(batch) == 1:
                return [Outcome(batch[0], None, "one run alone does not fit the device's memory; lower batch")]
            self.admission.failed([job.recipe for job in batch], half)
            return self.run(batch)
        if len(batch) == 1:
            return self._alone(batch[0], ended)
        self.say(f"A pack of {len(batch)} failed ({ended.reason}); trying it in halves.")
        return [*self.run(batch[:half]), *self.run(batch[half:])]

    def _alone(self, job: Job, failure: _Failure) -> list[Outcome]:
        """How a job ends that failed by itself: one that crashed has a second chance."""
        self.say(f"{job.out} failed ({failure.reason}){'' if failure.certain else '; trying once more'}.")
        if not failure.certain:
            free_memory()
            ended = self._attempt([job])
            if not isinstance(ended, _Failure):
                return ended
            failure = ended
        if job.out.is_dir():
            # A full disk may be why it failed: it is told, and the others go on.
            with suppress(OSError), atomic(job.out / "error.txt") as temporary:
                temporary.write_text(failure.told)
        return [Outcome(job, None, failure.reason)]

    def _attempt(self, batch: list[Job]) -> list[Outcome] | _Failure:
        try:
            runs = fit_packed([(job.recipe, job.out) for job in batch], watch=self.watch)
            return [Outcome(job, run.result) for job, run in zip(batch, runs, strict=True)]
        except Stopped:
            raise
        except Exception as error:
            reason = str(error).split("\n")[0] or type(error).__name__
            return _Failure(reason, traceback.format_exc(), _lacked_memory(error), isinstance(error, InputError))


def _lacked_memory(error: BaseException | None) -> bool:
    """Whether a device had too little memory, also where that broke off a capture, which is what torch then says."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error is not None


def free_memory() -> None:
    """Give back what runs that are over took of the host's and the device's memory."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
