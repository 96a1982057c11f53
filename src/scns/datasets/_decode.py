"""Image files -> uint8 pixels of one size, decoded once on all cores and kept in the cache folder.

The cache is one safetensors file a split: `pixels` uint8 [n, 3, size, size] and `good` uint8 [n] (0 where a file could
not be decoded and its pixels are black), with a fingerprint of the source (names, sizes, times) in its header. A folder
that changed has another fingerprint and is decoded again over the same file. Reading it maps it into memory.

Threads, not processes: Pillow decodes without the interpreter's lock, and threads need no `__main__` guard in a user's
script. At 64 px, where opening a file costs as much as decoding it, two processes were twice as fast on two cores (2 s
against 4 s for 30,000 JPEGs), which is not worth that; larger images gain from every core.
"""

import hashlib
import io
import json
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, JpegImagePlugin, PngImagePlugin, WebPImagePlugin
from safetensors import SafetensorError, safe_open
from torch import Tensor

from scns.datasets._moments import Moments
from scns.errors import InputError
from scns.files import atomic

Progress = Callable[[int, int], None]

FORMATS = tuple(plugin.format for plugin in (  # naming the plugins here loads them, and only them
    JpegImagePlugin.JpegImageFile, PngImagePlugin.PngImageFile, WebPImagePlugin.WebPImageFile
))  # fmt: skip
_VERSION = 1  # part of the fingerprint: raise it when `decode` gives other pixels for the same file
_CHUNK = 256  # images a task: long enough to hide the cost of a task, short enough for a smooth progress bar
_HEADER = 4096  # bytes kept for the header, which is written last: a tenth of it is used


class Packed(NamedTuple):
    """A file inside a tar archive."""

    archive: str
    offset: int  # of its bytes
    size: int
    name: str

    def __str__(self) -> str:
        return f"{self.archive}:{self.name}"


Item = str | Packed  # where an image's bytes are: a file, or a part of an archive


class Decoded(NamedTuple):
    pixels: Tensor  # uint8 [n, 3, size, size], mapped from the cache
    good: Tensor  # bool [n]
    mean: tuple[float, float, float]  # of the good images, in [0, 1] units
    std: tuple[float, float, float]


def decoded(
    name: str, root: Path, paths: Sequence[Item], size: int, skip_bad: bool, progress: Progress | None
) -> Decoded:
    """The images `paths` of data set `name` (with its split) under `root`, from the cache where it is up to date."""
    place = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:12]
    cache = cache_folder() / f"{name}-{size}px-{place}.safetensors"
    source = _fingerprint(root, paths, size)
    images = _read(cache, source)
    if images is None:
        try:
            _write(cache, source, paths, size, progress)
        except OSError as error:
            raise _no_room(cache, len(paths) * 3 * size * size, error) from error
        images = _read(cache, source)
        assert images is not None
    bad = [str(paths[row]) for row in torch.nonzero(~images.good).flatten().tolist()]
    if len(bad) == len(paths):
        raise InputError(f"None of the {len(bad):,} images like '{bad[0]}' can be decoded as JPEG, PNG or WebP.")
    if bad and not skip_bad:
        raise InputError(
            f"{_counted(bad, len(paths))}; replace or remove them (`scns data info --skip-bad` and "
            "scns.datasets.load(..., skip_bad=True) leave them out)."
        )
    if bad:
        warnings.warn(f"{_counted(bad, len(paths))} and left out.", stacklevel=4)  # 4: the caller of datasets.load
    return images


def cache_folder() -> Path:
    """The folder named by SCNS_CACHE, else ~/.cache/scns."""
    return Path(os.environ.get("SCNS_CACHE") or Path.home() / ".cache" / "scns").expanduser()


def decode(path: Item, size: int) -> np.ndarray | None:
    """The image as uint8 [3, size, size], None where it cannot be decoded.

    Its middle square is resized to `size`. Grey images become RGB, transparent pixels white, and a camera's rotation
    mark is followed.
    """
    try:
        with Image.open(path if isinstance(path, str) else _bytes(path), formats=FORMATS) as image:
            if image.size != (size, size):
                # A JPEG can be read at 1/2, 1/4 or 1/8 for less time; twice the wanted size keeps the resizing clean.
                image.draft("RGB", (2 * size, 2 * size))
            picture = _rgb(ImageOps.exif_transpose(image) if image.getexif() else image)
            if picture.size != (size, size):
                picture = ImageOps.fit(picture, (size, size), Image.Resampling.BICUBIC)
            return np.asarray(picture).transpose(2, 0, 1)
    except OSError as error:
        if error.errno is not None:  # the disk or the permissions, not the content
            raise
        return None
    except MemoryError:
        raise
    except Exception:  # decoders raise nearly anything on broken bytes
        return None


def _bytes(packed: Packed) -> io.BytesIO:
    with open(packed.archive, "rb") as file:
        file.seek(packed.offset)
        return io.BytesIO(file.read(packed.size))


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16-bit grey: Pillow would cut values above 255 off instead of scaling them
        image = Image.fromarray((np.asarray(image).astype(np.int32) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _fingerprint(root: Path, paths: Sequence[Item], size: int) -> str:
    digest = hashlib.sha256(f"{_VERSION} {size}".encode())
    archive, state = "", ""  # of the archive that the last image was in: it is looked at once
    for path in paths:
        file = path if isinstance(path, str) else path.archive
        if file != archive:
            status = os.stat(file)
            archive, state = file, f"{status.st_size}\t{status.st_mtime_ns}"
        name = str(path).removeprefix(str(root))  # the same from every working folder
        part = "" if isinstance(path, str) else f"\t{path.offset}\t{path.size}"
        digest.update(f"\n{name}\t{state}{part}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _write(cache: Path, source: str, paths: Sequence[Item], size: int, progress: Progress | None) -> None:
    moments, good, done = Moments(), [], 0
    # Plain writes, not a memory map: on a full disk a write raises, where a map would kill the process.
    with atomic(cache) as temporary, open(temporary, "wb") as file:
        file.seek(_HEADER)
        for pixels, kept in _chunks(paths, size):
            file.write(pixels.data)
            moments.add(pixels[kept])
            good.append(kept)
            done += len(kept)
            if progress:
                progress(done, len(paths))
        file.write(np.concatenate(good).data)
        file.seek(0)
        file.write(_header(source, len(paths), size, moments))


def _header(source: str, count: int, size: int, moments: Moments) -> bytes:
    """The header of a safetensors file: its length, then JSON, padded with blanks to `_HEADER` bytes."""
    end = count * 3 * size * size
    entries = {
        "__metadata__": {"source": source, "moments": json.dumps([moments.mean, moments.std])},
        "pixels": {"dtype": "U8", "shape": [count, 3, size, size], "data_offsets": [0, end]},
        "good": {"dtype": "U8", "shape": [count], "data_offsets": [end, end + count]},
    }
    text = json.dumps(entries).encode().ljust(_HEADER - 8)
    return len(text).to_bytes(8, "little") + text


def _chunks(paths: Sequence[Item], size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(pixels, good) of `_CHUNK` images at a time, in order; few are in flight, so memory stays small."""

    def task(start: int) -> tuple[np.ndarray, np.ndarray]:
        images = [decode(path, size) for path in paths[start : start + _CHUNK]]
        pixels = np.zeros((len(images), 3, size, size), np.uint8)
        for row, image in enumerate(images):
            if image is not None:
                pixels[row] = image
        return pixels, np.array([image is not None for image in images])

    workers = os.cpu_count() or 1
    waiting: deque[Future[tuple[np.ndarray, np.ndarray]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for start in range(0, len(paths), _CHUNK):
            waiting.append(pool.submit(task, start))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _read(cache: Path, source: str) -> Decoded | None:
    """The cached images, None where there are none of this source."""
    if not cache.is_file():
        return None
    try:
        with safe_open(cache, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("source") != source:
                return None
            mean, std = json.loads(about["moments"])
            return Decoded(file.get_tensor("pixels"), file.get_tensor("good").bool(), tuple(mean), tuple(std))
    except SafetensorError:  # damaged: decode again
        return None


def _no_room(cache: Path, size: int, error: OSError) -> InputError:
    named = "" if error.filename is None else str(error.filename)
    if named and not named.startswith(str(cache.parent)) and not cache.is_relative_to(named):  # of an image
        return InputError(f"'{error.filename}' cannot be read: {error.strerror}; check its permissions.")
    return InputError(
        f"The decoded images ({size / 1e6:,.0f} MB) cannot be kept in '{cache.parent}': {error.strerror or error}; "
        "set SCNS_CACHE to a folder with room for them."
    )


def _counted(bad: list[str], total: int) -> str:
    shown = ", ".join(f"'{path}'" for path in bad[:3]) + (", ..." if len(bad) > 3 else "")
    return f"{len(bad):,} of {total:,} images {'is' if len(bad) == 1 else 'are'} corrupt ({shown})"
