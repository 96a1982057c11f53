"""Losses that tell a positive from negatives: InfoNCE, the lookup table (OIM), CRD's noise contrast."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from scns.errors import InputError
from scns.functional.inputs import (
    check_batch,
    check_labels,
    check_matrices,
    check_positive,
    check_shapes,
    check_some,
    full_precision,
)

# exp(-1e4) is 0 in float64 too, so this changes no sum; it keeps an absent negative (-inf) out of inf - inf.
_ABSENT = -1e4
# From here on log(1 + exp(x)) is x to the last bit of float64.
_SOFTPLUS_LINEAR = 40.0


@full_precision
def info_nce(
    anchor: Tensor,
    positive: Tensor,
    negatives: Tensor | None = None,
    *,
    logits: Tensor | None = None,
    log_weights: Tensor | None = None,
    temperature: float | Tensor = 0.07,
) -> Tensor:
    """InfoNCE over one positive and m negatives, optionally weighted: the mean over the batch of

    -log( e^(a.p / T) / (e^(a.p / T) + sum_m w_m e^(a.n_m / T)) )

    The paper's InfoNCE equation, which is printed with one negative and without T (`temperature=1` gives
    that). T is 0.07, CRD's value: at T = 1 unit vectors cannot get below log(1 + m / e^2). Vectors are used
    as they are; normalise them first. The result is what F.cross_entropy gives for class 0, and exact where
    it is small.

    anchor [batch, d]. positive [batch, d], or [batch] similarities a.p; of several positives [batch, p, d]
    the mean of their losses, each against the negatives alone. negatives [batch, m, d], or [m, d] shared by
    all anchors; or instead `logits` [batch, m]: the similarities a.n, as `FeatureTable.logits`
    returns them, NOT yet divided by the temperature. log_weights [batch, m] are added after that division:
    log counts of repeated negatives or log importance weights; -inf, there or in `logits`, means absent. For
    in-batch negatives give `logits=(anchor @ positive.T).fill_diagonal_(-inf)`: as `negatives`, the positives
    would hold each anchor's own too. Without any negative a row's loss is 0.
    """
    check_positive("temperature", temperature)
    if (negatives is None) == (logits is None):
        raise InputError("info_nce takes either negatives or logits: give exactly one of them.")
    if anchor.shape[:1] == (0,):  # their mean would be NaN
        raise InputError(f"info_nce needs one anchor or more, but these are {list(anchor.shape)}; skip empty batches.")
    if positive.ndim == 1 and positive.shape[0] == anchor.shape[0]:
        attraction = positive  # [batch]
    elif positive.ndim == 3 and positive.shape[1]:
        attraction = _similarities(anchor, positive, "positive")  # [batch, p]
    else:
        check_shapes(anchor, positive, "anchor and positive")
        attraction = (anchor * positive).sum(-1)
    similarities = logits if logits is not None else _similarities(anchor, negatives, "negatives")  # [batch, m]
    check_matrices(anchor, similarities, "anchor and logits")
    return info_nce_of(attraction, similarities, log_weights, temperature=temperature)


@full_precision
def info_nce_of(
    positive: Tensor, logits: Tensor, log_weights: Tensor | None = None, *, temperature: float | Tensor = 0.07
) -> Tensor:
    """The same of similarities alone: those to the positive [batch], or to several [batch, p], and `logits`."""
    several = positive.ndim == 2
    least = positive.detach().amin(1, keepdim=True) if several else positive[:, None]
    gap = _over(logits - least, temperature)
    if log_weights is not None:
        check_shapes(logits, log_weights, "logits of the negatives and log_weights")
        gap = gap + log_weights
    worst = torch.logsumexp(gap.clamp_min(_ABSENT), dim=1)
    if several:
        worst = worst[:, None] - (positive - least) / temperature
    return F.softplus(worst, threshold=_SOFTPLUS_LINEAR).mean()


def _similarities(anchor: Tensor, others: Tensor | None, name: str) -> Tensor:
    assert others is not None
    if anchor.ndim != 2 or others.ndim not in (2, 3) or anchor.shape[1] != others.shape[-1]:
        shapes = "[batch, m, d] or [m, d]" if name == "negatives" else "[batch, p, d]"
        raise InputError(
            f"anchor is [batch, d] and {name} {shapes} of the same width; "
            f"got {list(anchor.shape)} and {list(others.shape)}."
        )
    if others.ndim == 2:
        return anchor @ others.T
    check_batch(anchor, others, f"anchor and {name}")
    return torch.bmm(anchor[:, None], others.transpose(1, 2)).squeeze(1)  # a row times a matrix: the fast way round


def _over(logits: Tensor, temperature: float | Tensor) -> Tensor:
    """Logits over the temperature; where they are -inf, a temperature that is learnt gets gradient 0 and not NaN."""
    if not isinstance(temperature, Tensor):
        return logits / temperature
    absent = logits.isneginf()
    return (logits.masked_fill(absent, 0.0) / temperature).masked_fill(absent, -torch.inf)


@full_precision
def oim(
    anchor: Tensor,
    targets: Tensor,
    table: Tensor,
    queue: Tensor | None = None,
    *,
    temperature: float | Tensor = 0.1,
    queue_mask: Tensor | None = None,
) -> Tensor:
    """Minus the mean log-probability of each anchor's own row among all rows of a lookup table and a queue.

    -log p_y,  p_i = e^(v_i.z / T) / (sum_m e^(v_m.z / T) + sum_n e^(u_n.z / T))

    The paper's lookup table (online instance matching, Xiao et al., 2017); the printed gradient (Eq.
    bp_queue) is that of +log p_y. T is unstated in the paper; 0.1 here, 1/30 in OIM's public code. Vectors
    are used as they are.

    anchor [batch, d], targets int64 [batch] rows of table [rows, d], queue [slots, d]. queue_mask [slots] or
    [batch, slots] is True where a slot takes part: leave out empty slots and those of the anchor's own class.
    Memory: the logits, batch x (rows + slots).
    """
    check_positive("temperature", temperature)
    check_some(anchor, "anchor")
    logits = _scores(anchor, table, "table")
    check_labels(targets, table.shape[0], "targets")
    if targets.shape != anchor.shape[:1]:
        raise InputError(
            f"targets must be one row of the table an anchor; got {list(targets.shape)} for {list(anchor.shape)}."
        )
    if queue is not None:
        logits = torch.cat([logits, _masked(_scores(anchor, queue, "queue"), queue_mask)], dim=1)
    elif queue_mask is not None:
        raise InputError("queue_mask was given without a queue; give the queue too, or neither.")
    return F.cross_entropy(_over(logits, temperature), targets.long())


def _scores(anchor: Tensor, rows: Tensor, name: str) -> Tensor:
    if anchor.ndim != 2 or rows.ndim != 2 or anchor.shape[1] != rows.shape[1]:
        raise InputError(
            f"anchor [batch, d] and {name} [rows, d] need one width; got {list(anchor.shape)} and {list(rows.shape)}."
        )
    return anchor @ rows.T


def _masked(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return scores
    if mask.dtype != torch.bool or mask.shape not in (scores.shape, scores.shape[1:]):
        raise InputError(
            f"queue_mask must be bool [slots] or [batch, slots] = {list(scores.shape)}; got {mask.dtype} "
            f"{list(mask.shape)}."
        )
    return scores.masked_fill(~mask, -torch.inf)


@full_precision
def crd_nce(scores: Tensor, n_data: int) -> Tensor:
    """CRD's noise-contrastive loss of one side (Tian et al., 2020), with uniform noise over n_data samples.

    -(1/B) sum_i [ ln(P_i0 / (P_i0 + c + 1e-7)) + sum_k ln(c / (P_ik + c + 1e-7)) ],  c = K / n_data

    scores [batch, 1 + K] are P = exp(z.v / T) / Z, column 0 the positive. The sum over k is not averaged, so
    the loss grows with K. A positive score below 1e-30 counts as 1e-30 (finite where the fraction would be
    0).
    """
    check_positive("n_data", n_data)
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise InputError(f"scores must be [batch, 1 + negatives] with a negative at least; got {list(scores.shape)}.")
    check_some(scores, "scores")
    noise = (scores.shape[1] - 1) / n_data
    eps = 1e-7  # the reference's guard against 0 / 0
    # log(1 + (c + e) / P), by logarithms: of a small P, 1 / P^2 would be infinite in the gradient.
    gap = math.log(noise + eps) - scores[:, 0].clamp_min(1e-30).log()
    positive = F.softplus(gap, threshold=_SOFTPLUS_LINEAR)
    negative = torch.log1p((scores[:, 1:] + eps) / noise)
    return positive.mean() + negative.sum(1).mean()
