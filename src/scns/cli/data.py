"""`scns data`: fetch data sets and look at them."""

import typer

app = typer.Typer(help="Fetch data sets and look at them.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass
