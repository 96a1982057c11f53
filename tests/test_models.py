"""Networks: equal to their references, the same features from every family, weights, and modules of the user."""

import copy
import itertools
import json
import re
import weakref
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from scns import models, plugins
from scns.errors import InputError
from scns.models import _weights
from scns.models._network import Network

GOLDEN = json.loads((Path(__file__).parent / "golden" / "models.json").read_text())["models"]
NAMES = models.names()

# Parameters for 10, 100 and 200 classes.
COUNTS = {
    "resnet8": (78_042, 83_892, 90_392),
    "resnet14": (175_258, 181_108, 187_608),
    "resnet20": (272_474, 278_324, 284_824),
    "resnet32": (466_906, 472_756, 479_256),
    "resnet44": (661_338, 667_188, 673_688),
    "resnet56": (855_770, 861_620, 868_120),
    "resnet110": (1_730_714, 1_736_564, 1_743_064),
    "resnet8x4": (1_210_410, 1_233_540, 1_259_240),
    "resnet32x4": (7_410_730, 7_433_860, 7_459_560),
    "wrn-16-1": (175_066, 180_916, 187_416),
    "wrn-16-2": (691_674, 703_284, 716_184),
    "wrn-40-1": (563_930, 569_780, 576_280),
    "wrn-40-2": (2_243_546, 2_255_156, 2_268_056),
    "ResNet18": (11_173_962, 11_220_132, 11_271_432),
    "ResNet34": (21_282_122, 21_328_292, 21_379_592),
    "ResNet50": (23_520_842, 23_705_252, 23_910_152),
    "ResNet152": (58_156_618, 58_341_028, 58_545_928),
    "resnet34-imagenet": (21_289_802, 21_335_972, 21_387_272),
    "resnet50-imagenet": (23_528_522, 23_712_932, 23_917_832),
    "resnet152-imagenet": (58_164_298, 58_348_708, 58_553_608),
    "densenet121-imagenet": (6_964_106, 7_056_356, 7_158_856),
    "vgg8": (3_918_858, 3_965_028, 4_016_328),
    "vgg11": (9_231_114, 9_277_284, 9_328_584),
    "vgg13": (9_416_010, 9_462_180, 9_513_480),
    "vgg16": (14_728_266, 14_774_436, 14_825_736),
    "vgg19": (20_040_522, 20_086_692, 20_137_992),
    "resnext29-32x4d": (4_774_218, 4_866_468, 4_968_968),
}
# The counts that torchvision publishes, for 1000 classes.
PUBLISHED = {
    "resnet18-imagenet": 11_689_512,
    "resnet34-imagenet": 21_797_672,
    "resnet50-imagenet": 25_557_032,
    "resnet152-imagenet": 60_192_808,
    "resnext50-32x4d-imagenet": 25_028_904,
    "densenet121-imagenet": 7_978_856,
}
# Feature maps of the names that match: channels and input size / map size at 64 pixels, of the stem and the stages.
STAGES = {
    r"resnet\d+": [(16, 1), (16, 1), (32, 2), (64, 4)],
    r"resnet\d+x4": [(32, 1), (64, 1), (128, 2), (256, 4)],
    r"wrn-\d+-1": [(16, 1), (16, 1), (32, 2), (64, 4)],
    r"wrn-\d+-2": [(16, 1), (32, 1), (64, 2), (128, 4)],
    r"resnext29-32x4d": [(64, 1), (256, 1), (512, 2), (1024, 4)],
    r"vgg\d+": [(64, 1), (128, 2), (256, 4), (512, 8), (512, 16)],
    r"ResNet(18|34)": [(64, 1), (64, 1), (128, 2), (256, 4), (512, 8)],
    r"ResNet(50|152)": [(64, 1), (256, 1), (512, 2), (1024, 4), (2048, 8)],
    r"resnet(18|34)-imagenet": [(64, 2), (64, 4), (128, 8), (256, 16), (512, 32)],
    r"(resnet50|resnet152|resnext50-32x4d)-imagenet": [(64, 2), (256, 4), (512, 8), (1024, 16), (2048, 32)],
    r"densenet121-imagenet": [(64, 2), (256, 4), (512, 8), (1024, 16), (1024, 32)],
}


def stages_of(name: str) -> list[tuple[int, int]]:
    (found,) = [stages for pattern, stages in STAGES.items() if re.fullmatch(pattern, name)]
    return found


@cache
def on_meta(name: str, classes: int = 10) -> Network:
    """The network without numbers, for looks at its shapes alone."""
    with torch.device("meta"):
        return models.build(name, classes)


@pytest.fixture(scope="module")
def small() -> dict[str, Network]:
    """One small network of each kind of feature, in eval mode, its batch norms no longer at their start."""
    torch.manual_seed(0)
    built = {name: models.build(name, 5) for name in ("resnet8", "wrn-16-1", "vgg8", "densenet121-imagenet")}
    for network in built.values():
        with torch.no_grad():
            network.train()(torch.randn(4, 3, 32, 32))
        network.eval()
    return built


# ---- equal to the references --------------------------------------------------------------------------------------


def hashed(count: int) -> Tensor:
    """u(k) in [-0.5, 0.5) for k = 0 .. count - 1, the fill of the golden numbers."""
    h = (torch.arange(count, dtype=torch.int64) * 2654435761 + 12345) & 0xFFFFFFFF
    h = h ^ (h >> 16)
    # 64-bit products wrap, which leaves their lowest 32 bits right
    h = (h * 2246822519) & 0xFFFFFFFF
    h = h ^ (h >> 13)
    return h.double() / 2**32 - 0.5


def fill(network: nn.Module) -> None:
    with torch.no_grad():
        for key, weights in network.named_parameters():
            u = hashed(weights.numel()).reshape(weights.shape)
            if weights.ndim >= 2:
                weights.copy_((24 / (weights.numel() / weights.shape[0])) ** 0.5 * u)
            else:
                weights.copy_(0.2 * u + (1.0 if key.endswith("weight") else 0.0))


@pytest.mark.parametrize("golden", GOLDEN)
def test_the_golden_numbers_are_met(golden: str) -> None:
    want = GOLDEN[golden]
    name = {"tv_densenet121@64": "densenet121-imagenet"}.get(golden, golden.replace("_", "-"))
    network = models.build(name, 10).double().train()
    fill(network)
    assert models.parameters(network) == want["params"]
    images = 4 * hashed(4 * 3 * want["input"] ** 2).reshape(4, 3, want["input"], want["input"])
    with torch.no_grad():
        seen = network(images, features=True)
    torch.testing.assert_close(seen.logits, torch.tensor(want["logits"], dtype=torch.float64), rtol=0, atol=1e-7)
    if "feats" in want:
        for found, expected in zip((*seen.maps, seen.embedding), want["feats"], strict=True):
            assert list(found.shape[1:]) == expected["shape"]
            assert found.mean().item() == pytest.approx(expected["mean"], abs=1e-9)
            assert found.square().mean().sqrt().item() == pytest.approx(expected["rms"], abs=1e-9)


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts(name: str) -> None:
    network = on_meta(name)
    head = network.width + 1
    counted = models.parameters(network)
    assert (counted, counted + 90 * head, counted + 190 * head) == COUNTS[name]
    assert tuple(network.head.weight.shape) == (10, network.width)


def residual_keys(
    blocks: tuple[int, ...], bottleneck: bool, groups: int, group_width: int
) -> Iterator[tuple[str, list]]:
    """torchvision's keys and shapes of a ResNet with 1000 classes, by its naming rule."""

    def norm(key: str, channels: int) -> Iterator[tuple[str, list]]:
        for part in ("weight", "bias", "running_mean", "running_var"):
            yield f"{key}.{part}", [channels]
        yield f"{key}.num_batches_tracked", []

    yield "conv1.weight", [64, 3, 7, 7]
    yield from norm("bn1", 64)
    inputs = 64
    for stage, count in enumerate(blocks, start=1):
        base = 32 * 2**stage
        width = base * groups * group_width // 64 if bottleneck else base
        outputs = 4 * base if bottleneck else base
        for block in range(count):
            key = f"layer{stage}.{block}"
            if bottleneck:
                convs = [[width, inputs, 1, 1], [width, width // groups, 3, 3], [outputs, width, 1, 1]]
            else:
                convs = [[width, inputs, 3, 3], [width, width, 3, 3]]
            for number, shape in enumerate(convs, start=1):
                yield f"{key}.conv{number}.weight", shape
                yield from norm(f"{key}.bn{number}", shape[0])
            if block == 0 and (stage > 1 or inputs != outputs):
                yield f"{key}.downsample.0.weight", [outputs, inputs, 1, 1]
                yield from norm(f"{key}.downsample.1", outputs)
            inputs = outputs
    yield "fc.weight", [1000, inputs]
    yield "fc.bias", [1000]


def dense_keys() -> Iterator[tuple[str, list]]:
    """torchvision's keys and shapes of DenseNet-121 with 1000 classes, by its naming rule."""

    def norm(key: str, channels: int) -> Iterator[tuple[str, list]]:
        for part in ("weight", "bias", "running_mean", "running_var"):
            yield f"features.{key}.{part}", [channels]
        yield f"features.{key}.num_batches_tracked", []

    yield "features.conv0.weight", [64, 3, 7, 7]
    yield from norm("norm0", 64)
    channels = 64
    for block, layers in enumerate((6, 12, 24, 16), start=1):
        for layer in range(1, layers + 1):
            key = f"denseblock{block}.denselayer{layer}"
            yield from norm(f"{key}.norm1", channels)
            yield f"features.{key}.conv1.weight", [128, channels, 1, 1]
            yield from norm(f"{key}.norm2", 128)
            yield f"features.{key}.conv2.weight", [32, 128, 3, 3]
            channels += 32
        if block < 4:
            yield from norm(f"transition{block}.norm", channels)
            yield f"features.transition{block}.conv.weight", [channels // 2, channels, 1, 1]
            channels //= 2
    yield from norm("norm5", channels)
    yield "classifier.weight", [1000, channels]
    yield "classifier.bias", [1000]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("resnet18-imagenet", residual_keys((2, 2, 2, 2), False, 1, 64)),
        ("resnet34-imagenet", residual_keys((3, 4, 6, 3), False, 1, 64)),
        ("resnet50-imagenet", residual_keys((3, 4, 6, 3), True, 1, 64)),
        ("resnet152-imagenet", residual_keys((3, 8, 36, 3), True, 1, 64)),
        ("resnext50-32x4d-imagenet", residual_keys((3, 4, 6, 3), True, 32, 4)),
        ("densenet121-imagenet", dense_keys()),
    ],
    ids=list(PUBLISHED),
)
def test_imagenet_networks_have_the_keys_and_shapes_of_torchvision(name: str, keys: Iterator[tuple[str, list]]) -> None:
    network = on_meta(name, 1000)
    assert {key: list(value.shape) for key, value in network.state_dict().items()} == dict(keys)
    assert models.parameters(network) == PUBLISHED[name]


# ---- the same features from every family --------------------------------------------------------------------------


def test_every_network_is_tested() -> None:
    assert set(NAMES) == set(COUNTS) | set(PUBLISHED)
    assert sorted(itertools.chain(*models.families().values())) == NAMES


class Operations(TorchDispatchMode):
    """Every operation that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", NAMES)
def test_any_size_and_features_cost_no_operation(name: str) -> None:
    network = on_meta(name)
    images = torch.empty(2, 3, 64, 64, device="meta")
    with torch.no_grad(), Operations() as plain:
        logits = network(images)
    with torch.no_grad(), Operations() as full:
        seen = network(images, features=True)
    assert isinstance(logits, Tensor) and logits.shape == seen.logits.shape == (2, 10)
    assert plain.names == full.names and len(plain.names) > 20
    assert seen.embedding.shape == (2, network.width)
    assert [tuple(found.shape) for found in seen.maps] == [(2, c, 64 // s, 64 // s) for c, s in stages_of(name)]
    assert [found.shape for found in seen.preacts] == [found.shape for found in seen.maps]
    assert seen.preacts[0] is seen.maps[0]


@pytest.mark.parametrize("size", [32, 45, 96])
def test_sizes_that_are_no_power_of_two(small: dict[str, Network], size: int) -> None:
    for network in small.values():
        with torch.no_grad():
            assert network(torch.randn(2, 3, size, size)).shape == (2, 5)


def test_vgg_pools_a_fourth_time_at_64_pixels_alone() -> None:
    network = on_meta("vgg8")
    last = {
        size: network(torch.empty(2, 3, size, size, device="meta"), features=True).maps[-1].shape[-1]
        for size in (32, 64, 96)
    }
    assert last == {32: 4, 64: 4, 96: 12}


def test_embedding_is_what_the_head_classifies(small: dict[str, Network]) -> None:
    for network in small.values():
        images = torch.randn(2, 3, 32, 32)
        seen = network(images, features=True)
        assert torch.equal(network.head(seen.embedding), seen.logits)
        assert torch.equal(network(images), seen.logits)


@pytest.mark.parametrize("name", ["resnet8", "vgg8"])
def test_maps_are_the_relu_of_the_preacts(small: dict[str, Network], name: str) -> None:
    seen = small[name](torch.randn(2, 3, 32, 32), features=True)
    for found, preact in zip(seen.maps[1:], seen.preacts[1:], strict=True):
        assert torch.equal(found, F.relu(preact))
        assert preact.min() < 0
    assert seen.maps[0].min() == 0
    torch.testing.assert_close(seen.embedding, seen.maps[-1].mean((2, 3)))


@pytest.mark.parametrize(
    ("name", "norms"),
    [
        ("wrn-16-1", ["block2.0.bn1", "block3.0.bn1", "bn1"]),
        (
            "densenet121-imagenet",
            [*(f"features.transition{number}.norm" for number in (1, 2, 3)), "features.norm5"],
        ),
    ],
)
def test_preacts_of_raw_sums_are_the_next_batch_norm(small: dict[str, Network], name: str, norms: list[str]) -> None:
    network = small[name]
    seen = network(torch.randn(2, 3, 32, 32), features=True)
    for found, preact, norm in zip(seen.maps[1:], seen.preacts[1:], norms, strict=True):
        torch.testing.assert_close(preact, network.get_submodule(norm)(found))
        assert found.min() < 0
    torch.testing.assert_close(seen.embedding, F.relu(seen.preacts[-1]).mean((2, 3)))


def test_the_stem_of_a_wide_resnet_is_raw(small: dict[str, Network]) -> None:
    images = torch.randn(2, 3, 32, 32)
    seen = small["wrn-16-1"](images, features=True)
    assert torch.equal(seen.maps[0], small["wrn-16-1"].conv1(images))


@pytest.mark.parametrize("name", ["resnet8", "wrn-16-1", "vgg8", "densenet121-imagenet"])
def test_running_statistics_move_once_a_step(name: str) -> None:
    network = models.build(name, 5).train()
    network(torch.randn(2, 3, 64, 64), features=True)
    counters = [value for key, value in network.state_dict().items() if key.endswith("num_batches_tracked")]
    assert counters and all(value == 1 for value in counters)


def test_gradients_reach_every_parameter(small: dict[str, Network]) -> None:
    for network in small.values():
        trained = copy.deepcopy(network).train()
        F.cross_entropy(trained(torch.randn(4, 3, 32, 32)), torch.arange(4)).backward()
        assert all(weights.grad is not None and weights.grad.isfinite().all() for weights in trained.parameters())


def test_logits_alone_keep_no_map_alive() -> None:
    network = models.build("resnet8", 5)
    first_map = []
    alive = []
    network.layer2[0].register_forward_pre_hook(lambda layer, inputs: first_map.append(weakref.ref(inputs[0])))
    network.fc.register_forward_pre_hook(lambda layer, inputs: alive.append(first_map[-1]() is not None))
    with torch.no_grad():
        network(torch.randn(1, 3, 32, 32))
        network(torch.randn(1, 3, 32, 32), features=True)
    assert alive == [False, True]


# ---- initialisation -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet20", "wrn-16-2", "vgg8", "resnext29-32x4d", "ResNet18", "resnet18-imagenet"])
def test_convolutions_start_with_variance_two_over_fan_out(name: str) -> None:
    network = models.build(name, 10)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and layer.weight.numel() > 4000:
            fan = layer.out_channels * layer.kernel_size[0] ** 2
            assert layer.weight.std().item() == pytest.approx((2 / fan) ** 0.5, rel=0.06)
            assert layer.bias is None or not layer.bias.any()
        if isinstance(layer, nn.BatchNorm2d):
            assert (layer.weight == 1).all() and (layer.bias == 0).all()


def test_what_the_families_start_otherwise() -> None:
    assert not models.build("wrn-16-1", 10).fc.bias.any()
    head = models.build("vgg8", 100).head
    assert head.weight.std().item() == pytest.approx(0.01, rel=0.05) and not head.bias.any()
    dense = models.build("densenet121-imagenet", 10)
    wide = dense.get_submodule("features.transition3.conv").weight  # 1024 -> 512: fan_in and fan_out differ
    assert wide.std().item() == pytest.approx((2 / 1024) ** 0.5, rel=0.02)
    assert not dense.head.bias.any()


def test_the_seed_of_torch_decides_the_weights() -> None:
    built = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        built.append(models.build("resnet8", 10).state_dict())
    first, again, other = built
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["fc.weight"], other["fc.weight"])


# ---- cost, names --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "mflops"),
    [
        ("resnet20", 32, 81.6),
        ("resnet32", 32, 138.2),
        ("resnet110", 32, 506.3),
        ("wrn-40-1", 32, 166.6),
        ("resnet8x4", 32, 354.1),
        ("resnet32x4", 32, 2166.0),
        ("resnet50-imagenet", 256, 10679.0),
    ],
)
def test_flops(name: str, size: int, mflops: float) -> None:
    assert models.flops(on_meta(name), size) / 1e6 == pytest.approx(mflops, rel=1e-3)


def test_counting_flops_by_hand_and_leaving_the_network_alone() -> None:
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, groups=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 5)
    )
    network[1].eval()
    before = copy.deepcopy(network.state_dict())
    assert models.flops(network, 4) == 2 * (8 * 3 * 9 * 16 + 8 * 16 * 5)
    assert [module.training for module in network.modules()] == [True, True, False, True, True, True]
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


def test_unknown_names_are_answered_with_near_ones() -> None:
    with pytest.raises(InputError, match=r"Unknown network 'resnet-20'; did you mean .*resnet20"):
        models.build("resnet-20", 10)
    with pytest.raises(InputError, match="classes = 0"):
        models.build("resnet20", 0)


# ---- a new file ---------------------------------------------------------------------------------------------------


def examples() -> list[str]:
    page = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
    section = page.split("## A network\n")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_the_documented_network_is_found_by_its_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = examples()[0]
    assert len(code.splitlines()) < 25
    (tmp_path / "plain.py").write_text(code)
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    assert models.families()["plain"] == ["plain-16", "plain-64"]
    seen = models.build("plain-16", 10)(torch.randn(2, 3, 40, 40), features=True)
    assert seen.logits.shape == (2, 10) and seen.embedding.shape == (2, 64)
    assert [found.shape[1] for found in seen.maps] == [16, 32, 64]


def test_the_folder_is_read_again_only_for_a_name_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, names = [], plugins.names
    monkeypatch.setattr(plugins, "names", lambda package: looks.append(package) or names(package))
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    for _ in range(3):
        models.build("resnet8", 10)
    assert len(looks) == 1
    (tmp_path / "late.py").write_text(examples()[0].replace("plain-", "late-"))
    assert models.build("late-16", 10).width == 64 and len(looks) == 2
    monkeypatch.setattr(models, "__path__", models.__path__[:-1])
    with pytest.raises(InputError, match="Unknown network 'late-16'"):
        models.build("late-16", 10)


def test_the_documented_hooks_run(capsys: pytest.CaptureFixture[str]) -> None:
    exec(examples()[1].replace("import scns\n", "from scns import models as scns\n"), {})
    assert "torch.Size([4, 10]) torch.Size([4, 16]) [(4, 8, 30, 30), (4, 16, 28, 28)]" in capsys.readouterr().out


# ---- modules of the user ------------------------------------------------------------------------------------------


class Own(nn.Module):
    """A user's network: a shared ReLU, an in-place one, a layer that never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(4, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
        self.relu = nn.ReLU()
        self.spare = nn.Conv2d(1, 1, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.middle = nn.Linear(6, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.body(self.relu(self.stem(images)))
        x = self.relu(self.middle(self.pool(x).flatten(1)))
        return self.out(x)


@pytest.fixture
def own() -> Own:
    torch.manual_seed(0)
    return Own().eval()


def hooks_of(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


def test_features_of_any_module(own: Own) -> None:
    images = torch.randn(2, 3, 8, 8)
    wrapped = models.features_of(own, layers=["stem", "body"])
    seen = wrapped(images, features=True)
    assert torch.equal(seen.logits, own(images)) and torch.equal(wrapped(images), seen.logits)
    assert torch.equal(seen.maps[0], own.stem(images))
    assert torch.equal(seen.maps[1], own.body(own.relu(own.stem(images))))
    assert seen.preacts == seen.maps
    assert seen.embedding.shape == (2, 6) and torch.equal(wrapped.head(seen.embedding), seen.logits)
    assert hooks_of(own) == 0
    seen.maps[1].sum().backward()
    assert own.stem.weight.grad is not None and own.out.weight.grad is None


def test_features_of_agrees_with_a_network_of_ours(small: dict[str, Network]) -> None:
    network = small["wrn-16-1"]
    wrapped = models.features_of(network, ["conv1"], preacts=["block2.0.bn1"])
    images = torch.randn(2, 3, 32, 32)
    want, seen = network(images, features=True), wrapped(images, features=True)
    assert torch.equal(seen.embedding, want.embedding) and torch.equal(seen.maps[0], want.maps[0])
    assert torch.equal(seen.preacts[0], want.preacts[1])


@pytest.mark.parametrize(
    ("choice", "oracle"),
    [
        ({"embedding": "pool"}, lambda own, x: own.body(own.relu(own.stem(x))).mean((2, 3))),
        ({"embedding": "stem"}, lambda own, x: own.stem(x).mean((2, 3))),
        ({"classifier": "middle"}, lambda own, x: own.body(own.relu(own.stem(x))).mean((2, 3))),
    ],
    ids=["pool", "stem", "middle"],
)
def test_the_embedding_can_be_named(own: Own, choice: dict, oracle) -> None:  # type: ignore[no-untyped-def]
    images = torch.randn(2, 3, 8, 8)
    seen = models.features_of(own, ["stem"], **choice)(images, features=True)
    torch.testing.assert_close(seen.embedding, oracle(own, images))


def test_tokens_are_averaged_and_output_objects_understood() -> None:
    class Answer(tuple):
        @property
        def logits(self) -> Tensor:
            return self[1]

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nn.Identity()
            self.out = nn.Linear(3, 2)

        def forward(self, images: Tensor) -> Answer:
            tokens = self.mix(images.flatten(2).transpose(1, 2))  # [batch, tokens, 3]
            return Answer(("no tensor", self.out(tokens.mean(1))))

    images = torch.randn(2, 3, 4, 4)
    seen = models.features_of(Tokens(), ["mix"], embedding="mix")(images, features=True)
    assert seen.logits.shape == (2, 2) and seen.maps[0].shape == (2, 16, 3)
    torch.testing.assert_close(seen.embedding, images.mean((2, 3)))


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_features_of_without_gradient(own: Own, guard) -> None:  # type: ignore[no-untyped-def]
    images = torch.randn(2, 3, 8, 8)
    with guard():
        seen = models.features_of(own, ["stem", "body"])(images, features=True)
    assert not any(found.requires_grad for found in (seen.logits, seen.embedding, *seen.maps))
    assert torch.equal(seen.maps[0], own.stem(images))


def test_overwritten_maps_are_refused_or_copied(own: Own) -> None:
    wrapped = models.features_of(own, ["stem", "body.1"])
    images = torch.randn(2, 3, 8, 8)
    with pytest.raises(InputError, match=r"output of layer 'body\.1' is overwritten in place"):
        wrapped(images, features=True)
    assert hooks_of(own) == 0
    with torch.inference_mode():
        assert wrapped(images, features=True).maps[1].min() < 0


def test_copies_are_independent(own: Own) -> None:
    wrapped = models.features_of(own, ["stem"])
    twin = copy.deepcopy(wrapped)
    with torch.no_grad():
        twin.module.stem.weight.zero_()
    images = torch.randn(2, 3, 8, 8)
    assert wrapped(images, features=True).maps[0].std() > twin(images, features=True).maps[0].std()
    assert torch.equal(wrapped(images, features=True).maps[0], own.stem(images))


def test_state_dicts_load_in_both_directions_and_inside_another_module(own: Own) -> None:
    wrapped = models.features_of(own, ["stem"])
    assert list(wrapped.state_dict()) == list(own.state_dict())
    fresh = Own()
    fresh.load_state_dict(wrapped.state_dict())
    again = models.features_of(Own(), ["stem"])
    again.load_state_dict(own.state_dict())
    outer = nn.ModuleDict({"student": models.features_of(Own(), ["stem"])})
    assert list(outer.state_dict()) == [f"student.{key}" for key in own.state_dict()]
    outer.load_state_dict({f"student.{key}": value for key, value in own.state_dict().items()})
    for loaded in (fresh, again.module, outer["student"].module):
        assert all(torch.equal(value, own.state_dict()[key]) for key, value in loaded.state_dict().items())
    with pytest.raises(RuntimeError, match="Missing key"):
        again.load_state_dict({})


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"layers": ["body.3"]}, "Unknown layer 'body.3'; did you mean body.2 or body.1 or body.0"),
        ({"layers": ["qqq"]}, "Unknown layer 'qqq'; known: body, middle, out, pool, relu, spare, stem."),
        ({"layers": ["stem"], "embedding": "pol"}, "Unknown layer 'pol'; did you mean pool"),
        ({"layers": ["stem"], "classifier": "outt"}, "Unknown layer 'outt'; did you mean out"),
        ({"layers": ["stem"], "preacts": ["stemm"]}, "Unknown layer 'stemm'; did you mean stem"),
        ({"layers": ["stem"], "preacts": []}, "preacts names 0 layers and layers 1"),
        ({"layers": "stem"}, "layers is a list of paths, but it is 'stem'; write layers=['stem']."),
    ],
)
def test_wrong_layers_are_refused_at_once(own: Own, arguments: dict, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        models.features_of(own, **arguments)


@pytest.mark.parametrize(("layer", "times"), [("relu", 2), ("spare", 0)])
def test_layers_that_do_not_run_once_are_refused(own: Own, layer: str, times: int) -> None:
    with pytest.raises(InputError, match=f"'{layer}' runs {times} times"):
        models.features_of(own, [layer])(torch.randn(2, 3, 8, 8), features=True)


def test_modules_without_tensors_or_linear_layers_are_refused() -> None:
    with pytest.raises(InputError, match=r"Flatten has no nn.Linear"):
        models.features_of(nn.Flatten(), [])

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(3, 2)

        def forward(self, images: Tensor) -> dict[str, Tensor]:
            return {"answer": self.out(images)}

    with pytest.raises(InputError, match="The module's output is a dict"):
        models.features_of(Words(), [])(torch.randn(2, 3))


# ---- weights ------------------------------------------------------------------------------------------------------


def same_weights(a: nn.Module, b: nn.Module, without: str = "none") -> bool:
    left, right = a.state_dict(), b.state_dict()
    return all(torch.equal(left[key], right[key]) for key in left if not key.startswith(without))


def test_weights_from_both_kinds_of_file(tmp_path: Path) -> None:
    source = models.build("resnet8", 10)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    torch.save(source.state_dict(), tmp_path / "w.pth")
    torch.save({"epoch": 3, "state_dict": source.state_dict()}, tmp_path / "wrapped.pth")
    torch.save(
        {"model": {f"module.{key}": value for key, value in source.state_dict().items()}}, tmp_path / "parallel.pth"
    )
    for file in ("w.safetensors", "w.pth", "wrapped.pth", "parallel.pth"):
        network = models.build("resnet8", 10)
        assert models.load_weights(network, tmp_path / file) is network
        assert same_weights(network, source), file


def test_weights_of_other_classes_keep_the_new_classifier(tmp_path: Path) -> None:
    source, network = models.build("resnet8", 1000), models.build("resnet8", 10)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"fc.weight is \[1000, 64\] instead of \[10, 64\].*new_classifier=True"):
        models.load_weights(network, tmp_path / "w.pth")
    head = network.fc.weight.clone()
    models.load_weights(network, tmp_path / "w.pth", new_classifier=True)
    assert torch.equal(network.fc.weight, head) and same_weights(network, source, without="fc.")


def test_weights_into_a_wrapped_module(tmp_path: Path, own: Own) -> None:
    save_file(own.state_dict(), tmp_path / "w.safetensors")
    other = models.features_of(Own(), ["stem"])
    head = other.head.weight.clone()
    models.load_weights(other, tmp_path / "w.safetensors", new_classifier=True)
    assert same_weights(other.module, own, without="out.") and torch.equal(other.head.weight, head)


def test_old_densenet_files_load(tmp_path: Path) -> None:
    source = models.build("densenet121-imagenet", 10)
    old = {
        re.sub(r"(denselayer\d+)\.(norm|conv)([12])", r"\1.\2.\3", key): value
        for key, value in source.state_dict().items()
        if not key.endswith("num_batches_tracked")
    }
    assert "features.denseblock4.denselayer16.norm.2.running_var" in old
    torch.save(old, tmp_path / "densenet121.pth")
    assert same_weights(
        models.load_weights(models.build("densenet121-imagenet", 10), tmp_path / "densenet121.pth"), source
    )


@pytest.mark.parametrize(
    ("published", "ours"),
    [
        ("features.denseblock1.denselayer10.conv.1.weight", "features.denseblock1.denselayer10.conv1.weight"),
        ("features.transition1.conv.weight", "features.transition1.conv.weight"),
        ("module.layer1.0.conv1.weight", "layer1.0.conv1.weight"),
        ("block2.layer.0.convShortcut.weight", "block2.0.shortcut.weight"),
        ("layer2.0.shortcut.1.bias", "layer2.0.downsample.1.bias"),
        ("linear.bias", "fc.bias"),
        ("block3.4.weight", "block3.4.weight"),
    ],
)
def test_published_names(published: str, ours: str) -> None:
    assert _weights.published_key(published) == ours


def test_files_that_do_not_fit_are_refused_and_change_nothing(tmp_path: Path) -> None:
    network = models.build("resnet8", 10)
    before = copy.deepcopy(network)
    state = network.state_dict()
    cases = {
        "missing: conv1.weight, bn1.weight": {key: state[key] for key in list(state)[2:] if key != "bn1.weight"},
        "unexpected: extra": {**state, "extra": torch.zeros(1)},
        "of another shape: bn1.bias is [3] instead of [16]": {**state, "bn1.bias": torch.zeros(3)},
        "and 26 more": {key: value for key, value in state.items() if not key.startswith(("layer3", "layer2"))},
        "no state dict": {"epoch": 3},
        "holds a list": [torch.zeros(3)],
    }
    for sentence, content in cases.items():
        torch.save(content, tmp_path / "w.pth")
        with pytest.raises(InputError, match=re.escape(sentence)):
            models.load_weights(network, tmp_path / "w.pth")
    assert same_weights(network, before)


class Malicious:
    def __reduce__(self) -> tuple:
        return (exec, ("raise SystemExit('executed')",))


def test_unreadable_and_malicious_files_are_refused(tmp_path: Path) -> None:
    network = models.build("resnet8", 10)
    torch.save({"conv1.weight": Malicious()}, tmp_path / "bad.pth")
    (tmp_path / "text.pth").write_text("hello")
    (tmp_path / "empty.pth").write_bytes(b"")
    (tmp_path / "text.safetensors").write_text("hello")
    torch.save(network.state_dict(), tmp_path / "whole.pth")
    (tmp_path / "cut.pth").write_bytes((tmp_path / "whole.pth").read_bytes()[:5000])
    for file in ("bad.pth", "text.pth", "empty.pth", "text.safetensors", "cut.pth"):
        with pytest.raises(InputError, match=f"{file}' cannot be read as weights.*give a .safetensors file"):
            models.load_weights(network, tmp_path / file)
    for file in ("none.pth", "none.safetensors"):
        with pytest.raises(FileNotFoundError):
            models.load_weights(network, tmp_path / file)


def test_what_is_no_network_or_number_of_classes_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not a Linear; wrap it by scns.features_of"):
        models.load_weights(nn.Linear(2, 2), tmp_path / "w.pth")  # type: ignore[type-var]
    for classes in ("10", 2.5, None):
        with pytest.raises(InputError, match=f"classes = {classes!r}"):
            models.build("resnet8", classes)  # type: ignore[arg-type]
