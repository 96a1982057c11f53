"""Fetching the published archives: resumed where they broke off, checked, unpacked safely, never half there."""

import hashlib
import http.client
import shutil
import stat
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, NamedTuple

from scns import __version__
from scns.errors import InputError, unknown

Progress = Callable[[int, int], None]

_BLOCK = 1 << 18  # bytes a read: a quarter of a megabyte, many steps a second for the progress bar
_TIMEOUT = 30  # seconds without a byte before a connection counts as broken


class Archive(NamedTuple):
    """A published archive: its address, its MD5 sum, and the folder it unpacks to."""

    address: str
    md5: str
    folder: str

    @property
    def file(self) -> str:
        return self.address.rsplit("/", 1)[-1]


ARCHIVES = {
    "cifar10": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
    ),
    "cifar100": Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
    ),
    "tiny-imagenet-200": Archive(
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "90528d7ca1a48142e341f4ef8d21d0de",
        "tiny-imagenet-200",
    ),
}


def find(name: str) -> Archive:
    """The archive of a data set."""
    if name not in ARCHIVES:
        raise unknown("download", name, ARCHIVES)
    return ARCHIVES[name]


def get(name: str, root: str | Path, *, archive: Archive | None = None, progress: Progress | None = None) -> Path:
    """The data set's folder under `root`, downloaded and unpacked unless it is there.

    `archive` replaces the published one; a download is deleted once unpacked, an archive you placed is kept.
    """
    archive = archive or find(name)
    folder = Path(root).expanduser() / archive.folder
    if folder.exists():
        return folder
    file, downloaded = fetch(archive, root, progress)
    unpack(file, archive, root, progress)
    if downloaded:
        file.unlink()
    return folder


def fetch(archive: Archive, root: str | Path, progress: Progress | None = None) -> tuple[Path, bool]:
    """(The checked archive under `root`, whether it was downloaded); one that was placed there is used as it is."""
    root = Path(root).expanduser()
    root.mkdir(parents=True, exist_ok=True)
    file = root / archive.file
    placed = file.exists()
    part = file if placed else root / f"{archive.file}.part"
    if not placed:
        _download(archive, part, file, progress)
    found = _md5(part)
    if found != archive.md5:
        if not placed:  # going on from it would only fail again
            part.unlink()
        remedy = "delete it" if placed else "the download was damaged and is deleted"
        raise InputError(
            f"The MD5 sum of '{file}' is {found}, but the published file has {archive.md5}: {remedy}; run this again."
        )
    part.replace(file)
    return file, not placed


def _download(archive: Archive, part: Path, file: Path, progress: Progress | None) -> None:
    """Bring `part` to its full length, going on from what is there; tries again as long as bytes arrive."""
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _transfer(archive.address, part, before, progress):
                return
            reason = "the connection was closed too early"
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason = str(getattr(error, "reason", "") or error) or type(error).__name__
        after = part.stat().st_size if part.exists() else 0
        if after > before:
            continue
        kept = f" The {after:,} bytes that arrived are kept: run this again to go on from them." if after else ""
        raise InputError(
            f"{archive.address} cannot be fetched ({reason}); check the connection, or place the file "
            f"(MD5 {archive.md5}) at '{file}' and run this again.{kept}"
        )


def _transfer(address: str, part: Path, start: int, progress: Progress | None) -> bool:
    """Append to `part` from byte `start` on; true when the whole file has arrived."""
    headers = {"User-Agent": f"scns/{__version__}"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:  # nothing is left: the check sum decides
            return True
        raise
    with response:
        resumed = response.status == http.client.PARTIAL_CONTENT
        done = start if resumed else 0  # a server without ranges sends everything again
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else 0
        with open(part, "ab" if resumed else "wb") as file:
            while block := response.read(_BLOCK):
                file.write(block)
                done += len(block)
                if progress:
                    progress(done, max(total, done))
    return done >= total


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)  # the sum the publishers give
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def unpack(file: Path, archive: Archive, root: str | Path, progress: Progress | None = None) -> Path:
    """The archive's folder under `root`, renamed into place when everything is unpacked."""
    root = Path(root).expanduser()
    with tempfile.TemporaryDirectory(prefix=f".{archive.folder}.", dir=root) as name:
        temporary = Path(name)
        try:
            members = _zip_members(file) if zipfile.is_zipfile(file) else _tar_members(file)
            with closing(members):  # a refused member must not leave the archive open
                for path, content, done, total in members:
                    with content:
                        _copy(content, temporary / _safe(path, file))
                    if progress:
                        progress(done, total)
        except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise InputError(f"'{file}' cannot be unpacked ({error}); delete it and run this again.") from error
        unpacked = temporary / archive.folder
        if not unpacked.is_dir():
            raise InputError(f"'{file}' holds no folder '{archive.folder}': it is another archive; delete it.")
        return unpacked.rename(root / archive.folder)


def _copy(content: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb") as out:
        shutil.copyfileobj(content, out, _BLOCK)


def _tar_members(file: Path) -> Generator[tuple[str, IO[bytes], int, int], None, None]:
    """(path, content, bytes read so far, bytes of the archive) of every file in a tar archive."""
    total = file.stat().st_size
    with open(file, "rb") as raw, tarfile.open(fileobj=raw, mode="r:*") as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is not None:
                yield member.name, content, raw.tell(), total
            elif not member.isdir():
                raise _refused(member.name, file, "a link or a device")


def _zip_members(file: Path) -> Generator[tuple[str, IO[bytes], int, int], None, None]:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        for done, member in enumerate(members, 1):
            mode = member.external_attr >> 16  # where Unix archivers keep the kind of a file; 0 elsewhere
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refused(member.filename, file, "a link or a device")
            if not member.is_dir():
                yield member.filename, archive.open(member), done, len(members)


def _safe(path: str, file: Path) -> PurePosixPath:
    """The path, which must stay inside the folder it is unpacked to, on any system."""
    parts = PurePosixPath(path)
    if parts.is_absolute() or ".." in parts.parts or "\\" in path or PureWindowsPath(path).drive:
        raise _refused(path, file, "a path outside its folder")
    return parts


def _refused(member: str, file: Path, what: str) -> InputError:
    return InputError(
        f"'{file}' holds '{member}', {what}; nothing was unpacked: delete it, it is not the published one."
    )
