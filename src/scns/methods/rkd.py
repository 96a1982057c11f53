"""Relational distillation: W. Park, D. Kim, Y. Lu and M. Cho, 2019, Relational Knowledge Distillation.

weight * (distance * huber(D_s, D_t) + angle * huber(A_s, A_t)),  D_ij = |e_i - e_j| / mean,  A_ijk = cosine at i

Uses the embeddings of both networks; widths may differ. It compares the samples of one batch, so it needs two or more.
"""

from torch import Tensor

from scns import functional
from scns.features import Batch, Features
from scns.functional.inputs import check_positive
from scns.methods import Method, Setting

REFERENCE = "Park et al., 2019"
PRESETS = {"repdistiller": {"weight": 1.0, "distance": 25.0, "angle": 50.0}}


class Objective(Method):
    needs = ("teacher", "embedding")
    fewest = 2

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 1.0,  # the paper's appendix gives the two parts' weights alone
        distance: float = 25.0,  # the paper's appendix
        angle: float = 50.0,  # the paper's appendix
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        for name, value in (("weight", weight), ("distance", distance), ("angle", angle)):
            check_positive(name, value, zero=True)
        self.weight, self.distance, self.angle = weight, distance, angle

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        assert teacher is not None
        loss = functional.relational(student.embedding, teacher.embedding, self.distance, self.angle)
        return {**self.classification(batch, student, teacher), "rkd": self.weight * loss}
