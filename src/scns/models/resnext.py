"""ResNeXt-29 32x4d for 32-pixel images (Xie et al., 2017): 32 groups of 4 channels, doubled at every stage.

A 1x1 stem, three stages of three bottlenecks with expansion 2. The literature calls several networks by this
name; this is the one with 4,774,218 parameters at 10 classes.
"""

from scns.models._network import Network, convolution
from scns.models._residual import ResidualNetwork, bottleneck_stage

NAMES = ("resnext29-32x4d",)

_GROUPS = 32
_BLOCKS = 3  # 3 stages x 3 blocks x 3 convolutions, the stem and the classifier: 29 layers


def build(name: str, classes: int) -> Network:
    """The network of that name."""
    stages = [
        bottleneck_stage(_BLOCKS, 64, 128, 256, stride=1, groups=_GROUPS),
        bottleneck_stage(_BLOCKS, 256, 256, 512, stride=2, groups=_GROUPS),
        bottleneck_stage(_BLOCKS, 512, 512, 1024, stride=2, groups=_GROUPS),
    ]
    return ResidualNetwork(convolution(3, 64, 1), stages, 1024, classes)
