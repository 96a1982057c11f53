"""What a step launches beside its network: few kernels, the same draws as before the epoch, one graph for all kinds."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from scns import augment, methods, models, room, step
from scns.data import Images
from scns.errors import InputError
from scns.features import Batch, Features, Shapes
from scns.methods import Method, Setting, _drawn
from scns.sgd import SGD
from scns.step import Member, Step

SAMPLES, BATCH, CLASSES, WIDTH = 120, 16, 5, 8
LABELS = torch.arange(SAMPLES) % CLASSES
CONTRAST = {"negatives": 4, "tau": 0.1, "positive": "instance", "weight": 0.8}
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {"sampler": "uniform"},
    "uniform-corrected": {"sampler": "uniform", "correct": True},
    "class": {"sampler": "class", "k": 3, "positive": "class"},
    "instance": {"sampler": "instance", "k": 20},
    "instance-few": {"sampler": "instance", "k": 3, "correct": True},
    "mixed-corrected": {"sampler": "mixed", "k": 20, "correct": True},
    "soft": {"sampler": "soft", "scale": 7.5, "correct": True},
    "soft-20": {"sampler": "soft", "scale": 7.5, "correct": True, "clusters": 20},
    "own": {"sampler": "soft", "scale": 7.5, "correct": True, "refresh": 1},
    "lm": {"sampler": "instance", "k": 20, "lm_weight": 0.1},
}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def built(name: str, arguments: dict[str, Any]) -> Method:
    shapes = Shapes(CLASSES, WIDTH)
    setting = Setting(LABELS, shapes, None if name == "ce" else shapes, embeddings=lambda: random(SAMPLES, WIDTH))
    return methods.build(name, setting, **arguments)


def infonce(kind: str) -> Method:
    return built("infonce", {**CONTRAST, **KINDS[kind]})


class Given(nn.Module):
    """A network that answers every batch with its parameters: no kernel of it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.logits, self.embedding = nn.Parameter(random(BATCH, CLASSES)), nn.Parameter(random(BATCH, WIDTH, seed=1))

    def forward(self, images: Tensor, features: bool = False) -> Features:
        return Features(self.logits.view_as(self.logits), self.embedding.view_as(self.embedding))


class Teacher:
    """Answers of a teacher about every sample."""

    logits, embeddings = random(SAMPLES, CLASSES, seed=2), random(SAMPLES, WIDTH, seed=3)

    def __call__(self, batch: Batch) -> Features:
        return Features(self.logits[batch.index], self.embeddings[batch.index])


def stepping(method: Method) -> Step:
    pixels = torch.arange(SAMPLES * 3 * 64).view(SAMPLES, 3, 8, 8).to(torch.uint8)
    images = Images(pixels, LABELS, tuple("abcde"), (0.5,) * 3, (0.2,) * 3)
    student = Given()
    optimizer = SGD([*student.parameters(), *method.trained()], 0.05, 0.9, 5e-4, False)
    member = Member(student, method, method.forward, optimizer)
    teacher: Any = Teacher() if method.needs != ("logits",) else None
    return Step(images, [member], teacher, batch=BATCH, seed=0)


class Launches(TorchDispatchMode):
    """Counts what is more than another view of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (func.is_view or func.name().startswith(("aten::empty", "aten::_unsafe_view")))
        return func(*args, **(kwargs or {}))


# Upper bounds: a change that raises them makes every sweep slower, so it must be meant. On a CPU rms_norm is 5 kernels
# forward and 10 backward where CUDA has one each; 43 of each count are the step's order, view and teacher's answers.
@pytest.mark.parametrize(("kind", "most"), [("ce", 60), ("uniform", 158), ("mixed-corrected", 159)])
def test_a_step_launches_few_kernels(kind: str, most: int) -> None:
    method = built("ce", {}) if kind == "ce" else infonce(kind)
    if kind != "ce":
        method.fill(torch.arange(SAMPLES), *[Features(random(SAMPLES, CLASSES), random(SAMPLES, WIDTH))] * 2)
    stepped = stepping(method)
    stepped.begin(1)
    stepped(BATCH)
    with Launches() as launched:
        stepped(BATCH)
    assert launched.count <= most


@pytest.mark.parametrize("kind", KINDS)
def test_draws_before_the_epoch_are_those_of_the_steps(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_drawn, "_AT_ONCE", 1000)  # several goes
    method: Any = infonce(kind)
    anchors = torch.tensor([7, 0, 119, 41])
    for epoch, fresh in ((3, True), (4, True), (4, False)):  # the last is resumed within its epoch
        method.begin_epoch(epoch, fresh)
        rows, log_weights = method.drawn(anchors, torch.tensor(epoch))
        place = method.drawn.kept[0].data_ptr()
        expected, expected_weights = method._draw(anchors, torch.tensor(epoch))
        assert torch.equal(rows, expected.int())
        assert (log_weights is None) == (expected_weights is None)
        assert log_weights is None or torch.equal(log_weights, expected_weights)
    method.begin_epoch(5, True)
    assert method.drawn.kept[0].data_ptr() == place  # captured steps read it there


def test_a_large_gpu_draws_for_more_samples_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for memory, numbers in ((8 << 30, 1 << 24), (128 << 30, (128 << 30) // 1600)):
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda device, m=memory: SimpleNamespace(total_memory=m)
        )
        assert _drawn._at_once(torch.device("cuda")) == numbers
    assert _drawn._at_once(torch.device("cpu")) == 1 << 24


def test_draws_that_are_too_many_to_keep_are_made_in_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, fresh = infonce("uniform-corrected"), infonce("uniform-corrected")
    kept.load_state_dict(fresh.state_dict())
    kept.begin_epoch(2, True)
    monkeypatch.setattr(_drawn, "_MOST_BYTES", 4 * 2 * 5 * SAMPLES - 1)
    fresh.begin_epoch(2, True)
    assert kept.drawn.kept is not None and fresh.drawn.kept is None
    index = torch.arange(BATCH)
    batch = Batch(torch.zeros(BATCH, 0), LABELS[index], index, index, torch.tensor(2), BATCH)
    seen = Given()(batch.images), Teacher()(batch)
    assert torch.equal(kept(batch, *seen)["infonce"], fresh(batch, *seen)["infonce"])


def test_draws_are_kept_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each student of a pack keeps its own, and what the first epoch found is what its captured steps go by."""
    method: Any = infonce("uniform")
    other: Any = infonce("uniform")
    monkeypatch.setattr(room, "free", lambda device: 8 * 4 * 5 * SAMPLES - 1)
    method.begin_epoch(1, True)
    assert method.drawn.kept is None
    monkeypatch.setattr(room, "free", lambda device: 8 * 4 * 5 * SAMPLES)
    method.begin_epoch(2, True)
    assert method.drawn.kept is None
    other.begin_epoch(2, True)
    assert other.drawn.kept is not None


def test_labels_of_a_batch_may_be_unknown_though_all_were_known() -> None:
    method, index = built("ce", {}), torch.arange(4)
    labels, logits = torch.tensor([0, -1, 2, -1]), random(4, CLASSES)
    batch = Batch(torch.zeros(4, 0), labels, index, index, torch.tensor(1), 4)
    found = method(batch, Features(logits, random(4, WIDTH)), None)["ce"]
    torch.testing.assert_close(found, nn.functional.cross_entropy(logits[::2], labels[::2]))


@pytest.mark.parametrize(("arguments", "sentence"), [({"ce": 0.0}, "there is no loss"), ({}, r"losses \(ce\) depend")])
def test_losses_without_gradient_are_told(arguments: dict[str, float], sentence: str) -> None:
    stepped = stepping(built("ce", arguments))
    stepped.begin(1)
    stepped.members[0].student.logits.requires_grad_(False)
    with pytest.raises(InputError, match=f"Nothing can be learned: .*{sentence}"):
        stepped(BATCH)


def test_more_losses_than_a_step_tells_are_refused() -> None:
    """A buffer of fixed size holds their sums, since a captured step can ask for no other."""
    one = torch.ones((), requires_grad=True)
    assert len(step.training({str(number): one for number in range(step.MOST_LOSSES)})) == 15
    with pytest.raises(InputError, match="The method has 16 losses, and a step tells 15 at most; add some up"):
        step.training({str(number): one for number in range(16)})


@pytest.mark.parametrize(
    ("how", "method", "expected"),
    [
        ("no", "infonce", set()),
        ("network", "infonce", {"student", "after_step", "sums"}),
        ("network", "oim", {"student", "sums"}),  # its rows are updated one after the other
        ("all", "infonce", {"student", "after_step", "sums", "losses"}),
    ],
)
def test_what_is_compiled(how: str, method: str, expected: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "quicker", lambda part, compiled: "quick" if compiled else part)
    trained = built(method, {})
    optimizer = SGD(trained.parameters(), 0.05, 0.9, 5e-4, False)
    member = Member(Given(), trained, trained.forward, optimizer, compiled=how)
    assert {
        name for name in ("student", "after_step", "sums", "losses") if getattr(member, name) == "quick"
    } == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")  # the compiler's own
def test_kinds_of_negatives_share_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[int] = []

    def noted(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(1)
        return graph.forward

    def compiled(part: Any) -> Any:
        return torch.compile(part, dynamic=False, fullgraph=True, backend=noted)

    torch.compiler.reset()
    needed = []
    for kind in ("uniform", "class", "uniform-corrected", "instance", "mixed-corrected", "soft-20"):
        plain, quick = stepping(infonce(kind)), stepping(infonce(kind))
        quick.members[0].method.load_state_dict(plain.members[0].method.state_dict())
        member = quick.members[0]
        quick.view, member.losses = compiled(augment.view), compiled(member.losses)
        member.after_step, member.sums = compiled(member.method.after_step), compiled(step._sums)
        before = len(graphs)
        for each in (plain, quick):
            each.begin(1)
            each(BATCH)
        needed.append(len(graphs) - before)
        assert torch.equal(plain.members[0].totals, member.totals)
        for one, other in zip(plain.members[0].method.buffers(), member.method.buffers(), strict=True):
            assert torch.equal(one, other)
    assert needed == [4, 0, 1, 0, 0, 0]  # losses with log-weights are another graph


@pytest.mark.parametrize(("name", "shown"), [("ce", False), ("kld", False), ("at", True), ("ab", True)])
def test_a_compiled_student_shows_maps_only_to_methods_that_read_them(
    name: str, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unread, they would cost a step zeros of their size, as gradients, and adding them."""
    monkeypatch.setattr(step, "quicker", lambda part, compiled: part)
    network = models.build("resnet8", 10)
    shapes = Shapes.of(network(torch.zeros(1, 3, 16, 16), features=True))
    method = methods.build(name, Setting(LABELS, shapes, teacher=shapes))
    parameters = [*network.parameters(), *method.trained()]
    member = Member(network, method, method.forward, SGD(parameters, 0.1, 0.9, 0.0, False), compiled="network")
    seen = member.student(torch.zeros(2, 3, 16, 16), features=True)
    assert bool(seen.maps) == bool(seen.preacts) == shown
    assert [*member.student.parameters()] == [*network.parameters()]
