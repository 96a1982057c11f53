"""Latent mixup: the distribution of its coefficients, its mixtures, and the closed form of their similarity."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from scns import draws
from scns.errors import InputError
from scns.mixup import BetaQuantile, mix, mixed_similarity, mixing_coefficients

FACTS = json.loads((Path(__file__).parent / "golden" / "theory.json").read_text())["beta_distribution_facts"]

# golden numbers for unit anchors [2, 4], three negatives each
ANCHOR = [
    [0.16843957003471904, 0.4866972501003188, -0.14050738002896163, -0.8455835701742931],
    [-0.5517782410591019, -0.3670991368356359, 0.5636383670184071, -0.49304237916540017],
]
NEGATIVES = [
    [
        [0.6751869965823143, -0.21445333337014022, 0.5069585866594482, -0.4910450884235013],
        [-0.7766239855434933, 0.1916475209803711, 0.5779527334277159, -0.1615458161143442],
        [-0.5462542601968285, -0.5358754292530887, -0.344140183924002, 0.5440692431560412],
    ],
    [
        [-0.5515849218525921, -0.4144969928575751, -0.32655379312492266, -0.6459945333302926],
        [0.5897730884143235, -0.7698259308745987, 0.09842888721161709, 0.22326552465074123],
        [-0.6184323885873352, 0.025484851178049526, -0.40945660892732905, 0.6702515859827026],
    ],
]
NU = [[0.9, 0.6, 0.75], [0.55, 1.0, 0.5]]
MIXED_00 = [0.6245122539275547, -0.14433827502309435, 0.44221198999060723, -0.5264989365985805]
COSINES = [
    [0.4446892999943023, 0.5649195204105777, -0.5559996388394182],
    [0.8678505082366568, -0.09742259081551245, 0.6207391471890038],
]


def golden() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(torch.tensor(values, dtype=torch.float64) for values in (ANCHOR, NEGATIVES, NU))


def test_golden_mixtures() -> None:
    anchor, negatives, nu = golden()
    mixed = mix(negatives, anchor, nu)
    assert mixed[0, 0].tolist() == pytest.approx(MIXED_00, abs=1e-12)
    cosines = (F.normalize(mixed, dim=-1) * anchor[:, None]).sum(-1)
    assert cosines.flatten().tolist() == pytest.approx([*COSINES[0], *COSINES[1]], abs=1e-12)
    closed = mixed_similarity((negatives * anchor[:, None]).sum(-1), nu)
    assert closed.flatten().tolist() == pytest.approx([*COSINES[0], *COSINES[1]], abs=1e-12)


@pytest.mark.parametrize("normalize", [True, False])
def test_closed_form_and_its_gradient_equal_explicit_mixtures(normalize: bool) -> None:
    random = torch.Generator().manual_seed(0)
    anchor, negatives = (
        F.normalize(torch.randn(shape, generator=random, dtype=torch.float64), dim=-1) for shape in ((5, 8), (5, 7, 8))
    )
    nu = mixing_coefficients((5, 7), 0.5, fold=False, generator=random).double()
    anchor.requires_grad_()
    similarity = torch.einsum("bd,bmd->bm", anchor, negatives)
    closed = mixed_similarity(similarity, nu, normalize)
    for i in range(5):
        for j in range(7):
            mixture = nu[i, j] * negatives[i, j] + (1 - nu[i, j]) * anchor[i]
            explicit = anchor[i] @ (mixture / mixture.norm() if normalize else mixture)
            assert closed[i, j].item() == pytest.approx(explicit.item(), abs=1e-12)
    # On the sphere only the tangential part of the gradient counts, and there both forms agree.
    (by_form,) = torch.autograd.grad(closed.sum(), anchor, retain_graph=True)
    mixed = mix(negatives, anchor, nu)
    mixed = F.normalize(mixed, dim=-1) if normalize else mixed
    (by_mixture,) = torch.autograd.grad((mixed * anchor[:, None]).sum(), anchor)
    unit = anchor.detach()

    def tangential(gradient: torch.Tensor) -> torch.Tensor:
        return gradient - (gradient * unit).sum(-1, keepdim=True) * unit

    torch.testing.assert_close(tangential(by_form), tangential(by_mixture), atol=1e-10, rtol=0)


def test_values_and_gradients_are_finite_everywhere() -> None:
    s = torch.tensor([-1.0, -1.0 - 1e-7, -0.9999999, 0.0, 1.0, 1.0 + 1e-7]).repeat(5, 1).requires_grad_()
    nu = torch.tensor([0.0, 0.4999999, 0.5, 0.5000001, 1.0])[:, None].repeat(1, 6).requires_grad_()
    value = mixed_similarity(s, nu)
    value.sum().backward()
    assert value.isfinite().all() and value.abs().max() <= 1 + 1e-4
    assert s.grad.isfinite().all() and nu.grad.isfinite().all()
    assert mixed_similarity(torch.tensor([0.3], dtype=torch.float16), 0.5).dtype == torch.float32


def test_the_ends_of_the_segment() -> None:
    s = torch.linspace(-0.9, 0.9, 7)
    torch.testing.assert_close(mixed_similarity(s, 1.0), s)
    torch.testing.assert_close(mixed_similarity(s, 0.0), torch.ones(7))
    negative, anchor = torch.randn(2, 3, 4), torch.randn(2, 4)
    torch.testing.assert_close(mix(negative, anchor, 1.0), negative)
    torch.testing.assert_close(mix(negative, anchor, torch.tensor(0.0)), anchor[:, None].expand(2, 3, 4))


def test_one_coefficient_a_batch_or_one_a_pair() -> None:
    random = torch.Generator().manual_seed(1)
    nu = mixing_coefficients((), 0.5, generator=random)
    assert nu.shape == () and 0.5 <= nu <= 1
    assert mixing_coefficients(9, 0.5, generator=random).shape == (9,)
    logits_i, logits_j = torch.randn(4, 10), torch.randn(4, 10)
    pairs = torch.rand(4)
    torch.testing.assert_close(mix(logits_i, logits_j, pairs), torch.lerp(logits_j, logits_i, pairs[:, None]))
    with pytest.raises(InputError, match=r"nu has shape \(4,\).*\(4, 4\)"):
        mix(torch.randn(4, 4, 8), torch.randn(4, 8), torch.rand(4))


@pytest.mark.parametrize("beta", FACTS)
def test_known_facts_by_integrating_the_quantile(beta: str) -> None:
    count = 1 << 21
    uniform = ((torch.arange(count, dtype=torch.float64) + 0.5) / count).float()  # exact in 24 bits
    nu = BetaQuantile(float(beta), fold=False)(uniform).double()
    assert (nu * (1 - nu)).mean().item() == pytest.approx(FACTS[beta]["E_nu_1mnu"], abs=2e-7)
    assert (nu < 0.01).double().mean().item() == pytest.approx(FACTS[beta]["P_nu_lt_0_01"], abs=2e-6)
    between = ((nu > 0.05) & (nu < 0.95)).double().mean().item()
    assert between == pytest.approx(FACTS[beta]["P_0_05_to_0_95"], abs=2e-6)
    folded = BetaQuantile(float(beta))(uniform).double()
    assert folded.mean().item() == pytest.approx(FACTS[beta]["E_max"], abs=5e-7)
    torch.testing.assert_close(folded, torch.maximum(nu, 1 - nu), atol=1e-7, rtol=0)


@pytest.mark.parametrize("beta", [float(beta) for beta in FACTS])
def test_same_distribution_as_an_independent_sampler(beta: float) -> None:
    count = 100_000
    ours = mixing_coefficients(count, beta, fold=False, uniform=draws.uniform(3, draws.MIXING, torch.arange(count)))
    with torch.random.fork_rng():
        torch.manual_seed(5)
        concentration = torch.full((count,), beta, dtype=torch.float64)
        theirs = torch.distributions.Beta(concentration, concentration).sample().float()
    ours, theirs = (nu.clamp_min(1e-30).double() for nu in (ours, theirs))  # what float32 can tell from 0
    # Chi-square of two samples; the outermost bins are wide in log x, since small betas pile up at 0 and 1.
    edges = torch.tensor([1e-6, 1e-3, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 0.999, 1 - 1e-6], dtype=torch.float64)
    mine = torch.bincount(torch.bucketize(ours, edges), minlength=12).double()
    other = torch.bincount(torch.bucketize(theirs, edges), minlength=12).double()
    used = mine + other > 20
    statistic = ((mine - other).square() / (mine + other))[used].sum().item()
    freedom = int(used.sum()) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)
    both = torch.cat([ours, theirs])
    step = torch.cat([torch.full((count,), 1 / count), torch.full((count,), -1 / count)]).double()
    order = both.argsort(stable=True)
    ends = torch.cat([both[order].diff() > 0, torch.tensor([True])])  # ties count once: small betas underflow to 0
    assert step[order].cumsum(0)[ends].abs().max() < 1.95 * math.sqrt(2 / count)  # Kolmogorov-Smirnov, p = 0.001


def test_tails_of_small_betas_are_a_power_law() -> None:
    beta = 0.05
    quantile = BetaQuantile(beta, fold=False)
    constant = math.exp(math.lgamma(beta) * 2 - math.lgamma(2 * beta)) * beta  # P(nu < x) -> x^beta / constant
    for x in (1e-4, 1e-7, 1e-9, 1e-12, 1e-18):
        found = quantile(torch.tensor([x**beta / constant])).item()
        assert found == pytest.approx(x, rel=2e-4)


def test_the_limits_of_beta() -> None:
    uniform = draws.uniform(0, torch.arange(1000))
    coin = mixing_coefficients(1000, 0, fold=False, uniform=uniform)
    assert set(coin.tolist()) == {0.0, 1.0} and 430 < coin.sum() < 570
    assert (mixing_coefficients(1000, 0, uniform=uniform) == 1).all()
    assert (mixing_coefficients((2, 3), math.inf) == 0.5).all()
    for beta in (1e-8, 0.01, 1e4, 1e9):
        nu = mixing_coefficients(1000, beta, fold=False, uniform=uniform)
        assert nu.isfinite().all() and ((nu >= 0) & (nu <= 1)).all()
    assert (mixing_coefficients(1000, 1e9, uniform=uniform) - 0.5).abs().max() < 1e-3
    edges = torch.tensor([0.0, 0.5, 1 - 2**-24])
    assert BetaQuantile(1000.0, fold=False)(edges).tolist() == pytest.approx([0.5, 0.5, 0.5], abs=0.08)


def test_folded_coefficients_favour_the_negative() -> None:
    nu = mixing_coefficients((64, 128), 0.2, generator=torch.Generator().manual_seed(2))
    assert nu.shape == (64, 128) and nu.dtype == torch.float32 and (nu >= 0.5).all()


def test_coefficients_depend_on_their_keys_alone() -> None:
    rows, columns = torch.arange(6)[:, None], torch.arange(5)
    quantile = BetaQuantile(0.5)
    whole = quantile(draws.uniform(1, draws.MIXING, 4, rows, columns))
    part = quantile(draws.uniform(1, draws.MIXING, 4, rows[[3, 1]], columns))
    assert torch.equal(whole[[3, 1]], part)
    one, two = (mixing_coefficients(9, 0.5, generator=torch.Generator().manual_seed(8)) for _ in range(2))
    assert torch.equal(one, two)
    assert not BetaQuantile(0.5).state_dict()  # a table, not state


@pytest.mark.parametrize("beta", [-0.1, float("nan")])
def test_bad_beta(beta: float) -> None:
    with pytest.raises(InputError, match="beta is"):
        mixing_coefficients(3, beta)


def test_bad_uniform_numbers() -> None:
    with pytest.raises(InputError, match=r"shape \(3,\), but coefficients of \(4,\)"):
        mixing_coefficients(4, 0.5, uniform=torch.rand(3))
    with pytest.raises(InputError, match="one of the two"):
        mixing_coefficients(4, 0.5, uniform=torch.rand(4), generator=torch.Generator())


@pytest.mark.gpu
def test_captured_step_draws_the_same_coefficients() -> None:
    quantile = BetaQuantile(0.2).cuda()
    rows, columns = torch.arange(64, device="cuda")[:, None], torch.arange(128, device="cuda")
    epoch = torch.zeros((), dtype=torch.int64, device="cuda")

    def step() -> torch.Tensor:
        return quantile(draws.uniform(1, draws.MIXING, epoch, rows, columns))

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for number in (0, 3):
        epoch.fill_(number)
        graph.replay()
        on_cpu = BetaQuantile(0.2)(draws.uniform(1, draws.MIXING, number, rows.cpu(), columns.cpu()))
        torch.testing.assert_close(captured.cpu(), on_cpu, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mix(torch.ones(6, 3, 4), torch.ones(5, 4), 0.5), r"this one is \(5, 4\)"),
        (lambda: mix(torch.ones(6, 3, 4), torch.ones(6, 4), torch.ones(3, 6)), r"nu has shape \(3, 6\)"),
        (lambda: mix(np.ones((6, 4)), np.ones((6, 4)), 0.5), "works on torch tensors"),  # type: ignore[arg-type]
        (lambda: mixed_similarity(torch.ones(6, 3), torch.ones(3)), r"nu has shape \(3,\)"),
        (lambda: mixed_similarity(np.ones((6, 3)), 0.5), "must be a tensor"),  # type: ignore[arg-type]
        (lambda: mixing_coefficients(3, "a"), "beta is 'a'"),  # type: ignore[arg-type]
        (lambda: mixing_coefficients((3, -1), 0.5), r"whole numbers.*not \(3, -1\)"),
        (lambda: mixing_coefficients("3", 0.5), "whole numbers.*not '3'"),  # type: ignore[arg-type]
        (lambda: mixing_coefficients(3, 0.5, generator=0), "of type int; give torch.Generator"),  # type: ignore[arg-type]
    ],
)
def test_shapes_that_do_not_fit_are_told(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]


def test_whole_numbers_are_told() -> None:
    """A coefficient of their type would be 0 or 1."""
    with pytest.raises(InputError, match=r"torch.int64 and torch.float32"):
        mix(torch.ones(2, 3).long(), torch.ones(2, 3), 0.5)
    for uniform in (torch.tensor([0, 1]), [0.1, 0.2], np.array([0.1, 0.2])):
        with pytest.raises(InputError, match="tensor of floating point"):
            mixing_coefficients(2, math.inf, uniform=uniform)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="tensor of floating point"):
            BetaQuantile(0.5)(uniform)
