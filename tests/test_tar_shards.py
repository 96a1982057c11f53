"""Tar shards: the images they were packed from, indexed once, and a sentence for everything that can be wrong."""

import io
import json
import os
import re
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from conftest import Ran
from engine_runs import root as folder
from scns import datasets
from scns.data import Images
from scns.datasets import _tar
from scns.datasets._pack import pack
from scns.errors import InputError

Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCNS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def images() -> Images:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (23, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.arange(23) * 7 % 4, ("ant", "bee", "cat", "dög"), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


@pytest.fixture
def root(tmp_path: Path, images: Images) -> Path:
    for split in ("train", "test"):
        pack(images, tmp_path / "shards", split, each=10)
    return tmp_path / "shards"


def png(size: int = 32) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (size, size), "red").save(content, "PNG")
    return content.getvalue()


def write(path: Path, **files: bytes) -> None:
    """A tar with files; `a_png` is a.png."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name.replace("__", "/").replace("_", "."))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_shards_hold_what_was_packed(root: Path, images: Images) -> None:
    assert sorted(path.name for path in (root / "train").iterdir()) == ["000000.tar", "000001.tar", "000002.tar"]
    found = datasets.load("shards", root)
    assert torch.equal(found.pixels, images.pixels) and torch.equal(found.labels, images.labels)
    assert found.names == images.names
    scaled = images.pixels.double() / 255
    assert torch.allclose(torch.tensor(found.mean).double(), scaled.mean((0, 2, 3)), atol=1e-6)
    test = datasets.load("shards", root, "test")
    assert test.mean == found.mean and torch.equal(test.pixels, images.pixels)


def test_shards_are_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = datasets.load("shards", root)

    def no_scan(path: Path) -> None:
        raise AssertionError(f"{path} was read again")

    with monkeypatch.context() as patch:
        patch.setattr(_tar, "_scan", no_scan)
        assert torch.equal(datasets.load("shards", root).pixels, first.pixels)
    os.utime(root / "train" / "000001.tar", ns=(1, 1))  # another file now
    monkeypatch.setattr(_tar, "_scan", no_scan)
    with pytest.raises(AssertionError, match="was read again"):
        datasets.load("shards", root)


def test_json_labels_folders_flat_names_and_sizes(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(
            tmp_path / f"{split}-000000.tar",
            x__a_png=png(64), x__a_json=b'{"label": 2, "text": "?"}', b_seg_txt=b"left alone", b_cls=b" 0\n",
            b_PNG=png(), y__a_json=b'{"cls": 1}', y__a_png=png(),
        )  # fmt: skip
    found = datasets.load("shards", tmp_path, size=16)
    assert found.labels.tolist() == [2, 0, 1] and found.names == ("0", "1", "2")
    assert found.pixels.shape == (3, 3, 16, 16) and found.pixels[:, 0].min() == 255


def test_labels_in_both_files_and_what_macos_adds(tmp_path: Path) -> None:
    files = {
        "a_png": png(), "a_cls": b"0", "a_json": b'{"label": 0, "width": 32}', "b_png": png(), "b_cls": b"1",
        "b_json": b'{"width": 32}', "c_png": png(), "c_json": b'{"label": 2.0}',
        "d_png": png(), "d_json": b'{"label": "2"}',
    }  # fmt: skip
    for split in ("train", "test"):
        write(tmp_path / split / "0.tar", **files)
        with tarfile.open(tmp_path / split / "0.tar", "a") as archive:
            archive.addfile(tarfile.TarInfo("._a.png"), io.BytesIO())
    assert datasets.load("shards", tmp_path).labels.tolist() == [0, 1, 2, 2]


def test_members_of_any_name_are_read_twice(tmp_path: Path) -> None:
    """Also from the index that the first look leaves, where a line break ended a name."""
    for split in ("train", "test"):
        write(tmp_path / split / "0.tar", **{"a\nb_png": png(), "a\nb_cls": b"0", "c_png": png(), "c_cls": b"1"})
    assert [datasets.load("shards", tmp_path).labels.tolist() for _ in range(2)] == [[0, 1]] * 2


@pytest.mark.parametrize("name", ["two\nlines", "no unicode \udcff", "a\rb", "a ", "", "\ufeffa"])
def test_a_class_that_cannot_stand_on_a_line_is_not_packed(name: str, images: Images, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot stand in a text file, a name a line; rename it"):
        pack(replace(images, names=(name, *images.names[1:])), tmp_path / "out", "train")
    assert not (tmp_path / "out").exists()


def test_a_corrupt_image_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / split / "0.tar", a_png=png(), a_cls=b"0", b_png=png()[:60], b_cls=b"1")
    with pytest.raises(InputError, match=r"1 of 2 images is corrupt \('.*0\.tar:b\.png'\); replace or remove them"):
        datasets.load("shards", tmp_path)
    with pytest.warns(UserWarning, match="corrupt"):
        assert datasets.load("shards", tmp_path, skip_bad=True).labels.tolist() == [0]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.4, 0.5, 0.77, 1.0])
def test_a_truncated_tar_is_named(root: Path, share: float) -> None:
    path = root / "train" / "000001.tar"
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0")) // 512 * 512 + 512  # of the last file: what follows are the zeros that end a tar
    path.write_bytes(whole[: int(share * end)])
    with pytest.raises(InputError, match=r"000001\.tar' is cut short or no plain tar \(.*\); fetch it again"):
        datasets.load("shards", root)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a_png": b"x", "a_cls": b"1", "b_png": b"x"}, r"^'b' in '.*0\.tar' has no label: add b\.cls, or leave"),
        ({"a_png": b"x", "a_cls": b"1", "b_cls": b"1"}, r"^'b' in '.*0\.tar' has no image: add b\.jpg, or leave"),
        ({"a_png": b"x", "a_cls": b"one"}, r"^'a\.cls' in '.*0\.tar' holds no label, a whole number; write"),
        ({"a_png": b"x", "a_json": b'{"name": 1}'}, r"^'a\.json' in '.*' holds no label"),
        ({"a_png": b"x", "a_json": b"[1]"}, r"^'a\.json' in '.*' holds no label"),
        ({"a_png": b"x", "a_json": b'{"label": 3.7}'}, r"^'a\.json' in '.*' holds no label"),
        ({"a_png": b"x", "a_json": b'{"label": true}'}, r"^'a\.json' in '.*' holds no label"),
        ({"a_png": b"x", "a_json": b'{"label": Infinity}'}, r"^'a\.json' in '.*' holds no label"),
        ({"a_png": b"x", "a_webp": b"x", "a_cls": b"1"}, r"^'a' comes twice in '.*0\.tar'; give every sample"),
        (
            {"a_png": b"x", "a_json": b'{"cls": 0}', "a_cls": b"1"},
            r"^'a' in '.*' has two labels, 1 in \.cls and 0 in \.json",
        ),
        ({"a_png": b"x", "a_cls": b"1", "b_v2_png": b"x"}, r"^'b\.v2\.png' in '.*' goes on after its first dot, where"),
        ({"a_txt": b"x"}, r"0\.tar' holds no image; its samples must be NAME\.jpg"),
    ],
)
def test_bad_samples_are_named(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    write(tmp_path / "train" / "0.tar", **files)
    with pytest.raises(InputError, match=message):
        datasets.load("shards", tmp_path)


def test_bad_folders(tmp_path: Path, root: Path) -> None:
    for given, options, message in [
        (None, {}, "The folder of the shards, 'None', does not exist"),
        (tmp_path / "no", {}, "does not exist; it must hold train/\\*.tar"),
        (tmp_path, {}, r"There are no shards in '.*': expected train/\*\.tar or train-\*\.tar, not compressed"),
        (root, {"size": 4}, "size is 4 pixels"),
    ]:
        with pytest.raises(InputError, match=message):
            datasets.load("shards", given, **options)
    (root / "classes.txt").write_text("ant\nbee\n")
    with pytest.raises(InputError, match="Labels run from 0 to 3, but 2 classes are named"):
        datasets.load("shards", root)


def test_pack_and_train_as_a_person_does(scns: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = scns("data", "pack", "folder", "--root", folder(), "--out", "s", "--each", 50)
    assert code == 0 and err == "" and "120 images in 3 shards" in out
    assert torch.equal(datasets.load("shards", "s").pixels, datasets.load("folder", folder()).pixels)
    code, out, _ = scns("data", "info", "shards", "--root", "s")
    assert code == 0 and re.search(r"test +60", out) and "airplane" in out
    words = ("--set", "data=shards", "--set", "root=s", "--set", "data_on=host", "--epochs", 1, "--subset", 64)
    code, out, _ = scns("train", "mini-ce", *words, "--out", "r", "--device", "cpu")
    assert code == 0 and "on shards with ce" in out
    code, _, err = scns("data", "pack", "folder", "--root", folder(), "--out", "t", "--each", 0)
    assert code == 2 and "A shard needs at least 1 image, not 0" in err


def test_shards_of_another_packing_are_not_mixed_in(root: Path, images: Images) -> None:
    with pytest.raises(InputError, match=r"train/000002\.tar' is a shard of something else"):
        pack(images, root, "train", each=20)
    assert len(datasets.load("shards", root)) == 23
    assert len(pack(images, root, "train", each=8)) == 3  # the same names


def test_images_without_a_label_are_not_judged(scns: Run, tmp_path: Path) -> None:
    for split in ("train", "test"):
        some = {
            f"{n}_{kind}": (png(), b"%d" % (n % 3 - 1))[kind == "cls"] for n in range(30) for kind in ("png", "cls")
        }
        write(tmp_path / split / "0.tar", **some)  # labels -1, 0 and 1 of images that are all alike
    code, out, _ = scns("data", "info", "shards", "--root", tmp_path)
    assert code == 0 and "10 of the test images are unlabelled (-1)" in out
    words = ["--set", "data=shards", "--set", f"root={tmp_path}", "--epochs", 1, "--out", tmp_path / "run"]
    assert scns("train", "mini-ce", "--set", "validation=0.3", "--set", "batch=16", *words).code == 0
    line = json.loads((tmp_path / "run" / "log.jsonl").read_text())
    assert line["test"] == line["validation"] == 50
    assert "50.00 % of 20 test images" in scns("eval", tmp_path / "run").out
    write(tmp_path / "test" / "0.tar", **{key: b"-1" if key.endswith("cls") else png() for key in some})
    code, _, err = scns("eval", tmp_path / "run")
    assert code == 2 and "None of the images has a label" in err


def test_class_names_of_any_editor(root: Path, images: Images) -> None:
    path = root / "classes.txt"
    path.write_bytes("\r\n".join(images.names).encode("utf-8-sig"))
    assert datasets.load("shards", root).names == images.names
    path.write_bytes("\n".join(images.names).encode("latin-1"))
    with pytest.raises(InputError, match=r"classes\.txt' is not a text file in UTF-8; save it as one"):
        datasets.load("shards", root)
