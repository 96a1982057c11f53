"""Samplers: which samples serve as negatives of an anchor.

Every sampler answers three questions about a batch of anchors (sample numbers, int64 [batch]):

  sample(anchors, num)   indices of `num` independent draws
  weights(anchors, num)  the same number of draws as m logits with log-weights, for losses that sum over negatives:
                         sum_draws exp(s_j) = sum_j count_j exp(s_j) = logsumexp_j(s_j + log count_j); with
                         correct=True the weighted sum estimates the sum over all it can draw, without bias
  log_probability(anchors, indices)   log q(index | anchor)

Draws are a function of (seed, epoch, anchor, draw) alone: the same for any batch size, order, worker or device. To keep
that exact, probabilities are turned into integers (see `chances`); those of `SoftNegatives` come from products that
another device rounds in another way.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from scns import chances, checks, draws
from scns.chances import Epoch
from scns.checks import Labels, Rows
from scns.errors import InputError
from scns.neighbors import NeighborTable

_CACHED = 1 << 19  # numbers that a CPU draws distinct ones of at a time: tensors of 4 MB


class Pool(nn.Module):
    """Candidates sorted by class, so that 'any of another class' is one integer and needs no rejection."""

    labels: Tensor
    order: Tensor
    rank: Tensor
    start: Tensor
    stop: Tensor
    size: Tensor

    def __init__(self, labels: Labels, among: Rows | None = None, *, negatives: bool = True) -> None:
        super().__init__()
        labels = _labels(labels)
        order, self.count = _candidates_first(labels, among)  # how many the candidates are
        ordered = labels[order[: self.count]]
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        start = torch.searchsorted(ordered, labels)
        size = torch.searchsorted(ordered, labels, right=True) - start
        unlabelled = labels < 0  # excludes itself alone
        start, size = torch.where(unlabelled, rank, start), torch.where(unlabelled, (rank < self.count).long(), size)
        start = torch.where(size > 0, start, -1)
        constants(
            self,
            labels=labels,
            order=order,  # [n]: sample at each place; candidates by class, then all others
            rank=rank,  # [n]: place of each sample
            start=start,  # [n]: the places an anchor may not take: start .. stop - 1; from -1 where that is none
            stop=start + size,
            size=size,
        )
        self.fewest = self.count - int(size.max())  # negatives of the anchor that has the fewest
        if negatives and self.fewest < 1:
            whose = "samples" if among is None else f"{self.count} candidates"
            raise InputError(f"All {whose} have one label, so there are no negatives; give labels of several classes.")

    def __len__(self) -> int:
        return len(self.order)

    def extra_repr(self) -> str:
        return f"{len(self)} samples"

    def negatives(self, anchors: Tensor) -> Tensor:
        """How many negatives each anchor has, N - N_y."""
        return self.count - self.size[anchors]

    def nth_negative(self, anchors: Tensor, nth: Tensor) -> Tensor:
        """The nth of the anchor's negatives, in order of class."""
        start, size = self.start[anchors, None], self.size[anchors, None]
        return self.order[nth + torch.where(nth >= start, size, 0)]

    def is_negative(self, anchors: Tensor, indices: Tensor) -> Tensor:
        place = self.rank[indices]
        other = (place < self.start[anchors, None]) | (place >= self.stop[anchors, None])
        return other if self.count == len(self) else other & (place < self.count)

    def log_uniform(self, anchors: Tensor, indices: Tensor) -> Tensor:
        """-log(N - N_y) for the anchor's negatives, -inf for others: float32 [batch, m]."""
        each = -self.negatives(anchors)[:, None].float().log()
        return torch.where(self.is_negative(anchors, indices), each, -torch.inf)


class Positives(nn.Module):
    """Another sample of the anchor's class, uniformly; the anchor itself where it is alone.

    `labels` are integers [N]: `Positives(labels).sample(rows, 2)` gives int64 [batch, 2] sample numbers.
    """

    def __init__(self, labels: Labels, *, seed: int = 0) -> None:
        super().__init__()
        self.pool, self.seed = Pool(labels, negatives=False), seed

    def sample(self, anchors: Tensor, num: int = 1, *, epoch: Epoch = 0) -> Tensor:
        """int64 [batch, num]"""
        chances.check_anchors(anchors, len(self.pool), self.pool.order)
        pool, draw = self.pool, chances.columns(num, anchors)
        start, size = pool.start[anchors, None], pool.size[anchors, None]
        others = (size - 1).clamp(min=1)
        step = 1 + draws.integers(others, self.seed, draws.POSITIVES, epoch, anchors[:, None], draw)
        return pool.order[start + (pool.rank[anchors, None] - start + step) % size]


class Negatives(nn.Module):
    """What every sampler can do; see the top of this file. Its tensors follow `.to(device)`; it has no state."""

    everything = False  # True: `weights` names every sample, so logits are one product and no rows need gathering
    counted = False  # True: `weights` names every candidate, with the log of how often it was drawn
    candidates = 1  # how many are weighed for the draws of an anchor
    seed: int
    samples: int  # how many there are, N

    def check(self, anchors: Tensor, indices: Tensor | None = None) -> None:
        """Raise for anything but numbers of this sampler's samples, [batch] and [batch, m]."""
        chances.check_anchors(anchors, self.samples, next(self.buffers()))
        if indices is not None:
            chances.check_indices(indices, len(anchors), self.samples)

    @property
    def anchor_rows(self) -> int:
        """How many samples can be anchors, the first ones: all, but for a table that was built of fewer."""
        return self.samples

    def probabilities(self, anchors: Tensor) -> Tensor:
        """float32 [batch, N]: over all samples. (Samplers of the k nearest: [batch, k], over those.)"""
        every = chances.columns(self.samples, anchors).expand(len(anchors), -1)
        return self.log_probability(anchors, every).exp()

    def log_probability(self, anchors: Tensor, indices: Tensor) -> Tensor:
        """log q(index | anchor), float32 [batch, m]; -inf for what is never drawn."""
        raise NotImplementedError

    def sample(self, anchors: Tensor, num: int, *, epoch: Epoch = 0, distinct: bool = False) -> Tensor:
        """int64 [batch, num]"""
        raise NotImplementedError

    def weights(self, anchors: Tensor, num: int, *, epoch: Epoch = 0, correct: bool = False) -> tuple[Tensor, Tensor]:
        """(int64 [batch, m], float32 log-weights [batch, m])"""
        raise NotImplementedError

    def shared(
        self, anchors: Tensor, num: int, *, epoch: Epoch = 0, also: Tensor | None = None, chance: float | Tensor = 0.0
    ) -> tuple[Tensor, Tensor]:
        """(int64 [m], float32 log-weights [batch, m]): `num` draws of each anchor, which serve all anchors.

        A draw counts 1 / how often it is expected among all of the batch's, so that for each anchor the weighted sum
        estimates that over all it can draw, without bias; -inf where it is no negative of the anchor. `also` are
        samples int64 [n] that are at hand anyway, and `chance`, a number or float [N], how likely a sample is to be
        among them, given the anchor: (batch - 1) / (queries - 1) of the positives of a batch where each query has one
        of its own. As these are no negatives of their own queries, sums with num=1 are then about 1 / (4 batch) too
        large: 1 % with 32. One that is there twice counts once. Beside them num=0 draws none: those at hand alone
        stand for all.
        """
        also = None if also is None else _also(self, also, anchors)
        if also is None or num:
            columns, log_q = self._columns(anchors, num, epoch, also)
            often, drawn = log_q.double().logsumexp(0) + math.log(num), ~log_q.isneginf()
        else:
            columns, drawn = also, self.can_draw(anchors, also.expand(len(anchors), -1))
            often = torch.full_like(also, -torch.inf, dtype=torch.float64)
        if also is not None:
            known = _chance(self, chance, also, drawn[:, : len(also)], often)
            often = often.logaddexp(known[columns].log())
            often[: len(also)] += _times(also).log()
        return columns, torch.where(drawn, -often.float(), -torch.inf)

    def can_draw(self, anchors: Tensor, indices: Tensor) -> Tensor:
        """Whether each of the samples [batch, m] can be drawn for its anchor."""
        return ~self.log_probability(anchors, indices).isneginf()

    def _columns(self, anchors: Tensor, num: int, epoch: Epoch, also: Tensor | None) -> tuple[Tensor, Tensor]:
        """(samples [m], log q [batch, m]): `also`, and the draws of all anchors."""
        counted = self.counted or self.everything
        drawn = self.sample(anchors, num, epoch=epoch) if counted else self.weights(anchors, num, epoch=epoch)[0]
        columns = joined(also, drawn)
        return columns, self.log_probability(anchors, columns.expand(len(anchors), -1))


class UniformNegatives(Negatives):
    """Every sample of another class with the same probability: the baseline.

    `labels` are integers [N] (-1: unlabelled, which is a negative of all others); of names, give
    numpy.unique(names, return_inverse=True)[1]. As every sampler:

        negatives = sampler.sample(rows, 16, epoch=epoch)                # int64 [batch, 16]: sample numbers
        negatives, log_weights = sampler.weights(rows, 4096, epoch=epoch)   # [batch, m] each, for functional.info_nce

    with `rows` int64 [batch], the numbers of the anchors. The same (seed, epoch, anchor) draws the same negatives.
    `among` names those that may be negatives, by numbers or a mask: range(queries, N) are the passages behind queries.
    """

    def __init__(self, labels: Labels, *, among: Rows | None = None, seed: int = 0) -> None:
        super().__init__()
        self.pool, self.seed, self.samples = Pool(labels, among), seed, len(labels)

    def log_probability(self, anchors: Tensor, indices: Tensor) -> Tensor:
        self.check(anchors, indices)
        return self.pool.log_uniform(anchors, indices)

    def sample(self, anchors: Tensor, num: int, *, epoch: Epoch = 0, distinct: bool = False) -> Tensor:
        """int64 [batch, num]"""
        self.check(anchors)
        if distinct:
            return _distinct(self, len(self.pool), self.pool.fewest, anchors, num, epoch)
        draw = chances.columns(num, anchors)
        high = self.pool.negatives(anchors)[:, None]
        nth = draws.integers(high, self.seed, draws.NEGATIVES, epoch, anchors[:, None], draw)
        return self.pool.nth_negative(anchors, nth)

    def weights(self, anchors: Tensor, num: int, *, epoch: Epoch = 0, correct: bool = False) -> tuple[Tensor, Tensor]:
        """(int64 [batch, num], float32 log-weights [batch, num])"""
        return weighted(self, self.sample(anchors, num, epoch=epoch), anchors, num, correct)


class ClassNegatives(Negatives):
    """A similar class, P = softmax(scale * cosine) over its k nearest classes, then a sample of it, uniformly.

    `class_table` has a row a class, in the order of the integer `labels` [N]:

        vectors = scns.label_vectors(["cat", "dog", "ship"])   # or scns.class_embeddings(embeddings, labels)
        sampler = scns.ClassNegatives(scns.NeighborTable.build(vectors, k=1), labels)
        negatives = sampler.sample(rows, 16, epoch=epoch)      # int64 [batch, 16]: sample numbers
    """

    classes: Tensor
    integers: Tensor
    labels: Tensor
    members: Tensor
    counts: Tensor
    first: Tensor

    def __init__(self, class_table: NeighborTable, labels: Labels, *, scale: float = 5.0, seed: int = 0) -> None:
        super().__init__()
        self.seed, self.scale = seed, checks.scale(scale)
        _check_table(class_table, "scns.NeighborTable.build(vectors, k=...) of a vector a class")
        class_table.check_lists()
        if len(class_table) != class_table.info.corpus_rows:
            raise InputError(
                f"The class table has {len(class_table)} of {class_table.info.corpus_rows} classes; build it of all."
            )
        labels = _labels(labels)
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(class_table):
            raise InputError(
                f"Labels run from {low} to {high}, but the class table has classes 0 to {len(class_table) - 1}; "
                "number the classes like its rows and leave out what has no label."
            )
        counts = torch.bincount(labels, minlength=len(class_table))
        if bool((counts == 0).any()):
            empty = (counts == 0).nonzero()[:, 0].tolist()
            raise InputError(
                f"Classes {empty[:5]} have no samples; build the class table without them, or draw negatives uniformly "
                "(sampler=uniform)."
            )
        nearest = class_table.indices.long().to(labels.device)  # [C, k]; -1 where a filter took one away
        if bool((nearest[:, 0] < 0).any()):
            lonely = (nearest[:, 0] < 0).nonzero()[:, 0].tolist()
            raise InputError(f"Classes {lonely[:5]} have no neighbours left in the class table; filter it less.")
        self.samples, self.fewest = len(labels), int(torch.where(nearest < 0, 0, counts[nearest]).sum(1).min())
        self.candidates = nearest.shape[1]
        constants(
            self,
            labels=labels,
            members=torch.argsort(labels, stable=True),
            counts=counts,
            first=counts.cumsum(0) - counts,
            classes=nearest,
            integers=chances.softmax_integers(class_table.scores.to(labels.device), self.scale),  # [C, k]
        )

    def extra_repr(self) -> str:
        return (
            f"{len(self.labels)} samples, {len(self.classes)} classes, k={self.classes.shape[1]}, scale={self.scale:g}"
        )

    def probabilities(self, anchors: Tensor) -> Tensor:
        """float32 [batch, k]: over the anchor's k nearest classes."""
        self.check(anchors)
        return chances.shares(self.integers[self.labels[anchors]])

    def log_probability(self, anchors: Tensor, indices: Tensor) -> Tensor:
        self.check(anchors, indices)
        classes = self.labels[indices]
        row = self.labels[anchors]
        share = chances.look_up(self.classes[row], self.probabilities(anchors).log(), classes)
        return share - self.counts[classes].float().log()

    def sample(self, anchors: Tensor, num: int, *, epoch: Epoch = 0, distinct: bool = False) -> Tensor:
        """int64 [batch, num]"""
        if distinct:
            return _distinct(self, len(self.labels), self.fewest, anchors, num, epoch)
        self.check(anchors)
        position = chances.positions(self.seed, anchors, num, epoch)
        return self._member(anchors, position, epoch)

    def weights(self, anchors: Tensor, num: int, *, epoch: Epoch = 0, correct: bool = False) -> tuple[Tensor, Tensor]:
        """(int64 [batch, num], float32 log-weights): classes drawn systematically, each num * P times on average.

        The correction is for the sampler's own support, the samples of the k classes: it has nothing to say of others.
        """
        self.check(anchors)
        position = chances.even_positions(self.seed, anchors, num, epoch)
        return weighted(self, self._member(anchors, position, epoch), anchors, num, correct)

    def _member(self, anchors: Tensor, position: Tensor, epoch: Epoch) -> Tensor:
        row = self.labels[anchors]
        chosen = self.classes[row].gather(1, chances.pick(self.integers[row], position))
        nth = draws.integers(
            self.counts[chosen],
            self.seed,
            draws.NEGATIVES,
            epoch,
            anchors[:, None],
            chances.columns(chosen.shape[1], anchors),
            1,
        )
        return self.members[self.first[chosen] + nth]


class InstanceNegatives(Negatives):
    """One of the anchor's k nearest samples, P = softmax(scale * cosine).

    table = scns.NeighborTable.build(embeddings, labels, k=100)   # float [N, dim], integers [N]
    sampler = scns.InstanceNegatives(table)
    negatives = sampler.sample(rows, 16, epoch=epoch)             # rows int64 [batch] -> int64 [batch, 16]
    negatives, log_weights = sampler.weights(rows, 4096)          # 4,096 draws as [batch, 100] logits with weights

    A table of the first rows alone (queries before their passages, built with `rows=range(len(queries))`) has those as
    anchors, and all samples as negatives.
    """

    counted = True
    indices: Tensor
    scores: Tensor

    def __init__(
        self, table: NeighborTable, *, scale: float = 5.0, seed: int = 0, fallback: Negatives | None = None
    ) -> None:
        """`fallback` is a sampler for rows whose neighbours were all filtered away: they keep k of its draws.

        `refresh_` asks it again.
        """
        super().__init__()
        self.seed, self.scale = seed, checks.scale(scale)
        _check_table(table, "scns.NeighborTable.build(embeddings, labels, k=...)")
        self.samples = table.info.corpus_rows
        self._check_first(table)
        if fallback is not None and (not isinstance(fallback, Negatives) or fallback.samples != self.samples):
            of = f"of {fallback.samples} samples" if isinstance(fallback, Negatives) else f"a {type(fallback).__name__}"
            raise InputError(
                f"The fallback of a table of {self.samples} samples is a sampler of as many, but this is {of}; "
                "pass fallback=UniformNegatives(labels)."
            )
        self.fallback = fallback
        indices, scores = self._filled(table)
        self.fewest = _fewest(indices)
        self.candidates = indices.shape[1]
        self.borrowed = indices is table.indices  # samplers of one table share its rows, and a mapped file stays one
        constants(self, indices=indices, scores=scores)

    def extra_repr(self) -> str:
        first = "" if self.anchor_rows == self.samples else f"the first {self.anchor_rows} of "
        return f"{first}{self.samples} samples, k={self.indices.shape[1]}, scale={self.scale:g}"

    @property
    def anchor_rows(self) -> int:
        return len(self.indices)

    def check(self, anchors: Tensor, indices: Tensor | None = None) -> None:
        super().check(anchors, indices)
        if self.anchor_rows < self.samples and (wrong := checks.outside(anchors, self.anchor_rows)) is not None:
            raise InputError(
                f"The table has the first {self.anchor_rows} of {self.samples} samples, but one anchor is {wrong}; "
                "build it of all that are anchors, or merge its shards with: scns neighbors merge."
            )

    def _check_first(self, table: NeighborTable) -> None:
        """Raise for a shard that begins elsewhere than at the first row, or a table of other samples."""
        if table.info.first_row or table.info.corpus_rows != self.samples:
            raise InputError(
                f"This table is a shard, {len(table)} of {table.info.corpus_rows} rows from row "
                f"{table.info.first_row} on, but anchors are numbered from row 0 of {self.samples}; merge the shards "
                "with: scns neighbors merge."
            )

    def refresh_(self, table: NeighborTable) -> "InstanceNegatives":
        """Take a new table of the same samples in place, so that a step captured after `own_` draws from it too."""
        _check_table(table, "scns.NeighborTable.build(embeddings, labels, k=...)")
        if table.indices.shape != self.indices.shape:
            raise InputError(
                f"This sampler holds a table {tuple(self.indices.shape)}, not {tuple(table.indices.shape)}."
            )
        self._check_first(table)
        indices, scores = self._filled(table)
        self.own_()
        self.indices.copy_(indices)
        self.scores.copy_(scores)
        self.fewest = _fewest(self.indices)
        return self

    def _filled(self, table: NeighborTable) -> tuple[Tensor, Tensor]:
        """The indices and scores of a table, where rows without neighbours have draws of the fallback."""
        table.check_lists()
        indices, scores = table.indices, table.scores
        empty = (indices[:, 0] < 0).nonzero()[:, 0]
        if len(empty):
            if self.fallback is None:
                raise InputError(
                    f"{len(empty)} rows have no neighbours left (first: row {int(empty[0])}); "
                    "make the sampler with fallback=UniformNegatives(labels)."
                )
            indices, scores = indices.clone(), scores.clone()
            where = next(self.fallback.buffers()).device
            try:
                drawn = self.fallback.sample(empty.to(where), table.info.k, distinct=True).to(indices.device)
            except InputError as error:
                raise InputError(f"The fallback cannot draw for rows that have no neighbours left: {error}") from None
            banned = torch.zeros_like(drawn, dtype=torch.bool)
            if table.groups is not None:  # rows of one group are never paired
                group = table.groups.to(drawn.device)
                banned = (group[drawn] == group[empty, None]) & (group[drawn] >= 0)
                if banned.all(1).any():
                    row = int(empty[banned.all(1)][0])
                    raise InputError(
                        f"Row {row} has no neighbours left, and all {table.info.k} draws of the fallback are of its "
                        "group; filter less, or build the table with a larger k."
                    )
            place = torch.argsort(banned, dim=1, stable=True)  # the others move to the front
            banned = banned.gather(1, place)
            indices[empty] = torch.where(banned, -1, drawn.gather(1, place)).int()
            scores[empty] = torch.where(banned, -torch.inf, 0.0).to(scores.dtype)
        self.fallen_back = len(empty)
        return indices, scores

    def own_(self) -> "InstanceNegatives":
        """Copy the table's rows, once: refresh_ writes into the copy, from which a captured step goes on reading."""
        if self.borrowed:
            self.indices, self.scores, self.borrowed = self.indices.clone(), self.scores.clone(), False
        return self

    def probabilities(self, anchors: Tensor) -> Tensor:
        """float32 [batch, k]: over the anchor's row of the table."""
        self.check(anchors)
        return chances.shares(self._integers(anchors))

    def log_probability(self, anchors: Tensor, indices: Tensor) -> Tensor:
        self.check(anchors, indices)
        chance = self.probabilities(anchors).log()
        return chances.look_up(self.indices[anchors].long(), chance, indices)

    def sample(self, anchors: Tensor, num: int, *, epoch: Epoch = 0, distinct: bool = False) -> Tensor:
        """int64 [batch, num]; distinct draws need rows with at least `num` neighbours."""
        self.check(anchors)
        if distinct:
            num = _enough(num, self.fewest)
            chosen = chances.pick_distinct(self.probabilities(anchors).log(), self.seed, anchors, num, epoch)
        else:
            chosen = chances.pick(self._integers(anchors), chances.positions(self.seed, anchors, num, epoch))
        return self.indices[anchors].gather(1, chosen).long()

    def weights(self, anchors: Tensor, num: int, *, epoch: Epoch = 0, correct: bool = False) -> tuple[Tensor, Tensor]:
        """(int64 [batch, k], float32 log-weights [batch, k]): systematic counts, num * P on average, never far from it.

        The correction is for the sampler's own support, its k neighbours: it has nothing to say about the rest. All k
        are logits whatever `num` is: of fewer draws than that, `sample` makes a cheaper loss.
        """
        num = chances.whole(num)
        self.check(anchors)
        integers = self._integers(anchors)
        counts = chances.systematic_counts(integers, chances.offset(self.seed, anchors, epoch), num)
        log_weights = counts.float().log()
        if correct:
            log_weights = log_weights - (math.log(num) + chances.shares(integers).log())
        return self.indices[anchors].long().clamp(min=0), torch.where(integers > 0, log_weights, -torch.inf)

    def _integers(self, anchors: Tensor) -> Tensor:
        return chances.softmax_integers(self.scores[anchors], self.scale)


class MixedNegatives(Negatives):
    """Each draw comes from one of several samplers, with the given shares: MixedNegatives([(0.5, a), (0.5, b)])."""

    integers: Tensor
    log_shares: Tensor
    depth: int  # 1, or one more than that of the mixtures it is made of, which choose by numbers of their own

    def __init__(self, parts: Sequence[tuple[float, Negatives]], *, seed: int = 0) -> None:
        super().__init__()
        parts = list(parts)
        if any(not _is_part(part) for part in parts):
            raise InputError("A mixture is made of pairs (share, sampler), as in MixedNegatives([(0.5, a), (0.5, b)]).")
        shares = [float(share) for share, _ in parts]
        if not parts or any(not 0 < share < math.inf for share in shares):
            raise InputError(f"The shares of a mixture must be above 0 and finite, but they are {shares}.")
        if any(part.everything for _, part in parts):
            raise InputError("A mixture is made of samplers that draw; AllNegatives does not.")
        counts = sorted({part.samples for _, part in parts})
        if len(counts) > 1:
            raise InputError(f"The parts of a mixture are of {counts} samples; make them for the same ones.")
        self.seed, self.samples = seed, counts[0]
        self.parts = nn.ModuleList([part for _, part in parts])
        self.candidates = max(part.candidates for _, part in parts)
        integers = torch.tensor([round(share / sum(shares) * chances.UNIT) for share in shares])
        if bool((integers == 0).any()):
            raise InputError(f"A share of the mixture is below {1 / chances.UNIT:.0e} of all, {shares}; leave it out.")
        self.depth = 1 + max((part.depth for _, part in parts if isinstance(part, MixedNegatives)), default=0)
        constants(self, integers=integers, log_shares=(integers / integers.sum()).log())

    @property
    def anchor_rows(self) -> int:
        return min(part.anchor_rows for part in self._each())

    def extra_repr(self) -> str:
        return "shares " + ", ".join(f"{share:.3g}" for share in self.log_shares.exp().tolist())

    def log_probability(self, anchors: Tensor, indices: Tensor) -> Tensor:
        each = [part.log_probability(anchors, indices) for part in self._each()]
        return torch.logsumexp(torch.stack(each, 2) + self.log_shares, 2)

    def sample(self, anchors: Tensor, num: int, *, epoch: Epoch = 0, distinct: bool = False) -> Tensor:
        """int64 [batch, num]"""
        if distinct:
            raise InputError("A mixture draws with repetition; take distinct draws from its parts.")
        return self._choose(anchors, num, epoch, chances.positions(self.seed, anchors, num, epoch, self._stream()))

    def weights(self, anchors: Tensor, num: int, *, epoch: Epoch = 0, correct: bool = False) -> tuple[Tensor, Tensor]:
        """(int64 [batch, num], float32 log-weights): shares met systematically, corrected by the mixed probability."""
        position = chances.even_positions(self.seed, anchors, num, epoch, self._stream())
        return weighted(self, self._choose(anchors, num, epoch, position), anchors, num, correct)

    def _choose(self, anchors: Tensor, num: int, epoch: Epoch, position: Tensor) -> Tensor:
        self.check(anchors)
        which = chances.pick(self.integers.expand(len(anchors), -1), position)
        drawn = [part.sample(anchors, num, epoch=epoch) for part in self._each()]
        return torch.stack(drawn, 2).gather(2, which[:, :, None])[:, :, 0]

    def _stream(self) -> int:
        return draws.MIXTURE + ((self.depth - 1) << 8)

    def _each(self) -> list[Negatives]:
        return [part for part in self.parts if isinstance(part, Negatives)]


class AllNegatives(Negatives):
    """Every sample of another class, no draw: the full sum that the others estimate. `labels` are integers [N].

    `among` names those that may be negatives, by numbers or a mask.
    """

    everything = True

    def __init__(self, labels: Labels, *, among: Rows | None = None) -> None:
        super().__init__()
        self.pool, self.samples = Pool(labels, among), len(labels)

    def log_probability(self, anchors: Tensor, indices: Tensor) -> Tensor:
        self.check(anchors, indices)
        return self.pool.log_uniform(anchors, indices)

    def sample(self, anchors: Tensor, num: int, *, epoch: Epoch = 0, distinct: bool = False) -> Tensor:
        raise InputError("AllNegatives does not draw; use .weights, or UniformNegatives for draws.")

    def weights(
        self, anchors: Tensor, num: int = 0, *, epoch: Epoch = 0, correct: bool = True
    ) -> tuple[Tensor, Tensor]:
        """(int64 [batch, N], float32 [batch, N]): all samples, 0 for negatives and -inf for the anchor's class."""
        self.check(anchors)
        every = chances.columns(len(self.pool), anchors).expand(len(anchors), -1)
        others = self.pool.is_negative(anchors, every[:1])
        return every, torch.zeros(others.shape, device=others.device).masked_fill_(~others, -torch.inf)


def weighted(sampler: Negatives, indices: Tensor, anchors: Tensor, num: int, correct: bool) -> tuple[Tensor, Tensor]:
    """Draws as logits: each has weight 1, or 1 / (num * q) when corrected."""
    if not correct:
        return indices, torch.zeros(indices.shape, device=indices.device)
    return indices, -math.log(num) - sampler.log_probability(anchors, indices)


def joined(also: Tensor | None, drawn: Tensor) -> Tensor:
    """Samples that are at hand, and draws [batch, num]: [n + batch * num]."""
    return drawn.flatten() if also is None else torch.cat([also, drawn.flatten()])


def _times(samples: Tensor) -> Tensor:
    """How often each of the samples [n] is among them, float64 [n]."""
    ordered = samples.sort().values
    return (torch.searchsorted(ordered, samples, right=True) - torch.searchsorted(ordered, samples)).double()


def _also(sampler: Negatives, also: Tensor, anchors: Tensor) -> Tensor:
    """Samples [n], checked."""
    if not isinstance(also, Tensor) or also.dim() != 1:
        shown = f"{tuple(also.shape)}" if isinstance(also, Tensor) else type(also).__name__
        raise InputError(f"also= are numbers of samples, an int64 tensor [n], but it is {shown}.")
    chances.check_indices(also[None], 1, sampler.samples)
    return also.to(anchors.device)


def _chance(sampler: Negatives, chance: float | Tensor, also: Tensor, drawn: Tensor, like: Tensor) -> Tensor:
    """How likely each sample is to be at hand, float64 [N]: above 0 for those that can be `drawn`, bool [batch, n]."""
    found = checks.tensor(chance, "chance=").to(device=like.device, dtype=like.dtype)
    right, readable = found.shape in ((), (sampler.samples,)), checks.readable(found)
    needed = also[drawn.any(0)] if readable else also  # the positive of a batch of one is nobody's negative
    inside = not readable or bool(((found >= 0) & (found <= 1)).all() and (found.any() or not len(needed)))
    if not right or not inside:
        shown = f"a tensor {list(found.shape)}" if found.dim() else f"{float(found):g}"
        raise InputError(
            f"chance= says how likely a sample is to be among `also`, above 0 and at most 1, one number or "
            f"[{sampler.samples}] of them, but it is {shown}; give (batch - 1) / (queries - 1)."
        )
    found = found.expand(sampler.samples)
    if readable and not bool((found[needed] > 0).all()):
        absent = int(needed[found[needed] == 0][0])
        raise InputError(
            f"also= has sample {absent}, whose chance= of being there is 0; give it above 0, or leave it out."
        )
    return found


def _distinct(sampler: Negatives, count: int, fewest: int, anchors: Tensor, num: int, epoch: Epoch) -> Tensor:
    """Distinct draws over all `count` samples: O(batch * count); a CPU takes a few anchors at a time, in the cache."""
    num = _enough(num, fewest)
    sampler.check(anchors)
    found = []
    for some in anchors.split(max(1, _CACHED // count) if checks.readable(anchors) else max(1, len(anchors))):
        every = chances.columns(count, some).expand(len(some), -1)
        found.append(chances.pick_distinct(sampler.log_probability(some, every), sampler.seed, some, num, epoch))
    return torch.cat(found)


def _candidates_first(labels: Tensor, among: Rows | None) -> tuple[Tensor, int]:
    """(all samples: those that may be negatives, by class, then the others; how many may be)"""
    if among is None:
        return torch.argsort(labels, stable=True), len(labels)
    given = checks.tensor(among, "The candidates").to(labels.device)
    if not given.numel() or (given.dtype == torch.bool and not given.any()):
        raise InputError("among= names no sample, so there are no negatives; leave it out for all.")
    mask = given.dtype == torch.bool
    if given.dim() != 1 or (len(given) != len(labels) if mask else given.dtype not in (torch.int64, torch.int32)):
        kinds = f"their numbers, int64 [m], or a mask, bool [{len(labels)}]"
        raise InputError(f"among= names samples by {kinds}, but it is {given.dtype} {tuple(given.shape)}.")
    if not mask and (wrong := checks.outside(given.cpu(), len(labels))) is not None:
        raise InputError(f"among= names samples, 0 to {len(labels) - 1}, but one is {wrong}.")
    may = given if mask else torch.zeros_like(labels, dtype=torch.bool).index_fill_(0, given.long(), True)
    candidates, others = may.nonzero()[:, 0], (~may).nonzero()[:, 0]
    return torch.cat([candidates[labels[candidates].argsort(stable=True)], others]), len(candidates)


def _labels(given: Labels) -> Tensor:
    labels = checks.tensor(given, "Labels")
    if labels.dim() != 1 or not len(labels):
        shape = f"{tuple(labels.shape)}{checks.one_each(labels, 'labels')}"
        raise InputError(f"Labels must be integers [n], a number a sample, but their shape is {shape}.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(f"Labels must be integers [n], but they are {labels.dtype}; convert them: {checks.INTEGER}.")
    checks.check_unsigned(labels, "Labels")
    if int(labels.long().min()) < -1:
        raise InputError(f"Labels must be -1 (none) or larger, but one is {int(labels.long().min())}.")
    return labels.to(torch.int64, copy=True)  # what becomes of the caller's does not matter


def _fewest(indices: Tensor) -> int:
    """Neighbours of the row that has the fewest: the columns that all rows fill, since those left out come last."""
    return int((indices >= 0).all(0).sum())


def _check_table(table: object, made: str) -> None:
    if not isinstance(table, NeighborTable):
        raise InputError(f"This sampler takes a NeighborTable, not {type(table).__name__}; make it by {made}.")


def _is_part(part: object) -> bool:
    if not isinstance(part, tuple | list) or len(part) != 2:
        return False
    return checks.is_number(part[0]) and isinstance(part[1], Negatives)


def _enough(num: int, available: int) -> int:
    if (num := chances.whole(num)) > available:
        raise InputError(
            f"{num} distinct draws need {num} candidates, but there are {available}; lower num or allow repeats."
        )
    return num


def constants(module: nn.Module, **tensors: Tensor) -> None:
    """Constants of a sampler: they follow it to a device but are no state, since they are made from its arguments."""
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor, persistent=False)
