"""The report page in headless Chromium: no errors, tables sort, runs filter, curves are read off, nothing overflows."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from report_runs import put
from scns.recipe import Recipe
from scns.report.page import write_report
from scns.results import read

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")

NASTY = "<img src=x onerror=alert(1)><script>alert(1)<"
SWITCHES = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
    *("--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom"),
]
# What a visitor does, and what the page then shows; written into the page, since --dump-dom prints nothing else.
PROBE = """
const seen = {};
const runs = () => [...document.querySelectorAll("#table-of-runs tbody tr")];
const names = () => runs().filter((row) => !row.hidden).map((row) => row.cells[0].textContent);
const head = (name) => [...document.querySelectorAll("#table-of-runs thead th")].find((h) => h.textContent === name);
%s
document.body.innerHTML = "<pre></pre>";
document.querySelector("pre").textContent = JSON.stringify(seen);
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("runs")
    base = Recipe(data="cifar10", student="resnet8", epochs=6)
    for name, method, test, epochs in (
        ("b-class-0", "infonce", 9.5, 6),
        ("a-uniform-0", "infonce", 100.0, 6),
        ("c-plain-0", "ce", 50.25, 3),  # too short to have converged
        (f"{NASTY}-0", "kld", 75.0, 6),
    ):
        put(folder / name, replace(base, method=method, lr=test / 1000), test, epochs=epochs)
    write_report(read(folder), folder, folder / "report.html")
    return (folder / "report.html").read_text()


@pytest.fixture
def visit(page: str, tmp_path: Path) -> Callable[..., Any]:
    """`visit("seen.x = 1;")` opens the page, runs the script, and returns what was seen; the console stays empty."""

    def run(script: str, *switches: str, hash: str = "") -> Any:
        copy = tmp_path / "page.html"
        copy.write_text(page.replace("</body>", f"<script>{PROBE % script}</script></body>"))
        assert CHROMIUM is not None
        words = [CHROMIUM, *SWITCHES, f"--user-data-dir={tmp_path / 'profile'}", *switches, f"{copy.as_uri()}{hash}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=90, check=True)
        assert "CONSOLE" not in done.stderr, done.stderr
        found = re.search(r"<pre>(.*)</pre>", done.stdout, re.S)
        assert found is not None, done.stdout[-2000:]
        return json.loads(html.unescape(found[1]))

    return run


def test_tables_sort_and_filter(visit: Callable[..., Any]) -> None:
    seen = visit("""
        seen.all = names();
        const test = head("test %"), converged = head("converged at");
        test.querySelector("button").click();
        seen.rising = names(); seen.sort = test.getAttribute("aria-sort");
        test.querySelector("button").click();
        seen.falling = names(); seen.turned = test.getAttribute("aria-sort");
        converged.querySelector("button").click();
        seen.missing = names().at(-1); seen.left = test.getAttribute("aria-sort");
        head("run").querySelector("button").click();
        seen.named = names();
        const box = document.getElementById("filter");
        const type = (words) => { box.value = words; box.dispatchEvent(new Event("input")); };
        type("RESNET8 infonce"); seen.filtered = names();
        seen.count = document.getElementById("filter-count").textContent;
        type("nothing like it"); seen.none = names();
        type(""); seen.again = names().length;
        seen.alien = document.querySelectorAll("img, iframe").length; seen.scripts = document.scripts.length;
    """)
    nasty, plain = f"{NASTY}-0", "c-plain-0"
    assert sorted(seen["all"]) == sorted([nasty, "a-uniform-0", "b-class-0", plain])
    assert seen["rising"] == ["b-class-0", plain, nasty, "a-uniform-0"] and seen["sort"] == "ascending"
    assert seen["falling"] == seen["rising"][::-1] and seen["turned"] == "descending"
    assert seen["missing"] == plain and seen["left"] == "none"
    assert seen["named"][-3:] == ["a-uniform-0", "b-class-0", plain]
    assert seen["filtered"] == ["a-uniform-0", "b-class-0"] and seen["count"] == "2 of 4 runs"
    assert seen["none"] == [] and seen["again"] == 4
    assert seen["alien"] == 0 and seen["scripts"] == 2  # the page's own and the probe: names made no elements


def test_curves_are_read_off_by_pointer_and_keys(visit: Callable[..., Any]) -> None:
    seen = visit("""
        const figure = document.querySelector("figure.chart"), svg = figure.querySelector("svg.plot");
        const tip = figure.querySelector(".tip"), hint = tip.textContent;
        const curve = [...svg.querySelectorAll(".curve")].find((each) => each.dataset.name === "a-uniform");
        const [epoch, value, x, y] = curve.dataset.points.split(" ")[2].split(":").map(Number);
        const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
        svg.dispatchEvent(new PointerEvent("pointermove", { clientX: at.x + 2, clientY: at.y + 2 }));
        seen.hovered = tip.textContent;
        svg.dispatchEvent(new PointerEvent("pointerleave"));
        seen.after = tip.textContent === hint;
        const press = (key) => svg.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
        svg.focus(); seen.focus = document.activeElement === svg;
        press("ArrowLeft"); seen.last = tip.textContent;
        press("ArrowLeft"); seen.previous = tip.textContent;
        press("ArrowDown"); seen.other = tip.textContent.split(":")[0];
        const box = figure.querySelector(".legend input");
        box.click(); seen.hidden = getComputedStyle(svg.querySelector(".curve")).display;
    """)
    assert seen["hovered"] == "a-uniform: 50.00 % after epoch 3" and seen["after"] and seen["focus"]
    assert seen["last"] == f"{NASTY}: 75.00 % after epoch 6"  # the first curve
    assert seen["previous"] == f"{NASTY}: 62.50 % after epoch 5" and seen["other"] == "a-uniform"
    assert seen["hidden"] == "none"


@pytest.mark.parametrize("width", [400, 1100])
def test_nothing_overflows_and_a_link_opens_its_recipe(visit: Callable[..., Any], width: int) -> None:
    seen = visit(
        """
        seen.inner = innerWidth; seen.scroll = document.documentElement.scrollWidth;
        seen.open = [...document.querySelectorAll("details")].filter((each) => each.open).map((each) => each.id);
        seen.dark = getComputedStyle(document.body).backgroundColor;
        seen.arrow = getComputedStyle(head("run").querySelector("button"), "::after").content;
        """,
        f"--window-size={width},900",
        "--blink-settings=preferredColorScheme=0",
        hash="#run-1",
    )
    assert seen["scroll"] <= seen["inner"] and abs(seen["inner"] - width) <= 100  # some builds have a least width
    assert seen["open"] == ["run-1"] and seen["dark"] == "rgb(20, 23, 28)"
    assert (seen["arrow"] == "none") == (width == 400)  # where there is no room, a column is worth more


def test_a_long_table_keeps_its_headings_and_starts_anew(visit: Callable[..., Any]) -> None:
    seen = visit("""
        const box = document.querySelector("#table-of-runs").parentNode, row = runs()[0];
        for (let i = 0; i < 200; i++) row.parentNode.append(row.cloneNode(true));
        box.scrollTop = 3000;
        seen.scrolled = box.scrollTop;
        seen.head = head("test %").getBoundingClientRect().top - box.getBoundingClientRect().top;
        head("test %").querySelector("button").click();
        seen.sorted = box.scrollTop;
        window.scrollTo(0, document.body.scrollHeight);
        seen.menu = document.querySelector("nav").getBoundingClientRect().top;
    """)
    assert seen == {"scrolled": 3000, "head": 0, "sorted": 0, "menu": 0}


def test_a_printed_page_has_every_column(visit: Callable[..., Any]) -> None:
    """Nobody can scroll paper: its rules, taken as those of the screen, leave nothing beyond the width of a letter."""
    seen = visit("""
        const rules = [...document.styleSheets[0].cssRules].find((rule) => rule.conditionText === "print").cssRules;
        const style = document.createElement("style");
        style.textContent = [...rules].map((rule) => rule.cssText).join("");
        document.head.append(style);
        document.body.style.width = "739px";  // 8.5 inches less Chromium's margins
        seen.wide = [...document.querySelectorAll("table")].map((table) => table.offsetWidth);
        seen.box = getComputedStyle(document.querySelector(".wide")).overflow;
        // A button is painted on the first page of a table alone, and a folded recipe tells nothing.
        seen.heads = [...document.querySelectorAll("th button")].map((each) => getComputedStyle(each).display);
        seen.folded = [...document.querySelectorAll("details")].filter((each) => each.offsetHeight).length;
        seen.recipes = document.getElementById("recipes").offsetHeight;
        const first = document.querySelector("details");
        first.open = true;
        seen.unfolded = first.offsetHeight && document.getElementById("recipes").offsetHeight;
    """)
    assert max(seen["wide"]) <= 739 and seen["box"] == "visible"
    assert set(seen["heads"]) == {"contents"} and seen["folded"] == seen["recipes"] == 0 and seen["unfolded"]
