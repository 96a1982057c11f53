"""The ImageNet networks of He et al. (2016) and Xie et al. (2017): 7x7 stem, max-pool, four stages.

Parameter names are those of torchvision, so that its published weights load key for key.
"""

from scns.models._network import Network, convolution
from scns.models._residual import ResidualNetwork, four_stages

NAMES = (
    "resnet18-imagenet",
    "resnet34-imagenet",
    "resnet50-imagenet",
    "resnet152-imagenet",
    "resnext50-32x4d-imagenet",
)


def build(name: str, classes: int) -> Network:
    """The network of that name; 224 to 256 pixels suit it, 32 work."""
    if name.startswith("resnext"):
        stages, width = four_stages(50, groups=32, group_width=4)
    else:
        stages, width = four_stages(int(name.removeprefix("resnet").removesuffix("-imagenet")))
    return ResidualNetwork(convolution(3, 64, 7, stride=2), stages, width, classes, max_pool=True)
