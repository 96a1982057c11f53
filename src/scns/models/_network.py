"""What every network of scns has in common."""

from collections.abc import Callable
from typing import ClassVar, Literal, overload

from torch import Tensor, nn
from torch.nn import functional as F

from scns import augment
from scns.features import Features

Keep = Callable[[Tensor, Tensor], None]  # takes a feature map and the same map before its last activation


class Network(nn.Module):
    """A classifier that shows its features on request.

    `network(images)` gives logits, `network(images, features=True)` gives `Features`. A family has `embed`
    and sets `width`; `head_name` is the attribute that holds its linear classifier.
    """

    head_name: ClassVar[str] = "fc"
    width: int
    input_size: int = 0  # pixels at which it sees images, whatever their own size; 0: as they come

    def embed(self, images: Tensor, keep: Keep) -> Tensor:
        """The pooled embedding [batch, width]; calls `keep(map, preact)` for the stem and every stage."""
        raise NotImplementedError

    @property
    def head(self) -> nn.Module:
        """The classifier: embedding -> logits."""
        return self.get_submodule(self.head_name)

    @overload
    def forward(self, images: Tensor, features: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, images: Tensor, features: Literal[True]) -> Features: ...
    def forward(self, images: Tensor, features: bool = False) -> Tensor | Features:
        images = augment.resize(images, self.input_size)
        if not features:
            return self.head(self.embed(images, _forget))
        kept: list[tuple[Tensor, Tensor]] = []
        embedding = self.embed(images, lambda feature_map, preact: kept.append((feature_map, preact)))
        maps, preacts = zip(*kept, strict=True)
        return Features(self.head(embedding), embedding, maps, preacts)


def _forget(feature_map: Tensor, preact: Tensor) -> None:
    """Nothing is kept where only logits are asked for, so that the maps are freed as early as they can be."""


def pooled(feature_map: Tensor) -> Tensor:
    """The mean over all positions, [batch, channels], whatever the size of the map."""
    return F.adaptive_avg_pool2d(feature_map, 1).flatten(1)


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """A convolution without bias (a batch norm makes up for it) that divides height and width by `stride`."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)


def initialise(network: nn.Module, mode: Literal["fan_in", "fan_out"] = "fan_out") -> None:
    """Draw every convolution from N(0, 2 / fan) (He et al., 2015); batch norms are 1 and 0 already.

    On the device "meta" there are no numbers to draw, but torch would import its compiler for it: two seconds.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
            nn.init.kaiming_normal_(module.weight, mode=mode, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
