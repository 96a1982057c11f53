"""Similarities of representations, Pearson's and CKA, and the hinge the paper puts on them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from scns.errors import InputError
from scns.functional.geometry import deviations, reciprocal, squared_distances
from scns.functional.inputs import (
    check_choice,
    check_matrices,
    check_positive,
    check_shapes,
    check_share,
    full_precision,
)


@full_precision
def pearson(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation of each row of a with the same row of b, over the last dimension: [batch], no mean.

    <a - mean a, b - mean b> / (|a - mean a| |b - mean b| + 1e-12)

    The paper's rho, per sample over features, so both sides need one width. Leading dimensions may be more
    than one, and of size 1 on one side ([batch, 1, d] with [batch, m, d]). A constant row has correlation 0
    with gradient 0.
    """
    if (
        a.ndim != b.ndim
        or not a.ndim
        or a.shape[-1] != b.shape[-1]
        or any(n != m and 1 not in (n, m) for n, m in zip(a.shape, b.shape, strict=True))
    ):
        raise InputError(f"a and b need the same rows and width; got {list(a.shape)} and {list(b.shape)}.")
    (a, a_length), (b, b_length) = deviations(a, -1, (-1,)), deviations(b, -1, (-1,))
    return (a * b).sum(-1) / (a_length * b_length + 1e-12).squeeze(-1)


@full_precision
def cka(x: Tensor, y: Tensor, kernel: str = "linear") -> Tensor:
    """Centred kernel alignment of two representations of the same samples, in [0, 1] (Kornblith et al., 2019).

    <HKH, HLH>_F / (|HKH|_F |HLH|_F),  K = X X^T or exp(-|x_a - x_b|^2 / (2 S^2)),  H = I - 11^T / n

    The paper's Eq. cka_def, which prints the centring alone. x [n, d1] and y [n, d2] pair their rows; widths
    may differ. It is a similarity: minimise 1 - cka. S^2 of kernel "rbf" is each matrix's total unbiased
    variance without gradient, so the mean exponent is -1 at any scale. Where all rows are equal the result is
    0 with gradient 0; two rows always give 1, hence three are asked for. Memory: n^2, or d1 x d2 where both
    widths are below n.
    """
    check_choice("kernel", kernel, ("linear", "rbf"))
    check_matrices(x, y, "x and y", rows=3, why=", CKA of two being 1 whatever they are")
    first, second = _standard(x), _standard(y)
    if kernel == "linear" and max(first.shape[1], second.shape[1]) < first.shape[0]:
        overlap = (first.T @ second).square().sum()
        first, second = first.T @ first, second.T @ second
    else:
        gram = _linear_gram if kernel == "linear" else _rbf_gram
        first, second = gram(first), gram(second)
        overlap = (first * second).sum()
    sizes = torch.linalg.vector_norm(first) * torch.linalg.vector_norm(second)
    return (overlap * reciprocal(sizes, where=sizes > 0)).to(x.dtype)


def _standard(rows: Tensor) -> Tensor:
    """Rows centred and scaled to a total squared deviation of 1, or all 0."""
    centred, length = deviations(rows, 0, (0, 1))
    return centred * reciprocal(length, where=length > 0).detach()  # CKA does not depend on it: no gradient


def _linear_gram(standard: Tensor) -> Tensor:
    return standard @ standard.T


def _rbf_gram(standard: Tensor) -> Tensor:
    """The centred RBF kernel in float64; the variance of standard rows is 1 / (n - 1)."""
    gram = torch.exp(squared_distances(standard) * (-(standard.shape[0] - 1) / 2))
    return gram - gram.mean(0) - gram.mean(1, keepdim=True) + gram.mean()


@full_precision
def triplet_hinge(positive: Tensor, negative: Tensor, zeta: float = 0.2, margin: float = 0.2) -> Tensor:
    """Hinge that raises the positive similarities and lowers the negative ones, mean over the batch.

    mean relu((1 - zeta) negative - zeta positive + margin)

    The paper's triplet CKA and Pearson losses (Eq. triplet_cka, pc_loss) with the sign that learns: printed
    is zeta positive - (1 - zeta) negative + margin, which lowers the positive ones when minimised. For the
    printed form call triplet_hinge(negative, positive, 1 - zeta, margin). The margin is unstated; at zeta 0.2
    sums of two similarities reach at most 0.4, so any margin from 0.4 up never lets the hinge rest.
    """
    check_share("zeta", zeta)
    check_positive("margin", margin, zero=True)
    check_shapes(positive, negative, "positive and negative")
    return F.relu((1 - zeta) * negative - zeta * positive + margin).mean()
