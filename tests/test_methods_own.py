"""The paper's own methods, against the paper's numbers, explicit loops, and themselves saved, compiled and halved."""

import copy
import importlib
import json
import math
import re
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from method_steps import Run, make, pictures, run_steps, setting
from scns import draws, functional, methods
from scns.errors import InputError
from scns.features import Batch, Features, Shapes
from scns.methods import Method, Setting, infonce
from scns.methods.cka import alignments
from scns.methods.crd import CRD
from scns.methods.pc import correlations
from scns.neighbors import NeighborTable
from scns.sampling import Negatives

PAPER = json.loads((Path(__file__).parent / "golden" / "paper.json").read_text())
OWN = ["ce", "infonce", "ce-lm", "crd-lm", "pc", "cka", "oim", "scns"]
SMALL: dict[str, dict[str, object]] = {  # arguments that make a method quick, with all its terms on
    "infonce": {"negatives": 64, "lm_weight": 0.5, "sampler": "class", "positive": "instance"},
    "crd-lm": {"negatives": 32},
    "pc": {"negatives": 2},
    "cka": {"sampler": "class"},
    "oim": {"queue": 32},
    "scns": {"negatives": 64, "k": 20},
}
LABELS = torch.arange(60) % 5
NEAREST = ("class", "instance", "mixed")
WIDTH, TEACHER_WIDTH, CLASSES = 6, 9, 5


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def synthetic(*, teacher: bool = True, labels: Tensor = LABELS) -> Setting:
    return Setting(
        labels=labels,
        student=Shapes(CLASSES, WIDTH),
        teacher=Shapes(CLASSES, TEACHER_WIDTH) if teacher else None,
        embeddings=lambda: numbers(len(labels), 7, seed=5).float(),
        class_vectors=lambda: numbers(CLASSES, 7, seed=6).float(),
        seed=3,
    )


def built(name: str, *, teacher: bool = True, labels: Tensor = LABELS, **arguments: object) -> Method:
    """A method in float64, with tables that hold something; `infonce` has the paper's values for what is not given."""
    torch.manual_seed(0)
    preset = "t1-infonce" if name == "infonce" else None
    method = methods.build(name, synthetic(teacher=teacher, labels=labels), preset=preset, **arguments).double()
    if hasattr(method, "fill"):
        every = torch.arange(len(labels))
        method.fill(every, *features(len(labels), teacher=teacher, seed=11))
    return method


def features(rows: int, *, teacher: bool = True, seed: int = 1) -> tuple[Features, Features | None]:
    ours = Features(numbers(rows, CLASSES, seed=seed), numbers(rows, WIDTH, seed=seed + 1).requires_grad_())
    theirs = Features(numbers(rows, CLASSES, seed=seed + 2), numbers(rows, TEACHER_WIDTH, seed=seed + 3))
    return ours, theirs if teacher else None


def batch_of(method: Method, anchors: Tensor, labels: Tensor = LABELS, epoch: int = 2) -> Batch:
    index, now = anchors, torch.tensor(epoch)
    if method.companions:
        index = torch.cat([anchors, method.companion_index(anchors, now).flatten()])
    return Batch(torch.zeros(len(index), 0), labels[index], index, torch.zeros_like(index), now, len(anchors))


ANCHORS = torch.tensor([7, 12, 0, 33, 41, 58])


def step(name: str, **arguments: object) -> tuple[Method, Batch, Features, Features | None, dict[str, Tensor]]:
    method = built(name, **arguments)
    batch = batch_of(method, ANCHORS)
    ours, theirs = features(len(batch.index), teacher=bool(arguments.get("teacher", True)))
    return method, batch, ours, theirs, method(batch, ours, theirs)


# ---- cross-entropy ----


def test_ce_is_the_cross_entropy_of_the_anchors() -> None:
    _, batch, ours, _, losses = step("ce", teacher=False)
    expected = F.cross_entropy(ours.logits, batch.labels)
    assert losses.keys() == {"ce"} and torch.allclose(losses["ce"], expected, rtol=1e-12)


@pytest.mark.parametrize("teacher", [False, True])
def test_infonce_without_weights_trains_like_plain_cross_entropy_bit_for_bit(teacher: bool) -> None:
    which = "resnet8" if teacher else None
    plain = run_steps("ce", 3, teacher=which)
    other = run_steps("infonce", 3, teacher=which, weight=0.0, lm_weight=0.0, negatives=16)
    assert plain.losses == other.losses
    for key, value in plain.student.state_dict().items():
        assert torch.equal(value, other.student.state_dict()[key]), key


# ---- InfoNCE ----


class Given(Negatives):
    """A sampler that hands out the rows it was given."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = rows

    def weights(self, anchors, num, *, epoch=0, correct=False):
        return self.rows, torch.zeros(self.rows.shape)


class GivenNu(nn.Module):
    def __init__(self, nu: Tensor) -> None:
        super().__init__()
        self.nu = nu

    def forward(self, uniform: Tensor) -> Tensor:
        assert uniform.shape == self.nu.shape
        return self.nu


def golden_infonce(**arguments: object) -> dict[str, Tensor]:
    """The method on the paper's numbers: samples 0 and 1 are anchors, 2 and 3 their positives, the rest negatives."""
    case = PAPER["latent_mixup_pseudo_negatives"]["inputs"]
    anchor, positive, negatives = (
        torch.tensor(case[key], dtype=torch.float64) for key in ("anchor", "positive", "negatives")
    )
    labels = torch.tensor([0, 1, 0, 1, *range(2, 8)])
    place = Setting(labels, student=Shapes(8, 4))
    given = {"preset": "t1-infonce", "dim": 4, "tau": case["tau"], "ce": 0.0, **arguments}
    method = methods.build("infonce", place, **given).double()
    with torch.no_grad():
        method.student_head.linear.weight.copy_(torch.eye(4))
        method.student_head.linear.bias.zero_()
        method.student_table.features.copy_(torch.cat([anchor, positive, negatives.flatten(0, 1)]))
    method.sampler = Given(torch.arange(4, 10).view(2, 3))
    method.quantile = GivenNu(torch.tensor(case["nu"], dtype=torch.float64))
    index = torch.arange(2)
    batch = Batch(torch.zeros(2, 0), labels[:2], index, index, torch.tensor(0), 2)
    return method(batch, Features(torch.zeros(2, 8), anchor), None)


def test_infonce_gives_the_papers_numbers() -> None:
    losses = golden_infonce()
    assert losses["infonce"].item() == pytest.approx(PAPER["infonce"]["expected"]["mean"], rel=1e-9)


def test_the_two_meanings_of_lm_give_the_papers_numbers() -> None:
    expected = PAPER["latent_mixup_pseudo_negatives"]["expected"]
    only = golden_infonce(weight=0.0, lm_weight=1.0)
    both = golden_infonce(weight=1.0, lm_weight=PAPER["latent_mixup_pseudo_negatives"]["inputs"]["alpha"])
    assert only.keys() == {"lm"} and both.keys() == {"infonce", "lm"}
    assert only["lm"].item() == pytest.approx(sum(expected["infonce_minus_LM_only"]) / 2, rel=1e-9)
    assert sum(both.values()).item() == pytest.approx(sum(expected["infonce_plus_LM"]) / 2, rel=1e-9)


def loop_info_nce(z: Tensor, positive: Tensor, negatives: list[list[Tensor]], tau: float = 0.07) -> Tensor:
    """-log(e^(z.p/tau) / (e^(z.p/tau) + sum over a list of negatives, repeats included)), anchor by anchor."""
    total = torch.zeros((), dtype=z.dtype)
    for one, own, others in zip(z, positive, negatives, strict=True):
        attraction = torch.exp(one @ own / tau)
        total = total - torch.log(attraction / (attraction + sum(torch.exp(one @ other / tau) for other in others)))
    return total / len(z)


def repeated(method: Method, table: Tensor, anchors: Tensor) -> list[list[Tensor]]:
    """Every anchor's negatives out of a table, each as often as its weight says."""
    rows, log_weights = method.sampler.weights(anchors, method.negatives, epoch=torch.tensor(2))
    counts = log_weights.exp().round().int().tolist()
    return [
        [table[j] for j, count in zip(row, many, strict=True) for _ in range(count)]
        for row, many in zip(rows.tolist(), counts, strict=True)
    ]


@pytest.mark.parametrize("several", [1, 3])
@pytest.mark.parametrize("sampler", ["uniform", "class", "instance", "mixed", "soft", "all"])
def test_infonce_is_the_sum_over_repeated_negatives_of_both_tables(sampler: str, several: int) -> None:
    given = {"sampler": sampler, "negatives": 25, "weight": 0.65, "positives": several}
    given |= {"k": 3} if sampler in NEAREST else {}
    method, batch, ours, theirs, losses = step("infonce", **given)
    assert theirs is not None
    z_student, z_teacher = method.student_head(ours.embedding), method.teacher_head(theirs.embedding)
    positives = method.positives.sample(ANCHORS, several, epoch=batch.epoch)
    expected = torch.zeros((), dtype=torch.float64)
    for z, table in ((z_student, method.teacher_table.features), (z_teacher, method.student_table.features)):
        negatives = repeated(method, table, ANCHORS)
        if sampler != "all":
            assert {len(each) for each in negatives} == {25}
        each = [loop_info_nce(z, table[positives[:, p]], negatives) for p in range(several)]
        expected = expected + torch.stack(each).mean()
    torch.testing.assert_close(losses["infonce"], 0.65 * expected, rtol=1e-7, atol=0)  # log counts are float32
    assert losses["infonce"].dtype == torch.float64


def test_several_positives_are_others_of_the_class() -> None:
    with pytest.raises(InputError, match="positives=2 are others of the class, so give positive=class too"):
        built("infonce", positives=2, positive="instance")
    with pytest.raises(InputError, match="positives must be a finite number above 0; got 0"):
        built("infonce", positives=0)


@pytest.mark.parametrize("several", [1, 3])
@pytest.mark.parametrize("lm", [False, True])
def test_all_neighbours_once_and_all_negatives_and_the_full_softmax_are_one(lm: bool, several: int) -> None:
    weights = {"lm_weight": 0.7, "beta": math.inf} if lm else {}
    weights["positives"] = several
    many = int((LABELS != 0).sum())
    every = step("infonce", sampler="all", **weights)
    drawn = step("infonce", sampler="instance", k=many, negatives=many, scale=0.0, **weights)
    table, z = every[0].teacher_table.features, every[0].student_head(every[2].embedding)
    similarity = z @ table.T / 0.07
    one_of = LABELS[ANCHORS, None] != LABELS
    positive = similarity.gather(1, every[0].positives.sample(ANCHORS, several, epoch=torch.tensor(2)))
    others = similarity.masked_fill(~one_of, -torch.inf)
    softmax = torch.stack([torch.cat([one[:, None], others], 1).log_softmax(1)[:, 0] for one in positive.T])
    alone = step("infonce", sampler="all", symmetric=False, positives=several)[-1]["infonce"]
    torch.testing.assert_close(alone, -softmax.mean(), rtol=1e-9, atol=0)
    for term in every[-1]:
        torch.testing.assert_close(every[-1][term], drawn[-1][term], rtol=1e-9, atol=0)


def test_corrected_weights_estimate_the_whole_sum() -> None:
    whole = step("infonce", sampler="all")[-1]["infonce"]
    plain, corrected = (
        torch.stack(
            [method(batch_of(method, ANCHORS, epoch=epoch), *features(6))["infonce"].detach() for epoch in range(60)]
        ).mean()
        for method in (built("infonce", negatives=20), built("infonce", negatives=20, correct=True))
    )
    assert abs(corrected - whole) < 0.05 * whole < abs(plain - whole)


@pytest.mark.parametrize("fold", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_mixed_logits_are_those_of_explicit_mixtures(fold: bool, normalize: bool) -> None:
    arguments = {"sampler": "class", "negatives": 9, "lm_weight": 0.3, "weight": 0.0}
    method, batch, ours, _, losses = step("infonce", teacher=False, fold=fold, normalize=normalize, **arguments)
    z, table = method.student_head(ours.embedding), method.student_table.features
    rows, _ = method.sampler.weights(ANCHORS, 9, epoch=batch.epoch)
    nu = method._coefficients(ANCHORS, 9, batch.epoch).double()
    assert bool((nu >= 0.5).all()) == fold
    mixtures = nu[:, :, None] * table[rows] + (1 - nu[:, :, None]) * z[:, None]
    if normalize:
        mixtures = F.normalize(mixtures, dim=2)
    positives = table[method.positives.sample(ANCHORS, epoch=batch.epoch)[:, 0]]
    expected = 0.3 * loop_info_nce(z, positives, [list(each) for each in mixtures])
    torch.testing.assert_close(losses["lm"], expected, rtol=1e-9, atol=0)
    ours_grad, loop_grad = (
        torch.autograd.grad(x, ours.embedding, retain_graph=True)[0] for x in (losses["lm"], expected)
    )
    torch.testing.assert_close(ours_grad, loop_grad, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("mixture", ["matching", "cross"])
@pytest.mark.parametrize("nu_per", ["pair", "batch"])
def test_mixtures_of_both_networks_find_each_other(mixture: str, nu_per: str) -> None:
    arguments = {"weight": 0.0, "lm_weight": 0.9, "mixture": mixture, "nu_per": nu_per}
    method, batch, ours, theirs, losses = step("infonce", **arguments)
    assert theirs is not None
    z_student, z_teacher = method.student_head(ours.embedding), method.teacher_head(theirs.embedding)
    if mixture == "cross":
        z_student, z_teacher = z_teacher, z_student
    drawn = method.sampler.sample(ANCHORS, 1, epoch=batch.epoch)[:, 0]
    nu = method._coefficients(ANCHORS, 1, batch.epoch).double().expand(len(ANCHORS), 1)
    assert len(set(nu.flatten().tolist())) == (1 if nu_per == "batch" else len(ANCHORS))
    first = F.normalize(nu * method.student_table.features[drawn] + (1 - nu) * z_student, dim=1)
    second = F.normalize(nu * method.teacher_table.features[drawn] + (1 - nu) * z_teacher, dim=1)
    others = [[i for i in range(len(ANCHORS)) if i != own] for own in range(len(ANCHORS))]
    expected = loop_info_nce(first, second, [[second[i] for i in each] for each in others])
    expected = expected + loop_info_nce(second, first, [[first[i] for i in each] for each in others])
    torch.testing.assert_close(losses["lm"], 0.9 * expected, rtol=1e-9, atol=0)
    sum(losses.values()).backward()
    assert method.teacher_head.linear.weight.grad.abs().sum() > 0


def test_the_symmetric_term_is_what_trains_the_teachers_head() -> None:
    for symmetric in (True, False):
        method, *_, losses = step("infonce", symmetric=symmetric)
        losses["infonce"].backward()
        assert (method.teacher_head.linear.weight.grad is not None) == symmetric


def test_positive_instance_is_the_samples_own_row() -> None:
    method, _, ours, _, losses = step("infonce", teacher=False, positive="instance", sampler="all")
    z, table = method.student_head(ours.embedding), method.student_table.features
    negatives = [list(table[LABELS[i] != LABELS]) for i in ANCHORS]
    torch.testing.assert_close(losses["infonce"], loop_info_nce(z, table[ANCHORS], negatives), rtol=1e-9, atol=0)


@pytest.mark.parametrize("sampler", ["uniform", "class", "instance", "mixed", "soft", "all"])
def test_no_negative_shares_the_anchors_class(sampler: str) -> None:
    method = built("infonce", sampler=sampler, k=2 if sampler in NEAREST else None)
    every = torch.arange(len(LABELS))
    rows, log_weights = method.sampler.weights(every, 50)
    assert not bool(((LABELS[rows] == LABELS[:, None]) & log_weights.isfinite()).any())


def test_unlabelled_samples_have_everyone_but_themselves_as_negatives() -> None:
    nobody = torch.full((60,), -1)
    method = built("infonce", labels=nobody, teacher=False, sampler="instance", k=59, negatives=40, positive="instance")
    batch = batch_of(method, ANCHORS, nobody)
    rows, _ = method.sampler.weights(ANCHORS, 40)
    losses = method(batch, *features(6, teacher=False))
    assert not bool((rows == ANCHORS[:, None]).any()) and set(rows[0].tolist()) == set(range(60)) - {7}
    assert losses["ce"] == 0 and losses["infonce"] > 0


def test_tables_stay_on_the_sphere_and_move_by_their_momentum() -> None:
    method, batch, ours, theirs, _ = step("infonce", momentum=0.75)
    before, z = method.teacher_table.features.clone(), method.teacher_head(theirs.embedding)
    method.after_step(batch, ours, theirs)
    after = method.teacher_table.features
    torch.testing.assert_close(after[ANCHORS], F.normalize(0.75 * before[ANCHORS] + 0.25 * z, dim=1))
    rest = torch.ones(60, dtype=torch.bool).index_fill_(0, ANCHORS, False)
    assert torch.equal(after[rest], before[rest])
    for table in (method.student_table.features, after):
        torch.testing.assert_close(table.norm(dim=1), torch.ones(60, dtype=torch.float64))


def test_a_filled_table_holds_the_features_themselves() -> None:
    method = methods.build("infonce", synthetic())
    ours, theirs = (Features(x.logits.float(), x.embedding.detach().float()) for x in features(60))
    method.fill(torch.arange(60).flip(0), ours, theirs)
    torch.testing.assert_close(method.student_table.features.flip(0), method.student_head(ours.embedding))
    torch.testing.assert_close(method.teacher_table.features.flip(0), method.teacher_head(theirs.embedding))


def test_the_loss_does_not_depend_on_the_order_of_the_batch_but_on_the_epoch() -> None:
    method = built("infonce", lm_weight=0.5, negatives=10)
    ours, theirs = features(6)
    turned = [Features(x.logits.flip(0), x.embedding.flip(0)) for x in (ours, theirs)]
    first, again = method(batch_of(method, ANCHORS), ours, theirs), method(batch_of(method, ANCHORS.flip(0)), *turned)
    later = method(batch_of(method, ANCHORS, epoch=3), ours, theirs)
    for term in ("infonce", "lm"):
        torch.testing.assert_close(first[term], again[term], rtol=1e-12, atol=0)
        assert abs(first[term] - later[term]) > 1e-6


@pytest.mark.parametrize("teacher", [False, True])
@pytest.mark.parametrize("divided", [False, True])
def test_the_defaults_are_what_was_measured_best(teacher: bool, divided: bool) -> None:
    """The setting `own` of docs/results.md; where no process holds the whole table, it goes by given embeddings."""
    wanted = {"sampler": "soft", "negatives": 256, "scale": 10.0, "clusters": None, "correct": True, "tau": 0.1}
    wanted |= {"weight": 0.8, "lm_weight": 0.0, "momentum": 0.5, "symmetric": True}
    wanted |= {"refresh": 0 if divided else 1, "positive": "instance" if teacher else "class"}
    taken = methods.resolved("infonce", "", {}, teacher=teacher, divided=divided)
    assert {key: taken[key] for key in wanted} == wanted
    method = infonce.Objective(replace(synthetic(teacher=teacher), divided=divided))
    assert (method.correct, method.refresh, method.positive) == (True, wanted["refresh"], wanted["positive"])
    assert (method.sampler.scale, method.sampler.unit.shape[1]) == (10.0, 7 if divided else 128)
    assert infonce.Objective(synthetic(), tau=0.05).sampler.scale == 20.0


@pytest.mark.parametrize("sampler", ["uniform", "class", "instance", "mixed", "all"])
def test_other_samplers_draw_as_in_the_paper_unless_told_otherwise(sampler: str) -> None:
    taken = methods.resolved("infonce", "", {"sampler": sampler})
    assert (taken["scale"], taken["refresh"], taken["correct"]) == (5.0, 0, sampler == "mixed")
    method = methods.build("infonce", synthetic(), sampler=sampler, k=2 if sampler in NEAREST else None)
    assert (getattr(method.sampler, "scale", 5.0), method.refresh, method.correct) == (5.0, 0, sampler == "mixed")


def test_presets_are_the_papers_whatever_the_defaults() -> None:
    shared = {"negatives": 1024, "scale": 5.0, "refresh": 0, "correct": False, "tau": 0.07, "positive": "class"}
    shared |= {"clusters": None, "dim": 128, "momentum": 0.5, "beta": 0.5, "fold": True, "normalize": True}
    shared |= {"positives": 1, "nu_per": "pair", "symmetric": True, "ce": 1.0, "kld": 0.0, "temperature": 4.0}
    alone = {"sampler": "uniform", "k": None, "weight": 1.0, "lm_weight": 0.0, "mixture": "negatives"}
    both = {"sampler": "instance", "k": 1 / 50, "weight": 0.9, "lm_weight": 0.9, "mixture": "matching"}
    for teacher in (False, True):
        assert methods.resolved("infonce", "t1-infonce", {}, teacher=teacher) == {**shared, **alone}
        assert methods.resolved("infonce", "kd-lm-instance", {}, teacher=teacher, divided=True) == {**shared, **both}


@pytest.mark.parametrize("preset", infonce.PRESETS)
def test_every_row_of_the_paper_is_a_preset_that_runs(preset: str) -> None:
    teacher = preset.startswith("kd")
    method = methods.build("infonce", synthetic(teacher=teacher), preset=preset)
    losses = method.double()(batch_of(method, ANCHORS), *features(6, teacher=teacher))
    wanted = infonce.PRESETS[preset]
    assert losses.keys() == {"ce"} | {
        term for term, weight in (("infonce", wanted["weight"]), ("lm", wanted.get("lm_weight"))) if weight
    }
    assert all(value.isfinite() and value > 0 for value in losses.values())


# ---- CE + LM ----


def test_ce_lm_classifies_mixed_latents_as_both_classes() -> None:
    method = built("ce-lm", teacher=False, sampler="class", weight=0.25)
    batch = batch_of(method, ANCHORS)
    assert not bool((batch.labels[:6] == batch.labels[6:]).any())
    classifier, latents = nn.Linear(WIDTH, CLASSES).double(), numbers(12, WIDTH)
    losses = method(batch, Features(classifier(latents), latents), None)
    expected = torch.zeros((), dtype=torch.float64)
    peak = 1 / math.log(0.9 * 4 / 0.1)
    nu = method.quantile(draws.uniform(3, draws.MIXING, batch.epoch, ANCHORS)).double()
    for i in range(6):
        mixed = nu[i] * latents[6 + i] + (1 - nu[i]) * latents[i]
        target = nu[i] * F.one_hot(batch.labels[6 + i], 5) + (1 - nu[i]) * F.one_hot(batch.labels[i], 5)
        expected = expected - (F.softmax(target / peak, 0) * F.log_softmax(classifier(mixed), 0)).sum() / 6
    torch.testing.assert_close(losses["lm"], 0.25 * expected, rtol=1e-6, atol=0)  # nu is float32
    assert bool((nu < 0.5).any()) and bool((nu > 0.5).any())


# ---- CRD-LM ----


def test_crd_lm_adds_the_noise_contrast_of_mixtures() -> None:
    method, batch, ours, theirs, losses = step("crd-lm", negatives=8, lm_weight=0.1)
    plain = built("crd", negatives=8)(batch, ours, theirs)
    torch.testing.assert_close(losses["crd"], plain["crd"])
    nu = method.quantile(draws.uniform(3, draws.MIXING, batch.epoch, ANCHORS))[:, None]
    drawn = method.sampler.sample(ANCHORS, 1, epoch=batch.epoch)[:, 0]
    crd = method.crd
    first = F.normalize(nu * crd.student_bank[drawn] + (1 - nu) * crd.student_head(ours.embedding), dim=1)
    second = F.normalize(nu * crd.teacher_bank[drawn] + (1 - nu) * crd.teacher_head(theirs.embedding), dim=1)
    expected = torch.zeros((), dtype=torch.float64)
    for scores in (torch.exp(first @ second.T / 0.07), torch.exp(second @ first.T / 0.07)):
        scores = scores / (scores.mean() * 60).detach()
        for i in range(6):
            others = torch.stack([scores[i, j] for j in range(6) if j != i])
            noise = 5 / 60
            expected = expected - torch.log(scores[i, i] / (scores[i, i] + noise)) / 6
            expected = expected - torch.log(noise / (others + noise)).sum() / 6
    torch.testing.assert_close(losses["lm"], 0.1 * expected, rtol=1e-4, atol=0)  # CRD's guard 1e-7 beside 1/60
    assert method.mixture_constant > 0


# ---- Pearson, CKA ----


def loop_pearson(a: Tensor, b: Tensor) -> Tensor:
    return torch.corrcoef(torch.stack([a, b]))[0, 1]


@pytest.mark.parametrize("negatives", [1, 3])
def test_pc_is_the_hinge_on_averaged_correlations(negatives: int) -> None:
    method, batch, ours, theirs, losses = step("pc", negatives=negatives, margin=0.3)
    assert len(batch.index) == 6 * (2 + negatives)
    student, teacher = method.student_head(ours.embedding), method.teacher_head(theirs.embedding)
    expected = torch.zeros((), dtype=torch.float64)
    for i in range(6):
        row = 6 + i * (1 + negatives)
        others = range(row + 1, row + 1 + negatives)
        assert LABELS[batch.index[row]] == LABELS[ANCHORS[i]] and batch.index[row] != ANCHORS[i]
        assert all(LABELS[batch.index[j]] != LABELS[ANCHORS[i]] for j in others)
        alike = loop_pearson(student[row], teacher[row])
        alike = alike + sum(loop_pearson(student[j], teacher[j]) for j in others) / negatives
        unlike = sum(loop_pearson(student[j], student[row]) + loop_pearson(student[j], teacher[row]) for j in others)
        expected = expected + F.relu(0.8 * unlike / negatives - 0.2 * alike + 0.3) / 6
    torch.testing.assert_close(losses["pc"], 0.8 * expected, rtol=1e-9, atol=1e-12)


def descend(similarities, start: Tensor, *, printed: bool) -> tuple[list[float], list[float]]:
    """(l+, l-) before and after 20 steps down the hinge, on the features `start` themselves."""
    values = start.clone().requires_grad_()
    seen = []
    for _ in range(21):
        alike, unlike = similarities(values)
        seen.append([alike.mean().item(), unlike.mean().item()])
        if printed:
            loss = functional.triplet_hinge(unlike, alike, 1 - 0.2, 2.0)
        else:
            loss = functional.triplet_hinge(alike, unlike, 0.2, 2.0)
        (slope,) = torch.autograd.grad(loss, values)
        values = (values - 2 * slope).detach().requires_grad_()
    return seen[0], seen[-1]


def pc_similarities(values: Tensor) -> tuple[Tensor, Tensor]:
    return correlations(values, numbers(8, 3, 16, seed=2))


def cka_similarities(values: Tensor) -> tuple[Tensor, Tensor]:
    return alignments(values[:, 0], values[:, 1], [values[:, 2]], numbers(8, 16, seed=2), "linear")


@pytest.mark.parametrize("similarities", [pc_similarities, cka_similarities])
def test_the_hinge_raises_positive_and_lowers_negative_similarity_and_the_printed_sign_does_not(similarities) -> None:
    before, after = descend(similarities, numbers(8, 3, 16), printed=False)
    assert after[0] > before[0] and after[1] < before[1]
    before, after = descend(similarities, numbers(8, 3, 16), printed=True)
    assert after[0] < before[0] and after[1] > before[1]


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_cka_compares_whole_batches(kernel: str) -> None:
    method = built("cka", kernel=kernel, negatives=2, sampler="class", k=3)
    anchors = torch.arange(2, 60, 5)[:6]
    batch = batch_of(method, anchors)
    ours, theirs = features(len(batch.index))
    student, teacher = ours.embedding, theirs.embedding[:6]
    positive, first, second = (student[6:].view(6, 3, WIDTH)[:, j] for j in range(3))
    assert bool((batch.labels[6:].view(6, 3)[:, 0] == 2).all())
    for column in (1, 2):
        classes = set(batch.labels[6:].view(6, 3)[:, column].tolist())
        assert len(classes) == 1 and classes != {2}
    cka = lambda x, y: functional.cka(x, y, kernel)  # noqa: E731
    alike = cka(positive, student[:6]) + cka(student[:6], teacher)
    unlike = sum(cka(x, student[:6]) + cka(x, teacher) for x in (first, second)) / 2
    expected = 0.8 * F.relu(0.8 * unlike - 0.2 * alike + 0.2)
    torch.testing.assert_close(method(batch, ours, theirs)["cka"], expected, rtol=1e-9, atol=0)


def test_cka_batches_have_one_class_and_what_is_left_over_changes() -> None:
    labels = torch.tensor([0] * 10 + [1] * 7 + [2] * 13)
    method = built("cka", labels=labels, teacher=True)
    orders = [method.epoch_order(4, epoch) for epoch in range(30)]
    assert torch.equal(orders[0], method.epoch_order(4, 0)) and not torch.equal(orders[0], orders[1])
    for order in orders:
        assert len(order) == 8 + 4 + 12 == len(order.unique())
        assert all(len(part.unique()) == 1 for part in labels[order].split(4))
    left = [sorted(set(range(30)) - set(order.tolist())) for order in orders]
    assert set().union(*left) == set(range(30))
    starts = {tuple(labels[order][::4].tolist()) for order in orders}
    assert len(starts) > 10  # batches of the classes come in another order each time


def test_cka_companions_of_unequal_classes_have_one_class_a_column() -> None:
    labels = torch.tensor([0] * 4 + [1] * 30 + [2] * 9)
    method = built("cka", labels=labels, negatives=3, sampler="uniform")
    anchors, met = torch.arange(34, 43), set()
    for epoch in range(20):
        index = method.companion_index(anchors, torch.tensor(epoch))
        assert bool((labels[index[:, 0]] == 2).all()) and not bool((index[:, 0] == anchors).any())
        columns = [set(labels[column].tolist()) for column in index[:, 1:].T]
        assert all(len(classes) == 1 and classes <= {0, 1} for classes in columns)
        met |= set(index[:, 1:].flatten().tolist())
    assert met == set(range(34))


def test_cka_needs_classes_that_fill_a_batch() -> None:
    method = built("cka", labels=torch.tensor([0] * 10 + [1] * 5))
    with pytest.raises(InputError, match=r"Class 1 has 5 samples, too few for a batch of 6 .* up to 5"):
        method.epoch_order(6, 0)
    with pytest.raises(InputError, match="a batch of 2 is too small"):
        method.epoch_order(2, 0)


# ---- OIM ----


def golden_oim() -> tuple[Method, Batch, Features]:
    case = PAPER["oim"]["inputs"]
    table, queue = (torch.tensor(case[key], dtype=torch.float64) for key in ("V_rows", "Q_rows"))
    classes = len(table)
    place = Setting(torch.tensor([*range(classes), 1]), student=Shapes(classes, 4))
    method = methods.build("oim", place, dim=4, tau=case["tau"], momentum=case["gamma"], queue=len(queue)).double()
    with torch.no_grad():
        method.head.linear.weight.copy_(torch.eye(4))
        method.head.linear.bias.zero_()
        method.table.features.copy_(table)
        method.table.filled.fill_(True)
    method.queue.push(queue, torch.arange(10, 13), torch.full((3,), classes + 1))
    batch = Batch(torch.zeros(1, 0), torch.tensor([case["y"]]), torch.tensor([2]), torch.zeros(1), torch.tensor(0), 1)
    h = torch.tensor([case["h"]], dtype=torch.float64, requires_grad=True)
    return method, batch, Features(torch.zeros(1, classes), h)


def test_oim_gives_the_papers_loss_gradient_and_prototype() -> None:
    method, batch, ours = golden_oim()
    expected, losses = PAPER["oim"]["expected"], method(batch, ours, None)
    assert losses["oim"].item() == pytest.approx(expected["loss"], rel=1e-9)
    losses["oim"].backward()
    assert ours.embedding.grad[0].tolist() == pytest.approx(expected["grad_h_of_loss"], rel=1e-9)
    method.after_step(batch, ours, None)
    assert method.table.features[2].tolist() == pytest.approx(expected["v_y_after_update_normalised"], rel=1e-9)
    assert method.queue.features[0].tolist() == pytest.approx(expected["z"], rel=1e-9)


def test_oim_does_not_see_its_own_class_in_the_queue() -> None:
    method, batch, ours = golden_oim()
    with_all = method(batch, ours, None)["oim"]
    method.queue.labels[0] = 2
    assert method(batch, ours, None)["oim"] < with_all


def test_oim_can_follow_the_teachers_prediction() -> None:
    method, batch, ours, theirs, losses = step("oim", target="teacher", queue=0)
    z = method.head(ours.embedding)
    expected = F.cross_entropy(z @ method.table.features.T / 0.1, theirs.logits.argmax(1))
    torch.testing.assert_close(losses["oim"], expected)
    method.after_step(batch, ours, theirs)
    assert method.table.filled.nonzero()[:, 0].tolist() == theirs.logits.argmax(1).unique().tolist()


def test_oim_queues_the_anchors_with_their_numbers_and_classes() -> None:
    method, batch, ours, theirs, _ = step("oim", queue=8)
    method.after_step(batch, ours, theirs)
    assert method.queue.ids.tolist() == [*ANCHORS.tolist(), -1, -1]
    assert method.queue.labels[:6].tolist() == LABELS[ANCHORS].tolist()


# ---- Algorithm 1 ----


@pytest.mark.parametrize("lm_target", ["logits", "probs", "literal"])
def test_scns_has_every_term_of_algorithm_1(lm_target: str) -> None:
    method, batch, ours, theirs, losses = step(
        "scns", k=10, positive_weight=0.5, negative_weight=0.1, lm_target=lm_target, temperature=3.0
    )
    assert list(losses) == ["ce", "infonce", "lm", "lm_kld", "positive", "negative"]
    assert len(batch.index) == 18
    positive, negative = (slice(6 + j, None, 2) for j in range(2))
    assert torch.equal(batch.labels[positive], batch.labels[:6])
    assert not bool((batch.labels[negative] == batch.labels[:6]).any())
    z_student, z_teacher = method.student_head(ours.embedding), method.teacher_head(theirs.embedding)
    for term, rows, weight in (("positive", positive, 0.5), ("negative", negative, 0.1)):
        rho = torch.stack([loop_pearson(a, b) for a, b in zip(z_student[rows], z_teacher[rows], strict=True)])
        torch.testing.assert_close(losses[term], weight * (1 - rho).mean(), rtol=1e-9, atol=0)
    nu = method.latent_quantile(draws.uniform(3, draws.MIXING, batch.epoch, ANCHORS))
    nu = nu.double()[:, None]
    mixed = ((nu * ours.logits[negative] + (1 - nu) * ours.logits[:6]) / 3).softmax(1)
    anchor, other = theirs.logits[:6] / 3, theirs.logits[negative] / 3
    target = (nu * other + (1 - nu) * anchor).softmax(1)
    if lm_target != "logits":
        target = nu * other.softmax(1) + (1 - nu) * anchor.softmax(1)
    if lm_target == "literal":
        target = (target / 3).softmax(1)
    divergence = (target * (target.log() - mixed.log())).sum(1).mean()
    torch.testing.assert_close(losses["lm_kld"], 0.9 * 9 * divergence, rtol=1e-9, atol=0)


def test_the_first_terms_of_scns_are_those_of_infonce() -> None:
    shared = {"sampler": "instance", "k": 10, "weight": 0.9, "lm_weight": 0.9, "mixture": "matching"}
    _, batch, ours, theirs, losses = step("scns", k=10)
    alone = built("infonce", **shared)
    anchors = batch._replace(index=ANCHORS, labels=batch.labels[:6])
    expected = alone(anchors, ours.rows(0, 6), theirs.rows(0, 6))
    for term in expected:
        torch.testing.assert_close(losses[term], expected[term], rtol=1e-12, atol=0)


@pytest.mark.parametrize("distance", ["cka", "cka-rbf"])
def test_scns_can_measure_by_cka(distance: str) -> None:
    method, _, ours, theirs, losses = step("scns", k=10, distance=distance, lm_kld_weight=0.0, negative_weight=0.0)
    assert method.companions == 1 and "negative" not in losses
    own, other = method.student_head(ours.embedding[6:]), method.teacher_head(theirs.embedding[6:])
    expected = 1 - functional.cka(own, other, "rbf" if distance == "cka-rbf" else "linear")
    torch.testing.assert_close(losses["positive"], expected)


def test_scns_forwards_only_what_its_weights_ask_for() -> None:
    off = {"positive_weight": 0.0, "negative_weight": 0.0, "lm_kld_weight": 0.0}
    assert built("scns", k=10, **off).companions == 0
    assert built("scns", k=10, **off | {"lm_kld_weight": 1.0}).companions == 1
    lines = step("scns", k=10, **methods.module("scns").PRESETS["lines"])
    assert list(lines[-1]) == ["ce", "lm_kld", "positive", "negative"]


# ---- all of them ----


@pytest.fixture(scope="module", params=OWN)
def ran(request: pytest.FixtureRequest) -> Run:
    teacher = None if request.param in ("ce", "ce-lm", "oim") else "resnet8"
    return run_steps(request.param, 20, teacher=teacher, **SMALL.get(request.param, {}))


def test_twenty_steps_lower_the_loss(ran: Run) -> None:
    totals = [sum(step.values()) for step in ran.losses]
    assert all(math.isfinite(total) for total in totals)
    assert sum(totals[-2:]) < sum(totals[:2])


def test_parameters_are_trained_and_tables_stay_unit(ran: Run) -> None:
    fresh = make(ran.method.name(), teacher="resnet8" if ran.teacher else None, **SMALL.get(ran.method.name(), {}))
    trained = {id(p) for p in ran.method.trained()}
    for (name, now), start in zip(ran.method.named_parameters(), fresh.method.parameters(), strict=True):
        assert id(now) in trained and not torch.equal(now, start), name
    for name, buffer in ran.method.named_buffers():
        if name.endswith("table.features"):
            torch.testing.assert_close(buffer.norm(dim=1), torch.ones(len(buffer)))


def test_state_survives_saving_bit_for_bit(ran: Run, tmp_path: Path) -> None:
    torch.save(ran.method.state_dict(), tmp_path / "method.pt")
    name, teacher = ran.method.name(), "resnet8" if ran.teacher else None
    again = make(name, teacher=teacher, seed=9, **SMALL.get(name, {}))
    again.method.load_state_dict(torch.load(tmp_path / "method.pt", weights_only=True))
    again.student.load_state_dict(ran.student.state_dict())
    told = []
    for case in (ran, again):
        case = copy.deepcopy(case)
        batch = next(islice(case.batches(), 1, None))
        ours, theirs = case.features(batch)
        first = case.method(batch, ours, theirs)
        case.method.after_step(batch, ours, theirs)
        told.append([*first.values(), *case.method(batch, ours, theirs).values()])
    assert all(torch.equal(a, b) for a, b in zip(*told, strict=True))


@pytest.mark.parametrize("name", OWN)
def test_the_teacher_is_a_constant(name: str) -> None:
    case = make(name, **SMALL.get(name, {}))
    before = copy.deepcopy(case.teacher.state_dict())
    batch = next(case.batches())
    ours, theirs = case.features(batch)
    theirs = Features(*(x.clone().requires_grad_() for x in theirs[:2]))
    losses = case.method(batch, ours, theirs)
    sum(losses.values()).backward()
    case.method.after_step(batch, ours, theirs)
    assert theirs.logits.grad is None and theirs.embedding.grad is None
    assert all(torch.equal(value, case.teacher.state_dict()[key]) for key, value in before.items())


@pytest.mark.parametrize("name", OWN)
def test_a_step_compiles_into_one_graph_and_gives_the_same(name: str) -> None:
    torch.compiler.reset()
    case = make(name, **SMALL.get(name, {}))
    batch = next(case.batches())
    with torch.no_grad():
        ours, theirs = case.features(batch)
    plain, compiled = case.method, copy.deepcopy(case.method)

    def step(method: Method) -> dict[str, Tensor]:
        losses = method(batch, ours, theirs)
        method.after_step(batch, ours, theirs)
        return losses

    together = torch.compile(lambda: step(compiled), fullgraph=True, backend="eager")
    for _ in range(2):
        for one, other in zip(step(plain).values(), together().values(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    for (key, one), other in zip(plain.state_dict().items(), compiled.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other, msg=key)


@pytest.mark.parametrize("name", OWN)
def test_half_inputs_of_any_size_give_finite_losses_and_gradients(name: str) -> None:
    case = make(name, **SMALL.get(name, {}))
    batch = next(case.batches())
    with torch.no_grad():
        ours, theirs = case.features(batch)
    for size in (1.0, 3e3):
        half, other = (
            Features(*((size * F.normalize(x, dim=1)).half().requires_grad_() for x in each[:2]))
            for each in (ours, theirs)
        )
        losses = case.method(batch, half, other)
        assert all(value.isfinite() and value.dtype == torch.float32 for value in losses.values()), size
        sum(losses.values()).backward()
        grads = [x.grad for x in half[:2] if x.grad is not None]
        assert grads and all(grad.isfinite().all() for grad in grads), size
        case.method.after_step(batch, half, other)
        assert all(buffer.isfinite().all() for buffer in case.method.state_dict().values())


BAD: list[tuple[str, dict[str, object], bool, str]] = [
    ("pc", {}, False, "'pc' needs a teacher"),
    ("cka", {}, False, "'cka' needs a teacher"),
    ("crd-lm", {}, False, "'crd-lm' needs a teacher"),
    ("scns", {}, False, "'scns' needs a teacher"),
    ("ce", {"kld": 0.9}, False, "'ce' needs a teacher"),
    ("oim", {"target": "teacher"}, False, "target='teacher' needs a teacher"),
    ("infonce", {"mixture": "matching"}, False, "mixes two networks; give a teacher"),
    ("infonce", {"sampler": "instnce"}, True, "Unknown sampler 'instnce'; did you mean instance"),
    ("infonce", {"mixture": "match"}, True, "Unknown mixture 'match'; did you mean matching"),
    ("infonce", {"mixture": "matching", "sampler": "all"}, True, "which sampler 'all' does not"),
    ("infonce", {"positive": "klass"}, True, "Unknown positive 'klass'; did you mean class"),
    ("infonce", {"nu_per": "row"}, True, "Unknown nu_per 'row'"),
    ("infonce", {"scale": "abc"}, True, "scale of 'infonce' must be a number or none, but it is 'abc'."),
    ("infonce", {"correct": 7}, True, "correct of 'infonce' must be true or false or none, but it is 7."),
    ("infonce", {"negatives": 1.5}, True, "negatives of 'infonce' must be a whole number, but it is 1.5."),
    ("infonce", {"k": math.nan}, True, "k of 'infonce' must be a number or none, but it is nan."),
    ("infonce", {"k": -1}, True, "k must be a finite number above 0; got -1"),
    ("infonce", {"tau": 1e-40}, True, "tau must lie between 1e-30 and 1e.30; got 1e-40"),
    ("infonce", {"negatives": 10**20}, True, "negatives=100000000000000000000 of each anchor are more than 1,048,576;"),
    ("crd", {"momentum": "x"}, True, "momentum of 'crd' must be a number, but it is 'x'."),
    ("kld", {"ce": True}, True, "ce of 'kld' must be a number, but it is True."),
    ("oim", {"target": 3}, True, "target of 'oim' must be text, but it is 3."),
    ("infonce", {"tau": 0.0}, True, "tau must be a finite number above 0; got 0.0"),
    ("crd", {"tau": 0.01}, True, r"tau=0.01 must be from 0.02 up, or exp\(cosine / tau\) overflows"),
    ("crd", {"tau": float("inf")}, True, "tau=inf must be from 0.02 up"),
    ("infonce", {"tau": -1.0}, True, "tau must be a finite number above 0; got -1.0"),
    ("infonce", {"negatives": 0}, True, "negatives must be a finite number above 0; got 0"),
    ("infonce", {"beta": -0.1}, True, "beta is -0.1"),
    ("infonce", {"momentum": 1.5}, True, "momentum=1.5"),
    ("infonce", {"weight": -1.0}, True, "weight must be a finite number from 0 up; got -1.0"),
    ("infonce", {"wieght": 1.0}, True, "Unknown argument of 'infonce' 'wieght'; did you mean weight"),
    ("infonce", {"preset": "t1-clas"}, True, "Unknown preset of 'infonce' 't1-clas'; did you mean t1-class"),
    ("cka", {"kernel": "rfb"}, True, "Unknown kernel 'rfb'; did you mean rbf"),
    ("cka", {"zeta": 1.2}, True, "zeta must lie in"),
    ("cka", {"sampler": "all"}, True, "sampler 'all' draws none"),
    ("pc", {"margin": -0.1}, True, "margin must be a finite number from 0 up"),
    ("pc", {"sampler": "all"}, True, "sampler 'all' draws none"),
    ("oim", {"target": "teacer"}, True, "Unknown target 'teacer'; did you mean teacher"),
    ("oim", {"tau": math.nan}, True, "tau of 'oim' must be a number, but it is nan"),
    ("ce-lm", {"smoothing": 0.9}, True, "smoothing=0.9 must lie between 0 and 0.8"),
    ("ce-lm", {"sampler": "all"}, True, "draws one negative an anchor"),
    ("scns", {"distance": "pearsn", "k": 5}, True, "Unknown distance 'pearsn'; did you mean pearson"),
    ("scns", {"temperature": 0.0, "k": 5}, True, "temperature must be a finite number above 0; got 0.0"),
    ("scns", {"sampler": "all", "mixture": "negatives"}, True, "which sampler 'all' does not draw"),
]


@pytest.mark.parametrize(("name", "arguments", "teacher", "sentence"), BAD)
def test_bad_input_is_one_sentence(name: str, arguments: dict[str, object], teacher: bool, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        methods.build(name, synthetic(teacher=teacher), **arguments)


@pytest.mark.parametrize("name", ["ce-lm", "cka", "oim"])
def test_methods_on_labels_refuse_samples_without(name: str) -> None:
    with pytest.raises(InputError, match="-1"):
        methods.build(name, synthetic(labels=torch.where(torch.arange(60) < 3, -1, LABELS)))


def test_missing_companions_are_named() -> None:
    method = built("pc")
    alone = batch_of(built("ce"), ANCHORS)
    with pytest.raises(InputError, match="6 anchors with 2 companions each are 18 rows, but there are 6"):
        method(alone, *features(6))


def test_every_method_says_where_it_comes_from() -> None:
    for name in OWN:
        module = methods.module(name)
        assert module.REFERENCE and module.__doc__ and "l = " in module.__doc__
        for preset in getattr(module, "PRESETS", {}):
            methods.build(name, setting(), preset=preset)
    assert set(OWN) <= set(methods.names()) and pictures().classes == 10


def test_the_page_on_the_paper_names_what_exists() -> None:
    page = (Path(__file__).parents[1] / "docs" / "paper.md").read_text()
    for item in [f"| DEV-{n} |" for n in range(1, 22)] + [f"| A-{n} |" for n in range(1, 33)]:
        assert page.count(item) == 1, item
    presets = re.findall(r'`([\w-]+) preset="([^"]+)"', page)
    assert {preset for name, preset in presets if name == "infonce"} == set(infonce.PRESETS)
    for name, preset in presets:
        assert preset in methods.module(name).PRESETS, (name, preset)
    for name, arguments in re.findall(r"`([a-z][a-z-]*)\(([^`]*)\)`", page):
        known = methods.hyperparameters(name) if name in methods.names() else None
        for key in re.findall(r"(\w+)=", arguments) if known else []:
            assert key in known, (name, key)
    modules = "functional|mixup|sampling|neighbors|words|theory|memory|models|methods"
    for module, path in re.findall(rf"`({modules})\.([\w.]*\w)", page):
        found = importlib.import_module(f"scns.{module}")
        for part in path.split("."):
            found = getattr(found, part) if part != "x" else found


@pytest.mark.parametrize("arguments", [{"sampler": "soft", "correct": True}, {"sampler": "instance", "k": 5}])
def test_a_refreshed_sampler_goes_by_the_table_of_the_epochs_beginning(arguments: dict[str, Any]) -> None:
    case = make("infonce", refresh=1, **arguments)
    method = case.method
    batch, after = islice(case.batches(), 2)
    method.after_step(batch, *case.features(batch))
    method.begin_epoch(1, fresh=True)
    assert torch.equal(method.proposal, method.teacher_table.features)
    first = method.sampler.probabilities(batch.index)
    method.after_step(after, *case.features(after))
    assert not torch.equal(method.proposal, method.teacher_table.features)
    method.begin_epoch(1, fresh=False)  # resumed within the epoch: as at its beginning
    assert torch.equal(method.sampler.probabilities(batch.index), first)
    method.begin_epoch(2, fresh=True)
    assert not torch.equal(method.sampler.probabilities(batch.index), first)


def test_an_instance_table_is_refreshed_every_so_many_epochs() -> None:
    case = make("infonce", sampler="instance", k=5, refresh=2)
    place = case.method.sampler.indices.data_ptr()  # where a captured step reads
    method, batch = case.method, next(case.batches())
    tables = []
    for epoch in range(1, 6):
        method.begin_epoch(epoch, fresh=True)
        tables.append(method.sampler.indices.clone())
        method.teacher_table.features.copy_(torch.randn_like(method.teacher_table.features))
    assert [torch.equal(one, other) for one, other in pairwise(tables)] == [True, False, True, False]
    old = NeighborTable.build(method.proposal, method.labels, k=5)
    assert torch.equal(old.indices, tables[-1]) and not torch.equal(tables[-1], tables[0])
    assert method.sampler.indices.data_ptr() == place
    assert method.sampler.sample(batch.index, 3).shape == (len(batch.index), 3)


def test_what_cannot_be_refreshed_is_told() -> None:
    with pytest.raises(InputError, match="refresh is for the samplers 'soft' and 'instance', but the sampler is 'uni"):
        make("infonce", sampler="uniform", refresh=1)
    with pytest.raises(InputError, match=r"refresh=-1 is a number of epochs; give 1 for every epoch, 0 for never"):
        make("infonce", sampler="soft", refresh=-1)
    sampler = make("infonce", sampler="instance", k=5, refresh=1).method.sampler
    with pytest.raises(InputError, match=r"This sampler holds a table \(\d+, 5\), not \(\d+, 4\)"):
        sampler.refresh_(NeighborTable.build(torch.randn(len(sampler.indices), 8), k=4))


def test_arguments_of_kinds_that_cannot_be_told_are_left_to_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    class Objective:
        def __init__(
            self, setting: Setting, *, layers: list[int], gain: "float" = 1.0, width: int | str = 4
        ) -> None: ...

    monkeypatch.setattr(methods, "module", lambda name: SimpleNamespace(Objective=Objective))
    methods.check_arguments("mine", {"layers": [1, 2], "gain": "loud", "width": np.int64(3)})
    with pytest.raises(InputError, match=r"width of 'mine' must be a whole number or text, but it is 1\.5"):
        methods.check_arguments("mine", {"width": 1.5})


def test_a_setting_of_arrays_is_told() -> None:
    for wrong in (Setting(LABELS.numpy(), Shapes(5, 8)), Setting(LABELS, 8)):  # type: ignore[arg-type]
        with pytest.raises(InputError, match="A Setting takes labels"):
            methods.build("infonce", wrong)
    with pytest.raises(InputError, match=r"The teacher of a Setting is .*, not int"):
        methods.build("infonce", Setting(LABELS, Shapes(5, 8), 8))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a function that gives them, not Tensor; write lambda: embeddings"):
        methods.build("infonce", Setting(LABELS, Shapes(5, 8), embeddings=torch.ones(len(LABELS), 3)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "labels",
    [
        torch.arange(8.0) % 4,
        torch.arange(8)[:, None] % 4,
        torch.arange(8) % 5,
        torch.zeros(0).long(),
        torch.arange(-2, 4),
    ],
)
def test_labels_that_fit_no_classifier_are_told(labels: Tensor) -> None:
    with pytest.raises(InputError, match="to 3, its last class, but these are"):
        methods.build("ce", Setting(labels, Shapes(4, 8)))


def test_the_coldest_crd_learns_with_finite_numbers() -> None:
    """Its scores are as large as floats have room for: the rows a memory begins with are a little longer than 1."""
    torch.manual_seed(0)
    crd = CRD(50_000, 8, 8, dim=128, tau=0.02)
    optimizer = torch.optim.SGD(crd.parameters(), lr=0.1)
    student, teacher = torch.randn(16, 8), torch.randn(16, 8)
    for epoch in range(30):
        index = torch.cat([torch.arange(16)[:, None], torch.randint(0, 50_000, (16, 64))], dim=1)
        loss = crd(student, teacher, index)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        crd.update(torch.arange(16), student, teacher)
        assert bool(loss.isfinite()), epoch
    assert loss.item() < 3 * 16
