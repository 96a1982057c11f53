"""Losses between the relations of samples in a batch, as the student and as the teacher see them."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from scns.errors import InputError
from scns.functional.geometry import reciprocal, squared_distances, unit
from scns.functional.inputs import (
    check_batch,
    check_choice,
    check_matrices,
    check_positive,
    check_shapes,
    full_precision,
)

_EMBEDDINGS = "student_embedding and teacher_embedding"

# Correlation congruence's Gaussian kernel: its width and the order of its Taylor series, as in that paper.
_GAMMA, _ORDER = 0.4, 2
_PKT_EPS = 1e-7  # as in the reference; 1e-6 elsewhere


@full_precision
def similarity_preserving(student_map: Tensor, teacher_map: Tensor) -> Tensor:
    """Mean squared difference of the two row-normalised Gram matrices: SP (Tung and Mori, 2019).

    |G_t - G_s|_F^2 / B^2,  G = X X^T with each row over its L2 length

    Maps are flattened to [batch, features]; student and teacher may differ in size. Rows are L2-normalised as
    in the SP paper (one library divides by their L1 length). A batch of one always gives 0. Memory: batch^2.
    """
    check_batch(student_map, teacher_map, "student_map and teacher_map")
    student, teacher = student_map.flatten(1), teacher_map.detach().flatten(1)
    return F.mse_loss(unit(student @ student.T), unit(teacher @ teacher.T))


@full_precision
def correlation_congruence(student_embedding: Tensor, teacher_embedding: Tensor, variant: str = "neighbours") -> Tensor:
    """Distance between how samples correlate in the two embeddings: CC (Peng et al., 2019).

    neighbours: mean_i sum_d D_id D_(i+1)d,  D = |e_s - e_t|
    matrix: |K_s - K_t|_F^2 / B^2,  K_ij = e^(-2g) sum_(p<=2) (2g)^p / p! (u_i . u_j)^p,  g = 0.4, u unit rows

    "neighbours", the default, is what the CC authors gave the field's reference and what published numbers
    use: it depends on the order of the batch and needs one width. "matrix" is the formula of their paper (a
    Gaussian kernel's Taylor series) and compares any widths. Both sides get a gradient: each has a trained
    projection. Memory: batch^2 for "matrix".
    """
    check_choice("variant", variant, ("neighbours", "matrix"))
    why = " because correlation_congruence compares samples with each other"
    check_matrices(student_embedding, teacher_embedding, _EMBEDDINGS, rows=2, why=why)
    if variant == "matrix":
        return F.mse_loss(_gaussian_series(student_embedding), _gaussian_series(teacher_embedding))
    check_shapes(student_embedding, teacher_embedding, _EMBEDDINGS)
    gap = (student_embedding - teacher_embedding).abs()
    return (gap[:-1] * gap[1:]).sum(1).mean()


def _gaussian_series(embedding: Tensor) -> Tensor:
    rows = unit(embedding)
    cosine = rows @ rows.T
    terms = [(2 * _GAMMA) ** p / math.factorial(p) * cosine**p for p in range(1, _ORDER + 1)]  # p = 0 cancels
    return math.exp(-2 * _GAMMA) * sum(terms[1:], terms[0])


@full_precision
def relational(
    student_embedding: Tensor, teacher_embedding: Tensor, distance: float = 25.0, angle: float = 50.0
) -> Tensor:
    """Smooth-L1 differences of all pairwise distances and all angles of triples: RKD (Park et al., 2019).

    distance * huber(D_s, D_t) + angle * huber(A_s, A_t),  D_ij = |e_i - e_j| / mean,  A_ijk = cos(e_j - e_i, e_k - e_i)

    Means over all B^2 and B^3 entries, zeros of equal indices included; the mean distance is over unequal
    ones. Weights 25 and 50 are the reference's; a weight of 0 leaves that part out. Squared distances are
    clamped at 1e-12 as in the reference, but summed in float64, so that near-coinciding rows do not cancel in
    float32. An angle at coinciding rows (distance below 1e-7 of the rows' size) is 0 with gradient 0. Memory:
    batch^3 angles, by the law of cosines from batch^2 distances, with no batch^2 x width differences.
    """
    check_positive("distance", distance, zero=True)
    check_positive("angle", angle, zero=True)
    if distance == 0 and angle == 0:
        raise InputError("relational got the weights distance 0 and angle 0; one of them must be above 0.")
    why = " because relational compares samples with each other"
    check_matrices(student_embedding, teacher_embedding, _EMBEDDINGS, rows=2, why=why)
    student, teacher = squared_distances(student_embedding), squared_distances(teacher_embedding.detach())
    parts = []
    if distance > 0:
        gap = F.smooth_l1_loss(_relative_distances(student), _relative_distances(teacher))
        parts.append(distance * gap.to(student_embedding.dtype))
    if angle > 0:
        dtype = student_embedding.dtype
        parts.append(angle * F.smooth_l1_loss(_angles(student, dtype), _angles(teacher, dtype)))
    return sum(parts[1:], parts[0])


def _relative_distances(squared: Tensor) -> Tensor:
    rows = squared.shape[0]
    itself = torch.eye(rows, dtype=torch.bool, device=squared.device)
    distances = squared.clamp_min(1e-12).sqrt().masked_fill(itself, 0.0)
    return distances / (distances.sum() / (rows * (rows - 1)))


def _angles(squared: Tensor, dtype: torch.dtype) -> Tensor:
    """Cosines of the angles at i between j and k, [i, j, k]."""
    apart = squared > 0
    length = torch.where(apart, squared, 1.0).sqrt().clamp_min(1e-12)  # as F.normalize has it; squares fit float32
    inverse = reciprocal(length, where=apart).to(dtype)
    doubled = (squared[:, :, None] + squared[:, None, :]).sub_(squared[None, :, :]).to(dtype)  # cancels: in float64
    return doubled * (inverse[:, :, None] * (inverse[:, None, :] / 2))


@full_precision
def probabilistic_transfer(student_embedding: Tensor, teacher_embedding: Tensor) -> Tensor:
    """Mean divergence of the two affinity distributions over the batch: PKT (Passalis and Tefas, 2018).

    mean over B^2 of Q_t ln((Q_t + e) / (Q_s + e)),  Q = rows of (u u^T + 1) / 2 over their sums,  u = x / (|x| + e)

    e = 1e-7 as in the reference; the diagonal is kept and the mean is over all entries (hence weights of
    1e4). A zero row gets gradient 0, where the formula taken literally gives NaN. Memory: batch^2.
    """
    check_matrices(student_embedding, teacher_embedding, _EMBEDDINGS)
    student, teacher = _affinities(student_embedding), _affinities(teacher_embedding.detach())
    return (teacher * ((teacher + _PKT_EPS).log() - (student + _PKT_EPS).log())).mean()


def _affinities(embedding: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(embedding, dim=1, keepdim=True)
    rows = embedding * reciprocal(length + _PKT_EPS, where=length > 0)
    kernel = (rows @ rows.T + 1) / 2
    return kernel / kernel.sum(1, keepdim=True)
