"""NST: Z. Huang and N. Wang, 2017, Like What You Like: Knowledge Distill via Neuron Selectivity Transfer.

weight * sum_stages k(t,t) + k(s,s) - 2 k(s,t),  k(a,b) = mean over B, c, d of (a_c . b_d)^2,  a_c unit over positions

Uses the map of every stage; the larger of two maps is average-pooled to the smaller.
"""

import torch
from torch import Tensor

from scns import functional
from scns.features import Batch, Features
from scns.functional.inputs import check_positive
from scns.methods import Method, Setting, paired
from scns.methods._pairs import stage_pairs

REFERENCE = "Huang and Wang, 2017"
PRESETS = {"repdistiller": {"weight": 50.0}}


class Objective(Method):
    needs = ("teacher", "maps")
    whole_batch = False

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 50.0,  # the paper's appendix
        pair: str = "exact",  # or "shallow": leave out the deeper network's last stages
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_positive("weight", weight, zero=True)
        self.weight, self.pair = weight, pair
        stage_pairs(setting, pair)

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        each = [
            functional.neuron_selectivity(s, t)
            for s, t in paired(student.maps[1:], teacher.maps[1:], self.pair, "stages")
        ]
        return {**self.classification(batch, student, teacher), "nst": self.weight * torch.stack(each).sum()}
