"""`scns data` as a person uses it."""

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from scns import download
from scns.data import Images
from scns.datasets._sheet import contact_sheet


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCNS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    root = tmp_path / "own"
    for split, count in (("train", 5), ("test", 2)):
        for name, colour in (("bird", (0, 0, 255)), ("cat", (255, 0, 0))):
            (root / split / name).mkdir(parents=True)
            for row in range(count):
                Image.new("RGB", (20, 20), colour).save(root / split / name / f"{row}.png")
    return root


def test_list_names_every_data_set(scns) -> None:
    ran = scns("data", "list")
    assert ran.code == 0 and ran.err == ""
    for name in ("cifar10", "cifar100", "tiny-imagenet-200", "cifar10-mini", "folder"):
        assert f"\n{name} " in ran.out
    assert "scns data get tiny-imagenet-200" in ran.out


def test_info_of_the_bundled_set(scns, tmp_path: Path) -> None:
    ran = scns("data", "info", "cifar10-mini", "--sheet", tmp_path / "sheet.png")
    assert ran.code == 0 and ran.err == ""
    assert "train   2,500      250  32 x 32  0.4908 0.4817 0.4484  0.2443 0.2417 0.2604" in ran.out
    assert "test    2,000      200" in ran.out
    assert "10 classes: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck" in ran.out
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.format == "PNG"
        pixels = np.asarray(sheet)
    assert pixels.shape[0] == 10 * 68 + 8 and pixels.shape[1] > 12 * 68
    assert (pixels[:, :80] < 128).any(axis=(1, 2)).sum() > 80  # ten dark labels on the left


def test_info_of_own_images(scns, own: Path) -> None:
    ran = scns("data", "info", "folder", "--root", own, "--size", 16)
    assert ran.code == 0 and ran.err == ""
    assert "train      10        5  16 x 16  0.5000 0.0000 0.5000  0.5000 0.0000 0.5000" in ran.out
    assert "2 classes: bird, cat" in ran.out


def test_a_sheet_of_many_classes_is_a_grid(scns, tmp_path: Path) -> None:
    for split in ("train", "test"):
        for kind in range(60):
            folder = tmp_path / "many" / split / f"a class with a name that is far too long for the grid {kind:02}"
            folder.mkdir(parents=True)
            Image.new("RGB", (8, 8), (0, 4 * kind, 0)).save(folder / "a.png")
    ran = scns("data", "info", "folder", "--root", tmp_path / "many", "--sheet", tmp_path / "sheet.png")
    assert ran.code == 0 and "60 classes: " in ran.out and ran.out.rstrip().endswith("sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert 0.5 < sheet.width / sheet.height < 2
        greens = {colour for _, colour in sheet.getcolors(1 << 20) if colour[0] == colour[2] == 0}
    assert greens >= {(0, 4 * kind, 0) for kind in range(60)}


def test_a_sheet_has_letters_beyond_english_ones() -> None:
    """Pillow's own font draws the same box for each of them."""
    pixels, labels = torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    sheets = [contact_sheet(Images(pixels, labels, (name,), (0.5,) * 3, (0.5,) * 3)) for name in "éÄøłяΩ"]
    assert len({sheet.tobytes() for sheet in sheets}) == 6


def test_a_sheet_of_a_class_with_a_line_break_in_its_name() -> None:
    pixels, labels = torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    sheets = [contact_sheet(Images(pixels, labels, (name,), (0.5,) * 3, (0.5,) * 3)) for name in ("a\nb", "a?b")]
    assert sheets[0].tobytes() == sheets[1].tobytes()


def test_corrupt_images_stop_it_and_skip_bad_goes_on(scns, own: Path) -> None:
    for row in (1, 3):
        path = own / "train" / "cat" / f"{row}.png"
        path.write_bytes(path.read_bytes()[:40])
    ran = scns("data", "info", "folder", "--root", own)
    assert ran.code == 2 and ran.out == ""
    assert (
        ran.err.startswith("scns: 2 of 10 images are corrupt (") and "cat/1.png" in ran.err and "--skip-bad" in ran.err
    )
    assert ran.err.count("\n") == 1
    ran = scns("train", "mini-ce", "--set", "data=folder", "--set", f"root={own}")  # which has no such option
    assert ran.code == 2 and "; replace or remove them (`scns data info --skip-bad`" in ran.err
    ran = scns("data", "info", "folder", "--root", own, "--skip-bad")
    assert ran.code == 0 and "train       8   3 to 5" in ran.out
    assert ran.err.count("2 of 10 images are corrupt") == 1 and "left out" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["info", "cifar-100"], "scns: Unknown data set 'cifar-100'; did you mean cifar100"),
        (["info", "cifar10", "--root", "nowhere"], "`scns data get cifar10 --root nowhere` fetches it."),
        (["info", "cifar10-mini", "--size", "64"], "cifar10-mini has no option 'size'; it takes none."),
        (["info", "cifar10-mini", "--skip-bad"], "cifar10-mini has no option 'skip_bad'"),
        (["info", "folder", "--size", "2"], "The size is 2 pixels"),
        (["get", "cifar10-mini"], "nothing to fetch for 'cifar10-mini': a cut of CIFAR-10"),
        (["get", "cifar"], "Unknown download 'cifar'; did you mean cifar10 or cifar100?"),
    ],
)
def test_bad_words_end_in_one_sentence(scns, words: list[str], said: str) -> None:
    ran = scns("data", *words)
    assert ran.code == 2 and ran.out == ""
    assert said in ran.err and ran.err.count("\n") == 1


def test_get_uses_a_placed_archive_then_says_it_is_there(scns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        member = tarfile.TarInfo("cifar-10-batches-bin/batches.meta.txt")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"bird"))
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(content.getvalue())
    md5 = hashlib.md5(content.getvalue()).hexdigest()
    monkeypatch.setitem(download.ARCHIVES, "cifar10", download.ARCHIVES["cifar10"]._replace(md5=md5))
    for said in (f"cifar10: {tmp_path}/cifar-10-batches-bin", "cifar10 is there already: "):
        ran = scns("data", "get", "cifar10", "--root", tmp_path)
        assert ran.code == 0 and said in ran.out.replace("\n", "") and ran.err == ""
    assert (tmp_path / "cifar-10-batches-bin" / "batches.meta.txt").read_text() == "bird"


def test_get_says_when_the_sum_is_wrong(scns, tmp_path: Path) -> None:
    (tmp_path / "cifar-100-binary.tar.gz").write_bytes(b"something else")
    ran = scns("data", "get", "cifar100", "--root", tmp_path)
    assert ran.code == 2 and "but the published file has 03b5dce01913d631647c71ecec9e9cb8" in ran.err
