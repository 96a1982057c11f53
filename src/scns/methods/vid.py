"""Variational information: S. Ahn et al., 2019, Variational Information Distillation for Knowledge Transfer.

weight * sum_stages mean over B, C, P of ((R(f_s) - f_t)^2 / var + ln var) / 2,  var_c = ln(1 + e^(log_scale_c)) + 1e-5

Uses the map of every stage; the larger of two maps is average-pooled to the smaller before the regressor R, three 1x1
convolutions with ReLUs between. R and log_scale are trained. The loss can be negative.
"""

import math

import torch
from torch import Tensor, nn

from scns import functional
from scns.features import Batch, Features
from scns.functional.inputs import check_positive
from scns.methods import Method, Setting, paired
from scns.methods._pairs import stage_pairs

REFERENCE = "Ahn et al., 2019"
PRESETS = {"repdistiller": {"weight": 1.0}}


class VID(nn.Module):
    """How badly a Gaussian around the student's regressed map explains the teacher's."""

    def __init__(
        self, student_channels: int, teacher_channels: int, *, initial_variance: float = 5.0, eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.eps = eps
        self.regressor = nn.Sequential(
            nn.Conv2d(student_channels, teacher_channels, 1, bias=False),
            nn.ReLU(),
            nn.Conv2d(teacher_channels, teacher_channels, 1, bias=False),
            nn.ReLU(),
            nn.Conv2d(teacher_channels, teacher_channels, 1, bias=False),
        )
        start = math.log(math.expm1(initial_variance - eps))  # so that the variance starts there
        self.log_scale = nn.Parameter(torch.full((teacher_channels,), start))

    def forward(self, student_map: Tensor, teacher_map: Tensor) -> Tensor:
        student_map, teacher_map = functional.match(student_map, teacher_map)
        mean = self.regressor(student_map.to(self.log_scale.dtype))
        return functional.variational_information(mean, teacher_map, self.log_scale, self.eps)


class Objective(Method):
    needs = ("teacher", "maps")
    whole_batch = False

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 0.8,  # the paper's appendix
        pair: str = "exact",  # or "shallow": leave out the deeper network's last stages
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_positive("weight", weight, zero=True)
        self.weight, self.pair = weight, pair
        self.stage_losses = nn.ModuleList([VID(s[0], t[0]) for s, t in stage_pairs(setting, pair)])

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        pairs = paired(student.maps[1:], teacher.maps[1:], self.pair, "stages")
        each = [loss(s, t) for loss, (s, t) in zip(self.stage_losses, pairs, strict=True)]
        return {**self.classification(batch, student, teacher), "vid": self.weight * torch.stack(each).sum()}
