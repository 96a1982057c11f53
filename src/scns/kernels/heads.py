"""A linear projection to unit length, z = y / |y| of y = x w' + b, its gradients, and a table's rows moved towards it.

dy = (dz - z <z, dz>) / |y|,   dx = dy w,   dw = dy' x,   db = sum of dy

A batch has few numbers, so what counts is how many processors share them: a program has one sample, or a small tile of
the weights' gradient.
"""

# mypy: disable-error-code="no-untyped-def"

import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

_DEEP = 64  # numbers of a sample at a time
_TILE = 16  # outputs, and inputs, of the weights' gradient
_ROWS = 64  # samples of it at a time
_EPS = constexpr(1e-24)  # added to a squared length


@triton.jit
def _linear(x, w, b, m, WIDTH: constexpr, DIM: constexpr, DEEP: constexpr):
    """y [DIM] of the sample m."""
    n, k = tl.arange(0, DIM), tl.arange(0, DEEP)
    y = tl.load(b + n)
    for start in range(0, WIDTH, DEEP):
        there = start + k < WIDTH
        some = tl.load(x + m * WIDTH + start + k, mask=there, other=0.0).to(tl.float32)
        inside = (n >= 0)[:, None] & there[None, :]
        weights = tl.load(w + n[:, None] * WIDTH + (start + k)[None, :], mask=inside, other=0.0)
        y += tl.sum(weights * some[None, :], 1)
    return y


@triton.jit
def _project(x, w, b, z, inverse, WIDTH: constexpr, DIM: constexpr, DEEP: constexpr):
    """z of a sample, and 1 / |y|."""
    m, n = tl.program_id(0), tl.arange(0, DIM)
    y = _linear(x, w, b, m, WIDTH, DIM, DEEP)
    over = 1 / tl.sqrt(tl.sum(y * y, 0) + _EPS)
    tl.store(inverse + m, over)
    tl.store(z + m * DIM + n, y * over)


@triton.jit
def _move(
    x, w, b, rows, table, known, momentum,
    WIDTH: constexpr, DIM: constexpr, DEEP: constexpr, ASK: constexpr,
):  # fmt: skip
    """The table's row of a sample becomes normalise(momentum * row + (1 - momentum) * z), or z if not known before."""
    m, n = tl.program_id(0), tl.arange(0, DIM)
    y = _linear(x, w, b, m, WIDTH, DIM, DEEP)
    z = y / tl.sqrt(tl.sum(y * y, 0) + _EPS)
    row = tl.load(rows + m)
    moved = z + momentum * (tl.load(table + row * DIM + n) - z)
    if ASK:
        moved = tl.where(tl.load(known + m), moved, z)
    tl.store(table + row * DIM + n, moved / tl.sqrt(tl.sum(moved * moved, 0) + _EPS))


@triton.jit
def _by_outputs(
    dz, z, inverse, w, dy, dx,
    WIDTH: constexpr, DIM: constexpr, DEEP: constexpr, INPUTS: constexpr,
):  # fmt: skip
    """dy of a sample and, where that is asked for, dx."""
    m, n, k = tl.program_id(0), tl.arange(0, DIM), tl.arange(0, DEEP)
    found, own = tl.load(dz + m * DIM + n), tl.load(z + m * DIM + n)
    by_y = (found - own * tl.sum(found * own, 0)) * tl.load(inverse + m)
    tl.store(dy + m * DIM + n, by_y)
    if INPUTS:
        for start in range(0, WIDTH, DEEP):
            there = start + k < WIDTH
            inside = (n >= 0)[:, None] & there[None, :]
            weights = tl.load(w + n[:, None] * WIDTH + (start + k)[None, :], mask=inside, other=0.0)
            by_x = tl.sum(by_y[:, None] * weights, 0).to(dx.dtype.element_ty)
            tl.store(dx + m * WIDTH + start + k, by_x, mask=there)


@triton.jit(do_not_specialize=["batch"])
def _by_linear(dy, x, dw, db, batch, WIDTH: constexpr, DIM: constexpr, TILE: constexpr, ROWS: constexpr):
    """A tile of dw, [TILE, TILE]; the first of its outputs also has their db."""
    n, k = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.program_id(1) * TILE + tl.arange(0, TILE)
    total, bias = tl.zeros((TILE, TILE), dtype=tl.float32), tl.zeros((TILE,), dtype=tl.float32)
    for start in range(0, batch, ROWS):
        m = start + tl.arange(0, ROWS)
        inside = (m < batch)[:, None] & (n < DIM)[None, :]
        by_y = tl.load(dy + m[:, None] * DIM + n[None, :], mask=inside, other=0.0)
        inside = (m < batch)[:, None] & (k < WIDTH)[None, :]
        some = tl.load(x + m[:, None] * WIDTH + k[None, :], mask=inside, other=0.0).to(tl.float32)
        total = tl.dot(tl.trans(by_y), some, total, input_precision="ieee")
        bias += tl.sum(by_y, 0)
    tl.store(dw + n[:, None] * WIDTH + k[None, :], total, mask=(n < DIM)[:, None] & (k < WIDTH)[None, :])
    if tl.program_id(1) == 0:
        tl.store(db + n, bias, mask=n < DIM)


def _sizes(w: Tensor) -> dict[str, int]:
    return dict(WIDTH=w.shape[1], DIM=len(w), DEEP=min(_DEEP, triton.next_power_of_2(w.shape[1])), num_warps=4)


def project(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(z [batch, dim], 1 / |y| [batch]) of x [batch, width]."""
    z, inverse = w.new_empty(len(x), len(w)), w.new_empty(len(x))
    _project[(len(x),)](x, w, b, z, inverse, **_sizes(w))
    return z, inverse


def move(x: Tensor, w: Tensor, b: Tensor, rows: Tensor, table: Tensor, filled: Tensor, momentum: float) -> None:
    """Move the table's `rows`, none twice, towards z; `filled` says which have been moved before, or is empty: all."""
    ask = len(filled) > 0
    # Read here and written after: in the kernel, one warp of a program might write before another has read.
    known = filled[rows] if ask else filled
    _move[(len(x),)](x, w, b, rows, table, known, momentum, **_sizes(w), ASK=ask)
    if ask:
        filled.index_fill_(0, rows, True)


def gradients(
    dz: Tensor, z: Tensor, inverse: Tensor, x: Tensor, w: Tensor, inputs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx in the precision of x, or nothing where it is not asked for; dw; db)"""
    (batch, dim), width = z.shape, w.shape[1]
    dy, dx = z.new_empty(batch, dim), x.new_empty(batch if inputs else 0, width)
    dw, db = z.new_empty(dim, width), z.new_empty(dim)
    _by_outputs[(batch,)](dz, z, inverse, w, dy, dx, **_sizes(w), INPUTS=inputs)
    tiles = (triton.cdiv(dim, _TILE), triton.cdiv(width, _TILE))
    _by_linear[tiles](dy, x, dw, db, batch, width, dim, _TILE, _ROWS, num_warps=4)
    return dx, dw, db
