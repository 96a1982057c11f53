"""Semantically conditioned negative sampling: better negatives for contrastive learning and distillation."""

__version__ = "0.1.0"
