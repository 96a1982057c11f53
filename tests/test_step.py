"""One training step, against a loop that anyone would write."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scns import augment, datasets, methods, models, step
from scns.data import Images, epoch_table
from scns.features import Batch, Features, Shapes
from scns.methods import Method, Setting
from scns.recipe import Recipe
from scns.sgd import SGD
from scns.step import Evaluation, Member, Step

MEAN, STD = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2023, 0.1994, 0.2010])


def few(count: int) -> Images:
    """Some of the bundled images, of all classes."""
    images = datasets.load("cifar10-mini")
    return images.subset(torch.arange(0, len(images), len(images) // count)[:count])


def by_hand(image: np.ndarray, dy: int, dx: int, flip: bool) -> np.ndarray:
    """A crop of the image padded by four black pixels, mirrored and normalised: [3, 32, 32]."""
    padded = np.zeros((3, 40, 40), dtype=np.uint8)
    padded[:, 4:36, 4:36] = image
    view = padded[:, dy : dy + 32, dx : dx + 32]
    view = view[:, :, ::-1] if flip else view
    return (view / 255 - MEAN[:, None, None]) / STD[:, None, None]


def plain_loop(network: nn.Module, images: Images, wanted: Recipe, epochs: int) -> list[tuple[float, float]]:
    """Train as a person would; (mean loss, share of correct answers) of every epoch."""
    optimizer = torch.optim.SGD(
        network.parameters(), lr=wanted.lr, momentum=wanted.momentum, weight_decay=wanted.weight_decay,
        nesterov=wanted.nesterov, foreach=False, fused=False,
    )  # fmt: skip
    said = []
    for epoch in range(1, epochs + 1):
        for group in optimizer.param_groups:
            group["lr"] = wanted.learning_rate(epoch)
        table = epoch_table(len(images), wanted.order_seed, epoch)
        loss_sum, right = 0.0, 0
        for start in range(0, len(images), wanted.batch):
            stop = min(start + wanted.batch, len(images))
            rows = table.order[start:stop].tolist()
            views = [
                by_hand(images.pixels[row].numpy(), int(table.dy[p]), int(table.dx[p]), bool(table.flip[p]))
                for p, row in zip(range(start, stop), rows, strict=True)
            ]
            labels = images.labels[rows]
            logits = network(torch.from_numpy(np.stack(views)))
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.item() * len(rows)
            right += int((logits.argmax(1) == labels).sum())
        said.append((loss_sum / len(images), right / len(images)))
    return said


@pytest.mark.parametrize("nesterov", [False, True])
def test_two_epochs_equal_a_plain_loop(nesterov: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(augment, "normalise", partial(augment.normalise, dtype=torch.float64))  # no noise to amplify
    images, wanted = few(50), Recipe(batch=18, lr=0.02, nesterov=nesterov, milestones=(1,), epochs=2, seed=5)
    torch.manual_seed(0)
    ours = models.build("resnet8", 10).double().train()
    theirs = copy.deepcopy(ours)
    optimizer = SGD(ours.parameters(), 1.0, wanted.momentum, wanted.weight_decay, nesterov)
    method = methods.build("ce", Setting(images.labels, Shapes(10, 64)))
    step = Step(images, [Member(ours, method, method, optimizer)], None, batch=18, seed=5)
    assert step.sizes(1) == [18, 18, 14]
    for epoch, (loss, share) in enumerate(plain_loop(theirs, images, wanted, epochs=2), start=1):
        step.members[0].lr.fill_(wanted.learning_rate(epoch))
        step.begin(epoch)
        for size in step.sizes(epoch):
            step(size)
        total, right, answers = step.members[0].totals[:3].tolist()
        assert total / 50 == pytest.approx(loss, rel=1e-6) and right / 50 == share and answers == 50
    for (name, one), other in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-6), name


class Recorder(Method):
    """Keeps the batches it is given; learns nothing."""

    def __init__(self, companions: int = 0) -> None:
        nn.Module.__init__(self)
        self.companions, self.batches, self.after = companions, [], 0
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        self.batches.append(batch._replace(epoch=batch.epoch.clone()))
        return {"none": student.logits.sum() * 0 + self.weight * 0}

    def after_step(self, batch: Batch, student: Features, teacher: Features | None) -> None:
        self.after += 1

    def companion_index(self, index: Tensor, epoch: Tensor) -> Tensor:
        return (index[:, None] + torch.arange(1, 1 + self.companions)) % 20


class Tiny(nn.Module):
    """A network of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 10)

    def forward(self, images: Tensor, features: bool = False) -> Tensor | Features:
        embedding = images.mean((2, 3))
        return Features(self.fc(embedding), embedding) if features else self.fc(embedding)


def recorded(method: Recorder, *, main: bool = True, epoch: int = 1, start: int = 0) -> Step:
    network = Tiny()
    optimizer = SGD([*network.parameters(), method.weight], 0.1, 0.9, 0.0, False)
    step = Step(few(20), [Member(network, method, method, optimizer, main)], None, batch=8, seed=3)
    step.begin(epoch, start)
    place = 0
    for size in step.sizes(epoch):
        if place >= start:
            step(size)
        place += size
    return step


def test_every_sample_is_seen_once_an_epoch_and_epochs_differ() -> None:
    orders = []
    for epoch in (1, 2):
        method = Recorder()
        recorded(method, epoch=epoch)
        assert [batch.anchors for batch in method.batches] == [8, 8, 4]
        assert all(int(batch.epoch) == epoch for batch in method.batches) and method.after == 3
        orders.append(torch.cat([batch.index for batch in method.batches]))
        assert orders[-1].sort().values.tolist() == list(range(20))
    assert orders[0].tolist() != orders[1].tolist()


def test_an_epoch_begun_in_the_middle_sees_the_rest_of_it() -> None:
    whole, rest = Recorder(), Recorder()
    recorded(whole)
    recorded(rest, start=8)
    assert len(rest.batches) == 2
    for one, other in zip(whole.batches[1:], rest.batches, strict=True):
        assert torch.equal(one.index, other.index) and torch.equal(one.images, other.images)


def test_companions_follow_their_anchors_in_views_of_their_own() -> None:
    plain, accompanied = Recorder(), Recorder(companions=2)
    recorded(plain)
    recorded(accompanied)
    views = {int(i): image for batch in plain.batches for i, image in zip(batch.index, batch.images, strict=True)}
    for one, other in zip(plain.batches, accompanied.batches, strict=True):
        assert other.anchors == one.anchors and len(other.index) == 3 * one.anchors
        assert torch.equal(other.index[: other.anchors], one.index) and torch.equal(
            other.images[: one.anchors], one.images
        )
        beside = accompanied.companion_index(one.index, one.epoch).flatten()
        assert torch.equal(other.index[one.anchors :], beside)
        for row, image in zip(other.index.tolist(), other.images, strict=True):
            assert torch.equal(image, views[row])  # a sample has one view an epoch, wherever it stands


def test_tables_are_not_updated_in_a_stage_before_the_main_one() -> None:
    method = Recorder()
    recorded(method, main=False)
    assert method.after == 0 and len(method.batches) == 3


class Reader(nn.Module):
    """Answers with the class that is written in an image's first pixel."""

    def forward(self, images: Tensor) -> Tensor:
        return F.one_hot((images[:, 0, 0, 0] * 255).round().long(), 10).float()


@pytest.mark.parametrize(("count", "chunk"), [(20, 8), (16, 8), (5, 8), (21, 20)])
def test_evaluation_counts_every_image(count: int, chunk: int) -> None:
    labels = torch.arange(count) % 10
    pixels = labels.to(torch.uint8)[:, None, None, None].expand(count, 3, 8, 8).contiguous()
    images = Images(pixels, labels, tuple("abcdefghij"), (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    for wrong in (None, 0, count - 1):  # none, the first, the last
        pixels[:] = labels.to(torch.uint8)[:, None, None, None]
        if wrong is not None:
            pixels[wrong] = (labels[wrong] + 1) % 10
        evaluation = Evaluation(Reader(), images, chunk=chunk)
        for _ in range(2):  # a second pass starts from zero
            evaluation.begin()
            for size in evaluation.sizes():
                evaluation(size)
            assert int(evaluation.right) == count - (wrong is not None)


def test_the_learning_rate_is_a_tensor_that_counts() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = SGD([weight], 0.5, 0.0, 0.0, False)
    weight.grad = torch.ones(1)
    optimizer.lr.fill_(0.25)
    optimizer.step()
    assert weight.item() == 0.75


def test_a_step_knows_everything_that_it_changes() -> None:
    method = Recorder()
    step = recorded(method)
    known = {id(tensor) for tensor in step.state()}
    member = step.members[0]
    tensors = [member.totals, step.place, *member.student.parameters(), *method.parameters()]
    tensors += member.optimizer.velocities
    assert all(id(tensor) in known for tensor in tensors)


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_what_is_kept_out_of_autocast_is_so_in_its_compiled_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda part, dynamic: compiler(part, dynamic=dynamic, backend="aot_eager"))

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return (x @ w).square().sum()

    x, w = torch.randn(8, 16, requires_grad=True), torch.randn(16, 4)
    (wanted,) = torch.autograd.grad(loss(x, w), x)
    with torch.autocast("cpu", torch.float16):
        found = step.quicker(loss, True)(x, w)
    assert torch.equal(torch.autograd.grad(found, x)[0], wanted)
