"""`scns recipes` and `scns runs`: what can be trained, and what was."""

from pathlib import Path
from typing import Annotated

import typer

from scns.cli import screen
from scns.errors import InputError


def recipes(
    name: Annotated[str | None, typer.Argument(help="A recipe, to print as TOML.", show_default=False)] = None,
) -> None:
    """List the named recipes, or print one as TOML."""
    from scns import recipes

    if name is not None:
        comment = "".join(f"# {line}".rstrip() + "\n" for line in recipes.about(name).splitlines())
        screen.out.print(f"{comment}\n{recipes.named(name).as_toml()}", markup=False, end="", soft_wrap=True)
        return
    rows: list[list[object]] = [[each, about] for each, about in recipes.names().items()]
    screen.table(f"{len(rows)} recipes", {"recipe": "left", "": "left"}, rows)
    screen.out.print("One as TOML: scns recipes NAME. Train it: scns train NAME", style="dim")


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder that holds the runs.")] = Path("runs"),
) -> None:
    """List the runs in a folder: what was trained, how far, how well."""
    from scns.runs import find

    if not folder.is_dir():
        raise InputError(
            f"There is no folder '{folder}'; give the one that holds your runs, or train: scns train mini-ce"
        )
    found = find(folder)
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
    if any(each.state != "finished" for each in found):
        screen.out.print("A run that is not finished goes on with the command that started it.", style="dim")
