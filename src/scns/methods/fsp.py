"""Flow of solution procedure: J. Yim, D. Joo, J. Bae and J. Kim, 2017, A Gift from Knowledge Distillation.

sum_i mean over B and the matrix of (G_s - G_t)^2,  G = (1/P) sum_p f_(i+1)(p) f_i(p)^T

Uses all maps, the stem's included, in a stage of its own that trains the student's feature layers on this loss alone;
then cross-entropy. Both networks need the same channels. `weight` is the loss's weight in the main stage, where the
paper has 0; the first stage has it unweighted.
"""

import torch
from torch import Tensor

from scns import functional
from scns.features import Batch, Features
from scns.functional.inputs import check_positive
from scns.methods import Method, Setting, Stage
from scns.methods._pairs import equal_channels

REFERENCE = "Yim et al., 2017"
PRESETS = {"repdistiller": {"weight": 0.0}}  # its script passes 50, but the loss is 0 in its main stage


class Objective(Method):
    needs = ("teacher", "maps")
    whole_batch = False

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 0.0,  # the paper's appendix: pre-training only
        stage_epochs: int = 30,  # the field's reference; never more than the run's own epochs
        stage_lr: float | None = None,  # None: the main stage's, as in the field's reference
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_positive("weight", weight, zero=True)
        self.weight, self.stage_epochs, self.stage_lr = weight, stage_epochs, stage_lr
        equal_channels(setting, self.name())

    def stages(self) -> list[Stage]:
        return [Stage("flow", self.stage_epochs, self.flow, student=True, lr=self.stage_lr)]

    def flow(self, batch: Batch, student: Features, teacher: Features) -> dict[str, Tensor]:
        """The loss of the first stage."""
        ours, theirs = student.maps, teacher.maps
        each = [functional.flow(ours[i], ours[i + 1], theirs[i], theirs[i + 1]) for i in range(len(ours) - 1)]
        return {"fsp": torch.stack(each).sum()}

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        losses = self.classification(batch, student, teacher)
        if self.weight:
            losses["fsp"] = self.weight * self.flow(batch, student, teacher)["fsp"]
        return losses
