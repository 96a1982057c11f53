"""A data set as tar shards that `shards` and webdataset read: PNG images, so that no pixel changes."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

from PIL import Image

from scns.data import Images
from scns.errors import InputError
from scns.files import atomic


def pack(
    images: Images, folder: Path, split: str, *, each: int = 1000, progress: Callable[[int, int], None] | None = None
) -> list[Path]:
    """Write the images to folder/<split>/000000.tar and on, `each` in a shard, and their classes; the shards' paths."""
    for name in images.names:
        odd = "\n" in name or "\r" in name or not name or name != name.strip() or name.startswith("\ufeff")
        if odd or name != name.encode(errors="replace").decode():
            raise InputError(f"The class {name!r} cannot stand in a text file, a name a line; rename it.")
    paths = planned(len(images), folder, split, each)
    with atomic(folder / "classes.txt") as temporary:
        temporary.write_text("\n".join(images.names) + "\n", encoding="utf-8")
    for path, start in zip(paths, range(0, len(images), each), strict=True):
        with atomic(path) as temporary, tarfile.open(temporary, "w") as archive:
            for row in range(start, min(start + each, len(images))):
                pixels = Image.fromarray(images.pixels[row].permute(1, 2, 0).cpu().numpy())
                content = io.BytesIO()
                pixels.save(content, "PNG")
                _add(archive, f"{row:08d}.png", content.getvalue())
                _add(archive, f"{row:08d}.cls", str(int(images.labels[row])).encode())
        if progress:
            progress(min(start + each, len(images)), len(images))
    return paths


def planned(count: int, folder: Path, split: str, each: int) -> list[Path]:
    """The shards of so many images; raises where others lie beside them, which would be read as more images."""
    if each < 1:
        raise InputError(f"A shard needs at least 1 image, not {each}.")
    paths = [folder / split / f"{shard:06d}.tar" for shard in range(-(-count // each))]
    others = sorted({*(folder / split).glob("*.tar")} - {*paths})
    if others:
        raise InputError(
            f"'{others[0]}' is a shard of something else, which would count as more images; remove it or choose "
            "another folder."
        )
    return paths


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
