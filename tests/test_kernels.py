"""The kernels in Triton's interpreter, on the CPU: every index and mask, against the same written with torch.

Needs the extra `kernels` (make test-scale has it). On a GPU, tests/test_fuse.py and tests/test_methods_gpu.py run them
compiled.
"""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import scns
from scns import has

SCRIPT = """
import torch, torch.nn.functional as F
from scns.kernels import convolutions as kernels

def shaped(*sizes):
    return torch.randn(sizes, generator=generator).contiguous(memory_format=torch.channels_last)

kernels._CHUNKS = 2  # so that some have several goes
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
        (16, 16, 16, 3, 1),
        (32, 32, 7, 3, 1),
        (32, 32, 8, 3, 1),
        (16, 32, 6, 3, 1),
        (32, 16, 4, 3, 1),
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
    interpreted(f"SHAPE = {shape}\n{SCRIPT}")


LOOKUPS = """
import torch, torch.nn.functional as F
from scns import gathered
from scns.kernels import lookups
from scns.memory import FeatureTable

generator = torch.Generator().manual_seed(0)
sides, batch, count, dim, weighted = SHAPE
lookups._PROGRAMS = 64  # several chunks an anchor, as on a GPU
tables = [FeatureTable(50, dim, seed=seed) for seed in range(sides)]
given = [F.normalize(torch.randn(batch, dim, generator=generator), dim=1).requires_grad_() for _ in range(sides)]
rows = torch.randint(50, (batch, count), generator=generator, dtype=torch.int32)
log_weights = None
if weighted:
    log_weights = torch.randn(batch, count, generator=generator)
    log_weights[:, 0], log_weights[:, 1::3] = 0, -torch.inf
wanted = []
for z, table in zip(given, tables):
    scores = torch.einsum("bd,bmd->bm", z, table.features[rows.long()]) / 0.07
    scores = scores if log_weights is None else scores + log_weights
    wanted.append(-F.log_softmax(scores, dim=1)[:, 0])
found = gathered.info_nce([(z, table.features) for z, table in zip(given, tables)], rows, log_weights, 0.07)
upstream = torch.rand(sides, batch, generator=generator)
torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-4, atol=1e-4)
for one, other in zip(torch.autograd.grad((found * upstream).sum(), given),
                      torch.autograd.grad((torch.stack(wanted) * upstream).sum(), given)):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.scale
@pytest.mark.parametrize(
    "shape",
    [(1, 3, 1, 128, False), (2, 3, 17, 128, True), (2, 5, 17, 20, False), (2, 3, 301, 20, True), (1, 2, 301, 8, False)],
    ids=str,
)
def test_info_nce_of_gathered_rows(shape: tuple[int, ...]) -> None:
    interpreted(f"SHAPE = {shape}\n{LOOKUPS}")


HEADS = """
import torch
from torch import nn
from scns import memory, projection

torch.manual_seed(0)
batch, width, dim = SHAPE
linear, x = nn.Linear(width, dim), torch.randn(batch, width, requires_grad=True)
wanted, found = memory.unit_rows(linear(x)), projection.unit(x, linear)
dz, given = torch.randn(batch, dim), (x, linear.weight, linear.bias)
torch.testing.assert_close(found, wanted)
for one, other in zip(torch.autograd.grad(found, given, dz), torch.autograd.grad(wanted, given, dz)):
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
assert torch.autograd.grad(projection.unit(x.detach(), linear).sum(), linear.weight)[0].shape == (dim, width)
torch.testing.assert_close(projection.unit(x.bfloat16(), linear), memory.unit_rows(linear(x.bfloat16().float())))

one, other = memory.FeatureTable(2 * batch, dim, momentum=0.7), memory.FeatureTable(2 * batch, dim, momentum=0.7)
for _ in range(2):  # the first time none are filled, the second about half of them
    rows = torch.randperm(2 * batch)[:batch]
    with torch.no_grad():
        one.update(rows, linear(x) / linear(x).norm(dim=1, keepdim=True), distinct=True)
        projection.move(x, linear, rows, other.features, other.filled, 0.7)
    torch.testing.assert_close(other.features, one.features)
    assert torch.equal(other.filled, one.filled)
one.filled.fill_(True)
with torch.no_grad():
    one.update(rows, wanted, distinct=True)
    projection.move(x, linear, rows, other.features, None, 0.7)
torch.testing.assert_close(other.features, one.features)
"""


@pytest.mark.scale
@pytest.mark.parametrize("shape", [(64, 64, 128), (5, 20, 16), (17, 100, 32), (1, 3, 16)], ids=str)
def test_projection_to_unit_length(shape: tuple[int, ...]) -> None:
    interpreted(f"SHAPE = {shape}\n{HEADS}")


WEIGHING = """
import torch
import scns
from scns.kernels import weighing

weighing._OPTIONS["WIDE"] = 16  # several pieces a row
generator = torch.Generator().manual_seed(0)
labels = torch.arange(45) % 4
labels[3] = 9  # alone: among those behind it none is left out
for uniform, scale, among in ((0.1, 7.3, None), (0.0, 40.0, None), (0.1, 7.3, range(10, 45))):
    x = torch.randn(45, 8, generator=generator)
    sampler = scns.SoftNegatives(x, labels, scale=scale, uniform=uniform, among=among)
    anchors = torch.tensor([3, 44, 0, 17])
    scores = sampler.unit[sampler.pool.rank[anchors]] @ sampler.unit[: sampler.pool.count].T
    ends = sampler._added_up(scores, sampler.pool.start[anchors], sampler.pool.stop[anchors], anchors)
    again = torch.compile(sampler._added_up, fullgraph=True, backend="aot_eager")  # as in a step that is compiled
    assert torch.equal(again(scores, sampler.pool.start[anchors], sampler.pool.stop[anchors], anchors), ends)
    none = torch.zeros(4, 1, dtype=torch.int64)
    plain = sampler._weighed(anchors, lambda found, _: (found,))[0]
    found, wanted = (torch.diff(each, dim=1, prepend=none) for each in (ends, plain))
    assert (wanted == 0).any() and (wanted[0] == 0).any() == (among is None)
    assert int((found - wanted).abs().max()) <= 1, (found - wanted).abs().max()
    assert (found == wanted).double().mean() > 0.99
"""


@pytest.mark.scale
def test_integer_weights_of_soft_negatives() -> None:
    interpreted(WEIGHING)


def test_without_a_compiler_there_is_another_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Triton builds a launcher in C at first use; slim containers cannot."""
    (tmp_path / "gcc").touch(mode=0o755)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("sysconfig.get_path", lambda *words: str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not has.triton()  # nor headers
    (tmp_path / "Python.h").touch()
    assert has.triton()
    (tmp_path / "gcc").unlink()
    assert not has.triton()


def interpreted(script: str) -> None:
    pytest.importorskip("triton", reason="the extra 'kernels' is not installed")
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


_WRITTEN_BY_WHO_READ_IT = {"table"}  # of `heads._move`: a thread loads the numbers of a row that it stores


def test_no_kernel_reads_what_it_writes() -> None:
    """The warps of a program are not in step: one may have written what another is about to read."""
    checked = 0
    for file in sorted((Path(scns.__file__).parent / "kernels").glob("*.py")):
        for kernel in (node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)):
            given = {each.arg for each in kernel.args.args}
            used = {"load": set[str](), "store": set[str]()}
            for call in (node for node in ast.walk(kernel) if isinstance(node, ast.Call)):
                if isinstance(call.func, ast.Attribute) and call.func.attr in used:
                    used[call.func.attr] |= {_first_name(call.args[0])} & given
            both = (used["load"] & used["store"]) - _WRITTEN_BY_WHO_READ_IT
            assert not both, f"{file.name}, {kernel.name}: {both}"
            checked += bool(used["store"])
    assert checked > 10


def _first_name(pointer: ast.expr) -> str:
    """The tensor of `tensor + offset + ...`."""
    while isinstance(pointer, ast.BinOp):
        pointer = pointer.left
    return pointer.id if isinstance(pointer, ast.Name) else ""
