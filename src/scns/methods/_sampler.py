"""The samplers a contrastive method may take its negatives from, by name."""

import math

from torch import Tensor

from scns import words
from scns.errors import InputError, unknown
from scns.methods import Setting
from scns.neighbors import NeighborTable
from scns.sampling import (
    AllNegatives,
    ClassNegatives,
    InstanceNegatives,
    MixedNegatives,
    Negatives,
    UniformNegatives,
)
from scns.soft import SoftNegatives

SAMPLERS = ("uniform", "class", "instance", "mixed", "soft", "all")
_OF = {"k": ("class", "instance", "mixed"), "scale": ("class", "instance", "mixed", "soft"), "clusters": ("soft",)}


def check_given(given: dict[str, object], sampler: object) -> None:
    """Raise for an argument that a person gives and the sampler does not have: with any value the run is the same."""
    for what, those in _OF.items():
        if given.get(what) is not None and sampler in SAMPLERS and sampler not in those:
            listed = ", ".join(those)
            raise InputError(
                f"method.{what} is for the sampler {listed}, but it is '{sampler}'; leave method.{what} out."
            )


def make_sampler(
    setting: Setting,
    name: str,
    *,
    k: float | None = None,
    scale: float = 5.0,
    clusters: int | None = None,
) -> Negatives:
    """The sampler `name` for the training samples of a setting.

    k nearest classes or samples (below 1: that share of them; None: the paper's best), drawn by softmax(scale *
    cosine); "mixed" takes half its draws from the k nearest samples and half uniformly; "soft" draws from all samples,
    by `clusters` if given; "all" draws nothing and names every negative.
    """
    if name not in SAMPLERS:
        raise unknown("sampler", name, SAMPLERS)
    labels, seed = setting.believed(), setting.seed
    if name == "all":
        return AllNegatives(labels)
    if name == "uniform":
        return UniformNegatives(labels, seed=seed)
    if name == "class":
        best = min(max(2, setting.classes // 20), setting.classes - 1)  # the paper's best: 2 of 10 classes, 5 of 100
        kept = best if k is None else _count(k, setting.classes)
        table = NeighborTable.build(_class_vectors(setting), k=kept, on_zero="uniform")  # zero: a name without words
        return ClassNegatives(table, labels, scale=scale, seed=seed)
    embeddings = _embeddings(setting, name)
    if name == "soft":
        on_device = labels.to(embeddings.device)
        return SoftNegatives(embeddings, on_device, scale=scale, clusters=clusters, seed=seed).to(labels.device)
    best = max(1, len(labels) // 100)  # the paper's best on CIFAR-10: N / 100
    table = NeighborTable.build(embeddings, labels, k=best if k is None else _count(k, len(labels)))
    instance = InstanceNegatives(table.to(labels.device), scale=scale, seed=seed)
    if name == "instance":
        return instance
    return MixedNegatives([(0.5, instance), (0.5, UniformNegatives(labels, seed=seed))], seed=seed)


def _count(k: float, total: int) -> int:
    """How many `k` means: itself or, below 1, that share of the total, rounded down and at least 1."""
    if not isinstance(k, (int, float)) or not 0 < k < math.inf or (k > 1 and k != int(k)):
        raise InputError(f"k={k} must be a whole number from 1 up, or a share of the {total} between 0 and 1.")
    return int(k) if k >= 1 else max(1, int(k * total + 1e-9))  # 1e-9: 0.29 * 100 is 28.999999999999996


def _embeddings(setting: Setting, name: str) -> Tensor:
    if setting.embeddings is None:
        raise InputError(
            f"The sampler '{name}' needs embeddings of the training samples; give a teacher, or use sampler 'uniform'."
        )
    return setting.embeddings()


def _class_vectors(setting: Setting) -> Tensor:
    """Word vectors of the label names, or else the centroid of each class's embeddings."""
    if setting.class_vectors is not None:
        return setting.class_vectors()
    if setting.embeddings is None:
        raise InputError(
            "The sampler 'class' needs word vectors of the label names or embeddings of the training samples; "
            "give label names or a teacher, or use sampler 'uniform'."
        )
    embeddings = setting.embeddings()
    return words.class_embeddings(embeddings, setting.believed().to(embeddings.device), setting.classes)
