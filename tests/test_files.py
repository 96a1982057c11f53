"""Files appear whole or not at all."""

import errno
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from conftest import disk_of
from scns.files import atomic, check_writable, save_tensors


def test_the_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "table.bin"
    with atomic(target) as temporary:
        temporary.write_bytes(b"half")
        assert not target.exists()
        temporary.write_bytes(b"whole")
    assert target.read_bytes() == b"whole"
    assert os.listdir(target.parent) == ["table.bin"]


def test_an_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "table.bin"
    target.write_bytes(b"old")
    with atomic(str(target)) as temporary:
        temporary.write_bytes(b"new")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failing_block_leaves_nothing(tmp_path: Path, failure: type[BaseException]) -> None:
    with pytest.raises(failure), atomic(tmp_path / "table.bin") as temporary:
        temporary.write_bytes(b"half")
        raise failure
    assert os.listdir(tmp_path) == []


def test_a_failing_block_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "table.bin"
    target.write_bytes(b"old")
    with pytest.raises(ValueError), atomic(target) as temporary:
        temporary.write_bytes(b"half")
        raise ValueError
    assert target.read_bytes() == b"old" and os.listdir(tmp_path) == ["table.bin"]


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    with disk_of(10_000), pytest.raises(OSError), atomic(tmp_path / "table.bin") as temporary:
        temporary.write_bytes(bytes(20_000))
    assert os.listdir(tmp_path) == []


def test_a_disk_that_is_full_at_the_last_moment_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"), atomic(tmp_path / "table.bin") as temporary:
        temporary.write_bytes(b"whole")
    assert os.listdir(tmp_path) == []


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with atomic(tmp_path / "atomic") as temporary:
        temporary.write_text("")
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "atomic")}
    assert modes["plain"] == modes["atomic"]


def test_what_cannot_be_written_is_said_of_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "folder", tmp_path / "file" / "below"):
        with pytest.raises(OSError, match=path.parts[-1] if path.is_dir() else "file"):
            check_writable(path)
    check_writable(tmp_path / "new" / "table.bin")
    assert os.listdir(tmp_path / "new") == []
    with pytest.raises(OSError) as caught, atomic("/proc/table.bin"):
        pass
    assert caught.value.filename == "/proc/table.bin"


def test_the_same_tensors_are_the_same_file(tmp_path: Path) -> None:
    about = {name: f'["{name}", "\u03b2 \\n"]' for name in ("student", "classes", "size", "mean", "std", "kind")}
    tensors = {"b": torch.arange(3.0), "a": torch.ones(2, 2, dtype=torch.int8)}
    for number in range(8):  # the library's own order is one of 720
        save_tensors(tensors, tmp_path / f"{number}.safetensors", about)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    with safe_open(tmp_path / "0.safetensors", framework="pt") as file:
        assert file.metadata() == about
    found = load_file(tmp_path / "0.safetensors")
    assert sorted(found) == ["a", "b"] and all(torch.equal(found[name], tensors[name]) for name in found)
