"""Trains in children of its own that end badly at an exact moment: python kill_helper.py JOBS.json

One process for all jobs, so that torch is imported once; every job is a fork of it.
"""

import json
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from scns import checkpoint, files
from scns.recipe import from_dict
from scns.run import Run
from scns.train import Stopped, Watch, fit

SIGNALS = {"kill": signal.SIGKILL, "int": signal.SIGINT, "term": signal.SIGTERM}


class Ending(Watch):
    """Sends its own process a signal after so many steps."""

    def __init__(self, how: str, steps: int) -> None:
        self.how, self.left = how, steps

    def step(self, run: Run, epoch: int, done: int, total: int) -> None:
        self.left -= 1
        if self.left == 0:
            if self.how == "full":  # from now on no file may grow: what a full disk does
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            else:
                os.kill(os.getpid(), SIGNALS[self.how])


def die_writing(name: str, count: int) -> None:
    """Be killed when the file `name` is written for the `count`-th time, before it gets its name."""
    rename, seen = os.replace, []

    def replace(source: Any, target: Any) -> None:
        if Path(target).name == name:
            seen.append(target)
            if len(seen) == count:
                os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    files.os.replace = replace  # type: ignore[assignment]


def train(job: dict[str, Any]) -> int:
    """The exit code of a run that ends by itself."""
    if job["how"] == "writing":
        die_writing(job["file"], job["count"])
    watch = Ending(job["how"], job["steps"]) if "steps" in job else Watch()
    try:
        fit(from_dict(job["recipe"], "the job"), job["out"], watch=watch)
    except Stopped as stopped:
        return stopped.code
    except checkpoint.InputError as error:
        Path(job["out"], "said.txt").write_text(str(error)[:900])
        return 2
    return 0


def main() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    jobs = json.loads(Path(sys.argv[1]).read_text())
    with tempfile.TemporaryDirectory() as folder:  # what torch imports at the first step, it imports once
        fit(from_dict({**jobs[0]["recipe"], "epochs": 1, "subset": 40}, "the first job"), folder)
    codes = []
    for job in jobs:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                code = train(job)
            finally:
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
