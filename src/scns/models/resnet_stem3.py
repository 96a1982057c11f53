"""The four-stage ResNets of He et al. (2016) for small images: a 3x3 stem of stride 1 and no max-pool."""

from scns.models._network import Network, convolution
from scns.models._residual import ResidualNetwork, four_stages

NAMES = ("ResNet18", "ResNet34", "ResNet50", "ResNet152")


def build(name: str, classes: int) -> Network:
    """The network of that name."""
    stages, width = four_stages(int(name.removeprefix("ResNet")))
    return ResidualNetwork(convolution(3, 64, 3), stages, width, classes)
