"""Downloads: resumed, checked, unpacked safely, never half there. Everything is served from this machine."""

import hashlib
import io
import os
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scns import download
from scns.download import Archive
from scns.draws import integers
from scns.errors import InputError

FILES = {"set/a.bin": bytes(range(256)) * 40, "set/deep/b.txt": b"names\n"}


def noise(count: int) -> bytes:
    import torch

    return bytes(integers(256, 3, torch.arange(count)).tolist())  # does not compress: archives keep their length


def tar_of(files: dict[str, bytes], *extra: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        folder = tarfile.TarInfo("set")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for member in extra:
            tar.addfile(member)
    return out.getvalue()


def zip_of(files: dict[str, bytes], mode: int = 0) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.mkdir("set") if hasattr(archive, "mkdir") else archive.writestr("set/", b"")
        for name, content in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            archive.writestr(member, content)
    return out.getvalue()


class Server(ThreadingHTTPServer):
    content = b""
    ranges = True
    cuts: list[int]  # how many bytes each of the next answers gives before the connection breaks
    status = 0  # where set, every answer is this error
    requests: list[str | None]  # the Range header of every request


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.requests.append(asked)
        if self.server.status:
            self.send_error(self.server.status)
            return
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.server.ranges else 0
        if start and start >= len(self.server.content):
            self.send_error(416)
            return
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header(
                "Content-Range", f"bytes {start}-{len(self.server.content) - 1}/{len(self.server.content)}"
            )
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cuts.pop(0)] if self.server.cuts else body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server(("127.0.0.1", 0), Handler) as running:
        running.cuts, running.requests = [], []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def published(server: Server, content: bytes, file: str = "set.tar.gz") -> Archive:
    server.content = content
    address = f"http://127.0.0.1:{server.server_port}/here/{file}"
    return Archive(address, hashlib.md5(content).hexdigest(), "set")


def assert_whole(root: Path) -> None:
    assert os.listdir(root) == ["set"]  # no archive, no part, no temporary folder
    assert {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()} == FILES


def assert_nothing(root: Path, *allowed: str) -> None:
    assert sorted(os.listdir(root)) == sorted(allowed)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_a_data_set_is_fetched_and_unpacked(server: Server, tmp_path: Path, kind: str) -> None:
    archive = (
        published(server, tar_of(FILES), "set.tar.gz") if kind == "tar" else published(server, zip_of(FILES), "set.zip")
    )
    seen: list[tuple[int, int]] = []
    folder = download.get("any", tmp_path / "new", archive=archive, progress=lambda *step: seen.append(step))
    assert folder == tmp_path / "new" / "set"
    assert_whole(tmp_path / "new")
    assert (len(server.content), len(server.content)) in seen and all(done <= total for done, total in seen)


def test_a_data_set_that_is_there_is_not_fetched_again(server: Server, tmp_path: Path) -> None:
    archive = published(server, tar_of(FILES))
    download.get("any", tmp_path, archive=archive)
    download.get("any", tmp_path, archive=archive)
    assert len(server.requests) == 1


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_download_goes_on(server: Server, tmp_path: Path, ranges: bool) -> None:
    archive = published(server, tar_of({**FILES, "set/noise": noise(50_000)}))
    server.cuts, server.ranges = [20_000, 20_000], ranges
    if ranges:
        download.get("any", tmp_path, archive=archive)
        assert server.requests == [None, "bytes=20000-", "bytes=40000-"]
    else:  # the second answer starts from the beginning and brings nothing new: stop, and let the user decide
        with pytest.raises(InputError, match=r"closed too early.*The 20,000 bytes that arrived are kept"):
            download.get("any", tmp_path, archive=archive)
        assert_nothing(tmp_path, "set.tar.gz.part")
        download.get("any", tmp_path, archive=archive)
    assert (tmp_path / "set" / "noise").read_bytes() == noise(50_000)
    assert_nothing(tmp_path, "set")


def test_a_download_goes_on_in_a_later_run(server: Server, tmp_path: Path) -> None:
    archive = published(server, tar_of(FILES))
    (tmp_path / "set.tar.gz.part").write_bytes(server.content[:100])
    download.get("any", tmp_path, archive=archive)
    assert server.requests == ["bytes=100-"]
    assert_whole(tmp_path)


def test_a_part_that_is_whole_needs_no_more_bytes(server: Server, tmp_path: Path) -> None:
    archive = published(server, tar_of(FILES))
    (tmp_path / "set.tar.gz.part").write_bytes(server.content)
    download.get("any", tmp_path, archive=archive)
    assert_whole(tmp_path)


def test_a_download_with_a_wrong_sum_is_deleted(server: Server, tmp_path: Path) -> None:
    archive = published(server, tar_of(FILES))._replace(md5="0" * 32)
    found = hashlib.md5(server.content).hexdigest()
    with pytest.raises(InputError, match=f"MD5 sum of '.*set.tar.gz' is {found}, but the published file has 0000"):
        download.get("any", tmp_path, archive=archive)
    assert_nothing(tmp_path)


def test_a_damaged_part_is_found_by_the_sum(server: Server, tmp_path: Path) -> None:
    archive = published(server, tar_of(FILES))
    (tmp_path / "set.tar.gz.part").write_bytes(bytes(100))
    with pytest.raises(InputError, match="the download was damaged and is deleted; run this again"):
        download.get("any", tmp_path, archive=archive)
    assert_nothing(tmp_path)
    download.get("any", tmp_path, archive=archive)
    assert_whole(tmp_path)


def unreachable(content: bytes = b"") -> Archive:
    return Archive("http://127.0.0.1:9/set.tar.gz", hashlib.md5(content).hexdigest(), "set")


def test_offline_it_says_which_file_goes_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    archive = unreachable()
    message = rf"{archive.address} cannot be fetched .*place the file \(MD5 {archive.md5}\) at '{tmp_path}/set.tar.gz'"
    with pytest.raises(InputError, match=message):
        download.get("any", tmp_path, archive=archive)
    assert_nothing(tmp_path)


def test_an_archive_that_was_placed_is_used_and_kept(tmp_path: Path) -> None:
    content = tar_of(FILES)
    (tmp_path / "set.tar.gz").write_bytes(content)
    download.get("any", tmp_path, archive=unreachable(content))
    assert (tmp_path / "set" / "a.bin").read_bytes() == FILES["set/a.bin"]
    assert_nothing(tmp_path, "set", "set.tar.gz")


def test_a_placed_archive_with_a_wrong_sum_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(tar_of(FILES))
    with pytest.raises(InputError, match=r"but the published file has .*: delete it; run this again"):
        download.get("any", tmp_path, archive=unreachable())
    assert_nothing(tmp_path, "set.tar.gz")


@pytest.mark.parametrize("status", [403, 404, 503])
def test_a_server_that_refuses_is_told(server: Server, tmp_path: Path, status: int) -> None:
    archive = published(server, tar_of(FILES))
    server.status = status
    with pytest.raises(InputError, match=f"{archive.address} cannot be fetched .*place the file"):
        download.get("any", tmp_path, archive=archive)
    assert_nothing(tmp_path)


def link(kind: bytes, target: str = "../../outside") -> tarfile.TarInfo:
    member = tarfile.TarInfo("set/link")
    member.type, member.linkname = kind, target
    return member


EVIL = {
    "parent": (tar_of({**FILES, "set/../../outside": b"x"}), "'set/../../outside', a path outside"),
    "absolute": (tar_of({**FILES, "/tmp/outside-of-scns": b"x"}), "'/tmp/outside-of-scns', a path outside"),
    "symbolic link": (tar_of(FILES, link(tarfile.SYMTYPE)), "'set/link', a link or a device"),
    "hard link": (tar_of(FILES, link(tarfile.LNKTYPE, "set/a.bin")), "'set/link', a link or a device"),
    "device": (tar_of(FILES, link(tarfile.CHRTYPE)), "'set/link', a link or a device"),
    "pipe": (tar_of(FILES, link(tarfile.FIFOTYPE)), "'set/link', a link or a device"),
    "zip parent": (zip_of({**FILES, "../outside": b"x"}), "'../outside', a path outside"),
    "zip absolute": (zip_of({**FILES, "/outside-of-scns": b"x"}), "'/outside-of-scns', a path outside"),
    "zip drive": (zip_of({**FILES, "C:/outside": b"x"}), "'C:/outside', a path outside"),
    "zip backslash": (zip_of({**FILES, "set\\..\\..\\outside": b"x"}), "a path outside"),
    "zip link": (zip_of({"set/link": b"/etc/passwd"}, stat.S_IFLNK | 0o777), "'set/link', a link or a device"),
    "another set": (tar_of({"other/a": b"x"}), None),
    "no archive": (b"<html>not found</html>", "cannot be unpacked"),
    "cut tar": (tar_of({"set/noise": noise(30_000)})[:20_000], "cannot be unpacked"),
}


@pytest.mark.parametrize("case", EVIL)
def test_evil_and_broken_archives_leave_nothing(tmp_path: Path, case: str) -> None:
    content, message = EVIL[case]
    root = tmp_path / "root"
    root.mkdir()
    (root / "set.tar.gz").write_bytes(content)
    archive = unreachable(content)
    if message is None:
        archive, message = archive._replace(folder="wanted"), "holds no folder 'wanted'"
    with pytest.raises(InputError) as raised:
        download.get("any", root, archive=archive)
    assert message in str(raised.value) and "set.tar.gz" in str(raised.value)
    assert_nothing(root, "set.tar.gz")
    assert_nothing(tmp_path, "root")
    assert not Path("/tmp/outside-of-scns").exists() and not Path("/outside-of-scns").exists()


def test_a_full_disk_while_unpacking_leaves_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    content = tar_of(FILES)
    (tmp_path / "set.tar.gz").write_bytes(content)
    monkeypatch.setattr(download.shutil, "copyfileobj", full)
    with pytest.raises(OSError, match="No space left"):
        download.get("any", tmp_path, archive=unreachable(content))
    assert_nothing(tmp_path, "set.tar.gz")


def test_the_published_archives_are_named() -> None:
    assert sorted(download.ARCHIVES) == ["cifar10", "cifar100", "tiny-imagenet-200"]
    for archive in download.ARCHIVES.values():
        assert len(archive.md5) == 32 and archive.address.endswith(archive.file)
    with pytest.raises(InputError, match="Unknown download 'cifar11'; did you mean cifar10"):
        download.get("cifar11", ".")
