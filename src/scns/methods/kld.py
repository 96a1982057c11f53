"""Distillation of logits: G. Hinton, O. Vinyals and J. Dean, 2015, Distilling the Knowledge in a Neural Network.

ce * CE + kld * T^2 / B sum_n sum_c p_T (log p_T - log p_S),  p = softmax(logits / T)

Uses the logits of both networks. The paper's Eq. (2) is (1 - a) CE + a T^2 KL; here both weights are free, and T^2 is
kept whatever they are.
"""

from scns.methods import Method, Setting

REFERENCE = "Hinton et al., 2015"
PRESETS = {"repdistiller": {"ce": 0.1, "kld": 0.9, "temperature": 4.0}}


class Objective(Method):
    needs = ("teacher", "logits")
    whole_batch = False

    def __init__(
        self,
        setting: Setting,
        *,
        ce: float = 0.1,  # 1 - 0.9: the paper's Eq. (2)
        kld: float = 0.9,  # the paper's appendix
        temperature: float = 4.0,  # the paper's appendix
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
