"""Cross-entropy alone: the plain student, and how teachers are trained.

l = CE(logits, y)

Consumes the labels. The paper prints the logits divided by a temperature here as well; with hard labels that only
rescales them, so it is 1. With a teacher, `kld=` adds the distillation of logits.
"""

from scns.methods import Method

REFERENCE = "O'Neill and Bollegala, 2021"


class Objective(Method):
    """Cross-entropy."""

    needs = ("logits",)
    whole_batch = False
