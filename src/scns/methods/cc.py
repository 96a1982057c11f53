"""Correlation congruence: B. Peng et al., 2019, Correlation Congruence for Knowledge Distillation.

weight * mean_i sum_d D_id D_(i+1)d,  D = |W_s e_s - W_t e_t|,  i and i + 1 neighbours in the batch

Uses the embeddings of both networks, each through a trained linear layer. This is the form its authors gave the
field's reference, to which the published weights belong; it depends on the order of the batch and nothing keeps both
layers from shrinking to 0. variant="matrix" is the formula of their paper. Two samples or more are needed.
"""

from torch import Tensor, nn

from scns import functional
from scns.features import Batch, Features
from scns.functional.inputs import check_choice, check_positive
from scns.methods import Method, Setting
from scns.methods._pairs import teacher_shapes

REFERENCE = "Peng et al., 2019"
PRESETS = {"repdistiller": {"weight": 0.02}}


class Objective(Method):
    needs = ("teacher", "embedding")
    fewest = 2

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 0.05,  # the paper's appendix
        dim: int = 128,  # the field's reference
        variant: str = "neighbours",  # or "matrix"
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_positive("weight", weight, zero=True)
        check_positive("dim", dim)
        check_choice("variant", variant, ("neighbours", "matrix"))
        self.weight, self.variant = weight, variant
        self.student_layer = nn.Linear(setting.student.width, dim)
        self.teacher_layer = nn.Linear(teacher_shapes(setting).width, dim)

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        dtype = self.student_layer.weight.dtype
        ours, theirs = self.student_layer(student.embedding.to(dtype)), self.teacher_layer(teacher.embedding.to(dtype))
        loss = functional.correlation_congruence(ours, theirs, self.variant)
        return {**self.classification(batch, student, teacher), "cc": self.weight * loss}
