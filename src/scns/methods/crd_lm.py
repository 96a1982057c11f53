"""Contrastive representation distillation with latent mixup: CRD, and CRD again between the mixtures of a batch.

l = CE + weight * CRD(z^S, z^T) + lm_weight * CRD(z~^S, z~^T),  z~ = unit(nu v_- + (1 - nu) z),  nu ~ Beta(beta, beta)

"CRD-LM" of O'Neill and Bollegala (2021), who do not define it: this is our reading. Both networks mix the same pair of
samples with the same nu, the negative from their bank; the student's mixture must tell the teacher's mixture of its own
pair from those of the batch's other pairs, and the other way round. Consumes what CRD does (Tian et al., 2020).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from scns import chances, draws, mixup
from scns.features import Batch, Features
from scns.functional.inputs import check_positive
from scns.methods import Setting, crd

REFERENCE = "O'Neill and Bollegala, 2021; Tian et al., 2020"


class Objective(crd.Objective):
    """Cross-entropy, CRD and CRD on mixtures."""

    mixture_constant: Tensor

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 0.8,  # CRD's in the appendix
        lm_weight: float = 0.1,  # of CRD on mixtures; that of latent mixup elsewhere in the paper
        beta: float = 0.5,  # nu ~ Beta(beta, beta)
        sampler: str = "uniform",  # of negatives: uniform, class, instance, mixed or soft
        k: float | None = None,  # nearest classes or samples: how many or, below 1, which share; None: the paper's best
        scale: float = 5.0,  # the paper's "tau = 5" of the sampling distribution
        clusters: int | None = None,  # of sampler "soft"
        negatives: int = 16384,  # CRD's
        distinct: bool = False,  # draw without repetition: costs batch x n a step
        positive: str = "exact",  # the sample itself, or "relax": another of its class
        dim: int = 128,  # CRD's
        tau: float = 0.07,  # of the contrast (`temperature` is that of the distilled logits); CRD's
        momentum: float = 0.5,  # of the tables; CRD's
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(
            setting,
            weight=weight,
            sampler=sampler,
            k=k,
            scale=scale,
            clusters=clusters,
            negatives=negatives,
            distinct=distinct,
            positive=positive,
            dim=dim,
            tau=tau,
            momentum=momentum,
            ce=ce,
            kld=kld,
            temperature=temperature,
        )
        check_positive("lm_weight", lm_weight, zero=True)
        self.lm_weight, self.seed = lm_weight, setting.seed
        self.whole_batch = lm_weight > 0  # mixtures are told from those of the batch's other pairs
        self.fewest = 2 if lm_weight else 1
        self.quantile = mixup.BetaQuantile(beta, fold=False)  # mixtures match mixtures: none of them is a negative
        self.register_buffer("mixture_constant", torch.full((), -1.0))  # as CRD's Z; below 0: not set yet

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        teacher = teacher._replace(embedding=teacher.embedding.detach())
        losses = super().forward(batch, student, teacher)
        if self.lm_weight:
            losses["lm"] = self.lm_weight * self._mixed(batch, student.embedding, teacher.embedding)
        return losses

    def _mixed(self, batch: Batch, student: Tensor, teacher: Tensor) -> Tensor:
        anchors = batch.of_anchors(batch.index)
        ours, theirs = self.crd.student_head(student), self.crd.teacher_head(teacher)
        drawn = self.sampler.sample(anchors, 1, epoch=batch.epoch)[:, 0]
        nu = self.quantile(draws.uniform(self.seed, draws.MIXING, batch.epoch, anchors))
        with torch.autocast(ours.device.type, enabled=False):
            banks = (self.crd.part.take(bank, drawn) for bank in (self.crd.student_bank, self.crd.teacher_bank))
            first, second = (
                F.normalize(mixup.mix(negative.to(z.dtype), z, nu), dim=1)
                for negative, z in zip(banks, (ours, theirs), strict=True)
            )
            similarities = first @ second.T
            column = chances.columns(len(anchors), anchors)
            own_first = (column[:, None] + column) % len(anchors)  # [batch, batch]: row i is i, i + 1, ..., i - 1
            # The noise contrast adds up over pairs one by one, so the teacher's side is the same sum in another order.
            return 2 * self.crd.side(similarities.gather(1, own_first), self.mixture_constant)
