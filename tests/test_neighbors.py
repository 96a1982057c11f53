"""Neighbour tables: equal to a float64 brute force, however they are built, filtered, saved and cut in shards."""

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from scns import checks, neighbors, search
from scns.errors import InputError
from scns.neighbors import NeighborTable, merge
from scns.sampling import ClassNegatives, InstanceNegatives, UniformNegatives
from scns.soft import SoftNegatives
from scns.tableshards import shard_rows

GOLDEN = json.loads((Path(__file__).parent / "golden" / "paper.json").read_text())


def brute_force(x: Tensor, labels: Tensor | None, k: int, exclude: str | None) -> tuple[Tensor, Tensor]:
    """(scores, indices) in float64, by a stable sort of whole rows: ties go to the smaller index."""
    unit = F.normalize(x.double(), dim=1)
    scores = unit @ unit.T
    itself = torch.eye(len(x), dtype=torch.bool)
    if exclude == "label" and labels is not None:
        scores[((labels[:, None] == labels) & (labels[:, None] >= 0)) | itself] = -9
    elif exclude is not None:
        scores[itself] = -9
    best = scores.sort(dim=1, descending=True, stable=True)
    return best.values[:, :k], best.indices[:, :k]


def assert_same_neighbours(
    table: NeighborTable, x: Tensor, labels: Tensor | None, exclude: str | None = "label"
) -> None:
    """Equal to the brute force; where two scores agree to float32's last digits, either order is right."""
    scores, indices = brute_force(x, labels, table.info.k, exclude)
    unit = F.normalize(x.double(), dim=1)
    found = table.indices.long()
    other = found != indices
    chosen = (unit[:, None] * unit[found]).sum(2)
    assert other.float().mean() < 1e-3
    assert ((chosen - scores).abs()[other] < 2e-7).all()
    assert all(len(set(row)) == len(row) for row in found.tolist())
    assert (table.scores.double() - scores).abs().max() < 5e-4  # float16


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(400, 12, generator=generator), torch.randint(-1, 9, (400,), generator=generator)


@pytest.mark.parametrize("exclude", ["label", "self", None])
@pytest.mark.parametrize("chunk_rows", [None, 7, 64, 400])
def test_equals_brute_force_for_any_chunk(
    data: tuple[Tensor, Tensor], exclude: str | None, chunk_rows: int | None
) -> None:
    x, labels = data
    table = NeighborTable.build(x, labels, k=50, exclude=exclude, chunk_rows=chunk_rows)
    assert_same_neighbours(table, x, labels, exclude)
    assert torch.equal(table.indices, NeighborTable.build(x, labels, k=50, exclude=exclude).indices)


def test_does_not_depend_on_row_order(data: tuple[Tensor, Tensor]) -> None:
    x, labels = data
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    table, shuffled = NeighborTable.build(x, labels, k=30), NeighborTable.build(x[order], labels[order], k=30)
    assert torch.equal(order[shuffled.indices.long()], table.indices.long()[order])
    assert (shuffled.scores.float() - table.scores[order].float()).abs().max() < 5e-4  # the last digit of float16


@pytest.mark.parametrize("chunk_rows", [None, 11])
def test_ties_go_to_the_smaller_index(chunk_rows: int | None) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-1, 2, (300, 4), generator=generator).float()
    x = x[(x != 0).any(1)]
    labels = torch.randint(0, 5, (len(x),), generator=generator)
    table = NeighborTable.build(x, labels, k=20, chunk_rows=chunk_rows)
    assert torch.equal(table.indices.long(), brute_force(x, labels, 20, "label")[1])


def test_many_tiny_classes_and_every_kind_of_same_class_score() -> None:
    generator = torch.Generator().manual_seed(2)
    x, labels = torch.randn(200, 6, generator=generator), torch.randint(0, 90, (200,), generator=generator)
    unit = F.normalize(x.double(), dim=1)
    cosine = unit @ unit.T
    for positive in ("max", "mean", 0.9):
        table = NeighborTable.build(x, labels, k=10, positive=positive)
        assert_same_neighbours(table, x, labels)
        assert table.positive is not None
        for row in range(200):
            others = (labels == labels[row]).nonzero()[:, 0]
            own = cosine[row, others[others != row]]
            if len(own) == 0:
                assert table.positive[row] == -torch.inf
            else:
                want = {"max": own.max(), "mean": own.mean()}.get(str(positive), own.quantile(0.9))
                assert abs(float(table.positive[row]) - float(want)) < 1e-3


def test_groups_are_never_paired_and_short_rows_are_padded(data: tuple[Tensor, Tensor]) -> None:
    x, labels = data
    groups = torch.arange(400) // 100
    groups[350:] = -1
    table = NeighborTable.build(x, labels, k=300, exclude="self", groups=groups)
    row = table.indices[5].long()
    assert (groups[row[row >= 0]] != groups[5]).all()
    assert int((row >= 0).sum()) == 300 and table.info.short_rows == 0
    short = NeighborTable.build(x, labels, k=320, exclude="self", groups=groups)
    assert short.info.short_rows == 300 and int((short.indices[5] >= 0).sum()) == 300
    assert short.indices[5, 300] == -1 and short.scores[5, 300] == -torch.inf
    assert int((short.indices[399] >= 0).sum()) == 320


def test_class_table_of_the_paper() -> None:
    case = GOLDEN["class_scns"]
    table = NeighborTable.build(torch.tensor(case["inputs"]["embeddings"]), k=2)
    assert table.indices.tolist() == case["expected"]["topk_index"]
    assert np.allclose(table.scores.float(), case["expected"]["topk_cos"], atol=5e-4)
    assert table.info.exclude == "self"


def test_two_classes_duplicate_vectors_and_equal_cosines() -> None:
    assert NeighborTable.build(torch.eye(2) + 0.1, k=1).indices.tolist() == [[1], [0]]
    same = NeighborTable.build(torch.ones(4, 3), k=3)
    assert same.indices.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
    assert torch.allclose(same.scores.float(), torch.ones(4, 3), atol=1e-3)


@pytest.mark.parametrize(("backend", "probe"), [("classes", 4), ("faiss", 20)])
def test_approximate_backends_report_their_recall(backend: str, probe: int) -> None:
    if backend == "faiss":
        pytest.importorskip("faiss")
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 16, generator=generator)
    labels = torch.randint(0, 10, (2000,), generator=generator)
    x = centres[labels] + 0.7 * torch.randn(2000, 16, generator=generator)
    exact = NeighborTable.build(x, labels, k=20)
    table = NeighborTable.build(x, labels, k=20, backend=backend, probe=probe)
    everything = NeighborTable.build(x, labels, k=20, backend=backend, probe=2000)
    drawn = table.indices.long()
    assert ((labels[drawn] != labels[:, None]) | (drawn < 0)).all()
    assert table.info.short_rows == int((drawn[:, -1] < 0).sum())
    hits = sum(len(set(a) & set(b)) for a, b in zip(exact.indices.tolist(), table.indices.tolist(), strict=True))
    assert 0.3 < table.info.recall < 1
    assert abs(table.info.recall - hits / exact.indices.numel()) < 0.05
    assert everything.info.recall == 1 and torch.equal(everything.indices, exact.indices)
    assert table.positive is not None and exact.positive is not None and torch.equal(table.positive, exact.positive)


@pytest.mark.parametrize("backend", ["exact", "classes"])
def test_tables_do_not_depend_on_autocast(data: tuple[Tensor, Tensor], backend: str) -> None:
    x, labels = data[0], data[1].clamp(min=0)
    table = NeighborTable.build(x, labels, k=10, backend=backend)
    with torch.autocast("cpu", torch.float16):
        inside = NeighborTable.build(x, labels, k=10, backend=backend)
    assert torch.equal(inside.indices, table.indices) and torch.equal(inside.scores, table.scores)


def test_faiss_keeps_the_members_of_a_group_apart_and_no_others(data: tuple[Tensor, Tensor]) -> None:
    pytest.importorskip("faiss")
    x, labels = data
    groups = torch.full((len(x),), -1)
    groups[::20] = 3
    table = NeighborTable.build(x, labels, k=10, groups=groups, backend="faiss", probe=len(x))
    assert torch.equal(table.indices, NeighborTable.build(x, labels, k=10, groups=groups).indices)


def test_filters_cut_what_they_say(data: tuple[Tensor, Tensor]) -> None:
    x, labels = data
    table = NeighborTable.build(x, labels, k=40)
    scores, own = table.scores.float(), table.positive.float()[:, None]  # type: ignore[union-attr]
    for arguments, keep in [
        ({"max_score": 0.5}, scores <= 0.5),
        ({"min_score": 0.4}, scores >= 0.4),
        ({"absolute_margin": 0.1}, (scores <= own - 0.1) | own.isneginf()),
        ({"relative_margin": 0.05}, (scores <= own - own.abs() * 0.05) | own.isneginf()),
        ({"skip": 3, "max_score": 0.6}, (scores <= 0.6) & (torch.arange(40) >= 3)),
    ]:
        cut = table.filtered(**arguments)  # type: ignore[arg-type]
        for row in range(len(x)):
            kept = table.indices[row][keep[row]].tolist()
            assert cut.indices[row].tolist() == kept + [-1] * (40 - len(kept))
            assert cut.scores[row, : len(kept)].tolist() == table.scores[row][keep[row]].tolist()
        assert cut.info.short_rows == int((keep.sum(1) < 40).sum())
        assert all(name in cut.info.filters for name in arguments)


def test_relative_margin_is_safe_for_negative_scores() -> None:
    """p - |p| m, not p (1 - m): a margin must not let more through when the own class is dissimilar."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [-0.4, 1.0], [-1.0, -1.0]])
    table = NeighborTable.build(x, torch.tensor([0, 0, 1, 1]), k=2)
    own = float(table.positive[0])  # type: ignore[index]
    assert own < -0.9
    kept = table.filtered(relative_margin=0.5).indices[0]
    assert kept.tolist() == [-1, -1]


def test_refreshed_equals_a_new_table(data: tuple[Tensor, Tensor]) -> None:
    x, labels = data
    table = NeighborTable.build(x, labels, k=20)
    moved = x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    new, refreshed = NeighborTable.build(moved, labels, k=20), table.refreshed(moved)
    assert torch.equal(refreshed.indices, new.indices) and refreshed.info.generation == 1
    assert refreshed.info.embeddings_sha256 == new.info.embeddings_sha256
    some = torch.tensor([3, 17, 200])
    partly = table.refreshed(moved, rows=some)
    cut = table.filtered(skip=2)
    assert cut.refreshed(moved, rows=some).info.filters == "skip=2" and cut.refreshed(moved).info.filters == ""
    assert torch.equal(partly.indices[some], new.indices[some])
    rest = torch.ones(400, dtype=torch.bool)
    rest[some] = False
    assert torch.equal(partly.indices[rest], table.indices[rest])


@pytest.mark.parametrize("first", [0, 70])
@pytest.mark.parametrize("groups", [0, 3, 60])
@pytest.mark.parametrize("labels", ["pairs", "one large class", "classes", "unlabelled", "none"])
def test_excluded_columns_are_those_of_the_class_and_the_group(labels: str, groups: int, first: int) -> None:
    """However they are excluded: as slices, one by one, by a mask, or group by group."""
    draw = torch.Generator().manual_seed(groups)
    marks = {
        "pairs": torch.arange(300) % 150,
        "one large class": torch.where(torch.arange(300) < 140, 0, torch.arange(300)),
        "classes": torch.randint(-1, 5, (300,), generator=draw),
        "unlabelled": torch.full((300,), -1),
        "none": None,
    }[labels]
    kinds = torch.randint(-1, groups, (300,), generator=draw) if groups else None
    data = search.layout(300, marks, "label", kinds, torch.device("cpu"))
    block = torch.randperm(300, generator=draw)[:150].sort().values
    scores = torch.zeros(150, 200)  # the last columns stand for none where fewer are left
    search.exclude_columns(data, scores, block, first)
    rows, columns = data.order[block], data.order[first : first + 200]
    banned = rows[:, None] == columns
    if marks is not None:
        banned |= (marks[rows][:, None] == marks[columns]) & (marks[rows] >= 0)[:, None]
    if kinds is not None:
        banned |= (kinds[rows][:, None] == kinds[columns]) & (kinds[rows] >= 0)[:, None]
    assert torch.equal(scores.isneginf(), banned) and banned.any()


@pytest.mark.gpu
@pytest.mark.parametrize("groups", [0, 3, 60])
@pytest.mark.parametrize("labels", ["pairs", "one large class", "classes", "unlabelled"])
def test_a_gpu_finds_the_neighbours_that_a_cpu_finds(labels: str, groups: int) -> None:
    draw = torch.Generator().manual_seed(groups)
    x = torch.randn(3000, 16, generator=draw)
    place = torch.arange(3000)
    marks = {
        "pairs": place % 1500,
        "one large class": torch.where(place < 1400, 0, place),
        "classes": torch.randint(-1, 12, (3000,), generator=draw),
        "unlabelled": torch.full((3000,), -1),
    }[labels]
    kinds = torch.randint(-1, groups, (3000,), generator=draw) if groups else None
    here, there = (NeighborTable.build(x, marks, k=40, groups=kinds, device=each) for each in ("cpu", "cuda"))
    assert (here.indices != there.indices).float().mean() < 1e-4  # two scores that agree to float32's last digits
    assert (here.scores - there.scores).abs().max() < 2e-3


def test_queries_and_passages_in_one_table() -> None:
    """All queries in one group: their neighbours are the passages that are not theirs, their margin is to their own."""
    generator = torch.Generator().manual_seed(5)
    queries, passages = (F.normalize(torch.randn(n, 8, generator=generator), dim=1) for n in (30, 50))
    own = torch.arange(50) % 40  # the first ten queries have two passages, ten passages no query
    labels = torch.cat([torch.arange(30), own])
    groups = torch.cat([torch.zeros(30, dtype=torch.int64), torch.full((50,), -1)])
    table = NeighborTable.build(torch.cat([queries, passages]), labels, k=20, groups=groups)
    scores = queries @ passages.T
    theirs = torch.arange(30)[:, None] == own
    wanted = scores.masked_fill(theirs, -9).topk(20).indices + 30
    assert torch.equal(table.indices[:30].long(), wanted)
    best = scores.masked_fill(~theirs, -9).amax(1)
    assert table.positive is not None and (table.positive[:30].float() - best).abs().max() < 1e-3


@pytest.mark.parametrize("memory", [None, "1M"])
@pytest.mark.parametrize("positive", ["max", "mean", 0.9])
def test_the_own_class_is_without_the_own_group(positive: str | float, memory: str | None) -> None:
    """Four queries share each passage, and are all in one group: a query's positive is its passage, no other query."""
    generator = torch.Generator().manual_seed(6)
    unit = F.normalize(torch.randn(60, 8, generator=generator), dim=1)
    labels = torch.cat([torch.arange(40) // 4, torch.arange(20) % 10])  # two passages a label
    groups = torch.cat([torch.zeros(40, dtype=torch.int64), torch.full((20,), -1)])
    table = NeighborTable.build(unit, labels, k=15, groups=groups, rows=range(40), positive=positive, memory=memory)
    for row in range(40):
        own = (unit[row] @ unit[40:].T)[labels[40:] == labels[row]].double()
        want = {"max": own.max(), "mean": own.mean()}.get(str(positive), own.quantile(0.9))
        assert table.positive is not None and abs(float(table.positive[row]) - float(want)) < 1e-3
    alone = NeighborTable.build(unit, labels, k=15, groups=torch.where(groups < 0, 1, 0), positive=positive)
    assert alone.positive is not None and not alone.positive[:40].isneginf().any()
    alone = NeighborTable.build(unit[:40], labels[:40], k=15, exclude="label", groups=labels[:40], positive=positive)
    assert alone.positive is not None and alone.positive.isneginf().all()  # the whole class is the row's group


@pytest.mark.parametrize("group", [0, -1])
def test_faiss_finds_passages_behind_a_large_group_of_queries(group: int) -> None:
    """Queries are alike, so the nearest thousand rows are all queries: fetching k more than a class finds nothing."""
    pytest.importorskip("faiss")
    generator = torch.Generator().manual_seed(7)
    queries = torch.randn(1000, 8, generator=generator) / 4 + 2
    x = torch.cat([queries, torch.randn(1000, 8, generator=generator)])
    groups = torch.full((2000,), -1)
    groups[:1000] = 0
    groups[0] = group  # where one row asked is of no group, the others' are fetched and left out
    labels = torch.arange(2000) % 1000
    made = [
        NeighborTable.build(x, labels, k=5, groups=groups, rows=range(1000), backend=backend, **probe)
        for backend, probe in (("exact", {}), ("faiss", {"probe": 1000}))
    ]
    assert torch.equal(made[0].indices, made[1].indices) and made[1].info.recall == 1


@pytest.mark.parametrize(
    "groups", [torch.arange(2000) // 1000, torch.zeros(2000).long(), torch.arange(2000) // 3 % 600]
)
def test_faiss_leaves_out_groups_of_any_size(groups: Tensor) -> None:
    """Large ones in the search itself: as many more as they have would be half of all rows."""
    pytest.importorskip("faiss")
    x = torch.randn(2000, 8, generator=torch.Generator().manual_seed(8))
    made = [
        NeighborTable.build(x, k=5, exclude="self", groups=groups, backend=backend, **probe)
        for backend, probe in (("exact", {}), ("faiss", {"probe": 2000}))
    ]
    assert torch.equal(made[0].indices, made[1].indices)


def test_a_table_that_is_refreshed_in_part_does_not_say_that_it_is_of_the_new_embeddings(
    data: tuple[Tensor, Tensor],
) -> None:
    x, labels = data
    table = NeighborTable.build(x, labels.clamp(min=0), k=5, backend="classes", probe=1)
    other = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    part, whole = table.refreshed(other, rows=torch.tensor([3])), table.refreshed(other, rows=torch.arange(400))
    assert (part.info.backend, part.info.probe, part.info.recall) == ("classes", 1, table.info.recall)
    with pytest.raises(InputError, match="belongs to other embeddings: it was built from none"):
        part.check(other, labels.clamp(min=0))
    assert (whole.info.backend, whole.info.recall) == ("exact", 1.0)
    whole.check(other, labels.clamp(min=0))
    none = table.refreshed(other, rows=torch.tensor([], dtype=torch.int64))
    none.check(x, labels.clamp(min=0))


def test_the_quantile_of_the_own_class_is_kept_as_a_number(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    x, labels = data
    table = NeighborTable.build(x, labels, k=3, positive=torch.tensor(0.5))  # type: ignore[arg-type]
    table.save(tmp_path / "t.safetensors")
    again = NeighborTable.load(tmp_path / "t.safetensors").refreshed(x)
    assert again.positive is not None and torch.equal(again.positive, table.positive)  # type: ignore[arg-type]
    for wrong in (True, [0.5], 1.5):
        with pytest.raises(InputError, match="is not a quantile from 0 to 1, nor 'max'"):
            NeighborTable.build(x, labels, k=3, positive=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_blocks_do_not_depend_on_torch_s_default_type(data: tuple[Tensor, Tensor], dtype: torch.dtype) -> None:
    x, labels = data
    table = NeighborTable.build(x, labels, k=3, memory="1M")
    torch.set_default_dtype(dtype)
    try:
        assert torch.equal(NeighborTable.build(x, labels, k=3, memory="1M", chunk_rows=2.0).indices, table.indices)  # type: ignore[arg-type]
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_index_of_shards_that_is_not_there_is_told() -> None:
    with pytest.raises(InputError, match=r"'nope.index.json' does not exist; build a table"):
        NeighborTable.load("nope.index.json")


def test_describe(data: tuple[Tensor, Tensor]) -> None:
    table = NeighborTable.build(*data, k=40)
    told = table.filtered(max_score=0.4).describe(scale=5.0)
    assert told["rows"] == 400 and told["k"] == 40
    assert 0 < told["kept share"] < 1 and told["rows short of k"] > 0  # type: ignore[operator]
    assert 1 <= told["effective negatives"] <= 40  # type: ignore[operator]
    assert abs(table.describe(scale=0.0)["effective negatives"] - 40) < 1e-3  # type: ignore[operator]


def test_a_table_is_described_and_filtered_in_parts(
    data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapped table may be larger than memory: beside the result, nothing of its size is made."""
    table = NeighborTable.build(*data, k=40)
    monkeypatch.setattr(neighbors, "_SOME", 5000)
    cut, told = table.filtered(relative_margin=0.3, skip=1), table.describe(5.0)

    class Small(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            made = func(*args, **(kwargs or {}))
            assert not isinstance(made, Tensor) or made.numel() < 400 * 40 or made.dtype in (torch.int32, torch.float16)
            return made

    monkeypatch.setattr(neighbors, "_PART", 999)
    with Small():
        again, described = table.filtered(relative_margin=0.3, skip=1), table.describe(5.0)
    assert torch.equal(again.indices, cut.indices) and torch.equal(again.scores, cut.scores) and again.info == cut.info
    assert described == told


def test_quantiles_of_many_scores_are_not_those_of_the_nearest_alone(
    data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every 40th of scores in rows of 40 would be the best of each row."""
    table = NeighborTable.build(*data, k=40)
    exact = table.describe()["score quantiles"]
    monkeypatch.setattr(neighbors, "_SOME", 405)  # 16,000 // 405 + 1 = 40
    some = table.describe()["score quantiles"]
    assert some != exact and all(abs(some[q] - exact[q]) < 0.05 for q in exact)  # type: ignore[index, attr-defined]


def test_save_load_check(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    x, labels = data
    table = NeighborTable.build(x, labels, k=10, source="resnet8, pooled").filtered(skip=1)
    table.save(tmp_path / "t.safetensors")
    for mmap in (True, False):
        loaded = NeighborTable.load(tmp_path / "t.safetensors", mmap=mmap)
        assert loaded.info == table.info
        for name in ("indices", "scores", "positive", "labels"):
            assert torch.equal(getattr(loaded, name), getattr(table, name))
    loaded.check(x, labels)
    loaded.check(x.numpy(), labels.numpy())
    with pytest.raises(InputError, match=f"other embeddings.*{table.info.embeddings_sha256[:12]}.*build it again"):
        loaded.check(x + 1)
    with pytest.raises(InputError, match="other labels"):
        loaded.check(labels=labels.flip(0))
    assert [path.name for path in tmp_path.iterdir()] == ["t.safetensors"]


def test_an_interrupted_save_leaves_the_old_file(
    data: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = NeighborTable.build(*data, k=10)
    table.save(tmp_path / "t.safetensors")
    before = (tmp_path / "t.safetensors").read_bytes()

    def broken(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("scns.files.save_file", broken)
    with pytest.raises(OSError, match="No space left"):
        table.save(tmp_path / "t.safetensors")
    assert (tmp_path / "t.safetensors").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_truncated_and_foreign_files(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    table = NeighborTable.build(*data, k=10)
    path = tmp_path / "t.safetensors"
    table.save(path)
    whole = path.read_bytes()
    for part in (whole[:100], whole[: len(whole) // 2], b"", b"PK\x03\x04 something else"):
        path.write_bytes(part)
        with pytest.raises(InputError, match=r"t\.safetensors.*not a readable"):
            NeighborTable.load(path)
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(InputError, match="no neighbour table"):
        NeighborTable.load(path)


def changed(path: Path, change: dict[str, object]) -> None:
    """Write a table's file again with other tensors or other words about it; None leaves one out."""
    with safe_open(path, framework="pt") as file:
        tensors, words = {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata())  # noqa: SIM118
    for name, value in change.items():
        kind: dict[str, Any] = tensors if isinstance(value, Tensor) or name not in words else words
        kind.pop(name)
        if value is not None:
            kind[name] = value
    save_file(tensors, path, words)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rows": None}, "it does not tell rows"),
        ({"k": "ten"}, "its k is 'ten', no number"),
        ({"k": "9"}, r"its indices are torch.int32 \(400, 10\) instead of torch.int32 \(400, 9\)"),
        ({"corpus_rows": None}, "it tells of 400 rows from row 0 on, of 0"),
        ({"first_row": "7"}, "it tells of 400 rows from row 7 on, of 400"),
        ({"recall": "good"}, "its recall is 'good', no number"),
        ({"exclude": "lable"}, "its exclude is 'lable'"),
        ({"positive": "best"}, "its positive is 'best'"),
        ({"indices": None}, "it has no indices"),
        ({"labels": None}, "it has no labels"),
        ({"scores": torch.zeros(400, 10)}, "its scores are torch.float32"),
        ({"scores": torch.zeros(400, 5).half()}, r"its scores are torch.float16 \(400, 5\)"),
        ({"labels": torch.zeros(7, dtype=torch.int32)}, r"its labels are torch.int32 \(7,\)"),
    ],
)
def test_a_table_that_somebody_changed_is_told(
    data: tuple[Tensor, Tensor], tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    path = tmp_path / "t.safetensors"
    NeighborTable.build(*data, k=10).save(path)
    changed(path, change)
    with pytest.raises(
        InputError, match=rf"t\.safetensors' is a damaged neighbour table: {sentence}.*; build it again"
    ):
        NeighborTable.load(path)


@pytest.mark.parametrize(
    ("tensor", "value", "sentence"),
    [
        ("indices", 400, "is neighbour 400 with cosine 0"),
        ("indices", -2, "is neighbour -2"),
        ("indices", -1, "is neighbour -1 with cosine 0"),
        ("scores", torch.nan, r"is neighbour \d+ with cosine nan"),
        ("scores", -torch.inf, r"is neighbour \d+ with cosine -inf"),
    ],
)
def test_lists_that_somebody_changed_are_told_before_they_are_drawn_from(
    data: tuple[Tensor, Tensor], tmp_path: Path, tensor: str, value: float, sentence: str
) -> None:
    table, path = NeighborTable.build(*data, k=10), tmp_path / "t.safetensors"
    table.save(path)
    wrong = getattr(table, tensor).clone()
    wrong[3, 2] = value
    changed(path, {tensor: wrong})
    told = rf"Row 3 of the table is damaged: at place 2 {sentence}.* among 400 rows; build it again"
    labels = data[1].clamp(min=0)
    for use in (
        lambda table: table.describe(5.0),
        lambda table: table.filtered(min_score=-1.0),
        lambda table: InstanceNegatives(table, fallback=UniformNegatives(labels)),
        lambda table: InstanceNegatives(NeighborTable.build(*data, k=10)).refresh_(table),
        lambda table: ClassNegatives(table, torch.arange(400)),
    ):
        with pytest.raises(InputError, match=told):
            use(NeighborTable.load(path))


@pytest.mark.parametrize(
    "shards", ["t.safetensors", ["t.safetensors"], [{"rows": 3}], [{"file": "t.index.json"}], [{"file": 1}]]
)
def test_an_index_that_somebody_changed_is_told(tmp_path: Path, shards: object) -> None:
    path = tmp_path / "t.index.json"
    path.write_text(json.dumps({"format": "scns-neighbor-table", "shards": shards}))
    with pytest.raises(InputError, match="is not a shard index; write one with: scns neighbors merge"):
        NeighborTable.load(path)


def test_shards_make_the_same_table(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    x, labels = data
    whole = NeighborTable.build(x, labels, k=10)
    paths = []
    for shard in (1, 2, 3):
        part = NeighborTable.build(x, labels, k=10, rows=shard_rows(400, shard, 3))
        paths.append(tmp_path / f"t-{shard}.safetensors")
        part.save(paths[-1])
    merge([paths[2], paths[0], paths[1]], tmp_path / "t.index.json")
    table = NeighborTable.load(tmp_path / "t.index.json")
    assert torch.equal(table.indices, whole.indices) and torch.equal(table.scores, whole.scores)
    assert torch.equal(table.positive, whole.positive) and table.info.rows == 400  # type: ignore[arg-type]
    merge([tmp_path / "t.index.json"], tmp_path / "again.index.json")
    assert torch.equal(NeighborTable.load(tmp_path / "again.index.json").indices, whole.indices)
    with pytest.raises(InputError, match="Rows 133 to 265 are in no shard"):
        merge([paths[0], paths[2]], tmp_path / "u.index.json")
    with pytest.raises(InputError, match="Rows 266 to 399 are in no shard"):
        merge(paths[:2], tmp_path / "u.index.json")
    NeighborTable.build(x + 1, labels, k=10, rows=shard_rows(400, 2, 3)).save(tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="embeddings_sha256"):
        merge([paths[0], tmp_path / "other.safetensors", paths[2]], tmp_path / "u.index.json")
    middle = {"k": 10, "rows": shard_rows(400, 2, 3)}
    NeighborTable.build(x, labels, groups=torch.arange(400) // 2, **middle).save(tmp_path / "grouped.safetensors")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"groups_sha256 = \w+, but .*t-1\.safetensors' has none"):
        merge([paths[0], tmp_path / "grouped.safetensors", paths[2]], tmp_path / "u.index.json")
    NeighborTable.load(paths[1]).filtered(skip=1).save(tmp_path / "filtered.safetensors")
    with pytest.raises(InputError, match=r"filters = skip=1, but .* has none"):
        merge([paths[0], tmp_path / "filtered.safetensors", paths[2]], tmp_path / "u.index.json")
    paths[1].unlink()
    with pytest.raises(InputError, match=r"t-2\.safetensors.*missing"):
        NeighborTable.load(tmp_path / "t.index.json")
    assert not (tmp_path / "u.index.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x.index_fill(0, torch.tensor([3, 8]), torch.nan), y, {}), "2 embeddings are NaN.*rows 3, 8"),
        (lambda x, y: (x.index_fill(0, torch.tensor([5]), 0), y, {}), "1 embeddings are all zero.*rows 5"),
        (lambda x, y: (x * 1e-15, y, {}), "embeddings are shorter than 1e-12"),  # no unit vectors come of them
        (lambda x, y: (x, y[:-1], {}), "400 embeddings need 400 labels"),
        (lambda x, y: (x, torch.zeros(400, dtype=torch.int64), {}), "one label"),
        (lambda x, y: (x, y.clamp(min=0), {"k": 400}), r"k=400 is impossible.*from 1 to \d+"),
        (lambda x, y: (x, y, {"k": 0}), "k=0 is impossible"),
        (lambda x, y: (x, y, {"k": 2.5}), "k=2.5 is impossible.*whole number"),
        (lambda x, y: (x, y.float(), {}), r"labels must be integers.*\.long\(\) of a tensor, \.astype"),
        (lambda x, y: (x, y[:, None], {}), r"\(400, 1\); a row takes one of them: labels\[:, 0\]"),
        (lambda x, y: (x, y[:, None].expand(-1, 3), {}), r"\(400, 3\); a row takes one of them: labels.argmax\(1\)"),
        (lambda x, y: (x[:1], None, {"k": 1}), "One row alone has no neighbours"),
        (lambda x, y: (x, y - 5, {}), "-1 .none. or larger"),
        (lambda x, y: (x[0], y, {}), r"\[rows, dim\]"),
        (lambda x, y: (x.long(), y, {}), "floating point"),
        (lambda x, y: (x, y, {"exclude": "labels"}), "did you mean label"),
        (lambda x, y: (x, y, {"backend": "exakt"}), "did you mean exact"),
        (lambda x, y: (x, y, {"on_zero": "unifrom"}), "did you mean uniform"),
        (lambda x, y: (x, y, {"positive": 1.5}), "quantile"),
        (lambda x, y: (x, y, {"positive": 2}), "quantile"),
        (lambda x, y: (x, y, {"rows": range(3, 500)}), "rows=range"),
        (lambda x, y: (x, y, {"chunk_rows": -1}), "chunk_rows=-1 must be a whole number of at least 1"),
        (lambda x, y: (x, y, {"chunk_rows": 2.5}), "chunk_rows=2.5 must be"),
        (lambda x, y: (x, y, {"backend": "classes", "probe": 0}), "probe=0 must be a whole number of at least 1"),
        (lambda x, y: (x, y, {"backend": "classes"}), "label for every row"),
        (lambda x, y: (x, y, {"backend": "classes", "exclude": "self"}), "exclude='self' needs backend='exact'"),
        (lambda x, y: (x, y, {"backend": "classes", "exclude": None}), "exclude=None needs backend='exact'"),
    ],
)
def test_bad_input(data: tuple[Tensor, Tensor], change: object, message: str) -> None:
    x, labels, arguments = change(*data)  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        NeighborTable.build(x, labels, **{"k": 10, **arguments})


@pytest.mark.parametrize("memory", [None, "1M"])
def test_a_row_of_zeros_is_as_near_to_all(data: tuple[Tensor, Tensor], memory: str | None) -> None:
    """Streamed or not; nobody else's neighbours change but where the zero row itself is one."""
    x, labels = data
    blank = x.index_fill(0, torch.tensor([5]), 0)
    table = NeighborTable.build(blank, labels, k=10, on_zero="uniform", memory=memory)
    others = (labels != labels[5]).nonzero()[:10, 0]
    assert torch.equal(table.indices[5].long(), others) and bool((table.scores[5] == 0).all())
    cosine = torch.nn.functional.normalize(blank, dim=1).double()
    row = cosine[17] @ cosine.T - 9.0 * ((labels == labels[17]) & (labels >= 0)).double()
    row[17] = -9.0
    assert table.indices[17].tolist() == row.topk(10).indices.tolist()
    table.check(blank, labels)


def test_bad_filters(data: tuple[Tensor, Tensor]) -> None:
    table = NeighborTable.build(*data, k=10)
    with pytest.raises(InputError, match="skip=10"):
        table.filtered(skip=10)
    with pytest.raises(InputError, match="max_score=nan"):
        table.filtered(max_score=float("nan"))
    with pytest.raises(InputError, match="scale=inf"):
        table.describe(float("inf"))
    with pytest.raises(InputError, match="absolute_margin=-1"):
        table.filtered(absolute_margin=-1)
    with pytest.raises(InputError, match="needs same-class scores"):
        NeighborTable.build(data[0], k=10).filtered(relative_margin=0.1)
    with pytest.raises(InputError, match="labels, exclude='label' and"):
        NeighborTable.build(*data, k=10, exclude="self").filtered(relative_margin=0.1)
    with pytest.raises(InputError, match="relative_margin=5 is a share"):  # which would leave nothing
        table.filtered(relative_margin=5)
    with pytest.raises(InputError, match="among 400 rows cannot be refreshed from 3"):
        table.refreshed(data[0][:3])


class Sparse:
    """As scipy has them."""

    def toarray(self) -> np.ndarray:
        return np.eye(4)


@pytest.mark.parametrize(("given", "remedy"), [(torch.eye(4).to_sparse(), "to_dense"), (Sparse(), "toarray")])
def test_sparse_embeddings_are_told(given: object, remedy: str) -> None:
    for make in (lambda: NeighborTable.build(given, k=1), lambda: SoftNegatives(given, range(4), scale=5)):
        with pytest.raises(InputError, match=rf"dense, but these are sparse; convert them: \.{remedy}\(\)"):
            make()


def test_float64_is_cast_and_warned_about_once(data: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_warned_float64", False)
    x, labels = data
    with pytest.warns(UserWarning, match="float64 and are cast"):
        table = NeighborTable.build(x.double().numpy(), labels.numpy(), k=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        NeighborTable.build(x.double(), labels, k=5)
    assert torch.equal(table.indices, NeighborTable.build(x, labels, k=5).indices)


def test_labels_and_k_of_other_types() -> None:
    x, labels = torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 3
    wanted = NeighborTable.build(x, labels, k=2).indices
    assert torch.equal(NeighborTable.build(x, labels.numpy().astype(np.uint16), k=2.0).indices, wanted)  # type: ignore[arg-type]
    for k in ("2", None, float("nan")):
        with pytest.raises(InputError, match=r"k=.* is impossible"):
            NeighborTable.build(x, labels, k=k)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"stack single vectors with torch.stack"):
        NeighborTable.build(list(x), labels, k=2)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (torch.tensor([-1]), "0 to 59, but one is -1"),
        (torch.tensor([60]), "but one is 60"),
        (torch.arange(60) < 3, r"torch.bool \(60,\); of a mask"),
        (torch.tensor([1.0]), "torch.float32"),
        (torch.tensor(1), r"int64 \(\)"),
    ],
)
def test_rows_to_refresh_that_the_table_lacks_are_told(rows: Tensor, message: str) -> None:
    x, labels = torch.randn(60, 5), torch.arange(60) % 3
    table = NeighborTable.build(x, labels, k=4)
    with pytest.raises(InputError, match=message):
        table.refreshed(x, rows)


def test_rows_to_refresh_are_a_list_too() -> None:
    x, labels = torch.randn(60, 5, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3
    table, other = NeighborTable.build(x, labels, k=4), x.flip(0)
    expected = table.refreshed(other, torch.tensor([1, 7])).indices
    for rows in ([1, 7], np.array([1, 7]), range(1, 8, 6)):
        assert torch.equal(table.refreshed(other, rows).indices, expected)  # type: ignore[arg-type]
    assert torch.equal(table.refreshed(other, []).indices, table.indices)  # type: ignore[arg-type]


def test_marks_beyond_int32_are_told() -> None:
    """They are kept as int32, where 2^32 would be 0."""
    x, labels = torch.randn(60, 5), torch.arange(60) % 3
    far = torch.where(labels == 1, 1 << 32, labels)
    for memory in (None, "1G"):
        with pytest.raises(InputError, match=r"labels are kept as int32, but one is 4294967296; .*numpy.unique"):
            NeighborTable.build(x, far, k=4, memory=memory)
        with pytest.raises(InputError, match="groups are kept as int32"):
            NeighborTable.build(x, labels, k=4, groups=far, memory=memory)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_score": "0.9"}, "max_score='0.9'"),
        ({"absolute_margin": "0.1"}, "absolute_margin='0.1'"),
        ({"skip": 1.5}, "skip=1.5 must be a whole number"),
        ({"skip": "1"}, "skip='1'"),
    ],
)
def test_filters_that_are_no_numbers_are_told(arguments: dict[str, object], message: str) -> None:
    table = NeighborTable.build(torch.randn(60, 5), torch.arange(60) % 3, k=4)
    with pytest.raises(InputError, match=message):
        table.filtered(**arguments)  # type: ignore[arg-type]
    assert torch.equal(table.filtered(skip=2.0).indices, table.filtered(skip=2).indices)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"rows": [1, 2]}, r"rows=\[1, 2\] is not a range"), ({"backend": None}, "Unknown backend 'None'")],
)
def test_choices_of_another_type_are_told(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NeighborTable.build(torch.randn(60, 5), torch.arange(60) % 3, k=4, **arguments)  # type: ignore[arg-type]
