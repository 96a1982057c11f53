"""A process's share of a global batch, and how the shares' features become those of the whole batch again.

Every process reads the same epoch table, so it knows the whole batch's samples; only features have to pass.
"""

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor

from scns.features import Features
from scns.world import World


class Share:
    """Which of a batch's `size` anchors this rank takes: consecutive ones, in rank order.

    A batch with fewer anchors than ranks is computed whole by every rank, so that no rank is without a sample.
    """

    def __init__(self, world: World, size: int) -> None:
        self.world, self.size = world, size
        self.divides = 1 < world.size <= size
        self.sizes = world.sizes(size) if self.divides else [size]
        self.start, self.stop = world.span(size) if self.divides else (0, size)

    @property
    def count(self) -> int:
        return self.stop - self.start

    def own(self, rows: Tensor) -> Tensor:
        """This rank's of values that stand for the whole batch's anchors."""
        return rows[self.start : self.stop] if self.divides else rows

    def balanced(self, losses: dict[str, Tensor], labels: Tensor) -> dict[str, Tensor]:
        """Losses of this share such that their mean over all anchors is that of the whole batch.

        `labels` are the whole batch's. Only cross-entropy is no mean over all anchors: it leaves out unlabelled ones.
        """
        if "ce" not in losses or not self.divides:
            return losses
        known = (labels >= 0).to(losses["ce"].dtype)
        factor = self.own(known).sum() * self.size / (known.sum().clamp(min=1) * self.count)
        return {**losses, "ce": losses["ce"] * factor}

    def whole(self, features: Features, gradient: bool) -> Features:
        """The features of the whole batch: all anchors, then all companions; maps only where they are read."""
        if not self.divides:
            return features
        logits, embedding = self._packed(features.logits, features.embedding, gradient)
        maps, preacts = (_Gathered(self, each, gradient) for each in (features.maps, features.preacts))
        return Features(logits, embedding, maps, preacts)  # type: ignore[arg-type]

    def rows(self, own: Tensor, gradient: bool) -> Tensor:
        """All ranks' rows [anchors, then companions of each rank] in the order of the whole batch."""
        each = len(own) // self.count
        sizes = [each * size for size in self.sizes]
        every = self.world.whole(own, sizes) if gradient else self.world.gather(own, sizes)
        if each == 1:
            return every
        parts = list(zip(every.split(sizes), self.sizes, strict=True))
        return torch.cat([part[:size] for part, size in parts] + [part[size:] for part, size in parts])

    def _packed(self, logits: Tensor, embedding: Tensor, gradient: bool) -> tuple[Tensor, Tensor]:
        """Both in one message."""
        if logits.dtype != embedding.dtype:
            return self.rows(logits, gradient), self.rows(embedding, gradient)
        both = self.rows(torch.cat([logits, embedding], dim=1), gradient)
        return both[:, : logits.shape[1]], both[:, logits.shape[1] :]


class _Gathered(Sequence[Tensor]):
    """Maps that are put together when they are asked for: a method that reads the last stage alone sends no other."""

    def __init__(self, share: Share, own: Sequence[Tensor], gradient: bool) -> None:
        self.share, self.own, self.gradient = share, own, gradient

    def __len__(self) -> int:
        return len(self.own)

    @overload
    def __getitem__(self, key: int) -> Tensor: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Tensor, ...]: ...
    def __getitem__(self, key: int | slice) -> Tensor | tuple[Tensor, ...]:
        if isinstance(key, slice):
            return tuple(self.share.rows(each, self.gradient) for each in self.own[key])
        return self.share.rows(self.own[key], self.gradient)
