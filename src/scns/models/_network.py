"""What every network of scns has in common."""

from typing import Literal, overload

from torch import Tensor, nn

from scns.features import Features


class Network(nn.Module):
    """A classifier that can also show its features: `network(images)` gives logits, `network(images, features=True)` gives `Features`.

    A family implements `stages`; `fc` is the classifier on the pooled embedding of `width` numbers.
    """

    fc: nn.Module
    width: int

    def stages(self, images: Tensor) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """(embedding, maps, preacts) as `Features` defines them."""
        raise NotImplementedError

    @overload
    def forward(self, images: Tensor, features: Literal[False] = False) -> Tensor: ...
    @overload
    def forward(self, images: Tensor, features: Literal[True]) -> Features: ...
    def forward(self, images: Tensor, features: bool = False) -> Tensor | Features:
        embedding, maps, preacts = self.stages(images)
        logits = self.fc(embedding)
        return Features(logits, embedding, maps, preacts) if features else logits
