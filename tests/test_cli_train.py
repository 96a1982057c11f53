"""`scns train`, `recipes`, `runs`, `eval`, `embed` and `export` as a person uses them."""

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from rich.console import Console

import scns as package
from conftest import ALONE, disk_of
from engine_runs import SIZE, recipe, root, single, small_words, teacher
from scns import augment, datasets
from scns import watch as watches
from scns.errors import InputError
from scns.export import export
from scns.recipes import load_recipe
from scns.runs import load_student
from scns.train import Watch, fit_packed
from scns.watch import Display, Lines, Several, TensorBoard, all_epochs, clock, facts, watching


def small() -> list[str]:
    """Words that shrink a recipe to a second."""
    return [*small_words(), "--no-tensorboard"]


# --- train


def test_a_run_tells_its_epochs_and_its_end(scns: Callable, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "first"
    ran = scns("train", "mini-uniform", *small(), "--epochs", 2, "--out", out)
    assert ran.code == 0
    lines = ran.err.splitlines()
    assert f"{out}: resnet8 on folder (120 images) with infonce, 2 epochs" in lines[0]
    shape = (
        r"epoch {}/2  ce \d.* infonce \d.* train \d+\.\d\d %  test \d+\.\d\d %  lr 0.0\d+  [\d,]+ images/s  0:0\d left"
    )
    assert [bool(re.fullmatch(shape.format(i), lines[i])) for i in (1, 2)] == [True, True]
    result = json.loads((out / "result.json").read_text())
    assert f"test:  {result['test']:.2f} % after 2 epochs" in ran.out
    assert (
        f"scns eval {out}" in ran.out
        and f"scns export {out} --to student.pt2" in ran.out
        and f"teacher={out}" in ran.out
    )

    again = scns("train", "mini-uniform", *small(), "--epochs", 2, "--out", out)
    assert again.code == 0 and "finished already; it is not trained again" in again.out and again.err == ""
    assert f"test:  {result['test']:.2f} %" in again.out

    other = scns("train", "mini-uniform", *small(), "--epochs", 3, "--out", out)
    assert other.code == 2 and "another recipe: epochs (2 there, 3 asked); choose another --out" in other.err


def test_options_are_settings_and_the_run_is_named_after_recipe_and_seed(
    scns: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(
        f'extends = "mini-ce"\ndata = "folder"\nroot = "{root()}"\nsize = {SIZE}\nevaluate_every = 9\n'
    )
    options = ["--epochs", 1, "--subset", 40, "--seed", 4, "--precision", "fp32", "--no-graph", "--deterministic"]
    ran = scns(
        "train", "mine.toml", *options, "--set", "lr=0.1", "--set", "batch=20", "--device", "cpu", "--no-tensorboard"
    )
    assert ran.code == 0 and "runs/mine-4" in ran.out
    kept = json.loads((tmp_path / "runs" / "mine-4" / "recipe.json").read_text())
    expected = {"epochs": 1, "subset": 40, "seed": 4, "precision": "fp32", "graph": False, "deterministic": True}
    assert expected.items() <= kept.items() and (kept["lr"], kept["batch"], kept["schedule"]) == (0.1, 20, "cosine")
    assert load_recipe("runs/mine-4/recipe.json").seed == 4  # a run's recipe is a recipe


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["mini-cee"], "Unknown recipe 'mini-cee'; did you mean mini-ce"),
        (["no.toml"], "The recipe 'no.toml' does not exist"),
        (["mini-ce", "--set", "epochs=abc"], "epochs must be a whole number, such as 20, but it is 'abc'."),
        (["mini-ce", "--set", "epoch=1"], "Unknown recipe key 'epoch'; did you mean epochs"),
        (["mini-ce", "--set", "method.k=1"], "Unknown argument of 'ce' 'k'"),
        (["mini-ce", "--set", "method=infonse"], "Unknown method 'infonse'; did you mean infonce"),
        (["mini-ce", "--set", "student=resnet9"], "Unknown network 'resnet9'; did you mean"),
        (["mini-ce", "--epochs", "0"], "epochs=0 must be at least 1."),
        (["mini-ce", "--precision", "fp64"], "Unknown precision 'fp64'"),
        (["mini-ce", "--set", "batch=50000"], "batch=50000 is larger than the 2500 training images; lower batch."),
        (["mini-ce", "--subset", "2501"], "subset=2501 is more than the 2,500 training images; leave it out for all."),
        (["mini-ce", "--set", "data=cifar100"], "scns data get cifar100"),
        (["mini-ce", "--seed", "9" * 23], f"seed={'9' * 23} must be below 2^63 = 9223372036854775808."),
        (
            ["mini-ce", "--subset", "300", "--set", "validation=0.00001"],
            "validation=1e-05 of 2,500 training images is 0.025 images, so none; give at least 0.0004, or 0",
        ),
        (["mini-ce", "--set", "validation=0.9999"], "validation=0.9999 holds out all of the 2,500 training images"),
        (["mini-kld"], "'kld' needs a teacher; train one first (scns train mini-ce --out runs/mini-ce)"),
        (["mini-instance"], "then add --set teacher=runs/mini-ce"),
    ],
)
def test_bad_input_ends_in_one_sentence(
    words: list[str], sentence: str, scns: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = scns("train", *words)
    assert ran.code == 2 and sentence in ran.err and "Traceback" not in ran.err and ran.out == ""


def test_no_cuda_and_places_that_cannot_be_written_are_told(scns: Callable, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = scns("train", "mini-ce", "--out", tmp_path / "file" / "run")
    assert ran.code == 2 and "check the path" in ran.err
    if not torch.cuda.is_available():
        ran = scns("train", "mini-ce", "--device", "cuda", "--out", tmp_path / "run")
        assert ran.code == 2 and "torch sees no CUDA device; use device=cpu" in ran.err


@pytest.mark.parametrize("kept", ["{}", "[]", '{"test": "high"}', "{"])
def test_a_finished_run_whose_result_is_damaged_is_told_with_the_way_out(
    kept: str, scns: Callable, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(teacher(), out)
    (out / "result.json").write_text(kept)
    command = ("train", out / "recipe.json", "--no-tensorboard", "--out", out)
    ran = scns(*command)
    assert ran.code == 2 and "result.json' " in ran.err and ran.err.count("\n") == 1 and ran.out == ""
    with pytest.raises(InputError, match="remove it and give the run's command again"):
        single(recipe(), out)
    (out / "result.json").unlink()
    ran = scns(*command)
    found, whole = (json.loads((each / "result.json").read_text()) for each in (out, teacher()))
    assert ran.code == 0 and found == whole


def test_ctrl_c_leaves_a_checkpoint_and_the_word_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "scns", "train", "mini-ce", *small(), "--epochs", "500", "--out", str(out)]
    process = subprocess.Popen(command, env=ALONE, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while not (out / "state.json").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said, told = process.communicate(timeout=30)
    assert process.returncode == 130, told
    assert f"Stopped; a checkpoint is in {out}. The same command goes on from there." in told.replace("\n", " ")
    assert "Traceback" not in told and said == ""


# --- recipes and runs


def test_recipes_are_listed_and_printed_as_toml(scns: Callable, tmp_path: Path) -> None:
    ran = scns("recipes")
    names = ["cifar10", "cifar100", "cifar100-repdistiller", "tiny-imagenet", "mini-ce", "mini-kld", "mini-uniform"]
    assert ran.code == 0 and all(f"{name} " in ran.out for name in [*names, "mini-class", "mini-instance", "mini-own"])
    ran = scns("recipes", "mini-instance")
    (tmp_path / "r.toml").write_text(ran.out)
    assert load_recipe(str(tmp_path / "r.toml")) == load_recipe("mini-instance") and "# Command: scns train" in ran.out
    ran = scns("recipes", "mini-instanse")
    assert ran.code == 2 and "did you mean mini-instance" in ran.err


def test_runs_are_listed_with_how_far_they_are(scns: Callable, tmp_path: Path) -> None:
    shutil.copytree(teacher(), tmp_path / "a" / "done")
    shutil.copytree(teacher(), tmp_path / "half")
    (tmp_path / "half" / "result.json").unlink()
    shutil.copytree(
        teacher(), tmp_path / "empty", ignore=lambda _, names: [name for name in names if name != "recipe.json"]
    )
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "recipe.json").write_text("{")
    shutil.copytree(teacher(), tmp_path / "lost")
    (tmp_path / "lost" / "result.json").write_text('{"test": 50.0}')
    shutil.copytree(tmp_path / "half", tmp_path / "cut")
    (tmp_path / "cut" / "last.safetensors").write_bytes(b"cut")
    ran = scns("runs", tmp_path)
    rows = {line.split()[0]: line.split() for line in ran.out.splitlines()}
    test = f"{json.loads((teacher() / 'result.json').read_text())['test']:.2f}"
    assert rows["a/done"][1:7] == ["folder", "resnet8", "ce", "0", "3/3", test] and rows["a/done"][-1] == "finished"
    assert rows["half"][5:7] == ["3/3", test] and rows["half"][-1] == "unfinished"
    assert rows["empty"][5] == "0/3" and rows["empty"][-1] == "empty" and "broken" not in rows
    told = ran.err.splitlines()
    assert len(told) == 3 and all(line.startswith("Left out: ") for line in told) and "broken" in told[0]
    assert "cut/last.safetensors' is cut short" in told[1]  # its command would not go on, nor is it empty
    assert "lost/result.json' lacks seconds, epochs, seed, student, method, data; remove it" in told[2]
    assert not {"lost", "cut"} & rows.keys()
    assert "goes on with the command that started it" in ran.out
    ran = scns("runs", tmp_path / "nowhere")
    assert ran.code == 2 and "There is no folder" in ran.err
    (tmp_path / "none").mkdir()
    ran = scns("runs", tmp_path / "none")
    assert ran.code == 2 and "There is no run in" in ran.err


# --- a trained student


def test_eval_says_what_the_result_says(scns: Callable) -> None:
    ran = scns("eval", teacher(), "--device", "cpu")
    test = json.loads((teacher() / "result.json").read_text())["test"]
    assert ran.code == 0 and ran.out == f"{test:.2f} % of 60 test images of folder\n"


def test_eval_of_other_images_sees_them_as_the_student_was_trained(scns: Callable, tmp_path: Path) -> None:
    """A folder's own mean is that of its training images; an exported student knows no other than the run's."""
    other = tmp_path / "other"
    shutil.copytree(root(), other)
    for path in (other / "train").rglob("*.png"):
        Image.open(path).point(lambda value: value // 8).save(path)
    assert scns("eval", teacher(), "--root", other).out == scns("eval", teacher()).out
    for split in ("train", "test"):
        (other / split / "truck").rename(other / split / "lorry")
    ran = scns("eval", teacher(), "--root", other)
    assert ran.code == 2 and "Class 8 is 'ship' to the student, but 'lorry' to the images" in ran.err


def test_eval_from_another_folder_is_told_of_root(
    scns: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(teacher(), tmp_path / "run")
    kept = tmp_path / "run" / "recipe.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "root": "images"}))
    monkeypatch.chdir(tmp_path)
    for words in (("eval", "run"), ("embed", "run", "--out", "e.npy")):
        ran = scns(*words)
        assert ran.code == 2 and "The root 'images' does not exist" in ran.err and "--root says where" in ran.err
    ran = scns("eval", "run", "--root", "nowhere")
    assert ran.code == 2 and "The root 'nowhere' does not" in ran.err and "--root says" not in ran.err


def test_eval_of_what_is_no_finished_run(scns: Callable, tmp_path: Path) -> None:
    for words in (("eval",), ("embed", "--out", "e.npy"), ("export", "--to", "s.pt2")):
        ran = scns(words[0], tmp_path, *words[1:])
        assert ran.code == 2 and "is no run folder: it has no recipe.json" in ran.err
    shutil.copy(teacher() / "recipe.json", tmp_path)
    ran = scns("eval", tmp_path)
    assert ran.code == 2 and "is not finished, so it has no student yet" in ran.err


def test_embeddings_are_the_pooled_features(scns: Callable, tmp_path: Path) -> None:
    out, labels = tmp_path / "e.npy", tmp_path / "l.npy"
    ran = scns("embed", teacher(), "--data", "cifar10-mini", "--split", "test", "--out", out, "--labels", labels)
    assert ran.code == 0 and "2,000 x 64, float32" in ran.out
    images, student = datasets.load("cifar10-mini", split="test"), load_student(teacher())
    found = np.load(out)
    assert found.shape == (2000, 64) and found.dtype == np.float32
    some = torch.tensor([0, 249, 250, 1999])
    with torch.no_grad():
        pixels = augment.normalise(images.pixels[some], student.mean, student.std)
        expected = student.network(pixels, features=True).embedding
    assert np.allclose(found[some], expected.numpy(), atol=1e-5)
    assert np.array_equal(np.load(labels), images.labels.numpy())
    own = scns("embed", teacher(), "--out", out)
    assert own.code == 0 and np.load(out).shape == (120, 64)
    ran = scns("embed", teacher(), "--out", tmp_path / "e.txt")
    assert ran.code == 2 and "must end in .npy" in ran.err
    ran = scns("embed", teacher(), "--out", out, "--labels", tmp_path / "." / out.name)
    assert ran.code == 2 and "cannot hold both the embeddings and the labels" in ran.err
    assert np.load(out).shape == (120, 64)
    ran = scns("embed", teacher(), "--data", "cifar11", "--out", out)
    assert ran.code == 2 and "Unknown data set 'cifar11'" in ran.err


ELSEWHERE = """
import sys
sys.modules["scns"] = None  # importing it is an error
import json, numpy, torch
from safetensors import safe_open
from safetensors.torch import load_file
images = torch.from_numpy(numpy.load("images.npy"))
program = torch.export.load("s.pt2").module()
weights, fc = load_file("s.safetensors"), torch.nn.Linear(64, 10)
fc.load_state_dict({"weight": weights["fc.weight"], "bias": weights["fc.bias"]})
bn = torch.nn.BatchNorm2d(16)
bn.load_state_dict({key[4:]: value for key, value in weights.items() if key.startswith("bn1.")})
about = safe_open("s.safetensors", framework="pt").metadata()
told = {"logits": program(images).tolist(), "one": program(images[:1]).tolist(), "fc": fc.weight.tolist(),
        "classes": json.loads(about["classes"]), "keys": sorted(weights)}
print(json.dumps(told))
"""


def test_an_exported_student_is_used_without_scns(scns: Callable, tmp_path: Path) -> None:
    for name in ("s.safetensors", "s.pt2"):
        ran = scns("export", teacher(), "--to", tmp_path / name)
        assert ran.code == 0 and "10 classes" in ran.out and f"images: float32 [n, 3, {SIZE}, {SIZE}]" in ran.out
    student = load_student(teacher())
    images = torch.randn(5, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    np.save(tmp_path / "images.npy", images.numpy())
    ran = subprocess.run([sys.executable, "-c", ELSEWHERE], cwd=tmp_path, env=ALONE, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    with torch.no_grad():
        logits = student.network(images)
    assert torch.allclose(torch.tensor(told["logits"]), logits, atol=1e-5)
    assert torch.allclose(torch.tensor(told["one"]), logits[:1], atol=1e-5)
    own = {name for name in student.network.state_dict() if not name.endswith("num_batches_tracked")}
    assert set(told["keys"]) - own <= {name for name in student.network.state_dict()} and own <= set(told["keys"])
    assert told["fc"] == student.network.fc.weight.tolist()
    assert told["classes"] == list(student.classes)


def test_the_lines_that_an_export_prints_are_the_students_logits(
    scns: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line, with names that need quoting; onnxruntime gives a list of outputs."""
    images = torch.randn(5, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = load_student(teacher()).network(images)
    monkeypatch.setattr("scns.export._onnx", lambda network, student, path: path.write_text(""))
    monkeypatch.setattr("scns.export.find_spec", lambda name: name)
    outputs = SimpleNamespace(run=lambda names, given: [wanted[: len(given["images"])]])
    known = {"torch": torch, "scns": package, "safetensors": safetensors, "images": images}
    for ending in (".safetensors", ".pt2", ".onnx"):
        line = scns("export", teacher(), "--to", tmp_path / f"it's{ending}").out.splitlines()[1]
        names = {**known, "onnxruntime": SimpleNamespace(InferenceSession=lambda path: outputs)}
        exec(line, names)
        assert torch.allclose(names["logits"], wanted, atol=1e-5), line


def test_exports_that_cannot_be_are_told(scns: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = scns("export", teacher(), "--to", tmp_path / "s.pth")
    assert ran.code == 2 and "its name must end in .safetensors, .pt2, .onnx" in ran.err
    monkeypatch.setattr("scns.export.find_spec", lambda name: None)
    ran = scns("export", teacher(), "--to", tmp_path / "s.onnx")
    assert ran.code == 2 and "needs onnx and onnxscript; pip install onnx onnxscript." in ran.err
    for name in ("s.safetensors", "s.pt2"):
        with disk_of(50_000):
            ran = scns("export", teacher(), "--to", tmp_path / name)
        assert ran.code == 2 and f"File too large '{tmp_path / name}'; check the path" in ran.err
        assert ran.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(find_spec("onnx") is None or find_spec("onnxscript") is None, reason="needs onnx and onnxscript")
def test_an_onnx_file_has_a_free_batch_and_the_names(tmp_path: Path) -> None:
    import onnx
    from onnx.reference import ReferenceEvaluator

    export(load_student(teacher()), tmp_path / "s.onnx")
    model = onnx.load(tmp_path / "s.onnx")
    onnx.checker.check_model(model)
    (given,), (told,) = model.graph.input, model.graph.output
    assert (given.name, told.name) == ("images", "logits")
    assert given.type.tensor_type.shape.dim[0].dim_param and given.type.tensor_type.shape.dim[2].dim_value == SIZE
    images = torch.randn(3, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = load_student(teacher()).network(images).numpy()
    (found,) = ReferenceEvaluator(model).run(None, {"images": images.numpy()})
    assert np.allclose(found, logits, atol=1e-4)


def test_a_split_that_is_not_there_is_no_matter_of_the_root(
    scns: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    shutil.copytree(teacher(), tmp_path / "run")
    told = (tmp_path / "run" / "recipe.json").read_text().replace(str(root()), "elsewhere")
    (tmp_path / "run" / "recipe.json").write_text(told)
    run, out = tmp_path / "run", tmp_path / "x.npy"
    code, _, err = scns("embed", run, "--data", "cifar10-mini", "--split", "foo", "--out", out)
    assert code == 2 and "foo" in err and "--root says where the data lie" not in err
    code, _, err = scns("embed", run, "--out", out)
    assert code == 2 and "The run's root is seen from this folder" in err


# --- what is shown


def test_a_terminal_shows_a_bar_and_the_numbers_of_the_last_epoch(tmp_path: Path) -> None:
    console = Console(force_terminal=True, width=110, file=io.StringIO())
    shown = []

    class Look(Watch):
        def epoch(self, run, line) -> None:  # type: ignore[no-untyped-def]
            display.epoch(run, line)
            with console.capture() as capture:
                console.print(*display.bars.get_renderables())
            shown.append(capture.get())
            assert facts(run, line) in re.sub(r"\x1b\[[0-9;]*m", "", shown[-1])

    display = Display(console)
    watch = Look()
    watch.start, watch.step = display.start, display.step  # type: ignore[method-assign]
    wanted = recipe("ft", epochs=2, teacher=str(teacher()), arguments={"stage_epochs": 1})
    with display.bars:
        run = single(wanted, tmp_path / "bars", watch=watch)
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", text) for text in shown]
    assert all_epochs(run) == 3 and len(plain) == 3
    assert "bars  paraphraser 1/1" in plain[0] and "bars  epoch 1/2" in plain[1] and "bars  epoch 2/2" in plain[2]
    assert "ft " in plain[2] and "images/s" in plain[2]


def test_every_bar_of_a_pack_moves_within_an_epoch(tmp_path: Path) -> None:
    moved: dict[str, list[float]] = {"one": [], "two": []}

    class Look(Watch):
        def step(self, run, epoch, done, total) -> None:  # type: ignore[no-untyped-def]
            display.step(run, epoch, done, total)
            task = display.bars.tasks[display.tasks[id(run)]]
            moved[run.folder.path.name].append(task.completed)

    display = Display(Console(force_terminal=True, width=110, file=io.StringIO()))
    watch = Look()
    watch.start, watch.epoch = display.start, display.epoch  # type: ignore[method-assign]
    wanted = [(recipe(epochs=1, seed=seed, data_seed=0), tmp_path / name) for seed, name in enumerate(moved)]
    fit_packed(wanted, watch=watch)
    assert all(0 < places[0] < 1 for places in moved.values())


def test_a_long_look_at_images_is_told_of_and_a_short_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of a large network, and what a teacher says of all images, take minutes on a CPU."""
    now = 0.0
    monkeypatch.setattr("scns.watch.time.perf_counter", lambda: now)
    told = io.StringIO()
    display = Display(Console(force_terminal=True, width=110, file=io.StringIO()))
    watch = Several([display, Lines(Console(file=told, width=110))])
    bars = []
    for of, each in (("a: test images", 0.1), ("b: test images", 0.5), ("the teacher: training images", 40.0)):
        for done in (1000, 2000, 3000, 4000, 5000):
            watch.look(of, done, 5000)
            bars.append([(task.description, task.completed) for task in display.bars.tasks])
            now += each
    slow, slower = "b: test images", "the teacher: training images"
    assert bars == [[]] * 5 + [[], [], [], [(slow, 4000)], []] + [[], *[[(slower, n)] for n in (2000, 3000, 4000)], []]
    assert told.getvalue() == "the teacher: training images, 3,000 of 5,000 seen\n"
    watch.look("a: test images", 1000, 5000)  # one that was broken off has its bar taken by the next
    now += 2
    watch.look("a: test images", 2000, 5000)
    watch.look("b: test images", 1000, 5000)
    assert not display.bars.tasks


def test_what_a_teacher_and_a_memory_are_shown_before_the_first_step_is_told(tmp_path: Path) -> None:
    seen: dict[str, int] = {}

    class Seeing(Watch):
        def look(self, of: str, done: int, total: int, run=None) -> None:  # type: ignore[no-untyped-def]
            of = of if run is None else f"{run.folder.path.name}: {of}"
            assert seen.get(of, 0) < done <= total
            seen[of] = done

    taught = {"teacher": str(teacher()), "teacher_mode": "cached"}
    single(recipe("infonce", epochs=1, **taught), tmp_path / "run", watch=Seeing())
    assert seen == {"the teacher: training images": 120, "run: training images": 120, "run: test images": 60}


def test_times_are_written_as_on_a_clock() -> None:
    assert [clock(seconds) for seconds in (0.4, 59.6, 61, 3723)] == ["0:00", "1:00", "1:01", "1:02:03"]


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs tensorboard")
def test_tensorboard_has_every_epoch_once_even_after_a_kill(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    arguments = {"sampler": "class", "k": 2, "negatives": 16}
    wanted = recipe("infonce", arguments=arguments, evaluate_every=1)

    class Killed(Exception):
        pass

    class Late(TensorBoard):
        """Dies when the second epoch is in the events, but in no checkpoint."""

        def epoch(self, run, line) -> None:  # type: ignore[no-untyped-def]
            super().epoch(run, line)
            if line["epoch"] == 2:
                raise Killed

    with pytest.raises(Killed):
        single(wanted, out, watch=Late())
    time.sleep(1.1)  # event files are named after the second
    with watching(Console(file=io.StringIO()), False, True) as watch:
        single(wanted, out, watch=watch)
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    for tag, key in (("loss/ce", "ce"), ("loss/infonce", "infonce"), ("accuracy/test", "test"), ("lr", "lr")):
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert [step for step, _ in found] == [1, 2, 3]
        assert [value for _, value in found] == pytest.approx([line[key] for line in log], rel=1e-5)
    pictures = events.Images("negatives (anchor at the left)")
    assert [picture.step for picture in pictures] == [1, 3]
    assert (pictures[0].width, pictures[0].height) == (9 * (SIZE + 4), 6 * (SIZE + 4))


@pytest.mark.skipif(
    find_spec("tensorboard") is None or not Path("/proc").is_dir(), reason="needs tensorboard and /proc"
)
def test_events_that_cannot_be_written_are_told_by_their_path(scns: Callable, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(teacher(), out)
    (out / "result.json").unlink()
    (out / "tensorboard").symlink_to("/proc")  # where not even root makes a file
    ran = scns("train", out / "recipe.json", "--out", out)
    assert ran.code == 2 and f" '{out}/tensorboard/events" in ran.err  # not b'...', as TensorBoard has it


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs tensorboard")
def test_events_that_the_disk_has_no_room_for_are_told(scns: Callable, tmp_path: Path) -> None:
    out = tmp_path / "run"

    class Full(TensorBoard):
        def _write(self, run, line) -> None:  # type: ignore[no-untyped-def]
            events = next((run.folder.path / "tensorboard").iterdir())
            with disk_of(events.stat().st_size):
                super()._write(run, line)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watches, "TensorBoard", Full)
        words = [word for word in small() if word != "--no-tensorboard"]
        ran = scns("train", "mini-ce", *words, "--epochs", 1, "--out", out)
    assert ran.code == 2 and "Traceback" not in ran.err
    assert f"The events of TensorBoard cannot be written to '{out}'" in ran.err and "checkpoint is intact" in ran.err


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs tensorboard")
def test_a_run_with_all_negatives_has_no_picture_of_them(scns: Callable, tmp_path: Path) -> None:
    words = [word for word in small() if word != "--no-tensorboard"]
    out = tmp_path / "run"
    ran = scns("train", "mini-uniform", *words, "--set", "method.sampler=all", "--epochs", 1, "--out", out)
    assert ran.code == 0 and (out / "result.json").exists() and list((out / "tensorboard").iterdir())


def test_the_picture_shows_anchors_and_their_negatives(tmp_path: Path) -> None:
    run = single(recipe("infonce", epochs=1, arguments={"negatives": 16}), tmp_path / "run")
    picture = TensorBoard().picture(run, run.method.sampler, 1)
    tile, inner, next_inner = SIZE + 4, slice(2, SIZE + 2), slice(SIZE + 6, 2 * SIZE + 6)  # two pixels around each
    assert picture.shape == (3, 6 * tile, 9 * tile) and picture.dtype == np.uint8
    anchors = torch.linspace(0, 119, 6).long()
    drawn = run.method.sampler.sample(anchors, 8, epoch=1)
    images = run.data.train.pixels.numpy()
    assert np.array_equal(picture[:, inner, inner], images[0]) and (picture[:, :2, :tile] == 0).all()
    assert np.array_equal(picture[:, next_inner, next_inner], images[drawn[1, 0]])
    assert (picture[:, tile : tile + 2, tile : 2 * tile] == 255).all()
