"""Approximate search for large sets: only some lists of rows are looked at, and the recall is measured."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from scns import draws, search
from scns.errors import InputError
from scns.ranking import in_exact_order, ranked
from scns.search import CPU_SCORES, Corpus, Found, Progress, empty, put, take

_LARGE = 256  # rows of a group that is left out of the search itself; of smaller ones, more is fetched
_CHECKED = 256  # rows on which the recall is measured


def approximate(
    data: Corpus,
    rows: Tensor,
    k: int,
    backend: str,
    *,
    probe: int | None = None,
    positive: str | float | None = None,
    progress: Progress = None,
) -> tuple[Found, float]:
    """(what was found for the caller's `rows`, its recall against the exact search on a sample of them)."""
    places, back = search.places(data, rows)
    look = by_classes if backend == "classes" else with_faiss
    with torch.autocast(data.unit.device.type, enabled=False):  # which would round scores
        found = search.in_order(look(data, places, k, probe=probe, progress=progress), back)
    sample = draws.permutation(len(rows), 0, draws.SPLIT)[:_CHECKED].to(rows.device)
    truth = search.exact(data, rows[sample], k, positive=positive)
    quality = recall(found.indices[sample.to(found.indices.device)].cpu(), truth.indices.cpu())
    if positive is not None:
        found = replace(found, positive=search.own_class(data, places, positive)[back])
    return found, quality


def recall(found: Tensor, truth: Tensor) -> float:
    """The share of the true neighbours that were found; both int [rows, k]."""
    hits = sum(int(torch.isin(want[want >= 0], have).sum()) for want, have in zip(truth, found, strict=True))
    return hits / max(1, int((truth >= 0).sum()))


def by_classes(
    data: Corpus,
    rows: Tensor,
    k: int,
    *,
    probe: int | None,
    progress: Progress = None,
) -> Found:
    """The k best columns inside the `probe` classes whose centroids are nearest to the row's own class: approximate.

    The labels serve as inverted lists; the own class is skipped for free. Default: a fifth of the classes, or as many
    as hold 4 k rows.
    """
    if data.labels is None or bool((data.labels < 0).any()) or data.groups is not None:
        raise InputError("The backend 'classes' needs a label for every row and no groups; use backend='exact'.")
    found, counts = torch.unique_consecutive(data.labels, return_counts=True)
    bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    classes = len(found)
    centroids = torch.stack([data.unit[bounds[c] : bounds[c + 1]].mean(0) for c in range(classes)])
    near = F.normalize(centroids, dim=1) @ F.normalize(centroids, dim=1).T
    near = near.fill_diagonal_(-torch.inf).argsort(dim=1, descending=True, stable=True)
    if probe is None:
        probe = max(classes // 5, -(-4 * k // int(counts.min())), 1)
    probe = min(probe, classes - 1)
    class_of = torch.repeat_interleave(torch.arange(classes, device=counts.device), counts)[rows]
    result = empty(len(rows), k, rows.device)
    for done, c in enumerate(torch.unique(class_of).tolist(), 1):
        lists = near[c, :probe].sort().values.tolist()
        columns = torch.cat([torch.arange(int(bounds[j]), int(bounds[j + 1]), device=rows.device) for j in lists])
        own = (class_of == c).nonzero()[:, 0]
        chunk = max(1, CPU_SCORES // len(columns))
        for some in own.split(chunk):
            own_rows, others = take(data.unit, rows[some]), data.unit[columns]
            scores = torch.mm(own_rows, others.T)
            values, indices = ranked(scores, min(k, len(columns)), own_rows, others, data.order[columns])
            put(result, some, values, indices)
        if progress:
            progress(done, classes)
    return result


def with_faiss(data: Corpus, rows: Tensor, k: int, *, probe: int | None, progress: Progress = None) -> Found:
    """The k best columns from a faiss inverted-file index: as many more as a class and a group have, then filtered."""
    try:
        import faiss
    except ImportError:
        raise InputError("backend='faiss' needs faiss; install it with: pip install 'scns[ann]'.") from None
    unit = data.unit.cpu().numpy()
    lists = max(1, min(4096, int(4 * len(data) ** 0.5), len(data) // 39))  # 39 points a list: faiss's own minimum
    index: Any = faiss.index_factory(unit.shape[1], f"IVF{lists},Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(unit)
    index.add(unit)
    probed = min(lists, probe or max(8, lists // 8))
    groups = torch.full((len(data),), -1) if data.groups is None else data.groups.cpu()
    known, sizes = groups[groups >= 0].unique(return_counts=True)
    small = int(sizes[sizes < _LARGE].max()) if bool((sizes < _LARGE).any()) else 0
    fetch = min(len(data), k + int((data.stop - data.start).max()) + small)
    result = empty(len(rows), k, torch.device("cpu"))
    places, done = rows.cpu(), 0
    large = torch.isin(groups[places], known[sizes >= _LARGE])
    for some in _alike(torch.where(large, groups[places], -1), max(1, min(4096, CPU_SCORES // fetch))):
        options: dict[str, Any] = {"nprobe": probed}
        if large[some[0]]:  # all queries, say: what is left out is never fetched
            members = np.packbits((groups == groups[places[some[0]]]).numpy(), bitorder="little")
            selector: Any = faiss.IDSelectorBitmap  # whose stubs are those of C++
            options["sel"] = faiss.IDSelectorNot(selector(members))
        asked = faiss.SearchParametersIVF(**options)
        found = index.search(unit[places[some].numpy()], fetch, params=asked)
        values, columns = (torch.from_numpy(x) for x in found)
        start, stop = data.start.cpu()[places[some], None], data.stop.cpu()[places[some], None]
        banned = (columns < 0) | ((columns >= start) & (columns < stop))
        if len(known):
            own_group = groups[places[some], None]
            banned |= (groups[columns.clamp(min=0)] == own_group) & (own_group >= 0)
        values = values.masked_fill(banned, -torch.inf)
        values, by_score = values.sort(dim=1, descending=True, stable=True)
        chosen = columns.clamp(min=0).gather(1, by_score)
        rows_here = torch.from_numpy(unit[places[some].numpy()])
        found = data.order.cpu()[chosen]
        values, indices = in_exact_order(values, chosen, found, rows_here, torch.from_numpy(unit))
        put(result, some, values[:, :k], indices[:, :k])
        done += len(some)
        if progress:
            progress(done, len(rows))
    return result


def _alike(kinds: Tensor, most: int) -> Iterator[Tensor]:
    """The numbers of rows of one kind, at most so many at a time."""
    order = kinds.argsort(stable=True)
    for same in order.split(kinds[order].unique_consecutive(return_counts=True)[1].tolist()):
        yield from same.split(most)
