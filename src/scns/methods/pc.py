"""Pearson correlation of student and teacher: alike on positives and on negatives, and the two kept apart.

l = CE + weight * mean max(0, (1 - zeta) l- - zeta l+ + margin)
l+ = rho(z_-^S, z_-^T) + rho(z_+^S, z_+^T),  l- = rho(z_-^S, z_+^S) + rho(z_-^S, z_+^T)

O'Neill and Bollegala (2021), Siamese-PC (one negative) and Contrastive-PC (several; every term with a negative is
averaged over them before the hinge). Printed is max(0, zeta l+ - (1 - zeta) l- + margin) "to be maximized", which has
no gradient exactly where the fit is bad. Consumes the embeddings of one positive and `negatives` negatives an anchor,
which the step forwards beside it; both networks' are projected to one width.
"""

import torch
from torch import Tensor

from scns import functional
from scns.errors import InputError
from scns.features import Batch, Features
from scns.functional.inputs import check_positive, check_share
from scns.methods import Head, Method, Setting
from scns.methods._companions import beside
from scns.methods._sampler import make_sampler
from scns.sampling import Positives

REFERENCE = "O'Neill and Bollegala, 2021"

# The number of negatives is unstated; a step forwards 2 + negatives images an anchor, so it is kept small.
PRESETS: dict[str, dict[str, object]] = {"siamese": {"negatives": 1}, "contrastive": {"negatives": 4}}


class Objective(Method):
    """Cross-entropy and the hinge on Pearson's correlations."""

    needs = ("teacher", "embedding")
    whole_batch = False

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 0.8,  # Siamese-PC's; Contrastive-PC's is unstated
        negatives: int = 1,  # forwarded beside each anchor
        zeta: float = 0.2,  # chosen from {0.1, 0.2, 0.5, 0.7, 0.9}
        margin: float = 0.2,  # unstated
        dim: int = 128,  # both networks' features are projected to; unstated, CRD's
        sampler: str = "uniform",  # of negatives: uniform, class, instance, mixed or soft
        k: float | None = None,  # nearest classes or samples: how many or, below 1, which share; None: the paper's best
        scale: float = 5.0,  # the paper's "tau = 5" of the sampling distribution
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        assert setting.teacher is not None
        check_positive("weight", weight, zero=True)
        check_positive("negatives", negatives)
        check_positive("dim", dim)
        check_positive("margin", margin, zero=True)
        check_share("zeta", zeta)
        if sampler == "all":
            raise InputError(
                "The method 'pc' forwards the negatives it draws, but sampler 'all' draws none; use 'uniform'."
            )
        self.weight, self.negatives, self.zeta, self.margin = weight, negatives, zeta, margin
        self.companions = 1 + negatives  # the positive first
        self.sampler = make_sampler(setting, sampler, k=k, scale=scale)
        self.positives = Positives(setting.believed(), seed=setting.seed)
        self.student_head, self.teacher_head = Head(setting.student.width, dim), Head(setting.teacher.width, dim)

    def companion_index(self, index: Tensor, epoch: Tensor) -> Tensor:
        positive = self.positives.sample(index, epoch=epoch)
        return torch.cat([positive, self.sampler.sample(index, self.negatives, epoch=epoch)], dim=1)

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        losses = self.classification(batch, student, teacher)
        own = self._projected(self.student_head, student.embedding, batch)  # [batch, 1 + m, dim]
        other = self._projected(self.teacher_head, teacher.embedding.detach(), batch)
        losses["pc"] = self.weight * functional.triplet_hinge(*correlations(own, other), self.zeta, self.margin)
        return losses

    def _projected(self, head: Head, embedding: Tensor, batch: Batch) -> Tensor:
        rows = beside(embedding, batch, self.companions)
        return head(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])


def correlations(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """(l+, l-), each [batch], of features [batch, 1 + m, dim]: the positive, then m negatives."""
    own_positive, own_negatives = student[:, :1], student[:, 1:]
    positive, negatives = teacher[:, :1], teacher[:, 1:]
    agreement = functional.pearson(own_negatives, negatives).mean(1) + functional.pearson(own_positive, positive)[:, 0]
    confusion = functional.pearson(own_negatives, own_positive) + functional.pearson(own_negatives, positive)
    return agreement, confusion.mean(1)
