"""How large a network is: parameters, and operations and outputs of a forward pass."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
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
    """Counts convolutions and linear layers; skips norms, activations and sums, which change no shape.

    Sums, joins, pools and linear layers are done by shape: on the device "meta" torch would import its compiler for
    them, which takes two seconds.
    """

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
        result = _by_shape(func, args)
        if result is None:
            result = func(*args, **(kwargs or {}))
        if func in (F.conv2d, F.linear):
            positions = result.numel() // result.shape[1]  # of one image: [1, channels, height, width] or [1, classes]
            self.outputs += result.numel()
            self.operations += 2 * args[1].numel() * positions  # args[1] is the weight
        return result


def _by_shape(func: Callable[..., Any], args: Sequence[Any]) -> Tensor | None:
    """A tensor of the shape that comes out, if that is told without torch."""
    if func in (F.batch_norm, F.relu):
        return args[0]
    if func is torch.Tensor.add and all(isinstance(each, Tensor) and each.shape == args[0].shape for each in args):
        return args[0]
    if func is torch.cat and args[1:] == (1,):
        first = args[0][0]
        return first.new_empty(len(first), sum(each.shape[1] for each in args[0]), *first.shape[2:])
    if func is F.adaptive_avg_pool2d and args[1:] == (1,):
        return args[0][..., :1, :1]
    if func is F.linear and args[0].shape[-1] == args[1].shape[-1]:
        return args[0].new_empty(*args[0].shape[:-1], len(args[1]))
    return None
