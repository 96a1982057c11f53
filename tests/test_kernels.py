"""The kernels in Triton's interpreter, on the CPU: every index and mask, against torch's own convolutions.

Needs the extra `kernels` (make test-scale has it). On a GPU, tests/test_fuse.py runs them compiled.
"""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch, torch.nn.functional as F
from scns import kernels

def shaped(*sizes):
    return torch.randn(sizes, generator=generator).contiguous(memory_format=torch.channels_last)

generator = torch.Generator().manual_seed(0)
inputs, outputs, size, side, stride = SHAPE
x, w = shaped(5, inputs, size, size).requires_grad_(), shaped(outputs, inputs, side, side).requires_grad_()
wanted = F.conv2d(x, w, stride=stride, padding=side // 2)
g = shaped(*wanted.shape)
by_x, by_w = torch.autograd.grad(wanted, (x, w), g)
mean, inverse = wanted.mean((0, 2, 3)), (wanted.var((0, 2, 3), correction=0) + 0.25).rsqrt()
var = wanted.var((0, 2, 3))
y, dx, dw = (torch.full_like(each, torch.nan, memory_format=torch.channels_last) for each in (wanted, x, w))
with torch.no_grad():
    found = [*kernels.convolve(x, w, y, stride, 0.25), y]
    kernels.by_weights(g, x, dw, stride)
    if inputs > 3:
        kernels.by_inputs(g, w, dx, stride)
pairs = [*zip(found, (mean, inverse, var, wanted)), (dw, by_w)] + [(dx, by_x)] * (inputs > 3)
for one, other in pairs:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.scale
@pytest.mark.parametrize(
    "shape",
    [
        (3, 16, 8, 3, 1),
        (16, 16, 8, 3, 1),
        (32, 32, 7, 3, 1),
        (64, 64, 4, 3, 1),
        (16, 32, 8, 3, 2),
        (32, 64, 8, 3, 2),
        (16, 32, 8, 1, 2),
        (32, 64, 8, 1, 2),
        (64, 16, 5, 1, 1),
    ],
    ids=str,
)
def test_every_index_and_mask(shape: tuple[int, ...]) -> None:
    pytest.importorskip("triton", reason="the extra 'kernels' is not installed")
    words = [sys.executable, "-c", f"SHAPE = {shape}\n{SCRIPT}"]
    done = subprocess.run(words, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
