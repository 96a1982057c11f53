"""Folded batch norms: fewer modules, the same features."""

import pytest
import torch
from torch import nn

from scns import models
from scns.features import Features


def trained_like(name: str) -> models.Network:
    """A network whose batch norms have statistics worth folding."""
    torch.manual_seed(0)
    network = models.build(name, 7).double()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.3)  # type: ignore[union-attr]
            module.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr]
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.3)
    return network.eval()


def norms(network: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())


def every(features: Features) -> list[torch.Tensor]:
    return [features.logits, features.embedding, *features.maps, *features.preacts]


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("resnet20", 0),
        ("resnet8x4", 0),
        ("vgg8", 0),
        ("resnext29-32x4d", 0),
        ("ResNet18", 0),
        ("wrn-16-2", 7),  # pre-activation: a norm after a sum, or after a convolution that is a feature, stays
    ],
)
def test_folded_network_gives_the_same_features(name: str, left: int) -> None:
    network = trained_like(name)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    quick = models.folded(network, images)
    assert norms(quick) == left < norms(network)
    with torch.no_grad():
        for one, other in zip(every(network(images, features=True)), every(quick(images, features=True)), strict=True):
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-9)
    assert norms(network) > left and not quick.training  # the original is untouched


class Forked(nn.Module):
    """Two convolutions: the first one's output goes to a norm and past it, the second one's to a norm alone."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.norm1, self.norm2, self.fc = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, images: torch.Tensor, features: bool = False) -> Features:
        first = self.one(images)
        last = self.norm2(self.two(self.norm1(first) + first))
        embedding = last.mean((2, 3))
        return Features(self.fc(embedding), embedding, (last,), (last,))


def test_a_convolution_that_something_else_reads_keeps_its_norm() -> None:
    torch.manual_seed(0)
    network, images = Forked(), torch.randn(8, 3, 8, 8)
    with torch.no_grad():
        network.train()(images)  # the norms are no longer the identity
        quick = models.folded(network.eval(), images)
        assert isinstance(quick.norm1, nn.BatchNorm2d) and isinstance(quick.norm2, nn.Identity)
        assert torch.allclose(quick(images).logits, network(images).logits, atol=1e-5)
