"""`InfoNCE`: a memory, its sampler and its positives in one module, for a training loop of one's own."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scns import checks
from scns.checks import Embeddings, Labels
from scns.errors import InputError
from scns.functional.inputs import check_positive
from scns.memory import FeatureTable
from scns.sampling import Positives
from scns.soft import SoftNegatives


class InfoNCE(nn.Module):
    """InfoNCE against a memory of all samples, with the negatives that were measured best (docs/results.md).

        contrast = scns.InfoNCE(labels, encoder(inputs))   # before training: integers [N], features [N, dim]
        for epoch in range(20):
            for rows in torch.randperm(len(labels)).split(256):
                z = encoder(inputs[rows])
                loss = contrast(z, rows)                   # a scalar to add to other losses, or to train with alone
                ...                                        # loss.backward(), optimizer.step()
            contrast.next_epoch()                          # draws go by what the memory has become

    The `positives` of a sample are others of its class, and its loss is the mean over them; its negatives are
    `negatives` draws among all samples of other classes, the more similar in the memory the likelier, weighed so that
    they estimate the sum over all of them without bias. A batch's features are remembered once their gradient is known,
    before the next batch; of a sample that comes several times (two views of it) their mean. Evaluation
    (`contrast.eval()`, or no gradient) remembers nothing. `clusters=200` draws in O(clusters) instead of O(N), a little
    less well. All state is in `state_dict()`.

    Of several processes, each remembers what it is given, so give each of them the features and rows of all:

        z = torch.cat(torch.distributed.nn.functional.all_gather(encoder(inputs[rows])))   # DDP around it alone

    and rows gathered likewise. Then loss, gradients and memory are those of one process with the whole batch; of its
    own share alone, each would keep the other samples as they were.
    """

    proposal: Tensor
    epoch: Tensor

    @torch.inference_mode(False)  # where the features may come from, but the memory is trained with
    def __init__(
        self,
        labels: Labels,
        features: Embeddings,
        *,
        positives: int = 64,
        negatives: int = 256,
        temperature: float = 0.1,
        momentum: float = 0.5,
        clusters: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("positives", positives), ("negatives", negatives)):
            if not checks.is_whole(value) or value < 1:
                raise InputError(f"{name}={value!r} must be a whole number from 1 up.")
        check_positive("temperature", temperature)
        self.negatives, self.temperature = int(negatives), temperature
        features = checks.vectors(features, None)
        self.memory = FeatureTable(*features.shape, momentum=momentum, seed=seed, device=features.device)
        self.memory.update(torch.arange(len(features), device=features.device), features, distinct=True)
        self.positives = Positives(labels, seed=seed)
        self.count = max(1, min(int(positives), int(self.positives.pool.size.max()) - 1))  # of whom there are others
        scale = 1 / _number(temperature)  # in proportion to the loss's own terms
        self.sampler = SoftNegatives(self.memory.features, labels, scale=scale, clusters=clusters, seed=seed)
        self.to(features.device)  # the labels' part
        self.register_buffer("proposal", self.memory.features.clone())  # what the sampler goes by
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64, device=features.device))
        self._seen: list[_Seen] = []
        self.register_load_state_dict_post_hook(_follow)

    def extra_repr(self) -> str:
        return f"positives={self.count}, negatives={self.negatives}, temperature={_number(self.temperature):g}"

    def forward(self, z: Tensor, rows: Tensor) -> Tensor:
        """The mean loss of features `z` [batch, dim] of the samples `rows`, int64 [batch]."""
        self._remember()
        if not isinstance(z, Tensor) or z.dim() != 2 or z.shape[1] != self.proposal.shape[1]:
            shown = list(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise InputError(f"z must be features [batch, {self.proposal.shape[1]}], but it is {shown}.")
        if not isinstance(rows, Tensor) or rows.shape != z.shape[:1]:
            shown = list(rows.shape) if isinstance(rows, Tensor) else f"{type(rows).__name__}; use torch.as_tensor"
            raise InputError(f"rows must be the numbers of {len(z)} samples, int64 [{len(z)}], but they are {shown}.")
        z = F.normalize(z.float(), dim=1)
        drawn, log_weights = self.sampler.weights(rows, self.negatives, epoch=self.epoch, correct=True)
        positives = self.positives.sample(rows, self.count, epoch=self.epoch)
        loss = self.memory.info_nce(z, positives, drawn, log_weights, temperature=self.temperature)
        if self.training and z.requires_grad:
            self._seen.append(_Seen(rows, z))
        return loss

    def next_epoch(self) -> None:
        """Draw other negatives from now on, by the memory as it is now."""
        self._remember()
        self._seen.clear()  # what was never trained on
        self.epoch += 1
        self.proposal.copy_(self.memory.features)
        self.sampler.refresh_(self.proposal)

    def _remember(self) -> None:
        """Move the memory to what was trained on: not earlier, since gradients still have to read it as it was."""
        for seen in [each for each in self._seen if each.trained]:
            # Where a sample first comes takes the sum, and its other places the same: `unique` would wait for a GPU.
            first = (seen.rows[:, None] == seen.rows).byte().argmax(1)
            total = torch.zeros_like(seen.z).index_add_(0, first, seen.z)[first]
            self.memory.update(seen.rows, F.normalize(total, dim=1), distinct=True)
        self._seen = [each for each in self._seen if not each.trained]

    def state_dict(self, *words: Any, **options: Any) -> Any:
        self._remember()
        return super().state_dict(*words, **options)


def _number(temperature: float | Tensor) -> float:
    """A learnt one as it is now."""
    return temperature.item() if isinstance(temperature, Tensor) else temperature


class _Seen:
    """Features of a batch; `trained` once their gradient is known."""

    def __init__(self, rows: Tensor, z: Tensor) -> None:
        self.rows, self.z, self.trained = rows, z.detach(), False
        z.register_hook(self._done)

    def _done(self, gradient: Tensor) -> None:
        self.trained = True


def _follow(contrast: InfoNCE, _: object) -> None:
    contrast._seen.clear()
    contrast.sampler.refresh_(contrast.proposal)
