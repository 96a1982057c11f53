"""`fit`: train a recipe in a run folder; killed at any moment, the same call goes on and ends with the same weights."""

import gc
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from scns import augment
from scns.agree import check_same_data, open_folder, resume_alike
from scns.capture import Replay
from scns.checkpoint import Folder
from scns.errors import InputError
from scns.features import Features
from scns.join import elastic, joined
from scns.methods import Method
from scns.preflight import choose_device
from scns.recipe import Recipe
from scns.run import Data, Run, backends, load_data, placed
from scns.share import Share
from scns.sharedstep import SharedStep
from scns.step import Step, chunk_of
from scns.teacher import Teacher, load_network
from scns.world import World

_SHARE = 0.02  # of a run's time that checkpoints may take
_SAME_WISH = 0.5  # seconds between two signals below which nobody has pressed twice
_AGREE = 16  # steps on a GPU after which ranks ask each other whether to stop: their hosts need not meet at each


class Stopped(Exception):
    """Training was asked to stop; a checkpoint was written. `code` is the exit code that a shell expects of it."""

    def __init__(self, sentence: str, signal_number: int) -> None:
        super().__init__(sentence)
        self.code = 128 + signal_number


class Watch:
    """What is told of a run while it trains; a display overrides what it shows."""

    def note(self, sentence: str) -> None: ...
    def start(self, run: "Run") -> None: ...
    def step(self, run: "Run", epoch: int, done: int, total: int) -> None: ...
    def look(self, of: str, done: int, total: int, run: "Run | None" = None) -> None: ...  # seen without learning
    def epoch(self, run: "Run", line: dict[str, Any]) -> None: ...
    def finish(self, run: "Run") -> None: ...


class Pack:
    """Runs that share their batches and their teacher: one step, one graph."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs, first = runs, runs[0]
        cuda = first.device.type == "cuda"
        self.stream = torch.cuda.Stream(first.device) if cuda else None  # packs run beside each other
        self.recipe, self.data = first.recipe, first.data
        if self.recipe.batch > len(self.data.train):
            raise InputError(
                f"batch={self.recipe.batch} is larger than the {len(self.data.train)} training images; lower batch."
            )
        for run in runs:
            _check_tail(run.method, self.recipe.batch, len(self.data.train))
        self.build()

    def build(self) -> None:
        """The step for the stage that the runs are in."""
        if self.stream is not None:
            gc.collect()  # frees the graphs and tables of runs that are done
        recipe, world = self.recipe, self.runs[0].world
        kind = Step if world.size == 1 else partial(SharedStep, world=world)
        self.step = kind(
            self.data.train,
            [run.member for run in self.runs],
            self.runs[0].teacher if recipe.distil else None,
            batch=recipe.batch,
            seed=recipe.order_seed,
            augmented=recipe.augment,
            bf16=self.runs[0].bf16,
        )
        graph = self.runs[0].graph
        supply = self.step.supply
        self.replay = Replay(self.step, self.step.state, graph, before=supply, warm_up=self.step.warm_up)
        self.look_ahead = Replay(self.step.look_ahead, lambda: [self.step.ahead_place], graph, before=supply)

    def launch(self, watch: Watch) -> Iterator[None]:
        """One epoch, a step at a time."""
        first = self.runs[0]
        for run in self.runs:
            run.modes()
            run.set_rate()
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(first.device))
        with torch.cuda.stream(self.stream):
            self.step.begin(first.epoch + 1, first.place)
            for size in self.step.ahead_sizes():
                self.look_ahead(size)
        place, sizes = 0, self.step.sizes(first.epoch + 1)
        for number, size in enumerate(sizes):
            if place >= first.place:
                with torch.cuda.stream(self.stream):
                    self.replay(size)
                for run in self.runs:
                    run.place = place + size
                    watch.step(run, first.epoch + 1, number + 1, len(sizes))
                yield
            place += size


def _check_tail(method: Method, batch: int, count: int) -> None:
    """Raise where the last batch of an epoch is too small for the method: before the first epoch, not at its end."""

    def last(size: int) -> int:
        return count % size or size

    if last(batch) < method.fewest:
        sizes = (*range(batch - 1, 0, -1), *range(batch + 1, count + 1))
        better = next((size for size in sizes if last(size) >= method.fewest), count)
        raise InputError(
            f"'{method.name()}' compares {method.fewest} samples or more, but batch={batch} leaves {last(batch)} of "
            f"the {count:,} training images for the last step; use batch={better}."
        )


class Shelf:
    """Data and teachers that are loaded: calls of `fit` that are given the same shelf share them."""

    def __init__(self) -> None:
        self._data: dict[Any, Data] = {}
        self._teachers: dict[Any, Teacher] = {}

    def data(self, recipe: Recipe) -> Data:
        """The images of a recipe, on its device."""
        key = self._key(recipe)
        if key not in self._data:
            self._data[key] = load_data(recipe, choose_device(recipe))
        return self._data[key]

    def teacher(self, recipe: Recipe) -> Teacher | None:
        """The teacher of a recipe, on its device; None where it has none."""
        if not recipe.teacher:
            return None
        key = (
            recipe.teacher,
            recipe.teacher_network,
            recipe.teacher_mode,
            recipe.teacher_size,
            recipe.compile,
            recipe.precision,
            *self._key(recipe),
        )
        if key not in self._teachers:
            images = self.data(recipe).train
            network = load_network(recipe.teacher, recipe.teacher_network, images.classes, images.names)
            self._teachers[key] = Teacher(
                placed(network, choose_device(recipe)),
                size=recipe.teacher_size,
                bf16=recipe.precision == "bf16",
                compiled=recipe.compile != "no",
            ).takes(images)
        return self._teachers[key]

    def _key(self, recipe: Recipe) -> tuple[Any, ...]:
        # Images are set apart by the seed; where none are, all seeds have the same.
        parted = recipe.validation or recipe.subset or recipe.labelled
        return (
            recipe.data,
            recipe.root,
            recipe.data_on,
            recipe.size,
            recipe.validation,
            recipe.subset,
            recipe.labelled,
            recipe.order_seed if parted else None,
            choose_device(recipe),
        )


def fit(
    recipe: Recipe, out: str | Path | None = None, *, watch: Watch | None = None, shelf: Shelf | None = None
) -> Run:
    """Train a recipe in the run folder `out`, or go on with it; a finished run is only read.

    `scns.fit(scns.load_recipe("mini-ce")).result["test"]` trains in runs/ce-resnet8-cifar10-mini-0, the folder of that
    method, student, data and seed. Under torchrun every process calls it, and they train together: `recipe.batch` is
    the batch of all of them.
    """
    if not isinstance(recipe, Recipe):
        raise InputError(f"fit takes a recipe, not {recipe!r}; make it by scns.load_recipe(name).")
    if out is None:
        out = Path("runs") / f"{recipe.method}-{recipe.student}-{recipe.data}-{recipe.seed}"
    return fit_packed([(recipe, out)], watch=watch, shelf=shelf)[0]


def fit_packed(
    jobs: list[tuple[Recipe, str | Path]], *, watch: Watch | None = None, shelf: Shelf | None = None
) -> list[Run]:
    """Train several recipes at once on one device: those that share batches and teacher in one graph."""
    watch = watch or Watch()
    if not jobs or not all(isinstance(job, tuple | list) and len(job) == 2 for job in jobs):
        raise InputError('fit_packed takes a list of (recipe, folder): [(scns.load_recipe("mini-ce"), "runs/a"), ...].')
    with joined(jobs[0][0].device) as world, backends([recipe for recipe, _ in jobs]), ExitStack() as kept:
        runs = prepare(jobs, shelf, world, kept, watch)
        with world.alike(), polite_stop() as stopping:
            try:
                _train(runs, lambda: world.any(stopping()), watch)
            except Exception as error:
                if world.size > 1 or not stopping() or isinstance(error, Stopped):
                    raise
                raise Stopped(f"Stopped; {error}", stopping()) from error  # a sweep would go on after any other
            if asked := world.any(stopping()):  # while the last result was made: whoever called would train the next
                raise Stopped(f"Stopped; finished: {', '.join(str(run.folder.path) for run in runs)}.", asked)
        return runs


def _train(runs: list[Run], stopping: Callable[[], int], watch: Watch) -> None:
    """Train the runs that are not finished, to their ends."""
    waiting = [run for run in runs if not run.result]
    packs = [Pack(group) for group in _groups(waiting)]
    for note in dict.fromkeys(run.data.note for run in waiting if run.data.note):
        watch.note(note)
    if any(run.recipe.graph and run.device.type == "cuda" and not run.graph for run in waiting):
        watch.note("Several ranks share a GPU: messages pass by gloo, and steps are not captured.")
    for run in waiting:
        run.world.together(partial(run.folder.log, run.history))
        watch.start(run)
    # A first checkpoint shows that the folder can be written; a run killed before its result only lacks that.
    packs = _still_training(packs, watch)
    while packs:
        _train_epoch(packs, stopping, watch)
        packs = _still_training(packs, watch)


def prepare(
    jobs: list[tuple[Recipe, str | Path]],
    shelf: Shelf | None = None,
    world: World | None = None,
    kept: ExitStack | None = None,
    watch: Watch | None = None,
) -> list[Run]:
    """Runs with their data, teachers and networks; data and teachers are loaded once where recipes share them.

    Folders in which something is to be trained are `kept` to this process, as long as that stack lasts.
    """
    shelf, world, watch = shelf or Shelf(), world or World(), watch or Watch()
    runs = []
    for recipe, out in jobs:
        finished = open_folder(recipe, out, world)
        if kept is not None and not finished:
            world.together(partial(kept.enter_context, Folder(out).kept(recipe)))
        data = world.each(partial(shelf.data, recipe))
        check_same_data(data, world)
        teacher = world.each(partial(shelf.teacher, recipe))
        if teacher is not None:
            teacher.look = partial(watch.look, "the teacher: training images")
        run = world.each(partial(Run, recipe, out, data, teacher, world))
        if finished:
            _read_result(run)
        elif not resume_alike(run) and hasattr(run.method, "fill"):
            _fill(run, watch)
        runs.append(run)
    return runs


def _groups(runs: list[Run]) -> list[list[Run]]:
    """Runs that can share one step: same data, order, batch, teacher, epoch; no companions or order of their own."""
    groups: dict[Any, list[Run]] = {}
    for number, run in enumerate(runs):
        recipe = run.recipe
        alone = run.method.companions or len(run.stages) > 1 or type(run.method).epoch_order is not Method.epoch_order
        key = (
            id(run.data), id(run.teacher), recipe.batch, recipe.order_seed, recipe.augment, recipe.precision,
            recipe.graph, recipe.compile, run.epoch, run.place, recipe.distil, recipe.epochs, number if alone else -1,
        )  # fmt: skip
        groups.setdefault(key, []).append(run)
    return list(groups.values())


def _train_epoch(packs: list[Pack], stopping: Callable[[], int], watch: Watch) -> None:
    start, asked = time.perf_counter(), 0
    device, world = packs[0].runs[0].device, packs[0].runs[0].world
    every = _AGREE if device.type == "cuda" and world.size > 1 else 1
    for number, _ in enumerate(zip_longest(*[pack.launch(watch) for pack in packs]), 1):
        if number % every == 0 and (asked := stopping()):
            break
    _wait(packs)
    seconds = time.perf_counter() - start
    runs = [run for pack in packs for run in pack.runs]
    asked = asked or stopping()
    if not asked:
        lines = [run.line() for run in runs]
        judged = [run.accuracies(stopping, partial(_look, watch, run)) for run in runs]
        asked = stopping() if None in judged else 0
    if asked:  # no run has ended its epoch, so all go on from the same place
        _save_all(runs, seconds)
        folders = ", ".join(str(run.folder.path) for run in runs)
        raise Stopped(f"Stopped; a checkpoint is in {folders}. The same command goes on from there.", asked)
    for run, line, accuracies in zip(runs, lines, judged, strict=True):
        run.end_epoch({**line, **(accuracies or {})}, seconds)
        watch.epoch(run, run.history[-1])


def _look(watch: Watch, run: Run, of: str, done: int, total: int) -> None:
    watch.look(of, done, total, run)


def _save_all(runs: list[Run], seconds: float) -> None:
    """Write every run that can be written, after so many seconds more; then raise what was wrong with the first."""
    wrong = []
    for run in runs:
        run.seconds += seconds
        try:
            run.save()
        except (InputError, OSError) as error:  # its weights are lost, or its disk is full
            wrong.append(error)
    if wrong:
        raise wrong[0]


def _still_training(packs: list[Pack], watch: Watch) -> list[Pack]:
    together = sum(len(pack.runs) for pack in packs)
    return [pack for pack in packs if _go_on(pack, together, watch)]


def _go_on(pack: Pack, together: int, watch: Watch) -> bool:
    """Checkpoint what is due of a pack, of `together` runs that train at once; False when it is done."""
    first = pack.runs[0]
    if first.epoch >= first.epochs and first.stages[first.stage] is not None:
        for run in pack.runs:
            run.next_stage()
        pack.build()
    done = first.stages[first.stage] is None and first.epoch >= first.recipe.epochs
    due = first.world.together(partial(_due, pack.runs, together))
    for run, written in zip(pack.runs, due, strict=True):
        if done or written:
            run.save()
        if done:
            run.finish()
            watch.finish(run)
    return not done


def _due(runs: list[Run], together: int) -> list[bool]:
    """Which runs of a pack are written now: `together` runs wait while each of them is.

    Those that are written by time are so at once: what is left of a pack that was killed can share its steps again.
    """
    timed = [run for run in runs if not run.recipe.checkpoint_every]
    took = sum(run.save_took for run in timed)
    since = min((run.seconds - run.saved_at for run in timed), default=0.0)
    now = together * took <= _SHARE * since * len(timed)
    return [run.epoch % every == 0 if (every := run.recipe.checkpoint_every) else now for run in runs]


@torch.no_grad()
def _fill(run: Run, watch: Watch) -> None:
    """One pass over the training images, so that tables of features do not start with random rows."""
    images, teacher = run.data.train, run.teacher if run.recipe.distil else None
    run.student.eval()
    answers = None  # of the teacher about every image: known already, or worth knowing for the other runs of the pack
    if teacher is not None:
        known = teacher.clean is not None and teacher.clean[0] is images
        if known or (run.world.size == 1 and teacher.holds(images) is not None):
            answers = teacher.answers(images)
    chunk, done = max(500, chunk_of(run.student, images)), 0
    for index in torch.arange(len(images), device=run.device).split(chunk * run.world.size):
        share = Share(run.world, len(index))
        pixels = augment.normalise(images.take(share.own(index)), images.mean, images.std)
        told = None
        if answers is not None:
            told = Features(answers[0][index], answers[1][index])
        elif teacher is not None:
            told = share.whole(teacher.see(pixels), False)
        seen = share.whole(run.student(pixels, features=True), False)
        run.method.fill(index, seen, told)  # type: ignore[operator]
        done += len(index)
        _look(watch, run, "training images", done, len(images))
    run.student.train()


def _read_result(run: Run) -> None:
    run.result = run.folder.result()
    run.resume()


def _wait(packs: list[Pack]) -> None:
    if any(run.device.type == "cuda" for pack in packs for run in pack.runs):
        torch.cuda.synchronize()


@contextmanager
def polite_stop() -> Iterator[Callable[[], int]]:
    """The number of the signal that asked to stop after the step, or 0; a second one, later, stops at once.

    What comes right after the first is the same wish: `timeout` sends to a process and to its group. torchrun passes on
    a signal that its workers may have got already, and kills those that do not end in time.
    """
    asked: list[tuple[int, float]] = []

    def ask(number: int, frame: object) -> None:
        now = time.monotonic()
        if asked and now - asked[0][1] > _SAME_WISH and not elastic():
            raise KeyboardInterrupt(number)
        asked.append((number, now))

    try:
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: nobody sends us signals
        before = {}
    try:
        yield lambda: asked[0][0] if asked else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
