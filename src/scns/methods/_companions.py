"""The samples a step forwards beside its anchors."""

from torch import Tensor

from scns.errors import InputError
from scns.features import Batch


def beside(values: Tensor, batch: Batch, companions: int) -> Tensor:
    """What belongs to the companions of each anchor, [anchors, companions, ...], of values over all rows of a batch."""
    rows = batch.anchors * (1 + companions)
    if len(values) != rows:
        raise InputError(
            f"{batch.anchors} anchors with {companions} companions each are {rows} rows, but there are {len(values)}; "
            "forward the samples that `companion_index` names after the anchors."
        )
    return values[batch.anchors :].unflatten(0, (batch.anchors, companions))
