"""Batch norms of a frozen network folded into the convolutions before them: fewer kernels, the same function."""

import copy
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def folded(network: nn.Module, sample: Tensor) -> nn.Module:
    """A copy in evaluation mode without the batch norms that directly follow a convolution.

    Which ones do is seen in a forward pass of `sample`: a convolution is folded where its output goes to one batch norm
    and nowhere else, neither to another operation nor out of the network as a feature. Layers that run twice, have two
    names or hooks, or are subclasses of torch's stay as they are.
    """
    network = copy.deepcopy(network).eval()
    for conv_name, norm_name in pairs(network, sample):
        conv, norm = network.get_submodule(conv_name), network.get_submodule(norm_name)
        assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
        _fold(conv, norm)
        put(network, norm_name, nn.Identity())
    return network


def put(network: nn.Module, name: str, part: nn.Module) -> None:
    """Put a part in the place of the one of that name."""
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, part)


@torch.no_grad()
def _fold(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    """w <- w * g / sqrt(var + eps),  b <- beta + (b - mean) * g / sqrt(var + eps), in float64."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    shift = torch.zeros_like(scale)
    if norm.affine:
        scale, shift = scale * norm.weight.double(), norm.bias.double()
    bias = torch.zeros_like(scale) if conv.bias is None else conv.bias.double()
    shift = shift + (bias - norm.running_mean.double()) * scale
    weight = conv.weight.double() * scale[:, None, None, None]
    conv.weight = nn.Parameter(weight.to(conv.weight.dtype), requires_grad=False)  # its own: others may share it
    conv.bias = nn.Parameter(shift.to(conv.weight.dtype), requires_grad=False)


class _Uses(TorchDispatchMode):
    """Counts how many operations read each watched tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.count: dict[int, int] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to skip its compiler, torch would import it, a second of every start, and nothing is compiled here."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs)):
            if id(leaf) in self.count:
                self.count[id(leaf)] += 1
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def pairs(network: nn.Module, sample: Tensor) -> list[tuple[str, str]]:
    """Names of the convolutions, with the batch norm after each, that can be taken for one function.

    A forward pass of `sample` shows them: the norm alone reads what the convolution gives, and both run once.
    """
    uses, runs = _Uses(), Counter[str]()
    made: dict[int, tuple[str, Tensor]] = {}  # the tensors are kept, so that no id comes twice
    candidates: list[tuple[str, str, int]] = []
    hooks = []

    def after(name: str) -> Any:
        def remember(module: nn.Module, inputs: Any, output: Tensor) -> None:
            runs[name] += 1
            made[id(output)] = (name, output)
            uses.count[id(output)] = 0

        return remember

    def before(name: str) -> Any:
        def match(module: nn.Module, inputs: Any) -> None:
            runs[name] += 1
            if id(inputs[0]) in made:
                candidates.append((made[id(inputs[0])][0], name, id(inputs[0])))

        return match

    for name, module in _plain(network):
        if isinstance(module, nn.Conv2d):
            hooks.append(module.register_forward_hook(after(name)))
        else:
            hooks.append(module.register_forward_pre_hook(before(name)))
    try:
        with uses:
            seen = network(sample, features=True)
    finally:
        for hook in hooks:
            hook.remove()
    shown = {id(tensor) for tensor in (*seen.maps, *seen.preacts)}
    return [
        (conv, norm)
        for conv, norm, key in candidates
        if uses.count[key] == runs[conv] == runs[norm] == 1 and key not in shown
    ]


def _plain(network: nn.Module) -> list[tuple[str, nn.Module]]:
    """The convolutions and batch norms, by name, that do what torch's own do and can be replaced at one place."""
    places = Counter(id(child) for parent in network.modules() for child in parent._modules.values())
    return [
        (name, module)
        for name, module in network.named_modules()
        if type(module) in (nn.Conv2d, nn.BatchNorm2d)  # a subclass may compute anything
        and getattr(module, "track_running_stats", True)  # else a norm goes by the batch at hand
        and places[id(module)] == 1
        and not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
    ]
