"""`scns neighbors` as a person uses it."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from scns.errors import InputError
from scns.neighbors import NeighborTable
from scns.sampling import UniformNegatives

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(90, 6)).astype(np.float32), np.arange(90) % 5
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    np.savez(tmp_path / "both.npz", x=x, y=y)
    np.save(tmp_path / "pictures.npy", rng.integers(0, 256, (90, 8, 8, 3), dtype=np.uint8))
    monkeypatch.chdir(tmp_path)
    return tmp_path


BUILD = ("neighbors", "build", "--embeddings", "x.npy", "--labels", "y.npy", "-k", 9, "--device", "cpu")


def test_build_info_check_sample(scns: Run, folder: Path) -> None:
    code, out, err = scns(*BUILD, "--out", "t.safetensors")
    assert code == 0 and "Wrote t.safetensors" in out and err == ""
    table = NeighborTable.load("t.safetensors")
    direct = NeighborTable.build(np.load("x.npy"), np.load("y.npy"), k=9)
    assert torch.equal(table.indices, direct.indices)
    code, out, _ = scns("neighbors", "info", "t.safetensors", "--scale", 5)
    assert code == 0 and "90 x 6 embeddings" in out and "effective negatives" in out
    assert scns("neighbors", "check", "t.safetensors", "--embeddings", "both.npz:x", "--labels", "both.npz:y")[0] == 0
    code, out, _ = scns("neighbors", "sample", "t.safetensors", "--anchors", "3,4", "--num", 6)
    assert code == 0 and len(re.findall(r"\d+", out)) == 14
    scns("neighbors", "sample", "t.safetensors", "--anchors", "3,4", "--num", 6, "--out", "n.npy")
    assert np.load("n.npy").shape == (2, 6)
    assert [int(word) for word in re.findall(r"\d+", out)][1:7] == np.load("n.npy")[0].tolist()


def test_a_warning_is_a_sentence(folder: Path) -> None:
    """Without the line of the source that warns."""
    np.save("x64.npy", np.load("x.npy").astype(np.float64))
    build = ["neighbors", "build", "--embeddings", "x64.npy", "-k", "9", "--out", "t.safetensors"]
    ran = subprocess.run([sys.executable, "-m", "scns", *build], capture_output=True, text=True, check=True)
    assert ran.stderr == "Embeddings are float64 and are cast to float32.\n"


def test_labels_too_large_to_keep_are_told(scns: Run, folder: Path) -> None:
    np.save("y.npy", np.where(np.arange(90) < 9, 2**64 - 1, 5).astype(np.uint64))  # as int64, the first would be -1
    code, _, err = scns(*BUILD, "--out", "t.safetensors")
    assert code == 2 and "must be below 2^63, but one is 18446744073709551615; number them from 0" in err
    with pytest.raises(InputError, match="Labels must be below 2"):
        UniformNegatives(np.load("y.npy"))
    np.save("y.npy", (np.arange(90) % 5).astype(np.uint64))
    assert scns(*BUILD, "--out", "t.safetensors")[0] == 0


def test_queries_before_their_passages(scns: Run, folder: Path) -> None:
    np.save("groups.npy", np.where(np.arange(90) < 20, 0, -1))
    build = (*BUILD, "--groups", "groups.npy", "--out", "t.safetensors")
    code, out, err = scns(*build, "--first", 20)
    assert code == 0 and "rows 0 to 19 of 90 x 6 embeddings" in out and err == ""
    table = NeighborTable.load("t.safetensors")
    assert table.indices.shape == (20, 9) and (table.indices >= 20).all()
    assert scns("neighbors", "sample", "t.safetensors", "--anchors", "3,19", "--num", 6)[0] == 0
    code, _, err = scns("neighbors", "sample", "t.safetensors", "--anchors", "20")
    assert code == 2 and "rows 0 to 19" in err
    for wrong, told in (((0,), "--first 0 must be from 1 to 90"), ((20, "--shard", "1/2"), "is built in one part")):
        code, _, err = scns(*build, "--first", *wrong)
        assert code == 2 and told in err


def test_filter(scns: Run, folder: Path) -> None:
    scns(*BUILD, "--out", "t.safetensors")
    code, out, err = scns(
        "neighbors", "filter", "t.safetensors", "--relative-margin", 0.05, "--skip", 1, "--out", "f.safetensors"
    )
    assert code == 0 and "Wrote f.safetensors" in out and "skip=1, relative_margin=0.05" in out and err == ""
    wanted = NeighborTable.load("t.safetensors").filtered(relative_margin=0.05, skip=1)
    assert torch.equal(NeighborTable.load("f.safetensors").indices, wanted.indices)
    assert (
        scns("neighbors", "filter", "f.safetensors", "--max-score", 0.5, "--out", "f.safetensors")[0] == 0
    )  # in place
    again = NeighborTable.load("f.safetensors")
    assert torch.equal(again.indices, wanted.filtered(max_score=0.5).indices) and again.info.filters.count(";") == 1


def test_shards_are_skipped_when_finished_and_merge(scns: Run, folder: Path) -> None:
    for part in ("1/2", "2/2"):
        assert scns(*BUILD, "--out", "t.safetensors", "--shard", part)[0] == 0
    before = (folder / "t-00001-of-00002.safetensors").stat().st_mtime_ns
    code, out, _ = scns(*BUILD, "--out", "t.safetensors", "--shard", "1/2")
    assert code == 0 and "finished already" in out
    assert (folder / "t-00001-of-00002.safetensors").stat().st_mtime_ns == before
    shards = sorted(folder.glob("t-*.safetensors"))
    assert scns("neighbors", "merge", *shards, "--out", "t.index.json")[0] == 0
    scns(*BUILD, "--out", "whole.safetensors")
    whole, merged = NeighborTable.load("whole.safetensors"), NeighborTable.load("t.index.json")
    assert torch.equal(whole.indices, merged.indices)
    np.save("g.npy", np.arange(len(np.load("y.npy"))) // 2)
    code, _, err = scns(*BUILD, "--groups", "g.npy", "--out", "t.safetensors", "--shard", "1/2")
    assert code == 2 and "shard of another table: it has groups_sha256 = none, not" in err
    np.save("x.npy", np.load("x.npy") + 1)
    code, _, err = scns(*BUILD, "--out", "t.safetensors", "--shard", "1/2")
    assert code == 2 and "shard of another table: it has embeddings_sha256" in err


def test_shards_that_looked_at_other_lists_are_no_table(scns: Run, folder: Path) -> None:
    near = (*BUILD, "--backend", "classes", "--out", "t.safetensors")
    assert scns(*near, "--probe", "1", "--shards", "2")[0] == 0
    assert scns(*near, "--probe", "1", "--shards", "2")[0] == 0  # goes on
    code, _, err = scns(*near, "--probe", "3", "--shards", "2")
    assert code == 2 and "shard of another table: it has probe = 1, not 3" in err
    assert scns(*near, "--probe", "3", "--shard", "1/2", "--out", "u.safetensors")[0] == 0
    shards = ("u-00001-of-00002.safetensors", "t-00002-of-00002.safetensors")
    code, _, err = scns("neighbors", "merge", *shards, "--out", "v.index.json")
    assert code == 2 and "probe = 1, but 'u-00001-of-00002.safetensors' has 3" in err


def test_files_of_another_byte_order_are_read(scns: Run, folder: Path) -> None:
    scns(*BUILD, "--out", "t.safetensors")
    for name in ("x", "y"):
        array = np.load(f"{name}.npy")
        np.save(f"{name}.npy", array.astype(array.dtype.newbyteorder(">")))
    assert scns("neighbors", "check", "t.safetensors", "--embeddings", "x.npy", "--labels", "y.npy")[0] == 0


def test_a_table_of_the_first_rows_has_a_gallery_of_all_pictures(scns: Run, folder: Path) -> None:
    scns(*BUILD, "--first", 10, "--out", "t.safetensors")
    code, _, err = scns("neighbors", "gallery", "t.safetensors", "--images", "pictures.npy", "--out", "g.html")
    assert (code, err) == (0, "") and (folder / "g.html").exists()
    np.save("ten.npy", np.load("pictures.npy")[:10])
    code, _, err = scns("neighbors", "gallery", "t.safetensors", "--images", "ten.npy", "--out", "h.html")
    assert code == 2 and "among 90 rows, but 'ten.npy' has 10 pictures" in err and not (folder / "h.html").exists()


def test_blank_lines_of_a_names_file_are_no_names(scns: Run, folder: Path) -> None:
    """Each would shift every caption after it."""
    scns(*BUILD, "--out", "t.safetensors")
    (folder / "names.txt").write_text("\nant\nbee\n\ncat\ndog\n elk \n")
    words = ("neighbors", "gallery", "t.safetensors", "--images", "pictures.npy", "--names", "names.txt")
    assert scns(*words, "--out", "g.html")[0] == 0
    page = (folder / "g.html").read_text()
    assert all(name in page for name in ("ant", "bee", "cat", "dog", "elk"))
    images = ("neighbors", "gallery", "t.safetensors", "--images", "cifar10-mini", "--names", "names.txt")
    code, _, err = scns(*images, "--out", "h.html")
    assert code == 2 and "'names.txt' holds 5 names, but cifar10-mini has 10 classes" in err


@pytest.mark.parametrize("exclude", ["self", "none"])
def test_a_table_of_one_class_is_drawn_from_where_the_class_is_not_left_out(
    scns: Run, folder: Path, exclude: str
) -> None:
    np.save("y.npy", np.zeros(90, dtype=np.int64))
    scns(*BUILD, "--exclude", exclude, "--out", "t.safetensors")
    code, out, err = scns("neighbors", "sample", "t.safetensors", "--anchors", "3", "--num", 4)
    assert (code, err) == (0, "") and len(re.findall(r"\d+", out)) == 5


def test_gallery_is_one_page_that_escapes_names(scns: Run, folder: Path) -> None:
    scns(*BUILD, "--out", "t.safetensors")
    Path("names.txt").write_text("cat\n<script>alert(1)</script>\na&b\nd\ne\n")
    arguments = ("--images", "pictures.npy", "--names", "names.txt", "--anchors", 4, "--num", 3, "--out", "g.html")
    code, out, _ = scns("neighbors", "gallery", "t.safetensors", *arguments)
    page = Path("g.html").read_text()
    assert code == 0 and "4 anchors" in out
    assert page.count("<section>") == 4 and page.count("<img ") == 4 * (1 + 3 * 3)
    assert "<script>" not in page and "http://" not in page and "https://" not in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*BUILD, "--out", "t.safetensors", "-k", 999), "k=999 is impossible.*1 to 72"),
        ((*BUILD, "--out", "t.safetensors", "--shard", "3"), "must be i/n"),
        ((*BUILD, "--out", "t.safetensors", "--shard", "3/2"), "Shard 3/2 does not exist"),
        ((*BUILD, "--out", "t.safetensors", "--backend", "exat"), "did you mean exact"),
        (("neighbors", "build", "--embeddings", "no.npy", "--out", "t.safetensors"), "'no.npy' does not exist"),
        (("neighbors", "build", "--embeddings", "both.npz", "--out", "t.safetensors"), "holds x, y; name one"),
        (("neighbors", "build", "--embeddings", "cut.npy", "--out", "t.safetensors"), "cut.npy' cannot be read"),
        ((*BUILD, "--out", "t.npy"), "'t.npy' must end in .safetensors"),
        ((*BUILD, "--out", "full.safetensors"), "Is a directory 'full.safetensors'"),  # before the search
        ((*BUILD, "--out", "x.npy/t.safetensors"), "'x.npy'"),
        ((*BUILD, "--out", "t.safetensors", "--exclude", "lable"), "did you mean label"),
        ((*BUILD[:-1], "cud", "--out", "t.safetensors"), "Unknown device 'cud'; use cpu or cuda"),
        (("neighbors", "build", "--embeddings", "full.safetensors", "--out", "t.safetensors"), "is a folder; give"),
        (("neighbors", "build", "--embeddings", "x.csv", "--out", "t.safetensors"), r"'.csv'; give .*numpy.save\("),
        (("neighbors", "build", "--embeddings", "text.npy", "--out", "t.safetensors"), "no array of numbers"),
        (
            (*BUILD, "--labels", "names.npy", "--out", "t.safetensors"),
            "'names.npy' holds <U3, not numbers; label names",
        ),
        (
            (*BUILD, "--labels", "column.npy", "--out", "t.safetensors"),
            "'column.npy' holds Python objects, not numbers; label names",
        ),
        (("neighbors", "info", "full.safetensors"), "is a folder; name the table's file"),
        (("neighbors", "gallery", "old.safetensors", "--images", "cifar11", "--out", "g.html"), "did you mean cifar10"),
        (("neighbors", "info", "no.safetensors"), "does not exist; build"),
        (("neighbors", "info", "x.npy"), "not a readable safetensors"),
        (("neighbors", "check", "old.safetensors"), "nothing to check"),
        (("neighbors", "sample", "old.safetensors", "--anchors", "90"), "Anchor 90 does not exist"),
        (("neighbors", "sample", "old.safetensors", "--anchors", "a"), "not row numbers"),
        (("neighbors", "merge", "old.safetensors", "--out", "t.json"), r"named \*.index.json"),
        (("neighbors", "gallery", "old.safetensors", "--images", "x.npy", "--out", "g.html"), "uint8"),
        (
            ("neighbors", "gallery", "old.safetensors", "--images", "pictures.npy", "--out", "g.html", "--anchors", 0),
            "at least 1",
        ),
        (
            ("neighbors", "gallery", "old.safetensors", "--images", "cifar10-mini", "--out", "g.html"),
            "90 rows.*2500.*its training images",
        ),
        (("neighbors", "sample", "old.safetensors", "--out", "n.txt"), "'n.txt' must end in .npy"),
        (("neighbors", "filter", "old.safetensors", "--out", "t.safetensors"), "nothing to filter by.*--max-score"),
        (("neighbors", "filter", "old.safetensors", "--skip", 9, "--out", "t.safetensors"), "skip=9 must be"),
        (("neighbors", "filter", "old.safetensors", "--skip", 1, "--out", "t.npy"), "must end in .safetensors"),
        (
            (
                "neighbors",
                "gallery",
                "old.safetensors",
                "--images",
                "pictures.npy",
                "--names",
                "latin.txt",
                "--out",
                "g",
            ),
            "'latin.txt' is not a text file in UTF-8",
        ),
        (
            ("neighbors", "filter", "old.safetensors", "--relative-margin", 95, "--out", "t.safetensors"),
            "relative_margin=95.0 is a share of the own class's score: 0.05 for 5 %",
        ),
        ((*BUILD, "--out", "t.safetensors", "--chunk-rows", -1), "chunk_rows=-1 must be"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_file(scns: Run, folder: Path, words: tuple, message: str) -> None:
    scns(*BUILD, "--out", "old.safetensors")
    (folder / "cut.npy").write_bytes((folder / "x.npy").read_bytes()[:200])
    (folder / "text.npy").write_text("hello")
    (folder / "x.csv").write_text("1,2\n")
    np.save(folder / "names.npy", np.array(["cat"] * 90))
    np.save(folder / "column.npy", np.array(["cat"] * 90, dtype=object))
    (folder / "latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    (folder / "full.safetensors").mkdir()
    before = sorted(path.name for path in folder.iterdir())
    code, out, err = scns(*words)
    assert code == 2 and out == "" and re.search(message, err), err
    assert err.startswith("scns: ") and err.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == before
