"""Convolutions for few channels; cuDNN's are made for more than 16 to 64 (bench/convs.py).

Activations lie in memory as [images, height, width, channels], weights as [outputs, taps, inputs]: torch's
channels_last. Products are of bfloat16 numbers, sums of float32.
"""

# mypy: disable-error-code="no-untyped-def"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr


@triton.jit
def _taken(
    x, image, top, left, inside, step,
    H: constexpr, W: constexpr, C: constexpr, SIDE: constexpr, TAPS: constexpr, K: constexpr,
):  # fmt: skip
    """[pixels, K]: the inputs under `TAPS` taps of the kernel from step * TAPS on; zero outside of the image."""
    k, tap = tl.arange(0, K), tl.arange(0, K) // C
    if TAPS <= SIDE:  # taps of one row, which lie side by side in memory
        row, first = top + step * TAPS // SIDE, left + step * TAPS % SIDE
        column = first[:, None] + tap[None, :]
        inside = (inside & (row >= 0) & (row < H))[:, None] & (column >= 0) & (column < W) & (tap < TAPS)[None, :]
        place = (((image * H + row) * W + first) * C)[:, None] + k[None, :]
    else:  # all of them
        rows, column = top[:, None] + (tap // SIDE)[None, :], left[:, None] + (tap % SIDE)[None, :]
        inside = inside[:, None] & (rows >= 0) & (rows < H) & (column >= 0) & (column < W) & (tap < TAPS)[None, :]
        place = ((image[:, None] * H + rows) * W + column) * C + (k % C)[None, :]
    return tl.load(x + place, mask=inside, other=0.0)


@triton.jit
def _convolve(
    x, w, y, sums, pixels,
    H: constexpr, W: constexpr, HO: constexpr, WO: constexpr, CI: constexpr, CO: constexpr, SIDE: constexpr,
    STRIDE: constexpr, BACK: constexpr, SUMS: constexpr, TAPS: constexpr, K: constexpr, ROWS: constexpr,
):  # fmt: skip
    """`ROWS` pixels of a convolution. BACK: of its gradient by the inputs (w is [CI, taps, CO], taken backwards)."""
    part = tl.program_id(0)
    m, n, k = part * ROWS + tl.arange(0, ROWS), tl.arange(0, CO), tl.arange(0, K)
    inside = m < pixels
    image, top, left = m // (HO * WO), m // WO % HO * STRIDE - SIDE // 2, m % WO * STRIDE - SIDE // 2
    EVERY: tl.constexpr = SIDE * SIDE
    total = tl.zeros((ROWS, CO), dtype=tl.float32)
    for step in range(0, EVERY // TAPS):
        tile = _taken(x, image, top, left, inside, step, H, W, CI, SIDE, TAPS, K)
        if BACK:
            place = ((k * EVERY + EVERY - 1 - step) * CO)[:, None] + n[None, :]
        else:
            place = (n * (EVERY * CI))[None, :] + (step * (TAPS * CI) + k)[:, None]
        weights = tl.load(w + place, mask=(k < TAPS * CI)[:, None] & (n >= 0)[None, :], other=0.0)
        total = tl.dot(tile, weights.to(tile.dtype), total)
    rounded = total.to(y.dtype.element_ty)
    tl.store(y + m[:, None] * CO + n[None, :], rounded, mask=inside[:, None] & (n >= 0)[None, :])
    if SUMS:  # of what was stored; pixels beyond the last are zeros
        again = rounded.to(tl.float32)
        tl.store(sums + part * (2 * CO) + n, tl.sum(again, 0))
        tl.store(sums + part * (2 * CO) + CO + n, tl.sum(again * again, 0))


@triton.jit
def _row_taken(x, image, row, first, inside, H: constexpr, W: constexpr, C: constexpr, K: constexpr):
    """[pairs, K]: K / C pixels of a row of the image from `first` on; zero outside of it."""
    k = tl.arange(0, K)
    column = first[:, None] + (k // C)[None, :]
    inside = (inside & (row >= 0) & (row < H))[:, None] & (column >= 0) & (column < W)
    return tl.load(x + (((image * H + row) * W + first) * C)[:, None] + k[None, :], mask=inside, other=0.0)


@triton.jit
def _convolve_pairs(
    x, w, y, sums, pairs, H: constexpr, W: constexpr, CI: constexpr, CO: constexpr, BACK: constexpr, SUMS: constexpr,
    ROWS: constexpr,
):  # fmt: skip
    """`_convolve` of 3 x 3 taps for `ROWS` pairs of pixels that lie side by side: 3 x 4 pixels are read, not 2 x 3 x 3.

    A pair's products with the weights of a row of taps are one with a matrix [4 CI, 2 CO] that has them twice.
    """
    part = tl.program_id(0)
    m, n, k = part * ROWS + tl.arange(0, ROWS), tl.arange(0, 2 * CO), tl.arange(0, 4 * CI)
    inside = m < pairs
    image, top, left = m // (H * (W // 2)), m // (W // 2) % H - 1, m % (W // 2) * 2 - 1
    tap = (k // CI)[:, None] - (n // CO)[None, :]
    total = tl.zeros((ROWS, 2 * CO), dtype=tl.float32)
    for step in range(0, 3):
        tile = _row_taken(x, image, top + step, left, inside, H, W, CI, 4 * CI)
        if BACK:
            place = ((k % CI)[:, None] * 9 + 8 - (step * 3 + tap)) * CO + (n % CO)[None, :]
        else:
            place = ((n % CO)[None, :] * 9 + step * 3 + tap) * CI + (k % CI)[:, None]
        weights = tl.load(w + place, mask=(tap >= 0) & (tap < 3), other=0.0)
        total = tl.dot(tile, weights.to(tile.dtype), total)
    rounded = total.to(y.dtype.element_ty)
    tl.store(y + m[:, None] * (2 * CO) + n[None, :], rounded, mask=inside[:, None] & (n >= 0)[None, :])
    if SUMS:  # of what was stored; pairs beyond the last are zeros
        again, c = rounded.to(tl.float32), tl.arange(0, CO)
        tl.store(sums + part * (2 * CO) + c, tl.sum(tl.reshape(tl.sum(again, 0), (2, CO)), 0))
        tl.store(sums + part * (2 * CO) + CO + c, tl.sum(tl.reshape(tl.sum(again * again, 0), (2, CO)), 0))


@triton.jit
def _by_weights_pairs(
    x, g, parts, pairs, chunk, H: constexpr, W: constexpr, CI: constexpr, CO: constexpr, ROWS: constexpr
):  # fmt: skip
    """The gradient by the weights under a row of taps, of `chunk` pairs: a part for each pixel of a pair."""
    part, step, n, k = tl.program_id(0), tl.program_id(1), tl.arange(0, 2 * CO), tl.arange(0, 4 * CI)
    total = tl.zeros((4 * CI, 2 * CO), dtype=tl.float32)
    for start in range(0, chunk, ROWS):
        m = part * chunk + start + tl.arange(0, ROWS)
        inside = m < pairs
        image, row, left = m // (H * (W // 2)), m // (W // 2) % H - 1 + step, m % (W // 2) * 2 - 1
        gradient = tl.load(g + m[:, None] * (2 * CO) + n[None, :], mask=inside[:, None] & (n >= 0)[None, :], other=0.0)
        tile = _row_taken(x, image, row, left, inside, H, W, CI, 4 * CI)
        total = tl.dot(tl.trans(tile), gradient, total)
    tap, pixel = (k // CI)[:, None] - (n // CO)[None, :], 2 * part + (n // CO)[None, :]
    place = pixel * (9 * CI * CO) + ((n % CO)[None, :] * 9 + step * 3 + tap) * CI + (k % CI)[:, None]
    tl.store(parts + place, total, mask=(tap >= 0) & (tap < 3))


@triton.jit
def _back_by_two(
    g, w, dx, pixels, HO: constexpr, WO: constexpr, CI: constexpr, CO: constexpr, SIDE: constexpr, ROWS: constexpr
):  # fmt: skip
    """The gradient by the inputs at stride 2: `ROWS` positions of `g` give four times as many of the inputs."""
    m, n = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, CI)
    inside, image, y, x = m < pixels, m // (HO * WO), m // WO % HO, m % WO
    weight = w + (tl.arange(0, CO) * (SIDE * SIDE * CI))[:, None] + n[None, :]
    g00 = _taken(g, image, y, x, inside, 0, HO, WO, CO, 1, 1, CO)
    if SIDE == 3:  # an input at an even place is under the middle tap alone, others under two or four
        g01 = _taken(g, image, y, x + 1, inside, 0, HO, WO, CO, 1, 1, CO)
        g10 = _taken(g, image, y + 1, x, inside, 0, HO, WO, CO, 1, 1, CO)
        g11 = _taken(g, image, y + 1, x + 1, inside, 0, HO, WO, CO, 1, 1, CO)
        w0 = tl.load(weight).to(g00.dtype)
        w1 = tl.load(weight + CI).to(g00.dtype)
        w2 = tl.load(weight + 2 * CI).to(g00.dtype)
        w3 = tl.load(weight + 3 * CI).to(g00.dtype)
        w4 = tl.load(weight + 4 * CI).to(g00.dtype)
        w5 = tl.load(weight + 5 * CI).to(g00.dtype)
        w6 = tl.load(weight + 6 * CI).to(g00.dtype)
        w7 = tl.load(weight + 7 * CI).to(g00.dtype)
        w8 = tl.load(weight + 8 * CI).to(g00.dtype)
        e00 = tl.dot(g00, w4)
        e01 = tl.dot(g01, w3, tl.dot(g00, w5))
        e10 = tl.dot(g10, w1, tl.dot(g00, w7))
        e11 = tl.dot(g11, w0, tl.dot(g10, w2, tl.dot(g01, w6, tl.dot(g00, w8))))
    else:
        e00 = tl.dot(g00, tl.load(weight).to(g00.dtype))
        e01 = tl.zeros((ROWS, CI), dtype=tl.float32)
        e10, e11 = e01, e01
    place = dx + (((image * (2 * HO) + 2 * y) * (2 * WO) + 2 * x) * CI)[:, None] + n[None, :]
    inside = inside[:, None] & (n >= 0)[None, :]
    tl.store(place, e00.to(dx.dtype.element_ty), mask=inside)
    tl.store(place + CI, e01.to(dx.dtype.element_ty), mask=inside)
    tl.store(place + 2 * WO * CI, e10.to(dx.dtype.element_ty), mask=inside)
    tl.store(place + (2 * WO + 1) * CI, e11.to(dx.dtype.element_ty), mask=inside)


@triton.jit
def _by_weights(
    x, g, parts, pixels, chunk, H: constexpr, W: constexpr, HO: constexpr, WO: constexpr, CI: constexpr, CO: constexpr,
    SIDE: constexpr, STRIDE: constexpr, TAPS: constexpr, K: constexpr, ROWS: constexpr,
):  # fmt: skip
    """The gradient by the weights under `TAPS` taps, of `chunk` pixels."""
    part, step, n, k = tl.program_id(0), tl.program_id(1), tl.arange(0, CO), tl.arange(0, K)
    total = tl.zeros((K, CO), dtype=tl.float32)
    for start in range(0, chunk, ROWS):
        m = part * chunk + start + tl.arange(0, ROWS)
        inside = m < pixels
        image, top, left = m // (HO * WO), m // WO % HO * STRIDE - SIDE // 2, m % WO * STRIDE - SIDE // 2
        gradient = tl.load(g + m[:, None] * CO + n[None, :], mask=inside[:, None] & (n >= 0)[None, :], other=0.0)
        tile = _taken(x, image, top, left, inside, step, H, W, CI, SIDE, TAPS, K)
        total = tl.dot(tl.trans(tile), gradient, total)
    EVERY: tl.constexpr = SIDE * SIDE
    place = (n * (EVERY * CI))[None, :] + (step * (TAPS * CI) + k)[:, None]
    inside = (k < TAPS * CI)[:, None] & (n >= 0)[None, :]
    tl.store(parts + part * (EVERY * CI * CO) + place, total, mask=inside)


@triton.jit(do_not_specialize=["count"])
def _total(parts, total, count, SIZE: constexpr, WIDE: constexpr, DEEP: constexpr):
    """[SIZE]: the sum of `count` parts."""
    e = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    found = tl.zeros((WIDE,), dtype=tl.float32)
    for start in range(0, count, DEEP):
        part = start + tl.arange(0, DEEP)
        inside = (part < count)[:, None] & (e < SIZE)[None, :]
        found += tl.sum(tl.load(parts + part[:, None] * SIZE + e[None, :], mask=inside, other=0.0), 0)
    tl.store(total + e, found, mask=e < SIZE)


@triton.jit(do_not_specialize=["count", "pixels", "eps"])
def _statistics(sums, mean, inverse, var, count, pixels, eps, CO: constexpr, WIDE: constexpr, DEEP: constexpr):
    """What `convolve` returns, from `count` parts of sums and sums of squares, `WIDE` channels of them."""
    n = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    first, second = tl.zeros((WIDE,), dtype=tl.float32), tl.zeros((WIDE,), dtype=tl.float32)
    for start in range(0, count, DEEP):
        part = start + tl.arange(0, DEEP)
        place, inside = sums + part[:, None] * (2 * CO) + n[None, :], (part < count)[:, None] & (n >= 0)[None, :]
        first += tl.sum(tl.load(place, mask=inside, other=0.0), 0)
        second += tl.sum(tl.load(place + CO, mask=inside, other=0.0), 0)
    middle = first / pixels
    tl.store(mean + n, middle)
    biased = tl.maximum(second / pixels - middle * middle, 0.0)
    tl.store(inverse + n, 1 / tl.sqrt(biased + eps))
    tl.store(var + n, biased * (pixels / tl.maximum(pixels - 1, 1)))


def _shapes(x: Tensor, y: Tensor, side: int, stride: int) -> dict[str, Any]:
    """Of a convolution from x to y."""
    given = dict(H=x.shape[2], W=x.shape[3], HO=y.shape[2], WO=y.shape[3], CI=x.shape[1], CO=y.shape[1])
    return {**given, "SIDE": side, "STRIDE": stride}


# channels -> pixels at a time, warps, stages: of those tried, good for one student alone and for many that share a GPU
_TILES = {16: (128, 4, 1), 32: (128, 4, 1), 64: (64, 4, 4)}
# The same of pairs of pixels, and the channels that they are for. With 32, larger tiles of single pixels are as good
# for many students and worse for one.
_PAIRS, _PAIRED = (128, 4, 1), {16, 32}
_CHUNKS = 44  # of a batch's pairs, for each row of taps: 132 programs, one for each processor of an H200


def _paired(x: Tensor, w: Tensor, stride: int) -> bool:
    """Whether two neighbours are computed at once: where what they share is worth more than products with zeros."""
    return w.shape[2] == 3 and stride == 1 and x.shape[3] % 2 == 0 and {*w.shape[:2]} <= _PAIRED


def convolve(x: Tensor, w: Tensor, y: Tensor, stride: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Write the convolution to y; of each channel of it (mean, 1 / sqrt(variance + eps), unbiased variance)."""
    pixels, (outputs, inputs, side) = y.numel() // y.shape[1], w.shape[:3]
    taps = side * side if inputs < 16 else 1  # a product needs 16 numbers to sum over
    paired = _paired(x, w, stride)
    if paired:
        rows, warps, stages = _PAIRS
        count = triton.cdiv(pixels // 2, rows)
    else:
        rows, warps, stages = _TILES[outputs] if taps == 1 else (128, 4, 4)
        count = triton.cdiv(pixels, rows)
    sums = torch.empty(count, 2, outputs, device=x.device)
    mean, inverse, var = (torch.empty(outputs, device=x.device) for _ in range(3))
    if paired:
        sizes = dict(H=x.shape[2], W=x.shape[3], CI=inputs, CO=outputs, BACK=0, SUMS=1, ROWS=rows)
        _convolve_pairs[(count,)](x, w, y, sums, pixels // 2, **sizes, num_warps=warps, num_stages=stages)
    else:
        _convolve[(count,)](
            x, w, y, sums, pixels, **_shapes(x, y, side, stride), BACK=0, SUMS=1, TAPS=taps,
            K=triton.next_power_of_2(taps * inputs), ROWS=rows, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    sizes = dict(CO=outputs, WIDE=16, DEEP=512)
    _statistics[(outputs // 16,)](sums, mean, inverse, var, count, pixels, eps, **sizes, num_warps=8)
    return mean, inverse, var


def by_inputs(g: Tensor, w: Tensor, dx: Tensor, stride: int) -> None:
    """Write the gradient by the inputs to dx."""
    inputs, outputs, side = dx.shape[1], g.shape[1], w.shape[2]
    pixels = g.shape[0] * g.shape[2] * g.shape[3]
    if stride == 2:
        rows = 128 if max(inputs, outputs) < 64 else 64  # four times as many results have to stay in registers
        sizes = dict(HO=g.shape[2], WO=g.shape[3], CI=inputs, CO=outputs, SIDE=side, ROWS=rows)
        _back_by_two[(triton.cdiv(pixels, rows),)](g, w, dx, pixels, **sizes, num_warps=4)
        return
    if _paired(g, w, stride):
        rows, warps, stages = _PAIRS
        sizes = dict(H=g.shape[2], W=g.shape[3], CI=outputs, CO=inputs, BACK=1, SUMS=0, ROWS=rows)
        grid = (triton.cdiv(pixels // 2, rows),)
        _convolve_pairs[grid](g, w, dx, dx, pixels // 2, **sizes, num_warps=warps, num_stages=stages)
        return
    rows, warps, stages = _TILES[max(inputs, outputs)]
    _convolve[(triton.cdiv(pixels, rows),)](
        g, w, dx, dx, pixels, **_shapes(g, dx, side, 1), BACK=1, SUMS=0, TAPS=1, K=outputs, ROWS=rows,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip


def by_weights(g: Tensor, x: Tensor, dw: Tensor, stride: int) -> None:
    """Write the gradient by the weights to dw."""
    outputs, inputs, side = dw.shape[:3]
    pixels = g.shape[0] * g.shape[2] * g.shape[3]
    if _paired(x, dw, stride):
        rows = 128 if inputs == 16 else 64  # what registers hold beside the product
        chunk = rows * triton.cdiv(pixels // 2, rows * _CHUNKS)
        count = triton.cdiv(pixels // 2, chunk)
        parts = torch.empty(2 * count, dw.numel(), device=dw.device)
        sizes = dict(H=x.shape[2], W=x.shape[3], CI=inputs, CO=outputs, ROWS=rows)
        _by_weights_pairs[(count, 3)](x, g, parts, pixels // 2, chunk, **sizes, num_warps=4, num_stages=3)
    else:
        taps = side * side if inputs < 16 else side if inputs < 64 else 1
        rows, groups = 64, side * side // taps
        # Programs for each of a hundred or more processors: three, or one where their parts are large to write and add.
        chunk = rows * triton.cdiv(pixels, rows * max(1, (396 if inputs <= 16 else 132) // groups))
        count = triton.cdiv(pixels, chunk)
        parts = torch.empty(count, dw.numel(), device=dw.device)
        _by_weights[(count, groups)](
            x, g, parts, pixels, chunk, **_shapes(x, g, side, stride), TAPS=taps,
            K=triton.next_power_of_2(taps * inputs), ROWS=rows, num_warps=4, num_stages=3,
        )  # fmt: skip
    deep = min(128, triton.next_power_of_2(len(parts)))  # all parts in one go, where registers hold them
    _total[(triton.cdiv(dw.numel(), 32),)](parts, dw, len(parts), SIZE=dw.numel(), WIDE=32, DEEP=deep, num_warps=4)
