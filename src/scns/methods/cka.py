"""Centred kernel alignment of whole batches of one class: high with positives and the teacher, low with negatives.

l = CE + weight * max(0, (1 - zeta) l- - zeta l+ + margin)
l+ = CKA(h_+^S, h_*^S) + CKA(h_*^S, h_*^T),  l- = CKA(h_-^S, h_*^S) + CKA(h_-^S, h_*^T)

O'Neill and Bollegala (2021), Triplet-CKA and Contrastive-CKA (l- averaged over several batches of negatives). Printed
is max(0, zeta l+ - (1 - zeta) l- + margin), which lowers l+ when minimised. Consumes the embeddings; widths may differ.
A batch of anchors has one class, and so has each batch of negatives: the class of a negative that the sampler draws
for the first anchor.
"""

import torch
from torch import Tensor

from scns import draws, functional
from scns.errors import InputError
from scns.features import Batch, Features
from scns.functional.inputs import check_choice, check_positive, check_share
from scns.methods import Method, Setting
from scns.methods._companions import beside
from scns.methods._sampler import make_sampler
from scns.sampling import Positives, constants

REFERENCE = "O'Neill and Bollegala, 2021"

_FEWEST = 3  # CKA of two rows is 1 whatever they are
_MEMBER = 2  # key of the draws of members, apart from the sampler's own

# Weights of the appendix. The number of negatives is unstated; each is a batch more to forward.
PRESETS: dict[str, dict[str, object]] = {
    "triplet": {"weight": 0.8, "negatives": 1, "kernel": "linear"},
    "triplet-rbf": {"weight": 0.8, "negatives": 1, "kernel": "rbf"},
    "contrastive": {"weight": 0.15, "negatives": 4, "kernel": "linear"},
    "contrastive-rbf": {"weight": 0.15, "negatives": 4, "kernel": "rbf"},
}


class Objective(Method):
    """Cross-entropy and the hinge on CKA, over class-grouped batches."""

    needs = ("teacher", "embedding")
    labels: Tensor
    members: Tensor
    counts: Tensor
    first: Tensor

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 0.8,  # the paper's appendix for triplets; 0.15 for several negatives
        negatives: int = 1,  # batches of another class, forwarded beside the anchors
        kernel: str = "linear",  # or "rbf"
        zeta: float = 0.2,  # chosen from {0.1, 0.2, 0.5, 0.7, 0.9}
        margin: float = 0.2,  # unstated; at zeta 0.2 the hinge never rests from 0.4 up
        sampler: str = "uniform",  # whose draw decides the class: uniform, class, instance, mixed or soft
        k: float | None = None,  # nearest classes or samples: how many or, below 1, which share; None: the paper's best
        scale: float = 5.0,  # the paper's "tau = 5" of the sampling distribution
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_choice("kernel", kernel, ("linear", "rbf"))
        check_positive("weight", weight, zero=True)
        check_positive("negatives", negatives)
        check_positive("margin", margin, zero=True)
        check_share("zeta", zeta)
        if sampler == "all":
            raise InputError(
                "The method 'cka' forwards the negatives it draws, but sampler 'all' draws none; use 'class'."
            )
        if int(setting.labels.min()) < 0:
            raise InputError(
                "The method 'cka' groups batches by class, but some samples have none (-1); leave them out."
            )
        self.weight, self.negatives, self.kernel, self.zeta, self.margin = weight, negatives, kernel, zeta, margin
        self.seed, self.companions = setting.seed, 1 + negatives  # the positive first
        self.sampler = make_sampler(setting, sampler, k=k, scale=scale)
        self.positives = Positives(setting.labels, seed=setting.seed)
        counts = torch.bincount(setting.labels, minlength=setting.classes)
        constants(
            self,
            labels=setting.labels,
            members=torch.argsort(setting.labels, stable=True),
            counts=counts,
            first=counts.cumsum(0) - counts,
        )

    def epoch_order(self, batch: int, epoch: int) -> Tensor:
        """Whole batches of one class each, in random order; a class's remainder, another each epoch, is left out."""
        counts = self.counts.tolist()
        if batch < _FEWEST:
            raise InputError(f"CKA compares {_FEWEST} samples or more, so a batch of {batch} is too small.")
        smallest = min((count, label) for label, count in enumerate(counts) if count)
        if batch > smallest[0]:
            raise InputError(
                f"Class {smallest[1]} has {smallest[0]} samples, too few for a batch of {batch} of one class; "
                f"use a batch size up to {smallest[0]}."
            )
        batches = []
        for label, count in enumerate(counts):
            order = draws.permutation(count, self.seed, draws.ORDER, epoch, label, device=self.members.device)
            whole = order[: count // batch * batch].view(count // batch, batch)
            batches.append(self.members[self.first[label] + whole])
        every = torch.cat(batches)  # [batches, batch]
        return every[draws.permutation(len(every), self.seed, draws.ORDER, epoch, -1, device=every.device)].flatten()

    def companion_index(self, index: Tensor, epoch: Tensor) -> Tensor:
        """The positive, then `negatives` samples, each column of one class."""
        chosen = self.labels[self.sampler.sample(index[:1], self.negatives, epoch=epoch)]  # [1, m]
        column = torch.arange(self.negatives, device=index.device)
        nth = draws.integers(self.counts[chosen], self.seed, draws.NEGATIVES, epoch, index[:, None], column, _MEMBER)
        return torch.cat([self.positives.sample(index, epoch=epoch), self.members[self.first[chosen] + nth]], dim=1)

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        losses = self.classification(batch, student, teacher)
        anchor, target = batch.of_anchors(student.embedding), batch.of_anchors(teacher.embedding).detach()
        positive, *negatives = beside(student.embedding, batch, self.companions).unbind(1)
        alike, unlike = alignments(anchor, positive, negatives, target, self.kernel)
        losses["cka"] = self.weight * functional.triplet_hinge(alike, unlike, self.zeta, self.margin)
        return losses


def alignments(
    anchor: Tensor, positive: Tensor, negatives: list[Tensor], teacher: Tensor, kernel: str
) -> tuple[Tensor, Tensor]:
    """(l+, l-), scalars; every tensor [batch, width]."""
    alike = functional.cka(positive, anchor, kernel) + functional.cka(anchor, teacher, kernel)
    unlike = [functional.cka(each, anchor, kernel) + functional.cka(each, teacher, kernel) for each in negatives]
    return alike, torch.stack(unlike).mean()
