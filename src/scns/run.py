"""`Run`: one student of one recipe, with its parts, its folder and its history; and what it is set up from."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from scns import checks, datasets, heap, memory, methods, models, room, words
from scns.capture import Replay
from scns.checkpoint import Folder, prefixed, put, versions, without_prefix
from scns.data import Images, of_each
from scns.errors import Diverged, InputError
from scns.features import Shapes
from scns.methods import Method, Setting, Stage
from scns.preflight import check_device, choose_device
from scns.recipe import Recipe
from scns.sgd import SGD
from scns.step import Evaluation, Losses, Member, chunk_of
from scns.syncnorm import Sync, statistics, synchronise
from scns.teacher import Teacher
from scns.world import World


@dataclass(frozen=True)
class Data:
    """The parts of a data set a recipe uses, on its device."""

    train: Images
    test: Images
    validation: Images | None
    note: str = ""  # what a person should know of where it lies


class Run:
    """One student of one recipe: its parts, its folder, its history.

    In a world of several processes each has such a run, and they are alike; rank 0's writes the folder.
    """

    def __init__(
        self, recipe: Recipe, out: str | Path, data: Data, teacher: Teacher | None, world: World | None = None
    ) -> None:
        self.recipe, self.folder, self.data, self.teacher = recipe, Folder(out), data, teacher
        self.world = world or World()
        self.device = data.train.labels.device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            network = models.build(recipe.student, data.train.classes)
            network.input_size = recipe.input_size
            fresh = recipe.weights and not self.folder.finished
            self.started = models.start_from(network, recipe.weights) if fresh else "random"
            self.student = placed(network, self.device)
            torch.manual_seed(recipe.seed + 1_000_003)  # its own stream: students of one seed start alike
            self.method = self._method().to(self.device)
        for module in (*self.student.modules(), *self.method.modules()):
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None:
                module.num_batches_tracked = None  # a kernel a layer and step that counts what nobody reads
        self.sync = self._sync()
        self.stages: list[Stage | None] = [*(stage for stage in self.method.stages() if stage.epochs > 0), None]
        self.stage, self.epoch, self.place = 0, 0, 0  # finished epochs of the stage, and the place in the next
        self.history: list[dict[str, Any]] = []
        self.seconds = 0.0
        self.saved_at, self.save_took = 0.0, 0.0  # seconds of training at the last checkpoint, and of its writing
        self.result: dict[str, Any] = {}
        self.evaluations = {
            name: Evaluation(
                self.student,
                images,
                chunk=chunk_of(self.student, images),
                bf16=self.bf16,
                span=self.world.span(len(images)),
            )
            for name, images in (("test", data.test), ("validation", data.validation))
            if images is not None
        }
        self.replays = {
            name: Replay(each, each.state, self.graph, before=each.supply) for name, each in self.evaluations.items()
        }
        self.member = self._member()

    @property
    def bf16(self) -> bool:
        return self.recipe.precision == "bf16"

    @property
    def graph(self) -> bool:
        captures = self.world.size == 1 or self.world.nccl  # gloo's messages wait for the host
        return self.recipe.graph and self.device.type == "cuda" and captures

    @property
    def whole(self) -> bool:
        """Whether every rank computes the losses of the whole batch, and not of its share."""
        if self.recipe.gather == "auto":
            return self.method.whole_batch or any(True for _ in memory.divided(self.method))
        return self.recipe.gather == "always"

    @property
    def epochs(self) -> int:
        stage = self.stages[self.stage]
        return self.recipe.epochs if stage is None else min(stage.epochs, self.recipe.epochs)

    def _method(self) -> Method:
        with torch.no_grad():
            sample = torch.zeros(2, 3, self.data.train.size, self.data.train.size, device=self.device)
            self.student.eval()
            student = Shapes.of(self.student(sample, features=True))
            teacher = None if self.teacher is None else Shapes.of(self.teacher.see(sample))
        names, source, images, frozen = self.data.train.names, self.recipe.words, self.data.train, self.teacher
        needs = methods.module(self.recipe.method).Objective.needs
        wants_maps = "maps" in needs or "preacts" in needs  # refused, whoever filled the cache
        if frozen is not None and self.recipe.teacher_mode == "cached" and (frozen.logits is None or wants_maps):
            frozen.cache(images, needs)

        setting = Setting(
            labels=self.data.train.labels,
            student=student,
            teacher=teacher if self.recipe.distil else None,
            embeddings=None if frozen is None else lambda: frozen.answers(images)[1],
            class_vectors=partial(_label_vectors, names, source, self.recipe.on_missing) if source else None,
            answers=None if frozen is None else lambda: frozen.answers(images)[0],
            seed=self.recipe.order_seed,
            world=self.world,
            divided=self.recipe.tables == "sharded",
        )
        return methods.build(self.recipe.method, setting, preset=self.recipe.preset or None, **self.recipe.arguments)

    def _sync(self) -> Sync | None:
        """What the batch norms share, where the recipe asks for it; those that see the whole batch share nothing."""
        if self.world.size == 1 or not self.recipe.sync_batch_norm:
            return None
        return synchronise([self.student] if self.whole else [self.student, self.method], self.world)

    def _trained(self) -> nn.Module:
        """The student as steps see it: with kernels of our own, where it is compiled for a GPU that has them."""
        if self.recipe.compile == "no" or not self.bf16 or self.world.size > 1 or not models.fusible(self.device):
            return self.student
        size = self.data.train.size
        return models.fused(self.student, torch.zeros(1, 3, size, size, device=self.device), torch.bfloat16)

    def _member(self) -> Member:
        recipe, stage = self.recipe, self.stages[self.stage]
        if stage is None:
            trained = [*self.student.parameters(), *self.method.trained()]
            losses: Losses = self.method.forward
            rate = recipe.learning_rate(1)
        else:
            own = [p for module in stage.modules for p in module.parameters()]
            head = {id(p) for p in getattr(self.student, "head", nn.Identity()).parameters()}
            features = [p for p in self.student.parameters() if id(p) not in head] if stage.student else []
            trained, losses = own + features, cast(Losses, stage.losses)  # a stage is for distilling
            rate = stage.lr or recipe.lr
        optimizer = SGD(trained, rate, recipe.momentum, recipe.weight_decay, recipe.nesterov)
        return Member(
            self._trained(),
            self.method,
            losses,
            optimizer,
            main=stage is None,
            compiled=recipe.compile,
            world=self.world,
            whole=self.whole,
            sync=self.sync,
        )

    def next_stage(self) -> None:
        self.stage, self.epoch, self.place = self.stage + 1, 0, 0
        self.member = self._member()

    def set_rate(self) -> None:
        stage = self.stages[self.stage]
        rate = self.recipe.learning_rate(self.epoch + 1) if stage is None else (stage.lr or self.recipe.lr)
        self.member.lr.fill_(rate)

    def modes(self) -> None:
        self.student.train()
        self.method.train()

    # --- state

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, whole on rank 0; for all ranks at once."""
        method = dict(self.method.state_dict())
        for name, part in memory.divided(self.method):
            method[name] = part.collected(method[name])
        momentum = {str(number): each for number, each in enumerate(self.member.optimizer.velocities)}
        return {
            **prefixed("student", dict(self.student.state_dict())),
            **prefixed("method", method),
            **prefixed("momentum", momentum),
            "totals": self.world.total(self.member.totals),
        }

    def settle(self) -> None:
        """Give all ranks the mean of the running statistics that each has taken of its share."""
        self.world.average_(statistics([self.student, self.method]))

    def save(self) -> None:
        """Write a checkpoint, unless the weights are lost: it would replace a good one."""
        start = time.perf_counter()
        if self.place:
            self.settle()
        for name, value in (*self.student.named_parameters(), *self.method.named_parameters()):
            if not bool(torch.isfinite(value).all()):
                epoch = max(1, self.epoch + (self.place > 0))
                raise self._diverged(f"The weights '{name}' became infinite or NaN in epoch {epoch}; lower lr")
        progress = {"stage": self.stage, "epoch": self.epoch, "place": self.place, "seconds": self.seconds}
        data = {"images": len(self.data.train), "labels": checks.fingerprint(self.data.train.labels)}
        if self.teacher is not None:
            data["teacher"] = self.teacher.fingerprint
        known = {**progress, **data, "names": self.member.names, "history": self.history}
        self.world.together(partial(self.folder.save, self.tensors(), known))
        self.saved_at, self.save_took = self.seconds, time.perf_counter() - start

    def _diverged(self, sentence: str) -> Diverged:
        """What is to be raised, once the folder has it too: a rank that ends has the others stopped."""
        reason, done = f"{sentence}, in another --out.", sum("stage" not in line for line in self.history)
        self.world.together(partial(self.folder.diverge, done, round(self.seconds, 1), reason))
        return Diverged(f"{reason} The last good checkpoint is in '{self.folder.path}'.")

    def resume(self) -> bool:
        """Go on from the folder's checkpoint, if it has one."""
        found = self.folder.load()
        if found is None:
            return False
        tensors, progress = found
        then, now = progress.get("images", len(self.data.train)), len(self.data.train)
        if then != now and not self.result:
            raise InputError(
                f"The checkpoint in '{self.folder.path}' is of {then:,} training images, but now there are {now:,}; "
                "put the data back as they were, or choose another --out."
            )
        own = checks.fingerprint(self.data.train.labels)
        if progress.get("labels", own) != own and not self.result:
            raise InputError(
                f"The checkpoint in '{self.folder.path}' is of training images with other labels, or in another order; "
                "put the data back as they were, or choose another --out."
            )
        taught = self.teacher.fingerprint if self.teacher is not None else ""
        unlike = self.teacher is not None and self.teacher.again is not None  # as earlier versions showed it images
        if progress.get("teacher", "earlier" if unlike else taught) != taught and not self.result:
            raise InputError(
                f"The checkpoint in '{self.folder.path}' is of another teacher than '{self.recipe.teacher}' is now, or "
                "saw it otherwise; put that one back, or choose another --out."
            )
        self.stage = int(progress["stage"])
        if not 0 <= self.stage < len(self.stages):
            raise InputError(
                f"The checkpoint in '{self.folder.path}' does not fit its recipe: it is in stage {self.stage} of "
                f"{len(self.stages)}; remove it to start over."
            )
        self.member = self._member()
        self.epoch, self.place = int(progress["epoch"]), int(progress["place"])
        self.member.names = list(progress["names"])  # a run stopped after the last step of an epoch has no other source
        self.seconds, self.history = float(progress["seconds"]), list(progress["history"])
        put(self.student.state_dict(), without_prefix("student", tensors), self.folder.path)
        method, state = without_prefix("method", tensors), self.method.state_dict()
        for name, part in memory.divided(self.method):
            if name in method:
                method[name] = part.cut(method[name], state[name])
        put(state, method, self.folder.path)
        momentum = {str(number): each for number, each in enumerate(self.member.optimizer.velocities)}
        put(momentum, without_prefix("momentum", tensors), self.folder.path)
        put({"totals": self.member.totals}, {key: tensors[key] for key in tensors if key == "totals"}, self.folder.path)
        if not self.world.leads:  # they are sums over ranks
            self.member.totals.zero_()
        return True

    # --- epochs

    def accuracies(self, stopping: Callable[[], int], look: Callable[[str, int, int], None]) -> dict[str, float] | None:
        """On the images that are judged after this epoch; None where a stop was asked for before the last of them."""
        epoch = self.epoch + 1
        if self.stages[self.stage] is not None or (epoch % self.recipe.evaluate_every and epoch < self.recipe.epochs):
            return {}
        self.student.eval()
        judged = all([self._judge(name, stopping, look) for name in self.evaluations])
        self.student.train()
        if not judged:
            return None
        return {
            name: 100 * float(self.world.total(each.right)) / len(each.images)
            for name, each in self.evaluations.items()
        }

    def _judge(self, name: str, stopping: Callable[[], int], look: Callable[[str, int, int], None]) -> bool:
        """Look at every image of an evaluation; False where a stop was asked for meanwhile."""
        evaluation, done = self.evaluations[name], 0
        evaluation.begin()
        for size in evaluation.sizes():
            if self.world.size == 1 and stopping():  # ranks would have to ask each other at every chunk
                return False
            self.replays[name](size)
            done += size
            look(f"{name} images", done, evaluation.stop - evaluation.start)
        return True

    def line(self) -> dict[str, Any]:
        """What the log says of the epoch whose steps are done, but for accuracies."""
        self.settle()
        count, names = self.place, self.member.names  # a method's own order may leave samples out
        totals = self.world.total(self.member.totals).tolist()
        losses = {name: total / count for name, total in zip(names, totals, strict=False)}
        if not math.isfinite(sum(losses.values())):
            finite = dict(zip(names, totals[len(names) + 2 :], strict=False))
            first = min(finite, key=lambda name: finite[name])  # it was finite for the fewest samples
            raise self._diverged(
                f"The loss '{first}' became {losses[first]} in epoch {self.epoch + 1}, after "
                f"{int(finite[first])} of {count} samples; lower lr or the weight of '{first}'",
            )
        right, answers = totals[len(names)], totals[len(names) + 1]
        line: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "lr": float(self.member.lr),
            **losses,
            "loss": sum(losses.values()),
        }
        stage = self.stages[self.stage]
        if stage is not None:
            line["stage"] = stage.name
        else:
            line["train"] = 100 * right / max(1.0, answers)
        return line

    def end_epoch(self, line: dict[str, Any], seconds: float) -> None:
        """Count the epoch, which took so many seconds, and note its line."""
        self.epoch, self.place = self.epoch + 1, 0
        self.seconds += seconds
        line["seconds"] = round(self.seconds, 3)
        self.history.append(line)
        self.world.together(partial(self.folder.note, line))

    def finish(self) -> None:
        """Write the student and the result."""
        main = [line for line in self.history if "stage" not in line]
        last = main[-1]
        self.result = {
            "test": last["test"],
            "seconds": round(self.seconds, 1),
            "epochs": self.epoch,
            "seed": self.recipe.seed,
            "student": self.recipe.student,
            "method": self.recipe.method,
            "data": self.recipe.data,
            "weights": self.started,
            **versions(self.device),
        }
        if self.world.size > 1:
            self.result["ranks"] = self.world.size
        judged = [line for line in main if "validation" in line]
        if judged:
            best = max(judged, key=lambda line: line["validation"])
            self.result.update(best_validation=best["validation"], best_epoch=best["epoch"], best_test=best["test"])
        self.world.together(self._write_result)

    def _write_result(self) -> None:
        self.folder.log(self.history)
        self.folder.save_model(self.student, self.data.train)
        self.folder.finish(self.result)


def _label_vectors(names: tuple[str, ...], source: str, on_missing: str) -> Tensor:
    try:
        return words.label_vectors(list(names), source, on_missing)
    except InputError as error:
        remedy = "words=FILE, or words= (empty) for centroids by its teacher"
        raise InputError(f"{error} In a recipe: {remedy}.") from None


def load_data(recipe: Recipe, device: torch.device) -> Data:
    """The images a recipe trains and is judged on."""
    options = {"size": recipe.size} if recipe.size else {}
    train = datasets.load(recipe.data, recipe.root, "train", **options)
    test = datasets.load(recipe.data, recipe.root, "test", **options).known()
    if not len(test):
        raise InputError(f"None of the test images of {recipe.data} has a label, so no accuracy can be told; add some.")
    seed = recipe.order_seed
    host, note = _on_host(recipe, train, test, device)
    if host:
        train, test = train.on_host(), test.on_host()
    validation = None
    if recipe.validation:
        train, validation = _held_out(train, recipe.validation, seed)
    if recipe.subset > len(train):
        left = f" that validation={recipe.validation:g} leaves" if validation is not None else ""
        raise InputError(
            f"subset={recipe.subset} is more than the {len(train):,} training images{left}; leave it out for all."
        )
    if recipe.subset and recipe.subset < len(train):
        train = train.split(recipe.subset / len(train), seed)[1]
    if recipe.labelled:
        kept = of_each(train.labels, recipe.labelled, seed)
        labels = torch.full_like(train.labels, -1)
        labels[kept] = train.labels[kept]
        train = replace(train, labels=labels)
    return Data(train.to(device), test.to(device), None if validation is None else validation.to(device), note)


def _held_out(train: Images, share: float, seed: int) -> tuple[Images, Images]:
    """(what is trained on, what is held out): some images each."""
    kept, held = train.split(share, seed)
    held = held.known()
    if not len(held):
        raise InputError(
            f"validation={share:g} of {len(train):,} training images is {share * len(train):.2g} images, so none; give "
            f"at least {1 / len(train):.2g}, or 0 for no validation."
        )
    if not len(kept):
        raise InputError(f"validation={share:g} holds out all of the {len(train):,} training images; lower it.")
    return kept, held


def _on_host(recipe: Recipe, train: Images, test: Images, device: torch.device) -> tuple[bool, str]:
    """Whether pixels stay on the host, and a sentence where that was not asked for."""
    if recipe.data_on != "auto" or device.type == "cpu":  # on the CPU they are where they are
        return recipe.data_on == "host", ""
    needed, free = sum(math.prod(images.pixels.shape) for images in (train, test)), room.free(device)
    if needed <= free // 2:  # the other half is for networks, tables and activations
        return False, ""
    sizes = f"{room.shown(needed)} of pixels are more than half of the {room.shown(free)} that {device} has free"
    return True, f"{sizes}: they stay on the host and are sent batch by batch (data_on=host)."


@contextmanager
def backends(recipes: list[Recipe]) -> Iterator[None]:
    """The precision and determinism that the recipes ask for, while they train; they must agree."""
    first = recipes[0]
    for key in ("precision", "deterministic"):
        if len({getattr(recipe, key) for recipe in recipes}) > 1:
            raise InputError(f"Recipes that train at once must agree on {key}; train them one after another.")
    check_device(first)
    device = choose_device(first)
    if device.type == "cpu":
        with heap.kept():
            yield
        return
    tf32 = first.precision != "fp32"
    wanted: tuple[tuple[Any, str, bool], ...] = (
        (torch.backends.cudnn, "allow_tf32", tf32),
        (torch.backends.cuda.matmul, "allow_tf32", tf32),
        (torch.backends.cudnn, "benchmark", not first.deterministic),
        (torch.backends.cudnn, "deterministic", first.deterministic),
    )
    before = [getattr(backend, name) for backend, name, _ in wanted]
    try:
        for backend, name, value in wanted:
            setattr(backend, name, value)
        with torch.cuda.device(device), _same_bits() if first.deterministic else nullcontext():
            yield  # streams, captures and kernels go to the current device
    finally:
        for (backend, name, _), value in zip(wanted, before, strict=True):
            setattr(backend, name, value)


@contextmanager
def _same_bits() -> Iterator[None]:
    """Sums in a fixed order also where CUDA would add by atomics: gradients of gathered rows, scattered sums."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or torch warns of every product
    before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    options: Any = torch.utils.deterministic
    filled = options.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    options.fill_uninitialized_memory = False  # nothing here reads what it has not written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        options.fill_uninitialized_memory = filled


def placed(network: nn.Module, device: torch.device) -> nn.Module:
    """The network on its device, its convolutions channels_last as the images are."""
    network = network.to(device)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
