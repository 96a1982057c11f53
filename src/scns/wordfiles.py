"""Word-vector files, streamed: one pass, keeping only the words that are asked for.

Formats: word2vec binary (.bin), GloVe and fastText text (.txt, .vec; with or without a first line of counts),
each also gzipped (.gz), and .npz with the arrays `words` and `vectors`.
"""

import codecs
import gzip
import io
import itertools
import os
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from scns.errors import InputError

Vectors = dict[str, np.ndarray]
Progress = Callable[[int, int], None]

_BUFFER = 1 << 20  # bytes asked of the disk at once
_BLOCK = 1 << 16  # bytes looked through at once: from 128 kB on each block gets fresh memory pages, at half the speed
_LONGEST_WORD = 4096  # bytes; a file whose next space is further away is not in the word2vec format
_LONGEST_LINE = 1 << 20  # bytes; 1,000 numbers of 20 digits are 20 kB
_REPORT_EVERY = 1 << 16  # lines between two progress reports


class _Search:
    """The words looked for in a file, and the vectors found so far."""

    def __init__(self, wanted: Collection[str], enough: Collection[str]) -> None:
        # Names of folders may be any bytes.
        self.wanted = {word.encode(errors="surrogateescape"): word for word in wanted}
        self.missing = {word.encode(errors="surrogateescape") for word in enough}
        self.stops_early = bool(self.missing)
        self.found: Vectors = {}

    def add(self, word: bytes, vector: np.ndarray) -> None:
        with np.errstate(over="ignore"):  # `read_words` tells of it
            self.found.setdefault(self.wanted[word], vector.astype(np.float32))  # the first entry of a word counts
        self.missing.discard(word)

    @property
    def finished(self) -> bool:
        return self.stops_early and not self.missing


def read_words(
    path: str | Path, wanted: Collection[str], enough: Collection[str] = (), progress: Progress | None = None
) -> Vectors:
    """The float32 vectors of those words of `wanted` that the file has (of two entries the first counts).

    Reading stops early once every word of `enough` has been met.
    """
    path, search = Path(path), _Search(wanted, enough)
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind == "npz":
        _read_npz(path, search)
    elif kind in ("bin", "txt", "vec"):
        with _opened(path) as (file, disk):
            report = _reporter(path, disk, progress)
            (_read_binary if kind == "bin" else _read_text)(path, file, search, report)
    else:
        endings = ".bin, .txt or .vec (or these with .gz), or .npz"
        raise InputError(f"'{path}' is no known word-vector file; its name must end in {endings}.")
    for word, vector in search.found.items():
        if not np.isfinite(vector).all():
            raise InputError(f"'{path}': the vector of '{word}' is not finite; the file is damaged, fetch it again.")
    return search.found


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """(the content, the file on disk), which differ for a name in .gz. Damaged gzip is an InputError."""
    with open(path, "rb", buffering=_BUFFER) as disk:
        content: Any = disk
        if path.name.lower().endswith(".gz"):
            content = io.BufferedReader(gzip.GzipFile(fileobj=disk), _BUFFER)
        try:
            yield content, disk
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"'{path}' is damaged or cut short ({error}); fetch it again.") from error


def _reporter(path: Path, disk: BinaryIO, progress: Progress | None) -> Callable[[], None]:
    """A function that reports the megabytes of the file on disk read so far, when there is a new one."""
    size, last = os.path.getsize(path) // 1_000_000, -1

    def report() -> None:
        nonlocal last
        done = disk.tell() // 1_000_000 if progress else last
        if progress and done > last:
            last = done
            progress(done, size)

    return report


def _read_binary(path: Path, file: BinaryIO, search: _Search, report: Callable[[], None]) -> None:
    """Entries of a word, a space, float32 numbers and, from some writers, a line end."""
    count, dim = _binary_header(path, file)
    wanted, width = search.wanted, 4 * dim
    done, block = 0, b""
    while done < count and not search.finished:
        more = file.read(_BLOCK)
        if not more:
            raise _cut_short(path, done, count)
        block += more
        position, limit = 0, max(0, len(block) - width)  # a space beyond the limit has no whole vector after it
        while done < count:
            space = block.find(b" ", position, limit)
            if space < 0:
                break
            word = block[position:space]
            if word[:1] == b"\n":
                word = word[1:]
            if word in wanted:
                search.add(word, np.frombuffer(block, "<f4", dim, space + 1))
            position = space + 1 + width
            done += 1
        if done < count and limit - position > _LONGEST_WORD:
            raise _foreign(path, f"no word follows the first {done:,} of {count:,}")
        block = block[position:]
        report()
    if not search.finished and (block + file.read(_LONGEST_WORD)).strip(b"\n"):
        raise _foreign(path, f"it goes on after its {count:,} words")


def _binary_header(path: Path, file: BinaryIO) -> tuple[int, int]:
    fields = file.readline(64).split()  # two numbers; a foreign file need not have a line end at all
    if len(fields) != 2 or not all(field.isdigit() for field in fields) or not 0 < int(fields[1]) < 100_000:
        raise _foreign(path, "its first line is not '<words> <dimensions>'")
    return int(fields[0]), int(fields[1])


def _read_text(path: Path, file: BinaryIO, search: _Search, report: Callable[[], None]) -> None:
    """Lines of a word and its numbers."""
    line = file.readline(_LONGEST_LINE).removeprefix(codecs.BOM_UTF8)  # which some editors put there
    count, dim = _text_header(path, line)
    lines = itertools.chain([line] if count is None else [], file)
    done = 0
    for done, line in enumerate(filter(bytes.strip, lines), 1):
        cut = line.find(b" ")
        word = line[: cut if cut >= 0 else line.find(b"\t")]
        if word in search.wanted:
            vector = _numbers(path, line, dim, done)
            if vector is not None:
                search.add(word, vector)
            if search.finished:
                return
        if done % _REPORT_EVERY == 0:
            report()
    if count is not None and done < count:
        raise _cut_short(path, done, count)
    _numbers(path, line, dim, done)  # a cut shows in the last line, and only there if the file does not count its words


def _text_header(path: Path, line: bytes) -> tuple[int | None, int]:
    """(words or None, dimensions), from the first line."""
    fields = line.split()
    if len(fields) == 2 and all(field.isdigit() and len(field) < 20 for field in fields) and int(fields[1]):
        return int(fields[0]), int(fields[1])
    _numbers(path, line, max(len(fields) - 1, 1), 1)
    return None, len(fields) - 1


def _numbers(path: Path, line: bytes, dim: int, number: int) -> np.ndarray | None:
    """The vector of a line; None where the entry is a phrase with spaces in it."""
    fields = line.split()
    if len(fields) > dim + 1:
        return None
    try:
        vector = np.array(fields[1:], dtype=np.float64)
    except ValueError:
        vector = np.empty(0)
    if len(vector) != dim:
        raise InputError(
            f"'{path}': entry {number:,} is not a word and {dim} numbers; the file is cut short or not text."
        )
    return vector


def _read_npz(path: Path, search: _Search) -> None:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            words, vectors = arrays["words"], arrays["vectors"]
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, zlib.error, AttributeError, TypeError) as error:
        raise InputError(f"'{path}' is not an .npz file with the arrays words and vectors ({error}).") from error
    numbers = vectors.ndim == 2 and vectors.shape[1] and vectors.dtype.kind in "fiu"
    if words.ndim != 1 or words.dtype.kind not in "US" or not numbers or len(words) != len(vectors):
        shapes = f"{words.dtype} {words.shape} and {vectors.dtype} {vectors.shape}"
        raise InputError(f"'{path}': words [n] (text) and vectors [n, d] (numbers) are needed, but they are {shapes}.")
    for row, word in enumerate(words.tolist()):
        name = word if isinstance(word, bytes) else word.encode()
        if name in search.wanted:
            search.add(name, vectors[row])


def _cut_short(path: Path, done: int, count: int) -> InputError:
    return InputError(f"'{path}' ends after {done:,} of {count:,} words; it is cut short, fetch it again.")


def _foreign(path: Path, why: str) -> InputError:
    return InputError(
        f"'{path}' is not in the word2vec binary format: {why}; give a .bin written by word2vec or gensim."
    )
