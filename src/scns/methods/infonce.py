"""InfoNCE against a memory of features, with any sampler and with latent mixup.

l = CE + weight * InfoNCE(z, v_+, v_-) + lm_weight * InfoNCE(z, v_+, kappa(v_-, z)),  kappa = nu v_- + (1 - nu) z

O'Neill and Bollegala (2021), Semantically-Conditioned Negative Samples for Efficient Contrastive Learning. Consumes the
embeddings and the sample numbers. Without a teacher: one network, its head and its table of features. With one: student
anchors against the teacher's table and, `symmetric`, teacher anchors against the student's, which is what trains the
teacher's head (rows of a table are constants). Heads and tables are dropped after training.

The defaults are what was measured best of nine kinds of negatives with a teacher (docs/results.md): 256 corrected ones,
drawn by the features of the table itself. With a teacher, the sample itself was the better positive by 1.5 points, with
the paper's settings by 3 to 4 (one seed each); that `kld=1` on top or `tau=0.05` are better is not established. The
paper's settings are presets: every "InfoNCE", "InfoNCE-LM" and "InfoNCE + LM" row, with and without Class- or
Instance-SCNS. The hyphen in "InfoNCE-LM" is a hyphen: with supervision it means mixtures alone, in the distillation
appendix "InfoNCE-LM + ..." has the original negatives too; hence two weights.
"""

from dataclasses import replace
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from scns import chances, draws, gathered, mixup
from scns.chances import Epoch
from scns.errors import InputError
from scns.features import Batch, Features
from scns.functional.inputs import check_choice, check_positive
from scns.memory import FeatureTable
from scns.methods import Head, Method, Setting
from scns.methods._drawn import Drawn, Rows
from scns.methods._sampler import make_sampler
from scns.neighbors import NeighborTable
from scns.sampling import InstanceNegatives, Positives
from scns.soft import SoftNegatives
from scns.world import World

REFERENCE = "O'Neill and Bollegala, 2021"

_MIXTURES = ("negatives", "matching", "cross")
_MOST = 2**20  # draws of an anchor: a batch of them would fill the memory, for a sum that is exact by then

# Of all presets: "tau = 5" of the sampling distribution, negatives counted as they are drawn, by embeddings that stay,
# are the paper's; it states no number of negatives and no tau, here CRD's, and leaves the positive open, here another
# sample of the class.
_PAPER = {"negatives": 1024, "scale": 5.0, "refresh": 0, "correct": False, "tau": 0.07, "positive": "class"}
# t1: CIFAR-10 without a teacher, l = CE + InfoNCE, LM 0.1 of a grid {0.01, 0.05, 0.1, 0.2}, beta 0.5.
# kd: with a teacher; alpha 0.65 (Class-SCNS) and 0.9 (Instance-SCNS) from the appendix. The weight of plain InfoNCE and
# of the mixtures is unstated there: 0.9; as much as that of the original term in "InfoNCE-LM + ...", a tenth of it in
# "InfoNCE + LM", as in t1.
_ROWS: dict[str, dict[str, object]] = {
    "t1-infonce": {"sampler": "uniform", "weight": 1.0},
    "t1-infonce-lm": {"sampler": "uniform", "weight": 0.0, "lm_weight": 1.0},
    "t1-infonce+lm": {"sampler": "uniform", "weight": 1.0, "lm_weight": 0.1},
    "t1-class": {"sampler": "class", "weight": 1.0, "k": 2},
    "t1-instance": {"sampler": "instance", "weight": 1.0, "k": 1 / 100},
    "kd-infonce": {"sampler": "uniform", "weight": 0.9},
    "kd-lm": {"sampler": "uniform", "weight": 0.0, "lm_weight": 0.9, "mixture": "matching"},
    "kd+lm": {"sampler": "uniform", "weight": 0.9, "lm_weight": 0.09, "mixture": "matching"},
    "kd-class": {"sampler": "class", "weight": 0.65, "k": 1 / 20},
    "kd-instance": {"sampler": "instance", "weight": 0.9, "k": 1 / 50},
    "kd-lm-class": {"sampler": "class", "weight": 0.65, "lm_weight": 0.65, "mixture": "matching", "k": 1 / 20},
    "kd-lm-instance": {"sampler": "instance", "weight": 0.9, "lm_weight": 0.9, "mixture": "matching", "k": 1 / 50},
}
PRESETS = {name: {**own, **_PAPER} for name, own in _ROWS.items()}


def effective(arguments: dict[str, Any], *, teacher: bool, divided: bool) -> dict[str, Any]:
    """The arguments with the values that None stands for, with or without a teacher and divided tables."""
    check_positive("tau", arguments["tau"])
    soft = arguments["sampler"] == "soft"
    meant = {
        "scale": 1 / arguments["tau"] if soft else 5.0,  # in proportion to the loss's own terms; else the paper's
        "refresh": int(soft and not divided),  # by the table itself, if whole; alike for any number of processes
        "correct": arguments["sampler"] in ("soft", "mixed"),  # made for it; the others count negatives as drawn
        "positive": "instance" if teacher else "class",  # alone, a sample's own row is only how it looked an epoch ago
    }
    return arguments | {key: value for key, value in meant.items() if arguments[key] is None}


class Objective(Method):
    """Cross-entropy, InfoNCE on drawn negatives and InfoNCE on their mixtures with the anchor."""

    needs: tuple[str, ...] = ("embedding",)
    proposal: Tensor | None

    def __init__(
        self,
        setting: Setting,
        *,
        sampler: str = "soft",  # measured: docs/results.md; or uniform (the row "InfoNCE"), class, instance, mixed, all
        negatives: int = 256,  # measured: 64 reach the whole sum's accuracy, 1,024 and 4,096 gain nothing
        k: float | None = None,  # nearest classes or samples: how many or, below 1, which share; None: the paper's best
        scale: float | None = None,  # P = softmax(scale * cosine); None: 1 / tau for "soft", else the paper's 5
        clusters: int | None = None,  # of sampler "soft": O(clusters) an anchor instead of O(samples)
        refresh: int | None = None,  # epochs until "soft", "instance" see the table anew; 0: never; None: 1 for "soft"
        correct: bool | None = None,  # True: weights for an unbiased estimate of the whole sum; None: soft, mixed
        tau: float = 0.1,  # of InfoNCE (`temperature` is that of the distilled logits); of the runs measured
        dim: int = 128,  # unstated, CRD's
        momentum: float = 0.5,  # of the tables; unstated, CRD's and OIM's
        weight: float = 0.8,  # of the runs measured; presets have the paper's
        lm_weight: float = 0.0,  # of InfoNCE on mixtures; 0.1 beside the original, see presets
        beta: float = 0.5,  # nu ~ Beta(beta, beta); the best of {0.01, 0.05, 0.1, 0.2, 0.5}
        fold: bool = True,  # max(nu, 1 - nu) in mixtures that count as negatives; False: as printed
        normalize: bool = True,  # mixtures back to the unit sphere; unstated
        nu_per: str = "pair",  # or "batch": one nu for all pairs of a step; unstated
        mixture: str = "negatives",  # or "matching", "cross": the mixtures of both networks find each other
        positive: str | None = None,  # "class": another of it; "instance": the sample itself; None: with a teacher
        positives: int = 1,  # others of the class, with positive="class": the mean of their losses
        symmetric: bool = True,  # with a teacher, also its anchors against the student's table
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        given = {"sampler": sampler, "tau": tau, "scale": scale, "refresh": refresh, "correct": correct}
        given["positive"] = positive
        chosen = effective(given, teacher=setting.teacher is not None, divided=setting.divided)
        for name, value in (("weight", weight), ("lm_weight", lm_weight)):
            check_positive(name, value, zero=True)
        for name, value in (("negatives", negatives), ("positives", positives)):
            check_positive(name, value)
        if negatives > _MOST:
            raise InputError(
                f"negatives={negatives} of each anchor are more than {_MOST:,}; use sampler='all' instead."
            )
        if k is not None:
            check_positive("k", k)
        check_choice("mixture", mixture, _MIXTURES)
        check_choice("positive", chosen["positive"], ("class", "instance"))
        if positives > 1 and chosen["positive"] == "instance":
            raise InputError(f"positives={positives} are others of the class, so give positive=class too.")
        check_choice("nu_per", nu_per, ("pair", "batch"))
        if setting.teacher is None and mixture != "negatives":
            raise InputError(f"mixture='{mixture}' mixes two networks; give a teacher, or use mixture='negatives'.")
        if sampler == "all" and mixture != "negatives":
            raise InputError(
                f"mixture='{mixture}' draws a negative an anchor, which sampler 'all' does not; use 'uniform'."
            )
        self.negatives, self.correct, self.tau = negatives, chosen["correct"], tau
        self.weight, self.lm_weight = weight, lm_weight
        self.mixes_negatives = lm_weight > 0 and mixture == "negatives"
        self.normalize, self.nu_per, self.mixture = normalize, nu_per, mixture
        self.positive, self.several = chosen["positive"], positives
        self.symmetric, self.seed = symmetric, setting.seed
        self.whole_batch = lm_weight > 0 and (mixture != "negatives" or nu_per == "batch")
        refresh = chosen["refresh"]
        if refresh < 0:
            raise InputError(f"refresh={refresh} is a number of epochs; give 1 for every epoch, 0 for never.")
        if refresh and sampler not in ("soft", "instance"):
            raise InputError(f"refresh is for the samplers 'soft' and 'instance', but the sampler is '{sampler}'.")
        if refresh and setting.divided and setting.world.size > 1:
            raise InputError("refresh reads the whole table, so tables=sharded cannot be; use tables=replicated.")
        self.refresh, self.labels, self.follows = refresh, setting.believed(), False
        self.positives = Positives(self.labels, seed=setting.seed)
        # A mixture that has a target of its own, as in matching, may lie anywhere between the two: no fold.
        self.quantile = mixup.BetaQuantile(beta, fold=fold and mixture == "negatives")
        world = setting.world if setting.divided else World()
        options: dict[str, Any] = {"momentum": momentum, "world": world, "device": setting.labels.device}
        self.student_table = FeatureTable(len(setting.labels), dim, seed=setting.seed, **options)
        self.student_head = Head(setting.student.width, dim)
        self.teacher_head = self.teacher_table = None
        if setting.teacher is not None:
            self.teacher_head = Head(setting.teacher.width, dim)
            self.teacher_table = FeatureTable(len(setting.labels), dim, seed=setting.seed + 1, **options)
        start = self._contrasted().features.clone() if refresh else None
        self.register_buffer("proposal", start)  # what the sampler goes by: state, as the table moves on meanwhile
        if start is not None:
            setting = replace(setting, embeddings=start.to(setting.labels.device).clone)
        self.sampler = make_sampler(setting, sampler, k=k, scale=chosen["scale"], clusters=clusters)
        if refresh and isinstance(self.sampler, InstanceNegatives):
            self.sampler.own_()
        self.everything = self.sampler.everything  # a compiled step that asks the sampler would be made for its kind
        self.drawn = Drawn(self._draw, len(setting.labels))

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        losses = self.classification(batch, student, teacher)
        if self.weight or self.lm_weight:
            own = self.student_head(batch.of_anchors(student.embedding))
            other = None if self.teacher_head is None else self._teacher_features(teacher, batch.anchors)
            with torch.autocast(own.device.type, enabled=False):
                losses.update(self.contrast(batch.of_anchors(batch.index), batch.epoch, own, other))
        return losses

    def contrast(self, anchors: Tensor, epoch: Tensor, student: Tensor, teacher: Tensor | None) -> dict[str, Tensor]:
        """The weighted contrastive terms of unit features [batch, dim] of the samples `anchors`."""
        losses = {}
        if self.weight or self.mixes_negatives:
            rows, log_weights, target = self._compared(anchors, epoch)
            sides = self._sides(student, teacher)
            whole = [(z, table.features) for z, table in sides if not table.part.divided]
            alone = not self.mixes_negatives and len(whole) == len(sides) and self.several == 1
            if rows is not None and alone and gathered.fits(whole, rows):
                found = gathered.info_nce(whole, rows, log_weights, self.tau)
                losses["infonce"] = found.sum() * (self.weight / len(anchors))
            else:
                losses = self._by_similarity(sides, rows, log_weights, target, anchors, epoch)
        if self.lm_weight and not self.mixes_negatives:
            assert teacher is not None
            losses["lm"] = self._match_mixtures(anchors, epoch, student, teacher)
        return losses

    def _by_similarity(
        self, sides: list[tuple[Tensor, FeatureTable]], rows: Tensor | None, log_weights: Tensor | None,
        target: Tensor | None, anchors: Tensor, epoch: Tensor,
    ) -> dict[str, Tensor]:  # fmt: skip
        """InfoNCE on the negatives and on their mixtures, from all similarities."""
        losses = {}
        both = [table.products(z, rows) for z, table in sides]  # [batch, m] each
        if self.weight:
            losses["infonce"] = self._info_nce(both, log_weights, target, self.weight)
        if self.mixes_negatives:
            negatives = both[0].shape[1] - self.several * (target is None)
            nu = self._coefficients(anchors, negatives, epoch)  # one nu for both networks' mixture of a pair
            both = [self._mixed(similarity, nu, target) for similarity in both]
            losses["lm"] = self._info_nce(both, log_weights, target, self.lm_weight)
        return losses

    def _compared(self, anchors: Tensor, epoch: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """(rows of the tables [batch, m], or None for all of them; log-weights; columns [batch, p] of the positives).

        No columns: the positives are in the first p. No log-weights: all are 0.
        """
        if not self.everything:
            return *self.drawn(anchors, epoch), None
        _, log_weights = self.sampler.weights(anchors, self.negatives, epoch=epoch, correct=self.correct)
        positives = self._positives(anchors, epoch)
        return None, log_weights.scatter_(1, positives, 0.0), positives

    def _draw(self, anchors: Tensor, epoch: Epoch) -> Rows:
        """The rows of the tables that anchors are compared with, [batch, p + m], and their log-weights."""
        drawn, log_weights = self.sampler.weights(anchors, self.negatives, epoch=epoch, correct=self.correct)
        if self.sampler.counted and self.negatives < drawn.shape[1] and not self.mixes_negatives:
            log_weights, drawn_at_all = log_weights.topk(self.negatives, dim=1)  # the others' weight is 0
            drawn = drawn.gather(1, drawn_at_all)
        rows = torch.cat([self._positives(anchors, epoch), drawn], dim=1)
        return rows, F.pad(log_weights, (self.several, 0)) if self.correct or self.sampler.counted else None

    def _positives(self, anchors: Tensor, epoch: Epoch) -> Tensor:
        if self.positive == "instance":
            return anchors[:, None]
        return self.positives.sample(anchors, self.several, epoch=epoch)

    @torch.no_grad()
    def begin_epoch(self, epoch: int, fresh: bool) -> None:
        if self.proposal is not None:
            self._follow(epoch, fresh, self.proposal)
        for table in (self.student_table, self.teacher_table):
            if table is not None:
                table.look()
        if (self.weight or self.mixes_negatives) and not self.everything:
            self.drawn.begin(epoch, self.sampler.candidates, self.student_table.features.device)

    def _follow(self, epoch: int, fresh: bool, proposal: Tensor) -> None:
        """Let the sampler go by the table as it was at the beginning of the last epoch of refreshment."""
        if fresh and (epoch - 1) % self.refresh == 0:
            proposal.copy_(self._contrasted().features)
            self.follows = False
        if not self.follows:  # nor does it after a resumption, which brings the proposal back and no more
            if isinstance(self.sampler, InstanceNegatives):
                k = self.sampler.indices.shape[1]
                self.sampler.refresh_(NeighborTable.build(proposal, self.labels, k=k, positive=None))
            elif isinstance(self.sampler, SoftNegatives):
                self.sampler.refresh_(proposal)
            self.follows = True

    @torch.no_grad()
    def after_step(self, batch: Batch, student: Features, teacher: Features | None) -> None:
        self.fill(batch.of_anchors(batch.index), student, teacher)

    @torch.no_grad()
    def fill(self, index: Tensor, student: Features, teacher: Features | None) -> None:
        """Move the tables' rows of the samples `index`, none twice, towards their features; the first are taken whole.

        Called for every sample before training, it spares the first epoch its random negatives.
        """
        self.student_head.write(self.student_table, index, student.embedding[: len(index)])
        if self.teacher_table is not None:
            assert self.teacher_head is not None and teacher is not None
            self.teacher_head.write(self.teacher_table, index, teacher.embedding[: len(index)])

    def _teacher_features(self, teacher: Features | None, count: int) -> Tensor:
        assert self.teacher_head is not None and teacher is not None
        return self.teacher_head(teacher.embedding[:count].detach())

    def _contrasted(self) -> FeatureTable:
        """The table that the student's anchors are compared with."""
        return self.student_table if self.teacher_table is None else self.teacher_table

    def _sides(self, student: Tensor, teacher: Tensor | None) -> list[tuple[Tensor, FeatureTable]]:
        """Anchors with the table they are compared with: the other network's where there are two."""
        if teacher is None or self.teacher_table is None:
            return [(student, self.student_table)]
        sides = [(student, self.teacher_table), (teacher, self.student_table)]
        return sides if self.symmetric else sides[:1]

    def _info_nce(self, both: list[Tensor], log_weights: Tensor | None, target: Tensor | None, weight: float) -> Tensor:
        """The weighted sum of `functional.info_nce` over the networks' similarities [batch, m], as one softmax.

        That takes fewer kernels, and has fewer digits only where a sample's loss is below 1e-7.
        """
        parts = both if target is not None or len(both) == 1 else [torch.stack(both)]  # few numbers: in one go
        found = []
        for similarity in parts:
            scale = 1 / self.tau
            scaled = scale * similarity if log_weights is None else torch.add(log_weights, similarity, alpha=scale)
            found.append(self._log_p(scaled, target).sum())
        return reduce(torch.add, found) * (-weight / len(both[0]))

    def _log_p(self, scaled: Tensor, target: Tensor | None) -> Tensor:
        """log of the positives' share, of one positive or the mean over several, each beside the negatives alone."""
        if self.several == 1 or (target is not None and target.shape[1] == 1):
            log_p = F.log_softmax(scaled, dim=-1)
            return log_p[..., 0] if target is None else log_p.gather(1, target)
        if target is None:
            positives, negatives = scaled[..., : self.several], scaled[..., self.several :]
        else:
            positives, negatives = scaled.gather(1, target), scaled.scatter(1, target, -torch.inf)
        return -F.softplus(negatives.logsumexp(-1, keepdim=True) - positives).mean(-1)

    def _mixed(self, similarity: Tensor, nu: Tensor, target: Tensor | None) -> Tensor:
        """Similarities of the anchors to the mixtures of their negatives; that to the positive as it is."""
        if target is None:
            mixed = mixup.mixed_similarity(similarity[:, self.several :], nu, self.normalize)
            return torch.cat([similarity[:, : self.several], mixed], dim=1)
        mixed = mixup.mixed_similarity(similarity, nu, self.normalize)
        return mixed.scatter(1, target, similarity.gather(1, target))

    def _coefficients(self, anchors: Tensor, count: int, epoch: Tensor) -> Tensor:
        """nu [batch, count], or [1, 1] for all pairs of the batch."""
        if self.nu_per == "batch":
            anchors, count = anchors[:1], 1
        return self.quantile(
            draws.uniform(self.seed, draws.MIXING, epoch, anchors[:, None], chances.columns(count, anchors))
        )

    def _match_mixtures(self, anchors: Tensor, epoch: Tensor, student: Tensor, teacher: Tensor) -> Tensor:
        """InfoNCE that finds, among the teacher's mixtures of the batch, that of the same pair with the same nu.

        z~_S = kappa(v_-^S, z^S), z~_T = kappa(v_-^T, z^T); "cross": z~_S = kappa(v_-^S, z^T), z~_T = kappa(v_-^T, z^S).
        """
        assert self.teacher_table is not None
        drawn = self.sampler.sample(anchors, 1, epoch=epoch)[:, 0]
        nu = self._coefficients(anchors, 1, epoch)[:, 0]
        if self.mixture == "cross":
            student, teacher = teacher, student
        first = mixup.mix(self.student_table.take(drawn).to(student.dtype), student, nu)
        second = mixup.mix(self.teacher_table.take(drawn).to(teacher.dtype), teacher, nu)
        if self.normalize:
            first, second = F.normalize(first, dim=1), F.normalize(second, dim=1)
        similarity = first @ second.T  # [batch, batch]
        own = torch.arange(len(anchors), device=anchors.device)[:, None]
        both = [similarity, similarity.T]
        return self._info_nce(both if self.symmetric else both[:1], None, own, self.lm_weight)
