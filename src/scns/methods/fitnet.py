"""FitNets: A. Romero et al., 2015, FitNets: Hints for Thin Deep Nets.

weight * mean over all elements of (R(f_s) - f_t)^2,  R = convolution, batch norm, ReLU

Uses one map of both networks, that of stage `layer` (0 is the stem). Trained together with the cross-entropy, as the
field's implementations have it; the FitNets paper trains the hint in a stage before.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from scns import functional
from scns.errors import InputError
from scns.features import Batch, Features
from scns.functional.inputs import check_positive
from scns.methods import Method, Setting
from scns.methods._pairs import Map, stage_pairs, teacher_shapes
from scns.methods._regressor import resizing

REFERENCE = "Romero et al., 2015"
PRESETS = {"repdistiller": {"weight": 100.0}}


class Regressor(nn.Module):
    """The student's map as the teacher's would look: convolution, batch norm, ReLU."""

    def __init__(self, student: Map, teacher: Map) -> None:
        super().__init__()
        self.conv = resizing(student, teacher)
        self.bn = nn.BatchNorm2d(teacher[0])

    def forward(self, student_map: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(student_map.to(self.conv.weight.dtype))))


class Objective(Method):
    needs = ("teacher", "maps")
    whole_batch = False

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 80.0,  # the paper's appendix
        layer: int = 2,  # the field's reference
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_positive("weight", weight, zero=True)
        shared = len(stage_pairs(setting, "shallow"))
        if not 0 <= layer <= shared:
            raise InputError(f"layer={layer} is no layer of both networks; give 0 (the stem) to {shared}.")
        self.weight, self.layer = weight, layer
        self.regressor = Regressor(setting.student.maps[layer], teacher_shapes(setting).maps[layer])

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        loss = functional.hint(self.regressor(student.maps[self.layer]), teacher.maps[self.layer])
        return {**self.classification(batch, student, teacher), "fitnet": self.weight * loss}
