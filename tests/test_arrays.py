"""Arrays from files: whatever a file holds, it is read or told in a sentence."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from scns.arrays import load_array
from scns.errors import InputError

ARRAY = np.arange(12.0).reshape(4, 3)


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def test_a_file_is_read_as_what_it_is(tmp_path: Path) -> None:
    for name, content in {
        "a.npy": npy(ARRAY),
        "renamed.npz": npy(ARRAY),
        "renamed.npy": npz(x=ARRAY),
        "long.npy": npy(ARRAY.astype(np.longdouble)),
    }.items():
        (tmp_path / name).write_bytes(content)
        assert torch.equal(load_array(tmp_path / name), torch.from_numpy(ARRAY)), name


def archive_of_text() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("notes.txt", "hello")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (npz(x=ARRAY)[:80], "cannot be read .*not a zip file"),
        (npz(x=ARRAY).replace(b"\x00\x00\x24\x40", b"\x00\x00\x25\x40"), "cannot be read .*Bad CRC"),
        (npz(), "holds no array"),
        (archive_of_text(), "holds a file, not numbers"),
    ],
)
def test_a_damaged_archive_is_told(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(InputError, match=f"a.npz' {sentence}"):
        load_array(tmp_path / "a.npz")


def test_shards_of_several_widths_are_told(tmp_path: Path) -> None:
    for width in (2, 5):
        save_file({"embeddings": torch.ones(3, width)}, tmp_path / f"x-{width}.safetensors")
    shards = [{"file": f"x-{width}.safetensors", "rows": 3} for width in (2, 5)]
    index = tmp_path / "x.index.json"
    index.write_text(json.dumps({"format": "scns-embeddings", "shards": shards}))
    with pytest.raises(InputError, match=r"x.index.json' have \[2, 5\] columns; embed them again"):
        load_array(index)
    index.write_text(json.dumps({"format": "scns-embeddings", "shards": [{"file": "x.index.json", "rows": 3}]}))
    with pytest.raises(InputError, match="is not an index of embeddings"):  # of itself
        load_array(index)
