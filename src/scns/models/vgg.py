"""VGG with batch norm and one linear layer (Simonyan and Zisserman, 2015), for images of 32 and 64 pixels."""

from torch import Tensor, nn
from torch.nn import functional as F

from scns.models._network import Keep, Network, initialise, pooled

_CONVOLUTIONS = {
    "vgg8": (1, 1, 1, 1, 1),
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
NAMES = tuple(_CONVOLUTIONS)
_WIDTHS = (64, 128, 256, 512, 512)


def build(name: str, classes: int) -> Network:
    """The network of that name."""
    return VGG(_CONVOLUTIONS[name], classes)


class VGG(Network):
    """Blocks `block0` to `block4` with max-pools between, average pool, `classifier`; maps come before pools."""

    head_name = "classifier"

    def __init__(self, convolutions: tuple[int, ...], classes: int) -> None:
        super().__init__()
        inputs = 3
        for number, (count, outputs) in enumerate(zip(convolutions, _WIDTHS, strict=True)):
            self.add_module(f"block{number}", _block(count, inputs, outputs))
            inputs = outputs
        self.width = inputs
        self.classifier = nn.Linear(inputs, classes)
        initialise(self)
        if not self.classifier.weight.is_meta:  # there torch would import its compiler first
            nn.init.normal_(self.classifier.weight, std=0.01)
        nn.init.zeros_(self.classifier.bias)

    def embed(self, images: Tensor, keep: Keep) -> Tensor:
        # The published network pools a fourth time at 64 pixels alone, to end in 4x4 maps as at 32.
        pooled_after = 4 if images.shape[2] == 64 else 3
        x = images
        for number in range(len(_WIDTHS)):
            preact = self.get_submodule(f"block{number}")(x)
            x = F.relu(preact)
            keep(x, preact if number else x)
            if number < pooled_after:
                x = F.max_pool2d(x, 2)
        return pooled(x)


def _block(convolutions: int, inputs: int, outputs: int) -> nn.Sequential:
    """3x3 convolution (with bias) and batch norm, `convolutions` times, with ReLUs between but not after."""
    layers: list[nn.Module] = []
    for _ in range(convolutions):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers[:-1])
