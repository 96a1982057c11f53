"""`scns recipes` and `scns runs`: what can be trained, and what was."""

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scns.cli import screen
from scns.errors import InputError, unknown

if TYPE_CHECKING:
    from scns.recipe import Recipe
    from scns.tables import Cell


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="A recipe or a cell, to print as TOML; or a table.", show_default=False)
    ] = None,
) -> None:
    """List the named recipes and the paper's tables, the cells of a table, or print one recipe as TOML.

    Example, a recipe of your own: scns recipes mini-ce > mine.toml, change it, scns train mine.toml
    """
    from scns import recipes, tables

    if name is None:
        _list_recipes()
    elif name in tables.TABLES:
        _list_cells(name)
    elif tables.is_name(name):
        cell = tables.find(name)
        told = [f"{tables.TABLES[cell.table]}: {cell.row.title}, {cell.column.slug}", f"Command: scns train {name}"]
        told += [f"Teacher: scns train {cell.teacher}"] if cell.teacher else []
        _print_toml([*told, *([f"Note: {cell.notes}"] if cell.notes else [])], cell.recipe)
    elif name not in recipes.names():
        raise unknown("recipe or table", name, [*recipes.names(), *tables.TABLES])
    else:
        _print_toml(recipes.about(name).splitlines(), recipes.named(name))


def _print_toml(about: list[str], recipe: "Recipe") -> None:
    """The recipe with what each key means, as the fields of `Recipe` say it."""
    comment = "".join(f"# {line}".rstrip() + "\n" for line in about)
    meanings = dict(re.findall(r"^    (\w+): .*?  # (.+)$", inspect.getsource(type(recipe)), re.MULTILINE))
    lines = recipe.as_toml().splitlines()
    wide = max(len(line) for line in lines if line.split(" = ")[0] in meanings)
    told = [
        f"{line:{wide}}  # {meanings[key]}" if (key := line.split(" = ")[0]) in meanings else line for line in lines
    ]
    screen.out.print("\n".join([comment, *told]), soft_wrap=True)


def _list_recipes() -> None:
    from scns import recipes, tables

    rows: list[list[object]] = [[each, about] for each, about in recipes.names().items()]
    screen.table(f"{len(rows)} recipes", {"recipe": "left", "": "left"}, rows)
    screen.out.print("One as TOML: scns recipes NAME. Train it: scns train NAME", style="dim")
    screen.out.print()
    cells: list[list[object]] = [
        [table, about, len(tables.names(table)), tables.names(table)[-1]] for table, about in tables.TABLES.items()
    ]
    columns = {"table": "left", "": "left", "cells": "right", "such as": "left"}
    screen.table("The paper's tables", columns, cells)
    screen.out.print("Rows and columns of one: scns recipes t3. Train a cell: scns train CELL", style="dim")


def _list_cells(table: str) -> None:
    from scns import tables

    cells = [tables.cell(name) for name in tables.names(table, everything=True)]
    rows = {cell.row.slug: cell.row.title + " (not in this table)" * (not cell.row.paper) for cell in cells}
    columns = {cell.column.slug: _networks(cell) for cell in cells}
    screen.table(
        f"{tables.TABLES[table]}: {len(rows)} rows",
        {"row": "left", "": "left"},
        [[slug, about] for slug, about in rows.items()],
    )
    screen.out.print()
    screen.table(
        f"{len(columns)} columns", {"column": "left", "": "left"}, [[slug, about] for slug, about in columns.items()]
    )
    screen.out.print(
        "k=1/50 is |D|/50 or |V|/50; rows and columns that are not printed are named to be trained.", style="dim"
    )
    screen.out.print(
        f"A cell is {table}/ROW/COLUMN: scns train {cells[0].name}. Many: scns sweep {table} --rows ... --columns ...",
        style="dim",
        soft_wrap=True,
    )


def _networks(cell: "Cell") -> str:
    shown = f"{cell.column.teacher} teaches {cell.column.student}" if cell.column.teacher else cell.column.student
    if cell.column.printed:
        return shown
    return f"{shown} (not {'as printed: the probable width' if cell.column.paper else 'in this table: 64 px'})"


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder that holds the runs.")] = Path("runs"),
) -> None:
    """List the runs in a folder: what was trained, how far, how well.

    Example: scns runs runs
    """
    from scns.runs import find

    if not folder.is_dir():
        raise InputError(
            f"There is no folder '{folder}'; give the one that holds your runs, or train: scns train mini-ce"
        )
    found, lost = find(folder)
    for sentence in lost:
        screen.tell(f"Left out: {sentence}")
    if not found:
        raise InputError(f"There is no run in '{folder}'; train one with: scns train mini-ce")
    rows: list[list[object]] = []
    for each in found:
        recipe = each.recipe
        method = f"{recipe.method} ({recipe.preset})" if recipe.preset else recipe.method
        test = "" if each.test is None else f"{each.test:.2f}"
        rows.append(
            [
                "." if each.path == folder else each.path.relative_to(folder),
                recipe.data,
                recipe.student,
                method,
                recipe.seed,
                f"{each.done}/{recipe.epochs}",
                test,
                f"{each.seconds:,.0f}",
                each.state,
            ]
        )
    columns = {"run": "left", "data": "left", "student": "left", "method": "left", "seed": "right", "epochs": "right"}
    screen.table("", columns | {"test %": "right", "seconds": "right", "state": "left"}, rows)
    for each in found:
        if each.why:
            screen.out.print(f"{each.path}: {each.why}", style="dim", soft_wrap=True)
    if any(each.state not in ("finished", "diverged") for each in found):
        screen.out.print("A run that is not finished goes on with the command that started it.", style="dim")
