"""Activation boundaries: B. Heo et al., 2019, Knowledge Transfer via Distillation of Activation Boundaries.

weight * sum_i 0.003 * 2^(i - L + 1) / B * sum of relu(m - s)^2 where t > 0, relu(m + s)^2 where t <= 0,  i = 0 .. L - 1

Uses every stage before its activation, in a stage of its own: connectors and the student's feature layers are trained
on this loss alone, then the student by cross-entropy. `weight` (the paper's alpha) scales that first loss, since there
is no other place for it. s is the student's map through a connector: convolution and batch norm, or nothing where the
sizes agree.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from scns import functional
from scns.features import Batch, Features
from scns.functional.inputs import check_positive
from scns.methods import Method, Setting, Stage
from scns.methods._pairs import Map, equal_stages
from scns.methods._regressor import resizing

REFERENCE = "Heo et al., 2019"
PRESETS = {"repdistiller": {"weight": 1.0}}

_SCALE = 0.003  # 3 / 1000 of the sum over elements: the authors' code


class Connector(nn.Module):
    """The student's map in the size of the teacher's: convolution and batch norm, or unchanged where sizes agree."""

    def __init__(self, student: Map, teacher: Map) -> None:
        super().__init__()
        same = student[:2] == teacher[:2]
        self.conv = None if same else resizing(student, teacher)
        self.bn = None if same else nn.BatchNorm2d(teacher[0])

    def forward(self, student_map: Tensor) -> Tensor:
        if self.conv is None or self.bn is None:
            return student_map
        return self.bn(self.conv(student_map.to(self.conv.weight.dtype)))


class Objective(Method):
    needs = ("teacher", "preacts")
    whole_batch = False

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 0.2,  # the paper's appendix; of the first stage
        margin: float = 1.0,  # Heo et al.
        stage_epochs: int = 30,  # the field's reference; never more than the run's own epochs
        stage_lr: float | None = None,  # None: the main stage's, as in the field's reference
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_positive("weight", weight, zero=True)
        check_positive("margin", margin, zero=True)
        self.weight, self.margin, self.stage_epochs, self.stage_lr = weight, margin, stage_epochs, stage_lr
        self.connectors = nn.ModuleList([Connector(s, t) for s, t in equal_stages(setting, self.name())])

    def stages(self) -> list[Stage]:
        stage = Stage(
            "boundaries", self.stage_epochs, self.boundaries, [self.connectors], student=True, lr=self.stage_lr
        )
        return [stage]

    def trained(self) -> Iterator[nn.Parameter]:
        yield from ()  # the connectors have done their work when the main stage begins

    def boundaries(self, batch: Batch, student: Features, teacher: Features) -> dict[str, Tensor]:
        """The loss of the first stage."""
        layers = list(zip(self.connectors, student.preacts[1:], teacher.preacts[1:], strict=True))
        each = [
            2.0 ** (place - len(layers) + 1) * functional.activation_boundary(connector(s), t, self.margin)
            for place, (connector, s, t) in enumerate(layers)
        ]
        return {"ab": self.weight * _SCALE * torch.stack(each).sum()}
