"""Work divided among ranks that meet in files: `torchrun -m scns embed` and `torchrun -m scns neighbors build`."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import ALONE
from engine_runs import root, teacher
from scns import ranks, runs
from scns.arrays import load_array, load_pieces
from scns.errors import InputError
from scns.neighbors import NeighborTable

Run = Callable[..., tuple[int, str, str]]
BUILD = ("neighbors", "build", "--labels", "y.npy", "-k", 9, "--device", "cpu", "--out", "t.safetensors")
STREAM = (*BUILD, "--embeddings", "x.npy", "--memory", "2M")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(900, 6)).astype(np.float32))
    np.save(tmp_path / "y.npy", np.arange(900) % 5)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def as_rank(patch: pytest.MonkeyPatch, rank: object, world: object) -> None:
    for name, value in {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank}.items():
        patch.setenv(name, str(value))


def equal(one: NeighborTable, other: NeighborTable) -> bool:
    names = ("indices", "scores", "positive", "labels")
    return one.info == other.info and all(torch.equal(getattr(one, n), getattr(other, n)) for n in names)


def test_ranks_build_shards_that_are_one_table(scns: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = NeighborTable.build(np.load("x.npy"), np.load("y.npy"), k=9)
    for rank in (2, 0, 1):
        as_rank(monkeypatch, rank, 3)
        code, out, err = scns(*STREAM)
        assert code == 0 and err == "" and f"Wrote t-0000{rank + 1}-of-00003.safetensors: rows {300 * rank} to" in out
        assert ("Wrote t.index.json: 900 rows in 3 shards." in out) == (rank == 1)  # the last to finish
        assert ("300 x 9 neighbours: 16.8 kB, searched in" in out) == (rank == 0)
    assert equal(NeighborTable.load("t.index.json"), whole)
    monkeypatch.delenv("RANK"), monkeypatch.delenv("WORLD_SIZE")
    code, out, _ = scns("neighbors", "merge", *sorted(folder.glob("t-*")), "--out", "one.safetensors")
    assert code == 0 and "900 rows of 3 shards" in out
    assert equal(NeighborTable.load("one.safetensors"), whole)


def test_a_restart_builds_what_is_missing_only(scns: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_rank(monkeypatch, 0, 2)  # two of four parts, then all ranks are gone
    assert scns(*STREAM, "--shards", 4)[0] == 0
    kept = {path: path.stat().st_mtime_ns for path in folder.glob("t-*")}
    assert sorted(path.name[:7] for path in kept) == ["t-00001", "t-00003"]
    as_rank(monkeypatch, 0, 1)
    code, out, _ = scns(*STREAM, "--shards", 4)
    assert code == 0 and out.count("is finished already.") == 2 and "Wrote t.index.json" in out
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    whole = NeighborTable.build(np.load("x.npy"), np.load("y.npy"), k=9)
    assert equal(NeighborTable.load("t.index.json"), whole)
    (folder / "t-00002-of-00004.safetensors").unlink()
    code, _, err = scns("neighbors", "info", "t.index.json")
    assert code == 2 and "names the shard 't-00002-of-00004.safetensors', which is missing; build it again" in err


def test_shards_of_another_table_are_refused(scns: Run, folder: Path) -> None:
    assert scns(*STREAM, "--shards", 3)[0] == 0
    for words, message in [
        (("-k", 8), "'t-00001-of-00003.safetensors' is a shard of another table: it has k = 9, not 8; remove it or"),
        (("--exclude", "self"), "it has exclude = label, not self"),
        (("--positive", "mean"), "it has positive = max, not mean"),
    ]:
        code, _, err = scns(*STREAM, "--shards", 3, *words)
        assert code == 2 and message in err, err
    np.save("x.npy", np.load("x.npy") + 1)
    code, _, err = scns(*STREAM, "--shards", 3)
    assert code == 2 and "is a shard of another table: it has embeddings_sha256 = " in err
    (folder / "t-00002-of-00003.safetensors").unlink()
    shards = [folder / f"t-0000{part}-of-00003.safetensors" for part in (1, 3)]
    code, _, err = scns("neighbors", "merge", *shards, "--out", "u.index.json")
    assert code == 2 and "Rows 300 to 599 are in no shard; build the missing one" in err
    assert scns(*STREAM, "--shard", "2/3")[0] == 0  # of the new embeddings
    code, _, err = scns("neighbors", "merge", *folder.glob("t-0*"), "--out", "u.index.json")
    assert code == 2 and "they are shards of different tables; leave one out or build it again" in err
    assert not (folder / "u.index.json").exists()
    code, _, err = scns("neighbors", "info", "t.index.json")  # one was replaced after the merge
    assert code == 2 and "shards of different tables" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*STREAM, "--shards", 2), "--shards 2 leaves some of the 4 ranks without work; give at least 4"),
        ((*STREAM, "--shards", 901), "900 rows cannot be cut in 901 shards"),
        ((*STREAM, "--memory", "70k"), "memory=70.0 kB is too small for a table of 225 x 9"),
        ((*STREAM, "--memory", "100k"), "too small for one block of 16 rows and 900 columns of 6 numbers with k=9"),
        ((*STREAM, "--memory", "lots"), "memory=lots is no number of bytes"),
        ((*STREAM, "--backend", "classes"), "Only backend='exact' searches in blocks"),
    ],
)
def test_bad_input(
    scns: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], message: str
) -> None:
    as_rank(monkeypatch, 1, 4)
    code, out, err = scns(*words)
    assert code == 2 and out == "" and message in err, err
    assert err.startswith("scns: ") and err.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == ["x.npy", "y.npy"]


def test_ranks_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, world in ((3, 3), (-1, 2), ("a", 2)):
        as_rank(monkeypatch, rank, world)
        with pytest.raises(InputError, match=f"RANK={rank} and WORLD_SIZE={world} are no rank of a world"):
            ranks.of_torchrun()
    as_rank(monkeypatch, 1, 3)
    assert ranks.shares(7) == [2, 5] and ranks.device("cpu") == "cpu" and ranks.device("cuda") == "cuda:0"


def test_embedding_shards_are_the_whole(scns: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "chunk_of", lambda *given: 25)
    run = ("embed", teacher(), "--device", "cpu")
    assert scns(*run, "--out", "x.npy", "--labels", "y.npy")[0] == 0
    for rank in (1, 0):
        as_rank(monkeypatch, rank, 2)
        code, out, err = scns(*run, "--out", "x.safetensors", "--labels", "z.npy")
        assert code == 0 and err == "" and ("x.index.json: 120 images in 2 shards" in out) == (rank == 0)
    assert [len(piece) for piece in load_pieces("x.index.json")] == [50, 70]
    assert torch.equal(load_array("x.index.json"), load_array("x.npy"))
    assert torch.equal(load_array("z.npy"), load_array("y.npy"))
    code, out, _ = scns(*run, "--out", "x.safetensors")
    assert code == 0 and "x-00001-of-00002.safetensors is finished already." in out
    for embeddings in ("x.index.json", "x.npy"):
        as_rank(monkeypatch, 0, 1)
        words = ("--labels", "y.npy", "-k", 5, "--device", "cpu", "--memory", "3M")
        assert (
            scns("neighbors", "build", "--embeddings", embeddings, *words, "--out", f"{embeddings}.safetensors")[0] == 0
        )
    assert equal(NeighborTable.load("x.index.json.safetensors"), NeighborTable.load("x.npy.safetensors"))
    assert scns("neighbors", "check", "x.npy.safetensors", "--embeddings", "x.index.json")[0] == 0


def test_bad_embedding_shards(scns: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "chunk_of", lambda *given: 50)
    run = ("embed", teacher(), "--device", "cpu")
    assert scns(*run, "--out", "x.safetensors", "--shards", 2)[0] == 0
    other = shutil.copytree(root(), tmp_path / "other")  # as many images of the same names
    first, *_, last = sorted((other / "train").rglob("*.png"))
    shutil.copy(last, first)
    for words, message in [
        (("--out", "x.npy", "--shards", 2), "'x.npy' must end in .safetensors for shards"),
        (("--out", "x.safetensors"), "'x.safetensors' must end in .npy; --shards N writes .safetensors"),
        (("--out", "x.safetensors", "--shards", 4), "120 images are 3 chunks of 50, too few for 4 shards"),
        (
            ("--out", "x.safetensors", "--shards", 2, "--split", "test"),
            "exists with split = train, but it is to be test",
        ),
        (("--out", "x.safetensors", "--shards", 2, "--labels", "y.npy", "--root", other), "exists with pixels ="),
    ]:
        code, out, err = scns(*run, *words)
        assert code == 2 and message in err and out == "", err
    assert not (tmp_path / "y.npy").exists()
    build = ("neighbors", "build", "--embeddings", "x.index.json", "-k", 3, "--out", "t.safetensors")
    second = tmp_path / "x-00002-of-00002.safetensors"
    content = second.read_bytes()
    for change, message in [
        (lambda: second.write_bytes(content[:-90]), "cannot be read .* cut short"),
        (
            lambda: second.write_bytes((tmp_path / "x-00001-of-00002.safetensors").read_bytes()),
            "50 rows, but .* says 70",
        ),
        (second.unlink, "names the shard 'x-00002-of-00002.safetensors', which is missing; embed it again"),
        (lambda: Path("x.index.json").write_text("{}"), "'x.index.json' is not an index of embeddings"),
    ]:
        change()
        code, _, err = scns(*build)
        assert code == 2 and re.search(message, err), err


@pytest.mark.scale
def test_torchrun(folder: Path) -> None:
    """The commands as they are typed, with two ranks; a shard lost, the same command builds that alone."""
    here = Path(sys.executable).parent
    start = [here / "torchrun", "--nproc-per-node", "2", "-m", "scns"]

    def run(*words: object) -> str:
        done = subprocess.run([*map(str, [*start, *words])], capture_output=True, text=True, env=ALONE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "Wrote t.index.json: 900 rows in 8 shards." in run(*STREAM, "--shards", 8)
    (folder / "t-00006-of-00008.safetensors").unlink()
    again = run(*STREAM, "--shards", 8)
    assert again.count("finished already") == 7 and "Wrote t-00006-of-00008.safetensors" in again
    whole = NeighborTable.build(np.load("x.npy"), np.load("y.npy"), k=9)
    assert equal(NeighborTable.load("t.index.json"), whole)
