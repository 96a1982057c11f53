"""Times training epochs of the engine on random 32-pixel images; one JSON line a case.

  python bench/epoch.py                     every case
  python bench/epoch.py --cases 'crd*'      some of them
  python bench/epoch.py --images 256 --device cpu --epochs 1      a trial run anywhere
  python bench/epoch.py --profile           besides, where the time of a step goes, kernel by kernel
  python bench/epoch.py --start             seconds from a command to its first finished step, in new processes

Seconds are the median of epochs after the first, without evaluation, checkpoints and capture (that is in first_step_s,
the time from a recipe to its first finished step). `students` train together; s_per_student is the
time of an epoch divided by them; "fast" is --precision bf16 --compile; "gathered" gathers the rows of all negatives for
every anchor, as published code does, where scns picks their scores out of the product with the whole table.
"""

import argparse
import fnmatch
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice

import torch

from scns.data import Images
from scns.memory import Part
from scns.models import build
from scns.recipe import Recipe
from scns.run import Data, Run, backends, choose_device, placed
from scns.teacher import Teacher
from scns.train import Pack, Watch

INSTANCE = {
    "method": "infonce",
    "preset": "kd-instance",
    "arguments": {"weight": 1.0, "negatives": 4096, "positive": "instance"},
}

FAST = {"precision": "bf16", "compile": "all"}

# name -> (recipe, teacher network, students)
CASES: dict[str, tuple[dict, str, int]] = {
    "ce, batch 128": ({"method": "ce", "batch": 128}, "", 1),
    "ce, batch 128, eager": ({"method": "ce", "batch": 128, "graph": False}, "", 1),
    "ce, batch 128, fast": ({"method": "ce", "batch": 128, **FAST}, "", 1),
    "ce": ({"method": "ce"}, "", 1),
    "ce, fast": ({"method": "ce", **FAST}, "", 1),
    "ce x 8": ({"method": "ce"}, "", 8),
    "ce x 8, fast": ({"method": "ce", **FAST}, "", 8),
    "kld, cached": ({"method": "kld", "teacher_mode": "cached"}, "resnet110", 1),
    "kld, cached, fast": ({"method": "kld", "teacher_mode": "cached", **FAST}, "resnet110", 1),
    "kld, live": ({"method": "kld"}, "resnet110", 1),
    "kld, live, fast": ({"method": "kld", **FAST}, "resnet110", 1),
    "kld, live x 8": ({"method": "kld"}, "resnet110", 8),
    "kld, live x 8, fast": ({"method": "kld", **FAST}, "resnet110", 8),
    "infonce 4096 instance, cached": ({**INSTANCE, "teacher_mode": "cached"}, "resnet110", 1),
    "infonce 4096 instance, cached, fast": ({**INSTANCE, "teacher_mode": "cached", **FAST}, "resnet110", 1),
    "crd 16384, cached": ({"method": "crd", "teacher_mode": "cached"}, "resnet110", 1),
    "crd 16384, cached, fast": ({"method": "crd", "teacher_mode": "cached", **FAST}, "resnet110", 1),
    "crd 16384, live": ({"method": "crd"}, "resnet110", 1),
    "crd 16384, live, fast": ({"method": "crd", **FAST}, "resnet110", 1),
    "crd 16384, live, eager": ({"method": "crd", "graph": False}, "resnet110", 1),
    "crd 16384, live, eager, gathered": ({"method": "crd", "graph": False}, "resnet110", 1),
    "crd 16384, live, gathered": ({"method": "crd"}, "resnet110", 1),
    "crd 16384, live x 8": ({"method": "crd"}, "resnet110", 8),
    "crd 16384, live x 8, fast": ({"method": "crd", **FAST}, "resnet110", 8),
}


def random_images(count: int, device: torch.device, classes: int = 100) -> Images:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    labels = torch.arange(count) % classes
    names = tuple(f"class {i}" for i in range(classes))
    return Images(pixels, labels, names, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)).to(device)


@contextmanager
def gathering() -> Iterator[None]:
    """Scores by gathered rows [batch, m, dim] while a step runs or is captured."""
    picked = Part.picked
    Part.picked = lambda part, z, table, rows: torch.bmm(table[rows], z[:, :, None]).squeeze(2)  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        Part.picked = picked  # type: ignore[method-assign]


class Case:
    """Students of a case, set up; `epoch()` trains them for one and returns its seconds. The first also captures."""

    def __init__(self, name: str, count: int, device: str, student: str) -> None:
        values, self.teacher, self.students = CASES[name]
        self.name, self.count = name, count
        self.recipe = Recipe(student=student, device=device, **{"batch": 64, **values})
        self.device = choose_device(self.recipe)
        self.folder = tempfile.TemporaryDirectory()
        images = random_images(count, self.device)
        data = Data(images, images.subset(torch.arange(min(count, 64))), None)
        teacher = None
        if self.teacher:
            network = placed(build(self.teacher, images.classes), self.device)
            fast = self.recipe.precision == "bf16"
            teacher = Teacher(network, bf16=fast, compiled=self.recipe.compile != "no")
        self.started, self.first = time.perf_counter(), 0.0
        with backends([self.recipe]):
            self.runs = [
                Run(
                    Recipe(**{**self.recipe.as_dict(), "seed": seed, "data_seed": 0}),
                    f"{self.folder.name}/{seed}",
                    data,
                    teacher,
                )
                for seed in range(self.students)
            ]
            self.pack = Pack(self.runs)

    def epoch(self) -> float:
        begin = time.perf_counter()
        with backends([self.recipe]), gathering() if self.name.endswith("gathered") else nullcontext():
            for _ in self.pack.launch(Watch()):
                if not self.first:
                    _wait(self.device)
                    self.first = time.perf_counter() - self.started
            _wait(self.device)
        for run in self.runs:
            run.epoch, run.place = run.epoch + 1, 0
        return time.perf_counter() - begin

    def told(self, seconds: list[float]) -> dict[str, object]:
        epoch = statistics.median(seconds)
        steps = -(-self.count // self.recipe.batch)
        cuda = self.device.type == "cuda"
        return {
            "case": self.name,
            "student": self.recipe.student,
            "teacher": self.teacher,
            "students": self.students,
            "epoch_s": round(epoch, 3),
            "s_per_student": round(epoch / self.students, 3),
            "ms_a_step": round(epoch / steps / self.students * 1e3, 3),
            "first_step_s": round(self.first, 2),
            "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if cuda else None,
            "hardware": torch.cuda.get_device_name() if cuda else "cpu",
            "torch": torch.__version__,
        }

    def profile(self, steps: int = 10, most: int = 40) -> None:
        """Print the kernels of a step (on the CPU: operations) that take the longest, for each student."""
        cuda = self.device.type == "cuda"
        kind = torch.profiler.ProfilerActivity.CUDA if cuda else torch.profiler.ProfilerActivity.CPU
        with backends([self.recipe]):
            stepping = self.pack.launch(Watch())
            next(stepping)
            _wait(self.device)
            with torch.profiler.profile(activities=[kind]) as seen:
                done = sum(1 for _ in islice(stepping, steps))
                _wait(self.device)
        found: dict[str, list[float]] = {}
        for event in seen.events() or []:
            found.setdefault(event.name, []).append(event.device_time if cuda else event.self_cpu_time_total)
        share = 1 / (max(1, done) * self.students)
        calls, spent = sum(map(len, found.values())) * share, sum(map(sum, found.values())) * share
        print(f"{self.name}: {calls:.0f} kernels, {spent:.0f} us a student and step")
        for name, times in sorted(found.items(), key=lambda item: -sum(item[1]))[:most]:
            print(f"  {sum(times) * share:8.1f} us  {len(times) * share:5.1f} x  {name[:90]}", flush=True)


def measure(case: Case, epochs: int) -> dict[str, object]:
    return case.told([case.epoch() for _ in range(epochs + 1)][1:])


START = """
import sys, time
began = float(sys.argv[1])
from scns.recipe import Recipe
from scns.train import Watch, fit
class First(Watch):
    def step(self, run, epoch, done, total):
        if done == 1:
            import torch
            if run.device.type == "cuda":
                torch.cuda.synchronize()
            print(time.time() - began, flush=True)
            raise SystemExit
fit(Recipe(student=sys.argv[2], device=sys.argv[3]), sys.argv[4], watch=First())
"""


def time_start(device: str, student: str) -> dict[str, object]:
    """From the start of a process that trains on the bundled images to its first finished step; no compilation."""
    seconds = []
    for _ in range(3):  # the first may read libraries from a cold disk
        with tempfile.TemporaryDirectory() as folder:
            words = [sys.executable, "-c", START, str(time.time()), student, device, f"{folder}/run"]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        seconds.append(round(float(done.stdout), 2))
    return {"case": "start", "student": student, "device": device, "first_step_s": seconds, "torch": torch.__version__}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="*", help="patterns of case names, separated by semicolons")
    parser.add_argument("--epochs", type=int, default=3, help="timed epochs")
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--student", default="resnet20")
    parser.add_argument("--profile", action="store_true", help="print where the time of a step goes")
    parser.add_argument("--start", action="store_true", help="time the start of a command instead")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; a trial run anywhere: --images 256 --device cpu --epochs 1")
    if given.start:
        print(json.dumps(time_start(given.device, given.student)), flush=True)
        return
    known = [name for name in CASES if given.device != "cpu" or "fast" not in name]
    chosen = [name for name in known if any(fnmatch.fnmatch(name, each) for each in given.cases.split(";"))]
    if not chosen:
        parser.error(f"--cases '{given.cases}' names none of: {'; '.join(known)}")
    for name in chosen:
        case = Case(name, given.images, given.device, given.student)
        print(json.dumps(measure(case, given.epochs)), flush=True)
        if given.profile:
            case.profile()
        del case
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
