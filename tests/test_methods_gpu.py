"""Every method on CUDA: a step never waits for the device, and a captured step does what the eager one does."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from method_steps import Case, detached, make
from scns import gathered, methods, projection
from scns.errors import InputError
from scns.features import Batch, Features
from scns.memory import FeatureTable
from scns.methods import Head, Method
from scns.recipe import Recipe
from scns.run import backends
from scns.soft import SoftNegatives

pytestmark = pytest.mark.gpu

STEPS = 3


@contextmanager
def no_waiting() -> Iterator[None]:
    """A synchronisation with the device is an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def on_device(case: Case, device: str) -> tuple[Method, Batch, Features, Features]:
    """The method, a batch and the features of both networks, as leaves."""
    batch = next(case.batches())
    ours, theirs = case.features(batch)

    def moved(features: Features) -> Features:
        maps, preacts = (tuple(x.to(device) for x in some) for some in (features.maps, features.preacts))
        return detached(Features(features.logits.to(device), features.embedding.to(device), maps, preacts))

    tensors = {name: getattr(batch, name).to(device) for name in ("images", "labels", "index", "view", "epoch")}
    return case.method.to(device), batch._replace(**tensors), moved(ours), moved(theirs)


def step(method: Method, batch: Batch, ours: Features, theirs: Features) -> list[Tensor]:
    """Losses of the main stage and of those before, gradients, and the update of tables and queues."""
    parts = [method(batch, ours, theirs), *(stage.losses(batch, ours, theirs) for stage in method.stages())]
    losses = [value for part in parts for value in part.values()]
    inputs = [ours.logits, ours.embedding, *ours.maps, *ours.preacts, *method.parameters()]
    gradients = torch.autograd.grad(torch.stack(losses).sum(), inputs, allow_unused=True)
    method.after_step(batch, ours, theirs)
    companions = []
    if method.companions:
        companions = [method.companion_index(batch.index[: batch.anchors], batch.epoch)]
    return [*losses, *(g for g in gradients if g is not None), *companions]


def close(first: Tensor, second: Tensor) -> bool:
    """Equal up to the order of additions, which atomics leave open."""
    first, second = first.double(), second.double()
    return bool((first - second).abs().max() <= 1e-4 * second.abs().max() + 1e-6)


@pytest.mark.parametrize("name", methods.names())
def test_a_captured_step_never_waits_and_equals_the_eager_one(name: str) -> None:
    method, batch, ours, theirs = on_device(make(name), "cuda")
    eager, captured = copy.deepcopy(method), copy.deepcopy(method)

    side = torch.cuda.Stream()  # of every step: autograd remembers the stream that it first saw a leaf on
    torch.cuda.synchronize()
    expected = []
    with torch.cuda.stream(side):
        for _ in range(3):  # libraries make their workspaces before the capture
            step(captured, batch, ours, theirs)
        captured.load_state_dict(method.state_dict())
        with no_waiting():
            for epoch in range(STEPS):
                batch.epoch.fill_(epoch)
                expected.append([x.detach() for x in step(eager, batch, ours, theirs)])
    torch.cuda.synchronize()

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        told = step(captured, batch, ours, theirs)
    for epoch in range(STEPS):
        batch.epoch.fill_(epoch)
        graph.replay()
        assert all(close(a, b) for a, b in zip(told, expected[epoch], strict=True)), epoch
    for key, value in eager.state_dict().items():
        assert close(captured.state_dict()[key], value), key


@pytest.mark.parametrize("name", methods.names())
def test_deterministic_steps_have_the_same_bits(name: str) -> None:
    method, batch, ours, theirs = on_device(make(name), "cuda")
    with backends([Recipe(device="cuda", deterministic=True)]):
        told = []
        for _ in range(3):
            copied = copy.deepcopy(method)
            told.append([x.detach() for x in step(copied, batch, ours, theirs)] + [*copied.state_dict().values()])
    assert all(torch.equal(a, b) for other in told[1:] for a, b in zip(told[0], other, strict=True))
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("count", [1, 17, 1001])
@pytest.mark.parametrize("weighted", [True, False])
def test_info_nce_of_gathered_rows_equals_float64(symmetric: bool, count: int, weighted: bool) -> None:
    """The kernel, compiled; tests/test_kernels.py has its every index and mask."""
    generator = torch.Generator().manual_seed(0)
    sides = 2 if symmetric else 1
    tables = [FeatureTable(3000, 128, seed=seed) for seed in range(sides)]
    anchors = [F.normalize(torch.randn(64, 128, generator=generator), dim=1) for _ in range(sides)]
    rows = torch.randint(3000, (64, count), generator=generator)
    log_weights = F.pad(torch.randn(64, count - 1, generator=generator), (1, 0)) if weighted else None
    wanted, by_anchors = [], []
    for z, table in zip(anchors, tables, strict=True):
        z = z.double().requires_grad_()
        scores = torch.einsum("bd,bmd->bm", z, table.features.double()[rows]) / 0.07
        losses = -F.log_softmax(scores if log_weights is None else scores + log_weights, dim=1)[:, 0]
        wanted.append(losses.detach())
        by_anchors.append(torch.autograd.grad(losses.mean(), z)[0])

    given = [(z.cuda().requires_grad_(), table.cuda().features) for z, table in zip(anchors, tables, strict=True)]
    assert gathered.fits(given, rows) and not gathered.fits(given, rows[1:])
    for of_rows in (rows, rows.int()):
        found = gathered.info_nce(given, of_rows.cuda(), None if log_weights is None else log_weights.cuda(), 0.07)
        gradients = torch.autograd.grad(found.mean(1).sum(), [z for z, _ in given])
        for one, other in zip([*found, *gradients], [*wanted, *by_anchors], strict=True):
            torch.testing.assert_close(one.cpu().double(), other, rtol=1e-5, atol=2e-5)


def test_info_nce_of_a_table_equals_the_cpus() -> None:
    generator = torch.Generator().manual_seed(0)
    table, z = FeatureTable(3000, 32), F.normalize(torch.randn(50, 32, generator=generator), dim=1)
    positives, negatives = (torch.randint(3000, size, generator=generator) for size in ((50,), (50, 99)))
    log_weights = torch.randn(50, 99, generator=generator)
    wanted = table.info_nce(z, positives, negatives, log_weights, temperature=0.2)
    found = table.cuda().info_nce(z.cuda(), positives.cuda(), negatives.cuda(), log_weights.cuda(), temperature=0.2)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)
    with pytest.raises(InputError, match="log_weights"):
        table.info_nce(z.cuda(), positives.cuda(), negatives.cuda(), log_weights[:, 1:].cuda())
    learnt = log_weights.cuda().requires_grad_()
    (gradient,) = torch.autograd.grad(table.info_nce(z.cuda(), positives.cuda(), negatives.cuda(), learnt), learnt)
    assert bool((gradient > 0).any())


def ends(sampler: SoftNegatives, anchors: Tensor) -> Tensor:
    return sampler._weighed(anchors, lambda found, _: (found,))[0]


def test_soft_negatives_are_drawn_as_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernels and by torch: the same integers, but for the last digit of exp where that decides a rounding."""
    generator = torch.Generator().manual_seed(0)
    embeddings, labels = torch.randn(5000, 32, generator=generator), torch.arange(5000) % 50
    sampler = SoftNegatives(embeddings, labels, scale=7.3).cuda()
    anchors = torch.arange(0, 5000, 7, device="cuda")
    found, drawn = ends(sampler, anchors).diff(dim=1), sampler.weights(anchors, 16, correct=True)
    monkeypatch.setattr("scns.has.TRITON", False)
    wanted, expected = ends(sampler, anchors).diff(dim=1), sampler.weights(anchors, 16, correct=True)
    assert int((found - wanted).abs().max()) <= 1 and (found == wanted).double().mean() > 0.999
    assert (drawn[0] == expected[0]).double().mean() > 0.999


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("batch", "width"), [(64, 64), (80, 640), (5, 20)])
def test_projection_to_unit_length_equals_float64(dtype: torch.dtype, batch: int, width: int) -> None:
    torch.manual_seed(0)
    head, x = Head(width, 128), torch.randn(batch, width).to(dtype)
    dz = torch.randn(batch, 128)
    exact, wide = copy.deepcopy(head).double(), x.double().requires_grad_()
    wanted = exact(wide)
    by_wanted = torch.autograd.grad(wanted, (wide, *exact.parameters()), dz.double())
    head, x = head.cuda(), x.cuda().requires_grad_()
    assert projection.fits(x, head.linear) and not projection.fits(x[:, 1:], head.linear)
    found = head(x)
    by_found = torch.autograd.grad(found, (x, *head.parameters()), dz.cuda())
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        by_found[0].cpu().double(), by_wanted[0], rtol=1e-2 if dtype != torch.float32 else 1e-4, atol=1e-4
    )
    for one, other in zip(by_found[1:], by_wanted[1:], strict=True):
        torch.testing.assert_close(one.cpu().double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("full", [False, True])
def test_a_head_writes_to_a_table_what_update_does(full: bool) -> None:
    torch.manual_seed(0)
    head, x, rows = Head(64, 128), torch.randn(80, 64), torch.randperm(500)[:80]
    table = FeatureTable(500, 128)
    table.filled[::2] = True
    if full:
        table.filled.fill_(True)
        table.look()
    there, moved = copy.deepcopy(table).cuda(), copy.deepcopy(head).cuda()
    assert there.full == full
    assert projection.fits(x.cuda(), moved.linear) and projection.moves(there.features, moved.linear)
    assert not projection.moves(there.features.T, moved.linear) and not projection.moves(table.features, moved.linear)
    head.write(table, rows, x)
    moved.write(there, rows.cuda(), x.cuda())
    torch.testing.assert_close(there.features.cpu(), table.features)
    assert torch.equal(there.filled.cpu(), table.filled)


def test_a_new_row_takes_its_feature_whole_however_late_some_of_its_threads_are() -> None:
    """A hundred thousand rows at once and products beside them: the processors have more to do than they can."""
    torch.manual_seed(0)
    count, square = 100_000, torch.randn(4096, 4096, device="cuda")
    head, x, rows = Head(64, 128).cuda(), torch.randn(count, 64, device="cuda"), torch.randperm(count, device="cuda")
    wanted, beside, product = head(x).detach(), torch.cuda.Stream(), torch.empty_like(square)
    for _ in range(5):
        table = FeatureTable(count, 128, device="cuda")
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(4):
                torch.mm(square, square, out=product)
        head.write(table, rows, x)
        torch.cuda.synchronize()
        torch.testing.assert_close(table.features[rows], wanted)
        assert table.filled.all()
