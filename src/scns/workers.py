"""A sweep on several GPUs: a process for each, which ends with the one that started it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.console import Console

from scns.files import atomic
from scns.sweep import Job, Outcome, already, free_memory, read_jobs, ready, sweep, write_jobs
from scns.train import Stopped, Watch, polite_stop
from scns.watch import watching

_LOOK = 0.1  # seconds between looks at signals and workers: one that got the signal itself takes ours for the same wish

# A signal that comes before anything is trained ends a worker at once, without the words of a KeyboardInterrupt.
_START = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); from scns.workers import work; work()"


def run_everywhere(
    jobs: list[Job],
    *,
    pack: int,
    folder: Path,
    say: Callable[[str], None] = print,
    watch: Watch | None = None,
    devices: int | None = None,
) -> list[Outcome]:
    """`sweep`, with one process a GPU where there are several; what others wait for comes first, on the first GPU.

    What a worker tried and could not do has failed; what a worker left that was killed is done here.
    """
    devices = torch.cuda.device_count() if devices is None else devices
    ended = already(jobs)
    if devices > 1:
        first = [job for job in jobs if any(job.out in other.after for other in jobs)]
        ended |= {outcome.job.out: outcome for outcome in sweep(first, pack=pack, say=say, watch=watch)}
        rest = ready(jobs, ended)
        if rest:
            free_memory()
            say(f"{len(rest)} runs on {devices} GPUs, a process each; how far they are: scns runs {folder}")
            failed = _spread(rest, devices, pack, folder)
            ended |= {job.out: Outcome(job, None, failed[str(job.out)]) for job in rest if str(job.out) in failed}
    return sweep(jobs, pack=pack, say=say, watch=watch, ended=ended)


def _spread(jobs: list[Job], devices: int, pack: int, folder: Path) -> dict[str, str]:
    """Why jobs failed, by folder, after a process for each device has trained its part of them."""
    workers: list[subprocess.Popen] = []
    with TemporaryDirectory(prefix="scns-sweep-") as place, polite_stop() as stopping:
        failed = [Path(place) / f"failed-{number}.json" for number in range(min(devices, len(jobs)))]
        try:
            for number, (path, name) in enumerate(zip(failed, visible(devices), strict=False)):
                listing = Path(place) / f"jobs-{number}.json"
                write_jobs(jobs[number::devices], listing)
                words = [sys.executable, "-c", _START, str(listing), str(path), str(pack), str(folder)]
                seen = {**os.environ, "CUDA_VISIBLE_DEVICES": name}
                workers.append(subprocess.Popen(words, env=seen, stdin=subprocess.PIPE))
            asked = _wait(workers, stopping)
        finally:
            for worker in workers:  # none goes on alone, whatever happened here
                worker.kill()
                worker.communicate()
        if asked:
            where = f"Stopped; checkpoints are in the run folders of '{folder}'"
            raise Stopped(f"{where}. The same command goes on from there.", asked)
        reports = [json.loads(path.read_text()) for path in failed if path.exists()]
    return {out: reason for report in reports for out, reason in report.items()}


def _wait(workers: list[subprocess.Popen], stopping: Callable[[], int]) -> int:
    """The number of the signal that asked to stop, or 0, when all workers have ended; it is passed on to them."""
    asked = 0
    while any(worker.poll() is None for worker in workers):
        if not asked and (asked := stopping()):
            for worker in workers if os.name == "posix" else []:  # elsewhere Ctrl-C has reached them by the console
                worker.send_signal(asked)
        time.sleep(_LOOK)
    return asked or stopping()


def visible(devices: int) -> list[str]:
    """What CUDA_VISIBLE_DEVICES is for a process that sees one of the devices: its entry of the list that is set."""
    listed = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return listed[:devices] if len(listed) >= devices else [str(number) for number in range(devices)]


def _follow() -> None:
    """Stop politely when the process that started this one is gone, however it ended: nobody holds our input then.

    The input is read as a file of the system: Python's own cannot be closed at the end while a thread waits for it.
    """
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def work() -> None:
    """The process of one GPU, with the words JOBS.json FAILED.json PACK FOLDER."""
    listing, failed, pack, folder = sys.argv[1:]
    threading.Thread(target=_follow, daemon=True).start()
    # Several workers and one terminal: there it is left to the display of the process that started us.
    console = Console(stderr=True, quiet=sys.stderr.isatty())
    try:
        with watching(console, False, True, under=Path(folder)) as watch:
            say = Console(stderr=True, markup=False, soft_wrap=True).print
            outcomes = sweep(read_jobs(Path(listing)), pack=int(pack), say=say, watch=watch)
    except Stopped as stopped:
        sys.exit(stopped.code)
    except KeyboardInterrupt:  # asked twice
        sys.exit(130)
    with atomic(failed) as temporary:
        temporary.write_text(json.dumps({str(each.job.out): each.error for each in outcomes if each.result is None}))
