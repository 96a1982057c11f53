"""A network for training whose convolutions and batch norms are one function each: fewer kernels, the same numbers."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from scns import has
from scns.convnorm import ConvNorm, fits
from scns.models._fold import pairs, put


def fusible(device: torch.device) -> bool:
    """Whether the kernels run there: Triton, and a GPU that multiplies bfloat16."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0) and has.TRITON


def fused(network: nn.Module, sample: Tensor, dtype: torch.dtype) -> nn.Module:
    """The network for training, in `dtype` where its parts are fused; the network itself where none can be."""
    found = Fused(network, sample, dtype)
    return found if found.parts and found.runs(sample) else network


class Fused(nn.Module):
    """A network that shares its parameters and buffers with the one it was made of; for training only."""

    def __init__(self, network: nn.Module, sample: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        shared = {id(each): each for each in (*network.parameters(), *network.buffers())}
        self.network = copy.deepcopy(network, shared).train()
        self.parts, self.dtype = list[ConvNorm](), dtype
        for conv_name, norm_name in pairs(copy.deepcopy(network).eval(), sample):
            conv, norm = self.network.get_submodule(conv_name), self.network.get_submodule(norm_name)
            assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
            same = not self.parts or norm.momentum == self.parts[0].norm.momentum
            if fits(conv, norm) and same and norm.training:  # not, where the network keeps it frozen
                self.parts.append(ConvNorm(conv, norm, dtype))
                put(self.network, conv_name, self.parts[-1])
                put(self.network, norm_name, nn.Identity())

    @torch.no_grad()
    def runs(self, sample: Tensor) -> bool:
        """Whether the network calls every part in training, and asks none for what only a convolution has."""
        trial = copy.deepcopy(self)  # of its own: unfused batch norms note what they see
        half = self.dtype in (torch.bfloat16, torch.float16)  # as steps run it then: inside autocast
        try:
            with torch.autocast(sample.device.type, self.dtype if half else torch.bfloat16, enabled=half):
                trial.network(sample.repeat(2, 1, 1, 1), features=True)
        except AttributeError:
            return False
        return all(part.seen is not None for part in trial.parts)

    def forward(self, images: Tensor, features: bool = False) -> Any:
        seen = self.network(images, features=features)
        self._note()
        return seen

    @torch.no_grad()
    def _note(self) -> None:
        """running <- (1 - momentum) running + momentum seen, of all batch norms at once; batches are not counted."""
        momentum = self.parts[0].norm.momentum
        assert momentum is not None  # `fits` saw to it
        seen = zip(*(part.taken() for part in self.parts), strict=True)
        for name, values in zip(("running_mean", "running_var"), seen, strict=True):
            running = [getattr(part.norm, name) for part in self.parts]
            torch._foreach_mul_(running, 1 - momentum)
            torch._foreach_add_(running, values, alpha=momentum)
