"""Convolution and batch norm as one function: the same numbers as one after the other, and kernels that agree."""

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input, conv2d_weight

from scns import convnorm, models
from scns.convnorm import fits
from scns.models._fuse import Fused

SHAPES = [  # inputs, outputs, size, kernel, stride: all of a resnet20, and some that no network of ours has
    (3, 16, 32, 3, 1),
    (16, 16, 32, 3, 1),
    (32, 32, 16, 3, 1),
    (64, 64, 8, 3, 1),
    (16, 32, 32, 3, 2),
    (32, 64, 16, 3, 2),
    (16, 32, 32, 1, 2),
    (32, 64, 16, 1, 2),
    (16, 32, 32, 3, 1),
    (32, 16, 16, 3, 1),
    (32, 32, 7, 3, 1),
    (64, 16, 7, 3, 1),
    (32, 32, 7, 3, 2),
    (16, 64, 6, 1, 1),
]


def shaken(name: str) -> models.Network:
    torch.manual_seed(0)
    network = models.build(name, 10)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:  # of batch norms, which start at 1 and 0
                parameter += 0.1 * torch.randn_like(parameter)
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize(("name", "pairs"), [("resnet8", 9), ("wrn-16-1", 6)])
def test_the_same_as_one_after_the_other(name: str, pairs: int) -> None:
    """Values, gradients and running statistics, in float64; parameters are the network's own."""
    network = shaken(name).double()
    plain = copy.deepcopy(network).train()
    fused = models.fused(network, torch.zeros(1, 3, 32, 32, dtype=torch.float64), torch.float64)
    assert isinstance(fused, Fused) and len(fused.parts) == pairs
    assert {id(each) for each in fused.parameters()} == {id(each) for each in network.parameters()}
    for number in range(2):
        x = torch.randn(4, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        for each in (fused, plain):
            seen = each(x, features=True)
            (seen.logits.square().sum() + sum(kept.pow(3).mean() for kept in (*seen.maps, *seen.preacts))).backward()
    for one, other in zip(network.parameters(), plain.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-11)
    for key, value in plain.state_dict().items():
        if key.endswith("num_batches_tracked"):  # nobody reads it
            continue
        torch.testing.assert_close(network.state_dict()[key], value, rtol=1e-12, atol=1e-13)


def test_what_the_kernels_are_not_for_stays_as_it_is() -> None:
    network = models.build("vgg8", 10)  # its convolutions have biases
    sample = torch.zeros(1, 3, 32, 32)
    assert models.fused(network, sample, torch.float32) is network
    wide = models.build("resnet8x4", 10)
    parts = models.fused(wide, sample, torch.float32).parts  # type: ignore[union-attr]
    assert all(max(part.conv.in_channels, part.conv.out_channels) <= 64 for part in parts) and 0 < len(parts) < 9
    norm = torch.nn.BatchNorm2d(16)
    assert fits(torch.nn.Conv2d(16, 16, 3, padding=1, bias=False), norm)
    for odd in (
        {"padding": 0},
        {"padding": 1, "groups": 2},
        {"padding": 1, "dilation": 2},
        {"padding": 1, "stride": 3},
    ):
        assert not fits(torch.nn.Conv2d(16, 16, 3, bias=False, **odd), norm)  # type: ignore[arg-type]
    assert fits(torch.nn.Conv2d(3, 16, 3, padding=1, bias=False), norm)
    assert not fits(torch.nn.Conv2d(3, 16, 1, bias=False), norm)  # a product is of 16 numbers or more
    assert not fits(torch.nn.Conv2d(16, 16, 3, padding=1), norm)
    assert not fits(torch.nn.Conv2d(16, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16, affine=False))


class Frozen(nn.Module):
    """A network whose second batch norm stays as it is while the rest trains."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.two, self.norm2 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.fc = nn.Linear(16, 4)

    def train(self, mode: bool = True) -> "Frozen":
        super().train(mode)
        self.norm2.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.norm2(self.two(self.norm1(self.one(images)).relu())).mean((2, 3)))


class Regularised(Frozen):
    """A network that reads the weights of its convolution, and one that leaves a layer out while it trains."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def forward(self, images: Tensor) -> Tensor:
        seen = self.norm1(self.one(images)).relu()
        if self.how == "skips" and self.training:
            return self.fc(seen.mean((2, 3)))
        scale = self.one.weight.square().mean() if self.how == "reads" else 1.0
        return self.fc(scale * self.norm2(self.two(seen)).mean((2, 3)))

    def train(self, mode: bool = True) -> "Regularised":
        nn.Module.train(self, mode)
        return self


@pytest.mark.parametrize("how", ["reads", "skips"])
def test_a_network_that_does_more_with_its_layers_than_call_them_stays_as_it_is(how: str) -> None:
    network = models.features_of(Regularised(how), [])
    before = {key: value.clone() for key, value in network.state_dict().items()}
    assert models.fused(network, torch.zeros(1, 3, 8, 8), torch.float32) is network
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_half_precision_is_tried_as_it_trains() -> None:
    """Inside autocast: layers that are not fused have float32 weights."""
    fused = models.fused(models.build("resnet8", 10), torch.zeros(1, 3, 16, 16), torch.float16)
    assert isinstance(fused, Fused) and len(fused.parts) == 9


def test_a_frozen_batch_norm_stays_frozen() -> None:
    torch.manual_seed(0)
    network = models.features_of(Frozen().double(), [])
    plain, x = copy.deepcopy(network).train(), torch.randn(4, 3, 8, 8, dtype=torch.float64)
    fused = models.fused(network, x[:1], torch.float64)
    assert len(fused.parts) == 1  # type: ignore[arg-type]
    torch.testing.assert_close(fused(x), plain(x), rtol=1e-12, atol=1e-13)
    for key, value in plain.state_dict().items():
        if "running" in key:
            torch.testing.assert_close(network.state_dict()[key], value, rtol=1e-12, atol=1e-13)


def test_what_the_kernels_do_not_take_is_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients by images, in a network that changes them first; statistics are as wide as the weights."""
    monkeypatch.setattr(convnorm, "_ours", lambda *given: True)
    g, w = torch.randn(2, 16, 6, 6), torch.randn(16, 3, 3, 3)
    wanted = conv2d_input((2, 3, 6, 6), w, g, 1, 1)
    torch.testing.assert_close(torch.ops.scns.by_inputs(g, w, 1, 6, 6), wanted)
    monkeypatch.undo()
    _, *told = torch.ops.scns.convolve(wanted, w.double(), 1, 1e-5)
    assert {each.dtype for each in told} == {torch.float64}  # what a compiled step was told


@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_compiled_it_is_one_graph() -> None:
    network = shaken("resnet8")
    fused = models.fused(network, torch.zeros(1, 3, 16, 16), torch.float32)
    x = torch.randn(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    plain = copy.deepcopy(fused)(x)
    quick = torch.compile(fused, dynamic=False, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(quick(x), plain)
    quick(x).sum().backward()


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert found.isfinite().all()
    assert float((found.double() - wanted).norm() / wanted.norm()) < tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("batch", [128, 5])
def test_kernels_against_float64(shape: tuple[int, ...], batch: int) -> None:
    inputs, outputs, size, side, stride = shape
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*sizes: int) -> Tensor:
        drawn = torch.randn(*sizes, device="cuda", generator=generator).bfloat16()
        return drawn.contiguous(memory_format=torch.channels_last)

    x, w = draw(batch, inputs, size, size), draw(outputs, inputs, side, side).float()
    y, mean, inverse, var = torch.ops.scns.convolve(x, w, stride, 1e-5)
    wide = x.double().cpu(), w.double().cpu()
    wanted = F.conv2d(*wide, stride=stride, padding=side // 2)
    close(y.cpu(), wanted, 3e-3)  # of rounding to bfloat16
    own_var, own_mean = torch.var_mean(y.double(), (0, 2, 3))
    torch.testing.assert_close(mean.double(), own_mean, rtol=1e-4, atol=1e-4)
    own_inverse = (y.double().var((0, 2, 3), correction=0) + 1e-5).rsqrt()
    torch.testing.assert_close(inverse.double(), own_inverse, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(var.double(), own_var, rtol=1e-4, atol=1e-4)
    g = draw(*y.shape)
    by_x = conv2d_input(x.shape, wide[1], g.double().cpu(), stride, side // 2)
    by_w = conv2d_weight(wide[0], w.shape, g.double().cpu(), stride, side // 2)
    if inputs > 3:
        close(torch.ops.scns.by_inputs(g, w, stride, size, size).cpu(), by_x, 3e-3)
    found = torch.ops.scns.by_weights(g, x, w, stride)
    close(found.cpu(), by_w, 1e-5)
    assert torch.equal(found, torch.ops.scns.by_weights(g, x, w, stride))  # sums in a fixed order


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # the compiler's own
def test_a_student_learns_with_them_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scns.recipe import Recipe
    from scns.train import fit

    recipe = Recipe(student="resnet8", epochs=3, batch=64, precision="bf16", compile="network", device="cuda")
    ours = fit(recipe, tmp_path / "ours")
    assert isinstance(ours.member.student._orig_mod.student, Fused)
    again = fit(recipe, tmp_path / "again")
    assert all(
        torch.equal(one, other)
        for one, other in zip(ours.student.parameters(), again.student.parameters(), strict=True)
    )
    monkeypatch.setattr(models, "fusible", lambda device: False)
    plain = fit(recipe, tmp_path / "plain")
    assert abs(ours.history[0]["ce"] - plain.history[0]["ce"]) < 0.05
    assert abs(ours.history[-1]["loss"] / plain.history[-1]["loss"] - 1) < 0.05
