"""Feature tables and queues: the paper's update, exact wrap-around, a state that survives a reload to the bit."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scns import functional, memory
from scns.errors import InputError
from scns.memory import FeatureQueue, FeatureTable, Part

GOLDEN = json.loads((Path(__file__).parent / "golden" / "paper.json").read_text())["oim"]


def unit(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_update_of_the_paper() -> None:
    given, expected = GOLDEN["inputs"], GOLDEN["expected"]
    table = FeatureTable(5, 4, momentum=given["gamma"]).double()
    table.features.copy_(torch.tensor(given["V_rows"]))
    table.filled.fill_(True)
    table.update(torch.tensor([given["y"]]), torch.tensor([expected["z"]]).double())
    assert torch.allclose(
        table.features[given["y"]], torch.tensor(expected["v_y_after_update_normalised"]).double(), atol=1e-9
    )


def test_repeated_rows_are_updated_in_batch_order() -> None:
    table = FeatureTable(6, 8, momentum=0.7)
    rows, z = torch.tensor([2, 4, 2, 2, 0, 4]), unit(6, 8)
    want = table.features.clone()
    seen: set[int] = set()
    for row, new in zip(rows.tolist(), z, strict=True):
        want[row] = F.normalize(0.7 * want[row] + 0.3 * new, dim=0) if row in seen else new
        seen.add(row)
    table.update(rows, z)
    assert torch.allclose(table.features, want, atol=1e-6)
    assert table.filled.tolist() == [True, False, True, False, True, False]
    assert torch.allclose(table.features.norm(dim=1), torch.ones(6), atol=1e-6)


def test_distinct_rows_in_one_step_equal_one_by_one() -> None:
    one, other = FeatureTable(9, 8), FeatureTable(9, 8)
    for seed in range(3):
        rows, z = torch.randperm(9, generator=torch.Generator().manual_seed(seed))[:5], unit(5, 8, seed=seed)
        one.update(rows, z)
        other.update(rows, z, distinct=True)
    assert torch.allclose(one.features, other.features, atol=1e-6) and torch.equal(one.filled, other.filled)


@pytest.mark.gpu
@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_a_gpu_moves_rows_and_tells_logits_as_a_cpu(distinct: bool, known: bool) -> None:
    tables = FeatureTable(40, 8), FeatureTable(40, 8).to("cuda")
    for step in range(6):
        draw = torch.Generator().manual_seed(step)
        rows = torch.randperm(40, generator=draw)[:16] if distinct else torch.randint(0, 40, (16,), generator=draw)
        z = unit(16, 8, seed=step)
        z[step, 3] = torch.nan  # leaves its row as it was
        here, there = (z.to(table.features.device) for table in tables)
        for table, each in zip(tables, (here, there), strict=True):
            table.update(rows.to(each.device), each, distinct=distinct)
            if known:
                table.look()
    one, other = tables
    assert torch.equal(one.filled, other.filled.cpu()) and one.full == other.full
    assert torch.allclose(one.features, other.features.cpu(), atol=1e-6)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = other.logits(unit(5, 8, seed=9).cuda())
    assert found.dtype == torch.float32 and torch.allclose(found.cpu(), one.logits(unit(5, 8, seed=9)), atol=1e-5)


def test_momentum_limits() -> None:
    z = unit(1, 8)
    for momentum in (0.0, 1.0):
        table = FeatureTable(3, 8, momentum=momentum)
        table.update(torch.tensor([1]), z)
        assert torch.allclose(table.features[1], z[0], atol=1e-6)  # the first feature is taken whole
        table.update(torch.tensor([1]), -z)
        assert torch.allclose(table.features[1], -z[0] if momentum == 0 else z[0], atol=1e-6)


@pytest.mark.parametrize("count", [3, 40])  # gathered, and picked out of the whole product
def test_logits(count: int) -> None:
    table, z = FeatureTable(50, 8), unit(4, 8)
    rows = torch.randint(0, 50, (4, count), generator=torch.Generator().manual_seed(0))
    want = torch.einsum("bmd,bd->bm", table.features[rows], z)
    assert torch.allclose(table.logits(z, rows), want, atol=1e-6)
    assert torch.allclose(table.logits(z), z @ table.features.T, atol=1e-6)


def test_queue_keeps_the_latest_in_order_for_any_batch_size() -> None:
    queue, stream = FeatureQueue(10, 4), unit(37, 4)
    start = 0
    for size in (4, 3, 10, 7, 1, 9, 3):
        ids = torch.arange(start, start + size)
        queue.push(stream[ids], ids, ids % 3)
        start += size
    last = torch.arange(start - 10, start)
    order = queue.ids.argsort()
    assert torch.equal(queue.ids[order], last) and torch.equal(queue.labels[order], last % 3)
    assert torch.equal(queue.features[order], stream[last])
    assert int(queue.cursor) == start % 10


def test_queue_masks_empty_places_the_anchor_and_its_class() -> None:
    queue = FeatureQueue(6, 4)
    features = unit(4, 4)
    queue.push(features, torch.tensor([7, 8, 9, 10]), torch.tensor([0, 1, 1, -1]))
    logits = queue.logits(features[:2], torch.tensor([7, 10]), torch.tensor([1, -1]))
    assert logits.isneginf().tolist() == [
        [True, True, True, False, True, True],
        [False, False, False, True, True, True],
    ]
    assert torch.allclose(logits[1, :3], features[1] @ features[:3].T)


def test_state_survives_a_reload_to_the_last_bit() -> None:
    def loss(table: FeatureTable, queue: FeatureQueue) -> Tensor:
        z, ids, labels = unit(5, 8, seed=9), torch.arange(5), torch.arange(5) % 3
        mask = queue.mask(ids, labels)
        return functional.oim(z, labels, table.features, queue.features, queue_mask=mask)

    table, queue = FeatureTable(3, 8), FeatureQueue(11, 8)
    for seed in range(4):
        table.update(torch.tensor([seed % 3]), unit(1, 8, seed=seed))
        queue.push(unit(4, 8, seed=seed), torch.arange(4) + 10 * seed, torch.arange(4) % 3)
    again, requeued = FeatureTable(3, 8, seed=5), FeatureQueue(11, 8)
    again.load_state_dict(table.state_dict())
    requeued.load_state_dict(queue.state_dict())
    assert torch.equal(loss(table, queue), loss(again, requeued))
    for each, other in ((table, again), (queue, requeued)):
        for name, value in each.state_dict().items():
            assert torch.equal(value, other.state_dict()[name])
    z = unit(6, 8, seed=20)
    queue.push(z, torch.arange(6), torch.arange(6))
    requeued.push(z, torch.arange(6), torch.arange(6))
    assert torch.equal(queue.features, requeued.features)


def test_a_table_known_to_be_full_moves_as_before() -> None:
    asking, knowing = FeatureTable(6, 8, momentum=0.3), FeatureTable(6, 8, momentum=0.3)
    knowing.look()
    assert not knowing.full  # not yet
    for table in (asking, knowing):
        table.update(torch.arange(6), unit(6, 8, seed=1), distinct=True)
    knowing.look()
    assert knowing.full
    for table in (asking, knowing):
        table.update(torch.tensor([4, 1]), unit(2, 8, seed=2), distinct=True)
    assert torch.equal(asking.features, knowing.features)
    assert not torch.allclose(knowing.features[4], unit(2, 8, seed=2)[0])
    knowing.load_state_dict(FeatureTable(6, 8).state_dict())  # one that is not
    knowing.update(torch.tensor([4, 1]), unit(2, 8, seed=2), distinct=True)
    assert torch.allclose(knowing.features[4], unit(2, 8, seed=2)[0])


def test_updates_compile_to_one_static_graph() -> None:
    table, queue = FeatureTable(20, 8), FeatureQueue(10, 8)

    def step(rows: Tensor, z: Tensor) -> Tensor:
        logits = table.logits(z).sum() + queue.logits(z, rows, rows).nan_to_num(neginf=0.0).sum()
        table.update(rows, z, distinct=True)
        queue.push(z, rows, rows)
        return logits

    compiled = torch.compile(step, fullgraph=True, backend="eager")
    for seed in range(3):
        compiled(torch.arange(4) + seed, unit(4, 8, seed=seed))
    assert int(queue.cursor) == 2 and int(table.filled.sum()) == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FeatureQueue(3, 4).push(unit(4, 4), torch.arange(4), torch.arange(4)),
            "batch of 4 does not fit a queue of 3",
        ),
        (lambda: FeatureQueue(9, 4).push(unit(4, 5), torch.arange(4), torch.arange(4)), "queue of width 4"),
        (lambda: FeatureQueue(9, 4).push(unit(4, 4), torch.arange(3), torch.arange(4)), r"\(3,\) and \(4,\)"),
        (lambda: FeatureQueue(0, 4), "at least 1 place"),
        (lambda: FeatureTable(0, 4), "at least 1 row"),
        (lambda: FeatureTable(3, 4, momentum=1.5), "momentum=1.5"),
        (lambda: FeatureTable(3, 4).update(torch.arange(2), unit(2, 5)), "rows of width 4"),
        (lambda: FeatureTable(3, 4).logits(unit(2, 5)), r"takes z \[batch, 4\].* z \(2, 5\)"),
        (lambda: FeatureTable(3, 4).logits(unit(2, 4), torch.zeros(3, 1).long()), r"rows \(3, 1\)"),
        (lambda: FeatureQueue(3, 4).logits(unit(2, 5), torch.arange(2), torch.arange(2)), "width 4"),
    ],
)
def test_bad_input(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


def test_info_nce_of_rows_is_the_functions() -> None:
    table, z = FeatureTable(60, 8), F.normalize(torch.randn(5, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    positives, negatives = torch.arange(5), torch.arange(5, 40).view(5, 7)
    log_weights = torch.linspace(-2, 2, 35).view(5, 7)
    z.requires_grad_()
    found = table.info_nce(z, positives, negatives, log_weights, temperature=0.2)
    wanted = functional.info_nce(
        z, table.features[positives], table.features[negatives], log_weights=log_weights, temperature=0.2
    )
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(loss, z)[0] for loss in (found, wanted)))
    assert table.info_nce(z, positives, negatives) != found
    for wrong in (
        (z, positives[1:], negatives),
        (z, positives, negatives[1:]),
        (z, positives, negatives, log_weights[1:]),
    ):
        with pytest.raises(InputError):
            table.info_nce(*wrong)
    half = z.detach().bfloat16()
    assert torch.equal(table.info_nce(half, positives, negatives), table.info_nce(half.float(), positives, negatives))
    with pytest.raises(InputError, match="temperature"):
        table.info_nce(z, positives, negatives, temperature=0)


def test_logits_are_the_same_inside_autocast() -> None:
    table, queue, z, rows = FeatureTable(50, 8), FeatureQueue(6, 8), unit(4, 8), torch.arange(4)
    queue.push(unit(6, 8, seed=1), torch.arange(6) + 9, torch.arange(6))
    asked: list[Callable[[Tensor], Tensor]] = [
        table.logits,
        lambda z: table.logits(z, rows.expand(4, -1)),
        lambda z: queue.logits(z, rows, rows),
    ]
    for logits in asked:
        with torch.autocast("cpu", torch.bfloat16):
            inside = logits(z)
        assert torch.equal(inside, logits(z)) and logits(z.bfloat16()).dtype == torch.float32


def test_info_nce_is_the_same_inside_autocast() -> None:
    table, z, rows = FeatureTable(50, 16), unit(8, 16), torch.arange(8)
    for count in (3, 40):  # few rows are gathered, many picked out
        negatives = torch.randint(0, 50, (8, count), generator=torch.Generator().manual_seed(0))
        with torch.autocast("cpu", torch.float16):
            inside = table.info_nce(z, rows, negatives)
        assert torch.equal(inside, table.info_nce(z, rows, negatives))


def test_a_temperature_and_weights_can_be_learnt() -> None:
    temperature, log_weights = torch.tensor(0.1, requires_grad=True), torch.zeros(2, 3, requires_grad=True)
    FeatureTable(9, 4).info_nce(
        unit(2, 4), torch.arange(2), torch.ones(2, 3).long(), log_weights, temperature=temperature
    ).backward()
    for learnt in (temperature, log_weights):
        assert learnt.grad is not None and bool((learnt.grad != 0).any())


def test_numbers_and_rows_of_other_integers() -> None:
    table, same = FeatureTable(np.int64(5), np.int32(4)), FeatureTable(5, 4)
    table.update(torch.tensor([1, 1], dtype=torch.int32), unit(2, 4))
    same.update(torch.tensor([1, 1]), unit(2, 4))
    assert torch.equal(table.features, same.features)
    queue = FeatureQueue(3, 4)
    queue.push(unit(2, 4), torch.arange(2, dtype=torch.int32), torch.zeros(2, dtype=torch.uint8))
    assert queue.ids.tolist() == [0, 1, -1]


ROWS = torch.arange(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t: t.update(torch.tensor([-1, 0]), unit(2, 4)), "rows are rows 0 to 4 of this table, but one is -1"),
        (lambda t: t.update([0, 1], unit(2, 4)), "rows must be a tensor, but it is of type list"),
        (lambda t: t.update(ROWS.bool(), unit(2, 4)), r"torch.bool; of a mask, give mask.nonzero\(\)\[:, 0\]"),
        (
            lambda t: t.info_nce(unit(2, 4), ROWS[:, None, None], ROWS[:, None]),
            r"positives are rows \[2\] or \[2, p\], but these are \[2, 1, 1\]",
        ),
        (lambda t: t.info_nce(unit(2, 4), ROWS + 4, ROWS[:, None]), "positives are rows 0 to 4.*one is 5"),
        (lambda t: t.info_nce(unit(2, 4), ROWS, ROWS[:, None] - 1), "negatives are rows 0 to 4.*one is -1"),
        (lambda t: t.info_nce(unit(2, 4), ROWS, ROWS), r"negatives are rows \[2, m\], but these are \[2\]"),
        (lambda t: t.info_nce(unit(2, 4), ROWS, (ROWS, ROWS)), "negatives must be a tensor.*tuple"),
        (lambda t: FeatureTable("5", 4), "not '5' x 4"),
        (lambda t: FeatureTable(torch.arange(5), 4), r"not a tensor \[5\] x 4"),
        (lambda t: FeatureTable(5, 4, device="gpu"), "Unknown device 'gpu'"),
        (lambda t: FeatureTable(5, 4, momentum=None), "momentum=None"),
        (lambda t: FeatureQueue(9, 4).push(unit(2, 4), ROWS, ROWS[:, None]), r"\(2,\) and \(2, 1\)"),
        (lambda t: FeatureQueue(9, 4).push(unit(2, 4), ROWS, ROWS.float()), "must be integers.*float32"),
        (lambda t: FeatureQueue(9, 4).logits(unit(2, 4), ROWS[:1], ROWS[:1]), r"\(1,\) and \(1,\)"),
    ],
)
def test_rows_that_are_none_are_told(make: Callable[[FeatureTable], object], message: str) -> None:
    table = FeatureTable(5, 4)
    with pytest.raises(InputError, match=message):
        make(table)
    assert not table.filled.any()


def test_rows_that_are_not_in_the_table_are_told() -> None:
    table, z = FeatureTable(9, 4), unit(2, 4)
    for rows, message in (
        (torch.tensor([[-1], [2]]), "rows 0 to 8 of this table, but one is -1"),
        (torch.tensor([[1], [9]]), "but one is 9"),
        (torch.ones(2, 1), "int64 row numbers"),
        ([[1], [2]], "must be a tensor"),
    ):
        with pytest.raises(InputError, match=message):
            table.logits(z, rows)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=message):
            table.take(rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["logits", "update", "info_nce", "queue", "push"])
def test_features_that_are_whole_numbers_are_told(call: str) -> None:
    table, queue, rows, z = FeatureTable(9, 4), FeatureQueue(5, 4), torch.tensor([1, 2]), torch.ones(2, 4).long()
    calls = {
        "logits": lambda: table.logits(z),
        "update": lambda: table.update(rows, z),
        "info_nce": lambda: table.info_nce(z, rows, rows[:, None]),
        "queue": lambda: queue.logits(z, rows, rows),
        "push": lambda: queue.push(z, rows, rows),
    }
    with pytest.raises(InputError, match=r"floating point, but it is torch.int64; convert it with .float"):
        calls[call]()


def test_a_feature_without_a_number_does_not_enter_the_queue() -> None:
    queue = FeatureQueue(5, 4)
    with pytest.raises(InputError, match="numbers of samples, from 0, but one is -1"):
        queue.push(unit(2, 4), torch.tensor([3, -1]), torch.tensor([0, 1]))
    assert int(queue.cursor) == 0


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("distinct", [True, False])
def test_features_that_overflow_do_not_stay(bad: float, distinct: bool) -> None:
    """Half precision overflows now and then: loss scaling skips that step, and the next must find a memory to use."""
    table, queue, rows = FeatureTable(9, 4), FeatureQueue(5, 4), torch.arange(3)
    table.update(rows, unit(3, 4), distinct=distinct)
    before, z = table.features.clone(), unit(3, 4, seed=1)
    z[1] = bad
    table.update(rows, F.normalize(z, dim=1), distinct=distinct)
    assert torch.allclose(table.features[1], before[1]) and not torch.allclose(table.features[2], before[2])
    queue.push(F.normalize(z, dim=1), rows, rows)
    logits = queue.logits(unit(1, 4), rows[:1] + 5, rows[:1] + 5)
    assert logits.isfinite().tolist() == [[True, False, True, False, False]] and not logits.isnan().any()


@pytest.mark.parametrize("distinct", [True, False])
def test_features_that_overflow_leave_even_a_first_row_as_it_was(distinct: bool) -> None:
    """A row of zeros would be no unit vector, and without momentum a known one would be lost."""
    table = FeatureTable(3, 4, momentum=0.0)
    table.update(torch.tensor([0]), unit(1, 4))
    before, z = table.features.clone(), unit(2, 4, seed=1)
    z[:, 2] = torch.nan
    table.update(torch.tensor([0, 1]), z, distinct=distinct)
    assert torch.equal(table.features, before) and table.filled.tolist() == [True, False, False]
    table.update(torch.tensor([1]), -unit(1, 4))
    assert torch.allclose(table.features[1], -unit(1, 4)[0])  # its first is still taken whole


@pytest.mark.parametrize(("rows", "gathers"), [(330, True), (320, False)])
def test_few_rows_of_each_of_many_anchors_are_gathered(
    rows: int, gathers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows in all than the table has, but few of it for each anchor: a product with all would take longer."""
    table, asked, picked = FeatureTable(rows, 8), torch.randint(rows, (64, 10)), []
    z = F.normalize(torch.randn(64, 8), dim=1)
    whole = (z @ table.features.T).gather(1, asked)
    monkeypatch.setattr(Part, "picked", lambda self, *given: picked.append(given) or whole)
    assert torch.allclose(table.logits(z, asked), whole, atol=1e-6) and bool(picked) != gathers


def test_several_positives_are_picked_out_of_the_product_that_negatives_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathered, 64 positives of 256 anchors 1,280 wide are 84 MB a step: a fifth of its time."""
    table, z = FeatureTable(40, 8), unit(16, 8).requires_grad_()
    positives, negatives = torch.arange(16 * 3).view(16, 3) % 40, torch.arange(16 * 20).view(16, 20) % 40
    wanted = functional.info_nce(z, table.features[positives], table.features[negatives], temperature=0.2)
    asked: list[tuple[int, ...]] = []
    picked = Part.picked
    monkeypatch.setattr(Part, "picked", lambda self, *given: asked.append(given[2].shape) or picked(self, *given))
    monkeypatch.setattr(Part, "take", None)
    found = table.info_nce(z, positives, negatives, temperature=0.2)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(loss, z)[0] for loss in (found, wanted)))
    assert asked == [(16, 23)]


def test_rows_take_as_many_steps_as_the_most_frequent_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop over 256 rows takes 50 times as long; who forgets to promise it waits on a GPU alone."""
    table, moved = FeatureTable(9, 4), []
    monkeypatch.setattr(memory, "unit_rows", lambda rows: moved.append(len(rows)) or F.normalize(rows, dim=1))
    table.update(torch.arange(3), unit(3, 4))
    table.update(torch.tensor([1, 2, 1]), unit(3, 4))
    assert moved == [3, 2, 1]


class Made(TorchDispatchMode):
    """Counts the results of so many numbers that are not written in place."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.count = size, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        in_place = func.name().split(".")[0].endswith("_")
        self.count += isinstance(made, Tensor) and made.numel() == self.size and not in_place
        return made


def test_logits_of_a_queue_make_few_tensors_of_its_size() -> None:
    queue, labels = FeatureQueue(50, 4), torch.tensor([0, -1, 1])
    queue.push(unit(3, 4), torch.arange(3), labels)
    with Made(3 * 50) as made:
        found = queue.logits(unit(3, 4), torch.tensor([0, 1, 7]), labels)
    assert made.count <= 4  # the product, two comparisons and what is left out: 65,536 places of 256 anchors are 16 M
    assert (~found.isneginf())[:, :4].tolist() == [[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 0]]
