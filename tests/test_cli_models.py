"""`scns models` as a person uses it."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from scns import models


def rows_of(text: str) -> dict[str, list[str]]:
    """network -> [family, parameters, MFLOPs at 32, MFLOPs at 64, embedding] of a printed table."""
    words = [line.split() for line in text.splitlines()]
    return {row[1]: [row[0], *row[2:]] for row in words if len(row) == 6 and row[1] in models.names()}


def test_the_table_has_every_network_and_its_numbers(scns: Callable) -> None:
    start = time.perf_counter()
    ran = scns("models")
    assert time.perf_counter() - start < 15  # about 3 s on an idle core: nothing is computed
    assert ran.code == 0 and "10 classes" in ran.out and "2 for each multiply-add" in ran.out
    rows = rows_of(ran.out)
    assert sorted(rows) == models.names()
    assert rows["resnet20"] == ["resnet", "272,474", "81.6", "326.5", "64"]
    assert rows["wrn-40-1"] == ["wrn", "563,930", "166.6", "666.2", "64"]
    assert rows["resnet32x4"] == ["resnet", "7,410,730", "2,166.0", "8,664.1", "256"]
    assert rows["resnet50-imagenet"][1] == "23,528,522" and rows["densenet121-imagenet"][-1] == "1024"
    order = [(family, int(parameters.replace(",", ""))) for family, parameters, *_ in rows.values()]
    assert order == sorted(order)


def test_counting_needs_no_compiler() -> None:
    """On the device "meta" torch imports its compiler for a sum or a draw: two seconds more for a table of shapes."""
    code = (
        "import sys; from scns import models;"
        "assert all(models.flops(models.outline(names[0], 10), 32) for names in models.families().values());"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_classes_change_the_parameters(scns: Callable) -> None:
    rows = rows_of(scns("models", "--classes", 200).out)
    assert rows["resnet20"][1] == "284,824" and rows["vgg8"][1] == "4,016,328"


def test_bad_classes_end_in_one_sentence(scns: Callable) -> None:
    for value, sentence in (
        ("0", "A network needs at least 1 class, a whole number, but classes = 0."),
        ("many", "--classes"),
    ):
        ran = scns("models", "--classes", value)
        assert ran.code == 2 and sentence in ran.err and ran.out == ""


def test_ctrl_c_ends_a_command_with_a_word(scns: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "families", interrupted)
    ran = scns("models")
    assert ran.code == 130 and ran.err == "scns: Stopped by Ctrl-C.\n"

    def terminated() -> None:  # by a second SIGTERM, which a training does not wait for
        raise KeyboardInterrupt(signal.SIGTERM)

    monkeypatch.setattr(models, "families", terminated)
    ran = scns("models")
    assert ran.code == 143 and ran.err == "scns: Stopped by SIGTERM.\n"
