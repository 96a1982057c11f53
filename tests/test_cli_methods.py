"""`scns methods` as a person uses it."""

from collections.abc import Callable

import pytest

from scns import methods

PUBLISHED = ["ab", "at", "cc", "crd", "fitnet", "fsp", "ft", "kld", "nst", "pkt", "rkd", "sp", "vid"]


def cells(out: str) -> dict[str, str]:
    """The table's line of each method."""
    return {line.split()[0]: line for line in out.splitlines() if line and line.split()[0] in methods.names()}


def test_methods_lists_every_method_with_needs_weight_source_and_reference(scns: Callable) -> None:
    ran = scns("methods")
    assert ran.code == 0
    lines = cells(ran.out)
    assert list(lines) == methods.names()
    assert set(PUBLISHED) <= set(lines)
    for words in ("teacher, maps", " 600 ", "the paper's appendix", "Zagoruyko and Komodakis, 2017"):
        assert words in lines["at"]
    assert "teacher, pre-activations" in lines["ab"]
    assert "teacher, logits" in lines["kld"] and " 0.9 " in lines["kld"]
    assert "teacher, embedding" in lines["rkd"]
    assert "pre-training only" in lines["fsp"] and " 0 " in lines["fsp"]


def test_show_prints_equation_arguments_sources_and_presets(scns: Callable) -> None:
    ran = scns("methods", "show", "at")
    assert ran.code == 0
    assert "(A_s - A_t)^2" in ran.out and "Paying More Attention to Attention" in ran.out
    lines = {line.split()[0]: line.strip().split(maxsplit=2)[1:] for line in ran.out.splitlines() if line.strip()}
    assert lines["weight"] == ["600", "the paper's appendix"]
    assert lines["pair"][0] == "exact" and "shallow" in lines["pair"][1]
    assert lines["ce"] == ["1", "weight of the cross-entropy with the labels"]
    assert lines["repdistiller"] == ["weight=1000"]


def test_show_tells_once_what_all_presets_share(scns: Callable) -> None:
    lines = scns("methods", "show", "infonce").out.splitlines()
    (own,) = (line for line in lines if line.startswith("kd-class "))
    (shared,) = (line for line in lines if line.startswith("each of them "))
    assert own.split()[1:] == ["sampler=class,", "weight=0.65,", "k=0.05"]
    assert "tau=0.07" in shared and "negatives=1024" in shared and "sampler" not in shared


@pytest.mark.parametrize("name", methods.names())
def test_show_names_every_argument_of_every_method(scns: Callable, name: str) -> None:
    ran = scns("methods", "show", name)
    assert ran.code == 0
    shown = {line.split()[0] for line in ran.out.splitlines() if line.strip()}
    assert set(methods.hyperparameters(name)) <= shown
    assert set(getattr(methods.module(name), "PRESETS", {})) <= shown


def test_an_unknown_method_gets_the_nearest_name(scns: Callable) -> None:
    ran = scns("methods", "show", "fitnets")
    assert ran.code == 2
    assert ran.out == ""
    assert "Unknown method 'fitnets'; did you mean fitnet?" in ran.err


def test_help_names_the_command(scns: Callable) -> None:
    assert "show" in scns("methods", "--help").out
