"""Contrastive distillation: Y. Tian, D. Krishnan and P. Isola, 2020, Contrastive Representation Distillation.

weight * (L(P_s) + L(P_t)),  P_s = exp(z_s . bank_t[j] / tau) / Z_s,  P_t = exp(z_t . bank_s[j] / tau) / Z_t
L(P) = -(1/B) sum_i [ ln(P_i0 / (P_i0 + c)) + sum_k ln(c / (P_ik + c)) ],  c = K / n

Uses the embeddings of both networks, each through a trained linear layer to a unit vector z. Two banks remember the z
of every training sample, bank <- unit(m * bank + (1 - m) * z); j runs over the sample itself (or another of its class)
and K negatives from any sampler of scns: this is where semantically conditioned negatives come in. Z is the mean score
of the first batch times n, and constant from then on. All rows are scored and the chosen ones picked: two [B, n]
products instead of [B, K, dim] gathers.
"""

import math

import torch
from torch import Tensor, nn

from scns import draws, functional
from scns.checks import is_number
from scns.errors import InputError, unknown
from scns.features import Batch, Features
from scns.functional.inputs import check_positive, full_precision
from scns.memory import Part
from scns.methods import Head, Method, Setting
from scns.methods._pairs import teacher_shapes
from scns.methods._sampler import make_sampler
from scns.sampling import Positives
from scns.world import World

REFERENCE = "Tian et al., 2020"
PRESETS = {"repdistiller": {"weight": 0.8, "distinct": True}}  # it draws negatives without repetition

_ALONE = World()
_LARGEST = math.log(1e38)  # similarities are up to 1.2, as rows begin a little longer than 1


class CRD(nn.Module):
    """The contrast of two networks' embeddings through two memory banks, one row a training sample.

    In a `world` of several processes, Z is of all their samples; `divided`, each holds its share of the banks.
    """

    by_row = ("student_bank", "teacher_bank")
    student_bank: Tensor
    teacher_bank: Tensor
    student_constant: Tensor
    teacher_constant: Tensor

    def __init__(
        self,
        rows: int,
        student_width: int,
        teacher_width: int,
        *,
        dim: int = 128,
        tau: float = 0.07,
        momentum: float = 0.5,
        seed: int = 0,
        world: World = _ALONE,
        divided: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        if dim < 1:
            raise InputError(f"dim={dim} must be at least 1; CRD's is 128.")
        coldest = max(0.02, 1.2 / (_LARGEST - math.log(rows)))  # so that sums of exp(similarity / tau) are float32
        if not is_number(tau) or not coldest <= tau < math.inf:
            raise InputError(
                f"tau={tau!r} must be from {coldest:.2g} up, or exp(cosine / tau) overflows; CRD's is 0.07."
            )
        if not 0 <= momentum <= 1:
            raise InputError(f"momentum={momentum} must be from 0 (replace) to 1 (never change).")
        self.rows, self.tau, self.momentum = rows, tau, momentum
        self.world, self.part = world, Part(rows, world if divided else _ALONE)
        self.student_head, self.teacher_head = Head(student_width, dim), Head(teacher_width, dim)
        numbers = self.part.numbers().to(device)
        for number, name in enumerate(("student", "teacher")):
            self.register_buffer(f"{name}_bank", _first_rows(numbers, dim, seed, number))  # [rows, dim]
            self.register_buffer(f"{name}_constant", torch.full((), -1.0))  # Z; below 0: not set yet

    def forward(self, student_embedding: Tensor, teacher_embedding: Tensor, index: Tensor) -> Tensor:
        """The loss for sample numbers `index` int64 [batch, 1 + negatives], column 0 the positive."""
        return self.contrast(*self.similarities(student_embedding, teacher_embedding, index))

    def similarities(
        self, student_embedding: Tensor, teacher_embedding: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Dot products [batch, 1 + negatives]: the student's z with the teacher's bank and the other way round."""
        ours, theirs = self.student_head(student_embedding), self.teacher_head(teacher_embedding)
        own = _picked(ours, self.teacher_bank, index, self.part)
        return own, _picked(theirs, self.student_bank, index, self.part)

    def contrast(self, student: Tensor, teacher: Tensor) -> Tensor:
        """The loss of such dot products; the first call fixes the constants Z."""
        return self.side(student, self.student_constant) + self.side(teacher, self.teacher_constant)

    def side(self, similarities: Tensor, constant: Tensor) -> Tensor:
        scores = torch.exp(similarities / self.tau)
        with torch.no_grad():  # no branch on its value: nothing waits for the device
            constant.copy_(torch.where(constant < 0, self._mean(scores) * self.rows, constant))
        return functional.crd_nce(scores / constant.clone(), self.rows)

    def _mean(self, scores: Tensor) -> Tensor:
        """The mean over the whole batch, of which this process may see a part."""
        if self.world.size == 1:
            return scores.mean()
        total, count = self.world.total(torch.stack([scores.sum(), scores.new_full((), scores.numel())]))
        return total / count

    @torch.no_grad()
    def update(self, rows: Tensor, student_embedding: Tensor, teacher_embedding: Tensor) -> None:
        """Move the banks' `rows` towards the embeddings, projected by the heads as they are now (in CRD's code: before
        the optimiser's step); of a row named twice, either may win."""
        rows = self.part.place(rows)
        for bank, z in (
            (self.student_bank, self.student_head(student_embedding)),
            (self.teacher_bank, self.teacher_head(teacher_embedding)),
        ):
            mixed = self.momentum * bank[rows] + (1 - self.momentum) * z.to(bank.dtype)
            bank.index_copy_(0, rows, mixed / torch.linalg.vector_norm(mixed, dim=1, keepdim=True))


class Objective(Method):
    needs = ("teacher", "embedding")
    whole_batch = False

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 0.8,  # the paper's appendix (useful: 0.5 to 1.5)
        sampler: str = "uniform",  # of negatives: uniform, class, instance, mixed or soft
        k: float | None = None,  # nearest classes or samples: how many, or which share; None: the paper's best
        scale: float = 5.0,  # sharpness of softmax(scale * cosine); the paper
        clusters: int | None = None,  # of the sampler "soft"
        negatives: int = 16384,  # CRD's paper
        distinct: bool = False,  # True: without repetition, which costs batch x n a step
        positive: str = "exact",  # the sample itself, or "relax": another of its class
        dim: int = 128,  # CRD's paper
        tau: float = 0.07,  # of the scores (`temperature` is that of the distilled logits); CRD's paper
        momentum: float = 0.5,  # of the banks; CRD's paper
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_positive("weight", weight, zero=True)
        if positive not in ("exact", "relax"):
            raise unknown("positive", positive, ["exact", "relax"])
        self.weight, self.negatives, self.distinct = weight, negatives, distinct
        self.sampler = make_sampler(setting, sampler, k=k, scale=scale, clusters=clusters)
        if self.sampler.everything:
            raise InputError("CRD draws its negatives; use the sampler 'uniform', or 'infonce' with the sampler 'all'.")
        self.sampler.sample(setting.labels.new_zeros(1), negatives, distinct=distinct)  # too many: said now
        self.positives = Positives(setting.believed(), seed=setting.seed) if positive == "relax" else None
        self.crd = CRD(
            len(setting.labels),
            setting.student.width,
            teacher_shapes(setting).width,
            dim=dim,
            tau=tau,
            momentum=momentum,
            seed=setting.seed,
            world=setting.world,
            divided=setting.divided,
            device=setting.labels.device,
        )

    def index(self, batch: Batch) -> Tensor:
        """The positive and the negatives of every anchor, int64 [batch, 1 + negatives]."""
        anchors = batch.of_anchors(batch.index)
        drawn = self.sampler.sample(anchors, self.negatives, epoch=batch.epoch, distinct=self.distinct)
        first = anchors[:, None] if self.positives is None else self.positives.sample(anchors, epoch=batch.epoch)
        return torch.cat([first, drawn], dim=1)

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        loss = self.crd(student.embedding, teacher.embedding, self.index(batch))
        return {**self.classification(batch, student, teacher), "crd": self.weight * loss}

    def after_step(self, batch: Batch, student: Features, teacher: Features | None) -> None:
        assert teacher is not None
        self.crd.update(batch.of_anchors(batch.index), student.embedding, teacher.embedding)


def _first_rows(rows: Tensor, dim: int, seed: int, number: int) -> Tensor:
    """U(-r, r), r = 1 / sqrt(dim / 3): about unit length, and not normalised, as in CRD's code."""
    uniform = draws.uniform(seed, draws.MEMORY, number, rows[:, None], torch.arange(dim, device=rows.device))
    return (2 * uniform - 1) / math.sqrt(dim / 3)


@full_precision
def _picked(z: Tensor, bank: Tensor, index: Tensor, part: Part) -> Tensor:
    return part.picked(z, bank, index)
