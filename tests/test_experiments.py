"""The experiments' grids: what they would run, and what they make of finished runs."""

import json
import math
import runpy
import statistics
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from scns.checkpoint import Folder

SCRIPT = Path(__file__).parent.parent / "experiments" / "few_negatives.py"
FIGURE = SCRIPT.with_name("few_figure.py")
HEADS = SCRIPT.with_name("few_embeddings.py")
PASSAGES = HEADS.with_name("few_passages.py")
TEXTS = HEADS.with_name("few_texts.py")
WORDNET = HEADS.with_name("embed_wordnet.py")


def run(monkeypatch: pytest.MonkeyPatch, *words: object, script: Path = SCRIPT) -> None:
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, words)])
    runpy.run_path(str(script), run_name="__main__")


def test_the_grid_of_few_negatives_goes_seed_by_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "--dry-run", "--out", "few", "--kinds", "uniform*,ce", "--numbers", "1,16", "--seeds", "0,3")
    kinds = ["uniform-1", "uniform-corrected-1", "uniform-16", "uniform-corrected-16", "ce"]
    assert capsys.readouterr().out.split() == [f"few/{kind}-{seed}" for seed in (0, 3) for kind in kinds]


def test_runs_without_a_result_are_counted_and_end_in_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--out", tmp_path / "few", "--root", tmp_path, "--device", "cpu", "--precision", "fp32", "--compile", "no")
    with pytest.raises(SystemExit, match="2 of 2 runs have no result"):
        run(monkeypatch, *where, "--kinds", "ce", "--seeds", "0,1")
    assert "There is no cifar100 in" in capsys.readouterr().out


def ended(folder: Path, name: str, test: float, curve: list[float] | None = None, spread: float | None = None) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "result.json").write_text(json.dumps({"test": test}))
    noted = [{"epoch": 2 * place, "test": value} for place, value in enumerate(curve or [], 1)]  # every second epoch
    (folder / name / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in noted))
    if spread is not None:
        noted = [{"epoch": 5, "deviation": 9.0}, {"epoch": 5, "deviation": spread}]  # before and after a resumption
        (folder / name / "denominator.jsonl").write_text("".join(json.dumps(each) + "\n" for each in noted))


def test_finished_points_are_told_beside_the_whole_sum_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = tmp_path / "few"
    ended(few, "own-200-16-0", 67.0, [59.0, 61.0, 67.0], 0.25)
    ended(few, "own-200-16-1", 69.0, [61.0, 66.0, 69.0], 0.75)
    ended(few, "own-200-16-2", 68.0, [60.0, 65.0, 68.0], 0.5)
    ended(few, "all-0", 68.0)
    ended(few, "all-1", 68.5)
    ended(few, "all-2", 68.0)
    ended(few, "own+tau-0.05-16-0", 60.0)
    for number, test in {4: 66.0, 16: 67.0, 64: 69.0}.items():
        for seed in range(3):
            ended(few, f"uniform-corrected-{number}-{seed}", test)
    ended(few, "uniform-16-0", 65.0)
    ended(few, "uniform-16-1", 67.0)
    ended(few, "uniform-16-2", 66.0)
    (few / "times.jsonl").write_text(json.dumps({"point": "own-200-16", "epoch_s": 0.5}) + "\n")
    run(monkeypatch, few, "--picture", tmp_path / "few.png", script=FIGURE)
    tables = [
        [[word.strip() for word in line.strip("|").split("|")] for line in part.splitlines()]
        for part in capsys.readouterr().out.split("\n\n")
    ]
    told = tables[0]
    # 68 is half way, in logarithms, between 16 and 64 uniform ones; t = 4.303 with three seeds
    own = [
        "own-200",
        "16",
        "68.00 +- 2.48",
        "3",
        "-0.17 +- 1.90",
        "+2.00 +- 0.00",
        "< 0.001",
        "2.7",
        "4.7",
        "-",
        "0.50",
    ]
    assert [*own, "32"] in told and ["all", "", "68.17 +- 0.72", "3", "", "-", "", "-", "-", "-", "", ""] in told
    assert ["own+tau-0.05", "16", "60.00", "1", "-", "-", "", "-", "-", "-", "", "<= 4"] in told and len(told) == 9
    assert ["uniform-corrected", "66.00 (3)", "67.00 (3)", "69.00 (3)"] in tables[1]
    assert ["own-200", "", "68.00 (3)", ""] in tables[1]
    # three pairs that agree: two of eight ways to do so
    assert ["own-200", "3", "3", "+2.00", "0.750", "+2.00 +- 0.00 (3)"] in tables[2]  # three times, for three kinds
    assert ["uniform-corrected", "3", "2", "+1.00", "1.000", "+1.00 +- 2.48 (3)"] in tables[
        2
    ]  # the third pair is equal
    assert (tmp_path / "few.png").stat().st_size > 5000
    run(monkeypatch, few, "--against", "all", script=FIGURE)
    assert "| 68.00 +- 2.48 | 3 | -0.17 +- 1.90 | -0.17 +- 1.90 |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, few, "--against", "soft", script=FIGURE)
    capsys.readouterr()
    ended(few, "uniform-64-0", 68.0)
    ended(few, "uniform-64-1", 70.0)
    ended(few, "uniform-64-2", 69.0)
    run(monkeypatch, few, script=FIGURE)  # by seed: (2 + 1) / 2, (0 - 1) / 2, (1 + 0) / 2
    assert "| uniform-corrected | 6 | 3 | +0.50 | 1.000 | +0.50 +- 2.48 (3) |" in capsys.readouterr().out
    run(monkeypatch, few, "--numbers", "64", script=FIGURE)
    told = capsys.readouterr().out
    assert "| uniform-corrected | 3 | 1 | +0.00 | 1.000 | +0.00 +- 2.48 (3) |" in told and "own" not in told
    run(monkeypatch, few, "--numbers", "16", "--course", tmp_path / "course.png", script=FIGURE)
    assert (tmp_path / "course.png").stat().st_size > 5000
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, few, "--picture", tmp_path / "nowhere" / "few.png", script=FIGURE)
    assert "nowhere' is no folder; make it" in capsys.readouterr().err
    for words in (["--numbers", "16,64"], ["--numbers", "16", "--against", "all"], []):
        with pytest.raises(SystemExit, match="2"):
            run(monkeypatch, few, *words, "--course", tmp_path / "none.png", script=FIGURE)
        told = capsys.readouterr()
        assert (
            "give one with --numbers, such as 16" in told.err and not told.out and not (tmp_path / "none.png").exists()
        )
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, few, "--numbers", "3", script=FIGURE)
    assert "--numbers '3' has no finished run" in capsys.readouterr().err


def test_several_folders_are_paired_each_for_itself_and_told_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, level, gains in ((first, 60.0, (1.0, 2.0, 3.0)), (second, 70.0, (2.0, 2.0, -1.0))):
        for seed, gain in enumerate(gains):
            for number in (4, 16):
                ended(folder, f"uniform-{number}-{seed}", level)
                ended(folder, f"own-{number}-{seed}", level + gain * (1.5 if number == 16 else 0.5))
    ended(first, "soft-16-0", 90.0)  # a kind that not all folders have
    run(monkeypatch, first, second, script=FIGURE)
    told = capsys.readouterr().out.splitlines()
    # by seed 1, 2, 3 and 2, 2, -1: mean 1.5, deviation 1.378, t of five 2.571; 10 of 12 pairs better: 2 * 79 / 4096
    assert told[2:] == ["| own | 12 | 10 | +1.50 | 0.039 | +1.50 +- 1.45 (6) |"]
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, first, second, "--picture", tmp_path / "few.png", script=FIGURE)
    assert "can show one folder; name one of the 2" in capsys.readouterr().err


def test_two_seeds_have_no_interval_of_their_own(tmp_path: Path) -> None:
    parts = runpy.run_path(str(FIGURE))
    for seed, (own, uniform) in enumerate([(67.0, 66.0), (68.0, 66.5)]):
        ended(tmp_path, f"own-16-{seed}", own)
        ended(tmp_path, f"uniform-16-{seed}", uniform)
    found = parts["read"](tmp_path)
    assert "| own | 16 | 67.50 | 2 | - | - |  |" in parts["table"](found)[2]


def test_p_values_of_several_comparisons() -> None:
    parts = runpy.run_path(str(FIGURE))
    values = [1.32, 1.0, 1.67, 0.82, 1.15]
    t = statistics.mean(values) / statistics.stdev(values) * math.sqrt(5)
    x = t / math.sqrt(4 + t * t)  # of 4 degrees of freedom the distribution is known: 1/2 + 3/4 (x - x^3 / 3)
    assert parts["p_value"](values) == pytest.approx(1 - 1.5 * (x - x**3 / 3), abs=1e-9)
    assert parts["p_value"]([-value for value in values]) == parts["p_value"](values)
    assert parts["holm"]({"a": 0.04, "b": 0.01, "c": 0.03, "d": 0.9}) == pytest.approx(
        {"b": 0.04, "c": 0.09, "a": 0.09, "d": 0.9}
    )


def test_a_folder_without_runs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, tmp_path, script=FIGURE)
    assert "has no finished runs; make them with experiments/few_negatives.py" in capsys.readouterr().err
    ended(tmp_path, "uniform-16-0", 60.0)
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, tmp_path, "--picture", tmp_path / "few.png", script=FIGURE)
    told = capsys.readouterr()
    assert "has one seed of each point" in told.err and not told.out and not (tmp_path / "few.png").exists()


def test_levers_change_one_setting_of_the_kinds_they_are_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--dry-run", "--out", "few", "--numbers", "16", "--seeds", "0", "--levers", "tau-0.2,k-*,scale-5")
    run(monkeypatch, *words, "--kinds", "instance,own,uniform,all")
    told = capsys.readouterr().out.split()
    expected = [
        "uniform+tau-0.2",
        "instance+tau-0.2",
        "instance+k-100",
        "instance+k-2500",
        "own+tau-0.2",
        "own+scale-5",
    ]
    assert told == [f"few/{each}-16-0" for each in expected]  # instance has scale 5 already


def test_every_kind_of_the_grid_is_a_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = runpy.run_path(str(SCRIPT))
    given = parts["argparse"].Namespace(
        teacher="t", data="cifar100", root="data", subset=0, device="cpu", epochs=45, precision="bf16",
        compile="network", evaluate_every=1, student="resnet20",
    )  # fmt: skip
    recipes = {kind: parts["recipe"](given, kind, 16, 0) for kind in (*parts["KINDS"], *parts["FIXED"])}
    assert len({json.dumps(recipe.as_dict()) for recipe in recipes.values()}) == len(recipes) == 12
    assert recipes["own"].arguments["refresh"] and recipes["ce"].teacher == ""
    for kind, followed in (("own", {"scale": 5.0}), ("soft", {})):  # the scale of `own` is 1 / tau
        changed = {**recipes[kind].arguments, "tau": 0.2, **followed}
        assert parts["recipe"](given, f"{kind}+tau-0.2", 16, 0).arguments == changed


def test_what_was_measured_is_still_what_the_script_would_run() -> None:
    """Whatever becomes of the method's defaults."""
    parts, point_of = runpy.run_path(str(SCRIPT)), runpy.run_path(str(FIGURE))["point_of"]
    kept_in = Path(__file__).parents[1] / "docs" / "results"
    folders = sorted([*kept_in.glob("few/*-0"), *kept_in.glob("few110/*-0")])
    assert len(folders) > 120
    for folder in folders:
        kept = Folder(folder)
        there, (point, seed) = kept.recipe(), point_of(folder.name)
        given = parts["argparse"].Namespace(**there.as_dict())
        assert not kept.changes(parts["recipe"](given, point.kind, point.number, seed)), folder.name
        assert there.arguments == json.loads((folder / "recipe.json").read_text())["arguments"], folder.name


def test_heads_on_embeddings_are_trained_once_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(5) * 3, 100)  # with gaps
    inputs = generator.normal(size=(5, 16))[labels // 3] + 1.5 * generator.normal(size=(500, 16))
    files = {"embeddings": inputs[::2], "labels": labels[::2], "queries": inputs[1::2], "query-labels": labels[1::2]}
    for name, values in files.items():
        np.save(tmp_path / f"{name}.npy", values.astype("int64" if "labels" in name else "float32"))
    where = [word for name in files for word in (f"--{name}", tmp_path / f"{name}.npy")]
    out = tmp_path / "heads.jsonl"
    heads = runpy.run_path(str(HEADS))
    monkeypatch.setitem(heads["train"].__globals__, "BATCH", 50)
    monkeypatch.setitem(heads["train"].__globals__, "EPOCHS", 8)
    monkeypatch.setattr(
        sys, "argv", [str(HEADS), *map(str, where), "--numbers", "8", "--seeds", "0,1", "--out", str(out)]
    )
    heads["main"]()
    assert "-shared" not in out.read_text()  # where asked for alone
    before = float(capsys.readouterr().out.split("\n")[0].split(": ")[1])
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--kinds", "[!p]*"])
    heads["main"]()
    capsys.readouterr()
    told = [json.loads(line) for line in out.read_text().splitlines()]
    found = {(line["kind"], line["seed"]): line for line in told}
    assert len(found) == len(told) == 2 * (len(heads["KINDS"]) + 1)
    assert all(
        line["test"] > before for (kind, _), line in found.items() if "corrected" in kind or kind in ("own", "all")
    )
    for seed in (0, 1):  # what conditioning is for, and the sum that nothing is missing from
        assert found["own", seed]["deviation"] < found["uniform-corrected", seed]["deviation"] / 2
        assert found["all", seed]["deviation"] < 1e-5
    heads["main"]()
    assert len(capsys.readouterr().out.splitlines()) == 1  # every run is there
    run(monkeypatch, out, "--picture", tmp_path / "heads.png", script=FIGURE)
    mean = (found["own", 0]["test"] + found["own", 1]["test"]) / 2
    assert f"| own | {mean:.2f} (2) |" in capsys.readouterr().out and (tmp_path / "heads.png").stat().st_size > 5000
    np.save(tmp_path / "query-labels.npy", labels[1::2] + 1)
    for words, sentence in (
        ((), "A query has the label 1, which no training sample has"),
        (("--labels", tmp_path / "embeddings.npy"), "labels [250, 16] do not fit"),
        (("--kinds", "hard"), "--kinds 'hard' names none of uniform,"),
    ):
        with pytest.raises(SystemExit, match="2"):
            run(monkeypatch, *where, "--out", tmp_path / "none.jsonl", *words, script=HEADS)
        assert sentence in " ".join(capsys.readouterr().err.split()) and not (tmp_path / "none.jsonl").exists()


def test_a_retriever_is_trained_once_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    topics, turned = generator.normal(size=(8, 16)), generator.normal(size=(16, 16)) / 4
    passages = topics[np.arange(600) % 8] + generator.normal(size=(600, 16))
    for name, values in (("passages", passages), ("queries", passages @ turned + passages)):
        np.save(tmp_path / f"{name}.npy", values.astype("float32"))
    out, small = tmp_path / "passages.jsonl", ("--train", 400, "--test", 100, "--seeds", "0,1", "--numbers", 2)
    run(monkeypatch, tmp_path, "--out", out, *small, script=PASSAGES)
    before = json.loads(capsys.readouterr().out.split("\n")[0].removeprefix("as they are: ").replace("'", '"'))
    told = [json.loads(line) for line in out.read_text().splitlines()]
    kinds = runpy.run_path(str(PASSAGES))["KINDS"]
    assert sorted((line["kind"], line["number"], line["seed"]) for line in told) == sorted(
        (kind, 2 if "+" in kind else 0, seed) for kind in kinds for seed in (0, 1)
    )
    weighed = [line for line in told if line["kind"].endswith(("+uniform", "+soft", "+own"))]
    assert all(line["test"] > before["test"] and line["first"] > before["first"] for line in weighed)
    run(monkeypatch, tmp_path, "--out", out, *small, script=PASSAGES)
    assert len(capsys.readouterr().out.splitlines()) == 1  # every run is there
    for words, sentence in (
        ((), "with --train 25000 + --test 4000 of n; lower these, or embed more"),
        ((*small, "--batch", 500), "--batch 500 is more than --train 400"),
        (("--kinds", "hard"), "--kinds 'hard' names none of in-batch,"),
    ):
        with pytest.raises(SystemExit, match="2"):
            run(monkeypatch, tmp_path, "--out", tmp_path / "none.jsonl", *words, script=PASSAGES)
        assert sentence in " ".join(capsys.readouterr().err.split()) and not (tmp_path / "none.jsonl").exists()


class Letters(torch.nn.Module):
    """In the place of a sentence encoder: a linear map of which letters a text has."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()
        self.map = torch.nn.Linear(26, 8, bias=False)
        with torch.no_grad():
            self.map.weight.copy_(torch.randn(8, 26, generator=torch.Generator().manual_seed(0)))

    def preprocess(self, texts: list[str]) -> dict[str, torch.Tensor]:
        return {"letters": torch.tensor([[float(text.count(chr(97 + i))) for i in range(26)] for text in texts])}

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": self.map(features["letters"])}


def test_a_text_encoder_is_trained_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    words = ["".join(chr(97 + i) for i in generator.integers(0, 26, 4)) for _ in range(300)]
    (tmp_path / "texts.tsv").write_text("".join(f"{word}\t{word}{'xyz' * 3}\n" for word in words), "utf-8")
    before = Letters()
    for name, texts in (("passages", words), ("queries", [f"{word}{'xyz' * 3}" for word in words])):
        np.save(tmp_path / f"{name}.npy", before(before.preprocess(texts))["sentence_embedding"].detach().numpy())
    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(SentenceTransformer=Letters))
    monkeypatch.syspath_prepend(str(TEXTS.parent))
    out, small = tmp_path / "texts.jsonl", ("--train", 200, "--test", 80, "--passages", 290, "--numbers", 1)
    kinds = "in-batch,in-batch-weighed,in-batch+mined-margin,in-batch+anew,in-batch+own"
    lower = TEXTS.read_text().replace("LEARNING_RATE, WARMUP, LONGEST = 5e-5", "LEARNING_RATE, WARMUP, LONGEST = 0.02")
    (tmp_path / "few_texts.py").write_text(lower)  # so small a network learns faster
    for epochs in (1, 3):
        asked = (tmp_path, "any", "--out", out, *small, "--kinds", kinds, "--seeds", 0, "--epochs", epochs)
        run(monkeypatch, *asked, script=tmp_path / "few_texts.py")
    given = json.loads(capsys.readouterr().out.split("\n")[0].removeprefix("as they are: ").replace("'", '"'))
    told = {line["kind"]: line["test"] for line in map(json.loads, out.read_text().splitlines())}
    assert told.keys() == {each + more for each in kinds.split(",") for more in ("", "+epochs-3")}
    assert all(test > given["test"] for test in told.values())
    assert told["in-batch+mined-margin"] == told["in-batch+anew"]  # in the first epoch
    assert told["in-batch"] != told["in-batch-weighed"] != told["in-batch+own"]


def test_meanings_that_share_their_words_are_left_out(tmp_path: Path) -> None:
    licence, bank = "  1 This software\n", "n 01 bank 0 000 | "
    ocean = '00000009 17 n 02 ocean 0 blue_water 0 000 | a large body of water; "they crossed it"  \n'
    others = f"00000001 17 {bank}sloping land\n00000002 21 {bank}a financial institution  \n"
    (tmp_path / "data.noun").write_text(licence + others + ocean)
    (tmp_path / "data.adj").write_text(f"{licence}00000005 00 a 01 awake(p) 0 000 | not asleep; 'I am awake'  \n")
    found = runpy.run_path(str(WORDNET))["meanings"](tmp_path / "data.noun", tmp_path / "data.adj")
    assert sorted(found) == [("awake", "not asleep; 'I am awake'"), ("ocean, blue water", "a large body of water")]
