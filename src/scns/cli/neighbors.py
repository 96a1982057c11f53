"""`scns neighbors`: build, inspect and use neighbour tables."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scns.cli import screen
from scns.errors import InputError, unknown

if TYPE_CHECKING:
    from torch import Tensor

    from scns.neighbors import NeighborTable
    from scns.sampling import Negatives

    Embedded = Tensor | list[Tensor]  # one array, or its row shards

app = typer.Typer(help="Build, inspect, filter and sample neighbour tables.", no_args_is_help=True)

Table = Annotated[Path, typer.Argument(help="A table (.safetensors) or the index of its shards (.index.json).")]
_EMBEDDINGS = ".npy, .npz (file.npz:key), .safetensors or the .index.json of shards: float \\[rows, dim]."
Embeddings = Annotated[str | None, typer.Option(help=_EMBEDDINGS)]
Labels = Annotated[
    str | None,
    typer.Option(
        help="Integer labels \\[rows], one such file; -1 = unlabelled. Without them only the row itself is left out."
    ),
]
Scale = Annotated[float, typer.Option(help="P = softmax(scale * cosine); 0 draws uniformly from the neighbours.")]


_EXCLUDE = ("label", "self", "none")


@app.command()
def build(
    embeddings: Annotated[str, typer.Option(help=_EMBEDDINGS)],
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
    chunk_rows: Annotated[int | None, typer.Option(help="Rows scored at a time, in memory.")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Bytes the search may take, such as 8G: the embeddings are read in blocks.")
    ] = None,
    first: Annotated[
        int | None, typer.Option(help="Search for the first N rows alone: queries, before their passages.")
    ] = None,
    shard: Annotated[str | None, typer.Option(help="i/n: build part i of n only, to OUT-i-of-n.safetensors.")] = None,
    shards: Annotated[
        int | None, typer.Option(help="Build in that many parts; finished ones are kept. Default: torchrun's ranks.")
    ] = None,
    source: Annotated[str, typer.Option(help="A note on where the embeddings come from.")] = "",
) -> None:
    """Build a table of the top-k most similar rows, the own class left out.

    Example: scns neighbors build --embeddings x.npy --labels y.npy -k 100 --out table.safetensors

    Under torchrun every rank builds its parts: torchrun --nproc-per-node 4 -m scns neighbors build ...
    """
    from scns import ranks
    from scns.arrays import load_array, load_pieces
    from scns.files import check_writable

    if k < 1:
        raise InputError(f"k={k} must be at least 1.")
    if exclude not in _EXCLUDE:
        raise unknown("value of --exclude", exclude, _EXCLUDE)
    _check_ending(out)
    check_writable(out)
    pieces = load_pieces(embeddings)
    rank, world = ranks.of_torchrun()
    told = screen.out.print if rank == 0 else None
    options: dict[str, Any] = {
        "k": k,
        "exclude": None if exclude == "none" else exclude,
        "groups": None if groups is None else load_array(groups),
        "backend": backend,
        "probe": probe,
        "device": ranks.device(device or _device()),
        "chunk_rows": chunk_rows,
        "memory": memory,
        "positive": _positive(positive),
        "source": source,
        "tell": told,
    }
    x, y = pieces[0] if len(pieces) == 1 else pieces, None if labels is None else load_array(labels)
    count = sum(map(len, pieces))
    if first is not None and not 1 <= first <= count:
        raise InputError(f"--first {first} must be from 1 to {count}, the number of rows.")
    if first is not None and (shard is not None or shards is not None or world > 1):
        raise InputError(f"--first {first} is built in one part; leave it or --shard, --shards and torchrun out.")
    if shard is not None:
        _build_parts(x, y, out, [_shard(shard)[0]], _shard(shard)[1], options)
    elif shards is not None or world > 1:
        parts = world if shards is None else shards
        if parts < world:
            raise InputError(f"--shards {parts} leaves some of the {world} ranks without work; give at least {world}.")
        _build_parts(x, y, out, ranks.shares(parts), parts, options)
        _merge_if_finished(out, parts)
    else:
        _describe(_build_part(x, y, None if first is None else range(first), out, options), f"Wrote {out}", None)


def _build_part(
    x: "Embedded", y: "Tensor | None", rows: range | None, target: Path, options: dict[str, Any]
) -> "NeighborTable":
    from scns.neighbors import NeighborTable

    with screen.progress("Finding neighbours") as advance:
        table = NeighborTable.build(x, y, rows=rows, progress=advance, **options)
    table.save(target)
    return table


def _build_parts(
    x: "Embedded", y: "Tensor | None", out: Path, mine: list[int], parts: int, options: dict[str, Any]
) -> None:
    """Build the shards `mine` of `parts`, apart from those that are finished already."""
    from scns.files import shard_path
    from scns.tableshards import shard_rows

    count = sum(map(len, x)) if isinstance(x, list) else len(x)
    if parts > count:
        raise InputError(f"{count} rows cannot be cut in {parts} shards; give at most {count}.")
    known: dict[str, str] = {}
    for part in mine:
        rows, target = shard_rows(count, part, parts), shard_path(out, part, parts)
        if target.exists():
            _check_finished(target, x, y, rows, options, known)
            screen.out.print(f"{target} is finished already.")
        else:
            _build_part(x, y, rows, target, options)
            screen.out.print(f"Wrote {target}: rows {rows.start:,} to {rows.stop - 1:,}.")


def _check_finished(
    path: Path, x: "Embedded", y: "Tensor | None", rows: range, options: dict[str, Any], known: dict[str, str]
) -> None:
    """Refuse a shard that exists and is of another table; `known` keeps the fingerprints from shard to shard."""
    from scns.neighbors import NeighborTable, fingerprints

    if not known:
        known.update(fingerprints(x, y, options["groups"]))
    info = NeighborTable.load(path).info
    excluded = options["exclude"] if y is not None or options["exclude"] is None else "self"
    kept = "" if excluded != "label" or options["positive"] is None else str(options["positive"])
    wanted = {"k": options["k"], "exclude": excluded, "backend": options["backend"], "positive": kept, "filters": ""}
    wanted["probe"] = 0 if options["backend"] == "exact" else options["probe"] or 0
    for name, value in {**wanted, "first_row": rows.start, "rows": len(rows), **known}.items():
        found = getattr(info, name)
        if found != value:
            raise InputError(
                f"'{path}' is a shard of another table: it has {name} = {str(found)[:12] or 'none'}, not "
                f"{str(value)[:12] or 'none'}; "
                "remove it or choose another --out."
            )


def _merge_if_finished(out: Path, parts: int) -> None:
    """Write the index as soon as all shards are there: the last rank to finish does."""
    from scns.files import index_path, shard_path
    from scns.neighbors import merge as merge_shards

    paths = [shard_path(out, part, parts) for part in range(1, parts + 1)]
    if all(path.exists() for path in paths):
        rows = merge_shards(paths, index_path(out))
        screen.out.print(f"Wrote {index_path(out)}: {rows:,} rows in {parts} shards.")


@app.command()
def info(table: Table, scale: Scale = 5.0) -> None:
    """Describe a table: where it comes from, scores, hubs, how many negatives it amounts to.

    Example: scns neighbors info table.safetensors
    """
    from scns.neighbors import NeighborTable

    _describe(NeighborTable.load(table), str(table), scale)


@app.command()
def check(table: Table, embeddings: Embeddings = None, labels: Labels = None) -> None:
    """Make sure that a table belongs to these embeddings and labels.

    Example: scns neighbors check table.safetensors --embeddings x.npy --labels y.npy
    """
    from scns.arrays import load_array, load_pieces
    from scns.neighbors import NeighborTable

    if embeddings is None and labels is None:
        raise InputError("There is nothing to check against; give --embeddings, --labels or both.")
    loaded = NeighborTable.load(table)
    loaded.check(
        None if embeddings is None else load_pieces(embeddings), None if labels is None else load_array(labels)
    )
    screen.out.print(f"{table} belongs to the given data.")


@app.command("filter")
def filter_(
    table: Table,
    out: Annotated[Path, typer.Option(help="Where to write the filtered table (.safetensors).")],
    max_score: Annotated[float | None, typer.Option(help="Keep neighbours with at most this cosine.")] = None,
    min_score: Annotated[float | None, typer.Option(help="Keep neighbours with at least this cosine.")] = None,
    skip: Annotated[int, typer.Option(help="Leave out that many of the nearest.")] = 0,
    absolute_margin: Annotated[
        float | None, typer.Option(help="Keep cosines of at most p - MARGIN, p the row's own-class score.")
    ] = None,
    relative_margin: Annotated[float | None, typer.Option(help="Keep cosines of at most p - |p| * MARGIN.")] = None,
) -> None:
    """Leave out suspected false negatives: neighbours that may be positives in truth.

    Example: scns neighbors filter table.safetensors --relative-margin 0.05 --out filtered.safetensors
    """
    from scns.files import check_writable
    from scns.neighbors import NeighborTable

    _check_ending(out)
    limits = {"max_score": max_score, "min_score": min_score, "skip": skip or None}
    limits |= {"absolute_margin": absolute_margin, "relative_margin": relative_margin}
    given = {name: value for name, value in limits.items() if value is not None}
    if not given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in limits)
        raise InputError(f"There is nothing to filter by; give one or more of {options}.")
    check_writable(out)
    kept = NeighborTable.load(table).filtered(**given)  # type: ignore[arg-type]
    kept.save(out)
    _describe(kept, f"Wrote {out}", None)


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
    """Draw negatives from a table.

    Example: scns neighbors sample table.safetensors --anchors 0,7 --num 16
    """
    import torch

    from scns.arrays import save_array
    from scns.neighbors import NeighborTable

    if out is not None and out.suffix != ".npy":
        raise InputError(f"'{out}' must end in .npy.")
    loaded = NeighborTable.load(table)
    rows = _anchors(anchors, len(loaded))
    drawn = _sampler(loaded, scale, seed).sample(torch.tensor(rows), num, epoch=epoch, distinct=distinct)
    if out is not None:
        save_array(out, drawn)
        screen.out.print(f"Wrote {len(rows)} x {num} negatives to {out}.")
        return
    shown: list[list[object]] = [[row, " ".join(map(str, own))] for row, own in zip(rows, drawn.tolist(), strict=True)]
    screen.table("", {"anchor": "right", "negatives": "left"}, shown)


@app.command()
def merge(
    shards: Annotated[list[Path], typer.Argument(help="All shards of one table.")],
    out: Annotated[Path, typer.Option(help="An index to write (*.index.json), or one file (*.safetensors).")],
) -> None:
    """Make one table of shards: checks that they belong together and writes an index, or one file.

    Example: scns neighbors merge table-*-of-*.safetensors --out whole.safetensors
    """
    from scns.neighbors import merge as merge_shards

    rows = merge_shards(list(shards), out)
    screen.out.print(f"Wrote {out}: {rows:,} rows of {len(shards)} shards.")


@app.command()
def gallery(
    table: Table,
    images: Annotated[
        str, typer.Option(help="A data set's name (train split), or .npy uint8 \\[n, 3, h, w] or \\[n, h, w, 3].")
    ],
    out: Annotated[Path, typer.Option(help="The page to write (.html).")],
    anchors: Annotated[int, typer.Option(help="How many anchors to show.")] = 12,
    num: Annotated[int, typer.Option(help="Negatives beside each anchor.")] = 10,
    root: Annotated[Path | None, typer.Option(help="The data set's folder.")] = None,
    names: Annotated[Path | None, typer.Option(help="Label names, one a line.")] = None,
    scale: Scale = 5.0,
    seed: Annotated[int, typer.Option(help="Chooses anchors and draws.")] = 0,
) -> None:
    """Show anchors with their nearest, drawn and uniform negatives on one page.

    Example: scns neighbors gallery scns-demo/neighbors.safetensors --images cifar10-mini --out gallery.html
    """
    from scns import draws
    from scns.files import check_writable
    from scns.gallery import write_gallery

    if anchors < 1 or num < 1:
        raise InputError(f"A gallery needs at least 1 anchor and 1 negative, not {anchors} and {num}.")
    check_writable(out)
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
    from scns.cli.words import label_lines
    from scns.neighbors import NeighborTable

    loaded = NeighborTable.load(path)
    labels = None if loaded.labels is None else loaded.labels.long()
    words = [] if names is None else [line.strip() for line in label_lines(names) if line.strip()]
    if images in datasets.names():
        data = datasets.load(images, root)
        pixels, labels, words = (
            data.take(slice(None)),
            data.labels if labels is None else labels,
            words or list(data.names),
        )
        if len(words) != data.classes:
            raise InputError(f"'{names}' holds {len(words)} names, but {images} has {data.classes} classes.")
    elif not Path(images).suffix:
        raise unknown("data set", images, datasets.names())
    else:
        pixels = load_array(images)
        if pixels.dim() == 4 and pixels.shape[1] != 3 and pixels.shape[3] == 3:
            pixels = pixels.permute(0, 3, 1, 2)
    if pixels.dim() != 4 or pixels.shape[1] != 3 or str(pixels.dtype) != "torch.uint8":
        raise InputError(
            f"Pictures must be uint8 [n, 3, h, w] or [n, h, w, 3], but '{images}' is {tuple(pixels.shape)}."
        )
    if len(pixels) != loaded.info.corpus_rows:
        raise InputError(
            f"The table is among {loaded.info.corpus_rows} rows, but '{images}' has {len(pixels)} pictures; --images "
            "takes those of all its rows: a data set's name stands for its training images, a .npy file for any."
        )
    return loaded, pixels, labels, words


def _check_ending(out: Path) -> None:
    if out.suffix != ".safetensors":
        raise InputError(f"'{out}' must end in .safetensors, the format of tables.")


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
    from scns.room import shown
    from scns.tableinfo import MEANING

    info = table.info
    of = info.embeddings_sha256[:12] or "of several sets"
    rows: list[list[object]] = [["built from", f"{_part(table)}{info.corpus_rows:,} x {info.dim} embeddings {of}"]]
    rows += [["excluded", info.exclude or "nothing"], ["backend", f"{info.backend}, recall {info.recall:.4f}"]]
    rows += [[name, value] for name, value in (("filters", info.filters), ("source", info.source)) if value]
    rows += [[name, _shown(value)] for name, value in table.describe(scale).items()]
    rows.append(["bytes", shown(table.indices.numel() * 6)])
    rows = [[name, value, MEANING.get(str(name), "")] for name, value in rows]
    screen.table(title, {"": "left", " ": "left", "  ": "left"}, rows)


def _part(table: "NeighborTable") -> str:
    first, rows = table.info.first_row, len(table)
    return "" if rows == table.info.corpus_rows else f"rows {first:,} to {first + rows - 1:,} of "


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {number}" for name, number in value.items())
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _sampler(table: "NeighborTable", scale: float, seed: int) -> "Negatives":
    import torch

    from scns.sampling import InstanceNegatives, UniformNegatives

    labels = torch.full((table.info.corpus_rows,), -1)  # which is no negative of itself alone
    if table.labels is not None and table.info.exclude == "label":
        labels = table.labels.long()
    fallback = UniformNegatives(labels, seed=seed)
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


def _shard(text: str) -> tuple[int, int]:
    try:
        part, parts = (int(word) for word in text.split("/"))
    except ValueError:
        raise InputError(f"--shard '{text}' must be i/n, such as 3/64.") from None
    return part, parts


def _positive(text: str) -> str | float | None:
    try:
        return float(text)
    except ValueError:
        return None if text == "none" else text


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
