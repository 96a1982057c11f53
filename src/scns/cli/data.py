"""`scns data`: fetch data sets and look at them."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scns.cli import screen
from scns.errors import InputError
from scns.phrases import count

if TYPE_CHECKING:
    from scns.data import Images

app = typer.Typer(help="Fetch data sets and look at them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Data set: see `scns data list`.", show_default=False)]
Root = Annotated[Path, typer.Option(help="The folder that holds the data set's own folder.")]
Size = Annotated[
    int | None, typer.Option(help="Pixels a side, for your own images (`folder`, `shards`); by default 32.")
]
_MEGABYTE = 1_000_000


@app.command("list")
def list_() -> None:
    """List the data sets."""
    from scns import datasets, download

    rows: list[list[object]] = []
    for name in datasets.names():
        command = f"scns data get {name}" if name in download.ARCHIVES else ""
        rows.append([name, datasets.describe(name), command])
    screen.table("", {"name": "left", "what it is": "left", "fetch it with": "left"}, rows)


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100 or tiny-imagenet-200.", show_default=False)],
    root: Annotated[Path, typer.Option(help="The folder that will hold the data set's own folder.")] = Path("data"),
) -> None:
    """Download a data set, check it and unpack it; a broken download goes on where it stopped.

    Example: scns data get cifar100 --root data
    """
    from scns import datasets, download

    if name in datasets.names() and name not in download.ARCHIVES:
        raise InputError(f"There is nothing to fetch for '{name}': {datasets.describe(name)}.")
    archive = download.find(name)
    folder = root.expanduser() / archive.folder
    if folder.exists():
        screen.out.print(f"{name} is there already: {folder}")
        return
    with screen.progress(f"Downloading {archive.file}", "MB") as advance:
        file, downloaded = download.fetch(
            archive, root, lambda done, total: advance(done // _MEGABYTE, total // _MEGABYTE)
        )
    with screen.progress(f"Unpacking {archive.file}", "steps") as advance:
        folder = download.unpack(file, archive, root, advance)
    if downloaded:
        file.unlink()
    screen.out.print(f"{name}: {folder}")


@app.command()
def info(
    name: Name,
    root: Root = Path("data"),
    sheet: Annotated[Path | None, typer.Option(help="Write a picture of every class's first images here.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave corrupt image files out.")] = False,
    size: Size = None,
) -> None:
    """Show a data set's counts, classes, image size, mean and standard deviation.

    Example: scns data info folder --root PICTURES --sheet sheet.png
    """
    options: dict[str, object] = {}
    if skip_bad:
        options["skip_bad"] = True
    if size is not None:
        options["size"] = size
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        splits = {split: _load(name, root, split, options) for split in ("train", "test")}
    for sentence in dict.fromkeys(str(warning.message) for warning in said):  # once, though both splits may say it
        screen.complain(sentence)
    _print(name, splits)
    if sheet is not None:
        from scns.datasets._sheet import contact_sheet
        from scns.files import atomic

        with atomic(sheet) as path:
            contact_sheet(splits["train"]).save(path, "PNG")
        screen.out.print(f"\nContact sheet: {sheet}")


@app.command()
def pack(
    name: Name,
    out: Annotated[Path, typer.Option(help="The folder to write train/*.tar and test/*.tar to.", show_default=False)],
    root: Root = Path("data"),
    each: Annotated[int, typer.Option(help="Images in a shard.")] = 1000,
    size: Size = None,
) -> None:
    """Write a data set as tar shards (webdataset): train on them with --set data=shards --set root=OUT.

    Example: scns data pack cifar10-mini --out shards
    """
    from scns.datasets._pack import pack as write
    from scns.datasets._pack import planned

    options: dict[str, object] = {} if size is None else {"size": size}
    splits = {split: _load(name, root, split, options) for split in ("train", "test")}
    for split, images in splits.items():
        planned(len(images), out, split, each)  # before anything is written
    for split, images in splits.items():
        with screen.progress(f"Packing {split}", "images") as advance:
            paths = write(images, out, split, each=each, progress=advance)
        screen.out.print(f"{paths[0].parent}: {len(images):,} images in {count(len(paths), 'shard')}")


def _load(name: str, root: Path, split: str, options: dict[str, object]) -> "Images":
    from scns import datasets

    with screen.progress(f"Decoding {name} {split}", "images") as advance:
        if "progress" in datasets.options(name):
            options = {**options, "progress": advance}
        return datasets.load(name, root, split, **options)


def _print(name: str, splits: dict[str, "Images"]) -> None:
    from scns.datasets._moments import moments

    rows: list[list[object]] = []
    for split, images in splits.items():
        counts = images.known().labels.bincount(minlength=max(1, images.classes))
        low, high = int(counts.min()), int(counts.max())
        found = moments(images.take(slice(None)))
        rows.append(
            [
                split,
                f"{len(images):,}",
                f"{low:,}" if low == high else f"{low:,} to {high:,}",
                f"{images.pixels.shape[2]} x {images.pixels.shape[3]}",
                " ".join(f"{value:.4f}" for value in found.mean),
                " ".join(f"{value:.4f}" for value in found.std),
            ]
        )
    headings = ["split", "images", "a class", "pixels", "mean (R G B)", "std (R G B)"]
    screen.table(name, {heading: "left" if heading == "split" else "right" for heading in headings}, rows)
    for split, images in splits.items():
        if unknown := len(images) - len(images.known()):
            screen.out.print(f"\n{unknown:,} of the {split} images are unlabelled (-1)")
    train = splits["train"]
    mean, std = (" ".join(f"{value:.4f}" for value in values) for values in (train.mean, train.std))
    screen.out.print(f"\nnormalised by: mean {mean}, std {std}")
    _print_names("classes", train.names)
    if train.coarse_names:
        _print_names("superclasses", train.coarse_names)


def _print_names(heading: str, names: tuple[str, ...]) -> None:
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")  # 20: about two lines of a terminal
    screen.out.print(f"{len(names)} {heading}: {shown}")
