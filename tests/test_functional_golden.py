"""The losses against the numbers of the field's reference implementation and of the paper's formulas.

Left to the tests of the methods that own the modules: `ft_paraphraser` (an autoencoder, no loss of its own).
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scns import functional as losses

GOLDEN = Path(__file__).parent / "golden"
CASES = {case["id"]: case for case in json.loads((GOLDEN / "distillation.json").read_text())["cases"]}
PAPER = json.loads((GOLDEN / "paper.json").read_text())
Tensors = dict[str, Tensor]


def tensors(stored: dict, dtype: torch.dtype) -> Tensors:
    return {name: torch.tensor(x["data"], dtype=dtype).reshape(x["shape"]) for name, x in stored.items()}


def layers(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensors, Tensors], list[Tensor]]:
    return lambda x, _: [loss(x[f"s{i}"], x[f"t{i}"]) for i in (1, 2, 3)]


def regressed(x: Tensors, p: Tensors, stride: int) -> Tensor:
    kernel = p["conv.weight"].shape[-1]
    out = F.conv2d(x["f_s"], p["conv.weight"], p["conv.bias"], stride=stride, padding=kernel // 2)
    return F.relu(F.batch_norm(out, None, None, p["bn.weight"], p["bn.bias"], training=True))


def vid(x: Tensors, p: Tensors) -> list[Tensor]:
    student, teacher = losses.match(x["f_s"], x["f_t"])
    for layer in (0, 2):
        student = F.relu(F.conv2d(student, p[f"regressor.{layer}.weight"]))
    mean = F.conv2d(student, p["regressor.4.weight"])
    initial = torch.full((4,), math.log(math.exp(5 - 1e-5) - 1), dtype=mean.dtype)
    return [losses.variational_information(mean, teacher, p.get("log_scale", initial))]


def activation_boundary(x: Tensors, _: Tensors) -> list[Tensor]:
    return [
        losses.activation_boundary(x[f"s{i}"], x[f"t{i}"]) * weight * 0.003
        for i, weight in zip((1, 2, 3), CASES["ab_m1"]["args"]["layer_weights"], strict=True)
    ]


def flow(x: Tensors, _: Tensors) -> list[Tensor]:
    return [losses.flow(x[f"s{i}"], x[f"s{i + 1}"], x[f"t{i}"], x[f"t{i + 1}"]) for i in (0, 1, 2)]


COMPUTED: dict[str, Callable[[Tensors, Tensors], list[Tensor]]] = {
    "kld_T4": lambda x, _: [losses.kld(x["y_s"], x["y_t"], 4.0)],
    "fitnet_same": lambda x, p: [losses.hint(regressed(x, p, 1), x["f_t"])],
    "fitnet_down2": lambda x, p: [losses.hint(regressed(x, p, 2), x["f_t"])],
    "at_p2": layers(losses.attention_transfer),
    "sp": lambda x, _: [losses.similarity_preserving(x["f_s"], x["f_t"])],
    "cc_embedded": lambda x, _: [losses.correlation_congruence(x["e_s"], x["e_t"])],
    "vid_same_params": vid,
    "vid_pool_s_initial_log_scale": vid,
    "rkd_d25_a50": lambda x, _: [losses.relational(x["f_s"], x["f_t"])],
    "pkt": lambda x, _: [losses.probabilistic_transfer(x["f_s"], x["f_t"])],
    "ab_m1": activation_boundary,
    "ft_loss_same_p2_1": lambda x, _: [losses.factor_transfer(x["f_s"], x["f_t"])],
    "fsp": flow,
    "nst": layers(losses.neuron_selectivity),
    "crd_contrast_loss": lambda x, _: [losses.crd_nce(x["x"], 12)],
}
FLOAT64 = {"vid_pool_s_initial_log_scale": 1e-7}  # the reference builds its log-scale in float32


def test_no_golden_case_is_lost() -> None:
    assert set(COMPUTED) | {"ft_paraphraser"} == set(CASES)


@pytest.mark.parametrize("name", COMPUTED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    inputs, parameters = tensors(case["inputs"], dtype), tensors(case.get("params", {}), dtype)
    wanted = tensors(case["grads"], torch.float64)
    for key in wanted:
        inputs[key].requires_grad_()
    values = COMPUTED[name](inputs, parameters)
    gradients = torch.autograd.grad(sum(values, torch.zeros(())), [inputs[key] for key in wanted])

    assert all(value.dtype == dtype and value.ndim == 0 for value in values)
    exact = dtype == torch.float64
    tolerance = FLOAT64.get(name, 1e-9) if exact else 1e-5
    for value, expected in zip(values, case["outputs"]["float64"], strict=True):
        assert value.item() == pytest.approx(expected, rel=tolerance, abs=tolerance if exact else 0)
    for gradient, expected in zip(gradients, wanted.values(), strict=True):
        scale = 1.0 if exact else float(expected.abs().max())
        torch.testing.assert_close(gradient.double(), expected, rtol=0, atol=tolerance * scale)


def test_the_forms_other_libraries_use() -> None:
    x = tensors(CASES["at_p2"]["inputs"], torch.float64)
    assert float(losses.attention_transfer(x["s1"], x["t1"], variant="paper")) == pytest.approx(0.8875, abs=5e-5)
    x = tensors(CASES["ft_loss_same_p2_1"]["inputs"], torch.float64)
    assert float(losses.factor_transfer(x["f_s"], x["f_t"], norm="vector")) == pytest.approx(0.1699, abs=5e-5)
    x = tensors(CASES["sp"]["inputs"], torch.float64)
    assert float(losses.similarity_preserving(x["f_s"], x["f_t"])) != pytest.approx(0.01965, rel=0.1)  # rows in L1


def numbers(stored: list, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(stored, dtype=dtype)


def test_oim_loss_and_gradient() -> None:
    given, expected = PAPER["oim"]["inputs"], PAPER["oim"]["expected"]
    table, queue = numbers(given["V_rows"]), numbers(given["Q_rows"])
    features = numbers([given["h"]]).requires_grad_()
    anchor = F.normalize(features, dim=1)
    target = torch.tensor([given["y"]])
    loss = losses.oim(anchor, target, table, queue, temperature=given["tau"])
    by_anchor, by_features = torch.autograd.grad(loss, [anchor, features])
    assert loss.item() == pytest.approx(expected["loss"], rel=1e-9)
    torch.testing.assert_close(by_anchor[0], numbers(expected["grad_z_of_loss"]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(by_features[0], numbers(expected["grad_h_of_loss"]), rtol=1e-9, atol=1e-9)
    # The printed right-hand side is the gradient of +log p: the loss goes the other way.
    torch.testing.assert_close(by_anchor[0], -numbers(expected["printed_formula_value"]), rtol=1e-9, atol=1e-9)
    single = losses.oim(anchor.float(), target, table.float(), queue.float(), temperature=given["tau"])
    assert single.item() == pytest.approx(expected["loss"], rel=1e-5)


def test_oim_probabilities_are_the_papers() -> None:
    given, expected = PAPER["oim"]["inputs"], PAPER["oim"]["expected"]
    table, queue, anchor = numbers(given["V_rows"]), numbers(given["Q_rows"]), numbers([expected["z"]])

    def probability(row: int, first: Tensor, second: Tensor) -> float:
        return math.exp(-float(losses.oim(anchor, torch.tensor([row]), first, second, temperature=given["tau"])))

    p = [probability(row, table, queue) for row in range(len(table))]
    q = [probability(row, queue, table) for row in range(len(queue))]
    assert p == pytest.approx(expected["p"], rel=1e-9)
    assert q == pytest.approx(expected["q"], rel=1e-9)
    assert sum(p) + sum(q) == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_info_nce(dtype: torch.dtype, tolerance: float) -> None:
    given, expected = PAPER["infonce"]["inputs"], PAPER["infonce"]["expected"]
    anchor, positive, negatives = (numbers(given[key], dtype) for key in ("anchor", "positive", "negatives"))

    def single(row: int, count: int, temperature: float) -> float:
        rows = slice(row, row + 1)
        value = losses.info_nce(anchor[rows], positive[rows], negatives[rows, :count], temperature=temperature)
        return float(value)

    assert [single(row, 3, 0.1) for row in (0, 1)] == pytest.approx(expected["per_anchor"], rel=tolerance)
    assert [single(row, 3, 1.0) for row in (0, 1)] == pytest.approx(expected["per_anchor_tau1"], rel=tolerance)
    printed = expected["printed_single_negative_tau1"]
    assert [single(row, 1, 1.0) for row in (0, 1)] == pytest.approx(printed, rel=tolerance)
    mean = losses.info_nce(anchor, positive, negatives, temperature=0.1)
    assert float(mean) == pytest.approx(expected["mean"], rel=tolerance)
    assert math.log(4) - float(mean) == pytest.approx(expected["mi_lower_bound_nats"], rel=tolerance)


def test_info_nce_of_mixed_negatives() -> None:
    golden = PAPER["latent_mixup_pseudo_negatives"]
    given, expected = golden["inputs"], golden["expected"]
    anchor, positive, plain = (numbers(given[key]) for key in ("anchor", "positive", "negatives"))
    mixed, cosines = numbers(expected["mixed_normalised"]), numbers(expected["cos_anchor_pseudo"])
    for row in (0, 1):
        rows = slice(row, row + 1)
        z, p = anchor[rows], positive[rows]
        only_mixed = losses.info_nce(z, p, mixed[rows], temperature=0.1)
        by_logits = losses.info_nce(z, (z * p).sum(1), logits=cosines[rows], temperature=0.1)
        both = losses.info_nce(z, p, plain[rows], temperature=0.1) + 0.1 * only_mixed
        assert float(only_mixed) == pytest.approx(expected["infonce_minus_LM_only"][row], rel=1e-9)
        assert float(by_logits) == pytest.approx(expected["infonce_minus_LM_only"][row], rel=1e-9)
        assert float(both) == pytest.approx(expected["infonce_plus_LM"][row], rel=1e-9)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_cka(dtype: torch.dtype, tolerance: float) -> None:
    given, expected = PAPER["cka"]["inputs"], PAPER["cka"]["expected"]
    x, y = numbers(given["X"], dtype), numbers(given["Y"], dtype)
    assert float(losses.cka(x, y)) == pytest.approx(expected["linear_cka"], rel=tolerance)
    assert float(losses.cka(x, y, kernel="rbf")) == pytest.approx(expected["rbf_cka"], rel=tolerance)
    assert float(losses.cka(x, x)) == pytest.approx(expected["self_linear"], rel=tolerance)
    assert float(losses.cka(x, y)) != pytest.approx(expected["uncentred_alignment_printed_CA"], rel=0.1)


def test_triplet_signs_go_where_the_paper_wants_or_says() -> None:
    """20 steps of gradient descent: the printed sign pulls the positive similarity down, the other one up."""
    golden = PAPER["triplet_sign_demo"]
    generator = torch.Generator().manual_seed(0)
    anchor, positive, negative, teacher = (
        torch.randn(6, 4, generator=generator, dtype=torch.float64) for _ in range(4)
    )

    def similarities(anchor: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        high = losses.cka(positive, anchor) + losses.cka(anchor, teacher)
        return high, losses.cka(negative, anchor) + losses.cka(negative, teacher)

    def after_twenty(printed: bool) -> list[float]:
        points = [x.clone().requires_grad_() for x in (anchor, positive, negative)]
        for _ in range(20):
            high, low = similarities(*points)
            loss = (
                losses.triplet_hinge(low, high, 1 - 0.2, 1.0) if printed else losses.triplet_hinge(high, low, 0.2, 1.0)
            )
            literal = F.relu(0.2 * high - 0.8 * low + 1.0) if printed else F.relu(0.8 * low - 0.2 * high + 1.0)
            assert loss.item() == pytest.approx(literal.item(), rel=1e-12)
            gradients = torch.autograd.grad(loss, points)
            points = [(x - g).detach().requires_grad_() for x, g in zip(points, gradients, strict=True)]
        return [value.item() for value in similarities(*points)]

    start = [float(value) for value in similarities(anchor, positive, negative)]
    for ours, theirs in (
        (after_twenty(True), golden["after20_printed"]),
        (after_twenty(False), golden["after20_fixed"]),
    ):
        moved = [after > before for after, before in zip(ours, start, strict=True)]
        assert moved == [after > before for after, before in zip(theirs, golden["start"], strict=True)]
