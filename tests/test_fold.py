"""Folded batch norms: fewer modules, the same features."""

import copy

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


class Standard(nn.Conv2d):
    """A convolution of other weights than it holds."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(images, self.weight - self.weight.mean(), self.bias)


class Odd(nn.Module):
    """A stem that folds, and a body that does not."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.stem, self.norm, self.fc = conv(3), nn.BatchNorm2d(16), nn.Linear(16, 2)
        self.one, self.two = Standard(16, 16, 3, padding=1, bias=False) if kind == "subclass" else conv(), conv()
        self.norm1, self.norm2 = nn.BatchNorm2d(16, track_running_stats=kind != "no statistics"), nn.BatchNorm2d(16)
        if kind == "two places":
            self.both = nn.Sequential(self.one, self.norm1)
        if kind == "hooks":
            self.one.register_forward_hook(lambda layer, given, output: 2 * output + 1)
        if kind == "shared weights":
            self.two.weight = self.one.weight

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.stem(images)).relu()
        if self.kind == "a convolution twice":
            x = self.norm2(self.one(self.norm1(self.one(x)).relu()))
        elif self.kind == "a convolution with and without":
            x = self.norm1(self.one(x)) + self.one(x)
        elif self.kind == "a norm twice":
            x = self.norm1(self.two(self.norm1(self.one(x)).relu()))
        elif self.kind == "shared weights":
            x = self.two(self.norm1(self.one(x)))
        else:
            x = (self.both if self.kind == "two places" else lambda x: self.norm1(self.one(x)))(x)
        return self.fc(x.mean((2, 3)))


def conv(inputs: int = 16) -> nn.Conv2d:
    return nn.Conv2d(inputs, 16, 3, padding=1, bias=False)


ODD = ("a convolution twice", "a convolution with and without", "a norm twice")


@pytest.mark.parametrize("kind", [*ODD, "two places", "subclass", "hooks", "shared weights", "no statistics"])
def test_layers_that_are_not_one_function_stay(kind: str) -> None:
    """Neither a frozen network nor one that trains may give other numbers for being quicker."""
    torch.manual_seed(0)
    network, images = models.features_of(Odd(kind).double(), []), torch.randn(4, 3, 8, 8, dtype=torch.float64)
    plain, trained = copy.deepcopy(network), copy.deepcopy(network).train()
    with torch.no_grad():
        fused = models.fused(network, images[:1], torch.float64)
        for _ in range(2):  # the norms are no longer the identity
            assert torch.allclose(fused(images), trained(images), atol=1e-12)
        plain.load_state_dict(trained.state_dict())
        quick = models.folded(plain.eval(), images[:1])
        assert torch.allclose(quick(images), plain(images), atol=1e-12)
    assert 0 < norms(quick) < norms(plain) if kind != "shared weights" else norms(quick) == 1
