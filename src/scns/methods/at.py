"""Attention transfer: S. Zagoruyko and N. Komodakis, 2017, Paying More Attention to Attention.

weight * sum_stages mean over B, P of (A_s - A_t)^2,  A(f) = unit(mean_c f^power over positions P)

Uses the map of every stage; the larger of two maps is average-pooled to the smaller. This is the form of the authors'
code, to which the published weights belong; variant="paper" is their printed equation, un-squared and many times
larger.
"""

import torch
from torch import Tensor

from scns import functional
from scns.features import Batch, Features
from scns.functional.inputs import check_choice, check_positive, check_power
from scns.methods import Method, Setting, paired
from scns.methods._pairs import stage_pairs

REFERENCE = "Zagoruyko and Komodakis, 2017"
PRESETS = {"repdistiller": {"weight": 1000.0}}


class Objective(Method):
    needs = ("teacher", "maps")
    whole_batch = False

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 600.0,  # the paper's appendix
        power: int = 2,  # of the activations; the authors' code
        variant: str = "code",  # or "paper"
        pair: str = "exact",  # or "shallow": leave out the deeper network's last stages
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_positive("weight", weight, zero=True)
        check_power(power, whole=True)
        check_choice("variant", variant, ("code", "paper"))
        self.weight, self.power, self.variant, self.pair = weight, power, variant, pair
        stage_pairs(setting, pair)

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        each = [
            functional.attention_transfer(s, t, self.power, self.variant)
            for s, t in paired(student.maps[1:], teacher.maps[1:], self.pair, "stages")
        ]
        return {**self.classification(batch, student, teacher), "at": self.weight * torch.stack(each).sum()}
