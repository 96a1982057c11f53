"""What a person sees of a run in training: a display on a terminal, plain lines elsewhere, TensorBoard."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from scns.phrases import count
from scns.run import Run
from scns.train import Watch

_NOT_LOSSES = ("epoch", "lr", "loss", "train", "test", "validation", "seconds", "stage")
_MOMENT = 1.0  # seconds that a look at images takes before it has a bar
_SILENCE = 60.0  # seconds of a look after which a line says how far it is
_REDRAW = 0.1  # seconds between updates of the bar: a step on a GPU takes less


class Several(Watch):
    """Tells each of several watches."""

    def __init__(self, watches: Iterable[Watch]) -> None:
        self.watches = list(watches)

    def note(self, sentence: str) -> None:
        for watch in self.watches:
            watch.note(sentence)

    def start(self, run: Run) -> None:
        for watch in self.watches:
            watch.start(run)

    def step(self, run: Run, epoch: int, done: int, total: int) -> None:
        for watch in self.watches:
            watch.step(run, epoch, done, total)

    def look(self, of: str, done: int, total: int, run: Run | None = None) -> None:
        for watch in self.watches:
            watch.look(of, done, total, run)

    def epoch(self, run: Run, line: dict[str, Any]) -> None:
        for watch in self.watches:
            watch.epoch(run, line)

    def finish(self, run: Run) -> None:
        for watch in self.watches:
            watch.finish(run)


class Lines(Watch):
    """One line an epoch; of the runs `under` a folder, each line says of which."""

    def __init__(self, console: Console, under: Path | None = None) -> None:
        self.console, self.under = console, under
        self.began: dict[int, tuple[float, int]] = {}  # of a run: when, and after how many epochs
        self.told = _Since()

    def note(self, sentence: str) -> None:
        self._say(sentence)

    def start(self, run: Run) -> None:
        self.began[id(run)] = time.perf_counter(), len(run.history)
        recipe, images = run.recipe, run.data.train
        how = f"goes on after {progress_of(run)}" if run.history or run.place else count(recipe.epochs, "epoch")
        self._say(
            f"{run.folder.path}: {recipe.student} on {recipe.data} ({len(images):,} images) with {recipe.method}, {how}"
        )

    def look(self, of: str, done: int, total: int, run: Run | None = None) -> None:
        of = _of(of, run, self.under)
        if self.told.seconds(of, done, total) > _SILENCE:
            self.told.again()
            self._say(f"{of}, {done:,} of {total:,} seen")

    def epoch(self, run: Run, line: dict[str, Any]) -> None:
        when, before = self.began[id(run)]
        each = (time.perf_counter() - when) / (len(run.history) - before)
        left = each * (all_epochs(run) - len(run.history))
        of = "" if self.under is None else f"{named(run, self.under)}  "
        self._say(f"{of}{progress_of(run)}  {facts(run, line)}  {clock(left)} left")

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)


class Display(Watch):
    """A bar for each run, with the numbers of its last epoch below."""

    def __init__(self, console: Console, under: Path | None = None) -> None:
        self.bars, self.under = _Bars(console), under
        self.tasks: dict[int, TaskID] = {}
        self.drawn: dict[int, float] = {}  # of a run: when; those of a pack step at the same moment
        self.told = _Since()
        self.looking: TaskID | None = None

    def note(self, sentence: str) -> None:
        self.bars.console.print(sentence, markup=False, soft_wrap=True)

    def start(self, run: Run) -> None:
        task = self.bars.add_task(self._title(run), total=all_epochs(run), completed=len(run.history))
        self.tasks[id(run)] = task
        if run.history:
            self.bars.facts[task] = facts(run, run.history[-1])

    def step(self, run: Run, epoch: int, done: int, total: int) -> None:
        now = time.perf_counter()
        if now - self.drawn.get(id(run), 0.0) > _REDRAW:
            self.drawn[id(run)] = now
            self.bars.update(self.tasks[id(run)], completed=len(run.history) + done / total)

    def look(self, of: str, done: int, total: int, run: Run | None = None) -> None:
        of = _of(of, run, self.under)
        seconds = self.told.seconds(of, done, total)
        if self.looking is not None and (done == total or not seconds):  # it is over, or of others now
            self.bars.remove_task(self.looking)
            self.looking = None
        elif self.looking is None and seconds > _MOMENT:
            self.looking = self.bars.add_task(of, total=total)
        if self.looking is not None:
            self.bars.update(self.looking, completed=done)

    def epoch(self, run: Run, line: dict[str, Any]) -> None:
        task = self.tasks[id(run)]
        self.bars.facts[task] = facts(run, line)
        self.bars.update(task, completed=len(run.history), description=self._title(run))

    def _title(self, run: Run) -> str:
        return f"{named(run, self.under)}  {progress_of(run)}"


class _Since:
    """When a look at images began, or was told of."""

    def __init__(self) -> None:
        self.of, self.when = "", 0.0

    def seconds(self, of: str, done: int, total: int) -> float:
        """Seconds since then; 0 at the end of a look, and where it is the first that is heard of it."""
        if self.of != of:
            self.of = of
            self.again()
            return 0.0
        if done == total:
            self.of = ""
            return 0.0
        return time.perf_counter() - self.when

    def again(self) -> None:
        self.when = time.perf_counter()


class _Bars(Progress):
    def __init__(self, console: Console) -> None:
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn())
        super().__init__(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True)
        self.facts: dict[TaskID, str] = {}

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.tasks:
            yield self.make_tasks_table([task])
            if getattr(self, "facts", {}).get(task.id):  # rich draws once before our attribute exists
                yield Text(f"  {self.facts[task.id]}", no_wrap=True, overflow="ellipsis", style="dim")


class TensorBoard(Watch):
    """Scalars of every epoch and, where wanted, pictures of negatives, as events in the run folder.

    Events are numbered by epoch, stages before the main one included. A run that goes on says from which number, so
    that epochs which were written but lost with a killed process are not shown twice.
    """

    every = 10  # epochs between pictures
    anchors, negatives = 6, 8  # rows and columns of a picture

    def __init__(self, pictures: bool = True) -> None:
        self.pictures = pictures
        self.writers: dict[Path, Any] = {}

    def start(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._close(run)  # of a pack that failed and is tried again
        folder = run.folder.path / "tensorboard"
        resumed = {"purge_step": len(run.history) + 1} if folder.exists() else {}
        self.writers[run.folder.path] = SummaryWriter(str(folder), **resumed)

    def epoch(self, run: Run, line: dict[str, Any]) -> None:
        with run.folder.told("The events of TensorBoard"):
            self._write(run, line)

    def _write(self, run: Run, line: dict[str, Any]) -> None:
        writer, number = self.writers[run.folder.path], len(run.history)
        for name in losses(line):
            writer.add_scalar(f"loss/{name}", line[name], number)
        for name in ("train", "test", "validation"):
            if name in line:
                writer.add_scalar(f"accuracy/{name}", line[name], number)
        writer.add_scalar("lr", line["lr"], number)
        writer.add_scalar("images a second", images_per_second(run), number)
        sampler = getattr(run.method, "sampler", None)
        last = line["epoch"] == run.recipe.epochs
        draws = self.pictures and sampler is not None and not sampler.everything  # all negatives are no picture
        if draws and "stage" not in line and (line["epoch"] % self.every == 1 or last):
            writer.add_image("negatives (anchor at the left)", self.picture(run, sampler, line["epoch"]), number)
        writer.flush()

    def finish(self, run: Run) -> None:
        self._close(run)

    def _close(self, run: Run) -> None:
        if run.folder.path in self.writers:
            self.writers.pop(run.folder.path).close()

    def close(self) -> None:
        while self.writers:
            with suppress(OSError):  # of a full disk, which was told: every epoch is flushed
                self.writers.popitem()[1].close()

    @torch.no_grad()
    def picture(self, run: Run, sampler: Any, epoch: int) -> np.ndarray:
        """A few anchors, each with the negatives that a step of this epoch draws for it: uint8 [3, height, width]."""
        images = run.data.train
        anchors = torch.linspace(0, len(images) - 1, self.anchors, device=run.device).long()  # the same every time
        drawn = sampler.sample(anchors, self.negatives, epoch=epoch)  # [anchors, negatives]
        rows = torch.cat([anchors[:, None], drawn], dim=1)
        pixels = images.pixels[rows].cpu()  # [anchors, 1 + negatives, 3, h, w]
        gap = 2
        framed = torch.nn.functional.pad(pixels, (gap, gap, gap, gap), value=255)
        framed[:, 0] = torch.nn.functional.pad(pixels[:, 0], (gap, gap, gap, gap), value=0)  # a black frame
        return framed.permute(2, 0, 3, 1, 4).flatten(3, 4).flatten(1, 2).numpy()


@contextmanager
def watching(console: Console, terminal: bool, tensorboard: bool, *, under: Path | None = None) -> Iterator[Watch]:
    """A watch for one call of `fit`: a display or lines, and TensorBoard where it is wanted and installed.

    That of a sweep names runs by their place `under` its folder, and draws no pictures, which take time.
    """
    with ExitStack() as stack:
        watches: list[Watch] = []
        if terminal:
            display = Display(console, under)
            stack.enter_context(display.bars)
            watches.append(display)
        else:
            watches.append(Lines(console, under))
        if tensorboard and _has_tensorboard():
            events = TensorBoard(pictures=under is None)
            stack.callback(events.close)
            stack.enter_context(_writing_threads())
            watches.append(events)
        yield Several(watches)


@contextmanager
def _writing_threads() -> Iterator[None]:
    """What TensorBoard's thread cannot write is raised by the next call of its writer, so no traceback is printed."""
    before = threading.excepthook
    threading.excepthook = lambda told: None if issubclass(told.exc_type, OSError) else before(told)
    try:
        yield
    finally:
        threading.excepthook = before


def named(run: Run, under: Path | None) -> str:
    """The run's folder as seen from the one it lies under; its name alone elsewhere."""
    path = run.folder.path
    return str(path.relative_to(under)) if under is not None and path.is_relative_to(under) else path.name


def _of(what: str, run: Run | None, under: Path | None) -> str:
    return what if run is None else f"{named(run, under)}: {what}"


def all_epochs(run: Run) -> int:
    """The epochs of all stages."""
    return sum(run.recipe.epochs if stage is None else min(stage.epochs, run.recipe.epochs) for stage in run.stages)


def progress_of(run: Run) -> str:
    """Such as "epoch 3/20", or "paraphraser 3/30" in a stage before the main one."""
    stage = run.stages[run.stage]
    width = len(str(run.epochs))
    return f"{'epoch' if stage is None else stage.name} {run.epoch:{width}d}/{run.epochs}"


def facts(run: Run, line: dict[str, Any]) -> str:
    """The numbers of an epoch: losses by name, accuracies, learning rate, speed."""
    said = [f"{name} {line[name]:.4g}" for name in losses(line)]
    said += [f"{name} {line[name]:.2f} %" for name in ("train", "validation", "test") if name in line]
    return "  ".join([*said, f"lr {line['lr']:.4g}", f"{images_per_second(run):,.0f} images/s"])


def losses(line: dict[str, Any]) -> list[str]:
    """The names of the losses in a line of the log."""
    return [name for name in line if name not in _NOT_LOSSES]


def images_per_second(run: Run) -> float:
    """The speed of the last epoch, evaluation left out."""
    before = run.history[-2]["seconds"] if len(run.history) > 1 else 0.0
    return len(run.data.train) / max(1e-9, run.history[-1]["seconds"] - before)


def clock(seconds: float) -> str:
    """Such as 0:42, or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _has_tensorboard() -> bool:
    from importlib.util import find_spec

    return find_spec("tensorboard") is not None
