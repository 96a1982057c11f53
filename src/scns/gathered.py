"""InfoNCE of unit features against rows of tables as one function, for training on a GPU: `kernels.lookups`."""

from typing import Any

import torch
from torch import Tensor

from scns import has

# One or two: anchors [batch, dim] with the table [rows, dim] they are compared with.
Sides = list[tuple[Tensor, Tensor]]


def fits(sides: Sides, rows: Tensor) -> bool:
    """Whether the kernels are for these: float32 on a GPU, of shapes that agree, and places that int32 holds."""
    return has.TRITON and rows.numel() < 2**31 and all(_fits(z, table, len(rows)) for z, table in sides)


def _fits(z: Tensor, table: Tensor, count: int) -> bool:
    known = z.is_cuda and z.dtype == table.dtype == torch.float32 and table.numel() < 2**31
    return known and z.shape == (count, table.shape[1])


def info_nce(sides: Sides, rows: Tensor, log_weights: Tensor | None, tau: float) -> Tensor:
    """[sides, batch]: `functional.info_nce` of each anchor; its positive is the first of its `rows` [batch, m]."""
    z = torch.stack([z for z, _ in sides])
    return _InfoNCE.apply(z, sides[0][1], sides[-1][1], rows, log_weights, 1 / tau)


@torch.library.custom_op("scns::info_nce", mutates_args=())
def _found(
    z: Tensor, first: Tensor, second: Tensor, rows: Tensor, log_weights: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """(losses, their gradients by z)"""
    from scns.kernels import lookups

    log_weights = None if log_weights is None else log_weights.contiguous()
    with torch.cuda.device_of(z):  # where Triton launches
        return lookups.info_nce(z.contiguous(), first, second, rows.contiguous(), log_weights, scale)


@_found.register_fake
def _found_empty(
    z: Tensor, first: Tensor, second: Tensor, rows: Tensor, log_weights: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    return z.new_empty(z.shape[:2]), z.new_empty(z.shape)


class _InfoNCE(torch.autograd.Function):
    """The gradient is found with the loss, in one reading of the rows."""

    @staticmethod
    def forward(
        ctx: Any, z: Tensor, first: Tensor, second: Tensor, rows: Tensor, log_weights: Tensor | None, scale: float
    ) -> Tensor:
        losses, dz = _found(z, first, second, rows, log_weights, scale)
        ctx.save_for_backward(dz)
        return losses

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return g[..., None] * ctx.saved_tensors[0], None, None, None, None, None
