"""`NeighborBatchSampler`: batches for a DataLoader that hold anchors together with their positives and negatives."""

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

from scns import checks, draws
from scns.checks import Labels
from scns.errors import InputError
from scns.sampling import Negatives, Positives


class NeighborBatchSampler(Sampler[list[int]]):
    """Goes to DataLoader(batch_sampler=...): each batch is [anchors, their positives, their negatives].

    A batch of `batch_size` rows has a = batch_size // (1 + positives + negatives) anchors; row i < a is an anchor, its
    j-th positive is row a + i * positives + j, and its negatives follow all positives in the same way. Every sample
    (of a table that was built of the first rows alone: each of those) is an anchor once an epoch, but for those at its
    end that fill no batch (kept by drop_last=False) or not one of every rank. Batches depend on (seed, epoch) alone;
    with `num_replicas`, rank r takes every num_replicas-th batch, and all ranks get the same number.

        batches = scns.NeighborBatchSampler(sampler, labels, batch_size=96)   # 32 anchors, 32 positives, 32 negatives
        for epoch in range(10):
            batches.set_epoch(epoch)
            for images, targets in DataLoader(dataset, batch_sampler=batches):   # dataset[i] has label labels[i]
                ...
    """

    def __init__(
        self,
        sampler: Negatives,
        labels: Labels,
        *,
        batch_size: int,
        negatives: int = 1,
        positives: int = 1,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
        drop_last: bool = True,
    ) -> None:
        if not isinstance(sampler, Negatives):
            given = type(sampler).__name__
            raise InputError(
                f"Negatives come from a sampler, scns.UniformNegatives(labels) say, but this is a {given}."
            )
        counts = {
            "batch_size": batch_size,
            "negatives": negatives,
            "positives": positives,
            "num_replicas": num_replicas,
        }
        for name, value in counts.items():
            least = 0 if name == "positives" else 1
            if not checks.is_whole(value) or value < least:
                raise InputError(f"{name}={value!r} must be a whole number of at least {least}.")
        batch_size, negatives, positives, num_replicas = (int(value) for value in counts.values())
        self.sampler, self.others = sampler, Positives(labels, seed=seed)
        if len(self.others.pool) != sampler.samples:
            raise InputError(
                f"The sampler is of {sampler.samples} samples, but there are {len(self.others.pool)} labels; give it "
                "the same ones."
            )
        self.count = sampler.anchor_rows
        self.negatives, self.positives, self.seed = negatives, positives, seed
        self.num_replicas, self.drop_last, self.epoch = num_replicas, drop_last, 0
        self.anchors = batch_size // (1 + positives + negatives)
        if self.anchors < 1:
            raise InputError(
                f"{batch_size} rows cannot hold an anchor, its {positives} positives and {negatives} negatives; "
                f"make batch_size at least {1 + positives + negatives}."
            )
        if not checks.is_whole(rank) or not 0 <= rank < num_replicas:
            raise InputError(f"rank={rank!r} must be a whole number from 0 to num_replicas - 1 = {num_replicas - 1}.")
        self.rank = int(rank)
        if len(self) == 0:
            raise InputError(f"{self.count} samples do not fill one batch of {self.anchors} anchors on each rank.")

    def set_epoch(self, epoch: int) -> None:
        """Draw the order, positives and negatives of that epoch from now on."""
        self.epoch = epoch

    def __len__(self) -> int:
        batches = self.count // self.anchors if self.drop_last else -(-self.count // self.anchors)
        return batches // self.num_replicas

    def __iter__(self) -> Iterator[list[int]]:
        order = draws.permutation(self.count, self.seed, draws.ORDER, self.epoch)
        for batch in range(len(self)):
            start = (batch * self.num_replicas + self.rank) * self.anchors
            anchors = order[start : start + self.anchors]
            parts = [anchors]
            if self.positives:
                parts.append(self.others.sample(anchors, self.positives, epoch=self.epoch).flatten())
            parts.append(self.sampler.sample(anchors, self.negatives, epoch=self.epoch).flatten())
            yield torch.cat(parts).tolist()
