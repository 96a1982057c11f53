"""Cross-entropy with latent mixup: mixtures of an anchor and a negative must be classified as both.

l = CE + weight * softCE(t, nu l_- + (1 - nu) l_*),  t = softmax((nu onehot_- + (1 - nu) onehot_*) / T)

O'Neill and Bollegala (2021), "Cross-Entropy + LM". Consumes the logits of the anchors and of one negative each, which
the step forwards beside them. The paper mixes the penultimate features h; a linear classifier commutes with mixing,
W kappa(h_-, h_*) + b = kappa(W h_- + b, W h_* + b), so mixing logits is the same thing. nu ~ Beta(beta, beta) is
not folded, because the targets are mixed with it.
"""

from torch import Tensor

from scns import draws, functional, mixup
from scns.errors import InputError
from scns.features import Batch, Features
from scns.functional.inputs import check_positive
from scns.methods import Method, Setting
from scns.methods._companions import beside
from scns.methods._sampler import make_sampler

REFERENCE = "O'Neill and Bollegala, 2021"

PRESETS: dict[str, dict[str, object]] = {"t1": {"weight": 0.1, "beta": 0.5}}


class Objective(Method):
    """Cross-entropy on anchors and on mixtures."""

    needs = ("logits",)
    whole_batch = False
    companions = 1

    def __init__(
        self,
        setting: Setting,
        *,
        weight: float = 0.1,  # the paper's, from {0.01, 0.05, 0.1, 0.2} on held-out data
        beta: float = 0.5,  # nu ~ Beta(beta, beta); the table's
        smoothing: float = 0.1,  # what a pure label leaves to the other classes; the paper's T is unstated
        sampler: str = "uniform",  # of negatives: uniform, class, instance, mixed or soft
        k: float | None = None,  # nearest classes or samples: how many or, below 1, which share; None: the paper's best
        scale: float = 5.0,  # the paper's "tau = 5" of the sampling distribution
        ce: float = 1.0,
        kld: float = 0.0,
        temperature: float = 4.0,
    ) -> None:
        super().__init__(setting, ce=ce, kld=kld, temperature=temperature)
        check_positive("weight", weight, zero=True)
        if int(setting.labels.min()) < 0:
            raise InputError("The method 'ce-lm' mixes labels, but some samples have none (-1); leave them out.")
        if sampler == "all":
            raise InputError(
                "The method 'ce-lm' draws one negative an anchor, which sampler 'all' does not; use 'uniform'."
            )
        if not 0 < smoothing < 1 - 1 / setting.classes:
            most = 1 - 1 / setting.classes
            raise InputError(f"smoothing={smoothing} must lie between 0 and {most:g} for {setting.classes} classes.")
        self.weight, self.smoothing, self.classes, self.seed = weight, smoothing, setting.classes, setting.seed
        self.sampler = make_sampler(setting, sampler, k=k, scale=scale)
        self.quantile = mixup.BetaQuantile(beta, fold=False)

    def companion_index(self, index: Tensor, epoch: Tensor) -> Tensor:
        return self.sampler.sample(index, 1, epoch=epoch)

    def forward(self, batch: Batch, student: Features, teacher: Features | None) -> dict[str, Tensor]:
        losses = self.classification(batch, student, teacher)
        anchors, labels = batch.of_anchors(batch.index), batch.of_anchors(batch.labels)
        nu = self.quantile(draws.uniform(self.seed, draws.MIXING, batch.epoch, anchors))
        wide = student.logits if student.logits.dtype.itemsize > 2 else student.logits.float()
        mixed = mixup.mix(beside(wide, batch, 1)[:, 0], batch.of_anchors(wide), nu)
        negatives = beside(batch.labels, batch, 1)[:, 0]
        targets = functional.label_mixture(negatives, labels, nu, self.classes, self.smoothing)
        losses["lm"] = self.weight * functional.soft_cross_entropy(mixed, targets)
        return losses
