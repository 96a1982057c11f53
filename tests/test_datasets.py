"""Data sets as they are published, and what happens when their files are not as published."""

import hashlib
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import Ran, disk_of
from scns import datasets
from scns.datasets import _decode, _layout
from scns.datasets._moments import moments
from scns.draws import integers
from scns.errors import InputError


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SCNS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def some_images(count: int, seed: int, size: int = 32) -> np.ndarray:
    grid = torch.arange(count * 3 * size * size).reshape(count, 3, size, size)
    return integers(256, seed, grid).to(torch.uint8).numpy()


# --- CIFAR ---

FINE = [f"fine{kind}" for kind in range(100)]
COARSE = [f"coarse{kind}" for kind in range(20)]
TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def python2_pickle(value: object) -> bytes:
    """The bytes Python 2 would pickle, as in the published archives: byte strings, numpy's old module and flags."""

    def emit(value: object) -> bytes:
        if isinstance(value, dict):
            return b"}(" + b"".join(emit(key) + emit(item) for key, item in value.items()) + b"u"
        if isinstance(value, list):
            return b"](" + b"".join(emit(item) for item in value) + b"e"
        if isinstance(value, tuple):
            return b"(" + b"".join(emit(item) for item in value) + b"t"
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        if isinstance(value, int):
            return b"J" + struct.pack("<i", value)
        if isinstance(value, str):
            return b"U" + bytes([len(value)]) + value.encode("latin1")
        if isinstance(value, bytes):
            return b"T" + struct.pack("<i", len(value)) + value
        assert isinstance(value, np.ndarray) and value.dtype == np.uint8
        empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + emit((0,)) + emit("b") + b"tR"
        kind = (
            b"cnumpy\ndtype\n"
            + emit(("u1", 0, 1))
            + b"R("
            + emit(3)
            + emit("|")
            + b"NNN"
            + 2 * emit(-1)
            + emit(0)
            + b"tb"
        )
        return empty + b"(" + emit(1) + emit(value.shape) + kind + emit(False) + emit(value.tobytes()) + b"tb"

    return b"\x80\x02" + emit(value) + b"."


def python3_pickle(value: object) -> bytes:
    return pickle.dumps(value, protocol=2)


def write_binary(folder: Path, per_file: int = 4) -> None:
    folder.mkdir(parents=True)
    fine = "100" in folder.name
    files = ["train", "test"] if fine else [f"data_batch_{part}" for part in range(1, 6)] + ["test_batch"]
    for seed, file in enumerate(files):
        labels = [[seed % 20, seed * 7 + row] if fine else [(seed + row) % 10] for row in range(per_file)]
        pixels = some_images(per_file, seed).reshape(per_file, -1)
        np.concatenate([np.array(labels, np.uint8), pixels], axis=1).tofile(folder / f"{file}.bin")
    if fine:
        (folder / "fine_label_names.txt").write_text("\n".join(FINE) + "\n")
        (folder / "coarse_label_names.txt").write_text("\n".join(COARSE) + "\n")
    else:
        (folder / "batches.meta.txt").write_text("\n".join(TEN) + "\n\n")  # the published file ends in a blank line


def write_python(folder: Path, dump: Any = python2_pickle, per_file: int = 4) -> None:
    """The same images and labels as `write_binary`, as the python archives have them."""
    folder.mkdir(parents=True)
    fine = "100" in folder.name
    files = ["train", "test"] if fine else [f"data_batch_{part}" for part in range(1, 6)] + ["test_batch"]
    for seed, file in enumerate(files):
        content: dict[str, object] = {"data": some_images(per_file, seed).reshape(per_file, -1), "batch_label": "one"}
        if fine:
            content["coarse_labels"] = [seed % 20] * per_file
            content["fine_labels"] = [seed * 7 + row for row in range(per_file)]
        else:
            content["labels"] = [(seed + row) % 10 for row in range(per_file)]
        (folder / file).write_bytes(dump(content))
    meta = {"fine_label_names": FINE, "coarse_label_names": COARSE} if fine else {"label_names": TEN}
    (folder / ("meta" if fine else "batches.meta")).write_bytes(dump(meta))


@pytest.mark.parametrize("layout", ["binary", "python 2", "python 3"])
@pytest.mark.parametrize("inside", [False, True])
def test_cifar10(tmp_path: Path, layout: str, inside: bool) -> None:
    folder = tmp_path / ("cifar-10-batches-bin" if layout == "binary" else "cifar-10-batches-py")
    if layout == "binary":
        write_binary(folder)
    else:
        write_python(folder, python2_pickle if layout == "python 2" else python3_pickle)
    root = folder if inside else tmp_path
    train, test = datasets.load("cifar10", root), datasets.load("cifar10", str(root), "test")
    expected = np.concatenate([some_images(4, seed) for seed in range(5)])
    assert np.array_equal(train.pixels.numpy(), expected) and train.pixels.is_contiguous()
    assert train.labels.tolist() == [seed + row for seed in range(5) for row in range(4)]
    assert np.array_equal(test.pixels.numpy(), some_images(4, 5)) and test.labels.tolist() == [5, 6, 7, 8]
    assert train.names == tuple(TEN) and train.coarse is None
    assert (train.mean, train.std) == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


@pytest.mark.parametrize("layout", ["binary", "python 2", "python 3"])
def test_cifar100_has_fine_and_coarse_labels(tmp_path: Path, layout: str) -> None:
    if layout == "binary":
        write_binary(tmp_path / "cifar-100-binary")
    else:
        write_python(tmp_path / "cifar-100-python", python2_pickle if layout == "python 2" else python3_pickle)
    test = datasets.load("cifar100", tmp_path, "test")
    assert test.labels.tolist() == [7, 8, 9, 10] and test.names[7] == "fine7"
    assert test.coarse is not None and test.coarse.tolist() == [1, 1, 1, 1] and test.coarse_names == tuple(COARSE)
    assert np.array_equal(test.pixels.numpy(), some_images(4, 1))
    assert (test.mean, test.std) == ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))


def test_the_binary_layout_comes_first(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin", per_file=2)
    write_python(tmp_path / "cifar-10-batches-py", per_file=3)
    assert len(datasets.load("cifar10", tmp_path)) == 10


@pytest.mark.parametrize("left", [0, 3072, 3073 * 4 - 1, 3074 * 4])
def test_a_truncated_or_foreign_bin_is_named(tmp_path: Path, left: int) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin")
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes((path.read_bytes() * 2)[:left])
    with pytest.raises(
        InputError, match=rf"data_batch_3.bin' has {left:,} bytes.*records of 3,073 bytes.*fetch it again"
    ):
        datasets.load("cifar10", tmp_path)


def test_a_label_outside_the_range_is_named(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin")
    path = tmp_path / "cifar-10-batches-bin" / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[2 * 3073] = 10
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"Image 2 of '.*test_batch.bin' has label 10, but labels run from 0 to 9"):
        datasets.load("cifar10", tmp_path, "test")


@pytest.mark.parametrize(("byte", "label", "limit"), [(0, 20, 19), (1, 100, 99)])
def test_cifar100_checks_both_labels(tmp_path: Path, byte: int, label: int, limit: int) -> None:
    write_binary(tmp_path / "cifar-100-binary")
    path = tmp_path / "cifar-100-binary" / "train.bin"
    content = bytearray(path.read_bytes())
    content[3074 + byte] = label
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"Image 1 .* has label {label}, but labels run from 0 to {limit}"):
        datasets.load("cifar100", tmp_path)


@pytest.mark.parametrize("missing", ["data_batch_5.bin", "data_batch_1.bin"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    write_binary(tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / missing).unlink()
    with pytest.raises(InputError, match=f"{missing}' is missing: cifar10 is incomplete"):
        datasets.load("cifar10", tmp_path)


def test_wrong_label_names_are_refused(tmp_path: Path) -> None:
    write_binary(tmp_path / "cifar-100-binary")
    (tmp_path / "cifar-100-binary" / "fine_label_names.txt").write_text("one\ntwo\n")
    with pytest.raises(InputError, match=r"fine_label_names.txt' holds 2 names, but there must be 100"):
        datasets.load("cifar100", tmp_path)


class Evil:
    def __init__(self, call: Any, *arguments: object) -> None:
        self.reduced = (call, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (os.system, f"{os.name}.system"),
        (eval, "eval"),
        (getattr, "getattr"),
        (np.fromfile, "fromfile"),
        (np.ndarray.tofile, "getattr|tofile"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, call: Any, named: str, protocol: int) -> None:
    write_python(tmp_path / "cifar-10-batches-py")
    evil = {"data": some_images(1, 0).reshape(1, -1), "labels": [Evil(call, f"touch {tmp_path / 'ran'}")]}
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(evil, protocol=protocol))
    with pytest.raises(InputError, match=rf"data_batch_1' asks for '.*{named}'.*nothing of it was run"):
        datasets.load("cifar10", tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_pickled_array_of_objects_is_refused(tmp_path: Path) -> None:
    write_python(tmp_path / "cifar-10-batches-py")
    objects = np.array([{}, {}], dtype=object)
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(python3_pickle({"data": objects}))
    with pytest.raises(InputError, match="array of 'O"):
        datasets.load("cifar10", tmp_path, "test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (python2_pickle({"data": some_images(2, 0).reshape(2, -1), "labels": [1, 2]})[:-500], "no complete pickle"),
        (b"", "no complete pickle"),
        (b"GIF89a", "no complete pickle"),
        (python2_pickle([1, 2]), "holds a list"),
        (python2_pickle({"data": some_images(1, 0).reshape(1, -1)}), "has no 'labels'"),
        (python2_pickle({"data": some_images(1, 0), "labels": [1]}), r"uint8 \[1, 3, 32, 32\], but it must be"),
        (python2_pickle({"data": "x", "labels": [1]}), "'data' of .* is str"),
        (python2_pickle({"data": some_images(2, 0).reshape(2, -1), "labels": [1]}), "must list 2 whole numbers"),
        (python2_pickle({"data": some_images(1, 0).reshape(1, -1), "labels": ["1"]}), "must list 1 whole numbers"),
        (python2_pickle({"data": some_images(1, 0).reshape(1, -1), "labels": [-1]}), "has label -1"),
    ],
)
def test_a_bad_python_archive_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    write_python(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(content)
    with pytest.raises(InputError, match=message) as raised:
        datasets.load("cifar10", tmp_path, "test")
    assert "test_batch" in str(raised.value)


# --- where data sets are looked for ---


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "tiny-imagenet-200"])
def test_a_missing_data_set_says_what_belongs_where(tmp_path: Path, name: str) -> None:
    folder = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}.get(name, name)
    for root in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            InputError, match=f"There is no {name} in '{root}': expected {folder}/.*scns data get {name}"
        ):
            datasets.load(name, root)
    with pytest.raises(InputError, match=f"{name} needs a root, the folder that holds {folder}/"):
        datasets.load(name)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        datasets.load(name, tmp_path / "file")


def test_an_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    write_tiny(tmp_path / "tiny-imagenet-200")
    monkeypatch.setattr(_layout.os, "scandir", refuse)
    with pytest.raises(InputError, match=r"cannot be read: '.*train': Permission denied; check its permissions"):
        datasets.load("tiny-imagenet-200", tmp_path)


def test_unknown_names_get_the_nearest_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Unknown data set 'cifar-10'; did you mean cifar10"):
        datasets.load("cifar-10", tmp_path)
    with pytest.raises(InputError, match="Unknown split 'tset'; did you mean test"):
        datasets.load("cifar10-mini", split="tset")
    with pytest.raises(InputError, match="cifar10-mini has no option 'size'; it takes none"):
        datasets.load("cifar10-mini", size=3)
    with pytest.raises(InputError, match="folder has no option 'sise'; it takes size, skip_bad, progress"):
        datasets.load("folder", tmp_path, sise=3)


def test_every_data_set_has_a_line_about_it() -> None:
    assert datasets.names() == ["cifar10", "cifar10-mini", "cifar100", "folder", "shards", "tiny-imagenet-200"]
    assert all(datasets.describe(name) for name in datasets.names())


# --- cifar10-mini ---


@pytest.mark.parametrize(
    ("split", "each", "digest"), [("train", 250, "5e3203951e0e4a99"), ("test", 200, "cbe6c523cd72090e")]
)
def test_cifar10_mini_is_bundled(split: str, each: int, digest: str) -> None:
    images = datasets.load("cifar10-mini", split=split)
    assert images.pixels.shape == (10 * each, 3, 32, 32) and images.names == tuple(TEN)
    assert torch.bincount(images.labels).tolist() == [each] * 10
    assert hashlib.sha256(images.pixels.numpy().tobytes()).hexdigest()[:16] == digest
    found = moments(images.pixels)
    assert np.allclose(found.mean, (0.4914, 0.4822, 0.4465), atol=0.01)  # CIFAR-10's own, within a sample's error
    assert np.allclose(found.std, (0.2470, 0.2435, 0.2616), atol=0.01)


def test_the_cut_is_reproducible(tmp_path: Path, script: Callable[..., Ran]) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    write_binary(folder, per_file=250)
    tool = Path(__file__).parents[1] / "tools" / "make_cifar10_mini.py"
    for path in folder.glob("*.bin"):
        content = np.fromfile(path, np.uint8).reshape(-1, 3073)
        content[:, 1:] &= 0xC0  # four shades of a colour: noise in all 256 takes WebP's encoder seconds
        if path.stem in ("data_batch_1", "data_batch_2"):  # 1,000 in all, so that 0.05 of them fill a mosaic's one row
            content = content[:125]
        content.tofile(path)
    assert script(tool, tmp_path, "--out", tmp_path / "out").code == 0
    about = json.loads((tmp_path / "out" / "cifar10-mini.json").read_text())
    for part in ("train", "test"):
        images = datasets.load("cifar10", tmp_path, part)
        row = as_pillow_reads(tmp_path / "out" / f"cifar10-mini-{part}.webp")  # [3, 32, 50 * 32]
        assert about[part]["labels"] == images.labels[about[part]["index"]].tolist()
        for place, index in enumerate(about[part]["index"]):
            assert np.array_equal(row[:, :, 32 * place : 32 * place + 32], images.pixels[index].numpy())


def test_cifar10_mini_is_small() -> None:
    assets = Path(datasets.__file__).parents[1] / "assets"
    assert sum(file.stat().st_size for file in assets.glob("cifar10-mini*")) < 9_000_000


# --- Tiny-ImageNet-200 and folders ---

IDS = ["n03", "n01", "n02"]  # wnids.txt is not sorted


def write_tiny(folder: Path, words: str = "n01\tcrane, bird\nn02\tmug\nn03\tcrane\nn04\tunused") -> None:
    for kind, class_id in enumerate(sorted(IDS)):
        (folder / "train" / class_id / "images").mkdir(parents=True)
        (folder / "train" / class_id / f"{class_id}_boxes.txt").write_text("boxes")
        for row in range(4):
            picture = Image.fromarray(some_images(1, 10 * kind + row, 64)[0].transpose(1, 2, 0))
            picture = picture.convert("L") if row == 3 else picture
            picture.save(folder / "train" / class_id / "images" / f"{class_id}_{row}.JPEG", "JPEG")
    (folder / "val" / "images").mkdir(parents=True)
    for row in range(6):
        picture = Image.fromarray(some_images(1, 100 + row, 64)[0].transpose(1, 2, 0))
        picture.save(folder / "val" / "images" / f"val_{row}.JPEG")
    annotations = [f"val_{row}.JPEG\t{IDS[row % 3]}\t0\t0\t62\t62" for row in (4, 0, 1, 2, 3, 5)]
    (folder / "val" / "val_annotations.txt").write_text("\n".join(annotations) + "\n")
    (folder / "wnids.txt").write_text("\n".join(IDS) + "\n")
    (folder / "words.txt").write_text(words)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    write_tiny(tmp_path / "tiny-imagenet-200")
    return tmp_path / "tiny-imagenet-200"


def as_pillow_reads(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def test_tiny_imagenet(tiny: Path) -> None:
    train, test = datasets.load("tiny-imagenet-200", tiny.parent), datasets.load("tiny-imagenet-200", tiny, "test")
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    for row in range(12):
        class_id = sorted(IDS)[row // 4]
        path = tiny / "train" / class_id / "images" / f"{class_id}_{row % 4}.JPEG"
        assert np.array_equal(train.pixels[row].numpy(), as_pillow_reads(path))
    assert torch.equal(train.pixels[3, 0], train.pixels[3, 2])  # the grey one
    assert test.labels.tolist() == [0, 2, 0, 1, 2, 1]  # of n01 n03 n01 n02 n03 n02, the order of val_annotations.txt
    assert np.array_equal(test.pixels[0].numpy(), as_pillow_reads(tiny / "val" / "images" / "val_4.JPEG"))
    assert train.names == test.names == ("crane (n01)", "mug", "crane (n03)")
    assert train.mean == (0.485, 0.456, 0.406)


def decoding_fails(path: str, size: int) -> np.ndarray:
    raise AssertionError(f"{path} is decoded again")


def test_the_second_load_comes_from_the_cache(tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    first = datasets.load("tiny-imagenet-200", tiny, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (12, 12) and len(list(cache.iterdir())) == 1
    monkeypatch.setattr(_decode, "decode", decoding_fails)
    assert torch.equal(datasets.load("tiny-imagenet-200", tiny).pixels, first.pixels)
    assert torch.equal(datasets.load("tiny-imagenet-200", tiny.parent).pixels, first.pixels)  # the same folder
    monkeypatch.chdir(tiny.parent)
    assert torch.equal(datasets.load("tiny-imagenet-200", ".").pixels, first.pixels)


@pytest.mark.parametrize("change", ["content", "time", "new file", "removed file"])
def test_a_changed_folder_is_decoded_again(tiny: Path, cache: Path, change: str) -> None:
    before = datasets.load("tiny-imagenet-200", tiny).pixels.clone()
    images = tiny / "train" / "n01" / "images"
    if change == "content":
        shutil.copy(images / "n01_1.JPEG", images / "n01_0.JPEG")
    elif change == "time":
        shutil.copy(images / "n01_1.JPEG", images / "n01_0.JPEG")
        os.utime(images / "n01_0.JPEG", ns=(1, 1))
    elif change == "new file":
        shutil.copy(images / "n01_1.JPEG", images / "n01_00.JPEG")
    else:
        (images / "n01_0.JPEG").unlink()
    after = datasets.load("tiny-imagenet-200", tiny)
    assert len(after) == {"new file": 13, "removed file": 11}.get(change, 12)
    if len(after) == 12:
        assert torch.equal(after.pixels[0], before[1]) and torch.equal(after.pixels[2:], before[2:])
    assert len(list(cache.iterdir())) == 1  # over the old file, so that the cache does not grow


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_cache_is_decoded_again(tiny: Path, cache: Path, damage: bytes | None) -> None:
    before = datasets.load("tiny-imagenet-200", tiny).pixels.clone()
    file = next(cache.iterdir())
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-1000] if damage is None else damage)
    assert torch.equal(datasets.load("tiny-imagenet-200", tiny).pixels, before)


def test_a_full_disk_while_caching_leaves_no_file(tiny: Path, cache: Path) -> None:
    with disk_of(50_000), pytest.raises(InputError, match=r"cannot be kept in '.*cache'.*set SCNS_CACHE to a folder"):
        datasets.load("tiny-imagenet-200", tiny)
    assert list(cache.iterdir()) == []
    assert len(datasets.load("tiny-imagenet-200", tiny)) == 12


def test_a_stopped_decoding_leaves_no_file(tiny: Path, cache: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        datasets.load("tiny-imagenet-200", tiny, progress=stop)
    assert list(cache.iterdir()) == []


def test_a_cache_folder_that_cannot_be_made_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCNS_CACHE", str(tiny / "wnids.txt" / "cache"))
    with pytest.raises(InputError, match=r"cannot be kept in '.*wnids.txt.cache'.*set SCNS_CACHE"):
        datasets.load("tiny-imagenet-200", tiny)


def test_a_cache_folder_in_one_that_cannot_be_written_is_named(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be made is then a folder above it, which is no image that cannot be read."""
    monkeypatch.setenv("SCNS_CACHE", "/proc/home/cache")
    with pytest.raises(InputError, match=r"cannot be kept in '/proc/home/cache'.*set SCNS_CACHE"):
        datasets.load("tiny-imagenet-200", tiny)


def spoil(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_corrupt_images_are_named_and_counted(tiny: Path) -> None:
    for row in range(2):
        spoil(tiny / "train" / "n02" / "images" / f"n02_{row}.JPEG")
    (tiny / "train" / "n03" / "images" / "n03_3.JPEG").write_bytes(b"")
    (tiny / "train" / "n01" / "images" / "n01_2.JPEG").write_bytes(b"no picture at all")
    message = r"4 of 12 images are corrupt \('.*n01_2.JPEG', '.*n02_0.JPEG', '.*n02_1.JPEG', \.\.\.\); .*skip_bad=True"
    for _ in range(2):  # from the files, then from the cache
        with pytest.raises(InputError, match=message):
            datasets.load("tiny-imagenet-200", tiny)
    with pytest.warns(UserWarning, match="4 of 12 images are corrupt .* left out"):
        train = datasets.load("tiny-imagenet-200", tiny, skip_bad=True)
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    good = tiny / "train" / "n02" / "images" / "n02_2.JPEG"
    assert np.array_equal(train.pixels[3].numpy(), as_pillow_reads(good))


def test_only_corrupt_images_cannot_be_skipped(tiny: Path) -> None:
    for path in tiny.glob("train/*/images/*"):
        path.write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"None of the 12 images like .* can be decoded"):
        datasets.load("tiny-imagenet-200", tiny, skip_bad=True)


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (
            lambda root: shutil.rmtree(root / "train" / "n02"),
            "lacks a folder for class 'n02', which wnids.txt has",
        ),
        (lambda root: (root / "train" / "n09").mkdir(), "has a folder for class 'n09', which wnids.txt does not have"),
        (lambda root: shutil.rmtree(root / "train"), "The folder '.*train' is missing"),
        (lambda root: shutil.rmtree(root / "train" / "n02" / "images"), "The folder '.*n02.images' is missing"),
        (lambda root: [path.unlink() for path in root.glob("train/n02/images/*")], "'.*n02.images' holds no image"),
        (lambda root: (root / "words.txt").unlink(), "'.*words.txt' is missing"),
        (lambda root: (root / "words.txt").write_text("n01\ta\nn03\tb"), "words.txt' has no words for n02"),
    ],
)
def test_an_incomplete_tiny_imagenet_is_refused(tiny: Path, spoiled: Any, message: str) -> None:
    spoiled(tiny)
    with pytest.raises(InputError, match=message):
        datasets.load("tiny-imagenet-200", tiny)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "val_0.JPEG\tn77\t0\t0\t1\t1",
            "Line 1 of '.*' names class 'n77', which is not in wnids.txt",
        ),
        ("val_99.JPEG\tn01\t0\t0\t1\t1", "'.*val_99.JPEG' is missing, but line 1"),
        ("val_0.JPEG", "Line 1 of '.*' names class ''"),
    ],
)
def test_bad_annotations_are_named(tiny: Path, line: str, message: str) -> None:
    (tiny / "val" / "val_annotations.txt").write_text(line)
    with pytest.raises(InputError, match=message):
        datasets.load("tiny-imagenet-200", tiny, "test")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Flat colours: red and blue, in many shapes and formats."""
    root = tmp_path / "own"
    for split in ("train", "test"):
        for name, colour in (("blue", (0, 0, 255)), ("Red things", (255, 0, 0))):
            (root / split / name).mkdir(parents=True)
            Image.new("RGB", (40, 20), colour).save(root / split / name / "a.png")
            Image.new("RGB", (20, 50), colour).save(root / split / name / "b.JPG", quality=100)
            Image.new("RGBA", (16, 16), (*colour, 255)).save(root / split / name / "c.webp", lossless=True)
            (root / split / name / "notes.txt").write_text("no image")
            (root / split / name / ".hidden.png").write_text("no image")
    return root


def test_folder(own: Path) -> None:
    train, test = datasets.load("folder", own, size=16), datasets.load("folder", own, "test", size=16)
    assert train.names == test.names == ("Red things", "blue") and train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.pixels.shape == (6, 3, 16, 16) and datasets.load("folder", own).size == 32
    red = torch.tensor([255, 0, 0])[:, None, None].expand(3, 16, 16)
    assert torch.equal(train.pixels[[0, 2]].long(), red.expand(2, 3, 16, 16))
    assert (train.pixels[1].long() - red).abs().max() <= 2  # a JPEG's own error
    found = moments(train.pixels)
    assert train.mean == test.mean == found.mean
    assert train.std == test.std == (found.std[0], 1.0, found.std[2])  # none of them has green


def test_the_middle_square_is_taken(own: Path) -> None:
    stripes = np.zeros((16, 48, 3), np.uint8)
    stripes[:, 16:32] = 200
    Image.fromarray(stripes).save(own / "train" / "blue" / "a.png")
    assert datasets.load("folder", own, size=16).pixels[3].unique().tolist() == [200]


def test_odd_pictures_become_rgb(own: Path) -> None:
    folder = own / "train" / "blue"
    Image.fromarray(np.full((16, 16), 40_000, np.uint16)).save(folder / "d.png")  # 16-bit grey
    Image.new("RGBA", (16, 16), (9, 9, 9, 0)).save(folder / "e.png")  # wholly transparent
    palette = Image.new("P", (16, 16), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.save(folder / "f.png", transparency=b"\xff\xff")
    Image.new("CMYK", (16, 16), (0, 0, 0, 0)).save(folder / "g.jpg")
    turned = np.zeros((16, 16, 3), np.uint8)
    turned[:8] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(turned).save(folder / "h.jpg", exif=exif, quality=100)
    pixels = datasets.load("folder", own, size=16).pixels[6:, :, 0, 0]
    assert pixels.tolist() == [[156] * 3, [255] * 3, [10, 20, 30], [255] * 3, [0] * 3]


def test_moments_equal_numpy(own: Path) -> None:
    pixels = some_images(9, 5, 8)
    found = moments(torch.from_numpy(pixels))
    assert np.allclose(found.mean, pixels.astype(np.float64).mean((0, 2, 3)) / 255, rtol=1e-12)
    assert np.allclose(found.std, pixels.astype(np.float64).std((0, 2, 3)) / 255, rtol=1e-12)


def test_statistics_leave_corrupt_images_out(own: Path) -> None:
    expected = datasets.load("folder", own, size=16)
    (own / "train" / "blue" / "d.png").write_bytes(b"no picture")
    with pytest.warns(UserWarning, match=r"1 of 7 images is corrupt"):
        found = datasets.load("folder", own, size=16, skip_bad=True)
    assert (found.mean, found.std) == (expected.mean, expected.std)


@pytest.mark.parametrize(
    ("spoiled", "message"),
    [
        (
            lambda root: shutil.rmtree(root / "test" / "blue"),
            "test' lacks a folder for class 'blue', which train has",
        ),
        (
            lambda root: (root / "test" / "green").mkdir(),
            "test' has a folder for class 'green', which train does not",
        ),
        (lambda root: shutil.rmtree(root / "test"), "The folder '.*test' is missing"),
        (
            lambda root: shutil.rmtree(root / "train"),
            "is no folder with a folder 'train'; .* in train/<class>/ and test/",
        ),
        (lambda root: shutil.rmtree(root), "The root '.*' does not exist; give the folder that holds your images"),
        (lambda root: [shutil.rmtree(path) for path in root.glob("train/*")], "has no class folders"),
        (lambda root: [path.unlink() for path in root.glob("test/blue/*")], "'.*test.blue' holds no image"),
    ],
)
def test_folders_that_do_not_match_are_named(own: Path, spoiled: Any, message: str) -> None:
    spoiled(own)
    with pytest.raises(InputError, match=message):
        datasets.load("folder", own, "test")


def test_a_size_that_is_too_small_is_refused(own: Path) -> None:
    with pytest.raises(InputError, match="The size is 4 pixels, but it must be at least 8"):
        datasets.load("folder", own, size=4)
