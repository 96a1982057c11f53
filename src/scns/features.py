"""What flows between the parts: a `Batch` into a network, `Features` out of it."""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """The input of one step: `images` float [rows, 3, height, width]; `labels` (-1: none), `index` (the numbers of the
    samples) and `view` (of their crops) int64 [rows]; `epoch` int64 [].

    Rows 0 .. anchors - 1 are the anchors; where a method asks for companions (positives, negatives), they follow,
    companion j of anchor i at row anchors + i * companions + j.
    """

    images: Tensor  # float [rows, 3, height, width]
    labels: Tensor  # int64 [rows]; -1 = unlabelled
    index: Tensor  # type: ignore[assignment]  # int64 [rows]: sample numbers in the data set
    view: Tensor  # int64 [rows]: the crop and flip each sample was given
    epoch: Tensor  # int64 []
    anchors: int

    def of_anchors(self, values: Tensor) -> Tensor:
        """The anchors' of values over all rows; the values themselves, no slice of them, where all rows are anchors."""
        return values if len(values) == self.anchors else values[: self.anchors]


class Features(NamedTuple):
    """What a network says about a batch: `logits` [rows, classes], `embedding` [rows, width] before the classifier.

    `maps[0]` is the stem's output, `maps[1:]` the outputs of the stages; `preacts` are the same before their last
    activation (pre-activation networks: after the next batch norm). A plain embedding model leaves them empty.
    """

    logits: Tensor  # [rows, classes]
    embedding: Tensor  # [rows, width]: pooled, the input of the classifier
    maps: tuple[Tensor, ...] = ()  # each [rows, channels, height, width]
    preacts: tuple[Tensor, ...] = ()

    def rows(self, start: int, stop: int) -> "Features":
        """The features of some rows of the batch."""
        some = slice(start, stop)
        maps, preacts = (tuple(x[some] for x in each) for each in (self.maps, self.preacts))
        return Features(self.logits[some], self.embedding[some], maps, preacts)


class Shapes(NamedTuple):
    """The sizes of a network's features, without the batch: what a method needs to know to build its parts."""

    classes: int
    width: int
    maps: tuple[tuple[int, int, int], ...] = ()  # (channels, height, width)

    @staticmethod
    def of(features: Features) -> "Shapes":
        maps = tuple((x.shape[1], x.shape[2], x.shape[3]) for x in features.maps)
        return Shapes(features.logits.shape[1], features.embedding.shape[1], maps)
