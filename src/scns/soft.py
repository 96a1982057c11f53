"""`SoftNegatives`: every sample of another class, the more similar the likelier; no top k."""

import copy
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from scns import chances, checks, draws, has
from scns.chances import Epoch, columns
from scns.checks import Embeddings, Labels, Rows
from scns.errors import InputError
from scns.sampling import Negatives, Pool, constants, joined

_ROUNDS = 10  # of k-means: assignments hardly change after that
_ROWS = 16  # anchors, and candidates, that a CPU multiplies at least: it rounds products of fewer in another way
_CACHED = 1 << 19  # numbers that a core weighs at a time: 4 MB, which a dozen passes need not fetch from memory again
_AT_ONCE = 1 << 24  # numbers of a tensor in k-means, of embeddings or similarities: 64 MB, or 128 of integers


class SoftNegatives(Negatives):
    """P(j) = (1 - uniform) * exp(scale * cos(anchor, j)) / sum + uniform / (N - N_y), j any sample of another class.

    Exact by one product with all embeddings an anchor; with `clusters=c`, a cluster is drawn first, P(cluster) ~ size *
    exp(scale * cos(anchor, centroid)), then a member uniformly: O(c) an anchor for any N, and q is still known exactly,
    so corrected weights stay unbiased. Clusters lie inside classes. Made as the proposal of corrected weights: the best
    scale is near 1 / temperature of the loss. An embedding of zeros has cosine 0 with all. Cosines are products in
    float32, which another device or another number of threads rounds in another way: now and then a draw differs.
    `among` names those that may be negatives, by numbers or a mask: range(queries, N) are the passages behind queries.

        sampler = scns.SoftNegatives(embeddings, labels, scale=10, clusters=200)   # float [N, dim], integers [N]
        negatives, log_weights = sampler.weights(rows, 256, correct=True)          # [batch, 256] each
    """

    unit: Tensor  # float32 [n, dim], in order of class
    kin: Tensor  # int32 [candidates], in order of class: where each one's class begins, one number for a class
    centroids: Tensor
    sizes: Tensor
    first: Tensor
    members: Tensor
    cluster_of: Tensor
    cluster_class: Tensor
    picked: Tensor  # the members that k-means starts from, of each cluster, by their place in the class
    alike: dict[tuple[int, int], list[tuple[int, int]]]  # (samples, clusters) -> (first row, first cluster) of classes

    @torch.inference_mode(False)  # where the embeddings may come from, but others are taken later
    def __init__(
        self,
        embeddings: Embeddings,
        labels: Labels,
        *,
        scale: float,
        clusters: int | None = None,
        uniform: float = 0.1,
        among: Rows | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not checks.is_number(uniform) or not 0 <= uniform < 1:
            raise InputError(f"uniform={uniform!r} is the share of uniform draws: at least 0 and below 1.")
        self.seed, self.scale, self.uniform, self.clusters = seed, checks.scale(scale), uniform, clusters
        embeddings = checks.tensor(embeddings, "Embeddings")
        self.pool = Pool(labels, among).to(embeddings.device)
        self.samples = len(self.pool)
        self.candidates = clusters or self.pool.count
        if embeddings.dim() != 2 or not embeddings.shape[1] or embeddings.is_complex():
            kind = f"{embeddings.dtype} " if embeddings.is_complex() else ""
            raise InputError(f"Embeddings must be [rows, dim], but these are {kind}{tuple(embeddings.shape)}.")
        if len(embeddings) != len(self.pool):
            raise InputError(
                f"{len(self.pool)} labels need {len(self.pool)} embeddings, but there are {len(embeddings)}."
            )
        unit = torch.empty(embeddings.shape, dtype=torch.float32, device=embeddings.device)
        constants(self, unit=unit, kin=self.pool.start[self.pool.order[: self.pool.count]].int())
        if clusters is not None:
            self._allot(clusters)
        self.refresh_(embeddings)

    def extra_repr(self) -> str:
        clusters = "" if self.clusters is None else f", clusters={self.clusters}"
        return f"{self.samples} samples, scale={self.scale:g}, uniform={self.uniform:g}{clusters}"

    def refreshed(self, embeddings: Embeddings) -> "SoftNegatives":
        """The same sampler for new embeddings of the same samples (the student's own feature table, say)."""
        return copy.deepcopy(self).refresh_(embeddings)

    def refresh_(self, embeddings: Embeddings) -> "SoftNegatives":
        """Take new embeddings in place, so that a captured step draws from them too."""
        embeddings = checks.tensor(embeddings, "Embeddings")
        if embeddings.shape != self.unit.shape:
            raise InputError(f"This sampler holds embeddings {tuple(self.unit.shape)}, not {tuple(embeddings.shape)}.")
        embeddings = embeddings.detach().float()
        checks.check_norms(torch.linalg.vector_norm(embeddings, dim=1), zero_rows=True)
        self.unit.copy_(F.normalize(embeddings, dim=1)[self.pool.order])
        if self.clusters is not None:
            with torch.autocast(self.unit.device.type, enabled=False):  # which would round similarities
                self._cluster()
        return self

    def can_draw(self, anchors: Tensor, indices: Tensor) -> Tensor:
        """Every negative can be drawn, by the uniform part."""
        if not self.uniform:
            return super().can_draw(anchors, indices)
        self.check(anchors, indices)
        return self.pool.is_negative(anchors, indices)

    def log_probability(self, anchors: Tensor, indices: Tensor) -> Tensor:
        self.check(anchors, indices)
        return self._weighed(anchors, lambda ends, some: (self._log_q(ends, indices[some]),))[0]

    def sample(self, anchors: Tensor, num: int, *, epoch: Epoch = 0, distinct: bool = False) -> Tensor:
        """int64 [batch, num]"""
        if distinct:
            raise InputError("SoftNegatives draws with repetition; use InstanceNegatives for distinct neighbours.")
        position = chances.positions(self.seed, anchors, num, epoch)
        return self._weighed(anchors, lambda ends, some: (self._take(ends, anchors[some], position[some], epoch),))[0]

    def weights(self, anchors: Tensor, num: int, *, epoch: Epoch = 0, correct: bool = False) -> tuple[Tensor, Tensor]:
        """(int64 [batch, num], float32 log-weights): drawn systematically, so each is met num * q times on average.

        Candidates stand in order of class, so evenly spaced draws spread over the classes too.
        """
        position = chances.even_positions(self.seed, anchors, num, epoch)

        def draw(ends: Tensor, some: slice) -> tuple[Tensor, Tensor]:
            drawn = self._take(ends, anchors[some], position[some], epoch)
            if not correct:
                return drawn, torch.zeros(drawn.shape, device=drawn.device)
            return drawn, -math.log(num) - self._log_q(ends, drawn)

        drawn, log_weights = self._weighed(anchors, draw)
        return drawn, log_weights

    def _columns(self, anchors: Tensor, num: int, epoch: Epoch, also: Tensor | None) -> tuple[Tensor, Tensor]:
        """The same with one look at all candidates, whose sums are kept for the whole batch."""
        ends = self._weighed(anchors, lambda ends, some: (ends,))[0]
        columns = joined(also, self._take(ends, anchors, chances.even_positions(self.seed, anchors, num, epoch), epoch))
        return columns, self._log_q(ends, columns.expand(len(anchors), -1))

    def _take(self, ends: Tensor, anchors: Tensor, position: Tensor, epoch: Epoch) -> Tensor:
        chosen = chances.find(ends, position)
        if self.clusters is None:
            return self.pool.order[chosen]
        draw = columns(chosen.shape[1], anchors)
        nth = draws.integers(self.sizes[chosen], self.seed, draws.NEGATIVES, epoch, anchors[:, None], draw, 1)
        return self.members[self.first[chosen] + nth]

    def _log_q(self, ends: Tensor, indices: Tensor) -> Tensor:
        """log q of samples [batch, m], from the integer weights of their candidates."""
        total, place = ends[:, -1:].double().log(), self.pool.rank[indices]
        if self.clusters is None:
            log_q = chances.between(ends, place.clamp(max=self.pool.count - 1)).double().log() - total
        else:
            cluster = self.cluster_of[indices]
            log_q = chances.between(ends, cluster).double().log() - total - self.sizes[cluster].double().log()
        if self.pool.count < self.samples:
            log_q.masked_fill_(place >= self.pool.count, -torch.inf)  # no candidates
        return log_q.float()

    def _weighed(self, anchors: Tensor, answer: Callable[[Tensor, slice], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """What `answer` says of the anchors' integer weights, uniform part too, added up over their candidates.

        Candidates are the samples by class, or the clusters. A CPU weighs and answers a few anchors at a time: their
        sums need not be kept, 100 MB for 256 anchors of 50,000.
        """
        self.check(anchors)
        anchor = self.unit[self.pool.rank[anchors]]
        others = self.unit[: self.pool.count] if self.clusters is None else self.centroids
        count = len(others)
        if anchor.device.type == "cpu":
            anchor, others = _enough_rows(anchor), _enough_rows(others)
        with torch.autocast(anchor.device.type, enabled=False):  # else draws would depend on it
            scores = (anchor @ others.T)[: len(anchors), :count]
        if self.clusters is None and has.TRITON and scores.is_cuda:
            ends = self._added_up(scores, self.pool.start[anchors], self.pool.stop[anchors], anchors)
            return answer(ends, slice(None))
        if not checks.readable(scores):
            return answer(self._integers(scores, anchors).cumsum_(1), slice(None))
        step = max(1, _CACHED * torch.get_num_threads() // scores.shape[1])
        parts = [slice(first, first + step) for first in range(0, max(1, len(anchors)), step)]
        answers = [answer(self._integers(scores[some], anchors[some]).cumsum_(1), some) for some in parts]
        return tuple(torch.cat(each) for each in zip(*answers, strict=True))

    def _integers(self, scores: Tensor, anchors: Tensor) -> Tensor:
        """Those weights before they are added up, of the anchors' cosines with all candidates."""
        if self.clusters is None:
            absent, sizes = self.kin == self.pool.start[anchors, None].int(), self.pool.size.new_ones(())
            log_weights = scores.double().mul_(self.scale)
        else:
            own = self.pool.labels[anchors, None]
            absent, sizes = (self.cluster_class == own) | (self.sizes == 0), self.sizes
            log_weights = self.scale * scores.double() + sizes.double().log()
        integers = chances.as_integers(log_weights.masked_fill_(absent, -torch.inf))  # in place: they may be batch x n
        share = self._share(anchors, integers.sum(1))
        return integers.add_((share[:, None] * sizes).round().long()).masked_fill_(absent, 0)

    def _added_up(self, scores: Tensor, start: Tensor, stop: Tensor, anchors: Tensor) -> Tensor:
        """The same of scores [batch, n] by kernels of our own; a class's samples are from `start` to `stop`."""
        scale = torch.full((), self.scale, dtype=torch.float64, device=scores.device)
        best, pieces = _sums(scores, start, stop, scale)
        before = pieces.cumsum(1)
        more = self._share(anchors, before[:, -1]).round().long()
        return _ends(scores, start, stop, scale, best, before - pieces, more)

    def _share(self, anchors: Tensor, total: Tensor) -> Tensor:
        """What the uniform part adds to each negative of the anchors, whose weights have that sum: float64 [batch]."""
        return (self.uniform / (1 - self.uniform) * total / self.pool.negatives(anchors)).double()

    def _allot(self, clusters: int) -> None:
        """Fix how many clusters each class gets, in proportion to its size and at least one."""
        labels = self.pool.labels[self.pool.order[: self.pool.count]]  # of the candidates
        if int(labels.min()) < 0:
            raise InputError("Clusters lie inside classes, so every sample needs a label; use clusters=None otherwise.")
        known, counts = labels.unique(return_counts=True)  # which may be any numbers
        classes = len(known)
        if not checks.is_whole(clusters) or not classes <= clusters <= len(labels):
            raise InputError(
                f"clusters={clusters!r} must be a whole number from {classes} (one a class) to {len(labels)} (one a "
                "sample)."
            )
        each = (counts * (clusters / len(labels))).round().long().clamp(min=1).minimum(counts)
        total, dim = int(each.sum()), self.unit.shape[1]
        device = labels.device
        constants(
            self,
            centroids=torch.zeros(total, dim, device=device),
            sizes=torch.zeros(total, dtype=torch.int64, device=device),
            first=torch.zeros(total, dtype=torch.int64, device=device),
            members=torch.zeros_like(labels),
            cluster_of=torch.zeros_like(self.pool.labels),
            cluster_class=torch.repeat_interleave(known, each),
            picked=torch.zeros(total, dtype=torch.int64, device=device),
        )
        self.alike = dict[tuple[int, int], list[tuple[int, int]]]()
        begin, place = 0, 0
        for label, count, number in zip(known.tolist(), counts.tolist(), each.tolist(), strict=True):
            order = draws.permutation(count, self.seed, draws.CLUSTERS, label, device=device)
            self.picked[place : place + number] = order[:number]
            self.alike.setdefault((count, number), []).append((begin, place))
            begin, place = begin + count, place + number

    def _cluster(self) -> None:
        """Spherical k-means inside each class, started from members picked by hash: the same on every machine.

        Classes of one size are done at once, as many as `_AT_ONCE` has room for.
        """
        device, dim = self.unit.device, self.unit.shape[1]
        for (count, number), classes in self.alike.items():
            for some in torch.tensor(classes, device=device).split(max(1, _AT_ONCE // (count * max(dim, number)))):
                rows = some[:, :1] + torch.arange(count, device=device)  # of a class each, in order of class
                places = some[:, 1:] + torch.arange(number, device=device)
                self.centroids[places], assigned = _kmeans(self.unit[rows], self.picked[places])
                self.cluster_of[self.pool.order[rows]] = places[:, :1] + assigned
        candidates = self.pool.order[: self.pool.count].sort().values
        cluster_of = self.cluster_of[candidates]
        self.members.copy_(candidates[torch.argsort(cluster_of, stable=True)])
        self.sizes.copy_(torch.bincount(cluster_of, minlength=len(self.sizes)))
        self.first.copy_(self.sizes.cumsum(0) - self.sizes)


def _enough_rows(rows: Tensor) -> Tensor:
    return rows if len(rows) >= _ROWS else F.pad(rows, (0, 0, 0, _ROWS - len(rows)))


def _kmeans(unit: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
    """(centroids [classes, c, dim], clusters [classes, n]) of unit rows [classes, n, dim], from the picked members."""
    centroids = unit.gather(1, picked[..., None].expand(-1, -1, unit.shape[2]))
    for _ in range(_ROUNDS):
        assigned = (unit @ centroids.mT).argmax(2)
        member = F.one_hot(assigned, picked.shape[1]).to(unit.dtype)  # a product, not scattered sums: always the same
        centroids = torch.where(member.sum(1)[..., None] > 0, F.normalize(member.mT @ unit, dim=2), centroids)
    return centroids, (unit @ centroids.mT).argmax(2)


@torch.library.custom_op("scns::weight_sums", mutates_args=())
def _sums(scores: Tensor, start: Tensor, stop: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """(largest scale * score, sums of the integers in each piece of the row) of each anchor"""
    from scns.kernels import weighing

    with torch.cuda.device_of(scores):  # where Triton launches
        return weighing.sums(scores.contiguous(), start, stop, scale)


@_sums.register_fake
def _sums_empty(scores: Tensor, start: Tensor, stop: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    from scns.kernels import weighing

    return scale.new_empty(scores.shape[:1]), start.new_empty(len(scores), weighing.pieces(scores))


@torch.library.custom_op("scns::weight_ends", mutates_args=())
def _ends(
    scores: Tensor, start: Tensor, stop: Tensor, scale: Tensor, best: Tensor, before: Tensor, more: Tensor
) -> Tensor:
    """The integers, with `more` for each, added up along the row; `before` is what stands before each piece"""
    from scns.kernels import weighing

    with torch.cuda.device_of(scores):
        return weighing.ends(scores.contiguous(), start, stop, scale, best, before, more)


@_ends.register_fake
def _ends_empty(
    scores: Tensor, start: Tensor, stop: Tensor, scale: Tensor, best: Tensor, before: Tensor, more: Tensor
) -> Tensor:
    return more.new_empty(scores.shape)
