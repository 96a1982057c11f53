"""The report page as text: what it says of runs, what it escapes, how large it gets, and what it refuses."""

import errno
import math
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from conftest import Ran
from report_runs import put, put_cell
from scns import datasets, recipes, tables
from scns.claims import interval
from scns.data import Images
from scns.errors import InputError
from scns.recipe import Recipe, differences
from scns.report import markup
from scns.report.answer import answer
from scns.report.groups import by_number, groups
from scns.report.markup import difference
from scns.report.opening import Change, Network, Opening
from scns.report.page import page, write_report
from scns.report.pictures import Source, gallery
from scns.report.repeat import command
from scns.report.svg import Axis, Curve, chart
from scns.results import read
from scns.scores import Estimate

TINY = Recipe(data="cifar10", student="resnet8", epochs=3)  # not bundled: no pictures, so that tests are fast
NASTY = "<script>alert(1)<&'\""


class Outline(HTMLParser):
    """The elements of a page, and whether each is closed where it must be."""

    VOID = ("meta", "img", "input", "br", "line", "circle", "path")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing"


def render(folder: Path) -> str:
    return page(read(folder), folder)


def rows(text: str, table: str) -> list[list[str]]:
    """The texts of a table's rows."""
    body = re.search(rf'id="{table}".*?<tbody>(.*?)</tbody>', text, re.S)
    assert body is not None
    lines = re.findall(r"<tr>(.*?)</tr>", body[1], re.S)
    return [
        [re.sub("<[^>]+>", " ", each).strip() for each in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", line)]
        for line in lines
    ]


@pytest.fixture
def cells(tmp_path: Path) -> Path:
    put_cell(tmp_path, "t3/infonce/resnet110-resnet20", [69.0, 69.2, 69.1])
    put_cell(tmp_path, "t3/instance-scns-k50/resnet110-resnet20", [72.0, 72.3, 72.2])
    put_cell(tmp_path, "t3/kld/resnet110-resnet20", [68.0, 68.1, 68.4])
    put_cell(tmp_path, "t3/kld/resnet110-resnet8", [40.0], epochs=2, subset=100)
    return tmp_path


def test_ours_beside_the_paper_and_the_uniform_baseline(cells: Path) -> None:
    text = render(cells)
    found = {row[0].split("/", 1)[1]: row[2:] for row in rows(text, "lines-on-cifar100")}
    # n, test, paper, to the paper, to uniform, remark; printed are 71.21 and 69.78
    instance = found["instance-scns-k50/resnet110-resnet20"]
    assert instance[:3] == ["3", "72.17 ± 0.15", "71.21"]
    assert re.search(r"▲\s+\+0\.96", instance[3]) and re.search(r"▲\s+\+3\.07", instance[4])
    gain = interval([3.0, 3.1, 3.1])
    assert f"[{gain.low:+.2f}, {gain.high:+.2f}]" in instance[4]
    kld = found["kld/resnet110-resnet20"]
    assert re.search(r"▼\s+-1\.61", kld[3]) and re.search(r"▼\s+-0\.93", kld[4])
    assert found["infonce/resnet110-resnet20"][2:5] == ["", "", "the baseline"]
    small = found["kld/resnet110-resnet8"]
    assert small[2:5] == ["", "", ""] and small[5] == "shrunken: epochs, subset"  # never compared with the paper
    assert "<b>2 results compared with the paper</b>: 1 above it, 1 below, by -1.61 to +0.96 points" in text
    assert "1 above, 1 below, 0 undecided" in text and "The paper's claims" in text


def test_a_single_pair_is_not_the_largest_difference(tmp_path: Path) -> None:
    put_cell(tmp_path, "t3/infonce/resnet110-resnet20", [69.0, 69.2, 69.1])
    put_cell(tmp_path, "t3/crd/resnet110-resnet20", [79.0])
    told = "The largest mean difference has t3/crd/resnet110-resnet20 (resnet20): +10.00 (one pair, no interval)."
    assert told in render(tmp_path)  # as long as there is nothing better
    put_cell(tmp_path, "t3/own/resnet110-resnet20", [70.0, 70.2, 70.2])
    assert "The largest mean difference of those with 3 pairs and more has t3/own/resnet110" in render(tmp_path)


def test_curves_of_one_name_are_told_apart(tmp_path: Path) -> None:
    taught = replace(TINY, method="kld", teacher="runs/one")
    put(tmp_path / "a" / "plain-0", replace(TINY, batch=64), 50)
    put(tmp_path / "b" / "plain-0", replace(TINY, batch=128), 50)
    put(tmp_path / "a" / "kld-0", taught, 50)
    text = render(tmp_path)
    assert re.findall(r'data-name="([^"]+)"', text) == ["kld", "plain, batch=64", "plain, batch=128"]
    assert text.count('<figure class="chart"') == 1  # one teacher: beside those that have none
    put(tmp_path / "b" / "kld-0", replace(taught, teacher="runs/two"), 50)
    titles = re.findall(r'<figure class="chart".*?<figcaption>(.*?)</figcaption>', render(tmp_path))
    alone = "resnet8, 3 epochs"
    assert titles == [f"{alone}, taught by runs/one", alone, f"{alone}, taught by runs/two"]


def test_a_log_that_cannot_be_read_costs_the_other_seeds_no_curve(tmp_path: Path) -> None:
    for seed in range(3):
        put(tmp_path / f"a-{seed}", Recipe(data="cifar10", seed=seed), 50.0 + seed)
    (tmp_path / "a-1" / "log.jsonl").write_text('{"epoch": 1, "te')
    assert 'data-name="a (mean of 2 of 3)"' in render(tmp_path)


def test_the_menu_leads_to_the_claims_where_there_are_some(cells: Path) -> None:
    assert '<a href="#claims">' in render(cells)
    put(cells / "alone" / "run-0", TINY, 50)
    assert "claims" not in render(cells / "alone")


def test_what_is_skipped_is_named_below_the_folder(tmp_path: Path) -> None:
    put(tmp_path / "first-0", TINY, 50)
    put(tmp_path / "other" / "again-0", TINY, 50)
    text = render(tmp_path)
    assert "<b>other/again-0</b>: repeats &#x27;first-0&#x27;" in text and str(tmp_path) not in text


def test_a_difference_that_is_shown_as_none_has_no_sign() -> None:
    shown = [re.sub("<[^>]*>", "", markup.mark(points, 1, sure=True)) for points in (0.0, -0.04, 0.04, 0.06, -0.06)]
    assert shown == ["= 0.0", "= 0.0", "= 0.0", "▲ +0.1", "▼ -0.1"]
    assert "▼" not in difference(-0.001).shown


def test_a_column_of_short_names_is_narrow(tmp_path: Path) -> None:
    put(tmp_path / "a-0", TINY, 50)
    assert re.findall(r"--longest:(\d+)ch", render(tmp_path)) == ["1", "3"]  # "a", "a-0"


def test_runs_of_other_lengths_have_charts_of_their_own(tmp_path: Path) -> None:
    put(tmp_path / "short-0", TINY, 50)
    for place in range(25):  # one more than colours and dashes tell apart
        put(tmp_path / f"long-{place}-0", replace(TINY, epochs=9, lr=0.1 + place), 60)
    titles = re.findall("<figcaption>(resnet8[^<]*)", render(tmp_path))
    assert titles == ["resnet8, 9 epochs (1 of 2)", "resnet8, 9 epochs (2 of 2)", "resnet8, 3 epochs"]


def test_one_run_in_two_columns_is_one_comparison(tmp_path: Path) -> None:
    put_cell(tmp_path, "t3/ce/wrn-40-1-resnet20", [69.0])  # also resnet110-resnet20 and wrn-40-2-resnet20
    text = render(tmp_path)
    assert len(rows(text, "lines-on-cifar100")) == 3 and len(rows(text, "table-of-runs")) == 1
    assert "<b>2 results compared with the paper</b>" in text  # printed as 66.26 and twice as 67.69
    assert text.count('<figure class="chart"') == 1 and "resnet110-resnet20, wrn-40-1-resnet20" in text


def test_two_pairs_decide_nothing() -> None:
    same = interval([0.4, 0.4])  # of no width, by chance
    assert same.sign == 0 and "unsure" in difference(same).shown
    assert interval([0.4, 0.5, 0.4]).sign == 1 and "unsure" not in difference(interval([0.4, 0.5, 0.4])).shown
    assert "down" in difference(-0.5).shown and "one pair" in difference(interval([1.0])).shown
    assert difference(None) == ("", "")


def test_a_doubtful_baseline_is_none(tmp_path: Path) -> None:
    """Uniform runs with other numbers of negatives are baselines of their own; two of one number are nobody's."""
    uniform = replace(TINY, method="infonce", preset="t1-infonce")
    put(tmp_path / "uniform-0", uniform, 50)
    by_words = replace(uniform, preset="t1-class", words="w.npz", on_missing="uniform")
    put(tmp_path / "class-0", by_words, 52)  # which words is part of the method
    put(tmp_path / "mixed-0", replace(uniform, preset="t1-infonce+lm"), 53)  # uniform with mixtures
    gains = {group.line.name: group.gain for group in groups(read(tmp_path))}
    assert gains["uniform"] is None and gains["class"].mean == 2 and gains["mixed"].mean == 3
    put(tmp_path / "more-0", replace(uniform, arguments={"negatives": 256}), 51)
    put(tmp_path / "class256-0", replace(by_words, arguments={"negatives": 256}), 54)
    put(tmp_path / "corrected-0", replace(uniform, arguments={"correct": True}), 55)
    gains = {group.line.name: group.gain and group.gain.mean for group in groups(read(tmp_path))}
    assert gains == {"uniform": None, "class": 2, "mixed": 3, "more": None, "class256": 3, "corrected": 5}
    put(tmp_path / "warm-0", replace(uniform, arguments={"tau": 0.2}), 51)
    gains = {group.line.name: group.gain and group.gain.mean for group in groups(read(tmp_path))}
    assert {name: gain for name, gain in gains.items() if gain is not None} == {"class256": 3}


def test_students_of_unlike_teachers_are_not_compared(tmp_path: Path) -> None:
    uniform = replace(TINY, method="infonce", arguments={"sampler": "uniform"}, teacher="runs/one")
    near = replace(uniform, arguments={"sampler": "class"})
    put(tmp_path / "uniform-0", uniform, 50)
    put(tmp_path / "class-0", near, 53)
    put(tmp_path / "other-0", replace(near, teacher="runs/two"), 60)
    gains = {group.line.name: group.gain and group.gain.mean for group in groups(read(tmp_path))}
    assert gains == {"uniform": None, "class": 3, "other": None}


def test_points_of_one_number_stay_nearer_to_it_than_to_the_next() -> None:
    numbers = [1, 4, 16, 64, 256, 1024, 4096]
    curves = [Curve(f"curve {i}", numbers, [50.0 + i] * 7) for i in range(24)]
    points = re.findall(r'data-points="([^"]+)"', chart(curves, "", Axis(marked=True)))
    across = [[float(point.split(":")[2]) for point in each.split()] for each in points]
    one, next_one = list(zip(*across, strict=True))[:2]
    assert len(points) == 24 and max(one) < min(next_one)


def test_accuracy_by_the_number_of_negatives(tmp_path: Path) -> None:
    def drawn(sampler: str, negatives: int, tests: list[float]) -> None:
        recipe = replace(TINY, method="infonce", arguments={"sampler": sampler, "negatives": negatives})
        for seed, test in enumerate(tests):
            put(tmp_path / f"{sampler}-{negatives}-{seed}", replace(recipe, seed=seed), test)

    drawn("uniform", 16, [50, 52])
    drawn("class", 16, [53, 55])
    put(tmp_path / "all-0", replace(TINY, method="infonce", arguments={"sampler": "all"}), 60)
    assert "How many negatives" not in render(tmp_path)  # one number: nothing to draw
    recipe = replace(TINY, method="infonce", arguments={"sampler": "uniform", "negatives": 4})
    put(tmp_path / "uniform-4-0", replace(recipe, evaluate_every=2), 40)  # which changes no weight
    ((curves, others, first),) = by_number(groups(read(tmp_path)))
    assert {curve.name: (curve.epochs, curve.accuracies) for curve in curves} == {
        "class": ([16], [54]), "uniform": ([4, 16], [40, 51]),
    } and others == ["all 60.00"] and first.line.name == "all"  # fmt: skip
    # Two points of two seeds and deviation sqrt(2): t of 2 degrees of freedom x the standard error of two seeds or one.
    assert [curve.halves for curve in curves] == [
        pytest.approx([4.302653]), pytest.approx([4.302653 * math.sqrt(2), 4.302653]),
    ]  # fmt: skip
    text = render(tmp_path)
    assert "How many negatives" in text and "Without a number: all 60.00." in text
    assert text.index("How many negatives") < text.index("Every setting") < text.index('id="lines-')  # picture first
    assert 'data-told="with # negatives"' in text and 'data-points="4:40.00:' in text
    assert "bars are 95 % intervals" in text
    marked = "<figcaption>resnet8, 3 epochs</figcaption>"  # charts of several teachers or lengths are told apart
    assert text.index("How many negatives") < text.index(marked) < text.index("Every setting")
    assert text.count('class="marks"') == 2  # rings and bars, also of a curve that is one point


def test_curves_of_one_name_say_in_what_they_differ_and_bars_are_by_their_own_points(tmp_path: Path) -> None:
    for tau in (0.07, 0.2):
        for negatives in (4, 16):
            arguments = {"sampler": "uniform", "negatives": negatives, "tau": tau}
            for seed in range(3):
                recipe = replace(TINY, method="infonce", arguments=arguments, seed=seed)
                put(tmp_path / str(tau) / f"uniform-{negatives}-{seed}", recipe, 50 + 0.2 * seed)
    for seed, test in enumerate((10.0, 50.0, 90.0)):  # of no number: it widens nothing
        put(tmp_path / f"ce-{seed}", replace(TINY, seed=seed), test)
    ((curves, _, _),) = by_number(groups(read(tmp_path)))
    assert {curve.name for curve in curves} == {"uniform (method.tau=0.07)", "uniform (method.tau=0.2)"}
    assert all(half < 0.5 for curve in curves for half in curve.halves)


def test_two_folders_of_images_are_two_data_sets(tmp_path: Path) -> None:
    for root in ("cats", "cars"):
        put(tmp_path / f"{root}-0", replace(TINY, data="folder", root=str(tmp_path / "images" / root)), 50)
    text = render(tmp_path)
    assert "Results on folder cats" in text and "Results on folder cars" in text and "Results on folder<" not in text


def test_one_seed_of_each_number_has_no_bars(tmp_path: Path) -> None:
    for negatives in (4, 16):
        recipe = replace(TINY, method="infonce", arguments={"sampler": "uniform", "negatives": negatives})
        put(tmp_path / f"uniform-{negatives}-0", recipe, 40 + negatives)
    text = render(tmp_path)
    assert "How many negatives" in text and "one seed each, so without intervals" in text and "bars are" not in text


def test_many_comparisons_say_how_many_chance_would_decide(tmp_path: Path) -> None:
    def drawn(negatives: int, sampler: str, tests: list[float]) -> None:
        recipe = replace(TINY, method="infonce", arguments={"sampler": sampler, "negatives": negatives})
        for seed, test in enumerate(tests):
            put(tmp_path / f"{sampler}-{negatives}-{seed}", replace(recipe, seed=seed), test)

    for negatives in range(1, 21):
        drawn(negatives, "uniform", [50, 51, 52])
        drawn(negatives, "class", [51, 50, 52.5] if negatives < 20 else [51])  # one pair decides nothing
    assert "20 undecided. The largest" in answer(groups(read(tmp_path)))
    drawn(20, "class", [51, 50, 52.5])
    told = "20 undecided. Each is judged by its own 95 % interval: of 20 that differ in nothing, about 1 would be above"
    assert told in answer(groups(read(tmp_path)))


def test_data_sets_have_sections_of_their_own(tmp_path: Path) -> None:
    put(tmp_path / "ten-0", replace(TINY, method="infonce"), 50)
    put(tmp_path / "hundred-0", replace(TINY, data="cifar100", method="kld"), 60)
    text = render(tmp_path)
    assert [row[0] for row in rows(text, "lines-on-cifar10")] == ["ten"]
    assert [row[0] for row in rows(text, "lines-on-cifar100")] == ["hundred"]
    assert any("infonce soft" in row for row in rows(text, "table-of-runs"))  # the default sampler has a name
    assert len(rows(text, "table-of-runs")) == 2 and "to uniform" not in text  # no pair within one data set
    assert text.count('<figure class="chart"') == 2
    assert "Nothing here is comparable with the paper" in text


def test_the_page_is_whole_and_needs_nothing_else(cells: Path) -> None:
    text = render(cells)
    outline = Outline(text)
    assert not outline.open
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)|url\(|@import|https?:""", text)
    for tag, attributes in outline.tags:
        if tag == "th":
            assert attributes.get("scope") in ("row", "col")
    identities = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    targets = [attributes["href"] for tag, attributes in outline.tags if tag == "a"]
    assert {target[1:] for target in targets if target} <= set(identities)
    assert text == render(cells)  # the same runs, the same bytes


def test_names_are_shown_not_run(tmp_path: Path) -> None:
    put(tmp_path / f"{NASTY}-0", replace(TINY, student=NASTY, data=NASTY, arguments={"sampler": NASTY}), 50)
    broken = put(tmp_path / "<b>broken-0", replace(TINY, seed=1), 50)
    (broken / "result.json").write_text("<img src=x>")
    text = render(tmp_path)
    assert not Outline(text).open
    assert "<script>alert" not in text and "<b>broken" not in text and "<img" not in text
    assert text.count("<script>") == 1 and "&lt;script&gt;alert(1)&lt;&amp;&#x27;&quot;" in text


def test_class_names_are_shown_not_run() -> None:
    pixels = torch.arange(40 * 3 * 4).reshape(40, 3, 2, 2).to(torch.uint8)
    names = (NASTY, "cat")
    images = Images(pixels, torch.arange(40) % 2, names, mean=(0.5,) * 3, std=(0.5,) * 3)
    rising = torch.arange(40.0)
    shown = gallery(images, Source(NASTY, torch.stack([rising.cos(), rising.sin()], 1)))
    assert "<script>" not in shown and "&lt;script&gt;" in shown and not Outline(shown).open
    assert "Instance-level" in shown and "Soft" in shown and "Uniform" in shown


def test_pictures_of_the_bundled_images() -> None:
    images = datasets.load("cifar10-mini")
    flat = images.pixels.float().flatten(1)[:, ::37]
    shown = gallery(images, Source("pixels", flat - flat.mean(0)))
    tags = Outline(shown).tags
    pictures = [attributes for tag, attributes in tags if tag == "img"]
    assert len(pictures) == 6 * (1 + 4 * 8) and all(each["alt"] for each in pictures)
    # Pixels are a poor embedding: some negatives are nearer than all of their anchor's own class.
    assert sum("suspected" in str(each["alt"]) for each in pictures) == shown.count(" ?</b>") > 0
    assert "best negative above own class" in shown and "Which classes are alike" in shown
    alone = gallery(images)
    assert "soft negatives need a run that kept its student" in alone and "numbers are cosines" not in alone


def test_a_run_on_bundled_images_has_pictures_unless_unwanted(tmp_path: Path) -> None:
    put(tmp_path / "mini-0", replace(TINY, data="cifar10-mini"), 50)
    found = read(tmp_path)
    assert "Whom each sampler picks" in page(found, tmp_path)
    assert "<img" not in page(found, tmp_path, gallery=False)


def test_one_evaluation_makes_no_chart(tmp_path: Path) -> None:
    put(tmp_path / "short-0", replace(TINY, epochs=1), 50, epochs=1)
    assert "<h3>Convergence" not in page(read(tmp_path), tmp_path)
    put(tmp_path / "long-0", replace(TINY, epochs=2, lr=0.1), 50, epochs=2)
    shown = page(read(tmp_path), tmp_path)
    assert "<h3>Convergence" in shown and shown.count('class="curve ') == 1


def test_the_foot_names_the_folder_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(Path("my runs/today/short-0"), TINY, 50)
    folder = Path("my runs/today")
    assert "it repeats with: scns report &#x27;my runs/today&#x27;<" in page(read(folder), folder)


def test_a_story_opens_the_page(tmp_path: Path) -> None:
    put(tmp_path / "mini-0", replace(TINY, subset=250), 50)
    put(tmp_path / "whole-0", TINY, 51)
    sure, unsure = Estimate(3.0, 1.0), Estimate(-0.5, 1.0)
    opening = Opening(
        title=f"A {NASTY} story",
        about=NASTY,
        networks=[Network(NASTY, "25 labels", Estimate(35.04, 2.1), Estimate(20.6, 0.4), 12.3)],
        changes=[Change(NASTY, sure, unsure), Change("none", Estimate(0.0, 1.0), unsure)],
        picked=[NASTY],
        chance=NASTY,
        following=f"scns {NASTY}",
        command=f"scns {NASTY}",
    )
    text = page(read(tmp_path), tmp_path, opening=opening)
    assert not Outline(text).open and "<script>alert" not in text and text.count("<script>") == 1
    assert rows(text, "networks")[0][1:] == ["25 labels", "35.0 ± 2.1", "20.6 ± 0.4", "12"]
    assert re.search(r'class="mark up">.*?\+3\.0 ± 1\.0', text) and re.search(
        r'mark down unsure">.*?-0\.5 ± 1\.0', text
    )
    assert 'mark  unsure"><span aria-hidden="true">=</span> 0.0 ± 1.0' in text  # neither up nor down
    assert "comparable with the paper" not in text and 'id="next"' in text and 'href="#next"' in text
    assert [each for each in re.findall("<figcaption>(resnet8[^<]*)", text)] == [
        "resnet8, 3 epochs, 250 images", "resnet8, 3 epochs",
    ]  # fmt: skip


def test_pictures_are_by_the_given_embedding(tmp_path: Path) -> None:
    put(tmp_path / "mini-0", replace(TINY, data="cifar10-mini"), 50)
    flat = datasets.load("cifar10-mini").pixels.float().flatten(1)[:, ::37]
    text = page(read(tmp_path), tmp_path, source=Source("the grey <teacher>", flat))
    assert "Near is what the grey &lt;teacher&gt; calls near" in text
    assert "Near is what" not in page(read(tmp_path), tmp_path)  # that run kept no student


def test_anchors_are_of_different_classes() -> None:
    images = datasets.load("cifar10-mini")
    named = re.findall(r"<h4>(\w+) ", gallery(images))
    assert len(set(named)) == len(named) == 6


def test_a_hundred_runs_stay_small(tmp_path: Path) -> None:
    for i in range(100):
        put(tmp_path / f"run{i}-0", replace(TINY, lr=0.01 * (i + 1)), 50 + i / 10, epochs=2000)
    write_report(read(tmp_path), tmp_path, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert len(text.encode()) < 5e6
    assert len(rows(text, "table-of-runs")) == 100 and text.count("<details ") == 100
    assert text.count('<figure class="chart"') == 5 and text.count('class="curve ') == 100  # 24 in a chart


def test_odd_logs_and_names(tmp_path: Path) -> None:
    put(tmp_path / os.fsdecode(b"bad\xff-0"), TINY, 50)
    for place, log in enumerate(
        ("", "{", "[1]", '{"epoch": 1, "test": NaN}', '{"stage": "head", "epoch": 1, "test": 5}')
    ):
        (put(tmp_path / f"log{place}-0", replace(TINY, lr=place + 1.0), 60) / "log.jsonl").write_text(log)
    every_third = put(tmp_path / "third-0", replace(TINY, lr=0.5), 60) / "log.jsonl"
    every_third.write_text("".join(f'{{"epoch": {3 * i + 3}, "test": {50 + i}}}\n' for i in range(9)))
    (put(tmp_path / "gone-0", replace(TINY, lr=0.7), 60) / "log.jsonl").unlink()
    write_report(read(tmp_path), tmp_path, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert len(rows(text, "table-of-runs")) == 8 and text.count('class="curve ') == 2  # bad?-0 and third-0
    assert ' data-points="3:50.00:' in text and "27:58.00" in text  # by epoch, not by evaluation
    columns = re.findall(r"<button[^>]*>(.*?)</button>", text[text.index('id="table-of-runs"') :])
    assert "by validation" not in columns and "converged at" in columns
    found = {row[0]: row[7] for row in rows(text, "table-of-runs")}
    assert found["bad?-0"] == "6" and found["third-0"] == ""


def test_curves_are_drawn_where_they_belong() -> None:
    drawn = chart([Curve("a", [1, 3], [10.0, 20.0]), Curve("b", [2], [15.0])], "title")
    points = [each.split() for each in re.findall(r'data-points="([^"]+)"', drawn)]
    place = {tuple(p.split(":")[:2]): tuple(map(float, p.split(":")[2:])) for line in points for p in line}
    one, three, two = place["1", "10.00"], place["3", "20.00"], place["2", "15.00"]
    assert one[0] < three[0] and one[1] > three[1]
    assert two == pytest.approx(((one[0] + three[0]) / 2, (one[1] + three[1]) / 2), abs=0.1)
    assert "a ends at 20.00 %" in drawn and not Outline(drawn).open
    assert not Outline(chart([Curve("flat", [1], [10.0])], "one epoch")).open
    many = re.findall(r'class="curve (k\d d\d)"', chart([Curve("a", [1, 2], [1.0, 2.0])] * 24, ""))
    assert len(set(many)) == 24 and [look[-1] for look in many[:12]] == list("000111222333")


@pytest.mark.parametrize(
    "name", ["mini-class", "cifar100", "t3/instance-scns-k50/resnet110-resnet20", "t1/ce/resnet20"]
)
def test_the_line_repeats_the_run(name: str) -> None:
    recipe = tables.cell(name).recipe if "/" in name else recipes.named(name)
    for changed in (
        recipe,
        replace(recipe, seed=3, data_seed=0, subset=400, teacher="a b/run", milestones=(2,), lr=0.1, root="my data"),
    ):
        words = shlex.split(command(changed, "runs/x"))
        assert words[:2] == ["scns", "train"] and words[-2:] == ["--out", "again/runs/x"]
        words = words[:-2]
        assert words[3::2] == ["--set"] * len(words[3::2])
        again = recipes.named(words[2]).with_settings(words[4::2])
        assert not differences(again, changed) and again.root == changed.root


def test_the_line_repeats_what_divided_tables_meant() -> None:
    """Where tables lie is not in it, but infonce by default draws by the teacher where they are divided."""
    taught = replace(recipes.named("mini-own"), teacher="t")
    assert command(taught, "x") == "scns train mini-own --set teacher=t --out again/x"
    spelt = {"sampler": "uniform", "negatives": 256, "weight": 1.0, "tau": 0.07, "positive": "class"}
    written_out = replace(recipes.named("mini-uniform"), preset="", arguments=spelt)
    assert command(written_out, "x") == "scns train mini-uniform --out again/x"  # a preset is what it means
    assert " --set method.refresh=0 " in command(replace(taught, tables="sharded"), "x")


def test_a_recipe_that_words_cannot_say_repeats_from_its_file() -> None:
    odd = Recipe(arguments={"name": "5"})  # as a word, 5 is a number
    assert command(odd, "runs/x y") == "scns train 'runs/x y/recipe.json' --out 'again/runs/x y'"


def test_the_command(scns: Callable[..., Ran], cells: Path) -> None:
    broken = put(cells / "broken-0", replace(TINY, seed=1), 50)
    (broken / "result.json").write_text('{"test": 5')
    done = scns("report", cells, "--out", cells / "new" / "report.html")
    assert done.code == 0 and "10 runs" in done.out and "report.html" in done.out
    assert "broken-0: result.json cannot be read" in done.err
    text = (cells / "new" / "report.html").read_text()
    assert "<b>broken-0</b>: result.json cannot be read" in text
    assert [each.name for each in (cells / "new").iterdir()] == ["report.html"]


def test_nothing_to_report(scns: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for folder, why in (("runs", "no finished run"), ("nowhere", "no folder")):
        done = scns("report", tmp_path / folder, "--out", tmp_path / "report.html")
        assert done.code == 2 and why in done.err and not (tmp_path / "report.html").exists()


def test_a_page_that_cannot_be_written(scns: Callable[..., Ran], cells: Path) -> None:
    (cells / "file").write_text("kept")
    for out, why in ((cells, "is a folder"), (cells / "file" / "report.html", "cannot be written")):
        done = scns("report", cells, "--out", out)
        assert done.code == 2 and why in done.err and str(out) in done.err.replace("\n", "")
        assert "Traceback" not in done.err and not list(cells.rglob("*.part")) and not list(cells.rglob("*.html"))
    assert (cells / "file").read_text() == "kept"


def test_a_full_disk_leaves_the_old_page(cells: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = cells / "report.html"
    out.write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_report(read(cells), cells, out)
    assert out.read_bytes() == b"old" and not list(cells.glob(".*"))


def test_colours_have_contrast() -> None:
    """WCAG 2: text at least 4.5 to 1, curves at least 3 to 1, in light and in dark."""
    style = (Path(markup.__file__).parent / "page.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in style.split("@media", 2)[:2])
    assert set(light) == set(dark) and len(light) == 17
    for colours in (light, dark):
        for name in ("text", "soft", "link", "up", "down", "warn"):
            for ground in ("ground", "card"):
                assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
        assert min(contrast(colours[name], colours[f"{name}-ground"]) for name in ("up", "down")) >= 4.5
        assert min(contrast(colours[f"c{i}"], colours["ground"]) for i in range(6)) >= 3


def test_curves_are_told_apart_by_the_colour_blind() -> None:
    """Colours of one dash, seen without red or green cones (Machado et al., 2009), are apart in CIELAB."""
    style = (Path(markup.__file__).parent / "page.css").read_text()
    seen = {
        "protanopia": [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        "deuteranopia": [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.01182, 0.04294, 0.968881],
        ],
    }
    to_xyz = torch.tensor([[0.4339, 0.3762, 0.1899], [0.2127, 0.7152, 0.0722], [0.0178, 0.1095, 0.8727]])  # of white: 1
    for part in style.split("@media", 2)[:2]:
        colours = [each for _, each in sorted(re.findall(r"--(c\d): (#\w{6})", part))]
        parts = torch.tensor([[int(each[i : i + 2], 16) / 255 for i in (1, 3, 5)] for each in colours])
        linear = torch.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        for kind, matrix in seen.items():
            root = ((linear @ torch.tensor(matrix).T).clamp(0, 1) @ to_xyz.T) ** (1 / 3)
            lab = torch.stack([116 * root[:, 1], 500 * (root[:, 0] - root[:, 1]), 200 * (root[:, 1] - root[:, 2])], 1)
            assert torch.pdist(lab).min() > 12, kind


def contrast(one: str, other: str) -> float:
    """(L1 + 0.05) / (L2 + 0.05), with the relative luminances of sRGB colours."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
