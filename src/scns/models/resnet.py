"""ResNets for 32-pixel images (He et al., 2016, section 4.2): depth 6n + 2, three stages of n basic blocks.

Shortcuts that change the shape are 1x1 convolutions with batch norm, as in distillation (Tian et al., 2020).
"""

from scns.models._network import Network, convolution
from scns.models._residual import ResidualNetwork, basic_stage

_BLOCKS = {
    "resnet8": 1,
    "resnet14": 2,
    "resnet20": 3,
    "resnet32": 5,
    "resnet44": 7,
    "resnet56": 9,
    "resnet110": 18,
    "resnet8x4": 1,
    "resnet32x4": 5,
}
NAMES = tuple(_BLOCKS)


def build(name: str, classes: int) -> Network:
    """The network of that name. The x4 networks are four times as wide, but their stem only twice."""
    stem, first, second, third = (32, 64, 128, 256) if name.endswith("x4") else (16, 16, 32, 64)
    blocks = _BLOCKS[name]
    stages = [
        basic_stage(blocks, stem, first, stride=1),
        basic_stage(blocks, first, second, stride=2),
        basic_stage(blocks, second, third, stride=2),
    ]
    return ResidualNetwork(convolution(3, stem, 3), stages, third, classes)
