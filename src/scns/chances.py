"""Drawing from discrete distributions so that the result is the same for any device, batch size and order.

Probabilities become integers first: sums of integers do not depend on the order of additions, so neither do the draws.
"""

from typing import Any

import torch
from torch import Tensor

from scns import checks, draws
from scns.errors import InputError

Epoch = int | Tensor

UNIT = 1 << 30  # integer weight of the likeliest candidate; nothing weighs less than 1
_BELOW_1 = 1 - 2.0**-53  # the largest of the positions
_SOME = 1 << 12  # draws that are counted at a time where products with all of them would not fit 64 bits


def as_integers(log_weights: Tensor) -> Tensor:
    """exp(log weight - best) as integers up to 2^30, at least 1; 0 where the log weight is -inf."""
    weight = (log_weights - log_weights.amax(-1, keepdim=True)).exp_().mul_(UNIT).round_().clamp_(min=1)
    return weight.masked_fill_(log_weights.isneginf(), 0).long()


def softmax_integers(scores: Tensor, scale: float) -> Tensor:
    """Integer weights in proportion to softmax(scale * scores); 0 where the score is -inf."""
    scores = scores.double()
    return as_integers(torch.where(scores.isneginf(), scores, scale * scores))


def shares(integers: Tensor) -> Tensor:
    """The probabilities that integer weights stand for, float32."""
    return (integers.double() / integers.sum(-1, keepdim=True)).float()


def offset(seed: int, anchors: Tensor, epoch: Epoch, stream: int = draws.NEGATIVES) -> Tensor:
    """One uniform number an anchor, float64 [batch, 1]: where systematic sampling begins."""
    check_anchors(anchors)
    return draws.uniform(seed, stream, epoch, anchors[:, None], -1, dtype=torch.float64)


def positions(seed: int, anchors: Tensor, num: int, epoch: Epoch, stream: int = draws.NEGATIVES) -> Tensor:
    """Independent uniform numbers, float64 [batch, num]."""
    draw = columns(num, anchors)
    return draws.uniform(seed, stream, epoch, anchors[:, None], draw, dtype=torch.float64)


def even_positions(seed: int, anchors: Tensor, num: int, epoch: Epoch, stream: int = draws.NEGATIVES) -> Tensor:
    """Evenly spaced numbers from one random offset, float64 [batch, num], all below 1: systematic sampling."""
    spaced = (columns(num, anchors) + offset(seed, anchors, epoch, stream)) / num
    return spaced.clamp_(max=_BELOW_1)  # the last one may be rounded up to 1, where there is no candidate


def pick(integers: Tensor, position: Tensor) -> Tensor:
    """The candidate at each position in [0, 1) of the cumulative distribution: int64 [batch, num]."""
    return find(integers.cumsum(1), position)


def find(ends: Tensor, position: Tensor) -> Tensor:
    """The same of the sums of integer weights up to each candidate, itself included."""
    return torch.searchsorted(ends, (position * ends[:, -1:]).long(), right=True)


def between(ends: Tensor, chosen: Tensor) -> Tensor:
    """The integer weights of chosen candidates [batch, m], of such sums."""
    before = ends.gather(1, (chosen - 1).clamp(min=0))
    return ends.gather(1, chosen) - torch.where(chosen > 0, before, 0)


def systematic_counts(integers: Tensor, start: Tensor, num: int) -> Tensor:
    """How often each candidate is met by `num` evenly spaced positions: num * share on average, int64 [batch, k]."""
    ends = integers.cumsum(1)
    total = ends[:, -1:]
    first = (start * total).long()
    if num * ends.shape[1] < 1 << 33:
        upto = (num * ends + first) // total
    else:  # the same by long division
        many, few = divmod(num, _SOME)
        upto, rest = many * ends // total, many * ends % total
        upto = _SOME * upto + (_SOME * rest + few * ends + first) // total
    return torch.diff(upto, dim=1, prepend=torch.zeros_like(total))


def pick_distinct(log_p: Tensor, seed: int, anchors: Tensor, num: int, epoch: Epoch) -> Tensor:
    """Draws without repetition, in order of drawing: int64 [batch, num] columns of `log_p` (Gumbel top-k)."""
    u = positions(seed, anchors, log_p.shape[1], epoch)
    gumbel = -torch.log(-torch.log(u.clamp(min=2.0**-54)))
    return (log_p.double() + gumbel).topk(num, dim=1).indices


def look_up(keys: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
    """values [batch, k] of the `wanted` keys [batch, m]; -inf where a row of keys does not hold them."""
    keys, by_key = keys.sort(dim=1)
    place = torch.searchsorted(keys, wanted.contiguous()).clamp(max=keys.shape[1] - 1)
    return torch.where(keys.gather(1, place) == wanted, values.gather(1, by_key.gather(1, place)), -torch.inf)


def columns(count: int, anchors: Tensor) -> Tensor:
    """0 .. count - 1 on the device of the anchors."""
    check_anchors(anchors)
    return torch.arange(whole(count), device=anchors.device)


def whole(count: Any) -> int:
    """A number of draws as Python's own: 16.0 is one too, but products with it would be rounded."""
    if not checks.is_whole(count) or count < 1:
        raise InputError(f"{count!r} draws were asked for, but a whole number of at least 1 is needed.")
    return int(count)


def check_anchors(anchors: Tensor, samples: int | None = None, of: Tensor | None = None) -> None:
    """Raise for anything but a batch of numbers of so many `samples`, where the sampler's tensor `of` is.

    On a GPU, values are not waited for.
    """
    if not isinstance(anchors, Tensor) or anchors.dim() != 1 or anchors.dtype not in (torch.int64, torch.int32):
        raise InputError(f"Anchors are sample numbers, an int64 tensor [batch], but these are {_described(anchors)}.")
    if of is not None and of.device != anchors.device:
        raise InputError(
            f"Anchors are on {anchors.device}, but the sampler is on {of.device}; move it once with "
            f"sampler.to('{anchors.device}')."
        )
    if samples is not None and (wrong := checks.outside(anchors, samples)) is not None:
        raise InputError(f"Anchors are numbers of samples, 0 to {samples - 1}, but one is {wrong}.")


def check_indices(indices: Tensor, batch: int, samples: int) -> None:
    """Raise for anything but numbers of so many `samples` for each anchor of the batch; values as of anchors."""
    whole = isinstance(indices, Tensor) and indices.dtype in (torch.int64, torch.int32)
    if not whole or indices.dim() != 2 or len(indices) != batch:
        given = _described(indices)
        raise InputError(f"Indices are sample numbers, an int64 tensor [{batch}, m], but these are {given}.")
    if (wrong := checks.outside(indices, samples)) is not None:
        raise InputError(f"Indices are numbers of samples, 0 to {samples - 1}, but one is {wrong}.")


def _described(numbers: object) -> str:
    """What was given instead of sample numbers, and how they become a tensor of whole numbers."""
    if not isinstance(numbers, Tensor):
        return f"{type(numbers).__name__}; use torch.as_tensor"
    remedy = "; convert them with .long()" if numbers.dtype not in (torch.int64, torch.int32, torch.bool) else ""
    return f"{numbers.dtype} {tuple(numbers.shape)}{remedy}"
