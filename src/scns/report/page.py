"""The report: run folders -> one HTML file that needs nothing else."""

import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from scns import __version__, recognise, tables
from scns.claims import claims
from scns.curves import MARKED, WINDOW, epochs_to_converge
from scns.errors import InputError
from scns.files import atomic
from scns.phrases import count
from scns.report import pictures
from scns.report.answer import answer, what
from scns.report.groups import NAMED, Group, by_data, by_number, curve, groups, history, paths
from scns.report.markup import Value, anchor, beside, difference, number, sortable, spread, text
from scns.report.opening import Opening
from scns.report.pictures import Source
from scns.report.repeat import command
from scns.report.svg import COLOURS, DASHES, Axis, Curve, chart
from scns.results import Entry, Results

_HERE = Path(__file__).parent
# Nothing is loaded from anywhere: the browser itself refuses.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

Progress = Callable[[int, int], None] | None

_TOLD = 10  # runs without a number that are named above everything else; the others are folded away
_NUMBERS = Axis("negatives of each anchor", "with # negatives", "by the number of negatives", marked=True)


def write_report(
    results: Results,
    folder: str | Path,
    out: str | Path,
    *,
    gallery: bool = True,
    source: Source | None = None,
    opening: Opening | None = None,
    progress: Progress = None,
) -> None:
    """Write the page of the runs in a folder; the same runs make the same bytes.

    `source` says who is near whom in the gallery, instead of the first run that kept its student; `opening` tells a
    story above the runs, instead of counting them.
    """
    out = Path(out)
    if out.is_dir():
        raise InputError(f"'{out}' is a folder; name the file to write, such as {out / 'report.html'}.")
    made = page(results, Path(folder), gallery=gallery, source=source, opening=opening, progress=progress)
    try:
        with atomic(out) as temporary:
            temporary.write_bytes(made.encode("utf-8", "replace"))  # names of files may be no Unicode
    except OSError as error:
        raise InputError(f"'{out}' cannot be written ({error.strerror}); choose another --out.") from None


def page(
    results: Results,
    folder: Path,
    *,
    gallery: bool = True,
    source: Source | None = None,
    opening: Opening | None = None,
    progress: Progress = None,
) -> str:
    """The page as text."""
    found = groups(results)
    runs = {entry.path: entry for entry in results.entries}  # a run that two cells share is one run
    named = {path: _name(path, folder) for path in runs}

    def shown(own: Sequence[Group]) -> str:
        return _pictures(own, named, source, progress) if gallery else ""

    lost = by_data([Group(line, [], False, None) for line in results.lines if not line.n])
    told = by_data(found) | {data: [] for data in lost if data not in by_data(found)}  # also where every run diverged
    sections = [_section(data, own, lost.get(data, []), shown(own), opening) for data, own in told.items()]
    title = opening.title if opening else f"{count(len(runs), 'run')} in {_folder_name(folder)}"
    header = opening.header() if opening else what(found, runs) + answer(found)
    after = opening.next_steps() if opening else ""
    where = _folder_name(folder) if folder.is_absolute() else folder.as_posix()  # the page may go to others
    again = opening.command if opening else shlex.join(["scns", "report", where])
    claimed = _claims(results)
    links = [("The paper's claims", "claims")] if claimed else []
    links += [*((f"Results on {data}", anchor(data)) for data in told), ("All runs", "runs")]
    links += [("Recipes", "recipes"), *([("With your own data", "next")] if opening else [])]
    menu = "".join(f'<a href="#{target}">{text(name)}</a>' for name, target in links)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{(_HERE / 'page.css').read_text(encoding='utf-8')}</style></head><body>"
        f"<header><h1>{text(title)}</h1>{header}{_without(results, folder)}</header>"
        f'<nav aria-label="On this page">{menu}</nav>'
        f"<main>{claimed}{''.join(sections)}{_runs(runs, named)}{_recipes(runs, named)}{after}</main>"
        f"<footer>Made by scns {__version__}; it repeats with: {text(again)}</footer>"
        f"<script>{(_HERE / 'page.js').read_text(encoding='utf-8')}</script></body></html>\n"
    )


def _without(results: Results, folder: Path) -> str:
    """The runs without a number: those that diverged, and those that were skipped."""
    lost = {each.path: each.diverged for each in results.diverged}
    tried = len({each.path for each in results.entries} | lost.keys())
    return _listed(f"{len(lost)} of {count(tried, 'run')} diverged", "their lines say so:", lost, folder) + _listed(
        "Skipped", "not shown below:", results.skipped, folder
    )


def _listed(head: str, about: str, whys: dict[Path, str], folder: Path) -> str:
    if not whys:
        return ""
    inside = f"'{folder}/"  # other runs of the folder are named as on the rest of the page
    told = {_name(path, folder): why.replace(inside, "'") for path, why in whys.items()}
    rows = [f"<li><b>{text(name)}</b>: {text(why)}</li>" for name, why in told.items()]
    shown, more = f"<ul>{''.join(rows[:_TOLD])}</ul>", f"<ul>{''.join(rows[_TOLD:])}</ul>"
    folded = f"<details><summary>{len(rows) - _TOLD:,} more</summary>{more}</details>" if rows[_TOLD:] else ""
    return f'<section class="answer skipped" aria-label="{head}"><p><b>{head}</b>, {about}</p>{shown}{folded}</section>'


def _claims(results: Results) -> str:
    if not any(entry.cell for entry in results.entries):
        return ""
    rows = "".join(
        f'<tr><th scope="row">({each.letter}) {text(each.text)}</th>'
        f"<td>{_verdict(each.verdict)}{' <small>shrunken runs</small>' * each.shrunken}</td>"
        f"<td>{text(each.evidence)}</td></tr>"
        for each in claims(results)
    )
    return (
        '<h2 id="claims">The paper\'s claims, by these runs</h2><div class="wide" tabindex="0" role="region" '
        'aria-label="Claims"><table><thead><tr><th scope="col">claim</th><th scope="col">verdict</th>'
        f'<th scope="col">evidence</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _verdict(word: str) -> str:
    kind = {"holds": "mark up", "fails": "mark down"}.get(word, "")
    return f'<span class="{kind}">{text(word)}</span>'


def _section(data: str, own: list[Group], lost: list[Group], shown: str, opening: Opening | None) -> str:
    """All that is known of one data set: numbers are never compared across data sets."""
    head = f'<h2 id="{anchor(data)}">Results on {text(data)}</h2>'
    if opening:  # whose tables have what the lines would say
        return f"{head}{opening.numbers()}{shown}{_charts(own)}"
    numbers = _numbers(own)  # many lines in one picture, which therefore stands before them
    return (
        f"{head}{numbers}{'<h3>Every setting</h3>' if numbers else ''}{_lines(data, own + lost)}{_charts(own)}{shown}"
    )


def _pictures(own: Sequence[Group], named: dict[Path, str], source: Source | None, progress: Progress) -> str:
    data = own[0].line.data if own else ""
    if data not in pictures.BUNDLED:
        return ""
    return pictures.section(data, [(named[path], path) for path in paths(own)], source, progress)


def _lines(data: str, own: Sequence[Group]) -> str:
    """The settings: ours, the paper's, and the two differences."""
    heads = {"setting": "", "student": "", "n": "number", "test %": "number"}
    if any(group.line.validated is not None for group in own):
        heads["by validation"] = "number"
    if any(group.line.printed is not None for group in own):
        heads |= {"paper": "number", "to the paper": "number"}
    if any(group.gain for group in own):
        heads["to uniform"] = "number"
    if any(group.line.remark or group.line.notes for group in own):
        heads["remark"] = "remark"
    rows = [[_line_value(group, head) for head in heads] for group in own]
    caption = "Test accuracy after the last epoch: mean ± standard deviation over n seeds."
    if "to uniform" in heads:
        caption += (
            " “To uniform” pairs the same seeds, in brackets its 95 % interval; a dashed frame says that it includes 0 "
            "or has fewer than 3 pairs."
        )
    return sortable(f"lines-{anchor(data)}", caption, heads, rows)


def _line_value(group: Group, head: str) -> Value:
    line = group.line
    remark = "; ".join(filter(None, (line.remark, line.notes)))
    if head == "to uniform":
        return Value("the baseline", "") if group.uniform else difference(group.gain)
    if head == "paper":
        return number(line.printed)
    return {
        "setting": Value(text(line.name), line.name),
        "student": Value(text(line.student), line.student),
        "n": number(line.n, 0),
        "test %": beside(spread(line.mean, line.deviation), line.lost),
        "by validation": spread(line.validated, line.validated_deviation),
        "to the paper": difference(line.difference),
        "remark": Value(text(remark), remark),
    }[head]


def _numbers(own: Sequence[Group]) -> str:
    """Accuracy by the number of negatives, where runs differ in it."""
    parts = []
    for curves, others, first in by_number(own):
        about = "Mean after the last epoch; bars are 95 % intervals by the deviation of seeds pooled over all points."
        if not any(math.isfinite(half) for each in curves for half in each.halves):
            about = "After the last epoch; one seed each, so without intervals."
        about += f" Without a number: {', '.join(others)}." if others else ""
        most = COLOURS * DASHES
        parts += [
            chart(curves[i : i + most], _where(first) + _taught(first), _NUMBERS, about)
            for i in range(0, len(curves), most)
        ]
    return f"<h3>How many negatives</h3>{''.join(parts)}" if parts else ""


def _charts(own: Sequence[Group]) -> str:
    """Curves, those of one pair, or of one network over as many epochs, and as many images in one chart.

    Where there are students of several teachers, those of each are one; more than colours and dashes tell apart are
    several charts.
    """
    teachers: dict[str, set[str]] = {}
    together: dict[str, list[Group]] = {}
    for group in own:
        teachers.setdefault(_where(group), set()).add(_taught(group))
    for group in own:
        where = _where(group)
        together.setdefault(where + _taught(group) * (len(teachers[where] - {""}) > 1), []).append(group)
    sorted_out: dict[str, dict[tuple[Path, ...], Curve]] = {}
    for where, some in together.items():
        for group in some:
            drawn = curve(group, _apart(group, some))
            if drawn is not None:
                sorted_out.setdefault(where, {})[tuple(entry.path for entry in group.entries)] = drawn
    titles: dict[tuple[tuple[Path, ...], ...], list[str]] = {}  # a run may stand in several columns: drawn once
    for where, curves in sorted_out.items():
        titles.setdefault(tuple(curves), []).append(where)
    most = COLOURS * DASHES
    parts = []
    for first, *others in titles.values():
        title = ", ".join([first, *(other.rpartition(": ")[2] for other in others)])
        all_ = list(sorted_out[first].values())
        cut = [all_[i : i + most] for i in range(0, len(all_), most)]
        parts += [(f"{title} ({i} of {len(cut)})" if len(cut) > 1 else title, some) for i, some in enumerate(cut, 1)]
    return "<h3>Convergence</h3>" + "".join(chart(some, title) for title, some in parts) if parts else ""


def _where(group: Group) -> str:
    """What the runs of one chart share, as its title."""
    line = group.line
    alone = f"{line.student}, {count(line.epochs, 'epoch')}"
    where = f"{tables.TABLES[line.table]}: {line.column}" if line.table else alone
    return where + (f", {line.subset:,} images" if line.subset else "")  # its epochs are shorter than others'


def _taught(group: Group) -> str:
    """Who taught the runs of a group; of a table's, the title says it."""
    recipe = group.entries[0].recipe
    return f", taught by {recipe.teacher}" if recipe.distil and recipe.teacher and not group.line.table else ""


def _apart(group: Group, some: Sequence[Group]) -> str:
    """The name of a curve; beside others of that name, with the settings in which they differ."""
    namesakes = [set(each.line.apart) for each in some if each.line.name == group.line.name]
    differing = [word for word in group.line.apart if word not in set.intersection(*namesakes)]
    return ", ".join([group.line.name, *differing[:NAMED]])


def _runs(runs: dict[Path, Entry], named: dict[Path, str]) -> str:
    heads = {"run": "", "data": "", "student": "", "method": "", "seed": "number", "epochs": "number"}
    heads |= {"test %": "number", "by validation": "number", "converged at": "number", "seconds": "number"}
    rows = [_run(entry, named[path], place) for place, (path, entry) in enumerate(runs.items())]
    for head in ("by validation", "converged at"):
        place = list(heads).index(head)
        if not any(row[place].key for row in rows):
            del heads[head]
            rows = [row[:place] + row[place + 1 :] for row in rows]
    box = (
        '<div class="filter"><label for="filter">Show runs with</label><input id="filter" type="search" '
        'aria-controls="table-of-runs" placeholder="words, such as: class resnet8" autocomplete="off">'
        f'<span id="filter-count" role="status">{len(runs)} of {len(runs)} runs</span></div>'
    )
    about = {
        "by validation": "“By validation”: on test, at the epoch that was best on held-out images.",
        "converged at": f"“Converged at”: the first epoch whose mean over {WINDOW} is within {MARKED} of the best.",
    }
    caption = " ".join(["A click on a heading sorts.", *(words for head, words in about.items() if head in heads)])
    return f'<h2 id="runs">All runs</h2>{box}{sortable("table-of-runs", caption, heads, rows)}'


def _run(entry: Entry, name: str, place: int) -> list[Value]:
    recipe, tested = entry.recipe, history(entry.path)
    every = list(tested) == list(range(1, len(tested) + 1))  # else evaluations are no epochs
    judged = every and len(tested) >= WINDOW
    return [
        Value(f'<a href="#run-{place}">{text(name)}</a>', name),
        *(Value(text(word), word) for word in (recipe.data, recipe.student, _method(entry))),
        number(recipe.seed, 0),
        number(recipe.epochs, 0),
        number(entry.test),
        number(entry.validated),
        number(epochs_to_converge(list(tested.values())) if judged else None, 0),
        number(entry.seconds, 0),
    ]


def _method(entry: Entry) -> str:
    """The method with what tells it from its kin: preset and sampler."""
    taken = recognise.effective(entry.recipe, entry.path).arguments.get("sampler", "uniform")
    by_default = "" if entry.recipe.preset or taken == "uniform" else str(taken)
    extra = [entry.recipe.preset, str(entry.recipe.arguments.get("sampler", by_default))]
    return " ".join([entry.recipe.method, *(word for word in extra if word)])


def _recipes(runs: dict[Path, Entry], named: dict[Path, str]) -> str:
    shown = "".join(
        f'<details id="run-{place}"><summary>{text(named[path])}</summary>'
        f'<p class="soft">It repeats with:</p>'
        f'<pre class="line"><code>{text(command(entry.recipe, named[path]))}</code></pre>'
        f'<p class="soft">Its recipe:</p><pre>{text(entry.recipe.as_toml())}</pre></details>'
        for place, (path, entry) in enumerate(runs.items())
    )
    return f'<h2 id="recipes">Recipes</h2>{shown}'


def _folder_name(folder: Path) -> str:
    return folder.name or folder.resolve().name


def _name(path: Path, folder: Path) -> str:
    """A run's path below the folder; its own name where the folder is the run."""
    below = path.relative_to(folder).as_posix()
    return _folder_name(folder) if below == "." else below
