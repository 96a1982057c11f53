"""Losses and targets over class distributions: KL distillation, soft cross-entropy, mixed targets."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from scns.checks import is_number, is_whole
from scns.errors import InputError
from scns.functional.inputs import (
    check_choice,
    check_labels,
    check_matrices,
    check_positive,
    check_shapes,
    check_share,
    full_precision,
)


@full_precision
def kld(student_logits: Tensor, teacher_logits: Tensor, temperature: float | Tensor = 4.0) -> Tensor:
    """KL divergence from the teacher's to the student's class distribution at a temperature, times T^2.

    T^2 / B sum_n sum_c p_T (log p_T - log p_S),  p = softmax(logits / T)

    Hinton et al. (2015); the paper's Eq. (1), which prints the entropy with the wrong sign (a constant for
    the student). T^2 keeps the gradient's size when T changes, whatever weight the loss is given; some
    implementations drop it when the weight is 0. T = 4 is the value of the paper and of the field's
    reference.
    """
    check_positive("temperature", temperature)
    check_matrices(student_logits, teacher_logits, "student_logits and teacher_logits")
    check_shapes(student_logits, teacher_logits, "student_logits and teacher_logits")
    student = F.log_softmax(student_logits / temperature, dim=1)
    teacher = F.log_softmax(teacher_logits.detach() / temperature, dim=1)
    return F.kl_div(student, teacher, reduction="sum", log_target=True) * (temperature**2 / len(student_logits))


@full_precision
def soft_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of class distributions: -(1/B) sum_n sum_c t_nc log softmax(logits)_nc. Both [batch, classes]."""
    check_matrices(logits, targets, "logits and targets")
    check_shapes(logits, targets, "logits and targets")
    if not targets.is_floating_point():
        raise InputError(f"targets must be probabilities of floating point; got {targets.dtype}, use .float().")
    return F.cross_entropy(logits, targets)


@full_precision
def mixed_targets(
    logits_i: Tensor,
    logits_j: Tensor,
    nu: float | Tensor,
    temperature: float | Tensor,
    target: str = "logits",
) -> Tensor:
    """The teacher's distribution for the mixture of two latents, [..., classes], for `soft_cross_entropy` or KL.

    softmax( (nu l_i + (1 - nu) l_j) / T )

    The paper's mixed target, where i is the negative and j the anchor. `target="logits"`, the default, is the
    teacher's own prediction at its mixed latent, because a linear classifier commutes with mixing. "probs"
    mixes y = softmax(l / T) instead: nu y_i + (1 - nu) y_j. "literal" is the printed softmax((nu y_i + (1 -
    nu) y_j) / T), a softmax of probabilities and therefore nearly uniform: at most 0.027 for 100 classes at T
    = 1.

    nu is a number, or a tensor with one value a row (the logits' shape without classes).
    """
    check_positive("temperature", temperature)
    check_choice("target", target, ("logits", "probs", "literal"))
    check_shapes(logits_i, logits_j, "logits_i and logits_j")
    share = _share(nu, logits_i.shape[:-1])
    if target == "logits":
        return F.softmax((share * logits_i + (1 - share) * logits_j) / temperature, dim=-1)
    first, second = F.softmax(logits_i / temperature, dim=-1), F.softmax(logits_j / temperature, dim=-1)
    mixture = share * first + (1 - share) * second
    return mixture if target == "probs" else F.softmax(mixture / temperature, dim=-1)


@full_precision
def label_mixture(
    labels_i: Tensor, labels_j: Tensor, nu: float | Tensor, classes: int, smoothing: float = 0.1
) -> Tensor:
    """Smoothed two-peaked targets of mixed labels, [..., classes], for `soft_cross_entropy`.

    softmax( (nu onehot_i + (1 - nu) onehot_j) / T ),  T = 1 / ln((1 - s)(C - 1) / s)

    The paper's targets for latent mixup from scratch. Its temperature is unstated; this one gives a pure
    label the mass 1 - s, as label smoothing does. nu as in `mixed_targets`.
    """
    fits = is_whole(classes) and classes >= 2 and is_number(smoothing)
    if not fits or not 0 < smoothing < (classes - 1) / classes:
        raise InputError(
            f"smoothing must lie between 0 and 1 - 1/classes, with 2 classes or more; got smoothing {smoothing} "
            f"and {classes} classes."
        )
    check_shapes(labels_i, labels_j, "labels_i and labels_j")
    check_labels(labels_i, classes, "labels_i")
    check_labels(labels_j, classes, "labels_j")
    share = _share(nu, labels_i.shape)
    every = torch.arange(classes, device=labels_i.device)
    mixture = share * (labels_i[..., None] == every) + (1 - share) * (labels_j[..., None] == every)
    return F.softmax(mixture * math.log((1 - smoothing) * (classes - 1) / smoothing), dim=-1)


def _share(nu: float | Tensor, rows: torch.Size) -> float | Tensor:
    """The mixing coefficient, ready to multiply [..., classes]."""
    check_share("nu", nu)
    if not isinstance(nu, Tensor) or nu.ndim == 0:
        return nu
    if nu.shape != rows:
        raise InputError(f"nu must be a number or have one value a row, {list(rows)}; got {list(nu.shape)}.")
    return nu[..., None]
