"""What holds for every loss: gradients, precision, compilation, capture, and sentences for bad input."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scns import functional as losses
from scns.errors import InputError
from scns.memory import FeatureQueue

MAP, BIG_MAP = (3, 2, 2, 2), (3, 4, 4, 4)
LABELS = torch.tensor([0, 2, 1])


class Case(NamedTuple):
    call: Callable[..., Tensor]
    trained: tuple[tuple[int, ...], ...]  # shapes of the inputs that get a gradient
    constant: tuple[tuple[int, ...], ...] = ()
    positive: bool = False  # scores and the like


# Labels and a mask by device: they must be there before a capture begins.
LABELS_ON = {"cpu": LABELS}
KEPT_ON = {"cpu": torch.tensor([True, False])}


def labels(like: Tensor) -> Tensor:
    return LABELS_ON[like.device.type]


CASES = {
    "info_nce": Case(losses.info_nce, ((3, 4), (3, 4), (3, 5, 4))),
    "info_nce-shared": Case(losses.info_nce, ((3, 4), (3, 4), (5, 4))),
    "info_nce-logits": Case(
        lambda a, p, x, w: losses.info_nce(a, p, logits=x, log_weights=w, temperature=0.5),
        ((3, 4), (3, 4), (3, 5), (3, 5)),
    ),
    "oim": Case(lambda a, v, u: losses.oim(a, labels(a), v, u), ((3, 4), (6, 4), (2, 4))),
    "oim-masked": Case(
        lambda a, v, u: losses.oim(a, labels(a), v, u, queue_mask=KEPT_ON[a.device.type]),
        ((3, 4), (6, 4), (2, 4)),
    ),
    "kld": Case(losses.kld, ((3, 5),), ((3, 5),)),
    "hint": Case(losses.hint, (MAP,), (MAP,)),
    "attention_transfer": Case(losses.attention_transfer, (BIG_MAP,), (MAP,)),
    "attention_transfer-paper": Case(lambda s, t: losses.attention_transfer(s, t, variant="paper"), (MAP,), (BIG_MAP,)),
    "similarity_preserving": Case(losses.similarity_preserving, (MAP,), (BIG_MAP,)),
    "correlation_congruence": Case(losses.correlation_congruence, ((4, 3), (4, 3))),
    "correlation_congruence-matrix": Case(lambda s, t: losses.correlation_congruence(s, t, "matrix"), ((4, 3), (4, 5))),
    "variational_information": Case(
        lambda m, scale, t: losses.variational_information(m, t, scale), (MAP, (2,)), (MAP,)
    ),
    "relational": Case(losses.relational, ((4, 3),), ((4, 5),)),
    "probabilistic_transfer": Case(losses.probabilistic_transfer, ((4, 3),), ((4, 5),)),
    "activation_boundary": Case(losses.activation_boundary, (MAP,), (MAP,)),
    "factor_transfer": Case(losses.factor_transfer, (BIG_MAP,), (MAP,)),
    "factor_transfer-vector": Case(lambda s, t: losses.factor_transfer(s, t, "vector", 2), (MAP,), (MAP,)),
    "flow": Case(losses.flow, (BIG_MAP, MAP), (BIG_MAP, MAP)),
    "neuron_selectivity": Case(losses.neuron_selectivity, (BIG_MAP,), ((3, 5, 4, 4),)),
    "neuron_selectivity-positions": Case(losses.neuron_selectivity, ((3, 5, 2, 2),), (BIG_MAP,)),
    "crd_nce": Case(lambda p: losses.crd_nce(p, 10), ((3, 5),), positive=True),
    "pearson": Case(lambda a, b: losses.pearson(a, b).mean(), ((3, 4), (3, 4))),
    "cka": Case(losses.cka, ((4, 5), (4, 6))),
    "cka-narrow": Case(losses.cka, ((5, 2), (5, 3))),
    "triplet_hinge": Case(losses.triplet_hinge, ((5,), (5,))),
    "soft_cross_entropy": Case(losses.soft_cross_entropy, ((3, 5), (3, 5))),
    "mixed_targets": Case(lambda a, b: losses.mixed_targets(a, b, 0.3, 2.0).square().sum(), ((3, 5), (3, 5))),
    "mixed_targets-probs": Case(
        lambda a, b: losses.mixed_targets(a, b, 0.3, 2.0, "probs").square().sum(), ((3, 5), (3, 5))
    ),
    "mixed_targets-literal": Case(
        lambda a, b: losses.mixed_targets(a, b, 0.3, 2.0, "literal").square().sum(), ((3, 5), (3, 5))
    ),
    "label_mixture": Case(
        lambda x: losses.soft_cross_entropy(x, losses.label_mixture(labels(x), labels(x).flip(0), 0.3, 5)),
        ((3, 5),),
    ),
}
RBF = {"cka-rbf": Case(lambda x, y: losses.cka(x, y, "rbf"), ((4, 5), (4, 2)))}


def inputs(
    case: Case, dtype: torch.dtype, scale: float = 1.0, device: str = "cpu"
) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(7)

    def draw(shape: tuple[int, ...]) -> Tensor:
        values = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        limit = 6e4  # just inside fp16
        return (values.abs() if case.positive else values).clamp(-limit, limit).to(device, dtype)

    return [draw(shape).requires_grad_() for shape in case.trained], [draw(shape) for shape in case.constant]


def value_and_gradients(call: Callable[..., Tensor], trained: list[Tensor], constant: list[Tensor]) -> list[Tensor]:
    loss = call(*trained, *constant)
    gradients = torch.autograd.grad(loss, trained)
    return [loss.detach(), *gradients]


every_case = pytest.mark.parametrize("name", [*CASES, *RBF])


def case_of(name: str) -> Case:
    return CASES.get(name) or RBF[name]


def test_every_function_has_a_case() -> None:
    assert {name.split("-")[0] for name in CASES} == set(losses.__all__) - {"match"}


@pytest.mark.parametrize("name", CASES)
def test_gradient_is_that_of_the_value(name: str) -> None:
    trained, constant = inputs(CASES[name], torch.float64)
    assert torch.autograd.gradcheck(lambda *x: CASES[name].call(*x, *constant), trained)


def test_gradients_of_the_mixing_coefficient() -> None:
    nu, first, second = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64), random(3, 5), random(3, 5, seed=1)
    nu.requires_grad_()
    assert torch.autograd.gradcheck(lambda nu: losses.label_mixture(LABELS, LABELS.flip(0), nu, 5), [nu])
    for target in ("logits", "probs", "literal"):
        assert torch.autograd.gradcheck(lambda nu, t=target: losses.mixed_targets(first, second, nu, 2.0, t), [nu])


def test_gradient_of_rbf_cka_takes_the_bandwidth_as_a_constant() -> None:
    x, y = random(4, 3).requires_grad_(), random(4, 2, seed=1)

    def explicit(bandwidth: Tensor) -> Tensor:
        gram = torch.exp(-(x[:, None] - x[None]).square().sum(-1) / (2 * bandwidth))
        other = torch.exp(-(y[:, None] - y[None]).square().sum(-1) / (2 * y.var(0).sum()))
        centre = torch.eye(4, dtype=torch.float64) - 0.25
        k, m = centre @ gram @ centre, centre @ other @ centre
        return (k * m).sum() / (k.norm() * m.norm())

    (ours,) = torch.autograd.grad(losses.cka(x, y, "rbf"), x)
    (fixed,) = torch.autograd.grad(explicit(x.var(0).sum().detach()), x)
    torch.testing.assert_close(ours, fixed, rtol=1e-9, atol=1e-12)


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 6e4, 3e-7, 0.0])
def test_half_precision_of_any_size_is_computed_in_float32(name: str, dtype: torch.dtype, scale: float) -> None:
    case = case_of(name)
    trained, constant = inputs(case, dtype, scale)
    wide = [x.detach().float().requires_grad_() for x in trained], [x.float() for x in constant]
    loss, *gradients = value_and_gradients(case.call, trained, constant)
    expected, *wanted = value_and_gradients(case.call, *wide)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=0, atol=0)
    assert bool(loss.isfinite())
    assert all(bool(gradient.isfinite().all()) for gradient in wanted)
    for gradient, exact in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, exact.to(dtype), rtol=0, atol=0)


@every_case
def test_autocast_does_not_reach_inside(name: str) -> None:
    case = case_of(name)
    trained, constant = inputs(case, torch.float32)
    expected = value_and_gradients(case.call, trained, constant)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = case.call(*trained, *constant)
    ours = [loss, *torch.autograd.grad(loss, trained)]
    for value, exact in zip(ours, expected, strict=True):
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, exact, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own, in some releases of torch
@every_case
def test_compiles_into_one_graph(name: str) -> None:
    case = case_of(name)
    trained, constant = inputs(case, torch.float32)
    torch.compiler.reset()
    compiled = torch.compile(case.call, fullgraph=True, backend="eager")
    expected = value_and_gradients(case.call, trained, constant)
    for value, exact in zip(value_and_gradients(compiled, trained, constant), expected, strict=True):
        torch.testing.assert_close(value, exact)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.constant])
def test_the_teacher_is_a_constant(name: str) -> None:
    trained, constant = inputs(CASES[name], torch.float32)
    constant = [x.requires_grad_() for x in constant]
    gradients = torch.autograd.grad(CASES[name].call(*trained, *constant), constant, allow_unused=True)
    assert all(gradient is None for gradient in gradients)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@every_case
def test_on_cuda_nothing_waits_and_a_graph_gives_the_same(name: str) -> None:
    case = case_of(name)
    LABELS_ON["cuda"], KEPT_ON["cuda"] = LABELS.cuda(), KEPT_ON["cpu"].cuda()
    trained, constant = inputs(case, torch.float32, device="cuda")
    expected = value_and_gradients(case.call, *inputs(case, torch.float32))
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # a capture wants its warm-up beside the default stream
        for _ in range(3):
            eager = value_and_gradients(case.call, trained, constant)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        value_and_gradients(case.call, trained, constant)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = value_and_gradients(case.call, trained, constant)
    graph.replay()
    for from_graph, from_eager, from_cpu in zip(captured, eager, expected, strict=True):
        torch.testing.assert_close(from_graph, from_eager)
        torch.testing.assert_close(from_graph.cpu(), from_cpu, rtol=1e-4, atol=1e-5)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_float32_and_float64_mix_in_float64() -> None:
    student, teacher = random(4, 3).float(), random(4, 5, seed=1)
    assert losses.relational(student, teacher).dtype == torch.float64
    assert losses.similarity_preserving(student, teacher).dtype == torch.float64


@pytest.mark.parametrize(
    "loss",
    [
        losses.probabilistic_transfer,
        losses.similarity_preserving,
        losses.relational,
        lambda s, t: losses.correlation_congruence(s, t, "matrix"),
    ],
)
def test_zero_rows_get_a_small_gradient(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    student, teacher = random(5, 3).float(), random(5, 4, seed=1).float()
    student[1] = 0
    student[3] = 0
    student.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(student, teacher), student)
    assert bool(gradient.isfinite().all())
    assert gradient.abs().max() < 1e3


def test_a_learnt_temperature_has_a_gradient_where_negatives_are_absent() -> None:
    queue = FeatureQueue(6, 4)
    queue.push(F.normalize(random(4, 4), dim=1), torch.arange(4), torch.tensor([0, 1, 2, 0]))
    z, labels, ids = F.normalize(random(3, 4, seed=1), dim=1), torch.tensor([0, 1, 2]), torch.arange(10, 13)
    table, logits, mask = (
        F.normalize(random(3, 4, seed=2), dim=1),
        queue.logits(z, ids, labels),
        queue.mask(ids, labels),
    )
    for loss in (
        lambda t: losses.info_nce(z, table, logits=logits, temperature=t),
        lambda t: losses.oim(z, labels, table, queue.features, temperature=t, queue_mask=mask),
    ):
        learnt = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(loss(learnt), learnt)
        assert slope.item() == pytest.approx((loss(0.5 + 1e-5) - loss(0.5 - 1e-5)).item() / 2e-5, rel=1e-6)


def test_an_unlikely_positive_has_a_finite_gradient() -> None:
    scores = torch.tensor([[1e-25, 0.5], [1e-40, 0.5], [0.1, 0.5]], requires_grad=True)
    (gradient,) = torch.autograd.grad(losses.crd_nce(scores, 10), scores)
    assert bool(gradient.isfinite().all())
    assert gradient[0, 0].item() == pytest.approx(-1e25 / 3, rel=1e-5)


def test_embeddings_of_any_size_have_angles() -> None:
    student, teacher = random(4, 3).float(), random(4, 5, seed=1).float()
    for size in (1e-20, 1e-30, 1e-40):
        tiny = (size * student).requires_grad_()
        loss = losses.relational(tiny, teacher)
        (gradient,) = torch.autograd.grad(loss, tiny)
        assert bool(loss.isfinite()) and bool(gradient.isfinite().all())
        assert bool(losses.relational(student, tiny.detach()).isfinite())


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (2, 20, 2, 2)])
def test_dead_channels_get_no_gradient(shape: tuple[int, ...]) -> None:
    student, teacher = random(*shape).float(), random(2, 4, 2, 2, seed=1).float()
    student[:, 1] = 0
    student.requires_grad_()
    (gradient,) = torch.autograd.grad(losses.neuron_selectivity(student, teacher), student)
    assert gradient[:, 1].abs().max() == 0
    assert gradient.abs().max() > 0


def test_match_pools_the_larger_map() -> None:
    small, large = random(2, 3, 2, 2), random(2, 5, 6, 6, seed=1)
    for first, second in (losses.match(small, large), losses.match(large, small)[::-1]):
        torch.testing.assert_close(first, small)
        torch.testing.assert_close(second, F.adaptive_avg_pool2d(large, 2))
    odd = random(2, 5, 5, 5)
    torch.testing.assert_close(losses.match(odd, small)[0], F.adaptive_avg_pool2d(odd, 2))
    same = random(2, 3, 2, 5)
    assert losses.match(same, same)[0] is same


x = torch.zeros
BAD: dict[str, tuple[Callable[[], Tensor], str]] = {
    "no tensors": (lambda: losses.kld([[1.0]], [[1.0]]), "kld works on torch tensors"),
    "logits of other classes": (lambda: losses.kld(x(2, 3), x(2, 4)), r"\[2, 3\] and \[2, 4\]"),
    "logits of other batches": (lambda: losses.kld(x(2, 3), x(5, 3)), r"\[2, 3\] and \[5, 3\]"),
    "temperature zero": (lambda: losses.kld(x(2, 3), x(2, 3), 0.0), "temperature .* above 0; got 0.0"),
    "temperature negative": (lambda: losses.info_nce(x(2, 3), x(2, 3), x(4, 3), temperature=-1), "got -1"),
    "temperature nan": (lambda: losses.kld(x(2, 3), x(2, 3), float("nan")), "temperature .* got nan"),
    "temperature inf": (
        lambda: losses.oim(x(2, 3), LABELS[:2], x(4, 3), temperature=float("inf")),
        "temperature .* got inf",
    ),
    "soft targets": (lambda: losses.soft_cross_entropy(x(2, 3), x(2, 4)), r"\[2, 3\] and \[2, 4\]"),
    "hint": (lambda: losses.hint(x(2, 3, 4, 4), x(2, 5, 4, 4)), r"\[2, 3, 4, 4\] and \[2, 5, 4, 4\]"),
    "attention of other batches": (
        lambda: losses.attention_transfer(x(2, 3, 4, 4), x(1, 3, 4, 4)),
        r"\[2, 3, 4, 4\] and \[1, 3, 4, 4\]",
    ),
    "maps not square": (
        lambda: losses.attention_transfer(x(2, 3, 4, 6), x(2, 3, 2, 3)),
        r"square .* \[2, 3, 4, 6\] and \[2, 3, 2, 3\]",
    ),
    "one map not square": (lambda: losses.neuron_selectivity(x(2, 3, 4, 4), x(2, 3, 4, 5)), "square"),
    "factors not square": (lambda: losses.factor_transfer(x(2, 3, 4, 2), x(2, 3, 2, 2)), "square"),
    "flow not square": (lambda: losses.flow(x(2, 3, 4, 2), x(2, 3, 2, 1), x(2, 3, 4, 2), x(2, 3, 2, 1)), "square"),
    "vectors for maps": (lambda: losses.attention_transfer(x(2, 3), x(2, 3)), r"Maps are .* \[2, 3\] and \[2, 3\]"),
    "attention variant": (lambda: losses.attention_transfer(x(MAP), x(MAP), variant="papr"), "did you mean paper"),
    "attention power": (lambda: losses.attention_transfer(x(MAP), x(MAP), power=0), "power .* got 0"),
    "attention fraction": (lambda: losses.attention_transfer(x(MAP), x(MAP), power=1.5), "power .* got 1.5"),
    "similarity batches": (lambda: losses.similarity_preserving(x(2, 3), x(4, 3)), r"\[2, 3\] and \[4, 3\]"),
    "congruence of one": (
        lambda: losses.correlation_congruence(x(1, 3), x(1, 3)),
        r"at least 2 rows because correlation_congruence .* \[1, 3\]",
    ),
    "congruence widths": (lambda: losses.correlation_congruence(x(2, 3), x(2, 4)), r"\[2, 3\] and \[2, 4\]"),
    "congruence variant": (
        lambda: losses.correlation_congruence(x(2, 3), x(2, 3), "neighbors"),
        "'neighbors'; did you mean neighbours",
    ),
    "information widths": (
        lambda: losses.variational_information(x(2, 3, 2, 2), x(2, 4, 2, 2), x(3)),
        r"\[2, 3, 2, 2\] and \[2, 4, 2, 2\]",
    ),
    "information scale": (lambda: losses.variational_information(x(MAP), x(MAP), x(5)), r"channel .* \[5\]"),
    "information eps": (lambda: losses.variational_information(x(MAP), x(MAP), x(2), -1.0), "eps .* got -1"),
    "relational of one": (lambda: losses.relational(x(1, 3), x(1, 3)), "at least 2 rows because relational"),
    "relational batches": (lambda: losses.relational(x(2, 3), x(3, 3)), r"\[2, 3\] and \[3, 3\]"),
    "relational weights": (lambda: losses.relational(x(2, 3), x(2, 3), 0.0, 0.0), "distance 0 and angle 0"),
    "relational negative": (lambda: losses.relational(x(2, 3), x(2, 3), -1.0), "distance .* got -1"),
    "relational maps": (lambda: losses.relational(x(MAP), x(MAP)), r"\[batch, width\]"),
    "transfer batches": (lambda: losses.probabilistic_transfer(x(2, 3), x(3, 3)), r"\[2, 3\] and \[3, 3\]"),
    "boundary shapes": (lambda: losses.activation_boundary(x(2, 3), x(2, 4)), r"\[2, 3\] and \[2, 4\]"),
    "boundary margin": (lambda: losses.activation_boundary(x(2, 3), x(2, 3), -0.5), "margin .* got -0.5"),
    "factor norm": (lambda: losses.factor_transfer(x(MAP), x(MAP), norm="spacial"), "did you mean spatial"),
    "factor power": (lambda: losses.factor_transfer(x(MAP), x(MAP), power=0), "power .* got 0"),
    "factor channels": (
        lambda: losses.factor_transfer(x(2, 3, 2, 2), x(2, 4, 2, 2), norm="vector"),
        r"\[2, 3, 2, 2\] and \[2, 4, 2, 2\]",
    ),
    "flow channels": (
        lambda: losses.flow(x(2, 3, 2, 2), x(2, 4, 2, 2), x(2, 3, 2, 2), x(2, 5, 2, 2)),
        r"\[2, 4, 3\] and \[2, 5, 3\]",
    ),
    "flow batches": (
        lambda: losses.flow(x(2, 3, 2, 2), x(1, 4, 2, 2), x(2, 3, 2, 2), x(2, 4, 2, 2)),
        r"student_a and student_b .* \[2, 3, 2, 2\] and \[1, 4, 2, 2\]",
    ),
    "contrast without negatives": (lambda: losses.crd_nce(x(3, 1), 10), r"\[3, 1\]"),
    "contrast over nothing": (lambda: losses.crd_nce(x(3, 2), 0), "n_data .* got 0"),
    "pearson widths": (lambda: losses.pearson(x(2, 3), x(2, 4)), r"\[2, 3\] and \[2, 4\]"),
    "pearson batches": (lambda: losses.pearson(x(2, 3), x(4, 3)), r"\[2, 3\] and \[4, 3\]"),
    "pearson ranks": (lambda: losses.pearson(x(2, 3), x(2, 1, 3)), r"\[2, 3\] and \[2, 1, 3\]"),
    "cka of two": (lambda: losses.cka(x(2, 3), x(2, 3)), "at least 3 rows"),
    "cka batches": (lambda: losses.cka(x(4, 3), x(5, 3)), r"\[4, 3\] and \[5, 3\]"),
    "cka kernel": (lambda: losses.cka(x(4, 3), x(4, 3), "gauss"), "Unknown kernel 'gauss'; known: linear, rbf"),
    "hinge zeta": (lambda: losses.triplet_hinge(x(3), x(3), zeta=1.2), "zeta .* got 1.2"),
    "hinge margin": (lambda: losses.triplet_hinge(x(3), x(3), margin=-0.1), "margin .* got -0.1"),
    "hinge shapes": (lambda: losses.triplet_hinge(x(3), x(4)), r"\[3\] and \[4\]"),
    "mixture target": (lambda: losses.mixed_targets(x(2, 3), x(2, 3), 0.5, 1.0, "prob"), "did you mean probs"),
    "mixture shapes": (lambda: losses.mixed_targets(x(2, 3), x(2, 4), 0.5, 1.0), r"\[2, 3\] and \[2, 4\]"),
    "mixture share": (lambda: losses.mixed_targets(x(2, 3), x(2, 3), 1.5, 1.0), r"nu .* got 1.5"),
    "mixture shares": (
        lambda: losses.mixed_targets(x(2, 3), x(2, 3), torch.tensor([0.5, -0.5]), 1.0),
        "nu .* from -0.5 to 0.5",
    ),
    "mixture share shape": (lambda: losses.mixed_targets(x(2, 3), x(2, 3), x(3), 1.0), r"\[2\]; got \[3\]"),
    "label outside": (lambda: losses.label_mixture(LABELS, LABELS + 3, 0.5, 5), r"labels_j .* \[0, 5\).* from 3 to 5"),
    "label negative": (lambda: losses.label_mixture(LABELS - 1, LABELS, 0.5, 5), r"labels_i .* from -1 to 1"),
    "label floats": (lambda: losses.label_mixture(x(3), LABELS, 0.5, 5), "labels_i must be integers"),
    "label shapes": (lambda: losses.label_mixture(LABELS, LABELS[:2], 0.5, 5), r"\[3\] and \[2\]"),
    "label smoothing": (lambda: losses.label_mixture(LABELS, LABELS, 0.5, 5, smoothing=0.0), "smoothing 0.0"),
    "label smoothing all": (lambda: losses.label_mixture(LABELS, LABELS, 0.5, 5, smoothing=0.8), "smoothing 0.8"),
    "target outside": (lambda: losses.oim(x(3, 4), LABELS + 3, x(5, 4)), r"targets .* \[0, 5\).* from 3 to 5"),
    "target shapes": (lambda: losses.oim(x(2, 4), LABELS, x(5, 4)), r"\[3\] for \[2, 4\]"),
    "table widths": (lambda: losses.oim(x(3, 4), LABELS, x(5, 6)), r"table .* \[3, 4\] and \[5, 6\]"),
    "queue widths": (lambda: losses.oim(x(3, 4), LABELS, x(5, 4), x(2, 6)), r"queue .* \[3, 4\] and \[2, 6\]"),
    "queue mask": (
        lambda: losses.oim(x(3, 4), LABELS, x(5, 4), x(2, 4), queue_mask=torch.ones(3, dtype=torch.bool)),
        r"\[3, 2\]; got torch.bool \[3\]",
    ),
    "queue mask of numbers": (
        lambda: losses.oim(x(3, 4), LABELS, x(5, 4), x(2, 4), queue_mask=x(2)),
        "queue_mask must be bool",
    ),
    "mask without queue": (lambda: losses.oim(x(3, 4), LABELS, x(5, 4), queue_mask=x(2)), "without a queue"),
    "negatives twice": (lambda: losses.info_nce(x(2, 3), x(2, 3), x(4, 3), logits=x(2, 4)), "exactly one"),
    "no negatives": (lambda: losses.info_nce(x(2, 3), x(2, 3)), "exactly one"),
    "no anchors": (lambda: losses.info_nce(x(0, 3), x(0, 3), x(4, 3)), r"\[0, 3\]; skip empty batches"),
    "no positives": (lambda: losses.info_nce(x(4, 6), x(4, 0, 6), x(4, 3, 6)), r"\[4, 6\] and \[4, 0, 6\]"),
    "logits of three dimensions": (
        lambda: losses.info_nce(x(4, 6), x(4, 6), logits=x(4, 4, 2)),
        r"anchor and logits must be \[batch, width\]",
    ),
    "numbers without width": (lambda: losses.pearson(x(()), x(())), r"the same rows and width; got \[\] and \[\]"),
    "no maps": (lambda: losses.attention_transfer(x(0, 2, 2, 2), x(0, 2, 2, 2)), "one sample or more; .* skip empty"),
    "no rows of maps": (lambda: losses.neuron_selectivity(x(0, 2, 2, 2), x(0, 2, 2, 2)), "one sample or more"),
    "no relations": (lambda: losses.similarity_preserving(x(0, 2, 2, 2), x(0, 2, 2, 2)), "one sample or more"),
    "no boundaries": (lambda: losses.activation_boundary(x(0, 2, 2, 2), x(0, 2, 2, 2)), "one sample or more"),
    "no hints": (lambda: losses.hint(x(0, 2, 2, 2), x(0, 2, 2, 2)), "one sample or more"),
    "no targets": (lambda: losses.oim(x(0, 4), LABELS[:0], x(5, 4)), "anchor must hold one sample or more"),
    "no scores": (lambda: losses.crd_nce(x(0, 5), 10), "scores must hold one sample or more"),
    "no similarities": (lambda: losses.triplet_hinge(x(0), x(0)), "one sample or more"),
    "kernel of no name": (lambda: losses.cka(x(4, 3), x(4, 3), None), "Unknown kernel 'None'"),
    "power of a variant": (lambda: losses.attention_transfer(x(MAP), x(MAP), "paper"), "power .* got 'paper'"),
    "power not a number": (lambda: losses.factor_transfer(x(MAP), x(MAP), power=float("nan")), "power .* got nan"),
    "classes missing": (lambda: losses.label_mixture(LABELS, LABELS, 0.5, None), "2 classes or more; .* None classes"),
    "table of one number": (lambda: losses.oim(x(3, 4), LABELS, x(())), r"table .* \[3, 4\] and \[\]"),
    "teacher missing": (lambda: losses.kld(x(2, 3), None), "teacher_logits of kld must be a tensor, but it is None"),
    "teacher a number": (lambda: losses.kld(x(2, 3), 1.0), "convert teacher_logits with torch.as_tensor"),
    "two devices": (
        lambda: losses.kld(x(2, 3), x(2, 3, device="meta")),
        "student_logits is on cpu and teacher_logits on meta; move one",
    ),
    "labels on another device": (
        lambda: losses.oim(x(3, 4), x(3, dtype=torch.int64, device="meta"), x(5, 4)),
        "anchor is on cpu and targets on meta",
    ),
    "positive widths": (lambda: losses.info_nce(x(2, 3), x(2, 4), x(4, 3)), r"\[2, 3\] and \[2, 4\]"),
    "negative widths": (lambda: losses.info_nce(x(2, 3), x(2, 3), x(4, 5)), r"\[2, 3\] and \[4, 5\]"),
    "negative batches": (lambda: losses.info_nce(x(2, 3), x(2, 3), x(4, 5, 3)), r"\[2, 3\] and \[4, 5, 3\]"),
    "logit batches": (lambda: losses.info_nce(x(2, 3), x(2, 3), logits=x(4, 5)), r"\[2, 3\] and \[4, 5\]"),
    "weight shapes": (
        lambda: losses.info_nce(x(2, 3), x(2, 3), x(4, 3), log_weights=x(2, 5)),
        r"log_weights .* \[2, 4\] and \[2, 5\]",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_named(what: str) -> None:
    call, sentence = BAD[what]
    with pytest.raises(InputError, match=sentence) as raised:
        call()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: losses.info_nce(x, x, x.numpy()), "convert negatives with torch.as_tensor"),
        (lambda x: losses.info_nce(x, x, x, log_weights=[0.0]), "convert log_weights"),
        (lambda x: losses.info_nce(x, x, 16), "convert negatives with torch.as_tensor"),
        (lambda x: losses.info_nce(x, x, x, temperature=torch.ones(3)), r"one number; got a tensor \[3\]"),
        (lambda x: losses.info_nce(x, x, x, temperature=torch.tensor(0.0)), "temperature must be .* got 0.0"),
        (lambda x: losses.info_nce(x, x, x, temperature="1"), "got '1'"),
        (lambda x: losses.info_nce(x, x, x, log_weights=x > 0), r"torch.bool; of a mask, give mask.float\(\).log\(\)"),
        (lambda x: losses.cka(x.long(), x), "x of cka must be floating point, but it is torch.int64"),
        (lambda x: losses.hint(x, x > 0), "of hint must be floating point, but it is torch.bool"),
    ],
)
def test_inputs_of_another_kind_are_told(call: Callable[[Tensor], Tensor], message: str) -> None:
    with pytest.raises(InputError, match=message):
        call(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(
    "similarity",
    [
        losses.pearson,
        losses.cka,
        lambda x, y: losses.cka(x, y, kernel="rbf"),
        losses.relational,
        losses.activation_boundary,
    ],
    ids=["pearson", "cka", "cka rbf", "relational", "activation boundary"],
)
def test_what_is_not_a_number_stays_so(similarity: Callable[..., Tensor]) -> None:
    """A network that diverged must not look like one that is merely unlike."""
    x, y = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    assert similarity(x, y).isfinite().all()
    x[1, 2] = torch.nan
    assert similarity(x, y).isnan().any()
    assert similarity(y, x).isnan().any()


def test_targets_that_are_whole_numbers_are_told() -> None:
    with pytest.raises(InputError, match=r"targets must be probabilities.*int64, use .float"):
        losses.soft_cross_entropy(torch.randn(3, 4), F.one_hot(LABELS, 4))
    with pytest.raises(InputError, match="nu must lie in"):
        losses.mixed_targets(torch.randn(3, 4), torch.randn(3, 4), None, 1.0)  # type: ignore[arg-type]
