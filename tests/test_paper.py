"""The paper's printed numbers, and what follows from them."""

import numpy as np
import pytest

from scns import paper
from scns.errors import InputError

# Recomputed from the printed table: the mean over the 10 pairs of (a - worst) / (best - worst).
SCORES = {
    "KLD": 0.8189,
    "AT": 0.4039,
    "SP": 0.2973,
    "PKT": 0.5401,
    "CC": 0.3089,
    "VID": 0.4774,
    "FT": 0.2047,
    "CRD": 0.6048,
    "Siamese-PC": 0.3912,
    "Contrastive-PC": 0.4074,
    "Contrastive-CKA (RBF)": 0.4998,
    "Contrastive-CKA (Linear)": 0.3833,
    "CRD-LM": 0.7893,
    "InfoNCE + Class-SCNS": 0.7157,
    "InfoNCE + Instance-SCNS": 0.7883,
    "InfoNCE-LM + Class-SCNS": 0.8876,
    "InfoNCE-LM + Instance-SCNS": 0.9751,
}


@pytest.mark.parametrize(
    ("name", "rows", "columns", "total"), [("t1", 21, 6, 11872.70), ("t2", 17, 10, 8070.06), ("t3", 23, 6, 9474.43)]
)
def test_every_printed_number_is_there(name: str, rows: int, columns: int, total: float) -> None:
    table = paper.table(name)
    assert table.values.shape == (rows, columns) == (len(table.rows), len(table.columns))
    assert table.values.sum() == pytest.approx(total, abs=1e-6)
    assert len(paper.cells(name)) == rows * columns


def test_cells_say_what_was_run() -> None:
    cell = next(c for c in paper.cells("t3") if c.row == "InfoNCE + Instance-SCNS k=N/50" and c.value == 72.94)
    assert (cell.teacher, cell.student, cell.column) == ("wrn-16-1", "resnet32", "wrn-16-1/resnet32")
    assert cell.method == "InfoNCE + Instance-SCNS" and (cell.k, cell.beta) == (1000, None)
    cell = next(c for c in paper.cells("t3") if c.row == "InfoNCE + Class-SCNS k=C/20" and c.value == 71.32)
    assert cell.k == 5 and cell.hyper["k_denominator"] == 20
    cell = next(c for c in paper.cells("t1") if c.row == "InfoNCE + LM beta=0.5" and c.student == "resnet20")
    assert (cell.value, cell.beta, cell.k, cell.teacher) == (92.96, 0.5, None, None)
    assert {cell.k for cell in paper.cells("t1") if cell.method == "InfoNCE + Class-SCNS"} == {1, 2, 5}


def test_the_probable_misprint_is_marked() -> None:
    doubted = [cell for name in paper.tables() for cell in paper.cells(name) if cell.doubt]
    assert [(cell.value, cell.row, cell.column) for cell in doubted] == [
        (96.94, "InfoNCE + LM beta=0.05", "resnext32x4")
    ]


def test_the_printed_gain_on_cifar10_follows_without_the_misprint() -> None:
    """The abstract's 1.52 is the mean over networks of the best row less cross-entropy."""
    best: dict[str, float] = {}
    plain = {cell.column: cell.value for cell in paper.cells("t1") if cell.row == "Cross-Entropy"}
    for cell in paper.cells("t1"):
        if not cell.doubt:
            best[cell.column] = max(best.get(cell.column, 0), cell.value)
    assert np.mean([best[column] - plain[column] for column in plain]) == pytest.approx(1.5217, abs=5e-5)


def test_average_scores_of_tiny_imagenet() -> None:
    shown = paper.methods("t2")
    assert list(shown.rows) == list(SCORES)
    averages = paper.scores(shown.values.T).mean(axis=0)
    assert {name: round(value, 4) for name, value in zip(shown.rows, averages.tolist(), strict=True)} == SCORES


def test_averages() -> None:
    shown = paper.table("t2")
    averages = dict(zip(shown.rows, shown.values.mean(axis=1).tolist(), strict=True))
    assert averages["KLD"] == pytest.approx(49.654) and averages["InfoNCE-LM + Instance-SCNS"] == pytest.approx(50.484)


def test_teachers_are_no_method() -> None:
    assert "Teacher (Cross-Entropy)" in paper.table("t3").rows
    assert "Teacher (Cross-Entropy)" not in paper.methods("t3").rows and len(paper.methods("t3").rows) == 22


def test_scores_by_hand() -> None:
    given = [[1.0, 3.0, 2.0], [7.0, 7.0, 7.0], [-4.0, 0.0, -1.0]]
    assert paper.scores(given).tolist() == [[0.0, 1.0, 0.5], [0.5, 0.5, 0.5], [0.0, 1.0, 0.75]]


def test_epochs_to_converge() -> None:
    assert paper.epochs_to_converge() == {"uniform": 181, "Class-SCNS": 124, "Instance-SCNS": 106}


def test_unknown_table() -> None:
    with pytest.raises(InputError, match=r"Unknown table 't4'; did you mean t\d"):
        paper.cells("t4")


@pytest.mark.parametrize(
    ("given", "said"), [([1.0, 2.0], r"shape is \(2,\)"), ([[]], "shape"), ([[1.0, np.nan]], "missing or not finite")]
)
def test_scores_of_nonsense(given: list, said: str) -> None:
    with pytest.raises(InputError, match=said):
        paper.scores(given)
