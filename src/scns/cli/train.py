"""`scns train`, `scns eval`, `scns embed`, `scns export`: train a student and use it."""

import os
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scns.cli import screen
from scns.errors import InputError
from scns.phrases import count

if TYPE_CHECKING:
    import torch

    from scns.data import Images
    from scns.recipe import Recipe
    from scns.runs import Student

Named = Annotated[
    str, typer.Argument(help="A name or a cell of the paper's tables (see `scns recipes`), or a .toml or .json file.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", show_default=False)]
Root = Annotated[str | None, typer.Option(help="The folder that holds the data set; the default is the run's.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]

_SOME = 64  # images that tell a data set from another one


def train(
    recipe: Named,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a key of the recipe (`scns recipes NAME` lists them) or, as method.KEY, of its method.",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(help="Epochs, the recipe's by default; the learning rate drops of a table's cell move along."),
    ] = None,
    subset: Annotated[int | None, typer.Option(help="Training images to use; all by default.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of weights, order, crops and negatives; by default the recipe's, 0.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/RECIPE-SEED by default.")] = None,
    device: Annotated[
        str | None, typer.Option(help="auto (CUDA where there is one), cpu or cuda; by default the recipe's.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="tf32, fp32 or bf16; by default the recipe's.")] = None,
    compile: Annotated[
        bool, typer.Option("--compile", help="Compile the whole step: a minute first, then up to twice as fast.")
    ] = False,
    no_graph: Annotated[bool, typer.Option("--no-graph", help="Do not capture the step in a CUDA graph.")] = False,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="The same bits on every CUDA run, whatever the method."),
    ] = False,
    gather: Annotated[
        str | None, typer.Option(help="Under torchrun: losses of the whole batch auto (where needed), always or never.")
    ] = None,
    tensorboard: Annotated[bool, typer.Option(help="Write TensorBoard events to the run folder.")] = True,
) -> None:
    """Train a recipe in a run folder; stopped or killed, the same command goes on.

    A smoke test of any recipe: scns train cifar100 --epochs 2 --subset 1000

    A cell of the paper's tables is trained as scns sweep does, with the teacher that a sweep in runs/ left, or another:
    scns train t3/kld/resnet110-resnet20 --set teacher=RUN

    On several GPUs: torchrun --nproc-per-node 8 -m scns train cifar100
    """
    chosen, place = named_recipe(recipe, settings or [], epochs=epochs, subset=subset, seed=seed, out=out)
    given: dict[str, Any] = {"device": device, "precision": precision, "compile": "all" if compile else None}
    given |= {"graph": False if no_graph else None, "deterministic": deterministic or None, "gather": gather}
    _train(_changed(chosen, given), place, tensorboard)


def named_recipe(
    name: str, settings: list[str], *, epochs: int | None, subset: int | None, seed: int | None, out: Path | None
) -> "tuple[Recipe, Path]":
    """The recipe of a name, a file or a cell of a table, and its run folder."""
    from scns import plan, tables
    from scns.recipes import load_recipe

    if tables.is_name(name):
        job = plan.single(name, out, seed=seed, settings=settings, epochs=epochs, subset=subset)
        return job.recipe, job.out
    if name in tables.TABLES:
        raise InputError(f"'{name}' is a table: scns sweep {name} trains its cells; 'scns recipes {name}' names them.")
    given = {"epochs": epochs, "subset": subset, "seed": seed}
    chosen = _changed(load_recipe(name, settings), given)
    return chosen, out or Path("runs") / f"{Path(name).stem}-{chosen.seed}"


def _changed(recipe: "Recipe", changes: dict[str, Any]) -> "Recipe":
    """The recipe with those of the changes that were asked for."""
    from dataclasses import replace

    return replace(recipe, **{key: value for key, value in changes.items() if value is not None})


def _train(recipe: "Recipe", out: Path, tensorboard: bool) -> None:
    """Train alone or, under torchrun, with the other processes; the one of rank 0 speaks for all."""
    from scns.agree import open_folder
    from scns.checkpoint import Folder
    from scns.join import joined, lost
    from scns.train import Stopped, Watch, fit
    from scns.watch import watching

    with joined(recipe.device) as world:
        finished = open_folder(recipe, out, world)
        if finished and world.leads:
            result = Folder(out).result()
            screen.out.print("This run is finished already; it is not trained again.")
            _tell(out, result)
        if finished:
            return
        speaks = watching(screen.err, screen.redraws(), tensorboard) if world.leads else nullcontext(Watch())
        try:
            with speaks as watch:
                run = fit(recipe, out, watch=watch)
        except Stopped as stopped:
            if world.leads:
                screen.complain(str(stopped))
            raise typer.Exit(stopped.code) from None
        except RuntimeError as error:
            if world.size == 1 or not lost(error):
                raise
            raise InputError(
                f"Rank {world.rank} lost another rank, which may have said why; the last checkpoint is in '{out}', and "
                "torchrun --max-restarts=3 would go on from it."
            ) from None
        if world.leads:
            _tell(out, run.result)
    if world.size > 1:  # torch leaves gloo's threads behind, which can abort the process while Python winds up
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _tell(out: Path, result: dict[str, Any]) -> None:
    """What came out, where it is, and what to do with it."""
    what = f"{result['student']} on {result['data']} with {result['method']}, seed {result['seed']}"
    screen.out.print(what)
    epochs = count(result["epochs"], "epoch")
    screen.out.print(f"test:  {result['test']:.2f} % after {epochs}, {result['seconds']:,} s of training")
    if "best_validation" in result:
        screen.out.print(
            f"best:  {result['best_validation']:.2f} % on validation after epoch {result['best_epoch']}, "
            f"{result['best_test']:.2f} % on test then",
        )
    if result.get("weights", "random") != "random":
        screen.out.print(f"start: {result['weights']}")
    screen.out.print(f"run:   {out}")
    run = shlex.quote(str(out))  # lines to copy
    screen.out.print(f"check: scns eval {run}", style="dim")
    screen.out.print(f"use:   scns export {run} --to student.pt2", style="dim")
    screen.out.print(f"teach: scns train RECIPE --set teacher={run}", style="dim")


def evaluate(run: RunFolder, root: Root = None, device: Device = "auto") -> None:
    """Measure a run's student on the test images.

    Example: scns eval runs/first
    """
    from scns import runs
    from scns.run import backends

    recipe, where, student = _student(run, device)
    images = runs.load_images(recipe, None, root, "test").on_host().to(where)
    with backends([recipe]), screen.progress("Evaluating", "images") as advance:
        accuracy = runs.evaluate(student, images, bf16=recipe.precision == "bf16", progress=advance)
    screen.out.print(f"{accuracy:.2f} % of {len(images.known()):,} test images of {recipe.data}")


def embed(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="Where to write the embeddings: .npy, or .safetensors for shards.")],
    data: Annotated[str | None, typer.Option(help="Data set: see `scns data list`; the default is the run's.")] = None,
    root: Root = None,
    split: Annotated[str, typer.Option(help="train or test.")] = "train",
    labels: Annotated[Path | None, typer.Option(help="Write the labels (.npy) too, for `scns neighbors`.")] = None,
    shards: Annotated[
        int | None, typer.Option(help="Write that many row shards and an index. Default: torchrun's ranks.")
    ] = None,
    device: Device = "auto",
) -> None:
    r"""Write a student's pooled embeddings of a data set, float32 \[images, width].

    Example: scns embed runs/first --out x.npy --labels y.npy

    Under torchrun every rank writes its row shards: torchrun --nproc-per-node 4 -m scns embed RUN --out x.safetensors
    """
    from scns import ranks, runs
    from scns.arrays import save_array
    from scns.files import check_writable

    rank, world = ranks.of_torchrun()
    parts = world if shards is None and world > 1 else shards or 0
    _check_names(out, labels, parts, world)
    for path in (out, labels):
        if path is not None:
            check_writable(path)
    recipe, _, student = _student(run, device)
    images = runs.load_images(recipe, data, root, split)
    if parts:
        about = {"run": _weights_of(run), "data": data or recipe.data, "split": split, "images": str(len(images))}
        _embed_shards(student, images, out, parts, {**about, "pixels": _look_of(images)})
    else:
        with screen.progress("Embedding", "images") as advance:
            embeddings = runs.embed(student, images, progress=advance)
        save_array(out, embeddings)
        screen.out.print(f"{out}: {embeddings.shape[0]:,} x {embeddings.shape[1]}, float32")
    if labels is not None and rank == 0:
        save_array(labels, images.labels)
        screen.out.print(f"{labels}: {len(images):,} labels")


def _check_names(out: Path, labels: Path | None, parts: int, world: int) -> None:
    ending = ".safetensors" if parts else ".npy"
    if out.suffix != ending:
        why = " for shards" if parts else "" if out.suffix != ".safetensors" else "; --shards N writes .safetensors"
        raise InputError(f"'{out}' must end in {ending}{why}.")
    if labels is not None and labels.suffix != ".npy":
        raise InputError(f"'{labels}' must end in .npy.")
    if labels is not None and labels.resolve() == out.resolve():
        raise InputError(f"'{out}' cannot hold both the embeddings and the labels; give --labels another name.")
    if parts and parts < world:
        raise InputError(f"--shards {parts} leaves some of the {world} ranks without work; give at least {world}.")


def _embed_shards(student: "Student", images: "Images", out: Path, parts: int, about: dict[str, str]) -> None:
    """Write this rank's shards, apart from those that are finished, and the index once all are there."""
    from scns import ranks, runs
    from scns.arrays import index_shards, save_shard, shard_is
    from scns.files import index_path, shard_path

    for part in ranks.shares(parts):
        path, rows = shard_path(out, part, parts), runs.embedding_rows(student, images, part, parts)
        if shard_is(path, about):
            screen.out.print(f"{path} is finished already.")
            continue
        with screen.progress("Embedding", "images") as advance:
            found = runs.embed(student, images, rows=rows, progress=advance)
        save_shard(path, found, about)
        screen.out.print(f"{path}: {found.shape[0]:,} x {found.shape[1]}, float32")
    paths = [shard_path(out, part, parts) for part in range(1, parts + 1)]
    if index_shards(paths, index_path(out), about):
        screen.out.print(f"{index_path(out)}: {len(images):,} images in {count(parts, 'shard')}")


def _weights_of(run: Path) -> str:
    """The fingerprint of a run's student, so that shards of another are not taken for its own."""
    import hashlib

    return hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()


def _look_of(images: "Images") -> str:
    """The fingerprint of some of the images, so that shards of another folder are not taken for its own."""
    from scns.checks import fingerprint

    return fingerprint(images.take(slice(None, None, max(1, len(images) // _SOME))))


def export(
    run: RunFolder,
    to: Annotated[Path, typer.Option(help="student.safetensors, student.pt2 or student.onnx.", show_default=False)],
) -> None:
    """Write a student: a program for plain torch (.pt2) or ONNX, which needs no scns, or its weights (.safetensors).

    Example: scns export runs/first --to student.pt2
    """
    from scns.export import check_ending
    from scns.export import export as write
    from scns.runs import load_student

    ending = check_ending(to)
    student = load_student(run)
    write(student, to)
    file = repr(str(to))
    how = {
        ".safetensors": f"network = scns.models.build('{student.name}', {len(student.classes)}).eval(); "
        f"network.load_state_dict(safetensors.torch.load_file({file})); logits = network(images)",
        ".pt2": f"logits = torch.export.load({file}).module()(images)",
        ".onnx": f"logits = onnxruntime.InferenceSession({file}).run(None, {{'images': images}})[0]",
    }
    screen.out.print(f"{to}: {student.name}, {len(student.classes)} classes")
    screen.out.print(how[ending])
    mean, std = (" ".join(f"{value:.4f}" for value in each) for each in (student.mean, student.std))
    side = student.side
    screen.out.print(f"images: float32 [n, 3, {side}, {side}], (pixels / 255 - mean) / std")
    screen.out.print(f"mean {mean}, std {std}")


def _student(run: Path, device: str) -> "tuple[Recipe, torch.device, Student]":
    """A run's recipe, the device that is asked for, and the run's student on it."""
    from dataclasses import replace

    import torch

    from scns import ranks
    from scns.checkpoint import Folder
    from scns.preflight import choose_device
    from scns.runs import load_student

    recipe = replace(Folder(run).recipe(), device=device)
    where = torch.device(ranks.device(str(choose_device(recipe))))
    if where.type == "cpu":
        recipe = replace(recipe, precision="fp32")
    student = load_student(run)
    student.network.to(where)
    return recipe, where, student
