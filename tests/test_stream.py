"""Tables of embeddings that stay in a file: the bits of the table in memory, within the bytes that were given."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import ALONE
from gpu_bytes import simulated
from scns import budget, checks, room, search, stream
from scns.errors import InputError
from scns.memory import FeatureQueue, FeatureTable
from scns.neighbors import NeighborTable
from scns.source import Source

CPU = torch.device("cpu")


def same(one: NeighborTable, other: NeighborTable) -> bool:
    """The same bits and the same provenance."""
    pairs = [(one.indices, other.indices), (one.scores, other.scores)]
    for name in ("positive", "labels", "groups"):
        mine, yours = getattr(one, name), getattr(other, name)
        assert (mine is None) == (yours is None)
        pairs += [] if mine is None else [(mine, yours)]
    return one.info == other.info and all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings, labels (some missing) and groups."""
    generator = torch.Generator().manual_seed(0)
    rows = 2500
    x = torch.randn(rows, 19, generator=generator)
    return x, torch.randint(-1, 9, (rows,), generator=generator), torch.randint(-1, 90, (rows,), generator=generator)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(("exclude", "positive"), [("label", "max"), ("label", 0.9), ("self", "max"), (None, None)])
def test_streamed_is_in_memory(data: tuple[Tensor, ...], exclude: str, positive: Any, grouped: bool) -> None:
    x, labels, groups = data
    options = {"k": 30, "exclude": exclude, "positive": positive, "groups": groups if grouped else None}
    whole = NeighborTable.build(x, labels, **options)
    tight = budget.plan(len(x), 19, 30, "2M", "cpu", groups=grouped)
    assert tight.rows < len(x) and tight.columns < len(x) and tight.tile < tight.rows
    for memory in ("2M", "50M"):
        assert same(whole, NeighborTable.build(x, labels, memory=memory, **options))
    pieces = list(x.split([1, 700, 1799]))
    assert same(whole, NeighborTable.build(pieces, labels, memory="3M", **options))
    assert same(whole, NeighborTable.build(pieces, labels, **options))  # shards without a number of bytes: what is free


def test_without_labels_and_in_half_precision(data: tuple[Tensor, ...], tmp_path: Path) -> None:
    x = data[0].half().numpy()
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="c")
    assert same(NeighborTable.build(x, k=10), NeighborTable.build(mapped, k=10, memory="2M"))


def test_files_that_are_mapped_to_read_are_taken_without_a_word(data: tuple[Tensor, ...], tmp_path: Path) -> None:
    """Torch warns of arrays that cannot be written; warnings are errors here."""
    x, labels = data[0].numpy(), data[1].numpy()
    for name, array in {"x": x, "y": labels}.items():
        np.save(tmp_path / f"{name}.npy", array)
    torch.set_warn_always(True)  # not once a process
    try:
        mapped, marks = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy")
        assert same(NeighborTable.build(x, labels, k=10), NeighborTable.build(mapped, marks, k=10, memory="2M"))
    finally:
        torch.set_warn_always(False)


def test_more_ties_than_were_fetched() -> None:
    """Hundreds of equal products a row: whole rows are settled in float64, smaller row numbers first."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-1, 2, (1300, 3), generator=generator).float()
    x = x[(x != 0).any(1)]
    labels = torch.randint(0, 5, (len(x),), generator=generator)
    whole = NeighborTable.build(x, labels, k=20)
    assert same(whole, NeighborTable.build(x, labels, k=20, memory="1M"))
    unit = torch.nn.functional.normalize(x, dim=1).double()
    scores = ((unit @ unit.T) * 2.0**40).round()
    scores[labels[:, None] == labels] = -torch.inf
    assert torch.equal(whole.indices.long(), scores.sort(dim=1, descending=True, stable=True).indices[:, :20])


def test_scores_do_not_depend_on_chunks(data: tuple[Tensor, ...]) -> None:
    x, labels, _ = data
    tables = [NeighborTable.build(x, labels, k=40, chunk_rows=rows) for rows in (None, 1, 77)]
    assert same(tables[0], tables[1]) and same(tables[0], tables[2])
    unit = torch.nn.functional.normalize(x, dim=1).double()
    exact = (unit[:, None] * unit[tables[0].indices.long()]).sum(2)
    assert torch.equal(tables[0].scores, exact.half())  # the nearest float16, for all 100,000 of them


def test_a_source_reads_any_rows_of_any_pieces(data: tuple[Tensor, ...]) -> None:
    x = data[0]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))
    unit = torch.nn.functional.normalize(x, dim=1)[order]
    for pieces in ([x], list(x.split(333)), [x.double()]):
        source = Source(pieces, order, CPU)
        assert torch.equal(source[torch.tensor([5, 0, 5])], unit[[5, 0, 5]])
        for size in (1000, 2500, 9999):
            blocks = list((first, block.clone()) for first, block in source.blocks(size))
            assert [first for first, _ in blocks] == list(range(0, 2500, size))
            assert torch.equal(torch.cat([block for _, block in blocks]), unit)


PEAK = """
import json, sys, numpy as np, torch
from pathlib import Path
from scns.neighbors import NeighborTable
def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
x, labels = np.load(sys.argv[1], mmap_mode="c"), torch.arange(int(sys.argv[2])) % 50
small = dict(k=5, memory="20M")
NeighborTable.build(torch.randn(3000, x.shape[1]), torch.arange(3000) % 3, **small)  # libraries are loaded
Path("/proc/self/clear_refs").write_text("5")
before = peak()
table = NeighborTable.build(x, labels, k=50, memory=sys.argv[3], rows=range(int(sys.argv[4])))
print(json.dumps([peak() - before, table.info.rows]))
"""


def peak_of(folder: Path, count: int, dim: int, memory: str, rows: int) -> int:
    """How much a process grew while it built a table of `rows` of `count` rows of a mapped file."""
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((count, dim), dtype=np.float32))
    words = [sys.executable, "-c", PEAK, str(folder / "x.npy"), str(count), memory, str(rows)]
    done = subprocess.run(words, capture_output=True, text=True, env=ALONE)
    assert done.returncode == 0, done.stderr
    grown, found = json.loads(done.stdout)
    assert found == rows
    return grown


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells the largest memory")
def test_a_build_stays_within_its_memory(tmp_path: Path) -> None:
    """24 MB for 20,000 x 64 (5 MB), whose scores against 2,000 rows alone are 160 MB."""
    assert peak_of(tmp_path, 20_000, 64, "24M", 2000) < 24e6 + 20_000 * 64 * 4  # and the file's own pages


@pytest.mark.scale
def test_a_large_build_stays_within_its_memory(tmp_path: Path) -> None:
    assert peak_of(tmp_path, 100_000, 64, "200M", 20_000) < 200e6 + 100_000 * 64 * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "much"}, "memory=much is no number of bytes; write 512M"),
        ({"memory": 0}, "memory=0 is no number of bytes"),
        ({"memory": "1k"}, r"memory=1\.0 kB is too small for a table of 2,500 x 30 .* give at least 1\.1 MB\.$"),
        ({"memory": "300k"}, r"too small for a table .* give at least 1\.1 MB, or build it in 8 shards \(--shards 8\)"),
        ({"memory": "700k"}, r"is too small for one block of 16 rows and 1,024 columns of 19 numbers with k=30; give"),
        ({"memory": "1G", "backend": "classes"}, "Only backend='exact' searches in blocks, not 'classes'"),
        ({"memory": "1G", "k": 2500}, "k=2500 is impossible"),
        ({"memory": "1G", "rows": range(9, 2501)}, "rows=range"),
        ({"memory": "1G", "exclude": "labels"}, "did you mean label"),
    ],
)
def test_bad_input(data: tuple[Tensor, ...], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NeighborTable.build(data[0], data[1], **{"k": 30, **arguments})


def test_the_least_memory_that_is_named_is_enough(data: tuple[Tensor, ...]) -> None:
    told = ""
    for _ in range(3):
        try:
            NeighborTable.build(data[0], data[1], k=30, rows=range(20), memory=told.replace(" ", "") or "200k")
            return
        except InputError as error:
            told = str(error).split("at least ")[1].rstrip(".").split(",")[0]
    raise AssertionError(told)


def test_bad_pieces(data: tuple[Tensor, ...]) -> None:
    x = data[0]
    bad = x.clone()
    bad[2100] = torch.nan
    for given, message in [
        ([x, x[:, :5]], r"all of one dim, but these are \(2500, 19\), \(2500, 5\)"),
        ([x, x.long()], "floating point"),
        ([x[:0]], r"\[rows, dim\]"),
        ([], "at least one, but the list is empty"),
        (list(bad.split(1000)), "1 embeddings are NaN, infinite or too large .rows 2100"),
        ([x, x * 0], "2500 embeddings are all zero .rows 2500, 2501"),
    ]:
        with pytest.raises(InputError, match=message):
            NeighborTable.build(given, k=5, memory="1G")


def test_fingerprints_of_pieces_are_those_of_the_whole(data: tuple[Tensor, ...]) -> None:
    x = data[0]
    assert checks.fingerprint_of_pieces([x[:7], x[7:]]) == checks.fingerprint(x)
    NeighborTable.build(x, k=5).check(list(x.split(99)))


def test_bytes_are_told_before_they_are_allocated(data: tuple[Tensor, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels, _ = data
    table = NeighborTable.build(x, labels, k=30)
    held = sum(each.numel() * each.element_size() for each in (table.indices, table.scores, table.positive))  # type: ignore[union-attr]
    assert NeighborTable.bytes(2500, 30) == held == 455_000
    told: list[str] = []
    NeighborTable.build(x, labels, k=30, tell=told.append)
    NeighborTable.build(x, labels, k=30, memory="3M", tell=told.append)
    assert told[0] == "2,500 x 30 neighbours: 455.0 kB, searched in memory (67.5 MB, cpu)"
    assert told[1].startswith("2,500 x 30 neighbours: 455.0 kB, searched in 4 x ") and told[1].endswith("columns (cpu)")

    def no_table(*given: object, **more: object) -> None:
        raise AssertionError("it was allocated")

    monkeypatch.setattr(search, "exact", no_table)
    monkeypatch.setattr(search, "corpus", no_table)
    for free, message in [
        (10**6, r"takes 455\.0 kB and its search 67\.5 MB, but cpu has 1\.0 MB free; memory='500K'"),
        (50 * 10**6, r"but cpu has 50\.0 MB free; memory='25M' \(--memory\) searches it in blocks that fit"),
        (5 * 10**5, r"k=16 fits, or 4 shards with memory= \(--shards 4"),
    ]:
        monkeypatch.setattr(room, "free", lambda device, free=free: free)
        with pytest.raises(InputError, match=message):
            NeighborTable.build(x, labels, k=30)


def test_feature_tables_tell_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    table, queue = FeatureTable(70, 5), FeatureQueue(9, 5)
    for module, told in ((table, FeatureTable.bytes(70, 5)), (queue, FeatureQueue.bytes(9, 5))):
        held = sum(each.numel() * each.element_size() for each in module.buffers())
        assert told == held - (8 if module is queue else 0)  # the cursor
    monkeypatch.setattr("scns.memory._BLOCK", 12)
    assert torch.equal(FeatureTable(70, 5).features, table.features)
    monkeypatch.setattr(room, "free", lambda device: 10**9)
    with pytest.raises(
        InputError, match=r"100,000,000 x 128 takes 51\.3 GB, but cpu has 1\.0 GB free; dim=1 fits, or a Fea"
    ):
        FeatureTable(100_000_000, 128)
    with pytest.raises(InputError, match=r"FeatureQueue of the last 65,536 takes 34\.6 MB\."):
        FeatureTable(1_000_000_000, 128)
    with pytest.raises(InputError, match=r"A queue of 10,000,000 x 128 takes 5\.3 GB, .* size=946,969 fits"):
        FeatureQueue(10_000_000, 128)
    monkeypatch.setattr(room, "free", lambda device: 1000 if device == "cuda" else 10**9)
    monkeypatch.setattr(checks, "place", torch.device)  # as if there were one
    with pytest.raises(InputError, match=r"table of 70 x 5 takes 1\.5 kB, but cuda has 1\.0 kB free; dim=1"):
        FeatureTable(70, 5, device="cuda")


@pytest.mark.parametrize(
    ("text", "count"), [("1", 1), (17, 17), ("2K", 2000), ("1.5G", 1.5e9), ("8gb", 8e9), (" 3 M ", 3e6), ("1T", 1e12)]
)
def test_numbers_of_bytes(text: str, count: int) -> None:
    assert room.parse(text) == count


def test_bytes_in_words() -> None:
    assert [room.shown(n) for n in (0, 999, 1000, 51_200_000, 5e9, 2e15)] == [
        "0 bytes", "999 bytes", "1.0 kB", "51.2 MB", "5.0 GB", "2000.0 TB",
    ]  # fmt: skip
    assert 0 < room.free("cpu") < 1 << 62


class Rounded(search.Approximate):
    """The search of a GPU with its products on the CPU: of numbers that were rounded to bfloat16."""

    def __init__(self, columns: Tensor, k: int, space: Tensor | None = None) -> None:
        super().__init__(columns, k)
        self.space = columns.new_empty(0)

    def score(self, rows: Tensor) -> Tensor:
        scores = rows.bfloat16().float() @ self.half.float().T
        scores[:, len(self.columns) :] = -torch.inf
        return scores


@pytest.mark.parametrize("spread", [1.0, 0.003])
def test_half_precision_finds_the_same(
    data: tuple[Tensor, ...], spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where rows lie so close together that half precision settles none of them."""
    rows = 2500 if spread == 1 else 600
    x, labels = (data[0] * spread + (1 - spread) * data[0][:1])[:rows], data[1][:rows]
    whole = NeighborTable.build(x, labels, k=30, positive=None)
    corpus = search.corpus(x, labels, "label", None)
    some = torch.arange(100, 180)
    values, indices = search._rank(corpus, Rounded(corpus.unit, 30), some, 30)  # type: ignore[arg-type]
    here = corpus.order[some]
    assert torch.equal(indices.int(), whole.indices[here]) and torch.equal(values.half(), whole.scores[here])
    monkeypatch.setattr("scns.stream.Direct", Rounded)
    assert same(whole, NeighborTable.build(x, labels, k=30, positive=None, memory="2M"))


@pytest.mark.parametrize(
    ("rows", "dim", "k", "memory", "classes", "positive", "asked"),
    [
        (30_000, 24, 50, "100M", 20, "max", 4400),  # whole classes, whose products with themselves are 18 MB each
        (3000, 24, 10, "45M", 3, 0.9, 1400),
        (2000, 512, 10, "73M", 20, "max", 300),  # hardly the least memory
        (6000, 16, 20, "43M", 1500, None, 900),  # half precision settles no row
        (1_000_000, 2, 1, "60M", 2, 0.5, 1),  # the class of one row is too large
    ],
)
def test_a_gpu_holds_no_more_than_its_memory(
    rows: int, dim: int, k: int, memory: str, classes: int, positive: Any, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    x = torch.randn(rows, dim, generator=generator) + (10 if positive is None else 0)
    cut = budget.plan(rows, dim, k, memory, "cuda")
    data = search.corpus(x, labels, "label", None)
    some = data.order[:asked]  # class by class
    with simulated(monkeypatch) as gpu:
        found = stream.streamed(data, Source([x], data.order, "cuda"), some, k, cut, positive=positive)
    own = room.parse(memory) - stream.WORKSPACE["cuda"]
    assert own / 10 < gpu.peak <= own, f"{gpu.peak:,} bytes of {own:,}, the largest: {gpu.at_peak[:6]}"
    whole = search.exact(data, some, k, positive=positive)
    assert torch.equal(found.indices, whole.indices) and torch.equal(found.scores, whole.scores)
    assert positive is None or torch.equal(found.positive, whole.positive)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("memory", ["100M", "2G"])
def test_streamed_is_in_memory_on_a_gpu(memory: str) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 20, (30_000,), generator=generator)
    x = torch.randn(20, 24, generator=generator)[labels] + torch.randn(30_000, 24, generator=generator)
    whole = NeighborTable.build(x, labels, k=50, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    streamed = NeighborTable.build(x, labels, k=50, device="cuda", memory=memory)
    own = room.parse(memory) - stream.WORKSPACE["cuda"]  # that of products is there since the first search
    used = torch.cuda.max_memory_allocated() - before
    assert used <= own, (
        f"{used:,} bytes were used, {own:,} of memory={memory} are allowed; {before:,} were there before"
    )
    assert same(whole.to("cpu"), streamed)
    host = NeighborTable.build(x, labels, k=50)
    assert (host.indices == streamed.indices).float().mean() > 0.9999  # unit vectors differ in their last digit
