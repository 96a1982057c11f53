"""Factor transfer: J. Kim et al., 2018, Paraphrasing Complex Network: Network Compression via Factor Transfer.

weight * mean |N(translator(f_s)) - N(paraphraser(f_t))|^power,  N(f) = unit(mean_c f^2 over positions)

Uses the map of the last stage. The paraphraser is trained first, alone, to rebuild the teacher's map from its factor:
mean (decoder(encoder(f_t)) - f_t)^2; then it is frozen and the translator trained with the student. N is that of the
field's reference; norm="vector" is the FT paper's, the unit vector of the whole factor.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from scns import functional
from scns.errors import InputError
from scns.features import Batch, Features
from scns.functional.inputs import check_choice, check_positive, check_power
from scns.methods import Method, Setting, Stage
from scns.methods._pairs import stage_pairs, teacher_shapes

REFERENCE = "Kim et al., 2018"
PRESETS = {"repdistiller": {"weight": 200.0}}

_SLOPE = 0.1  # of the leaky ReLUs, in FT's and all later code


class Paraphraser(nn.Module):
    """An autoencoder of the teacher's map; its code, the factor, has `factor` channels."""

    def __init__(self, channels: int, factor: int) -> None:
        super().__init__()
        self.encoder = _layers(nn.Conv2d, (channels, channels, factor, factor))
        self.decoder = _layers(nn.ConvTranspose2d, (factor, factor, channels, channels))

    def forward(self, teacher_map: Tensor) -> Tensor:
        """The factor, [batch, factor, height, width]."""
        return self.encoder(_fitting(teacher_map, self))

    def rebuilt(self, teacher_map: Tensor) -> Tensor:
        """The map as it comes back from its factor."""
        return self.decoder(self(teacher_map))


class Translator(nn.Module):
    """The student's factor, from its map."""

    def __init__(self, channels: int, factor: int) -> None:
        super().__init__()
        self.encoder = _layers(nn.Conv2d, (channels, channels, factor, factor), norm=True)

    def forward(self, student_map: Tensor) -> Tensor:
        return self.encoder(_fitting(student_map, self))


def _fitting(feature_map: Tensor, module: nn.Module) -> Tensor:
    """The map in the precision of the module's parameters."""
    return feature_map.to(next(module.parameters()).dtype)


def _layers(
    convolution: type[nn.Conv2d] | type[nn.ConvTranspose2d], channels: Sequence[int], norm: bool = False
) -> nn.Sequential:
    """3x3 convolutions that keep the size, each with a leaky ReLU (and a batch norm between)."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(channels):
        layers.append(convolution(inputs, outputs, 3, padding=1))
        if norm:
            layers.append(nn.BatchNorm2d(outputs))
        layers.append(nn.LeakyReLU(_SLOPE))
    return nn.Sequential(*layers)


def _stage_rate(stages: int) -> float | None:
    """The learning rate of the paraphraser: 0.01 beside CIFAR's resnets and wrns, which have three stages; None, that
    of the main stage, beside other students."""
    return 0.01 if stages == 3 else None


class Objective(Method):
    needs = ("teacher", "maps")
    whole_batch = False

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 500.0,  # the paper's appendix
        rate: float = 0.5,  # channels of the factor over the teacher's; FT's paper
        norm: str = "spatial",  # or "vector"
        power: int = 1,  # of the difference; FT's paper
        stage_epochs: int = 30,  # the field's reference; never more than the run's own epochs
        stage_lr: float | None = None,  # None: 0.01 for students of three stages, else the main one's; the reference
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_positive("weight", weight, zero=True)
        check_positive("rate", rate)
        check_power(power)
        check_choice("norm", norm, ("spatial", "vector"))
        stage_pairs(setting, "shallow")  # both have a last stage
        self.weight, self.norm, self.power = weight, norm, power
        self.stage_epochs = stage_epochs
        self.stage_lr = _stage_rate(len(setting.student.maps) - 1) if stage_lr is None else stage_lr
        channels = teacher_shapes(setting).maps[-1][0]
        factor = int(channels * rate)
        if factor < 1:
            raise InputError(f"rate={rate} leaves no channel of the teacher's {channels}; give one up to 1.")
        self.paraphraser = Paraphraser(channels, factor)
        self.translator = Translator(setting.student.maps[-1][0], factor)

    def stages(self) -> list[Stage]:
        return [Stage("paraphraser", self.stage_epochs, self.rebuilding, [self.paraphraser], lr=self.stage_lr)]

    def trained(self) -> Iterator[nn.Parameter]:
        yield from self.translator.parameters()

    def rebuilding(self, batch: Batch, student: Features, teacher: Features) -> dict[str, Tensor]:
        """The paraphraser's loss in the first stage."""
        given = teacher.maps[-1].detach()
        return {"paraphraser": functional.hint(self.paraphraser.rebuilt(given), given)}

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        with torch.no_grad():
            theirs = self.paraphraser(teacher.maps[-1])
        loss = functional.factor_transfer(self.translator(student.maps[-1]), theirs, self.norm, self.power)
        return {**self.classification(batch, student, teacher), "ft": self.weight * loss}
