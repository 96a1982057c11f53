"""Losses between feature maps [batch, channels, height, width] of a student and a teacher, one pair of layers each."""

import torch
import torch.nn.functional as F
from torch import Tensor

from scns.errors import InputError
from scns.functional.geometry import match, unit
from scns.functional.inputs import (
    check_batch,
    check_choice,
    check_positive,
    check_power,
    check_shapes,
    full_precision,
)

_MAPS = "student_map and teacher_map"


@full_precision
def hint(student_map: Tensor, teacher_map: Tensor) -> Tensor:
    """Mean squared difference of the student's regressed map and the teacher's: FitNets (Romero et al., 2015).

    mean over all elements of (student - teacher)^2

    The FitNets paper has half the sum; the mean is what implementations share and what published weights belong to.
    """
    check_shapes(student_map, teacher_map, _MAPS)
    return F.mse_loss(student_map, teacher_map.detach())


@full_precision
def attention_transfer(student_map: Tensor, teacher_map: Tensor, power: int = 2, variant: str = "code") -> Tensor:
    """Distance between the two spatial attention maps: attention transfer (Zagoruyko and Komodakis, 2017).

    mean over B, P of (A_s - A_t)^2,  A(f) = a / max(|a|, 1e-12),  a = mean_c f^power flattened over positions P

    `variant="code"`, the default, is the form of the authors' code, which the usual weight of 1000 belongs
    to; its plain power keeps the sign of negative activations when it is odd. "paper" is their Eq. (2):
    |f|^power and the un-squared length |A_s - A_t|_2, averaged over the batch. Maps of different size are
    matched first.
    """
    check_choice("variant", variant, ("code", "paper"))
    check_power(power, whole=True)
    student_map, teacher_map = _matched(student_map, teacher_map)
    if variant == "code":
        return F.mse_loss(_attention(student_map, power), _attention(teacher_map, power))
    gap = _attention(student_map.abs(), power) - _attention(teacher_map.abs(), power)
    return torch.linalg.vector_norm(gap, dim=1).mean()


@full_precision
def variational_information(mean: Tensor, teacher_map: Tensor, log_scale: Tensor, eps: float = 1e-5) -> Tensor:
    """Gaussian negative log-likelihood of the teacher's map given the student's: VID (Ahn et al., 2019).

    mean over B, C, P of ((mean - teacher)^2 / var + ln var) / 2,  var_c = ln(1 + e^(log_scale_c)) + eps

    mean is what the student's regressor predicts for teacher_map, log_scale [channels] is trained with it.
    The constant ln(2 pi) / 2 is left out, so the loss can be negative. eps 1e-5 as in the reference (1e-6
    elsewhere). Match maps of different size before the regressor.
    """
    check_positive("eps", eps, zero=True)
    check_shapes(mean, teacher_map, "mean and teacher_map")
    if mean.ndim < 2 or log_scale.shape != mean.shape[1:2]:
        raise InputError(f"log_scale must have one value a channel of {list(mean.shape)}; got {list(log_scale.shape)}.")
    variance = F.softplus(log_scale, threshold=40.0) + eps  # from 40 on softplus(x) is x to the last bit of float64
    channels = variance.reshape(-1, *[1] * (mean.ndim - 2))
    return ((mean - teacher_map.detach()).square() / channels).mean() / 2 + variance.log().mean() / 2


@full_precision
def activation_boundary(student_preact: Tensor, teacher_preact: Tensor, margin: float = 1.0) -> Tensor:
    """Squared hinge that puts each student neuron on the teacher's side of zero: AB (Heo et al., 2019).

    (1/B) sum over elements of relu(margin - s)^2 where t > 0, relu(margin + s)^2 where t <= 0

    s after its connector, t before the teacher's activation. A sum over elements, not a mean: the reference
    weights layer i of L by 0.003 * 2^(i - L + 1), which its method applies.
    """
    check_positive("margin", margin, zero=True)
    check_shapes(student_preact, teacher_preact, "student_preact and teacher_preact")
    wrong_side = torch.where(teacher_preact > 0, -1.0, torch.where(teacher_preact <= 0, 1.0, torch.nan))  # NaN stays
    return F.relu(margin + wrong_side * student_preact).square().sum() / student_preact.shape[0]


@full_precision
def factor_transfer(student_factor: Tensor, teacher_factor: Tensor, norm: str = "spatial", power: int = 1) -> Tensor:
    """Mean difference of the normalised factors of student and teacher: factor transfer (Kim et al., 2018).

    mean |N(f_s) - N(f_t)|^power

    `norm="spatial"`, the default because published weights and results come from it, is the reference's N(f)
    = unit(mean_c f^2) over positions. "vector" is the FT paper's unit vector of the whole factor (channels
    and positions), which needs equal channels. Factors of different size are matched first.
    """
    check_choice("norm", norm, ("spatial", "vector"))
    check_power(power)
    student_factor, teacher_factor = _matched(student_factor, teacher_factor, "student_factor and teacher_factor")
    if norm == "spatial":
        gap = _attention(student_factor, 2) - _attention(teacher_factor, 2)
    else:
        check_shapes(student_factor, teacher_factor, "student_factor and teacher_factor")
        gap = unit(student_factor.flatten(1)) - unit(teacher_factor.flatten(1))
    return gap.abs().pow(power).mean()


@full_precision
def flow(student_a: Tensor, student_b: Tensor, teacher_a: Tensor, teacher_b: Tensor) -> Tensor:
    """Mean squared difference of how channels go together in two consecutive maps: FSP (Yim et al., 2017).

    mean over B and the matrix of (G_s - G_t)^2,  G = (1/P) sum_p b(p) a(p)^T

    The larger of a and b is average-pooled to the smaller, per network (others max-pool). Student and teacher
    need the same channels.
    """
    check_batch(student_a, student_b, "student_a and student_b")
    check_batch(teacher_a, teacher_b, "teacher_a and teacher_b")
    student = _flow_matrix(student_a, student_b)
    teacher = _flow_matrix(teacher_a.detach(), teacher_b.detach())
    check_shapes(student, teacher, "flow matrices [batch, channels of b, channels of a] of student and teacher")
    return F.mse_loss(student, teacher)


def _flow_matrix(a: Tensor, b: Tensor) -> Tensor:
    a, b = match(a, b)
    return torch.bmm(b.flatten(2), a.flatten(2).transpose(1, 2)) / (a.shape[2] * a.shape[3])


@full_precision
def neuron_selectivity(student_map: Tensor, teacher_map: Tensor) -> Tensor:
    """Squared maximum mean discrepancy of the channels' activation patterns: NST (Huang and Wang, 2017).

    k(t,t) + k(s,s) - 2 k(s,t),  k(a,b) = mean over B, c, d of (a_c . b_d)^2,  each channel a unit vector over P

    The second-degree polynomial kernel, as in the reference. Maps of different size are matched first.
    Memory: batch x channels^2 or batch x positions^2, whichever is less, never batch x channels^2 x
    positions.
    """
    student_map, teacher_map = _matched(student_map, teacher_map)
    student = unit(student_map.flatten(2))  # [batch, channels, positions]
    teacher = unit(teacher_map.flatten(2))
    if student.shape[2] <= max(student.shape[1], teacher.shape[1]):
        # sum_cd (a_c . b_d)^2 = <A^T A, B^T B>: the three kernels are one squared difference of position matrices.
        gap = _position_matrix(student) - _position_matrix(teacher)
        return gap.square().sum() / student.shape[0]
    return _kernel(teacher, teacher) + _kernel(student, student) - 2 * _kernel(student, teacher)


def _position_matrix(patterns: Tensor) -> Tensor:
    return torch.bmm(patterns.transpose(1, 2), patterns) / patterns.shape[1]


def _kernel(first: Tensor, second: Tensor) -> Tensor:
    return torch.bmm(first, second.transpose(1, 2)).square().mean()


def _attention(map_: Tensor, power: int) -> Tensor:
    """The unit vector over positions of the channels' mean power, [batch, positions]."""
    return unit(map_.pow(power).mean(1).flatten(1))


def _matched(student: Tensor, teacher: Tensor, names: str = _MAPS) -> tuple[Tensor, Tensor]:
    check_batch(student, teacher, names)
    return match(student, teacher.detach())
