"""Rows and columns of the paper's three tables: methods with their hyper-parameters, and networks."""

from dataclasses import dataclass, field, replace
from typing import Any

BASELINES = ("at", "sp", "pkt", "cc", "vid", "ft", "crd")  # methods that were published before
_BETAS = (0.01, 0.05, 0.1, 0.2, 0.5)
_NETWORKS = {"resnext32x4": "resnext29-32x4d"}  # printed -> ours
_WIDER = {"wrn-16-1": "wrn-16-2", "wrn-40-1": "wrn-40-2"}  # printed -> probable
_OWN = "InfoNCE, scns's defaults"  # negatives drawn by the table they are compared with: not in the paper


@dataclass(frozen=True)
class Row:
    """A method with its hyper-parameters; `paper` is the printed method, "" for a row the paper lacks."""

    slug: str
    method: str
    preset: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    paper: str = ""
    value: float | None = None  # the printed beta or k, or the denominator of k
    elsewhere: str = ""  # what another table of the paper, or scns, calls a row that this one lacks

    @property
    def title(self) -> str:
        """The method as the paper calls it, with its beta or k: "InfoNCE + Class-SCNS, k=1/50" (a share of all)."""
        name = self.paper or self.elsewhere or self.slug
        if self.value is None:
            return name
        share = self.arguments.get("k", 1) < 1
        return f"{name}, β={self.value:g}" if "beta" in self.arguments else f"{name}, k={'1/' * share}{self.value:g}"


@dataclass(frozen=True)
class Column:
    """A network, or a teacher and its student, by our names; `paper` is what is printed, "" where nothing is."""

    slug: str
    teacher: str
    student: str
    paper: str
    printed: bool = True  # False: beyond the printed ones: the probable width, or a teacher for small images

    @property
    def imagenet(self) -> bool:
        """Whether the teacher is an ImageNet network, which sees the images resized: all that are printed in t2."""
        return self.teacher.endswith("-imagenet")


def columns_of(table: str) -> list[Column]:
    """The columns of a table: the printed ones, then those with the probable width, or a teacher for small images."""
    if table == "t1":
        printed = ["resnet20", "resnet32", "resnet110", "wrn-16-1", "wrn-40-1", "resnext32x4"]
        single = [Column(name, "", _NETWORKS.get(name, name), name) for name in printed]
        return single + [Column(wide, "", wide, name, printed=False) for name, wide in _WIDER.items()]
    if table == "t2":
        pairs = [
            ("resnet152", "resnet56"), ("resnet152", "resnet44"), ("resnet50", "resnet20"), ("resnet50", "resnet32"),
            ("resnet152", "resnet32"), ("densenet121", "resnet32"), ("resnet50", "resnet8"), ("resnet50", "resnet14"),
            ("resnet34", "resnet14"), ("resnet50", "resnet32x4"),
        ]  # fmt: skip
        small = Column("resnet34-stem3-resnet14", "ResNet34", "resnet14", "", printed=False)
        return [*(Column(f"{t}-{s}", f"{t}-imagenet", s, f"{t}/{s}") for t, s in pairs), small]
    pairs = [
        ("resnet110", "resnet20"), ("resnet110", "resnet8"), ("wrn-16-1", "resnet14"),
        ("wrn-16-1", "resnet32"), ("wrn-40-1", "resnet20"), ("wrn-40-1", "resnet14"),
    ]  # fmt: skip
    wider = [Column(f"{_WIDER[t]}-{s}", _WIDER[t], s, f"{t}/{s}", printed=False) for t, s in pairs if t in _WIDER]
    return [Column(f"{t}-{s}", t, s, f"{t}/{s}") for t, s in pairs] + wider


def rows_of(table: str) -> list[Row]:
    """The rows of a table: the printed ones, then those that only the claims need."""
    return {"t1": _supervised, "t2": _tiny, "t3": _cifar100}[table]()


def _supervised() -> list[Row]:
    return [
        Row("ce", "ce", paper="Cross-Entropy"),
        Row("ce-lm-b0.5", "ce-lm", "t1", {"beta": 0.5}, "Cross-Entropy + LM", 0.5),
        Row("infonce", "infonce", "t1-infonce", paper="InfoNCE"),
        *_mixtures("t1-infonce-lm", "t1-infonce+lm"),
        *(_scns("class", "t1-class", k, k) for k in (1, 2, 5)),
        *(_scns("instance", "t1-instance", n, 1 / n) for n in (5, 10, 20, 100, 500)),
        Row("own", "infonce", elsewhere=_OWN),
    ]


def _cifar100() -> list[Row]:
    printed = [
        Row("teacher", "ce", paper="Teacher (Cross-Entropy)"),
        Row("ce", "ce", paper="Student (Cross-Entropy)"),
        Row("kld", "kld", paper="Student (Cross-Entropy + KLD)"),
        *_mixtures("kd-lm", "kd+lm"),
        *(_scns("class", "kd-class", n, 1 / n) for n in (100, 50, 20, 10, 5)),
        *(_scns("instance", "kd-instance", n, 1 / n) for n in (100, 50, 20, 10, 5)),
    ]
    taken = {row.slug for row in printed} | {"class-scns", "instance-scns"}  # k of those: class k20, instance k50
    further = [replace(row, paper="", elsewhere=row.paper) for row in _distilling() if row.slug not in taken]
    uniform, own = Row("infonce", "infonce", "kd-infonce", elsewhere="InfoNCE"), Row("own", "infonce", elsewhere=_OWN)
    return [*printed, uniform, own, *further]


def _tiny() -> list[Row]:
    further = [
        Row("teacher", "ce", elsewhere="Teacher (Cross-Entropy)"),
        Row("ce", "ce", elsewhere="Student (Cross-Entropy)"),
        Row("infonce", "infonce", "kd-infonce", elsewhere="InfoNCE"),
        Row("infonce-lm", "infonce", "kd-lm", elsewhere="InfoNCE-LM"),
        Row("own", "infonce", elsewhere=_OWN),
    ]
    return _distilling() + further


def _distilling() -> list[Row]:
    """The rows of t2."""
    return [
        *(Row(name.lower(), name.lower(), paper=name) for name in ("KLD", "AT", "SP", "PKT", "CC", "VID", "FT", "CRD")),
        Row("siamese-pc", "pc", "siamese", paper="Siamese-PC"),
        Row("contrastive-pc", "pc", "contrastive", paper="Contrastive-PC"),
        Row("contrastive-cka-rbf", "cka", "contrastive-rbf", paper="Contrastive-CKA (RBF)"),
        Row("contrastive-cka-linear", "cka", "contrastive", paper="Contrastive-CKA (Linear)"),
        Row("crd-lm", "crd-lm", paper="CRD-LM"),
        Row("class-scns", "infonce", "kd-class", paper="InfoNCE + Class-SCNS"),
        Row("instance-scns", "infonce", "kd-instance", paper="InfoNCE + Instance-SCNS"),
        Row("infonce-lm-class-scns", "infonce", "kd-lm-class", paper="InfoNCE-LM + Class-SCNS"),
        Row("infonce-lm-instance-scns", "infonce", "kd-lm-instance", paper="InfoNCE-LM + Instance-SCNS"),
    ]


def _mixtures(alone: str, beside: str) -> list[Row]:
    """InfoNCE-LM (mixtures alone) and InfoNCE + LM (beside the original negatives), for every beta."""
    return [
        Row(f"infonce{sign}lm-b{beta}", "infonce", preset, {"beta": beta}, paper, beta)
        for sign, preset, paper in (("-", alone, "InfoNCE-LM"), ("+", beside, "InfoNCE + LM"))
        for beta in _BETAS
    ]


def _scns(level: str, preset: str, printed: int, k: float) -> Row:
    paper = f"InfoNCE + {level.capitalize()}-SCNS"
    return Row(f"{level}-scns-k{printed}", "infonce", preset, {"k": k}, paper, printed)
