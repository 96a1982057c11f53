"""`scns words`: which classes the words call alike."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scns.cli import screen

if TYPE_CHECKING:
    from torch import Tensor

app = typer.Typer(help="Which classes their names call alike.", no_args_is_help=True)

_NEAREST = 4  # classes beside each: what a terminal of 80 columns holds
_SHOWN = 26  # classes in a figure that stays readable
# CIFAR-100's figure: the trees, people and vehicles that the paper speaks of, and some animals.
_CIFAR100 = (
    "maple_tree,oak_tree,palm_tree,pine_tree,willow_tree,forest,man,woman,boy,girl,baby,tractor,pickup_truck,bus,train,"
    "streetcar,motorcycle,bicycle,dolphin,whale,shark,seal,lion,tiger,leopard,wolf"
)

Name = Annotated[
    str, typer.Argument(help="cifar10, cifar100, another data set (with --root), or a text file with a label a line.")
]
Source = Annotated[
    str,
    typer.Option(
        help="Word vectors: a .bin, .txt, .vec (also .gz) or .npz file, or 'glove': bundled, the words of the CIFAR "
        "and Tiny-ImageNet labels alone."
    ),
]
Root = Annotated[Path | None, typer.Option(help="The folder that holds the data set.")]
OnMissing = Annotated[
    str, typer.Option(help="For a label without any known word: 'error', or 'uniform' (similar to no class).")
]


@app.command()
def heatmap(
    name: Name,
    out: Annotated[Path, typer.Option(help="Figure to write: .png, .pdf or .svg.")],
    source: Source = "glove",
    scale: Annotated[float, typer.Option(help="Sharpness of the sampling probability, softmax(SCALE * cosine).")] = 5.0,
    classes: Annotated[str | None, typer.Option(help="Classes to show, separated by commas.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Show every class, in several figures.")] = False,
    root: Root = None,
    on_missing: OnMissing = "error",
) -> None:
    """Draw the class-similarity figure: cosine and sampling probability side by side.

    Example: scns words heatmap cifar10 --out classes.png
    """
    from scns import plots, words
    from scns.errors import InputError

    plots.check_ending(out)
    if classes and every:
        raise InputError("--classes and --all exclude each other; give one of the two.")
    names = _names(name, root)
    vectors = _vectors(names, source, on_missing)
    cosine, probability = words.class_cosines(vectors), words.class_probabilities(vectors, scale)
    pages = pages_of(name, names, cosine, classes, every)
    told = []
    for number, rows in enumerate(pages, 1):
        path = out if len(pages) == 1 else out.with_name(f"{out.stem}-{number}{out.suffix}")
        figure = plots.class_heatmap(
            [names[row] for row in rows],
            cosine[rows][:, rows].numpy(),
            probability[rows][:, rows].numpy(),
            title="cosine of the label vectors",
            drawn_title=f"sampling probability, softmax({scale:g}\u00a0cosine) over {len(names) - 1} classes",
        )
        told.append(plots.save(figure, path))
        screen.out.print(f"{len(rows)} of {len(names)} classes: {path}")
    for sentence in dict.fromkeys(filter(None, told)):
        screen.tell(sentence)


@app.command()
def nearest(
    name: Name,
    top: Annotated[int | None, typer.Option(help="Nearest classes to list; 4, or all where there are fewer.")] = None,
    source: Source = "glove",
    root: Root = None,
    on_missing: OnMissing = "error",
) -> None:
    """List the classes nearest to each class, with their cosines.

    Example, of your own classes, a name a line: scns words nearest labels.txt
    """
    from scns import words
    from scns.errors import InputError

    names = _names(name, root)
    top = min(_NEAREST, len(names) - 1) if top is None else top
    if not 1 <= top < len(names):
        raise InputError(f"--top is {top}, but {len(names)} classes have 1 to {len(names) - 1} others.")
    cosine = words.class_cosines(_vectors(names, source, on_missing)).fill_diagonal_(-2.0)  # below every cosine
    order = cosine.argsort(dim=1, descending=True, stable=True)[:, :top]
    rows: list[list[object]] = [
        [names[i], *(f"{names[j]} {cosine[i, j]:.2f}" for j in order[i].tolist())] for i in range(len(names))
    ]
    screen.table("", dict.fromkeys(["class", *(f"nearest {n}" for n in range(1, top + 1))], "left"), rows)


def _names(name: str, root: Path | None) -> tuple[str, ...]:
    from scns import datasets, words
    from scns.errors import InputError

    if name in ("cifar10", "cifar100"):
        return words.label_names(name)
    if not Path(name).is_file():
        return datasets.load(name, root, split="test").names
    names = tuple(line.strip() for line in label_lines(Path(name)) if line.strip())
    if len(names) < 2:
        raise InputError(f"'{name}' names {len(names)} classes, but at least 2 are needed, one a line.")
    return names


def label_lines(path: Path) -> list[str]:
    """The lines of a text file with a label a line."""
    from scns.errors import InputError

    try:
        return path.read_text(encoding="utf-8-sig").split("\n")  # editors of Windows begin with a mark
    except UnicodeDecodeError:
        raise InputError(f"'{path}' is not a text file in UTF-8; give one with a label a line.") from None


def _vectors(names: tuple[str, ...], source: str, on_missing: str) -> "Tensor":
    """Label vectors; words that were dropped are named on stderr."""
    from scns import words

    with screen.progress(f"Reading {source}", "MB") as advance:
        vectors, missing = words.label_words(names, source, on_missing, progress=advance)
    if missing:
        listed = ", ".join(f"{label} ({', '.join(lost)})" for label, lost in missing.items())
        screen.tell(f"Words without a vector, left out: {listed}")
    return vectors


def pages_of(name: str, names: tuple[str, ...], cosine: "Tensor", classes: str | None, every: bool) -> list[list[int]]:
    """The classes of each figure."""
    from scns import words
    from scns.errors import InputError, unknown

    if name == "cifar100" and not every:
        classes = classes or _CIFAR100
    if classes:
        chosen = [word.strip().replace(" ", "_") for word in classes.split(",") if word.strip()]
        position = {label.replace(" ", "_"): row for row, label in enumerate(names)}
        for label in chosen:
            if label not in position:
                raise unknown("class", label, position)
        if len(set(chosen)) < 2:
            raise InputError(f"--classes is '{classes}', but a figure compares classes; name at least 2.")
        return [[position[label] for label in dict.fromkeys(chosen)]]
    if len(names) <= _SHOWN:
        return [list(range(len(names)))]
    return words.blocks(cosine) if every else [words.alike(cosine)[:_SHOWN]]
