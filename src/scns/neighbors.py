"""`NeighborTable`: for every row, the most similar rows that may serve as its negatives.

Embeddings and labels go in, whatever made them; the table is immutable, inspected, filtered, saved to one safetensors
file with its provenance, and memory-mapped again. One type serves both levels: samples (rows are samples, the own
class is excluded) and classes (rows are classes, only the row itself is excluded).
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from scns import budget, checks, lists, room, search, stream, tableshards
from scns.checks import Embeddings, Labels
from scns.errors import InputError, unknown
from scns.files import atomic, save_tensors
from scns.source import Source
from scns.tableinfo import FORMAT, TableInfo, check_tensors, read_info

BACKENDS = ("exact", "classes", "faiss")
_PART = 1 << 20  # places of a table that are looked at together
_SOME = 1 << 22  # scores that are enough for quantiles
_QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)


@dataclass(frozen=True, eq=False)
class NeighborTable:
    """The k nearest rows of every row, best first: `indices` int32 [rows, k], `scores` (cosines) float16 [rows, k].

        table = scns.NeighborTable.build(embeddings, labels, k=100)   # float [N, dim], integers [N]
        table.save("table.safetensors"), scns.NeighborTable.load("table.safetensors"), table.describe()
        sampler = scns.InstanceNegatives(table)

    A row short of neighbours ends in index -1 with score -inf.
    """

    indices: Tensor  # int32 [rows, k]; -1 = none
    scores: Tensor  # float16 [rows, k]: cosine; -inf where there is none
    info: TableInfo
    positive: Tensor | None = None  # float16 [rows]: similarity to the own class; -inf where a class has one member
    labels: Tensor | None = None  # int32 [corpus rows]
    groups: Tensor | None = None  # int32 [corpus rows]

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"NeighborTable({len(self)} rows, k={self.info.k}, exclude={self.info.exclude!r})"

    @classmethod
    def build(
        cls,
        embeddings: Embeddings | Sequence[Embeddings],
        labels: Labels | None = None,
        *,
        k: int,
        exclude: str | None = "label",
        on_zero: str = "error",
        groups: Labels | None = None,
        backend: str = "exact",
        probe: int | None = None,
        device: torch.device | str | None = None,
        chunk_rows: int | None = None,
        memory: int | str | None = None,
        rows: range | None = None,
        positive: str | float | None = "max",
        source: str = "",
        progress: Callable[[int, int], None] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> "NeighborTable":
        """The top-k cosine neighbours of every row, or of `rows` alone: a shard, or the queries before their passages.

        exclude: "label" leaves out rows of the same label (an unlabelled row, -1, only itself; without labels every row
        only itself), "self" the row itself, None nothing. `groups`: rows with the same group (not -1) are never paired:
        duplicates, frames of one video; or all queries, 0, before passages, -1, with rows=range(len(queries)), so that
        a query's neighbours are passages (a label for a query and its own). A row of zeros is an error, or with
        on_zero="uniform" (a label without a known word) has cosine 0 with every row: its draws are uniform over the k
        that it keeps, the first ones, and so over all others where k is as large as that. `backend`: "exact"; "classes"
        and "faiss" look at `probe` lists only and report their recall. `positive` keeps each row's similarity to its
        own class for `filtered`.

        `memory` (bytes, or "8G") leaves the embeddings where they are, a mapped file say, or a list of row shards, and
        searches them in blocks that take no more than that on `device`; the table is the same, on the host. `tell` gets
        a sentence with the bytes before they are allocated.
        """
        device, k = checks.place(device), _whole(k)
        chunk_rows, probe = _at_least_one("chunk_rows", chunk_rows), _at_least_one("probe", probe)
        positive = _same_class_by(positive)
        if memory is not None or isinstance(embeddings, Sequence):
            if backend != "exact":
                raise InputError(f"Only backend='exact' searches in blocks, not '{backend}'; leave memory= out.")
            table = _build_streamed(
                embeddings, labels, groups, k=k, exclude=exclude, on_zero=on_zero, device=device, memory=memory,
                rows=rows, positive=positive, progress=progress, tell=tell,
            )  # fmt: skip
            return replace(table, info=replace(table.info, source=source))
        given, told = checks.tensor(embeddings, "Embeddings"), ""
        if given.dim() == 2:
            _check_choices(exclude, on_zero, backend, rows, len(given))
            asked_rows, where = len(given) if rows is None else len(rows), torch.device(device or given.device)
            told = budget.check_room(len(given), given.shape[1], k, asked_rows, where)
        vectors = checks.vectors(given, device, zero_rows=on_zero == "uniform")
        count = len(vectors)
        marks = checks.marks(labels, count, "labels", vectors.device)
        kinds = checks.marks(groups, count, "groups", vectors.device)
        data = search.corpus(vectors, marks, exclude, kinds)
        _check_k(k, data)
        if tell:
            tell(told)
        kept = positive if exclude == "label" and marks is not None else None
        wanted = range(count) if rows is None else rows
        asked = torch.arange(wanted.start, wanted.stop, device=vectors.device)
        with ThreadPoolExecutor(1) as pool:  # hashing does not hold up the search
            hashed = pool.submit(checks.fingerprint, vectors)
            if backend == "exact":
                found = search.exact(data, asked, k, positive=kept, chunk_rows=chunk_rows, progress=progress)
                quality = 1.0
            else:
                found, quality = lists.approximate(
                    data, asked, k, backend, probe=probe, positive=kept, progress=progress
                )
        info = _info(found, wanted, count, vectors.shape[1], exclude, marks, kinds, kept, hashed.result())
        told_probe = 0 if backend == "exact" or probe is None else int(probe)
        info = replace(info, backend=backend, probe=told_probe, recall=quality, source=source)
        small = [None if x is None else x.int().cpu() for x in (marks, kinds)]
        return cls(found.indices, found.scores, info, found.positive, *small)

    @staticmethod
    def bytes(rows: int, k: int, *, positive: bool = True) -> int:
        """What a table takes, in memory and on disk, without its labels and groups."""
        return budget.table_bytes(rows, k, positive=positive)

    def to(self, device: torch.device | str) -> "NeighborTable":
        """The same table with its tensors on `device`."""
        return replace(self, **{name: x.to(device) for name, x in self._tensors().items()})

    def _tensors(self) -> dict[str, Any]:
        """Those that it has, by the names of its file."""
        named = {name: getattr(self, name) for name in ("indices", "scores", "positive", "labels", "groups")}
        return {name: x for name, x in named.items() if x is not None}

    def check(
        self,
        embeddings: Embeddings | Sequence[Embeddings] | None = None,
        labels: Labels | None = None,
    ) -> None:
        """Raise, naming both fingerprints, when the table was built from other embeddings or labels."""
        given = fingerprints(embeddings, labels)
        if embeddings is not None:
            _same("embeddings", self.info.embeddings_sha256, given["embeddings_sha256"])
        if labels is not None:
            _same("labels", self.info.labels_sha256, given["labels_sha256"])

    def filtered(
        self,
        *,
        max_score: float | None = None,
        min_score: float | None = None,
        skip: int = 0,
        absolute_margin: float | None = None,
        relative_margin: float | None = None,
    ) -> "NeighborTable":
        """The table without suspected false negatives: neighbours that may be positives in truth.

        Kept are neighbours after the first `skip` whose score is at most `max_score`, at least `min_score`, at most
        p - absolute_margin and at most p - |p| * relative_margin, where p is the row's similarity to its own class
        (rows alone in their class have none and are not cut by margins).
        """
        for name, value in {"absolute_margin": absolute_margin, "relative_margin": relative_margin}.items():
            if value is not None and self.positive is None:
                raise InputError(
                    f"{name}={value} needs same-class scores: build the table with labels, exclude='label' and "
                    "positive='max'."
                )
            if value is not None and not (checks.is_number(value) and value >= 0):
                raise InputError(f"{name}={value!r} must be a number of at least 0.")
        if relative_margin is not None and relative_margin > 1:
            raise InputError(f"relative_margin={relative_margin!r} is a share of the own class's score: 0.05 for 5 %.")
        for name, value in {"max_score": max_score, "min_score": min_score}.items():
            if value is not None and (not checks.is_number(value) or math.isnan(value)):
                raise InputError(f"{name}={value!r} would leave nothing; give a cosine.")
        if not checks.is_whole(skip) or not 0 <= skip < self.info.k:
            raise InputError(f"skip={skip!r} must be a whole number from 0 to k - 1 = {self.info.k - 1}.")
        skip = int(skip)
        self.check_lists()
        indices, kept_scores = torch.empty_like(self.indices), torch.empty_like(self.scores)
        for part in self._parts():
            found, scores = self.indices[part], self.scores[part].float()
            keep = found >= 0
            if max_score is not None:
                keep &= scores <= max_score
            if min_score is not None:
                keep &= scores >= min_score
            if self.positive is not None:
                own = self.positive[part].float()[:, None]
                own = torch.where(own.isneginf(), torch.inf, own)
                if absolute_margin is not None:
                    keep &= scores <= own - absolute_margin
                if relative_margin is not None:
                    keep &= scores <= torch.where(own.isinf(), own, own - own.abs() * relative_margin)
            keep[:, :skip] = False
            place = torch.argsort(~keep, dim=1, stable=True)  # the kept ones move to the front, in order
            kept = keep.gather(1, place)
            indices[part] = torch.where(kept, found.gather(1, place), -1)
            kept_scores[part] = torch.where(kept, self.scores[part].gather(1, place), -torch.inf)
        given = dict(
            max_score=max_score, min_score=min_score, skip=skip or None, absolute_margin=absolute_margin,
            relative_margin=relative_margin,
        )  # fmt: skip
        words = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        info = replace(
            self.info,
            filters="; ".join(filter(None, [self.info.filters, words])),
            short_rows=int((indices[:, -1] < 0).sum()),
        )
        return replace(self, indices=indices, scores=kept_scores, info=info)

    def check_lists(self) -> None:
        """Raise where a row is no list of rows and cosines any more, as of a file that was changed: it reads them all.

        `load` does not, so that a mapped table is there in milliseconds; who goes through it does.
        """
        for part in self._parts():
            indices, there = self.indices[part], self.indices[part] >= 0
            wrong = (indices < -1) | (indices >= self.info.corpus_rows) | (self.scores[part].isfinite() != there)
            wrong[:, 1:] |= there[:, 1:] & ~there[:, :-1]
            if bool(wrong.any()):
                row, place = wrong.nonzero()[0].tolist()
                index, score = int(indices[row, place]), float(self.scores[part][row, place])
                raise InputError(
                    f"Row {part.start + row} of the table is damaged: at place {place} is neighbour {index} with "
                    f"cosine {score:.3g}, in a table among {self.info.corpus_rows} rows; build it again."
                )

    def _parts(self) -> list[slice]:
        """Its rows in parts that are looked at one after the other: a mapped table may be larger than memory."""
        step = max(1, _PART // max(1, self.indices.shape[1]))
        return [slice(start, start + step) for start in range(0, len(self), step)]

    def refreshed(
        self,
        embeddings: Embeddings,
        rows: Tensor | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> "NeighborTable":
        """The same table from new embeddings (a feature table's, say: no forward pass); only `rows` where given.

        Refreshed rows are not filtered: their scores are new, so call `filtered` again. Where others stay as they were,
        so do the table's recall and backend, and it is a table of no one set of embeddings: `check` refuses them.
        """
        vectors = checks.vectors(embeddings, None)
        if len(vectors) != self.info.corpus_rows:
            raise InputError(
                f"A table among {self.info.corpus_rows} rows cannot be refreshed from {len(vectors)} embeddings."
            )
        if self.info.first_row:
            raise InputError(
                f"This table is a shard, from row {self.info.first_row} on, and cannot be refreshed; merge the shards."
            )
        device = vectors.device
        some = torch.arange(len(self), device=device) if rows is None else self._numbers(rows).to(device)
        marks, kinds = (None if x is None else x.long().to(device) for x in (self.labels, self.groups))
        data = search.corpus(vectors, marks, self.info.exclude, kinds)
        kept: str | float | None = self.info.positive or None
        if kept not in (None, "max", "mean"):
            kept = float(kept)
        found = search.exact(data, some, self.info.k, positive=kept, progress=progress)
        indices, scores = self.indices.to(device, copy=True), self.scores.to(device, copy=True)
        indices[some], scores[some] = found.indices, found.scores
        own = None if self.positive is None else self.positive.to(device, copy=True)
        if own is not None and found.positive is not None:
            own[some] = found.positive
        info = replace(
            self.info,
            generation=self.info.generation + 1,
            dim=vectors.shape[1],
            short_rows=int((indices[:, -1] < 0).sum()),
            embeddings_sha256="" if len(some) else self.info.embeddings_sha256,
        )
        if len(some.unique()) == len(self):  # or the other rows are as they were
            whole = checks.fingerprint(vectors)
            info = replace(info, filters="", embeddings_sha256=whole, recall=1.0, backend="exact", probe=0)
        return replace(self, indices=indices, scores=scores, positive=own, info=info)

    def _numbers(self, rows: Tensor) -> Tensor:
        """Checked int64 row numbers of this table."""
        given = checks.tensor(rows, "The rows to refresh")
        if given.dim() != 1 or (given.numel() and given.dtype not in (torch.int64, torch.int32)):
            raise InputError(
                f"The rows to refresh are row numbers, int64 [m], but these are {given.dtype} {tuple(given.shape)}; "
                "of a mask, give mask.nonzero()[:, 0]."
            )
        if (wrong := checks.outside(given, len(self))) is not None:
            raise InputError(f"The rows to refresh are 0 to {len(self) - 1}, but one is {wrong}.")
        return given.long()

    def describe(self, scale: float | None = None) -> dict[str, object]:
        """What to know before training on it; `scale` adds the effective number of negatives, exp(entropy)."""
        if scale is not None:
            checks.scale(scale)
        self.check_lists()
        rows, k = self.indices.shape
        counts = torch.zeros(max(self.info.corpus_rows, 1), dtype=torch.int64, device=self.indices.device)
        length = torch.empty(rows, dtype=torch.int64, device=counts.device)  # neighbours of each row
        effective = torch.empty(rows, device=counts.device)
        for part in self._parts():
            valid = self.indices[part] >= 0
            listed = self.indices[part][valid]
            counts.index_add_(0, listed, torch.ones_like(listed, dtype=torch.int64))
            length[part] = valid.sum(1)
            if scale is not None:
                share = torch.where(valid, scale * self.scores[part].float(), -torch.inf).softmax(1)
                effective[part] = torch.exp(-(share * share.clamp(min=1e-30).log()).sum(1))
        degrees = counts.float()
        points, mean = self._quantiles(int(length.sum())), degrees.mean()
        told: dict[str, object] = {
            "rows": self.info.rows,
            "k": self.info.k,
            "kept share": int(length.sum()) / (rows * k),
            "rows short of k": int((length < k).sum()),
            "empty rows": int((length == 0).sum()),
            "score quantiles": {f"{q:.0%}": round(value, 4) for q, value in zip(_QUANTILES, points, strict=False)},
            "largest in-degree / mean": float(degrees.max() / mean) if mean > 0 else 0.0,
            "in-degree skewness": float(((degrees - mean) / degrees.std().clamp(min=1e-12)).pow(3).mean()),
            "never a neighbour": float((counts == 0).float().mean()),
        }
        if self.positive is not None:
            alone = self.positive.isneginf()
            above = (self.scores[:, 0] > self.positive) & ~alone
            told["best negative above own class"] = float(above.float().mean())
        if scale is not None:
            filled = effective[length > 0]
            told["effective negatives"] = float(filled.mean()) if len(filled) else 0.0
        return told

    def _quantiles(self, count: int) -> list[float]:
        """The quantiles of its `count` scores, or of a share of them, spread evenly, where they are many."""
        if not count:
            return []
        step = count // _SOME + 1
        while math.gcd(step, self.indices.shape[1]) > 1:  # rows are sorted: every place of them must be met as often
            step += 1
        seen, some = 0, []
        for part in self._parts():
            scores = self.scores[part][self.indices[part] >= 0]
            some.append(scores[-seen % step :: step].float())
            seen += len(scores)
        taken = torch.cat(some)
        return torch.quantile(taken, torch.tensor(_QUANTILES, device=taken.device)).tolist()

    def save(self, path: str | Path) -> None:
        """Write one safetensors file: atomically, with the provenance in its metadata."""
        told = {name: "" if value is None else str(value) for name, value in asdict(self.info).items()}
        with atomic(path) as temporary:
            save_tensors(
                {name: x.cpu().contiguous() for name, x in self._tensors().items()},
                temporary,
                {"format": FORMAT, "version": "1", **told},
            )

    @classmethod
    def load(cls, path: str | Path, *, mmap: bool = True) -> "NeighborTable":
        """A saved table, memory-mapped in milliseconds; or the table of a shard index written by `merge`."""
        path = Path(path)
        if path.name.endswith(".index.json") and path.exists():
            return _joined([cls.load(shard) for shard in tableshards.read_index(path)])
        if not path.exists():
            raise InputError(f"'{path}' does not exist; build a table with: scns neighbors build.")
        if path.is_dir():
            raise InputError(f"'{path}' is a folder; name the table's file in it.")
        try:
            with safe_open(path, framework="pt") as file:
                told = file.metadata() or {}
                if told.get("format") != FORMAT:
                    raise InputError(
                        f"'{path}' is a safetensors file but no neighbour table; build one with: scns neighbors build."
                    )
                if told.get("version") != "1":
                    raise InputError(
                        f"'{path}' is a neighbour table of version {told.get('version')}; this scns reads version 1."
                    )
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            info = read_info(told)
            check_tensors(info, tensors)
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"'{path}' is a damaged neighbour table: {error}; build it again.") from None
        except SafetensorError as error:
            raise InputError(
                f"'{path}' is not a readable safetensors file ({error}): cut short or of another kind; build it again."
            ) from None
        if not mmap:
            tensors = {name: x.clone() for name, x in tensors.items()}
        optional = {name: tensors.get(name) for name in ("positive", "labels", "groups")}
        return cls(tensors["indices"], tensors["scores"], info, **optional)


def fingerprints(
    embeddings: Embeddings | Sequence[Embeddings] | None, labels: Labels | None, groups: Labels | None = None
) -> dict[str, str]:
    """The fingerprints that the `info` of a table of this data has; "" for what is not given."""
    host = torch.device("cpu")
    marks = None if labels is None else checks.marks(labels, len(labels), "labels", host)
    kinds = None if groups is None else checks.marks(groups, len(groups), "groups", host)
    pieces = None if embeddings is None else checks.pieces(embeddings, zero_rows=True)
    return {
        "embeddings_sha256": "" if pieces is None else checks.fingerprint_of_pieces(pieces),
        "labels_sha256": _marks_of(marks),
        "groups_sha256": _marks_of(kinds),
    }


def merge(shards: Sequence[str | Path], out: str | Path) -> int:
    """Make one table of shards, once they are seen to belong together; the number of its rows.

    `out` is an index of the shards (`*.index.json`), or one file (`*.safetensors`) that can be mapped as a whole.
    """
    if not str(out).endswith((".index.json", ".safetensors")):
        raise InputError(f"The merged table must be named *.index.json or *.safetensors, but it is '{out}'.")
    ordered = tableshards.in_order({str(Path(path)): NeighborTable.load(path).info for path in shards})
    count = ordered[0][1].corpus_rows
    if str(out).endswith(".safetensors"):
        _joined([NeighborTable.load(path) for path, _ in ordered]).save(out)
        return count
    tableshards.write_index(out, ordered)
    return count


def _joined(tables: list[NeighborTable]) -> NeighborTable:
    """One table in memory of shards that follow each other."""
    tableshards.in_order({f"shard {number}": table.info for number, table in enumerate(tables, 1)})
    first = tables[0]
    own = [table.positive for table in tables if table.positive is not None]
    info = replace(
        first.info,
        rows=sum(table.info.rows for table in tables),
        short_rows=sum(table.info.short_rows for table in tables),
        recall=min(table.info.recall for table in tables),
    )
    return NeighborTable(
        torch.cat([table.indices for table in tables]), torch.cat([table.scores for table in tables]), info,
        torch.cat(own) if own else None, first.labels, first.groups,
    )  # fmt: skip


def _build_streamed(
    embeddings: Embeddings | Sequence[Embeddings],
    labels: Labels | None,
    groups: Labels | None,
    *,
    k: int,
    exclude: str | None,
    on_zero: str,
    device: torch.device | str | None,
    memory: int | str | None,
    rows: range | None,
    positive: str | float | None,
    progress: Callable[[int, int], None] | None,
    tell: Callable[[str], None] | None,
) -> NeighborTable:
    """The table of embeddings that are read block by block; on the host."""
    where, host = torch.device(device or "cpu"), torch.device("cpu")
    pieces = checks.pieces(embeddings, zero_rows=on_zero == "uniform")
    count, dim = sum(map(len, pieces)), pieces[0].shape[1]
    marks, kinds = checks.marks(labels, count, "labels", host), checks.marks(groups, count, "groups", host)
    _check_choices(exclude, on_zero, "exact", rows, count)
    wanted = range(count) if rows is None else rows
    cut = budget.plan(count, dim, k, memory, where, len(wanted), groups is not None)
    data = search.layout(count, marks, exclude, kinds, host)
    _check_k(k, data)
    if tell:
        size = room.shown(budget.table_bytes(len(wanted), k))
        tell(f"{len(wanted):,} x {k:,} neighbours: {size}, searched in {cut.told(len(wanted), count)} ({where})")
    kept = positive if exclude == "label" and marks is not None else None
    asked = torch.arange(wanted.start, wanted.stop)
    with ThreadPoolExecutor(1) as pool:
        hashed = pool.submit(checks.fingerprint_of_pieces, pieces)
        source = Source(pieces, data.order, where)
        found = stream.streamed(data, source, asked, k, cut, positive=kept, progress=progress)
    info = _info(found, wanted, count, dim, exclude, marks, kinds, kept, hashed.result())
    small = [None if x is None else x.int() for x in (marks, kinds)]
    return NeighborTable(found.indices, found.scores, info, found.positive, *small)


def _info(
    found: search.Found,
    wanted: range,
    count: int,
    dim: int,
    exclude: str | None,
    marks: Tensor | None,
    kinds: Tensor | None,
    kept: str | float | None,
    fingerprint: str,
) -> TableInfo:
    return TableInfo(
        rows=len(wanted),
        k=found.indices.shape[1],
        dim=dim,
        first_row=wanted.start,
        corpus_rows=count,
        exclude=exclude if marks is not None or exclude is None else "self",
        short_rows=int((found.indices[:, -1] < 0).sum()),
        positive="" if kept is None else str(kept),
        embeddings_sha256=fingerprint,
        labels_sha256=_marks_of(marks),
        groups_sha256=_marks_of(kinds),
    )


def _marks_of(given: Tensor | None) -> str:
    return "" if given is None else checks.fingerprint(given.int())


def _check_choices(exclude: str | None, on_zero: str, backend: str, rows: range | None, count: int) -> None:
    if exclude not in ("label", "self", None):
        raise unknown("exclude", str(exclude), ["label", "self"])
    if on_zero not in ("error", "uniform"):
        raise unknown("on_zero", str(on_zero), ["error", "uniform"])
    if backend not in BACKENDS:
        raise unknown("backend", str(backend), BACKENDS)
    if backend == "classes" and exclude != "label":
        raise InputError(f"The backend 'classes' skips the own class, so exclude={exclude!r} needs backend='exact'.")
    if rows is not None and not (isinstance(rows, range) and rows.step == 1 and 0 <= rows.start < rows.stop <= count):
        raise InputError(f"rows={rows} is not a range inside 0 to {count}.")


def _same_class_by(positive: Any) -> str | float | None:
    """How the same-class score is told: "max", "mean", a quantile or not at all."""
    if positive is None or positive in ("max", "mean"):
        return positive
    if isinstance(positive, str):
        raise unknown("positive", positive, ["max", "mean"])
    if isinstance(positive, bool) or not checks.is_number(positive) or not 0 <= positive <= 1:
        raise InputError(f"positive={positive!r} is not a quantile from 0 to 1, nor 'max', 'mean' or None.")
    return float(positive)


def _at_least_one(name: str, value: int | None) -> int | None:
    if value is not None and (not checks.is_whole(value) or value < 1):
        raise InputError(f"{name}={value!r} must be a whole number of at least 1; left out, scns chooses it.")
    return None if value is None else int(value)


def _whole(k: Any) -> int:
    if not checks.is_whole(k):
        raise InputError(f"k={k!r} is impossible: it must be a whole number, how many neighbours each row keeps.")
    return int(k)


def _check_k(k: int, data: search.Layout) -> None:
    smallest = len(data) - int((data.stop - data.start).max())
    if smallest < 1 and len(data) == 1:
        raise InputError("One row alone has no neighbours; give at least 2 embeddings.")
    if smallest < 1:
        raise InputError(
            "All rows have one label, so there are no negatives; give labels of several classes or exclude='self'."
        )
    if not 1 <= k <= smallest:
        raise InputError(
            f"k={k} is impossible: some row has only {smallest} candidates, so k must be a whole number from 1 to "
            f"{smallest} (in a recipe: --set method.k={smallest})."
        )


def _same(what: str, table: str, given: str) -> None:
    if table != given:
        raise InputError(
            f"The table belongs to other {what}: it was built from {table[:12] or 'none'}, these are {given[:12]}; "
            "build it again."
        )
