"""The command line: every command turns its words into one call of the library. One file a group of commands."""

import io
import os
import signal
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from scns import __version__
from scns.cli import (
    data,
    demo,
    figures,
    methods,
    models,
    neighbors,
    report,
    results,
    runs,
    screen,
    sweep,
    theory,
    train,
    tune,
    words,
)
from scns.errors import InputError


class _Interrupted(Exception):
    """Ctrl-C in a command, or the number of another signal that was sent twice."""


class _Commands(TyperGroup):
    def invoke(self, context: Any) -> object:
        try:
            return super().invoke(context)
        except KeyboardInterrupt as error:  # typer would end it without a word
            raise _Interrupted(*error.args) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


_ONE_PROCESS = ("demo", "sweep", "tune")  # torchrun would start each of them several times over


def _version(wanted: bool) -> None:
    if wanted:
        screen.out.print(f"scns {__version__}")
        raise typer.Exit


@app.callback(help="Better negatives: sampled by what a pretrained network or word vectors call similar.")
def _options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    command = context.invoked_subcommand
    if command in _ONE_PROCESS and int(os.environ.get("WORLD_SIZE", "1")) > 1 and "LOCAL_RANK" in os.environ:
        raise InputError(
            f"`scns {command}` starts its own processes: call it without torchrun, which is for `scns train`."
        )


app.command("demo")(demo.demo)
app.add_typer(neighbors.app, name="neighbors")
app.add_typer(words.app, name="words")
app.add_typer(theory.app, name="theory")
app.add_typer(methods.app, name="methods")
app.add_typer(data.app, name="data")
app.command("models")(models.table)
app.command("figures")(figures.figures)
app.command("train")(train.train)
app.command("sweep")(sweep.sweep)
app.command("tune")(tune.tune)
app.command("recipes")(runs.recipes)
app.command("runs")(runs.runs)
app.command("results")(results.results)
app.command("report")(report.report)
app.command("eval")(train.evaluate)
app.command("embed")(train.embed)
app.command("export")(train.export)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; bad input ends in one sentence and exit code 2 (a traceback with SCNS_DEBUG=1)."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without β or ± gets a "?" for it
    if os.environ.get("SCNS_DEBUG") != "1":
        warnings.formatwarning = lambda message, *_, **__: f"{message}\n"  # without a line of the source
    try:
        app(args=arguments, prog_name="scns")
    except (InputError, OSError) as error:
        if os.environ.get("SCNS_DEBUG") == "1":
            raise
        if getattr(error, "rank", 0) == 0:  # what all processes of a run know, the first of them says
            screen.complain(_sentence(error))
        sys.exit(2)
    except (_Interrupted, KeyboardInterrupt) as error:
        terminated = signal.SIGTERM in error.args
        screen.complain(f"Stopped by {'SIGTERM' if terminated else 'Ctrl-C'}.")
        sys.exit(128 + (signal.SIGTERM if terminated else signal.SIGINT))


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        path = error.filename2 or error.filename  # of a file that is written first and then renamed, its own name
        named = f" '{os.fsdecode(path)}'" if path else ""  # TensorBoard's are bytes
        return f"{error.strerror}{named}; check the path, its permissions and the free space."
    return str(error)
