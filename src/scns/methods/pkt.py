"""PKT: N. Passalis and A. Tefas, 2018, Learning Deep Representations with Probabilistic Knowledge Transfer.

weight * mean over B^2 of Q_t ln((Q_t + e) / (Q_s + e)),  Q = rows of (u u^T + 1) / 2 over their sums,  u unit rows

Uses the embeddings of both networks; widths may differ. It sees the samples of one batch only.
"""

from torch import Tensor

from scns import functional
from scns.features import Batch, Features
from scns.functional.inputs import check_positive
from scns.methods import Method, Setting

REFERENCE = "Passalis and Tefas, 2018"
PRESETS = {"repdistiller": {"weight": 30000.0}}


class Objective(Method):
    needs = ("teacher", "embedding")

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 10000.0,  # the paper's appendix
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_positive("weight", weight, zero=True)
        self.weight = weight

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        loss = functional.probabilistic_transfer(student.embedding, teacher.embedding)
        return {**self.classification(batch, student, teacher), "pkt": self.weight * loss}
