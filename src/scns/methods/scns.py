"""Semantically conditioned distillation, the paper's Algorithm 1 with all its terms.

l = ce CE + weight InfoNCE + lm_weight InfoNCE(mixtures) + lm_kld_weight T^2 KL(y~^T || y~^S)
    + positive_weight d(z_+^S, z_+^T) + negative_weight d(z_-^S, z_-^T),  d = 1 - rho or 1 - CKA

O'Neill and Bollegala (2021). The first three terms are those of `infonce`, on negatives from the tables. The others
need gradients of positives and negatives, so the step forwards one of each beside an anchor (only those that a weight
asks for). Printed are minus signs before the last two terms and a KL over latent coordinates: they are costs, so they
are added, and y~ are class distributions at mixed latents. Consumes logits and embeddings of both networks.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from scns import draws, functional, mixup
from scns.errors import InputError
from scns.features import Batch, Features
from scns.functional.inputs import check_choice, check_positive, full_precision
from scns.methods import Setting, infonce
from scns.methods._companions import beside

REFERENCE = "O'Neill and Bollegala, 2021"

# "lines" are lines 16 to 21 of Algorithm 1 alone: (1 - alpha) CE + alpha KL on mixtures + the two distances.
PRESETS: dict[str, dict[str, object]] = {
    "lines": {"ce": 0.1, "weight": 0.0, "lm_weight": 0.0, "lm_kld_weight": 0.9},
    "class": {"sampler": "class", "k": 1 / 20, "weight": 0.65, "lm_weight": 0.65},
}


class Objective(infonce.Objective):
    """`infonce` with the terms on freshly forwarded positives and negatives."""

    needs = ("teacher", "logits", "embedding")

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 0.9,  # the appendix's for Instance-SCNS; 0.65 for Class-SCNS
        lm_weight: float = 0.9,  # of InfoNCE on mixtures; unstated, as much as the original
        lm_kld_weight: float = 0.9,  # of the KL on mixtures, alpha of line 18
        positive_weight: float = 1.0,  # gamma_+; unstated
        negative_weight: float = 1.0,  # gamma_-; unstated
        distance: str = "pearson",  # or "cka", "cka-rbf"
        lm_target: str = "logits",  # "probs": mixed probabilities; "literal": the printed softmax of these
        sampler: str = "instance",  # or uniform, class, mixed, soft
        negatives: int = 1024,  # from the tables; unstated
        k: float | None = 1 / 50,  # nearest classes or samples: how many or, below 1, which share; CIFAR-100's best row
        scale: float = 5.0,  # the paper's "tau = 5" of the sampling distribution
        clusters: int | None = None,  # of sampler "soft"
        correct: bool = False,  # True: weights that make the sum over draws an unbiased estimate of the whole sum
        tau: float = 0.07,  # of the contrast (`temperature` is that of the distilled logits); CRD's
        dim: int = 128,  # CRD's
        momentum: float = 0.5,  # of the tables; CRD's
        beta: float = 0.5,  # nu ~ Beta(beta, beta)
        fold: bool = True,  # max(nu, 1 - nu) in mixtures that count as negatives; False: as printed
        normalize: bool = True,  # mixtures back to the unit sphere; unstated
        nu_per: str = "pair",  # or "batch": one nu for all pairs of a step; unstated
        mixture: str = "matching",  # the mixtures of both networks find each other; or "cross", "negatives"
        positive: str = "class",  # another sample of the class; "instance": the sample itself, as in CRD
        symmetric: bool = True,  # also the teacher's anchors against the student's table
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,  # of the KL on mixtures too
    ) -> None:
        super().__init__(
            setting,
            sampler=sampler,
            negatives=negatives,
            k=k,
            scale=scale,
            clusters=clusters,
            refresh=0,
            correct=correct,
            tau=tau,
            dim=dim,
            momentum=momentum,
            weight=weight,
            lm_weight=lm_weight,
            beta=beta,
            fold=fold,
            normalize=normalize,
            nu_per=nu_per,
            mixture=mixture,
            positive=positive,
            symmetric=symmetric,
            ce=ce,
            kld=kld,
            temperature=temperature,
        )
        check_choice("distance", distance, ("pearson", "cka", "cka-rbf"))
        check_choice("lm_target", lm_target, ("logits", "probs", "literal"))
        fresh = {"lm_kld": lm_kld_weight, "positive": positive_weight, "negative": negative_weight}
        for name, value in fresh.items():
            check_positive(f"{name}_weight", value, zero=True)
        self.lm_kld_weight, self.positive_weight, self.negative_weight = fresh.values()
        self.distance, self.lm_target = distance, lm_target
        if distance != "pearson" and (positive_weight or negative_weight):
            self.whole_batch, self.fewest = True, 3  # CKA is of a batch; of two samples it is always 1
        self.forwards_negative = bool(lm_kld_weight or negative_weight)
        self.companions = int(bool(positive_weight)) + int(self.forwards_negative)  # the positive first
        if self.forwards_negative and self.sampler.everything:
            raise InputError(
                "A step forwards one negative an anchor, which sampler 'all' does not draw; use 'uniform'."
            )
        self.latent_quantile = mixup.BetaQuantile(beta, fold=False)  # targets are mixed as well

    def companion_index(self, index: Tensor, epoch: Tensor) -> Tensor:
        columns = []
        if self.positive_weight:
            columns.append(self.positives.sample(index, epoch=epoch))
        if self.forwards_negative:
            columns.append(self.sampler.sample(index, 1, epoch=epoch))
        return torch.cat(columns, dim=1)

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        losses = super().forward(batch, student, teacher)
        assert teacher is not None
        if self.lm_kld_weight:
            losses["lm_kld"] = self.lm_kld_weight * self._mixture_kld(batch, student.logits, teacher.logits)
        if self.positive_weight:
            losses["positive"] = self.positive_weight * self._distance(batch, student, teacher, 0)
        if self.negative_weight:
            losses["negative"] = self.negative_weight * self._distance(batch, student, teacher, self.companions - 1)
        return losses

    def _mixture_kld(self, batch: Batch, student: Tensor, teacher: Tensor) -> Tensor:
        """KL of the class distributions at the mixed penultimate features; a linear classifier commutes with mixing."""
        nu = self.latent_quantile(draws.uniform(self.seed, draws.MIXING, batch.epoch, batch.of_anchors(batch.index)))
        negative, target = (beside(logits, batch, self.companions)[:, -1] for logits in (student, teacher.detach()))
        return mixture_kld(
            batch.of_anchors(student),
            negative,
            batch.of_anchors(teacher).detach(),
            target,
            nu,
            self.temperature,
            self.lm_target,
        )

    def _distance(self, batch: Batch, student: Features, teacher: Features, companion: int) -> Tensor:
        assert self.teacher_head is not None
        own = self.student_head(beside(student.embedding, batch, self.companions)[:, companion])
        other = self.teacher_head(beside(teacher.embedding.detach(), batch, self.companions)[:, companion])
        if self.distance == "pearson":
            return 1 - functional.pearson(own, other).mean()
        return 1 - functional.cka(own, other, "rbf" if self.distance == "cka-rbf" else "linear")


@full_precision
def mixture_kld(
    student: Tensor,
    student_negative: Tensor,
    teacher: Tensor,
    teacher_negative: Tensor,
    nu: Tensor,
    temperature: float,
    target: str = "logits",
) -> Tensor:
    """T^2 KL(y~^T || y~^S) of logits [batch, classes] mixed with the same nu [batch], the weight of the negative."""
    mixed = F.log_softmax(mixup.mix(student_negative, student, nu) / temperature, dim=1)
    wanted = functional.mixed_targets(teacher_negative, teacher, nu, temperature, target)
    return F.kl_div(mixed, wanted, reduction="batchmean") * temperature**2
