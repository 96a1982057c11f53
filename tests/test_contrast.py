"""`scns.InfoNCE` is the loop of examples/own_loop.py in three lines: the same loss, memory, draws, and a resumption."""

import copy
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional
import torch.nn.functional as F
from torch import Tensor, nn

import scns
from scns import functional

SAMPLES, WIDTH = 400, 8


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(SAMPLES) % 5
    inputs = torch.randn(5, 16, generator=generator)[labels] + torch.randn(SAMPLES, 16, generator=generator)
    return inputs, labels


def batches(epochs: int = 2) -> Iterator[tuple[int, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for epoch in range(epochs):
        yield from ((epoch, rows) for rows in torch.randperm(SAMPLES, generator=generator).split(50))


def learner() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    encoder = nn.Linear(16, WIDTH)
    return encoder, torch.optim.SGD(encoder.parameters(), lr=0.5)


def step(loss: Tensor, optimizer: torch.optim.Optimizer) -> float:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def test_it_is_the_loop_of_its_parts() -> None:
    inputs, labels = data()
    encoder, optimizer = learner()
    contrast = scns.InfoNCE(labels, encoder(inputs), positives=4, negatives=16, seed=3)
    ours = []
    for epoch, rows in batches():
        if epoch > contrast.epoch:
            contrast.next_epoch()
        ours.append(step(contrast(encoder(inputs[rows]), rows), optimizer))

    encoder, optimizer = learner()
    memory = scns.FeatureTable(SAMPLES, WIDTH)
    memory.update(torch.arange(SAMPLES), encoder(inputs), distinct=True)
    sampler, positives = scns.SoftNegatives(memory.features, labels, scale=10, seed=3), scns.Positives(labels, seed=3)
    theirs = []
    for place, (epoch, rows) in enumerate(batches()):
        if place == 8:
            sampler.refresh_(memory.features)
        z = F.normalize(encoder(inputs[rows]), dim=1)
        drawn, log_weights = sampler.weights(rows, 16, epoch=epoch, correct=True)
        positive = positives.sample(rows, 4, epoch=epoch)
        theirs.append(step(memory.info_nce(z, positive, drawn, log_weights, temperature=0.1), optimizer))
        memory.update(rows, z, distinct=True)
    assert ours == pytest.approx(theirs, rel=1e-4) and ours[-1] < ours[0] - 1


@pytest.mark.gpu
def test_a_gpu_gives_the_loss_and_the_memory_of_a_cpu() -> None:
    inputs, labels = data()
    rows, z = torch.arange(50), torch.randn(50, 16, generator=torch.Generator().manual_seed(5))
    found = []
    for device in ("cpu", "cuda"):
        contrast = scns.InfoNCE(labels, inputs.to(device), clusters=20)
        leaf = z.to(device, copy=True).requires_grad_()
        loss = contrast(leaf, rows.to(device))
        loss.backward()
        contrast.next_epoch()
        assert contrast.proposal.device.type == device and leaf.grad is not None
        found.append((loss.detach().cpu(), leaf.grad.cpu(), contrast.memory.features.cpu()))
    for one, other in zip(*found, strict=True):  # draws differ where a product is rounded in another way
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.002)


def two_processes(rank: int, folder: str) -> None:
    """One of two processes that train on halves of each batch, as the docstring of InfoNCE says."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    inputs, labels = data()
    encoder, optimizer = learner()
    contrast = scns.InfoNCE(labels, encoder(inputs), negatives=16)
    shared, losses = nn.parallel.DistributedDataParallel(encoder), []
    for epoch, rows in batches():
        if epoch > contrast.epoch:
            contrast.next_epoch()
        own = rows[rank::2]
        z = torch.cat(torch.distributed.nn.functional.all_gather(shared(inputs[own])))
        every = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(every, own)
        losses.append(step(contrast(z, torch.cat(every)), optimizer))
    contrast.next_epoch()
    torch.save((losses, contrast.memory.features), f"{folder}/{rank}.pt")
    dist.destroy_process_group()
    os._exit(0)  # what is left of DDP at the end of a process may wait for the other one, for ever


def test_two_processes_that_gather_features_train_as_one(tmp_path: Path) -> None:
    inputs, labels = data()
    encoder, optimizer = learner()
    contrast, losses = scns.InfoNCE(labels, encoder(inputs), negatives=16), []
    for epoch, rows in batches():
        if epoch > contrast.epoch:
            contrast.next_epoch()
        losses.append(step(contrast(encoder(inputs[rows]), rows), optimizer))
    contrast.next_epoch()
    torch.multiprocessing.spawn(two_processes, (str(tmp_path),), nprocs=2)
    for rank in (0, 1):
        theirs, memory = torch.load(tmp_path / f"{rank}.pt")
        assert theirs == pytest.approx(losses, rel=1e-4)
        torch.testing.assert_close(memory, contrast.memory.features, rtol=1e-3, atol=1e-4)


def test_few_negatives_stand_for_all() -> None:
    inputs, labels = data()
    contrast = scns.InfoNCE(labels, inputs, negatives=64).eval()
    rows, z = torch.arange(SAMPLES), F.normalize(inputs, dim=1)
    negatives, log_weights = scns.AllNegatives(labels).weights(rows, 1)
    positive = z[contrast.positives.sample(rows, 64)]  # [n, 64, 16]
    logits = (z @ z.T).gather(1, negatives)
    whole = functional.info_nce(z, positive, logits=logits, log_weights=log_weights, temperature=0.1)
    assert contrast(inputs, rows).item() == pytest.approx(whole.item(), rel=0.01)


def test_resumed_in_the_middle_it_ends_as_uninterrupted() -> None:
    inputs, labels = data()
    encoder, optimizer = learner()
    contrast = scns.InfoNCE(labels, encoder(inputs), negatives=16)
    losses: list[float] = []
    kept = None
    for place, (epoch, rows) in enumerate(batches()):
        if epoch > contrast.epoch:
            contrast.next_epoch()
        if place == 11:
            kept = copy.deepcopy((encoder.state_dict(), contrast.state_dict()))
        losses.append(step(contrast(encoder(inputs[rows]), rows), optimizer))

    assert kept is not None
    encoder, optimizer = learner()
    again = scns.InfoNCE(labels, torch.ones(SAMPLES, WIDTH), negatives=16)
    encoder.load_state_dict(kept[0])
    nn.ModuleDict({"contrast": again}).load_state_dict({f"contrast.{key}": value for key, value in kept[1].items()})
    rest = [step(again(encoder(inputs[rows]), rows), optimizer) for _, rows in list(batches())[11:]]
    assert rest == losses[11:]
    for name, value in contrast.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_two_views_of_a_batch_are_one_memory() -> None:
    """Of one backward pass through both losses, which read the whole memory; and of one batch that names rows twice."""
    inputs, labels = data()
    rows = torch.arange(0, 100)
    views = [F.normalize(torch.randn(100, 16, generator=torch.Generator().manual_seed(n)), dim=1) for n in (0, 1)]
    mean = F.normalize(views[0] + views[1], dim=1)
    for together in (False, True):
        contrast = scns.InfoNCE(labels, inputs, negatives=300, momentum=0.0)
        before = contrast.memory.features.clone()
        leaves = [view.clone().requires_grad_() for view in views]
        if together:
            contrast(torch.cat(leaves), torch.cat([rows, rows])).backward()
        else:
            (contrast(leaves[0], rows) + contrast(leaves[1], rows)).backward()
        assert torch.equal(contrast.memory.features, before)
        contrast.next_epoch()
        assert torch.allclose(contrast.memory.features[rows], mean if together else views[1], atol=1e-6)
        assert torch.equal(contrast.memory.features[100:], before[100:])


def test_what_is_not_trained_on_is_not_remembered() -> None:
    inputs, labels = data()
    contrast = scns.InfoNCE(labels, inputs)
    before = contrast.memory.features.clone()
    rows, z = torch.arange(50), torch.randn(50, 16, requires_grad=True)
    contrast(z, rows)  # a batch that the loop skips
    with torch.no_grad():
        contrast(z, rows)
    contrast.eval()(z, rows).backward()
    contrast.train().next_epoch()
    contrast.next_epoch()
    assert torch.equal(contrast.memory.features, before) and contrast.epoch == 2


def test_a_step_that_overflows_is_not_the_end() -> None:
    inputs, labels = data()
    encoder, _ = learner()
    contrast = scns.InfoNCE(labels, encoder(inputs))
    contrast(encoder(inputs[:50]) * torch.inf, torch.arange(50)).backward()  # its gradients: not a step to take
    for _ in range(2):
        contrast.next_epoch()
        assert contrast(encoder(inputs), torch.arange(SAMPLES)).isfinite()


def test_made_where_features_are_computed_it_still_trains() -> None:
    inputs, labels = data()
    encoder, optimizer = learner()
    with torch.inference_mode():
        contrast = scns.InfoNCE(labels, encoder(inputs))
    for _ in range(2):
        step(contrast(encoder(inputs), torch.arange(SAMPLES)), optimizer)
        contrast.next_epoch()


def test_positives_are_no_more_than_the_largest_class_has_others() -> None:
    inputs, labels = data()
    assert scns.InfoNCE(labels, inputs).count == 64 and scns.InfoNCE(labels, inputs, positives=1).count == 1
    pairs = scns.InfoNCE(torch.arange(SAMPLES) // 2, inputs)
    assert pairs.count == 1 and pairs(inputs[:10], torch.arange(10)) > 0
    assert scns.InfoNCE(torch.arange(SAMPLES), inputs).count == 1  # everyone alone: its own positive


def test_it_takes_what_people_have() -> None:
    inputs, labels = data()
    contrast = scns.InfoNCE(labels.tolist(), inputs.numpy(), clusters=20, negatives=np.int64(8))
    z = torch.randn(10, 16, dtype=torch.bfloat16, requires_grad=True)  # not of unit length either
    contrast(z, torch.arange(10)).backward()
    assert z.grad is not None and z.grad.isfinite().all() and z.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"features": torch.full((SAMPLES, 16), torch.nan)}, "NaN"),
        ({"features": torch.randn(SAMPLES)}, r"Embeddings must be \[rows, dim\]"),
        ({"labels": torch.zeros(SAMPLES, dtype=torch.int64)}, "one class|one label"),
        ({"labels": torch.arange(7)}, "7 labels need 7 embeddings, but there are 400"),
        ({"negatives": 0}, "negatives=0 must be a whole number from 1 up"),
        ({"temperature": -1.0}, "temperature must be a finite number above 0"),
        ({"clusters": 2}, "clusters=2 must be a whole number from 5"),
    ],
)
def test_wrong_beginnings_get_a_sentence(change: dict[str, object], sentence: str) -> None:
    inputs, labels = data()
    given = {"labels": labels, "features": inputs, **change}
    with pytest.raises(scns.InputError, match=sentence):
        scns.InfoNCE(given.pop("labels"), given.pop("features"), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("z", "rows", "sentence"),
    [
        (torch.randn(4, 9), torch.arange(4), r"z must be features \[batch, 16\], but it is \[4, 9\]"),
        ([1.0], torch.arange(4), "but it is list"),
        (
            torch.randn(4, 16),
            torch.arange(5),
            r"rows must be the numbers of 4 samples, int64 \[4\], but they are \[5\]",
        ),
        (torch.randn(4, 16), torch.arange(4) + SAMPLES, "0 to 399, but one is 403"),
        (torch.randn(4, 16), torch.rand(4), r"float32 \(4,\); convert them with .long\(\)"),
        (torch.randn(4, 16), [0, 1, 2, 3], "but they are list; use torch.as_tensor"),
        (torch.randn(0, 16), torch.arange(0), r"\[0, 16\]; skip empty batches"),
    ],
)
def test_wrong_batches_get_a_sentence(z: Tensor, rows: Tensor, sentence: str) -> None:
    inputs, labels = data()
    with pytest.raises(scns.InputError, match=sentence):
        scns.InfoNCE(labels, inputs)(z, rows)


def test_the_temperature_may_be_learnt() -> None:
    inputs, labels = data()
    temperature = nn.Parameter(torch.tensor(0.1))
    contrast = scns.InfoNCE(labels, inputs, temperature=temperature)  # type: ignore[arg-type]
    contrast(inputs[:9].clone().requires_grad_(), torch.arange(9)).backward()
    assert temperature.grad is not None and float(temperature.grad) != 0
    assert "temperature=0.1" in repr(contrast)
