"""The rows of a feature table that anchors are compared with, drawn for a whole epoch at its beginning."""

from collections.abc import Callable

import torch
from torch import Tensor

from scns import room
from scns.chances import Epoch

Rows = tuple[Tensor, Tensor | None]  # integers [batch, m], and their log-weights where not all are 0

_MOST_BYTES = 512 << 20  # kept of an epoch's draws (50,000 x 1,000 take 400 MB); more are drawn in the steps
_SHARE = 8  # and no more than an eighth of what is free: students of a pack keep theirs each
_AT_ONCE = 1 << 24  # numbers of a tensor on the way to them: 128 MB of int64


class Drawn:
    """What `draw(anchors, epoch)` gives, looked up where the epoch has begun with `begin`.

    Draws depend on seed, epoch and sample alone, so it does not matter when they are made; all of an epoch's take a few
    large kernels, where those of a batch would launch a hundred small ones in every step.
    """

    def __init__(self, draw: Callable[[Tensor, Epoch], Rows], samples: int) -> None:
        self.draw, self.samples, self.begun = draw, samples, False
        self.kept: Rows | None = None  # of every sample; stays where it is, since captured steps read it

    def __call__(self, anchors: Tensor, epoch: Epoch) -> Rows:
        """The rows of some samples; once there was a `begin`, the epoch is the one that it was told."""
        if self.kept is None:
            return self.draw(anchors, epoch)
        rows, log_weights = self.kept
        return rows[anchors], None if log_weights is None else log_weights[anchors]

    def begin(self, epoch: int, width: int, device: torch.device) -> None:
        """Draw for every sample, unless that is too much to keep; `width` numbers are looked at for each."""
        every = torch.arange(self.samples, device=device)
        if not self.begun:  # later there may be more room, but steps that draw may have been captured
            self.begun, self.kept = True, self._place(*self.draw(every[:1], epoch))
        if self.kept is None:
            return
        size = max(1, _at_once(device) // max(width, self.kept[0].shape[1]))
        for first in range(0, self.samples, size):
            some = slice(first, first + size)
            for kept, drawn in zip(self.kept, self.draw(every[some], epoch), strict=True):
                if kept is not None and drawn is not None:
                    kept[some].copy_(drawn)

    def _place(self, rows: Tensor, log_weights: Tensor | None) -> Rows | None:
        """Where such rows of every sample are kept, if there is room."""
        shape = (self.samples, rows.shape[1])
        needed = 4 * self.samples * rows.shape[1] * (1 if log_weights is None else 2)
        if needed > min(_MOST_BYTES, room.free(rows.device) // _SHARE):
            return None
        return rows.new_empty(shape, dtype=torch.int32), None if log_weights is None else log_weights.new_empty(shape)


def _at_once(device: torch.device) -> int:
    """Numbers of a tensor on the way to the draws: more on a large GPU, on which small kernels cost their launch.

    By its whole memory, not by what is free: products of another size may be rounded otherwise, and draw otherwise.
    """
    if device.type != "cuda":
        return _AT_ONCE
    return max(_AT_ONCE, torch.cuda.get_device_properties(device).total_memory // 1600)  # int64 and float32: 0.75 %
