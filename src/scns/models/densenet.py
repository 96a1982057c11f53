"""DenseNet-121 (Huang et al., 2017) with the ImageNet stem.

Parameter names are those of torchvision, so that its published weights load key for key. A dense block's output
is the raw concatenation of its layers; its preact is the batch norm that comes next.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scns.models._network import Keep, Network, convolution, initialise, pooled

NAMES = ("densenet121-imagenet",)

_LAYERS = (6, 12, 24, 16)  # of the four blocks: with 3 transitions, stem and classifier 121
_GROWTH = 32
_BOTTLENECK = 4 * _GROWTH  # what the 1x1 convolution of a layer leaves for its 3x3 convolution
_STEM = 64


def build(name: str, classes: int) -> Network:
    """The network of that name; 224 to 256 pixels suit it, 32 work."""
    return DenseNet(classes)


class DenseLayer(nn.Module):
    """Batch norm, ReLU, 1x1 convolution, then the same with 3x3: `_GROWTH` new channels from all before."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = convolution(inputs, _BOTTLENECK, 1)
        self.norm2 = nn.BatchNorm2d(_BOTTLENECK)
        self.conv2 = convolution(_BOTTLENECK, _GROWTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(F.relu(self.norm1(x)))
        return self.conv2(F.relu(self.norm2(x)))


class DenseNet(Network):
    """Stem, dense blocks with halving transitions between them, batch norm, average pool, `classifier`."""

    head_name = "classifier"

    def __init__(self, classes: int) -> None:
        super().__init__()
        parts: dict[str, nn.Module] = {
            "conv0": convolution(3, _STEM, 7, stride=2),
            "norm0": nn.BatchNorm2d(_STEM),
        }
        channels = _STEM
        for number, layers in enumerate(_LAYERS, start=1):
            parts[f"denseblock{number}"] = nn.ModuleDict(
                {f"denselayer{i + 1}": DenseLayer(channels + i * _GROWTH) for i in range(layers)}
            )
            channels += layers * _GROWTH
            if number < len(_LAYERS):
                norm, conv = nn.BatchNorm2d(channels), convolution(channels, channels // 2, 1)
                parts[f"transition{number}"] = nn.ModuleDict({"norm": norm, "conv": conv})
                channels //= 2
        parts["norm5"] = nn.BatchNorm2d(channels)
        self.features = nn.ModuleDict(parts)
        self.width = channels
        self.classifier = nn.Linear(channels, classes)
        initialise(self, mode="fan_in")
        nn.init.zeros_(self.classifier.bias)

    def embed(self, images: Tensor, keep: Keep) -> Tensor:
        part = self.features
        x = F.relu(part["norm0"](part["conv0"](images)))
        keep(x, x)
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for number in range(1, len(_LAYERS)):
            x = _through(part[f"denseblock{number}"], x)
            normed = self.get_submodule(f"features.transition{number}.norm")(x)
            keep(x, normed)
            x = F.avg_pool2d(self.get_submodule(f"features.transition{number}.conv")(F.relu(normed)), 2)
        x = _through(part[f"denseblock{len(_LAYERS)}"], x)
        normed = part["norm5"](x)
        keep(x, normed)
        return pooled(F.relu(normed))


def _through(block: nn.Module, x: Tensor) -> Tensor:
    """All the channels of the block: its input and what each layer adds."""
    for layer in block.children():
        x = torch.cat([x, layer(x)], 1)
    return x
