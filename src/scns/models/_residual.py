"""Residual blocks and the network they make (He et al., 2016), for the families with a ReLU after the sum.

A block returns the sum *before* that ReLU: the last one of a stage is the stage's preact.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from scns.models._network import Keep, Network, convolution, initialise, pooled


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = convolution(outputs, outputs, 3)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = _projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return y + (x if self.downsample is None else self.downsample(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride, and in groups for ResNeXt), 1x1 convolution beside a shortcut."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride, groups)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, outputs, 1)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _projection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return y + (x if self.downsample is None else self.downsample(x))


def _projection(inputs: int, outputs: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


def basic_stage(blocks: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """`blocks` basic blocks, the first of them with the stride."""
    rest = [BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(BasicBlock(inputs, outputs, stride), *rest)


def bottleneck_stage(blocks: int, inputs: int, width: int, outputs: int, stride: int, groups: int = 1) -> nn.Sequential:
    """`blocks` bottlenecks of that inner width, the first of them with the stride."""
    rest = [Bottleneck(outputs, width, outputs, 1, groups) for _ in range(blocks - 1)]
    return nn.Sequential(Bottleneck(inputs, width, outputs, stride, groups), *rest)


class ResidualNetwork(Network):
    """Stem, stages `layer1`, `layer2`, ..., average pool, `fc`.

    maps[0] is the stem after its ReLU and before its max-pool, if any; maps[i] is the output of stage i.
    """

    def __init__(
        self,
        stem: nn.Conv2d,
        stages: Sequence[nn.Sequential],
        width: int,
        classes: int,
        max_pool: bool = False,
    ) -> None:
        super().__init__()
        self.conv1 = stem
        self.bn1 = nn.BatchNorm2d(stem.out_channels)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if max_pool else nn.Identity()
        self.stage_names = [f"layer{number}" for number in range(1, len(stages) + 1)]
        for name, stage in zip(self.stage_names, stages, strict=True):
            self.add_module(name, stage)
        self.width = width
        self.fc = nn.Linear(width, classes)
        initialise(self)

    def embed(self, images: Tensor, keep: Keep) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        keep(x, x)
        x = self.maxpool(x)
        for name in self.stage_names:
            x = _through(self.get_submodule(name), x, keep)
        return pooled(x)


def _through(stage: nn.Module, x: Tensor, keep: Keep) -> Tensor:
    *blocks, last = stage.children()
    for block in blocks:
        x = F.relu(block(x))
    preact = last(x)
    x = F.relu(preact)
    keep(x, preact)
    return x


_DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 152: (3, 8, 36, 3)}


def four_stages(depth: int, groups: int = 1, group_width: int = 64) -> tuple[list[nn.Sequential], int]:
    """The stages of the four-stage ResNet of that depth after a 64-channel stem, and the last one's channels.

    From depth 50 on the blocks are bottlenecks that widen four times; ResNeXt-50 32x4d has 32 groups of 4.
    """
    stages, inputs = [], 64
    for blocks, width, stride in zip(_DEPTHS[depth], (64, 128, 256, 512), (1, 2, 2, 2), strict=True):
        if depth < 50:
            stages.append(basic_stage(blocks, inputs, width, stride))
            inputs = width
        else:
            inner = width * groups * group_width // 64
            stages.append(bottleneck_stage(blocks, inputs, inner, 4 * width, stride, groups))
            inputs = 4 * width
    return stages, inputs
