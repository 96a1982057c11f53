"""The demo, shrunken: it ends with its page, and what it prints is what its students do."""

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import Ran
from scns import augment, datasets, demo, recipes
from scns.data import Images
from scns.neighbors import NeighborTable
from scns.results import read
from scns.runs import load_student
from scns.train import Stopped

TINY = demo.Scale(epochs=1, labelled_epochs=1, subset=300, test=100)


@pytest.fixture(scope="module", autouse=True)
def fewer_test_images() -> Iterator[None]:
    """The first 200 of the bundled test images, for training's own looks at them too."""
    whole = datasets.load

    def load(*given: Any, **options: Any) -> Images:
        images = whole(*given, **options)
        return images if len(images) == 2500 else images.subset(torch.arange(200))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load", load)
        yield


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def outcome(out: Path) -> demo.Outcome:
    return demo.run(out / "quick", scale=TINY, say=lambda line: None)


def test_every_student_is_told_as_it_is(outcome: demo.Outcome, out: Path) -> None:
    assert [each.name for each in outcome.networks] == [*demo.STUDENTS, "teacher"]
    test = datasets.load("cifar10-mini", split="test").split(100 / 200)[1]
    for number, each in enumerate(outcome.networks[:-1], 1):
        student = load_student(out / "quick" / f"{number}-{each.name}")
        with torch.no_grad():
            logits = student.network(augment.normalise(test.pixels, test.mean, test.std))
        assert each.accuracy.mean == pytest.approx(100 * float((logits.argmax(1) == test.labels).float().mean()))
    labels, answers = outcome.networks[:2]
    first = outcome.changes[0]
    assert first.accuracy.mean == pytest.approx(answers.accuracy.mean - labels.accuracy.mean)
    assert first.retrieval.mean == pytest.approx(answers.retrieval.mean - labels.retrieval.mean, abs=1e-4)


def test_the_page_shows_networks_changes_and_negatives(outcome: demo.Outcome, out: Path) -> None:
    page = outcome.page.read_text()
    for each in outcome.networks:
        assert str(each.accuracy) in page and str(each.retrieval) in page
    assert all(change.what.replace("'", "&#x27;") in page for change in outcome.changes)
    assert page.count("<article>") == 6 and "Which classes are alike" in page
    assert "5-instance" in page and "scns train demo-instance" in page
    table = NeighborTable.load(out / "quick" / "neighbors.safetensors")
    assert len(table) == 300 and table.info.k == 100


def test_the_command_prints_it_all(
    outcome: demo.Outcome, out: Path, scns: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "QUICK", TINY)
    ran = scns("demo", "--quick", "--out", out)  # its students are finished: they are read
    assert ran.code == 0
    for each in outcome.networks:
        assert re.search(
            rf"^{each.name} .*{re.escape(str(each.accuracy))} +{re.escape(str(each.retrieval))}", ran.out, re.M
        )
    for each in outcome.changes:
        line = next(line for line in ran.out.splitlines() if line.startswith(each.what))
        shown = f"{each.accuracy.mean:+.1f} ± {each.accuracy.half:.1f}"
        assert (shown if each.accuracy.sign else f"({shown})") in line
    assert "4/4" in ran.out and "report.html" in ran.out and "dogs" in ran.out and "PICTURES" in ran.out


def test_the_labels_are_the_same_for_all_students() -> None:
    """The student of labels alone has the very images that are labelled for the others."""
    from scns.run import load_data

    alone, taught = (
        load_data(recipes.named(f"demo-{name}"), torch.device("cpu")).train for name in ("labels", "instance")
    )
    labelled = taught.subset((taught.labels >= 0).nonzero()[:, 0])
    assert torch.equal(alone.pixels, labelled.pixels) and torch.equal(alone.labels, labelled.labels)
    assert alone.labels.bincount().tolist() == [25] * 10 and len(taught) == 2500


def test_a_place_that_cannot_be_is_told_at_once(scns: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, out, err = scns("demo", "--out", tmp_path / "file")
    assert code == 2 and out == "" and err.count("\n") == 1 and "file" in err
    code, out, err = scns("demo", "--quick", "--out", tmp_path / "file")
    assert code == 2 and out == "" and "Not a directory" in err


def test_a_folder_of_another_demo_is_left_alone(
    scns: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch, outcome: demo.Outcome, out: Path
) -> None:
    monkeypatch.setattr(demo, "QUICK", replace(TINY, labelled_epochs=2))
    before = outcome.page.read_bytes()
    ran = scns("demo", "--quick", "--out", out)
    assert ran.code == 2 and "holds a run with another recipe: epochs (1 there, 2 asked)" in ran.err
    assert outcome.page.read_bytes() == before


def test_demo_has_help(scns: Callable[..., Ran]) -> None:
    code, out, _ = scns("demo", "--help")
    assert code == 0 and "--quick" in out


def test_ctrl_c_is_one_sentence(scns: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise Stopped("Stopped; a checkpoint is in run.", signal.SIGINT)

    monkeypatch.setattr(demo, "run", stop)
    ran = scns("demo", "--out", tmp_path)
    assert ran.code == 130 and ran.err == "scns: Stopped; a checkpoint is in run.\n"


def test_the_page_is_about_its_own_runs(outcome: demo.Outcome, out: Path) -> None:
    outer = demo._own(read(out), out)  # the students of the quick demo lie below
    assert outer.entries == [] and len(demo._own(read(out), out / "quick").entries) == len(demo.STUDENTS)
