"""Students that start from a file of weights, and students that see their images at another size."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine_runs import SIZE, equal, recipe, root, single, teacher, weights
from scns import augment, datasets, models, runs
from scns.errors import InputError
from scns.features import Batch
from scns.teacher import Teacher, load_network


def file_of(path: Path, network: str = "resnet8", classes: int = 10) -> Path:
    torch.manual_seed(3)
    torch.save(models.build(network, classes).state_dict(), path)
    return path


def test_weights_are_where_training_starts(tmp_path: Path) -> None:
    """A second epoch from the first one's weights is not the first again, and the result says where it began."""
    trained = teacher() / "model.safetensors"
    begun = single(recipe(weights=str(trained), epochs=1, lr=1e-12), tmp_path / "begun")
    assert all(
        torch.allclose(value, begun.student.state_dict()[name], atol=1e-6)
        for name, value in load_file(trained).items()
        if "running" not in name
    )
    assert begun.result["weights"] == "model.safetensors"
    fresh = single(recipe(epochs=1, lr=1e-12), tmp_path / "fresh")
    assert fresh.result["weights"] == "random"
    assert not torch.allclose(fresh.student.state_dict()["fc.weight"], load_file(trained)["fc.weight"])


def test_a_classifier_of_other_classes_is_left_out_and_said(tmp_path: Path) -> None:
    path = file_of(tmp_path / "w.pth", classes=1000)
    run = single(recipe(weights=str(path), epochs=1, lr=1e-12), tmp_path / "run")
    assert run.result["weights"] == "w.pth without its classifier for 1000 classes"
    given, state = torch.load(path, weights_only=True), run.student.state_dict()
    assert torch.allclose(state["conv1.weight"], given["conv1.weight"], atol=1e-6) and len(state["fc.weight"]) == 10


def test_a_run_from_weights_resumes_to_the_same_bits(tmp_path: Path) -> None:
    wanted = recipe(weights=str(file_of(tmp_path / "w.pth")), epochs=2)
    single(wanted, tmp_path / "whole")
    single(replace(wanted, epochs=1), tmp_path / "cut")
    for name in ("result.json", "model.safetensors"):
        (tmp_path / "cut" / name).unlink()
    kept = json.loads((tmp_path / "cut" / "recipe.json").read_text())
    (tmp_path / "cut" / "recipe.json").write_text(json.dumps({**kept, "epochs": 2}))
    run = single(wanted, tmp_path / "cut")
    assert equal(weights(tmp_path / "cut"), weights(tmp_path / "whole")) and run.result["weights"] == "w.pth"


def test_a_finished_run_needs_its_file_no_more(tmp_path: Path) -> None:
    path = file_of(tmp_path / "w.pth")
    wanted = recipe(weights=str(path), epochs=1)
    before = single(wanted, tmp_path / "run").result
    path.unlink()
    assert single(wanted, tmp_path / "run").result == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, r"weights=.*w\.pth is no file; give a \.safetensors"),
        (lambda path: path.write_text("no weights"), "cannot be read as weights"),
        (lambda path: file_of(path, "resnet14"), "does not fit this network"),
        (lambda path: file_of(path, "wrn-16-1"), "does not fit this network"),
        (lambda path: file_of(path, "resnet8x4", 1000), "does not fit this network"),
    ],
)
def test_weights_that_cannot_be(make: Any, message: str, tmp_path: Path) -> None:
    make(tmp_path / "w.pth")
    with pytest.raises(InputError, match=message):
        single(recipe(weights=str(tmp_path / "w.pth")), tmp_path / "run")


def test_published_weights_of_t2_teachers_fit() -> None:
    """A 7x7-stem network of 1,000 classes gives all but its classifier to one of 200."""
    for name in ("resnet34-imagenet", "densenet121-imagenet"):
        with torch.device("meta"):
            big, small = models.build(name, 1000).state_dict(), models.build(name, 200).state_dict()
        differing = {key for key in big if big[key].shape != small[key].shape}
        assert big.keys() == small.keys() and {key.split(".")[0] for key in differing} <= {"fc", "classifier"}


# --- images at another size


def test_a_network_sees_images_at_its_size() -> None:
    torch.manual_seed(0)
    network, images = models.build("resnet8", 10).eval(), torch.randn(3, 3, 32, 32)
    own = network(images)
    network.input_size = 48
    larger = torch.nn.functional.interpolate(images, size=48, mode="bilinear", align_corners=False, antialias=True)
    seen = network(images)
    network.input_size = 0
    assert torch.allclose(network(larger), seen, atol=1e-5) and not torch.allclose(seen, own)
    assert augment.resize(images, 0) is images and augment.resize(images, 32) is images


def test_training_evaluating_and_teaching_at_another_size(tmp_path: Path) -> None:
    wanted = recipe(input_size=24, epochs=1)
    run = single(wanted, tmp_path / "run")
    other = single(recipe(epochs=1), tmp_path / "other")
    assert not equal(weights(tmp_path / "run"), weights(tmp_path / "other"))
    assert run.member.names == other.member.names
    student = runs.load_student(tmp_path / "run")
    images = datasets.load("folder", root(), "test", size=SIZE)
    assert student.side == 24 and student.size == images.size == SIZE
    assert runs.evaluate(student, images) == run.result["test"]
    # As a teacher it looks at what it was trained on, unless told otherwise.
    network = load_network(str(tmp_path / "run"), "", 10)
    pixels = augment.normalise(images.pixels, images.mean, images.std)
    expected = student.network(pixels)
    batch = Batch(pixels, images.labels, torch.arange(60), torch.zeros(60, dtype=torch.int64), torch.tensor(1), 60)
    with torch.no_grad():
        assert torch.allclose(Teacher(network)(batch).logits, expected, atol=1e-4)
        smaller = Teacher(load_network(str(tmp_path / "run"), "", 10), size=SIZE)(batch).logits
    assert not torch.allclose(smaller, expected, atol=1e-2)
    taught = single(recipe("kld", teacher=str(tmp_path / "run"), epochs=1), tmp_path / "taught")
    assert taught.teacher is not None and taught.teacher.size == 24


def test_a_size_must_be_a_number_from_0() -> None:
    with pytest.raises(InputError, match="input_size=-1 must be at least 0"):
        recipe(input_size=-1)
