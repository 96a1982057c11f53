"""Our descent moves parameters as torch's own does, to the last bit, and starts without torch's compiler."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from engine_runs import recipe, teacher
from scns.sgd import SGD


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_ten_steps_are_those_of_torch(momentum: float, nesterov: bool) -> None:
    torch.manual_seed(0)
    start = [torch.randn(5, 3), torch.randn(7), torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)]
    ours, theirs = ([nn.Parameter(each.clone()) for each in start] for _ in range(2))
    own = SGD(ours, 0.1, momentum, 5e-4, nesterov)
    reference = torch.optim.SGD(theirs, torch.tensor(0.1), momentum, weight_decay=5e-4, nesterov=nesterov, fused=True)
    for step in range(10):
        own.lr.fill_(0.1 / (step + 1))
        reference.param_groups[0]["lr"].fill_(0.1 / (step + 1))
        own.zero_grad()
        assert all(each.grad is None for each in ours)
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        own.step()
        reference.step()
        for one, other in zip(ours, theirs, strict=True):
            assert torch.equal(one, other)


def test_what_has_no_gradient_stays() -> None:
    moved, left, frozen = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2), False)
    descent = SGD([moved, left, frozen], 0.5, 0.9, 0.1, False)
    moved.grad = torch.ones(2)
    descent.step()
    assert torch.equal(moved, torch.full((2,), 1 - 0.5 * 1.1)) and torch.equal(left, torch.ones(2))
    assert len(descent.parameters) == 2 and torch.equal(descent.velocities[1], torch.zeros(2))


def test_training_starts_without_the_compiler(tmp_path: Path) -> None:
    wanted = recipe("kld", teacher=str(teacher()), epochs=1)
    (tmp_path / "recipe.json").write_text(json.dumps(wanted.as_dict()))
    code = (
        "import sys; from scns.recipes import load_recipe; from scns.train import fit;"
        "assert fit(load_recipe('recipe.json'), 'run').teacher;"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
