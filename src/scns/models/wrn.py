"""Wide residual networks (Zagoruyko and Komodakis, 2016): wrn-d-k has depth d = 6n + 4 and width factor k.

Batch norm and ReLU come before each convolution, so a stage's output is the raw sum and its preact the batch norm
that comes next. That norm belongs to the next block, but the network computes it and hands it to the block, so
that its running statistics move once a step whether features are asked for or not.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from scns.models._network import Keep, Network, convolution, initialise, pooled

NAMES = ("wrn-16-1", "wrn-16-2", "wrn-40-1", "wrn-40-2")


def build(name: str, classes: int) -> Network:
    """The network of that name."""
    _, depth, widening = name.split("-")
    return WideResNet((int(depth) - 4) // 6, int(widening), classes)


class Block(nn.Module):
    """Two 3x3 convolutions, each after batch norm and ReLU, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = convolution(outputs, outputs, 3)
        self.shortcut = None if inputs == outputs else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor, normed: Tensor) -> Tensor:
        """`normed` is bn1(x). The identity takes the raw input, a 1x1 shortcut the activated one."""
        active = F.relu(normed)
        y = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return y + (x if self.shortcut is None else self.shortcut(active))


class WideResNet(Network):
    """Stem convolution, stages `block1` to `block3` of `blocks` blocks, batch norm, average pool, `fc`."""

    def __init__(self, blocks: int, widening: int, classes: int) -> None:
        super().__init__()
        self.conv1 = convolution(3, 16, 3)
        first, second, third = 16 * widening, 32 * widening, 64 * widening
        self.block1 = _stage(blocks, 16, first, stride=1)
        self.block2 = _stage(blocks, first, second, stride=2)
        self.block3 = _stage(blocks, second, third, stride=2)
        self.bn1 = nn.BatchNorm2d(third)
        self.width = third
        self.fc = nn.Linear(third, classes)
        initialise(self)
        nn.init.zeros_(self.fc.bias)

    def embed(self, images: Tensor, keep: Keep) -> Tensor:
        stages = (self.block1, self.block2, self.block3)
        norms = iter([*[block.get_submodule("bn1") for stage in stages for block in stage], self.bn1])
        x = self.conv1(images)
        keep(x, x)
        normed = next(norms)(x)
        for stage in stages:
            for block in stage:
                x = block(x, normed)
                normed = next(norms)(x)
            keep(x, normed)
        return pooled(F.relu(normed))


def _stage(blocks: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
    rest = [Block(outputs, outputs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(Block(inputs, outputs, stride), *rest)
