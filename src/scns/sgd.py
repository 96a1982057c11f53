"""Stochastic gradient descent in one kernel, with nothing that a captured step cannot hold."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class SGD:
    """v <- momentum v + g,  p <- p - lr v  (Nesterov: p - lr (g + momentum v)),  g = gradient + weight_decay p

    The same numbers as torch.optim.SGD(fused=True), whose kernel it calls. The learning rate is a tensor and the
    velocities exist from the start, so that no step is special. That class would import torch's compiler, a third of
    the time from a command to its first step, and do in Python at every step what is done here once.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float, nesterov: bool
    ) -> None:
        self.parameters = [each for each in parameters if each.requires_grad]
        self.lr = torch.tensor(lr, device=self.parameters[0].device)
        self.momentum, self.weight_decay, self.nesterov = momentum, weight_decay, nesterov
        self.velocities: list[Tensor] = [torch.zeros_like(each) for each in self.parameters] if momentum else []

    def zero_grad(self) -> None:
        for each in self.parameters:
            each.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move the parameters that have a gradient."""
        moved = [(number, each, each.grad) for number, each in enumerate(self.parameters) if each.grad is not None]
        torch._fused_sgd_(
            [each for _, each, _ in moved],
            [gradient for _, _, gradient in moved],
            [self.velocities[number] for number, _, _ in moved] if self.velocities else [],
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            dampening=0.0,
            maximize=False,
            is_first_step=False,
        )
