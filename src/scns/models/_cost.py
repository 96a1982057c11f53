"""How large a network is: parameters, and operations and outputs of a forward pass."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


def parameters(network: nn.Module) -> int:
    """How many numbers the network trains."""
    return sum(weights.numel() for weights in network.parameters())


def flops(network: nn.Module, size: int) -> int:
    """Floating-point operations of the forward pass of one image of `size` x `size` pixels.

    A multiply-add of a convolution or linear layer is 2; norms, activations, sums and pools are not counted.
    The network may live on the device "meta", where nothing is computed.
    """
    return _counted(network, size).operations


def outputs(network: nn.Module, size: int) -> int:
    """How many numbers the convolutions and linear layers put out for one image of `size` x `size` pixels."""
    return _counted(network, size).outputs


def _counted(network: nn.Module, size: int) -> "_Counter":
    modes = [(module, module.training) for module in network.modules()]
    image = torch.zeros(1, 3, size, size, device=next(network.parameters()).device)
    try:
        network.eval()  # in training mode a batch norm counts its batches
        with torch.no_grad(), _Counter() as counter:
            network(image)
    finally:
        for module, training in modes:
            module.training = training
    return counter


class _Counter(TorchFunctionMode):
    """Counts convolutions and linear layers; skips norms and activations, which change no shape."""

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.outputs = 0, 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in (F.batch_norm, F.relu):
            return args[0]
        result = func(*args, **(kwargs or {}))
        if func in (F.conv2d, F.linear):
            positions = result.numel() // result.shape[1]  # of one image: [1, channels, height, width] or [1, classes]
            self.outputs += result.numel()
            self.operations += 2 * args[1].numel() * positions  # args[1] is the weight
        return result
