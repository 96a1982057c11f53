"""`scns results`: one table of many runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scns.cli import screen

if TYPE_CHECKING:
    from scns.claims import Claim
    from scns.results import Line, Results


def results(
    folder: Annotated[Path, typer.Argument(help="The folder that holds the runs.")] = Path("runs"),
    csv: Annotated[Path | None, typer.Option(help="Also write the table to this CSV file.")] = None,
    as_json: Annotated[Path | None, typer.Option("--json", help="Also write table and claims to this JSON.")] = None,
) -> None:
    """Average runs over their seeds: test accuracy after the last epoch, beside the paper's, and its claims.

    Example: scns results runs --csv results.csv
    """
    from dataclasses import asdict

    from scns.claims import claims
    from scns.files import atomic
    from scns.results import as_dict, read, write_csv

    found = read(folder)
    judged = claims(found)
    _show(found)
    if any(line.table for line in found.lines):
        _show_claims(judged)
    if csv is not None:
        write_csv(found.lines, csv)
    if as_json is not None:
        with atomic(as_json) as temporary:
            temporary.write_text(json.dumps({**as_dict(found), "claims": [asdict(each) for each in judged]}, indent=1))
    screen.tell_lost(found)


def _show(found: "Results") -> None:
    lines = found.lines
    columns = {"cell or recipe": "left", "data": "left", "student": "left", "n": "right", "test %": "right"}
    if any(line.validated is not None for line in lines):
        columns["by validation"] = "right"
    if any(line.printed is not None for line in lines):
        columns |= {"paper": "right", "difference": "right"}
    columns[""] = "left"
    marks = screen.numbered(line.notes for line in lines)
    screen.table("", columns, [[_value(line, heading, marks) for heading in columns] for line in lines])
    screen.show_notes(marks)
    screen.out.print("test %: after the last epoch, mean and standard deviation over n seeds.", style="dim")
    if "by validation" in columns:
        screen.out.print("by validation: on test, after the epoch that was best on held-out images.", style="dim")
    if found.diverged:
        screen.out.print("Runs that diverged have no accuracy: mean and deviation are of the others.", style="dim")
    if any(line.shrunken for line in lines):
        screen.out.print("Shrunken runs are not compared with the paper.", style="dim")


def _value(line: "Line", heading: str, marks: dict[str, str]) -> str:
    return {
        "cell or recipe": line.name,
        "data": line.data,
        "student": line.student,
        "n": str(line.n),
        "test %": _spread(line.mean, line.deviation),
        "by validation": _spread(line.validated, line.validated_deviation),
        "paper": "" if line.printed is None else f"{line.printed:.2f}",
        "difference": "" if line.difference is None else f"{line.difference:+.2f}",
        "": f"{'; '.join(filter(None, (line.lost, line.remark)))} {marks[line.notes]}".strip(),
    }[heading]


def _spread(value: float | None, deviation: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if deviation is None else f"{value:.2f} +- {deviation:.2f}"


def _show_claims(judged: "list[Claim]") -> None:
    screen.out.print()
    rows: list[list[object]] = [
        [f"({each.letter})", each.text, each.verdict + " (shrunken runs)" * each.shrunken] for each in judged
    ]
    screen.table("The paper's claims, by these runs", {"": "left", " ": "left", "  ": "left"}, rows)
    for each in judged:
        if each.evidence != "no runs to compare":
            screen.out.print(f"({each.letter}) {each.evidence}", style="dim", soft_wrap=True)
