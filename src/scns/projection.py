"""A linear projection to unit length as one function, for training on a GPU: `kernels.heads`."""

from typing import Any

import torch
from torch import Tensor, nn

from scns import has


def fits(x: Tensor, linear: nn.Linear) -> bool:
    """Whether the kernels are for these: on a GPU, float32 weights, a power of two of outputs, places of int32."""
    weight, dim, width = linear.weight, linear.out_features, linear.in_features
    small = 16 <= dim <= 256 and dim & (dim - 1) == 0 and linear.bias is not None
    if not (has.TRITON and x.is_cuda and weight.dtype == torch.float32 and small):
        return False
    # A wrong shape is left to torch, which says what is wrong.
    return x.dim() == 2 and x.shape[1] == width and 0 < x.shape[0] * max(width, dim) < 2**31


def unit(x: Tensor, linear: nn.Linear) -> Tensor:
    """What `unit_rows(linear(x))` gives, of x [batch, width] in any precision, in the weights' precision."""
    return _Unit.apply(x, linear.weight, linear.bias)


def moves(table: Tensor, linear: nn.Linear) -> bool:
    """Whether `move` is for that table too: float32 rows of the head's width, one after another, on its device."""
    known = table.dtype == torch.float32 and table.device == linear.weight.device and table.is_contiguous()
    return known and table.shape[1] == linear.out_features


def move(x: Tensor, linear: nn.Linear, rows: Tensor, table: Tensor, filled: Tensor | None, momentum: float) -> None:
    """Move `rows` int64 [batch], none twice, of a table [rows, dim] towards `unit(x, linear)`: `FeatureTable.update`.

    Rows are not checked, which would wait for the device.

    `filled` bool [rows] says which have been moved before; None: all have.
    """
    _move(x, linear.weight, linear.bias, rows, table, table.new_empty(0) if filled is None else filled, momentum)


@torch.library.custom_op("scns::project", mutates_args=())
def _project(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(z, 1 / length before)"""
    from scns.kernels import heads

    with torch.cuda.device_of(x):  # where Triton launches
        return heads.project(x.contiguous(), w.contiguous(), b)


@_project.register_fake
def _project_empty(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return w.new_empty(len(x), len(w)), w.new_empty(len(x))


@torch.library.custom_op("scns::project_and_move", mutates_args=("table", "filled"))
def _move(x: Tensor, w: Tensor, b: Tensor, rows: Tensor, table: Tensor, filled: Tensor, momentum: float) -> None:
    from scns.kernels import heads

    with torch.cuda.device_of(x):
        heads.move(x.contiguous(), w.contiguous(), b, rows.contiguous(), table, filled, momentum)


@_move.register_fake
def _move_nothing(
    x: Tensor, w: Tensor, b: Tensor, rows: Tensor, table: Tensor, filled: Tensor, momentum: float
) -> None:
    return None


@torch.library.custom_op("scns::project_gradients", mutates_args=())
def _gradients(
    dz: Tensor, z: Tensor, inverse: Tensor, x: Tensor, w: Tensor, inputs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(by x, or nothing; by w; by b)"""
    from scns.kernels import heads

    with torch.cuda.device_of(dz):
        return heads.gradients(dz.contiguous(), z.contiguous(), inverse, x.contiguous(), w.contiguous(), inputs)


@_gradients.register_fake
def _gradients_empty(
    dz: Tensor, z: Tensor, inverse: Tensor, x: Tensor, w: Tensor, inputs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(len(x) if inputs else 0, x.shape[1]), w.new_empty(w.shape), w.new_empty(len(w))


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        z, inverse = _project(x, w, b)
        ctx.save_for_backward(x, w, z, inverse)
        return z

    @staticmethod
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, w, z, inverse = ctx.saved_tensors
        inputs = ctx.needs_input_grad[0]
        dx, dw, db = _gradients(dz, z, inverse, x, w, inputs)
        return dx if inputs else None, dw, db
