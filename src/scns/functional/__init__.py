"""Every loss as a pure function of tensors: no module, no state, no trainer.

Each returns a scalar batch mean unless it says otherwise and computes in float32 whatever autocast and the
inputs are (float64 where an input is float64). Nothing here waits for a device, branches on values or changes
shapes between calls, so everything runs inside a CUDA graph and under `torch.compile(fullgraph=True)`. In a
loss of a student and a teacher the teacher is a constant, unless the docstring says otherwise.

"The paper" is O'Neill and Bollegala (2021), Semantically-Conditioned Negative Samples for Efficient
Contrastive Learning. Relational losses (similarity_preserving, correlation_congruence, relational,
probabilistic_transfer, cka) see the rows they are given: gather over processes first where the whole batch is
meant.

Left out on purpose: weights and layer lists (they belong to `scns.methods`) and everything with parameters.
"""

from scns.functional.contrastive import crd_nce, info_nce, oim
from scns.functional.geometry import match
from scns.functional.maps import (
    activation_boundary,
    attention_transfer,
    factor_transfer,
    flow,
    hint,
    neuron_selectivity,
    variational_information,
)
from scns.functional.relations import (
    correlation_congruence,
    probabilistic_transfer,
    relational,
    similarity_preserving,
)
from scns.functional.similarity import cka, pearson, triplet_hinge
from scns.functional.targets import kld, label_mixture, mixed_targets, soft_cross_entropy

__all__ = [
    "activation_boundary",
    "attention_transfer",
    "cka",
    "correlation_congruence",
    "crd_nce",
    "factor_transfer",
    "flow",
    "hint",
    "info_nce",
    "kld",
    "label_mixture",
    "match",
    "mixed_targets",
    "neuron_selectivity",
    "oim",
    "pearson",
    "probabilistic_transfer",
    "relational",
    "similarity_preserving",
    "soft_cross_entropy",
    "triplet_hinge",
    "variational_information",
]
