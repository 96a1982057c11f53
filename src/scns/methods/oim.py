"""Online instance matching: anchors against one prototype a class and a queue of recent features.

l = CE + weight * mean -log p_y,  p_i = e^(v_i.z / tau) / (sum_m e^(v_m.z / tau) + sum_n e^(u_n.z / tau))
after the step: v_y <- normalise(momentum v_y + (1 - momentum) z)

The lookup table and circular queue of O'Neill and Bollegala (2021), after Xiao et al. (2017), Joint Detection and
Identification Feature Learning for Person Search. Consumes the embedding. Prototypes move one anchor after the other,
in batch order; the queue takes the anchors' features with their classes, and an anchor never sees its own class there.
"""

import torch
from torch import Tensor

from scns import functional
from scns.errors import InputError
from scns.features import Batch, Features
from scns.functional.inputs import check_choice, check_positive
from scns.memory import FeatureQueue, FeatureTable
from scns.methods import Head, Method, Setting

REFERENCE = "Xiao et al., 2017; O'Neill and Bollegala, 2021"

PRESETS: dict[str, dict[str, object]] = {"xiao": {"tau": 1 / 30}}  # the scalar 30 of OIM's public code


class Objective(Method):
    """Cross-entropy and -log p of the class's prototype."""

    needs = ("embedding",)
    whole_batch = False
    short_update = False  # row after row

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 1.0,  # unstated
        tau: float = 0.1,  # of the prototypes (`temperature` is that of the distilled logits); unstated
        dim: int = 128,  # unstated, CRD's
        momentum: float = 0.5,  # unstated; OIM's
        queue: int = 5000,  # unstated; OIM's. 0: no queue
        target: str = "label",  # or "teacher": the class the teacher predicts, "y^T in the KD setting"
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_choice("target", target, ("label", "teacher"))
        check_positive("tau", tau)
        check_positive("weight", weight, zero=True)
        check_positive("queue", queue, zero=True)
        if target == "teacher" and setting.teacher is None:
            raise InputError("target='teacher' needs a teacher; give one, or use target='label'.")
        if target == "label" and int(setting.labels.min()) < 0:
            raise InputError("Some samples have no label (-1), so they have no prototype; use target='teacher'.")
        self.weight, self.tau, self.target = weight, tau, target
        self.table = FeatureTable(setting.classes, dim, momentum=momentum, seed=setting.seed)
        self.head = Head(setting.student.width, dim)
        self.queue = FeatureQueue(queue, dim) if queue else None

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        losses = self.classification(batch, student, teacher)
        z, targets = self.head(batch.of_anchors(student.embedding)), self._targets(batch, teacher)
        recent = mask = None
        if self.queue is not None:
            recent, mask = self.queue.features, self.queue.mask(batch.of_anchors(batch.index), targets)
        term = functional.oim(z, targets, self.table.features, recent, temperature=self.tau, queue_mask=mask)
        losses["oim"] = self.weight * term
        return losses

    @torch.no_grad()
    def after_step(self, batch: Batch, student: Features, teacher: Features | None) -> None:
        z, targets = self.head(batch.of_anchors(student.embedding)), self._targets(batch, teacher)
        self.table.update(targets, z)
        if self.queue is not None:
            self.queue.push(z, batch.of_anchors(batch.index), targets)

    def _targets(self, batch: Batch, teacher: Features | None) -> Tensor:
        if self.target == "label":
            return batch.of_anchors(batch.labels)
        assert teacher is not None
        return batch.of_anchors(teacher.logits).argmax(1)
