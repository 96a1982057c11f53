"""`scns neighbors`: build, inspect and use neighbour tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scns.cli import screen
from scns.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from scns.neighbors import NeighborTable
    from scns.sampling import Negatives

app = typer.Typer(help="Build, inspect and sample neighbour tables.", no_args_is_help=True)

Table = Annotated[Path, typer.Argument(help="A table (.safetensors) or the index of its shards (.index.json).")]
Embeddings = Annotated[str | None, typer.Option(help=".npy, .npz (file.npz:key) or .safetensors, [rows, dim].")]
Labels = Annotated[str | None, typer.Option(help="Integer labels of the rows, same formats; -1 = unlabelled.")]
Scale = Annotated[float, typer.Option(help="P = softmax(scale * cosine); 0 draws uniformly from the neighbours.")]


@app.command()
def build(
    embeddings: Annotated[str, typer.Option(help=".npy, .npz (file.npz:key) or .safetensors, [rows, dim].")],
    out: Annotated[Path, typer.Option(help="Where to write the table (.safetensors).")],
    labels: Labels = None,
    k: Annotated[int, typer.Option("-k", help="Neighbours to keep for every row.")] = 500,
    exclude: Annotated[str, typer.Option(help="label: rows of another label only; self; none.")] = "label",
    groups: Annotated[
        str | None, typer.Option(help="Rows of one group are never paired (duplicates); -1 = none.")
    ] = None,
    backend: Annotated[
        str, typer.Option(help="exact, classes (approximate, by labels) or faiss (approximate).")
    ] = "exact",
    probe: Annotated[int | None, typer.Option(help="Lists an approximate backend looks at.")] = None,
    positive: Annotated[
        str, typer.Option(help="Own-class score to keep for margins: max, mean or a quantile.")
    ] = "max",
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the default is where the speed is.")] = None,
    chunk_rows: Annotated[int | None, typer.Option(help="Rows scored at a time: bounds the memory.")] = None,
    shard: Annotated[str | None, typer.Option(help="i/n: build part i of n only, to OUT-i-of-n.safetensors.")] = None,
    source: Annotated[str, typer.Option(help="A note on where the embeddings come from.")] = "",
) -> None:
    """Build a table of the top-k most similar rows, the own class left out."""
    from scns.arrays import load_array
    from scns.neighbors import NeighborTable, shard_rows

    if k < 1:
        raise InputError(f"k={k} must be at least 1.")
    x = load_array(embeddings)
    y = None if labels is None else load_array(labels)
    marks = None if groups is None else load_array(groups)
    rows, target = None, out
    if shard is not None:
        part, parts = _shard(shard)
        rows, target = shard_rows(len(x), part, parts), _shard_path(out, part, parts)
        if _finished(target, x, y, k):
            screen.out.print(f"{target} is finished already.")
            return
    with screen.progress("Finding neighbours") as advance:
        table = NeighborTable.build(
            x,
            y,
            k=k,
            exclude=None if exclude == "none" else exclude,
            groups=marks,
            backend=backend,
            probe=probe,
            device=device or _device(),
            chunk_rows=chunk_rows,
            rows=rows,
            positive=_positive(positive),
            source=source,
            progress=advance,
        )
    table.save(target)
    _describe(table, f"Wrote {target}", None)


@app.command()
def info(table: Table, scale: Scale = 5.0) -> None:
    """Describe a table: where it comes from, scores, hubs, how many negatives it amounts to."""
    from scns.neighbors import NeighborTable

    _describe(NeighborTable.load(table), str(table), scale)


@app.command()
def check(table: Table, embeddings: Embeddings = None, labels: Labels = None) -> None:
    """Make sure that a table belongs to these embeddings and labels."""
    from scns.arrays import load_array
    from scns.neighbors import NeighborTable

    if embeddings is None and labels is None:
        raise InputError("There is nothing to check against; give --embeddings, --labels or both.")
    loaded = NeighborTable.load(table)
    loaded.check(None if embeddings is None else load_array(embeddings), None if labels is None else load_array(labels))
    screen.out.print(f"{table} belongs to the given data.")


@app.command()
def sample(
    table: Table,
    anchors: Annotated[str, typer.Option(help="Row numbers, separated by commas.")] = "0",
    num: Annotated[int, typer.Option(help="Negatives for each anchor.")] = 8,
    epoch: Annotated[int, typer.Option(help="Draws differ from epoch to epoch.")] = 0,
    seed: Annotated[int, typer.Option(help="And from seed to seed; otherwise they are always the same.")] = 0,
    scale: Scale = 5.0,
    distinct: Annotated[bool, typer.Option(help="Without repetition.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the indices as .npy instead of printing them.")] = None,
) -> None:
    """Draw negatives from a table."""
    import numpy as np
    import torch

    from scns.files import atomic
    from scns.neighbors import NeighborTable

    loaded = NeighborTable.load(table)
    rows = _anchors(anchors, len(loaded))
    drawn = _sampler(loaded, scale, seed).sample(torch.tensor(rows), num, epoch=epoch, distinct=distinct)
    if out is not None:
        with atomic(out) as temporary, open(temporary, "wb") as file:
            np.save(file, drawn.numpy())
        screen.out.print(f"Wrote {len(rows)} x {num} negatives to {out}.")
        return
    screen.table(
        "", {"anchor": "right", "negatives": "left"}, [[a, *_words(d)] for a, d in zip(rows, drawn, strict=True)]
    )


@app.command()
def merge(
    shards: Annotated[list[Path], typer.Argument(help="All shards of one table.")],
    out: Annotated[Path, typer.Option(help="The index file to write, *.index.json.")],
) -> None:
    """Make one table of shards: checks that they belong together and writes an index file."""
    from scns.neighbors import merge as merge_shards

    content = merge_shards(list(shards), out)
    screen.out.print(f"Wrote {out}: {content['rows']} rows in {len(shards)} shards.")


@app.command()
def gallery(
    table: Table,
    images: Annotated[
        str, typer.Option(help="A data set's name (train split), or .npy uint8 [n, 3, h, w] or [n, h, w, 3].")
    ],
    out: Annotated[Path, typer.Option(help="The page to write (.html).")],
    anchors: Annotated[int, typer.Option(help="How many anchors to show.")] = 12,
    num: Annotated[int, typer.Option(help="Negatives beside each anchor.")] = 10,
    root: Annotated[Path | None, typer.Option(help="The data set's folder.")] = None,
    names: Annotated[Path | None, typer.Option(help="Label names, one a line.")] = None,
    scale: Scale = 5.0,
    seed: Annotated[int, typer.Option(help="Chooses anchors and draws.")] = 0,
) -> None:
    """Show anchors with their nearest, drawn and uniform negatives on one page."""
    from scns import draws
    from scns.gallery import write_gallery

    if anchors < 1 or num < 1:
        raise InputError(f"A gallery needs at least 1 anchor and 1 negative, not {anchors} and {num}.")
    loaded, pixels, labels, words = _pictures(table, images, root, names)
    chosen = draws.permutation(len(loaded), seed, draws.SPLIT)[:anchors]
    shown = _rows_of_gallery(loaded, labels, chosen, min(num, loaded.info.k), scale, seed)
    write_gallery(out, f"Negatives of {table.name}", pixels, labels, words, chosen, shown)
    screen.out.print(f"Wrote {out}: {len(chosen)} anchors. Open it in a browser.")


def _pictures(
    path: Path, images: str, root: Path | None, names: Path | None
) -> "tuple[NeighborTable, Tensor, Tensor | None, list[str]]":
    from scns import datasets
    from scns.arrays import load_array
    from scns.neighbors import NeighborTable

    loaded = NeighborTable.load(path)
    labels = None if loaded.labels is None else loaded.labels.long()
    words = names.read_text(encoding="utf-8").split("\n") if names is not None else []
    if images in datasets.names():
        data = datasets.load(images, root)
        pixels, labels, words = data.pixels, data.labels if labels is None else labels, words or list(data.names)
    else:
        pixels = load_array(images)
        if pixels.dim() == 4 and pixels.shape[1] != 3 and pixels.shape[3] == 3:
            pixels = pixels.permute(0, 3, 1, 2)
    if pixels.dim() != 4 or pixels.shape[1] != 3 or str(pixels.dtype) != "torch.uint8":
        raise InputError(
            f"Pictures must be uint8 [n, 3, h, w] or [n, h, w, 3], but '{images}' is {tuple(pixels.shape)}."
        )
    if len(pixels) != len(loaded):
        raise InputError(f"The table has {len(loaded)} rows, but '{images}' has {len(pixels)} pictures.")
    return loaded, pixels, labels, words


def _rows_of_gallery(
    table: "NeighborTable", labels: "Tensor | None", chosen: "Tensor", num: int, scale: float, seed: int
) -> list:
    import torch

    from scns.gallery import Drawn, from_table
    from scns.sampling import UniformNegatives

    drawn = _sampler(table, scale, seed).sample(chosen, num)
    about = f"drawn from the {table.info.k} nearest, P = softmax({scale:g} cosine)."
    shown = [
        from_table("Nearest", "the most similar rows.", table, chosen, table.indices[chosen, :num].long()),
        from_table("Instance-SCNS", about, table, chosen, drawn),
    ]
    if labels is not None and len(torch.unique(labels)) > 1:
        uniform = UniformNegatives(labels, seed=seed).sample(chosen, num)
        shown.append(Drawn("Uniform", "any sample of another class.", uniform))
    return shown


def _describe(table: "NeighborTable", title: str, scale: float | None) -> None:
    told = {**table.describe(scale)}
    info = table.info
    rows: list[list[object]] = [
        ["built from", f"{info.corpus_rows} x {info.dim} embeddings {info.embeddings_sha256[:12]}"]
    ]
    rows += [["excluded", info.exclude or "nothing"], ["backend", f"{info.backend}, recall {info.recall:.4f}"]]
    rows += [[name, value] for name, value in (("filters", info.filters), ("source", info.source)) if value]
    rows += [[name, _shown(value)] for name, value in told.items()]
    rows.append(["bytes", f"{table.indices.numel() * 6 / 1e6:,.1f} MB"])
    screen.table(title, {"": "left", " ": "left"}, rows)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {number}" for name, number in value.items())
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _sampler(table: "NeighborTable", scale: float, seed: int) -> "Negatives":
    from scns.sampling import InstanceNegatives, UniformNegatives

    fallback = None if table.labels is None else UniformNegatives(table.labels.long(), seed=seed)
    return InstanceNegatives(table, scale=scale, seed=seed, fallback=fallback)


def _anchors(text: str, rows: int) -> list[int]:
    try:
        chosen = [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"--anchors '{text}' are not row numbers separated by commas.") from None
    for row in chosen:
        if not 0 <= row < rows:
            raise InputError(f"Anchor {row} does not exist: the table has rows 0 to {rows - 1}.")
    return chosen


def _words(drawn: "Tensor") -> list[str]:
    return [" ".join(map(str, drawn.tolist()))]


def _shard(text: str) -> tuple[int, int]:
    try:
        part, parts = (int(word) for word in text.split("/"))
    except ValueError:
        raise InputError(f"--shard '{text}' must be i/n, such as 3/64.") from None
    return part, parts


def _shard_path(out: Path, part: int, parts: int) -> Path:
    return out.with_name(f"{out.stem}-{part:05d}-of-{parts:05d}{out.suffix}")


def _finished(path: Path, embeddings: "Tensor", labels: "Tensor | None", k: int) -> bool:
    from scns.neighbors import NeighborTable

    if not path.exists():
        return False
    table = NeighborTable.load(path)
    table.check(embeddings, labels)
    if table.info.k != k:
        raise InputError(f"'{path}' exists with k = {table.info.k}, not {k}; remove it or choose another name.")
    return True


def _positive(text: str) -> str | float | None:
    try:
        return float(text)
    except ValueError:
        return None if text == "none" else text


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
