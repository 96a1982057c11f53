"""What docs/results.md and the README's table tell is what the runs in docs/results have."""

import json
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
RESULTS = (ROOT / "docs" / "results.md").read_text().replace("**", "")


def test_means_and_intervals_are_those_of_the_runs_that_are_kept() -> None:
    from scns import claims, results

    kept = {}  # as a page shows it -> the runs, as it shows them
    for _, entries in results.read(ROOT / "docs" / "results").groups:
        tests = [entry.test for entry in entries]
        found = claims.interval(tests)
        half = f" +- {found.high - found.mean:.2f}" if len(tests) > 1 else ""
        kept[f"{found.mean:.2f}{half}"] = ", ".join(f"{test:.2f}" for test in tests)
    told = re.findall(r"(\d\d\.\d\d \+- \d\.\d\d) \(([\d., ]+)\)", RESULTS)
    assert len(told) >= 5 and all(kept[shown] == runs for shown, runs in told)
    tables = README.split("## Results\n")[1].split("\n## ")[0].replace("**", "")
    shown = re.findall(r"\d\d\.\d\d \+- \d\.\d\d", " ".join(re.findall(r"^\|.*$", tables, re.MULTILINE)))
    assert len(shown) >= 30 and not [each for each in shown if each not in kept]


@pytest.mark.parametrize(
    ("section", "folder"), [("Which untold setting it is", "why"), ("One setting changed", "few-levers")]
)
def test_accuracies_of_a_table_are_those_of_its_folder(section: str, folder: str) -> None:
    page = RESULTS.split(f"# {section}\n")[1].split("\n#")[0]
    table = " ".join(line for line in page.splitlines() if line.startswith("|"))
    results = (ROOT / "docs" / "results" / folder).rglob("result.json")
    kept = {f"{json.loads(path.read_text())['test']:.2f}" for path in results}
    in_page, in_table = (set(re.findall(r"\b\d\d\.\d\d\b", text)) for text in (page, table))
    assert len(in_table) >= 8 and in_table <= kept <= in_page


def test_differences_of_a_table_are_those_of_its_rows() -> None:
    from scns.claims import interval

    def shown(tests: list[float], base: list[float]) -> str:
        found = interval([one - other for one, other in zip(tests, base, strict=False)])
        return f"{found.mean:+.2f}" + (f" +- {found.high - found.mean:.2f}" if len(tests) > 1 else "")

    def rows(section: str) -> list[list[str]]:
        page = RESULTS.split(f"# {section}\n")[1].split("\n#")[0]
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]

    changed = rows("One setting changed")[2:]
    levers = [([float(cell) for cell in row[1:4] if cell], row[4]) for row in changed if row[1]]
    base = levers[0][0]
    assert [told for _, told in levers[1:]] == [shown(tests, base) for tests, _ in levers[1:]] and len(levers) == 13
    mixed = [(float(row[5]), row[6]) for row in changed if row[5]]
    assert [told for _, told in mixed[1:]] == [shown([test], [mixed[0][0]]) for test, _ in mixed[1:]]
    assert len(mixed) == 13
    without_the_first = [shown(tests[1:], base[1:]).split()[0] for tests, _ in levers[1:4]]
    assert without_the_first == ["+0.30", "+0.17", "+0.06"] and "alone give +0.30 and +0.17, and +0.06" in RESULTS
    for section, compared in (("The paper's T1", 12), ("The column resnet32", 10), ("The paper's T3", 18)):
        table = [row for row in rows(section)[2:] if len(row) == 6]
        runs = [[float(each) for each in row[1].split("(")[1].rstrip(")").split(", ")] for row in table]
        for row, tests in zip(table, runs, strict=True):
            assert row[4] in ("", shown(tests, runs[0])) and row[5] in ("", shown(tests, runs[2])), row
            assert row[3] == (f"{sum(tests) / len(tests) - float(row[2]):+.2f}" if row[2] != "none" else ""), row
        assert sum(bool(row[4]) + bool(row[5]) for row in table) == compared


def test_both_columns_of_t1_are_told_as_their_runs_and_the_paper_have_them() -> None:
    from scns.claims import interval, pooled
    from scns.results import printed_values
    from scns.tables import cell

    columns = ("resnet20", "resnet32")
    rows = ("ce", "ce-lm-b0.5", "infonce", "infonce+lm-b0.5", "class-scns-k2", "instance-scns-k100")
    tests: dict[str, dict[str, float]] = {row: {} for row in rows}  # by network and seed
    for row, each in tests.items():
        for path in (ROOT / "docs" / "results" / "t1" / row).glob("resnet[23]*-[0-9]/result.json"):
            each[path.parent.name] = json.loads(path.read_text())["test"]
    cells = {(row, column): cell(f"t1/{row}/{column}") for row in rows for column in columns}
    paper = {at: printed_values()["t1", c.row.paper, c.row.value, c.column.paper] for at, c in cells.items()}
    names = {f"{c.row.paper}": row for (row, _), c in cells.items()} | {"cross-entropy": "ce"}

    def less(row: str, base: str) -> str:
        pairs = [tests[row][run] - tests[base][run] for run in tests[row] if run in tests[base]]
        found = interval(pairs)
        return f"{sum(d > 0 for d in pairs)} of {len(pairs)}, {found.mean:+.2f} +- {found.high - found.mean:.2f}"

    page = RESULTS.split("### The column resnet32\n")[1].split("\n#")[0]
    told = 0
    for name, *cells_told in ([c.strip() for c in line.split("|")[1:-1]] for line in page.splitlines() if "|" in line):
        row = names.get(name.split(", ")[0].replace("cross-entropy +", "Cross-Entropy +"))
        if row and len(cells_told) == 5:
            assert cells_told[1] == f"{paper[row, 'resnet32']:.2f}"
            told += 1
        elif row:
            for base, shown, gains in (("ce", *cells_told[:2]), ("infonce", *cells_told[2:])):
                assert shown in ("", less(row, base)), name
                assert gains in ("", ", ".join(f"{paper[row, c] - paper[base, c]:+.2f}" for c in columns)), name
                told += bool(shown) + bool(gains)
    assert told == 6 + 17
    scatter, freedom = pooled([[v for run, v in each.items() if run > "resnet3"] for each in tests.values()])
    assert f"({scatter:.2f} a run, {freedom} degrees of freedom)" in " ".join(page.split())

    def mean(row: str) -> str:
        found = interval([test for run, test in tests[row].items() if run > "resnet3"])
        return f"{found.mean:.2f} +- {found.high - found.mean:.2f}"

    for some in (rows[::2][:2], rows[3:]):  # cross-entropy and InfoNCE; what the paper adds to it
        assert f"| {'; '.join(map(mean, some))} |" in README
    assert "12 of 12 pairs" in README and "in 12 of 12 pairs" in RESULTS
    for row in ("class-scns-k2", "instance-scns-k100"):
        assert less(row, "infonce").startswith("0 of 6")
        assert less(row, "infonce").split("-", 1)[1] in " ".join(README.split())
        assert less(row, "infonce").split("-", 1)[1] in " ".join(RESULTS.split("\n- **Most of the fall")[0].split())


@pytest.mark.parametrize("folder", ["few", "few110"])
def test_the_tables_of_few_negatives_are_those_of_their_runs(folder: str) -> None:
    figure = runpy.run_path(str(ROOT / "experiments" / "few_figure.py"))
    runs, rows = figure["read"](ROOT / "docs" / "results" / folder), RESULTS.splitlines()
    assert not [line for line in figure["grid"](runs) if line not in rows]
    few = {point: each for point, each in runs.items() if point.number in (0, 16) and len(each) >= 3}
    assert len(few) >= 10
    for line in figure["table"](few)[2:]:
        cells = [cell.strip().removesuffix("-") for cell in line.split("|")[1:-1]]
        del cells[9], cells[-1]  # epochs to 68 %, in no row of all runs, and the worth of one number among one
        assert "| " + " | ".join(cells) + " |" in rows


def test_the_path_of_tiny_imagenet_is_told_as_it_was_run() -> None:
    page = RESULTS.split("# Tiny-ImageNet: how far it went\n")[1].split("\n#")[0]
    folder = ROOT / "docs" / "results" / "tiny-path" / "t2"
    ended = {path.parts[-3]: json.loads(path.read_text()) for path in folder.rglob("result.json")}
    shown = {name: f"{result['test']:.2f}" for name, result in ended.items()}
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    for name, row in zip(("teacher", "ce", "kld", "own"), rows, strict=True):
        assert f"| {shown[name]} |" in row
    for first, second, row in (("teacher", "ce", rows[0]), ("kld", "own", rows[2])):
        assert (
            ended[first]["seconds"] == ended[second]["seconds"] and f"| {ended[first]['seconds']:,.0f}, in one" in row
        )
    recipes = [json.loads(path.read_text()) for path in folder.rglob("recipe.json")]
    assert {(each["subset"], each["epochs"], each["seed"], each["batch"]) for each in recipes} == {(5000, 4, 0, 64)}
    assert "316 steps" in page and -(-5000 // 64) * 4 == 316


def test_two_teachers_together_are_told_as_their_runs_have_it() -> None:
    figure = runpy.run_path(str(ROOT / "experiments" / "few_figure.py"))
    teachers = [figure["read"](ROOT / "docs" / "results" / folder) for folder in ("few", "few110")]

    def against(kind: str, *numbers: int) -> dict[str, list[str]]:
        chosen = [{p: each for p, each in runs.items() if not numbers or p.number in numbers} for runs in teachers]
        rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in figure["over_numbers"](chosen, kind)[2:]]
        return {row[0]: row[1:] for row in rows}

    def rows(page: str, section: str, head: str) -> list[list[str]]:
        table = page.split(f"{section}\n")[1].split(head)[1].split("\n\n")[0]
        return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]

    compared = 0
    columns = [against(kind) for kind in ("uniform", "uniform-corrected", "own")]
    for kind, *cells in rows(RESULTS, "### Both teachers together", "| against |"):
        for cell, column in zip(cells, columns, strict=True):
            assert (kind in column) == bool(cell)
            if cell:
                pairs, better, mean, p, seeds = column[kind]
                p = f"p {p}" if p.startswith("<") else f"p = {p}"
                assert cell == f"{better} of {pairs}, {mean}, {p}, {seeds.rsplit(' (')[0]}"
                compared += 1
    assert compared == 24
    readme = rows(README, "### Distilled students: which negatives, and how many", "| `own` less |")
    page = rows(RESULTS, "### Both teachers together", "| `own` less |")
    for (kind, *cells), (_, *short) in zip(page, readme, strict=True):
        assert len(cells) == 7
        for number, cell, rounded in zip((1, 4, 16, 64, 256, 1024, 4096), cells, short, strict=True):
            assert cell == against(kind, number)["own"][4]
            mean, half = (float(each) for each in cell.split(" (")[0].split(" +- "))
            shown, width = (float(each) for each in rounded.split(" +- "))
            assert abs(shown - mean) < 0.0501 and abs(width - half) < 0.0501
    text = " ".join(RESULTS.split())
    many, few = against("uniform", 256, 1024, 4096), against("uniform", 4, 16, 64)
    for kind in ("class", "instance"):
        assert many[kind][:2] == ["18", "1"] and few[kind][:2] == ["20", "10"]
        assert many[kind][4].split(" (")[0] in text
    assert few["own"][:2] == ["20", "20"]
    assert f"({against('uniform', 1, 4)['uniform-corrected'][4].split(' (')[0]} by seed)" in text
    assert f"({against('uniform', 16, 64)['uniform-corrected'][4].split(' (')[0]}, 13 of 14 pairs)" in text
    assert f"`own` at {against('all')['own'][4].split(' (')[0]} over all seven numbers" in text
    for runs, own, corrected in zip(
        teachers, ("0.62 +- 0.44", "0.70 +- 0.20"), ("0.55 +- 0.31", "0.43 +- 0.12"), strict=True
    ):
        for kind, told in (("uniform", own), ("uniform-corrected", corrected)):
            line = next(line for line in figure["over_numbers"]([runs], kind) if line.startswith("| own |"))
            assert f"| +{told} (3) |" in line and told in README and told in text


def test_the_early_curves_end_below_68() -> None:
    figure = runpy.run_path(str(ROOT / "experiments" / "few_figure.py"))
    folders = [figure["read"](ROOT / "docs" / "results" / name) for name in ("few", "few110")]
    epochs = [
        ((point.kind, point.number), min(epoch for epoch, test in run.curve.items() if test >= 68))
        for runs in folders
        for point, seeds in runs.items()
        for run in seeds.values()
        if max(run.curve.values()) >= 68
    ]
    assert sorted(epochs) == [(("all", 0), 45), (("own", 256), 45), (("own-200", 4096), 45)]
    told = " ".join(RESULTS.split("68 % is out of reach in 45 epochs: of all runs")[1].split("\n\n")[0].split())
    assert "three saw it, after the last epoch (one of all negatives and one of 4,096 of `own-200`" in told


@pytest.mark.parametrize(
    ("folder", "reference", "told"),
    [("few", "kld", "0.99 +- 0.32"), ("few110", "kld", "0.26 +- 0.53"), ("few110", "all", "0.42 +- 0.40")],
)
def test_64_negatives_and_more_are_told_as_the_runs_have_them(folder: str, reference: str, told: str) -> None:
    figure = runpy.run_path(str(ROOT / "experiments" / "few_figure.py"))
    runs = {
        p: each for p, each in figure["read"](ROOT / "docs" / "results" / folder).items() if p.number not in (1, 4, 16)
    }
    line = next(line for line in figure["over_numbers"]([runs], reference) if line.startswith("| own |"))
    assert f"| +{told} (3) |" in line and told in " ".join(RESULTS.split())


# as the text tells it: this point less that one, over these seeds (none: all that both have)
TOLD = {
    "1.19 +- 0.40 more": ("few/own-16", "few/uniform-16"),
    "`own` gains 0.76 +- 0.33": ("few/own-16", "few/kld"),
    "(-0.43 +- 0.50)": ("few/uniform-16", "few/kld"),
    "class level 0.99 +- 0.36": ("few/own-16", "few/class-16"),
    "instance level 0.99 +- 0.38": ("few/own-16", "few/instance-16"),
    "(`own` 0.56 +- 0.64": ("few/own-16", "few/uniform-corrected-16"),
    "`soft` 0.17 +- 0.63": ("few/soft-16", "few/uniform-corrected-16"),
    "(`own` -0.20 +- 0.59)": ("few/own-1", "few/ce"),
    "`own` is -0.08 +- 0.14 from `all`": ("few/own-64", "few/all", 5, 6, 7, 8, 9),
    "it is -0.01 +- 0.24": ("few/own-64", "few/all"),
    "1.71 +- 1.40 above uniform": ("few110/own-16", "few110/uniform-16"),
    "gives 1.16 +- 0.19 here": ("few110/uniform-corrected-16", "few110/uniform-16"),
    "adds to it (0.56 +- 1.46)": ("few110/own-16", "few110/uniform-corrected-16"),
    "`own` is -0.05 +- 1.48 from it": ("few110/own-16", "few110/kld"),
    "1.77 +- 1.25 below `kld`": ("few110/kld", "few110/uniform-16"),
    "level with cross-entropy (-0.04 +- 1.11)": ("few110/uniform-16", "few110/ce"),
    "With 256 it is 0.44 +- 0.26 above": ("few110/own-256", "few110/kld"),
    "`ce` lower in 3 of 3 pairs (-0.24 +- 0.21": ("few110/ce", "few/ce"),
    "lower in 3 of 3 pairs (-0.41 +- 0.56)": ("few-levers/own-256", "few/own-256"),
    "CRD 0.69 +- 0.16 above KLD": ("t3/crd/resnet110-resnet20", "t3/kld/resnet110-resnet20"),
    "0.28 +- 1.52 above KLD": ("t3/own/resnet110-resnet20", "t3/kld/resnet110-resnet20"),
    "0.41 +- 1.48 below CRD": ("t3/crd/resnet110-resnet20", "t3/own/resnet110-resnet20"),
    "0.72 +- 1.14 above mixtures on top": (
        "t3/infonce-lm-b0.5/resnet110-resnet20",
        "t3/infonce+lm-b0.5/resnet110-resnet20",
    ),
    "(`own` against `uniform` +0.65 +- 2.52": ("alone/own", "alone/uniform"),
    "`uniform-corrected` +0.72 +- 1.05": ("alone/own", "alone/uniform-corrected"),
    "(16 against one +0.56 +- 1.50": ("alone/own-positives", "alone/own"),
}


@pytest.mark.parametrize("told", TOLD)
def test_differences_in_the_text_are_those_of_the_runs(told: str) -> None:
    from scns.claims import interval

    def tests(point: str) -> dict[int, float]:
        found = (ROOT / "docs" / "results").glob(f"{point}-[0-9]/result.json")
        return {int(path.parent.name[-1]): json.loads(path.read_text())["test"] for path in found}

    one, other, *seeds = TOLD[told]
    ours, theirs = tests(one), tests(other)
    found = interval([ours[seed] - theirs[seed] for seed in sorted(seeds or {*ours} & {*theirs})])
    assert told in " ".join(RESULTS.split())
    mean, half = map(float, re.findall(r"([-+]?\d\.\d\d) \+- (\d\.\d\d)", told)[0])
    assert (f"{mean:.2f}", f"{half:.2f}") == (f"{found.mean:.2f}", f"{found.high - found.mean:.2f}")


def test_the_worth_of_the_positive_is_that_of_the_runs() -> None:
    def test(run: str) -> float:
        return json.loads((ROOT / "docs" / "results" / run / "result.json").read_text())["test"]

    gains = [test(f"why/{kind}-instance-0") - test(f"why/{kind}-class-0") for kind in ("uniform", "class", "instance")]
    assert "end {:.1f}, {:.1f} and {:.1f} points higher".format(*gains) in " ".join(RESULTS.split())
    for kind in ("own{}-256-0", "mixed-corrected{}-1024-0"):
        gains.append(test("few-levers/" + kind.format("")) - test("few-levers/" + kind.format("+positive-class")))
    assert f"by {min(gains):.1f} to {max(gains):.0f} points, one seed each" in README


def test_corrected_p_of_the_tables_are_those_of_the_runs() -> None:
    figure = runpy.run_path(str(ROOT / "experiments" / "few_figure.py"))

    def corrected(table: str, column: str, against: str) -> dict[str, float]:
        runs: dict[str, list[float]] = {}
        for path in sorted((ROOT / "docs" / "results" / table).glob(f"*/{column}-[0-9]/result.json")):
            runs.setdefault(path.parts[-3], []).append(json.loads(path.read_text())["test"])
        base = runs.pop(against)
        pairs = {row: [one - two for one, two in zip(tests, base, strict=True)] for row, tests in runs.items()}
        return figure["holm"]({row: figure["p_value"](both) for row, both in pairs.items() if len(both) == 3})

    page = " ".join(RESULTS.split())
    found = corrected("t1", "resnet20", "infonce")
    told = "at p = {instance-scns-k100:.2f}, `own` at {own:.2f} and class level at {class-scns-k2:.2f};"
    assert len(found) == 6 and told.format(**found) in page
    found = corrected("t3", "resnet*20", "ce")
    small = {"crd", "kld", "class-scns-k20", "instance-scns-k20", "instance-scns-k50"}
    assert len(found) == 9 and {round(found[row], 2) for row in small} == {0.01, 0.02}
    assert all(found[row] > 0.1 for row in found if row not in small) and f"p = {found['own']:.2f} as corrected" in page
    assert 0.06 < min(corrected("t3", "resnet*20", "infonce").values()) < 0.07


CHANGED = {  # as docs/results.md says it -> as few_embeddings.py notes it
    "nothing": "",
    "memory of random rows": "+empty",
    "the same, embeddings not standardised": "+empty+raw",
    "16 positives": "+positives-16",
    "16 positives, temperature 0.05": "+tau-0.05+positives-16",
    "16 positives, temperature 0.2": "+tau-0.2+positives-16",
}


def test_retrieval_by_heads_is_told_as_it_was_measured() -> None:
    figure = runpy.run_path(str(ROOT / "experiments" / "few_figure.py"))
    runs = figure["read"](ROOT / "docs" / "results" / "heads.jsonl")
    assert {len(each) for each in runs.values()} == {3}

    def mean(kind: str, number: int) -> float:
        tests = [run.test for run in runs[kind, number].values()]
        return sum(tests) / len(tests)

    def shown(tests: list[float], sign: str = "") -> str:
        found = figure["interval"](tests)
        return f"{found.mean:{sign}.2f} +- {found.high - found.mean:.2f}"

    lines = figure["lines"](ROOT / "docs" / "results" / "heads-times.jsonl")
    seconds = {(line["kind"], line["number"]): f"{line['seconds']:.0f}" for line in lines}
    page = RESULTS.split("## A head on embeddings and labels\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    base = {point: each for point, each in runs.items() if "+" not in point.kind}
    for line in figure["grid"](base):
        assert line in page.splitlines()
    told = 0
    for row in rows:
        if len(row) == 6 and row[1] in ("64", "256", "all"):  # several positives
            number = 0 if row[1] == "all" else int(row[1])
            for cell, changed in zip(row[2:], ("", "+positives-4", "+positives-16", "+positives-64"), strict=True):
                told += bool(cell)
                assert not cell or cell == shown([run.test for run in runs[row[0] + changed, number].values()])
        elif len(row) == 4 and "+-" in row[1]:
            uniform, own = (runs[kind + CHANGED[row[0]], 64] for kind in ("uniform", "own"))
            assert row[1:3] == [shown([run.test for run in each.values()]) for each in (uniform, own)]
            assert row[3] == shown([own[seed].test - uniform[seed].test for seed in own], "+")
            told += 2
        elif len(row) == 3 and "(`pml-" in row[0]:  # another library's
            kind = row[0].split("(`")[1].removesuffix("`)")
            assert row[1] == shown([run.test for run in runs[kind, 0].values()])
            assert row[2] in ("", seconds.get((kind, 0)))
            told += 1
    assert told == 38
    table = README.split("### Your embeddings, your labels")[1].split("![")[0].replace("**", "")
    for kind, number in (
        ("own+positives-64", 256),
        ("own-200+positives-64", 256),
        *(peer for peer in seconds if not peer[1]),
    ):
        assert f"after {seconds[kind, number]} s" in table
    gains = [mean("own", number) - mean("uniform", number) for number in (4, 16, 64, 256)]
    assert f"{min(gains):.1f} to {max(gains):.0f} points above uniform ones" in README
    pairs = [
        ("own-200+positives-64", 256, "pml-supcon-memory-8192", 0),
        ("own+positives-64", 256, "pml-supcon-memory-8192", 0),
        ("own+positives-64", 64, "own", 64),
        ("own+positives-64", 64, "uniform+positives-64", 64),
    ]
    for kind, number, other, least in pairs:
        one, two = runs[kind, number], runs[other, least]
        assert shown([one[seed].test - two[seed].test for seed in one], "+") in page


README_KINDS = {
    "mined:": "mined",
    "half": "mined-uniform",
    "uniform": "uniform",
    "uniform,": "uniform-corrected",
    "`own`:": "own",
    "all": "all",
}
README_POSITIVES = {
    "64 uniform": ("uniform+positives-64", 64),
    "64 of `own`": ("own+positives-64", 64),
    "256 of `own`": ("own+positives-64", 256),
    "the same with": ("own-200+positives-64", 256),
    "pytorch-metric-learning": ("pml-supcon", 0),
    "the same through": ("pml-supcon-memory-8192", 0),
}


def test_heads_on_two_data_sets_are_told_as_they_were_measured() -> None:
    figure = runpy.run_path(str(ROOT / "experiments" / "few_figure.py"))
    sets = [figure["read"](ROOT / "docs" / "results" / name) for name in ("heads.jsonl", "heads-tiny.jsonl")]
    tiny = sets[1]
    assert {len(each) for each in tiny.values()} == {3}

    def mean(runs: dict, kind: str, number: int) -> str:
        return f"{sum(run.test for run in runs[kind, number].values()) / 3:.1f}"

    def shown(tests: list[float], sign: str = "") -> str:
        found = figure["interval"](tests)
        return f"{found.mean:{sign}.2f} +- {found.high - found.mean:.2f}"

    def less(one: tuple[str, int], two: tuple[str, int]) -> str:
        return shown([run.test - tiny[two][seed].test for seed, run in tiny[one].items()], "+")

    table = README.split("### Your embeddings, your labels")[1].split("![")[0].replace("**", "")
    seen = set()
    for line in (line for line in table.splitlines() if line.startswith("| ")):
        name, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 8 and name.split()[0] in README_KINDS:
            kind = README_KINDS[name.split()[0]]
            for number, runs, cell in zip((4, 16, 64, 256) * 2, [sets[0]] * 4 + [sets[1]] * 4, cells, strict=True):
                assert not cell or cell == mean(runs, kind, 0 if kind == "all" else number), line
            seen.add(kind)
        for start, point in README_POSITIVES.items():
            if len(cells) == 3 and name.startswith(start):
                assert cells[:2] == [mean(runs, *point) for runs in sets], line
                seen.add(start)
    assert seen == {*README_KINDS.values(), *README_POSITIVES}
    page = RESULTS.split("### Another data set\n")[1].split("\n### ")[0]
    plain = {point: each for point, each in tiny.items() if "+" not in point.kind}
    assert not [line for line in figure["grid"](plain) if line not in page.splitlines()]
    memory = ("pml-supcon-memory-8192", 0)
    for start, point in README_POSITIVES.items():
        tests = shown([run.test for run in tiny[point].values()])
        assert f"| {tests} | {'' if point == memory else less(point, memory) + ' '}|" in page, start
    text = " ".join(page.split())
    for one, two in (
        (("own", 64), ("all", 0)),
        (("own+positives-64", 64), ("own", 64)),
        (("uniform+positives-64", 64), ("uniform", 64)),
        (("own+positives-64", 64), ("uniform+positives-64", 64)),
    ):
        assert less(one, two) in text
    assert less(("own+positives-64", 256), memory).lstrip("+") in README
    for kind, other in (("uniform", "+4.75 +- 0.09"), ("uniform-corrected", "+4.28 +- 0.08")):
        line = next(line for line in figure["over_numbers"]([tiny], kind) if line.startswith("| own |"))
        assert f"| own | 12 | 12 | {other.split()[0]} |" in line and f"| {other} (3) |" in line and other in text
    worse = figure["over_numbers"]([tiny], "uniform")
    for kind in ("mined", "mined-uniform", "class", "instance"):
        assert any(line.startswith(f"| {kind} | 12 | 0 |") for line in worse)


def measured(name: str) -> dict:
    return runpy.run_path(str(ROOT / "experiments" / "few_figure.py"))["read"](ROOT / "docs" / "results" / name)


def mean_of(tests: list[float], sign: str = "") -> str:
    found = runpy.run_path(str(ROOT / "experiments" / "few_figure.py"))["interval"](tests)
    return f"{found.mean:{sign}.2f} +- {found.high - found.mean:.2f}"


def cells(page: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]


def test_draws_that_serve_a_batch_are_told_as_they_were_measured() -> None:
    runs, times = measured("heads-shared.jsonl"), measured("heads-shared-times.jsonl")
    lines = (ROOT / "docs" / "results" / "heads-shared-times.jsonl").read_text().splitlines()
    seconds = {(line["kind"], line["number"]): f"{line['seconds']:.0f}" for line in map(json.loads, lines)}
    page = RESULTS.split("### Draws that serve a whole batch\n")[1].split("\n### ")[0]
    rows = [row for row in cells(page) if "+-" in row[1]]
    assert sorted(row[0] for row in rows) == sorted({point.kind for point in runs}) and len(times) == 9
    for kind, *shown, last in rows:
        assert shown == [mean_of([run.test for run in runs[kind, number].values()]) for number in (1, 4, 16)]
        assert last == seconds[kind, 4]
    assert f"take {seconds['uniform-corrected', 64]} and 64 of\n`own` {seconds['own', 64]}." in page
    alone = measured("heads.jsonl")
    shared, lone = (
        [f"{sum(run.test for run in runs[kind, number].values()) / 3:.2f}" for runs, kind, number in which]
        for which in (
            ((runs, "uniform-shared", 4), (runs, "uniform-shared", 1)),
            ((alone, "own", 64), (alone, "uniform-corrected", 64)),
        )
    )
    assert all(f"({one}; {other})" in page for one, other in zip(shared, lone, strict=True))


BESIDE = {  # as the pages say it -> as few_passages.py notes it
    "nothing more (": "",
    "nothing more, weighed": "-weighed",
    "none; the same": "",
    "none, but": "-weighed",
    "the nearest": "+mined",
    "the same, 5 %": "+mined-margin",
    "the same, found again": "+anew",
    "mined with a margin, anew": "+anew",
    "random ones": "+uniform",
    "drawn by the given": "+soft",
    "drawn by the heads'": "+own",
    "the same by the heads'": "+own",
}
LARGER = {
    "alone": "", "alone, weighed": "-weighed", "random more": "+uniform", "mined anew": "+anew", "of `+soft`": "+soft",
    "of `+own`": "+own",
}  # fmt: skip
COUNTED = {  # alike, weighed
    "nothing more": ("", "-weighed"),
    "random ones": ("+uniform-alike", "+uniform"),
    "mined with a margin, anew": ("+anew", "+anew-weighed"),
    "drawn by the heads' own": ("+own-alike", "+own"),
}


def beside(shown: str) -> str:
    (kind,) = {kind for words, kind in BESIDE.items() if shown.startswith(words)}
    return f"in-batch{kind}"


class Retrieval:
    """The runs of few_passages.py on both sets of queries."""

    def __init__(self) -> None:
        self.sets = [measured("passages.jsonl"), measured("passages-others.jsonl")]
        assert all({len(each) for each in runs.values()} == {3} for runs in self.sets)

    def tests(self, kind: str, number: int) -> list[float]:
        """Three seeds of the one set, three of the other."""
        number = number if "+" in kind.split("+batch")[0].split("+tau")[0] else 0
        return [runs[kind, number][seed].test for runs in self.sets for seed in (0, 1, 2)]

    def means(self, kind: str, number: int) -> list[str]:
        found = self.tests(kind, number)
        return [mean_of(found[:3]), mean_of(found[3:])]

    def differences(self, kind: str, base: str, number: int) -> list[float]:
        return [a - b for a, b in zip(self.tests(kind, number), self.tests(base, number), strict=True)]

    def less(self, kind: str, base: str, *numbers: int) -> str:
        found = [self.differences(kind, base, number) for number in numbers]
        seeds = [sum(each) / len(numbers) for each in zip(*found, strict=True)]
        wins = sum(each > 0 for part in found for each in part)
        return f"{mean_of(seeds, '+')}, {wins} of {6 * len(numbers)}"


def test_a_retriever_is_told_as_it_was_measured() -> None:
    runs = Retrieval()
    lines = (ROOT / "docs" / "results" / "passages-times.jsonl").read_text().splitlines()
    seconds = {(line["kind"], line["number"]): f"{line['seconds']:.0f}" for line in map(json.loads, lines)}
    page = RESULTS.split("## A retriever\n")[1].split("\n## ")[0]
    first, counted, tempered, larger = re.split(r"^### .*$", page, flags=re.MULTILINE)[:4]
    bases = ("in-batch", "in-batch-weighed", "in-batch+uniform", "in-batch+mined-margin", "in-batch+anew")
    told = 0
    for name, *shown in (row for row in cells(first) if "+-" in " ".join(row)):
        kind = beside(name)
        if "of 12" in "".join(shown):
            assert shown == [runs.less(kind, base, 1, 4) if base != kind else "" for base in bases]
        else:
            ones, fours = runs.means(kind, 1), runs.means(kind, 4) if "+" in kind else ["", ""]
            assert shown[:4] == [ones[0], fours[0], ones[1], fours[1]]
            assert shown[4] == seconds.get((kind, 1 if "+" in kind else 0), "")
        told += 1
    for name, *shown in (row for row in cells(counted) if "+-" in " ".join(row)):
        alike, weighed = (f"in-batch{kind}" for kind in COUNTED[name])
        numbers = (1, 4) if "+" in alike else (0,)
        means = [
            ["; ".join(runs.means(kind, n)[which] for n in numbers) for kind in (alike, weighed)] for which in (0, 1)
        ]
        assert shown == [*means[0], *means[1], runs.less(weighed, alike, *numbers)]
        told += 1
    for temperature, *shown in (row for row in cells(tempered) if "+-" in " ".join(row)):
        tau = f"+tau-{temperature}" * (temperature != "0.05")
        kinds = [f"in-batch{kind}{tau}" for kind in ("", "-weighed", "+anew", "+own")]
        assert shown == [runs.means(kind, 1)[which] for which in (0, 1) for kind in kinds]
        told += 1
    for name, *shown in (row for row in cells(larger) if "+-" in " ".join(row)):
        size, _, rest = name.partition(" ")
        kind = f"in-batch{LARGER[rest.removeprefix('and 1 ').removesuffix(' a query')]}"
        assert shown == runs.means(kind + f"+batch-{size}" * (size != "32"), 1)
        told += 1
    assert told == 8 + 4 + 4 + 4 + 11
    flat = " ".join(page.split())

    def of_set(kind: str, base: str, which: int) -> str:
        return mean_of(runs.differences(kind, base, 1)[3 * which :][:3]).removeprefix("+")

    behind, more = (
        [of_set(*pair, which) for which in (0, 1)]
        for pair in (("in-batch+own", "in-batch+batch-160"), ("in-batch+own+batch-160", "in-batch+batch-160"))
    )
    assert "end {} and {} below 32".format(*behind) in flat and "gain {} and {} by it".format(*more) in flat
    tenth, low, lower = (
        [
            runs.less(f"in-batch{kind}{tau}", f"in-batch{base}{tau}", 1)
            for kind, base in (("+own", "+anew"), ("-weighed", ""))
        ]
        for tau in ("+tau-0.1", "+tau-0.02", "+tau-0.03")
    )
    assert tenth[0] == "-1.08 +- 0.52, 0 of 6" and "1.08 +- 0.52 below `+anew` (0 of 6 pairs)" in flat
    assert (
        "{} and {} (6 of 6 pairs each)".format(*(each[1][1:].removesuffix(", 6 of 6") for each in (low, lower))) in flat
    )
    assert "({}, {})".format(*(each[0].split(",")[0] for each in (low, lower))) in flat
    assert f"({runs.less('in-batch+own-alike', 'in-batch-weighed', 1, 4).split(',')[0]})" in flat
    told_as = runs.less("in-batch+own", "in-batch+soft", 1, 4).removeprefix("+").split(", ")
    assert "refresh, are {} behind ({} pairs).".format(*told_as) in flat
    taus = ("+tau-0.02", "+tau-0.03", "", "+tau-0.1")

    def spread(kind: str, which: int) -> float:
        found = [sum(runs.tests(f"in-batch{kind}{tau}", 1)[3 * which :][:3]) / 3 for tau in taus]
        return max(found) - min(found)

    spreads = [
        [spread(kind, which) for kind in kinds for which in (0, 1)] for kinds in (("-weighed", "+own"), ("", "+anew"))
    ]
    lie = [f"{each:.1f}" for some in spreads for each in (min(some), max(some))]
    assert "{} to {} points where negatives are weighed, {} to {} where they count alike".format(*lie) in flat
    gains = [
        f"{sum(runs.differences(f'in-batch-weighed{size}', f'in-batch{size}', 1)[3 * which :][:3]) / 3:.2f}"
        for size in ("", "+batch-160")
        for which in (0, 1)
    ]
    assert "{} and {} with 32, {} and {} with 160".format(*gains) in flat
    table = README.split("### A retriever\n")[1].split("\n### ")[0].replace("**", "")
    rows = [row for row in cells(table) if row[1][:1].isdigit()]
    for name, *shown in rows:
        kind = beside(name)
        both = [kind] if "none;" not in name else [kind, "in-batch+batch-160"]
        means = [
            "; ".join(f"{sum(runs.tests(each, n)[3 * which :][:3]) / 3:.1f}" for each in both)
            if "+" in kind or n == 1
            else ""
            for which in (0, 1)
            for n in (1, 4)
        ]
        assert shown == means
    assert len(rows) == 8
    for words in ("0.78 +- 0.12 above random ones", "0.40 +- 0.09 above those", "0.75 +- 0.18 above"):
        assert words in " ".join(table.split()) and f"+{words[:12]}, " in flat


def test_the_readme_begins_with_what_was_measured() -> None:
    tiny, runs = measured("heads-tiny.jsonl"), Retrieval()
    top = " ".join(README.split("\n## ")[0].split())
    means = {point: f"{sum(run.test for run in tiny[point].values()) / 3:.1f}" for point in README_POSITIVES.values()}
    ours, theirs = means["own+positives-64", 256], means["pml-supcon-memory-8192", 0]
    few, uniform = means["own+positives-64", 64], means["uniform+positives-64", 64]
    assert f"{ours} %; the best loss of pytorch-metric-learning tried has {theirs}." in top
    assert f"With 64 negatives it is {few}, with 64 uniform ones {uniform} " in top
    drawn, weighed = (sum(runs.differences(f"in-batch{kind}", "in-batch", 1)) / 6 for kind in ("+own", "-weighed"))
    assert f"gain {drawn:.1f} points by one drawn passage a query, half of it" in top and 0.4 < weighed / drawn < 0.6
    whole = measured("texts.jsonl")
    both = [whole[point].values() for point in (("in-batch+soft+tau-0.02", 1), ("in-batch", 0))]
    gain = sum(run.test for run in both[0]) / 3 - sum(run.test for run in both[1]) / 3
    assert f"an encoder trained whole gains as much as by mined ones, {gain:.1f} (" in top
    flat = " ".join(RESULTS.split())
    told = [sum(runs.differences(f"in-batch{kind}", "in-batch", n)) / 6 for kind, n in (("+own", 1), ("+own", 4))]
    assert "is worth {:.1f} points, twice what a random one is, and four {:.1f}.".format(*told) in flat


WHOLE = {
    "nothing more": ("in-batch", 0),
    "nothing more, weighed": ("in-batch-weighed", 0),
    "one a query, mined": ("in-batch+mined-margin", 1),
    "one a query, drawn": ("in-batch+soft", 1),
}


def test_an_encoder_that_is_trained_whole_is_told_as_it_was_measured() -> None:
    runs = measured("texts.jsonl")
    page = RESULTS.split("### An encoder that is trained whole\n")[1].split("\n#")[0]
    flat, readme = " ".join(page.split()), " ".join(README.split("### A retriever\n")[1].split("\n### ")[0].split())
    alone, weighed, mined, drawn = WHOLE.values()

    def tests(point: tuple[str, int], low: bool) -> list[float]:
        found = runs[point[0] + "+tau-0.02" * low, point[1]]
        assert len(found) == 3
        return [run.test for _, run in sorted(found.items())]

    rows = [row for row in cells(page) if "+-" in row[1]]
    for (start, point), (name, *shown) in zip(WHOLE.items(), rows, strict=True):
        assert name.startswith(start) and shown == [mean_of(tests(point, low)) for low in (False, True)]

    def less(one: tuple[str, int], other: tuple[str, int], low: bool, lower: bool) -> str:
        pairs = zip(tests(one, low), tests(other, lower), strict=True)
        return mean_of([a - b for a, b in pairs], "+")

    above, mined_above = less(drawn, alone, True, False), less(mined, alone, False, False)
    assert f"drawn ones end {above[1:]} above the batch alone and mined ones {mined_above[1:]};" in flat
    assert f"between them it is {less(drawn, mined, True, False)}." in flat
    costs, gains = less(weighed, alone, False, False), less(weighed, alone, True, True)
    assert f"At 0.05 it costs {costs[1:]}, at 0.02 it gains {gains[1:]}," in flat and costs[0] + gains[0] == "-+"
    assert f"nothing is shown between the two ({less(weighed, alone, True, False)})" in flat
    added = [less(drawn, weighed, low, low)[1:] for low in (False, True)]
    assert "adds to the weighed batch {} and {}.".format(*added) in flat
    lines = [json.loads(line) for line in (ROOT / "docs" / "results" / "texts.jsonl").read_text().splitlines()]
    seconds = [sum(line["seconds"] for line in lines if line["kind"] == kind) / 3 for kind, _ in (mined, drawn, alone)]
    assert (
        "{:.0f} seconds a run instead of {:.0f}, one CPU thread beside another such run, {:.0f} for".format(*seconds)
        in flat
    )
    best = [sum(tests(*each)) / 3 for each in ((drawn, True), (mined, False), (alone, False), (weighed, True))]
    assert (
        "end at {:.1f}, mined ones at {:.1f}, the batch alone at {:.1f} and, weighed, at {:.1f}".format(*best) in readme
    )
