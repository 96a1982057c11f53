"""Semantically conditioned negative sampling: better negatives for contrastive learning and distillation."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from scns import datasets, draws, functional, methods, models, theory
    from scns.batches import NeighborBatchSampler
    from scns.contrast import InfoNCE
    from scns.data import Images
    from scns.errors import InputError
    from scns.features import Batch, Features
    from scns.memory import FeatureQueue, FeatureTable
    from scns.mixup import BetaQuantile, mix, mixed_similarity, mixing_coefficients
    from scns.models import features_of
    from scns.neighbors import NeighborTable
    from scns.recipe import Recipe
    from scns.recipes import load_recipe
    from scns.runs import load_student
    from scns.sampling import (
        AllNegatives,
        ClassNegatives,
        InstanceNegatives,
        MixedNegatives,
        Positives,
        UniformNegatives,
    )
    from scns.soft import SoftNegatives
    from scns.train import fit, fit_packed
    from scns.words import class_embeddings, label_vectors, missing_words

# Where each public name lives. They are imported at first use, so that `scns --help` need not wait for torch.
_HOME = {
    "batches": ["NeighborBatchSampler"],
    "contrast": ["InfoNCE"],
    "data": ["Images"],
    "errors": ["InputError"],
    "features": ["Batch", "Features"],
    "memory": ["FeatureQueue", "FeatureTable"],
    "mixup": ["BetaQuantile", "mix", "mixed_similarity", "mixing_coefficients"],
    "models": ["features_of"],
    "neighbors": ["NeighborTable"],
    "recipe": ["Recipe"],
    "recipes": ["load_recipe"],
    "runs": ["load_student"],
    "sampling": [
        "AllNegatives",
        "ClassNegatives",
        "InstanceNegatives",
        "MixedNegatives",
        "Positives",
        "UniformNegatives",
    ],
    "soft": ["SoftNegatives"],
    "train": ["fit", "fit_packed"],
    "words": ["class_embeddings", "label_vectors", "missing_words"],
}
_MODULES = ["datasets", "draws", "functional", "methods", "models", "theory"]

# In full, since type checkers take what they do not read here for private.
__all__ = [
    "AllNegatives",
    "Batch",
    "BetaQuantile",
    "ClassNegatives",
    "FeatureQueue",
    "FeatureTable",
    "Features",
    "Images",
    "InfoNCE",
    "InputError",
    "InstanceNegatives",
    "MixedNegatives",
    "NeighborBatchSampler",
    "NeighborTable",
    "Positives",
    "Recipe",
    "SoftNegatives",
    "UniformNegatives",
    "__version__",
    "class_embeddings",
    "datasets",
    "draws",
    "features_of",
    "fit",
    "fit_packed",
    "functional",
    "label_vectors",
    "load_recipe",
    "load_student",
    "methods",
    "missing_words",
    "mix",
    "mixed_similarity",
    "mixing_coefficients",
    "models",
    "theory",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"scns.{name}")
    for module, names in _HOME.items():
        if name in names:
            return getattr(import_module(f"scns.{module}"), name)
    raise AttributeError(f"module 'scns' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
