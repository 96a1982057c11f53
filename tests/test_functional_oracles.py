"""Each loss against its formula written as loops over numbers, and the identities the paper's losses obey."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scns import InputError
from scns import functional as losses


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def scaled(a: list[float]) -> list[float]:
    length = math.sqrt(dot(a, a))
    return [x / length for x in a]


def minus(a: list[float], b: list[float]) -> list[float]:
    return [x - y for x, y in zip(a, b, strict=True)]


def huber(a: float, b: float) -> float:
    gap = abs(a - b)
    return gap * gap / 2 if gap < 1 else gap - 0.5


def test_similarity_preserving() -> None:
    student, teacher = random(4, 2, 3, 3), random(4, 5, 2, 2, seed=1)

    def gram(maps: Tensor) -> list[list[float]]:
        rows = maps.flatten(1).tolist()
        return [scaled([dot(a, b) for b in rows]) for a in rows]

    s, t = gram(student), gram(teacher)
    expected = sum((s[i][j] - t[i][j]) ** 2 for i, j in product(range(4), repeat=2)) / 16
    assert losses.similarity_preserving(student, teacher).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("rows", "width"), [(2, 3), (5, 3), (4, 7)])
def test_relational(rows: int, width: int) -> None:
    student, teacher = random(rows, width), random(rows, width + 2, seed=1)

    def distances(e: list[list[float]]) -> list[list[float]]:
        d = [[math.dist(a, b) for b in e] for a in e]
        mean = sum(map(sum, d)) / (rows * (rows - 1))
        return [[x / mean for x in row] for row in d]

    def angle(e: list[list[float]], i: int, j: int, k: int) -> float:
        return 0.0 if i in (j, k) else dot(scaled(minus(e[j], e[i])), scaled(minus(e[k], e[i])))

    s, t = student.tolist(), teacher.tolist()
    ds, dt = distances(s), distances(t)
    by_distance = sum(huber(ds[i][j], dt[i][j]) for i, j in product(range(rows), repeat=2)) / rows**2
    by_angle = sum(huber(angle(s, *at), angle(t, *at)) for at in product(range(rows), repeat=3)) / rows**3
    assert losses.relational(student, teacher).item() == pytest.approx(25 * by_distance + 50 * by_angle, rel=1e-10)
    assert losses.relational(student, teacher, 1.0, 0.0).item() == pytest.approx(by_distance, rel=1e-10)
    assert losses.relational(student, teacher, 0.0, 1.0).item() == pytest.approx(by_angle, rel=1e-10)


def test_relational_in_float32_survives_coinciding_rows() -> None:
    """The plain Gram form is off by 5e-5 here in float32, and divides rounding by rounding in the angles."""
    student, teacher = random(6, 8, dtype=torch.float32) + 10, random(6, 8, seed=1, dtype=torch.float32)
    student[3] = student[1]
    student[4] = student[1] + 1e-3 * random(8, seed=2, dtype=torch.float32)
    single = student.clone().requires_grad_()
    double = student.double().requires_grad_()
    for distance, angle in ((1.0, 0.0), (0.0, 1.0)):
        loss, exact = (losses.relational(x, teacher, distance, angle) for x in (single, double))
        assert loss.item() == pytest.approx(exact.item(), rel=1e-6)
        (gradient,), (wanted,) = torch.autograd.grad(loss, single), torch.autograd.grad(exact, double)
        torch.testing.assert_close(gradient.double(), wanted, rtol=0, atol=1e-5 * wanted.abs().max().item())


def test_relational_counts_coinciding_rows_in_the_mean_as_the_reference_does() -> None:
    student = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    teacher = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 1.0]], dtype=torch.float64)
    mean = (2 * 1e-6 + 4 * 1.0) / 6
    ours = [[0, 1e-6, 1], [1e-6, 0, 1], [1, 1, 0]]
    side = math.sqrt(1.25)
    theirs = [[0, 1, side], [1, 0, side], [side, side, 0]]
    scale = (2 + 4 * side) / 6
    cells = product(range(3), repeat=2)
    expected = sum(huber(ours[i][j] / mean, theirs[i][j] / scale) for i, j in cells) / 9
    assert losses.relational(student, teacher, 1.0, 0.0).item() == pytest.approx(expected, rel=1e-9)


def test_probabilistic_transfer() -> None:
    student, teacher = random(5, 3), random(5, 6, seed=1)

    def affinities(e: list[list[float]]) -> list[list[float]]:
        u = [[x / (math.sqrt(dot(row, row)) + 1e-7) for x in row] for row in e]
        k = [[(dot(a, b) + 1) / 2 for b in u] for a in u]
        return [[x / sum(row) for x in row] for row in k]

    s, t = affinities(student.tolist()), affinities(teacher.tolist())
    cells = list(product(range(5), repeat=2))
    expected = sum(t[i][j] * math.log((t[i][j] + 1e-7) / (s[i][j] + 1e-7)) for i, j in cells) / 25
    assert losses.probabilistic_transfer(student, teacher).item() == pytest.approx(expected, rel=1e-10)


def test_correlation_congruence() -> None:
    student, teacher = random(4, 3), random(4, 3, seed=1)
    s, t = student.tolist(), teacher.tolist()
    gap = [[abs(x) for x in minus(a, b)] for a, b in zip(s, t, strict=True)]
    neighbours = sum(dot(gap[i], gap[i + 1]) for i in range(3)) / 3
    assert losses.correlation_congruence(student, teacher).item() == pytest.approx(neighbours, rel=1e-12)

    def kernel(a: list[float], b: list[float]) -> float:
        cosine = dot(scaled(a), scaled(b))
        return math.exp(-0.8) * (1 + 0.8 * cosine + 0.8**2 / 2 * cosine**2)

    cells = list(product(range(4), repeat=2))
    matrix = sum((kernel(s[i], s[j]) - kernel(t[i], t[j])) ** 2 for i, j in cells) / 16
    assert losses.correlation_congruence(student, teacher, "matrix").item() == pytest.approx(matrix, rel=1e-12)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize(("rows", "widths"), [(5, (3, 2)), (4, (6, 3)), (3, (7, 7))])
def test_cka(kernel: str, rows: int, widths: tuple[int, int]) -> None:
    x, y = random(rows, widths[0]) + 2, random(rows, widths[1], seed=1)

    def centred(e: list[list[float]]) -> list[list[float]]:
        means = [sum(column) / rows for column in zip(*e, strict=True)]
        variance = sum(math.dist(row, means) ** 2 for row in e) / (rows - 1)
        k = [
            [dot(a, b) if kernel == "linear" else math.exp(-(math.dist(a, b) ** 2) / (2 * variance)) for b in e]
            for a in e
        ]
        row_means = [sum(row) / rows for row in k]
        total = sum(row_means) / rows
        return [[k[a][b] - row_means[a] - row_means[b] + total for b in range(rows)] for a in range(rows)]

    def product_of(a: list[list[float]], b: list[list[float]]) -> float:
        return sum(dot(p, q) for p, q in zip(a, b, strict=True))

    k, m = centred(x.tolist()), centred(y.tolist())
    expected = product_of(k, m) / math.sqrt(product_of(k, k) * product_of(m, m))
    assert losses.cka(x, y, kernel).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_cka_ignores_scale_shift_and_rotation(kernel: str) -> None:
    x, y = random(8, 5), random(8, 3, seed=1)
    rotation = torch.linalg.qr(random(5, 5, seed=2)).Q
    wanted = losses.cka(x, y, kernel).item()
    assert losses.cka(1e3 * x @ rotation + 7, 1e-3 * y, kernel).item() == pytest.approx(wanted, rel=1e-9)
    assert losses.cka(x, x @ rotation, kernel).item() == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cka_of_equal_rows_is_zero_without_gradient(kernel: str, dtype: torch.dtype) -> None:
    """0.1 is not a sum of powers of two: the mean of equal rows is off by rounding, which must not be scaled up."""
    x = torch.full((7, 5), 0.1, dtype=dtype).requires_grad_()
    y = random(7, 4, dtype=dtype).requires_grad_()
    score = losses.cka(x, y, kernel)
    gradients = torch.autograd.grad(score, [x, y])
    assert score.item() == 0
    assert all(gradient.abs().max() == 0 for gradient in gradients)


@pytest.mark.parametrize(
    ("student_shape", "teacher_shape"),
    [
        ((2, 3, 4, 4), (2, 5, 4, 4)),
        ((2, 6, 2, 2), (2, 5, 2, 2)),
        ((2, 3, 4, 4), (2, 7, 2, 2)),
        ((2, 2, 2, 3), (2, 4, 2, 3)),
    ],
)
def test_neuron_selectivity(student_shape: tuple[int, ...], teacher_shape: tuple[int, ...]) -> None:
    """Both ways of computing it (over channels, over positions), with and without pooling."""
    student, teacher = random(*student_shape), random(*teacher_shape, seed=1)
    size = min(student_shape[2], teacher_shape[2])
    pool = size, min(student_shape[3], teacher_shape[3])
    s, t = (F.adaptive_avg_pool2d(x, pool).flatten(2).tolist() for x in (student, teacher))

    def kernel(first: list, second: list) -> float:
        per_sample = [
            sum(dot(scaled(a), scaled(b)) ** 2 for a in first[n] for b in second[n]) / len(first[n]) / len(second[n])
            for n in range(len(first))
        ]
        return sum(per_sample) / len(per_sample)

    expected = kernel(t, t) + kernel(s, s) - 2 * kernel(s, t)
    assert losses.neuron_selectivity(student, teacher).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("variant", ["code", "paper"])
def test_attention_transfer(power: int, variant: str) -> None:
    student, teacher = random(2, 3, 6, 6), random(2, 5, 4, 4, seed=1)  # 6 is no multiple of 4: adaptive pooling
    s, t = F.adaptive_avg_pool2d(student, 4).tolist(), teacher.tolist()

    def attention(maps: list) -> list[float]:
        values = [[abs(x) if variant == "paper" else x for row in channel for x in row] for channel in maps]
        return scaled([sum(channel[p] ** power for channel in values) / len(values) for p in range(16)])

    gaps = [minus(attention(a), attention(b)) for a, b in zip(s, t, strict=True)]
    if variant == "code":
        expected = sum(dot(gap, gap) for gap in gaps) / (2 * 16)
    else:
        expected = sum(math.sqrt(dot(gap, gap)) for gap in gaps) / 2
    assert losses.attention_transfer(student, teacher, power, variant).item() == pytest.approx(expected, rel=1e-10)


def test_flow() -> None:
    student_a, student_b = random(2, 3, 4, 4), random(2, 2, 2, 2, seed=1)
    teacher_a, teacher_b = random(2, 3, 2, 2, seed=2), random(2, 2, 4, 4, seed=3)

    def matrix(a: Tensor, b: Tensor, sample: int) -> list[list[float]]:
        first, second = (F.adaptive_avg_pool2d(x, 2)[sample].flatten(1).tolist() for x in (a, b))
        return [[dot(q, p) / 4 for p in first] for q in second]

    total = 0.0
    for n in (0, 1):
        s, t = matrix(student_a, student_b, n), matrix(teacher_a, teacher_b, n)
        total += sum((s[i][j] - t[i][j]) ** 2 for i in range(2) for j in range(3))
    ours = losses.flow(student_a, student_b, teacher_a, teacher_b).item()
    assert ours == pytest.approx(total / (2 * 2 * 3), rel=1e-12)


def test_crd_nce() -> None:
    scores, n_data = random(3, 5).abs() * 0.01, 20
    c, total = 4 / n_data, 0.0
    for row in scores.tolist():
        total += math.log(row[0] / (row[0] + c + 1e-7)) + sum(math.log(c / (p + c + 1e-7)) for p in row[1:])
    assert losses.crd_nce(scores, n_data).item() == pytest.approx(-total / 3, rel=1e-12)


@pytest.mark.parametrize("norm", ["spatial", "vector"])
@pytest.mark.parametrize("power", [1, 2])
def test_factor_transfer(norm: str, power: int) -> None:
    student, teacher = random(2, 3, 2, 2), random(2, 3, 4, 4, seed=1)
    s, t = student.flatten(2).tolist(), F.avg_pool2d(teacher, 2).flatten(2).tolist()

    def factor(channels: list[list[float]]) -> list[float]:
        if norm == "vector":
            return scaled([x for channel in channels for x in channel])
        return scaled([sum(channel[p] ** 2 for channel in channels) / 3 for p in range(4)])

    gaps = [abs(x) ** power for a, b in zip(s, t, strict=True) for x in minus(factor(a), factor(b))]
    ours = losses.factor_transfer(student, teacher, norm, power).item()
    assert ours == pytest.approx(sum(gaps) / len(gaps), rel=1e-10)


def test_activation_boundary_and_variational_information() -> None:
    student, teacher, log_scale = random(2, 3, 2, 2), random(2, 3, 2, 2, seed=1), random(3, seed=2)
    s, t = student.flatten(2).tolist(), teacher.flatten(2).tolist()
    boundary, likelihood = 0.0, 0.0
    for n, c, p in product(range(2), range(3), range(4)):
        a, b = s[n][c][p], t[n][c][p]
        boundary += max(0.0, 0.5 - a) ** 2 if b > 0 else max(0.0, a + 0.5) ** 2
        variance = math.log(1 + math.exp(log_scale[c].item())) + 1e-5
        likelihood += ((a - b) ** 2 / variance + math.log(variance)) / 2
    assert losses.activation_boundary(student, teacher, 0.5).item() == pytest.approx(boundary / 2, rel=1e-12)
    ours = losses.variational_information(student, teacher, log_scale).item()
    assert ours == pytest.approx(likelihood / 24, rel=1e-12)


def test_pearson_is_the_correlation_coefficient() -> None:
    a, b = random(4, 6) + 3, random(4, 6, seed=1)
    expected = [torch.corrcoef(torch.stack([a[i], b[i]]))[0, 1].item() for i in range(4)]
    assert losses.pearson(a, b).tolist() == pytest.approx(expected, rel=1e-10)
    many = torch.stack([b, 2 * a + 1, -a], dim=1)  # [4, 3, 6]
    against = losses.pearson(a[:, None], many)
    assert against.shape == (4, 3)
    assert against[:, 0].tolist() == pytest.approx(expected, rel=1e-10)
    assert against[:, 1:].tolist() == [pytest.approx([1, -1], abs=1e-10)] * 4


def test_pearson_of_a_constant_row_is_zero_without_gradient() -> None:
    a = torch.full((1, 7), 0.1).requires_grad_()
    b = random(1, 7, dtype=torch.float32).requires_grad_()
    score = losses.pearson(a, b)
    assert score.tolist() == [0]
    assert all(gradient.abs().max() == 0 for gradient in torch.autograd.grad(score.sum(), [a, b]))


def test_kld_has_the_sign_that_makes_it_a_divergence() -> None:
    """The printed +H - p log q exceeds it by twice the teacher's entropy and is not 0 at equality."""
    student, teacher = random(4, 5), random(4, 5, seed=1)
    p, q = F.softmax(teacher / 3, 1), F.log_softmax(student / 3, 1)
    entropy = -(p * p.log()).sum(1).mean()
    printed = entropy - (p * q).sum(1).mean()
    ours = losses.kld(student, teacher, 3.0)
    assert ours.item() > 0
    assert (9 * printed - ours).item() == pytest.approx(9 * 2 * entropy.item(), rel=1e-12)
    assert losses.kld(teacher + 2, teacher).item() == pytest.approx(0, abs=1e-12)


def test_kld_gradient_keeps_its_size_with_the_temperature() -> None:
    student, teacher = (1e-3 * random(4, 5)).requires_grad_(), 1e-3 * random(4, 5, seed=1)
    small, large = (torch.autograd.grad(losses.kld(student, teacher, t), student)[0] for t in (1.0, 100.0))
    torch.testing.assert_close(small, large, rtol=0, atol=1e-3 * large.abs().max().item())


def units(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(random(*shape, seed=seed), dim=-1)


def test_info_nce_is_cross_entropy_of_class_zero() -> None:
    anchor, positive, negatives = units(4, 6), units(4, 6, seed=1), units(4, 5, 6, seed=2)
    logits = torch.cat([(anchor * positive).sum(1, keepdim=True), torch.einsum("bd,bmd->bm", anchor, negatives)], 1)
    expected = F.cross_entropy(logits / 0.07, torch.zeros(4, dtype=torch.long)).item()
    assert losses.info_nce(anchor, positive, negatives).item() == pytest.approx(expected, rel=1e-12)
    shared = losses.info_nce(anchor, positive, negatives[0])
    repeated = losses.info_nce(anchor, positive, negatives[:1].expand(4, -1, -1))
    assert shared.item() == pytest.approx(repeated.item(), rel=1e-12)
    single = losses.info_nce(anchor, positive, negatives[:, :1], temperature=1.0)
    gap = (anchor * negatives[:, 0]).sum(1) - (anchor * positive).sum(1)
    assert single.item() == pytest.approx(F.softplus(gap).mean().item(), rel=1e-12)


def test_info_nce_with_log_counts_equals_repeated_negatives() -> None:
    anchor, positive, negatives = units(3, 6), units(3, 6, seed=1), units(3, 4, 6, seed=2)
    counts = torch.tensor([[1, 3, 0, 2], [2, 0, 0, 4], [0, 6, 0, 0]])
    anchor.requires_grad_()
    rows = [negatives[i].repeat_interleave(counts[i], dim=0) for i in range(3)]
    repeated = losses.info_nce(anchor, positive, torch.stack(rows), temperature=0.2)
    weights = counts.double().log()  # log 0 = -inf: absent
    weighted = losses.info_nce(anchor, positive, negatives, log_weights=weights, temperature=0.2)
    similarities = torch.einsum("bd,bmd->bm", anchor, negatives)
    by_logits = losses.info_nce(
        anchor, (anchor * positive).sum(1), logits=similarities, log_weights=weights, temperature=0.2
    )
    (wanted,) = torch.autograd.grad(repeated, anchor)
    for loss in (weighted, by_logits):
        assert loss.item() == pytest.approx(repeated.item(), rel=1e-12)
        torch.testing.assert_close(torch.autograd.grad(loss, anchor)[0], wanted, rtol=1e-9, atol=1e-12)


def test_info_nce_over_all_other_rows_equals_the_full_softmax() -> None:
    """Every row of a table but the target's own as negatives: OIM without a queue."""
    table, anchor = units(6, 4), units(3, 4, seed=1)
    targets = torch.tensor([0, 2, 5])
    others = torch.stack([torch.cat([table[:t], table[t + 1 :]]) for t in targets.tolist()])
    expected = losses.oim(anchor, targets, table).item()
    assert losses.oim(anchor, targets.int(), table).item() == expected
    assert losses.info_nce(anchor, table[targets], others, temperature=0.1).item() == pytest.approx(expected, rel=1e-12)
    absent = F.one_hot(targets, 6).double().log1p().mul(-torch.inf).nan_to_num(0.0, neginf=-torch.inf)
    masked = losses.info_nce(anchor, table[targets], logits=anchor @ table.T, log_weights=absent, temperature=0.1)
    assert masked.item() == pytest.approx(expected, rel=1e-12)


def test_info_nce_of_several_positives_is_the_mean_over_them() -> None:
    anchor, positives, negatives = units(6, 5).requires_grad_(), units(6, 3, 5, seed=1), units(6, 7, 5, seed=2)
    weights = random(6, 7, seed=3)
    weights[0, :2] = -torch.inf
    weights[1] = -torch.inf  # no negative at all
    several = losses.info_nce(anchor, positives, negatives, log_weights=weights, temperature=0.2)
    each = [losses.info_nce(anchor, positives[:, p], negatives, log_weights=weights, temperature=0.2) for p in range(3)]
    mean = torch.stack(each).mean()
    assert several.item() == pytest.approx(mean.item(), rel=1e-12)
    ours, wanted = (torch.autograd.grad(loss, anchor)[0] for loss in (several, mean))
    torch.testing.assert_close(ours, wanted, rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match=r"positive \[batch, p, d\] of the same width; got \[6, 5\]"):
        losses.info_nce(anchor, positives[..., :4], negatives)


def test_info_nce_of_several_positives_needs_no_unit_vectors() -> None:
    """Where all similarities are far below 0 it is their differences that count; without negatives it is 0 too."""
    anchor = 100 * random(6, 5)
    positives, negatives = (-anchor[:, None] * torch.linspace(0.8, 1.2, m)[:, None] for m in (3, 4))
    several = losses.info_nce(anchor, positives, negatives)
    mean = torch.stack([losses.info_nce(anchor, positives[:, p], negatives) for p in range(3)]).mean()
    assert several.item() == pytest.approx(mean.item(), rel=1e-12)
    absent = torch.full((6, 4), -torch.inf, dtype=torch.float64)
    assert losses.info_nce(anchor, positives, logits=absent).item() == 0


def test_info_nce_of_several_positives_far_below_zero() -> None:
    """Long vectors that all point away: the sum is what it is, and absent negatives stay absent."""
    anchor = torch.full((2, 1), 1000.0)
    positives, logits = torch.full((2, 2, 1), -3.0), torch.tensor([[-2900.0, -2950.0], [-torch.inf, -torch.inf]])
    several = losses.info_nce(anchor, positives, logits=logits, temperature=0.1)
    assert several.item() == pytest.approx((-2900 + 3000) / 0.1 / 2)
    plain = losses.info_nce(anchor, positives[:, 0], logits=logits, temperature=0.1)
    assert several.item() == pytest.approx(plain.item())


@pytest.mark.parametrize("given", ["log_weights", "logits"])
def test_info_nce_without_any_negative_is_zero(given: str) -> None:
    anchor, positive = units(2, 3).requires_grad_(), units(2, 3, seed=1)
    similarities = anchor @ units(4, 3, seed=2).T
    nothing = torch.full((2, 4), -torch.inf, dtype=torch.float64)
    nothing[1, 0] = 0
    if given == "log_weights":
        loss = losses.info_nce(anchor, positive, logits=similarities, log_weights=nothing)
    else:
        loss = losses.info_nce(anchor, positive, logits=similarities + nothing)
    (gradient,) = torch.autograd.grad(loss, anchor)
    alone = losses.info_nce(anchor[1:], positive[1:], logits=similarities[1:, :1])
    assert loss.item() == pytest.approx(alone.item() / 2, rel=1e-12)
    assert gradient[0].abs().max() == 0
    assert bool(gradient.isfinite().all())


def test_info_nce_gradient_is_the_papers() -> None:
    anchor, positive, negatives = units(1, 4).requires_grad_(), units(1, 4, seed=1), units(1, 5, 4, seed=2)
    (gradient,) = torch.autograd.grad(losses.info_nce(anchor, positive, negatives, temperature=0.3), anchor)
    candidates = torch.cat([positive[:, None], negatives], 1)[0]
    share = F.softmax(candidates @ anchor[0].detach() / 0.3, 0)
    expected = (-(1 - share[0]) * positive[0] + share[1:] @ negatives[0]) / 0.3
    torch.testing.assert_close(gradient[0], expected, rtol=1e-10, atol=1e-12)


def test_info_nce_stays_exact_in_float32_where_it_is_small() -> None:
    gap = 12.0  # the loss is e^-12 = 6e-6, below the rounding of 1 / 0.07
    anchor = torch.tensor([[1.0, 0.0]])
    negative = torch.tensor([[1.0 - gap * 0.07]])
    loss = losses.info_nce(anchor, torch.ones(1), logits=negative)
    assert loss.item() == pytest.approx(math.exp(-gap), rel=1e-4)


def test_oim_gradient_is_minus_the_printed_one() -> None:
    table, queue, anchor = units(5, 4), units(3, 4, seed=1), units(1, 4, seed=2).requires_grad_()
    (gradient,) = torch.autograd.grad(losses.oim(anchor, torch.tensor([2]), table, queue, temperature=0.2), anchor)
    share = F.softmax(torch.cat([table, queue]) @ anchor[0].detach() / 0.2, 0)
    p, q = share[:5], share[5:]
    others = [0, 1, 3, 4]
    printed = ((1 - p[2]) * table[2] - p[others] @ table[others] - q @ queue) / 0.2
    torch.testing.assert_close(gradient[0], -printed, rtol=1e-10, atol=1e-12)


def test_oim_leaves_masked_slots_out() -> None:
    table, queue, anchor = units(5, 4), units(3, 4, seed=1), units(2, 4, seed=2).requires_grad_()
    targets = torch.tensor([1, 4])
    for mask in (torch.tensor([True, False, True]), torch.tensor([[True, False, True], [False, False, False]])):
        loss = losses.oim(anchor, targets, table, queue, queue_mask=mask)
        rows = mask.expand(2, 3)
        single = [losses.oim(anchor[i : i + 1], targets[i : i + 1], table, queue[rows[i]]) for i in range(2)]
        assert loss.item() == pytest.approx(sum(x.item() for x in single) / 2, rel=1e-12)
        assert bool(torch.autograd.grad(loss, anchor)[0].isfinite().all())


def test_mixed_targets() -> None:
    first, second, nu = 4 * random(3, 5), 4 * random(3, 5, seed=1), torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    share = nu[:, None]
    by_logits = losses.mixed_targets(first, second, nu, 2.0)
    torch.testing.assert_close(by_logits, F.softmax((share * first + (1 - share) * second) / 2, 1))
    torch.testing.assert_close(by_logits[0], F.softmax(second[0] / 2, 0))
    torch.testing.assert_close(by_logits[2], F.softmax(first[2] / 2, 0))
    y, z = F.softmax(first / 2, 1), F.softmax(second / 2, 1)
    by_probability = losses.mixed_targets(first, second, nu, 2.0, target="probs")
    torch.testing.assert_close(by_probability, share * y + (1 - share) * z)
    literal = losses.mixed_targets(first, second, nu, 2.0, target="literal")
    torch.testing.assert_close(literal, F.softmax((share * y + (1 - share) * z) / 2, 1))
    for target in (by_logits, by_probability, literal):
        assert target.sum(1).tolist() == pytest.approx([1, 1, 1])
    scalar = losses.mixed_targets(first, second, 0.3, 2.0)
    torch.testing.assert_close(scalar[1], by_logits[1])
    mirrored = losses.mixed_targets(second, first, 1 - nu, 2.0)
    torch.testing.assert_close(mirrored, by_logits)


def test_the_printed_mixed_target_is_nearly_uniform() -> None:
    sure = 1e3 * torch.eye(100, dtype=torch.float64)[:1]
    literal = losses.mixed_targets(sure, sure, 0.5, 1.0, target="literal")
    assert literal.max().item() == pytest.approx(math.e / (math.e + 99), rel=1e-12)


def test_mixed_logits_are_the_prediction_at_the_mixed_latent() -> None:
    classifier, bias = random(5, 4), random(5, seed=1)
    first, second, nu = random(3, 4, seed=2), random(3, 4, seed=3), torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    mixed = nu[:, None] * first + (1 - nu[:, None]) * second
    expected = F.softmax((mixed @ classifier.T + bias) / 4, 1)
    ours = losses.mixed_targets(first @ classifier.T + bias, second @ classifier.T + bias, nu, 4.0)
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(("classes", "temperature"), [(10, 0.2276), (100, 0.1472), (200, 0.1335)])
def test_label_mixture(classes: int, temperature: float) -> None:
    first, second = torch.tensor([1, 3, 2]), torch.tensor([4, 3, 0])
    nu = torch.tensor([0.7, 0.4, 1.0], dtype=torch.float64)
    target = losses.label_mixture(first, second, nu, classes)
    assert target.shape == (3, classes)
    assert target.sum(1).tolist() == pytest.approx([1, 1, 1])
    tau = 1 / math.log(0.9 * (classes - 1) / 0.1)
    assert tau == pytest.approx(temperature, abs=5e-5)
    total = math.exp(0.7 / tau) + math.exp(0.3 / tau) + classes - 2
    assert target[0, 1].item() == pytest.approx(math.exp(0.7 / tau) / total, rel=1e-12)
    assert target[0, 4].item() == pytest.approx(math.exp(0.3 / tau) / total, rel=1e-12)
    assert target[0, 0].item() == pytest.approx(1 / total, rel=1e-12)
    assert target[1, 3].item() == pytest.approx(0.9, rel=1e-12)  # a label mixed with itself is pure
    assert target[2, 2].item() == pytest.approx(0.9, rel=1e-12)
    assert losses.label_mixture(first, second, 0.5, classes, smoothing=0.2).dtype == torch.float32


def test_soft_cross_entropy() -> None:
    logits, targets = random(3, 4), F.softmax(random(3, 4, seed=1), 1)
    expected = -sum(dot(t, q) for t, q in zip(targets.tolist(), F.log_softmax(logits, 1).tolist(), strict=True)) / 3
    assert losses.soft_cross_entropy(logits, targets).item() == pytest.approx(expected, rel=1e-12)
    hard = torch.tensor([1, 0, 3])
    assert losses.soft_cross_entropy(logits, F.one_hot(hard, 4).double()).item() == pytest.approx(
        F.cross_entropy(logits, hard).item(), rel=1e-12
    )


def test_triplet_hinge() -> None:
    positive, negative = random(6), random(6, seed=1)
    pairs = zip(positive.tolist(), negative.tolist(), strict=True)
    expected = sum(max(0.0, 0.7 * n - 0.3 * p + 0.4) for p, n in pairs) / 6
    assert losses.triplet_hinge(positive, negative, 0.3, 0.4).item() == pytest.approx(expected, rel=1e-12)
