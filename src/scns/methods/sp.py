"""Similarity-preserving distillation: F. Tung and G. Mori, 2019, Similarity-Preserving Knowledge Distillation.

weight * |G_t - G_s|_F^2 / B^2,  G = X X^T with each row over its L2 length,  X the flattened maps [B, features]

Uses the map of the last stage; sizes may differ. It sees the samples of one batch only.
"""

from torch import Tensor

from scns import functional
from scns.features import Batch, Features
from scns.functional.inputs import check_positive
from scns.methods import Method, Setting
from scns.methods._pairs import stage_pairs

REFERENCE = "Tung and Mori, 2019"
PRESETS = {"repdistiller": {"weight": 3000.0}}


class Objective(Method):
    needs = ("teacher", "maps")

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 2000.0,  # the paper's appendix
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_positive("weight", weight, zero=True)
        self.weight = weight
        stage_pairs(setting, "shallow")  # both have a last stage

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        loss = functional.similarity_preserving(student.maps[-1], teacher.maps[-1])
        return {**self.classification(batch, student, teacher), "sp": self.weight * loss}
