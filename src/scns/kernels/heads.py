"""A linear projection to unit length, z = y / |y| of y = x w' + b, and its gradients: few numbers, so few kernels.

dy = (dz - z <z, dz>) / |y|,   dx = dy w,   dw = dy' x,   db = sum of dy
"""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

_ROWS, _DEEP = 16, 32  # samples, and numbers of one, at a time


@triton.jit(do_not_specialize=["batch"])
def _project(x, w, b, z, inverse, batch, WIDTH: constexpr, DIM: constexpr, ROWS: constexpr, DEEP: constexpr):
    """ROWS samples: z, and 1 / |y|."""
    m, n, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM), tl.arange(0, DEEP)
    y = tl.zeros((ROWS, DIM), dtype=tl.float32) + tl.load(b + n)[None, :]
    for start in range(0, WIDTH, DEEP):
        there = start + k < WIDTH
        inside = (m < batch)[:, None] & there[None, :]
        some = tl.load(x + m[:, None] * WIDTH + (start + k)[None, :], mask=inside, other=0.0).to(tl.float32)
        inside = there[:, None] & (n >= 0)[None, :]
        weights = tl.load(w + n[None, :] * WIDTH + (start + k)[:, None], mask=inside, other=0.0)
        y = tl.dot(some, weights, y, input_precision="ieee")
    over = 1 / tl.sqrt(tl.sum(y * y, 1) + 1e-24)
    tl.store(inverse + m, over, mask=m < batch)
    tl.store(z + m[:, None] * DIM + n[None, :], y * over[:, None], mask=(m < batch)[:, None] & (n >= 0)[None, :])


@triton.jit
def _by_outputs(dz, z, inverse, m, batch, DIM: constexpr):
    """dy [samples, DIM] of the samples m."""
    n = tl.arange(0, DIM)
    place, inside = m[:, None] * DIM + n[None, :], (m < batch)[:, None] & (n >= 0)[None, :]
    found, own = tl.load(dz + place, mask=inside, other=0.0), tl.load(z + place, mask=inside, other=0.0)
    over = tl.load(inverse + m, mask=m < batch, other=0.0)
    return (found - own * tl.sum(found * own, 1)[:, None]) * over[:, None]


@triton.jit(do_not_specialize=["batch"])
def _by_inputs(dz, z, inverse, w, dx, batch, WIDTH: constexpr, DIM: constexpr, ROWS: constexpr, DEEP: constexpr):
    """dx of ROWS samples."""
    m, n, k = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, DIM), tl.arange(0, DEEP)
    dy = _by_outputs(dz, z, inverse, m, batch, DIM)
    for start in range(0, WIDTH, DEEP):
        there = start + k < WIDTH
        inside = (n >= 0)[:, None] & there[None, :]
        weights = tl.load(w + n[:, None] * WIDTH + (start + k)[None, :], mask=inside, other=0.0)
        found = tl.dot(dy, weights, input_precision="ieee").to(dx.dtype.element_ty)
        inside = (m < batch)[:, None] & there[None, :]
        tl.store(dx + m[:, None] * WIDTH + (start + k)[None, :], found, mask=inside)


@triton.jit(do_not_specialize=["batch"])
def _by_weights(
    dz, z, inverse, x, dw, db, batch, WIDTH: constexpr, DIM: constexpr, ROWS: constexpr, DEEP: constexpr
):  # fmt: skip
    """dw of DEEP inputs, and db."""
    n, k = tl.arange(0, DIM), tl.program_id(0) * DEEP + tl.arange(0, DEEP)
    total, bias = tl.zeros((DIM, DEEP), dtype=tl.float32), tl.zeros((DIM,), dtype=tl.float32)
    for start in range(0, batch, ROWS):
        m = start + tl.arange(0, ROWS)
        dy = _by_outputs(dz, z, inverse, m, batch, DIM)
        inside = (m < batch)[:, None] & (k < WIDTH)[None, :]
        some = tl.load(x + m[:, None] * WIDTH + k[None, :], mask=inside, other=0.0).to(tl.float32)
        total = tl.dot(tl.trans(dy), some, total, input_precision="ieee")
        bias += tl.sum(dy, 0)
    tl.store(dw + n[:, None] * WIDTH + k[None, :], total, mask=(n >= 0)[:, None] & (k < WIDTH)[None, :])
    if tl.program_id(0) == 0:
        tl.store(db + n, bias)


def project(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(z [batch, dim], 1 / |y| [batch]) of x [batch, width]."""
    (batch, width), dim = x.shape, len(w)
    z, inverse = w.new_empty(batch, dim), w.new_empty(batch)
    _project[(triton.cdiv(batch, _ROWS),)](x, w, b, z, inverse, batch, width, dim, _ROWS, _DEEP, num_warps=4)
    return z, inverse


def by_inputs(dz: Tensor, z: Tensor, inverse: Tensor, w: Tensor, dx: Tensor) -> None:
    """Write dx, in its own precision."""
    (batch, dim), width = z.shape, w.shape[1]
    _by_inputs[(triton.cdiv(batch, _ROWS),)](dz, z, inverse, w, dx, batch, width, dim, _ROWS, _DEEP, num_warps=4)


def by_weights(dz: Tensor, z: Tensor, inverse: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """(dw, db)"""
    (batch, dim), width = z.shape, x.shape[1]
    dw, db = z.new_empty(dim, width), z.new_empty(dim)
    _by_weights[(triton.cdiv(width, 16),)](dz, z, inverse, x, dw, db, batch, width, dim, _ROWS, 16, num_warps=4)
    return dw, db
