"""What flows between the parts: a `Batch` into a network, `Features` out of it."""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """The input of one step. `index` names the samples in the data set, `view` the crop and flip each was given."""

    images: Tensor  # float [batch, 3, height, width]
    labels: Tensor  # int64 [batch]
    index: Tensor  # int64 [batch]
    view: Tensor  # int64 [batch]


class Features(NamedTuple):
    """What a network says about a batch.

    `maps[0]` is the stem's output, `maps[1:]` the outputs of the stages; `preacts` are the same before their last
    activation (pre-activation networks: after the next batch norm). A plain embedding model leaves them empty.
    """

    logits: Tensor  # [batch, classes]
    embedding: Tensor  # [batch, width]: pooled, the input of the classifier
    maps: tuple[Tensor, ...] = ()  # each [batch, channels, height, width]
    preacts: tuple[Tensor, ...] = ()
