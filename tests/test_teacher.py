"""The teacher: the same network whatever is done with it, live, cached or at its own size."""

import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engine_runs import SIZE, equal, place, recipe, single, teacher, weights
from scns import augment, datasets, models, step
from scns.errors import InputError
from scns.features import Batch
from scns.neighbors import NeighborTable
from scns.teacher import Teacher, bundled, load_network
from scns.train import Pack, Shelf, Stopped, Watch, fit, prepare
from scns.words import class_embeddings

FILE = "model.safetensors"


def test_the_cache_holds_what_the_live_teacher_says(tmp_path: Path) -> None:
    (live,) = prepare([(recipe("kld", teacher=str(teacher()), augment=False), tmp_path / "live")])
    images = live.data.train
    assert live.teacher is not None
    whole = live.teacher.see(augment.normalise(images.pixels, images.mean, images.std))
    logits, embeddings = live.teacher.embed(images, chunk=50)
    assert torch.allclose(logits, whole.logits, atol=1e-5) and torch.allclose(embeddings, whole.embedding, atol=1e-5)
    assert live.teacher.logits is None
    live.teacher.cache(images, ("logits",))
    assert torch.equal(live.teacher.logits, live.teacher.embed(images)[0])


def test_the_teacher_sees_images_normalised_as_those_it_learnt(tmp_path: Path) -> None:
    """Its student's data may have another mean: folders and shards take that of their own training images."""
    (run,) = prepare([(recipe("kld", teacher=str(teacher()), augment=False), tmp_path / "run")])
    images, frozen = run.data.train, run.teacher
    other = replace(images, mean=(0.1, 0.5, 0.3), std=(0.5, 0.1, 0.3))
    assert frozen is not None and frozen.again is None
    logits, embeddings = frozen.embed(images)
    assert all(torch.equal(*pair) for pair in zip((logits, embeddings), frozen.embed(other), strict=True))
    seen = frozen.takes(other).see(augment.normalise(other.pixels, other.mean, other.std))
    torch.testing.assert_close(seen.logits, logits, atol=1e-4, rtol=1e-4)
    every, count = torch.arange(len(other)), len(other)
    pixels = augment.normalise(other.pixels, other.mean, other.std)
    batch = Batch(pixels, other.labels, every, every, torch.ones(()).long(), count)
    torch.testing.assert_close(frozen(batch).logits, logits, atol=1e-4, rtol=1e-4)
    weights_alone = place() / "weights.pth"
    torch.save(run.student.state_dict(), weights_alone)
    unknown = Teacher(load_network(str(weights_alone), "resnet8", 10))
    assert unknown.moments is None and unknown.takes(other).again is None


def test_a_run_does_not_go_on_with_another_teacher(tmp_path: Path) -> None:
    """Half of it would have been taught by each."""
    shutil.copytree(teacher(), tmp_path / "teacher")
    wanted, seen = recipe("kld", teacher=str(tmp_path / "teacher"), epochs=2), []

    class Interrupt(Watch):
        def step(self, run: Any, epoch: int, done: int, total: int) -> None:
            seen.append(done)
            if len(seen) == 5:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        single(wanted, tmp_path / "run", watch=Interrupt())
    kept = load_file(tmp_path / "teacher" / FILE)
    with safe_open(tmp_path / "teacher" / FILE, "pt") as file:
        told = file.metadata()
    save_file({name: value * 1.01 for name, value in kept.items()}, tmp_path / "teacher" / FILE, told)
    with pytest.raises(InputError, match=r"is of another teacher than '.*teacher' is now, or saw it otherwise; put"):
        single(wanted, tmp_path / "run")
    save_file(kept, tmp_path / "teacher" / FILE, told)
    assert single(wanted, tmp_path / "run").result


@pytest.mark.parametrize("method", ["kld", "rkd"])
def test_without_augmentation_a_cached_teacher_teaches_as_a_live_one(method: str, tmp_path: Path) -> None:
    taught = {"teacher": str(teacher()), "augment": False, "epochs": 1}
    live = single(recipe(method, **taught), tmp_path / "live")
    cached = single(recipe(method, teacher_mode="cached", **taught), tmp_path / "cached")
    assert cached.teacher is not None and cached.teacher.logits is not None
    for name, value in live.student.state_dict().items():
        assert torch.allclose(cached.student.state_dict()[name], value, rtol=1e-3, atol=1e-4), name
    assert cached.history[0]["loss"] == pytest.approx(live.history[0]["loss"], rel=1e-4)


def test_with_augmentation_they_differ(tmp_path: Path) -> None:
    taught = {"teacher": str(teacher()), "epochs": 1}
    live = single(recipe("kld", **taught), tmp_path / "live")
    cached = single(recipe("kld", teacher_mode="cached", **taught), tmp_path / "cached")
    assert abs(cached.history[0]["kld"] / live.history[0]["kld"] - 1) > 1e-3


@pytest.mark.parametrize("method", ["kld", "infonce"])
def test_looking_ahead_teaches_as_a_teacher_asked_batch_by_batch(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught = {"teacher": str(teacher()), "epochs": 2}
    ahead = single(recipe(method, **taught), tmp_path / "ahead")
    monkeypatch.setattr("scns.teacher.TABLE_BYTES", 0)
    asked = single(recipe(method, **taught), tmp_path / "asked")
    for one, other in zip(ahead.history, asked.history, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)


def test_the_teacher_looks_at_every_view_of_the_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "LOOK_PIXELS", 70 * SIZE * SIZE)  # does not divide the number of images
    pack = Pack(prepare([(recipe("kld", teacher=str(teacher())), tmp_path / "run")]))
    next(pack.launch(Watch()))
    work, images = pack.step, pack.data.train
    assert len(images) % work.ahead_sizes()[0] and work.told is not None and work.teacher is not None
    pixels = augment.view(images, torch.arange(len(images)), work.dy, work.dx, work.flip, work.pad)[0]
    whole = work.teacher.see(pixels)
    assert torch.allclose(work.told.logits, whole.logits, atol=1e-5)
    assert torch.allclose(work.told.embedding, whole.embedding, atol=1e-5)
    assert not torch.allclose(whole.logits, work.teacher.embed(images)[0], atol=1e-2)  # views are not the images


def test_runs_that_share_a_teacher_ask_it_once_about_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    whole = Teacher.embed
    monkeypatch.setattr(Teacher, "embed", lambda self, images, chunk=0: asked.append(1) or whole(self, images, chunk))
    near = {"sampler": "instance", "k": 20, "negatives": 16}
    first, second = prepare(
        [
            (recipe("infonce", teacher=str(teacher()), arguments=near, seed=s, data_seed=0), tmp_path / str(s))
            for s in (0, 1)
        ]
    )
    assert first.teacher is second.teacher and len(asked) == 1  # for both neighbour tables, and to fill both banks
    assert torch.equal(first.method.sampler.indices, second.method.sampler.indices)


@pytest.mark.parametrize("method", ["at", "ft", "ab"])
def test_a_cache_is_refused_by_methods_on_maps(method: str, tmp_path: Path) -> None:
    cached = {"teacher": str(teacher()), "teacher_mode": "cached"}
    sentence = "needs the teacher's feature maps, which are not cached; use teacher_mode=live"
    with pytest.raises(InputError, match=sentence):
        single(recipe(method, **cached), tmp_path / "run")
    with pytest.raises(InputError, match=sentence):  # whoever has filled the cache before
        prepare([(recipe("kld", **cached), tmp_path / "one"), (recipe(method, **cached), tmp_path / "two")])


def test_a_teacher_sees_images_at_its_own_size(tmp_path: Path) -> None:
    network = load_network(str(teacher()), "", 10)
    images = datasets.load("cifar10-mini", split="test").subset(torch.arange(4))
    pixels = augment.normalise(images.pixels, images.mean, images.std)
    larger = F.interpolate(pixels, size=64, mode="bilinear", align_corners=False, antialias=True)
    seen = Teacher(network, size=64).see(pixels)
    with torch.no_grad():
        expected = network(larger, features=True)
    assert torch.allclose(seen.logits, expected.logits, rtol=1e-4, atol=1e-4) and seen.maps[0].shape[2:] == (64, 64)
    assert Teacher(network, size=32).see(pixels).maps[0].shape[2:] == (32, 32)
    run = single(recipe("kld", teacher=str(teacher()), teacher_size=48, epochs=1, subset=40), tmp_path / "run")
    assert run.teacher is not None and run.teacher.size == 48 and run.history[0]["kld"] > 0


def test_training_leaves_the_teacher_as_it_was(tmp_path: Path) -> None:
    before = load_file(teacher() / FILE)
    run = single(recipe("fitnet", teacher=str(teacher()), epochs=1), tmp_path / "run")
    assert run.teacher is not None
    network = run.teacher.network
    after = {name: value for name, value in network.state_dict().items() if not name.endswith("num_batches_tracked")}
    assert equal(after, before) and equal(load_file(teacher() / FILE), before)
    assert not any(module.training for module in network.modules())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in network.parameters())


def test_a_teacher_may_name_neighbours_and_nothing_else(tmp_path: Path) -> None:
    arguments = {"sampler": "instance", "k": 5, "negatives": 16}
    named = recipe("infonce", epochs=1, arguments=arguments, teacher=str(teacher()))
    alone = single(named.with_settings(["distil=false"]), tmp_path / "alone")
    taught = single(named, tmp_path / "taught")
    assert alone.method.teacher_head is None and taught.method.teacher_head is not None
    assert not any(name.startswith("method.teacher") for name in weights(tmp_path / "alone"))
    assert torch.equal(alone.method.sampler.indices, taught.method.sampler.indices)


def test_without_words_classes_are_near_whose_centroids_are(tmp_path: Path) -> None:
    arguments = {"sampler": "class", "k": 2, "negatives": 8}
    wanted = recipe("infonce", epochs=1, teacher=str(teacher()), arguments=arguments, words="")
    run = single(wanted, tmp_path / "run")
    images = run.data.train
    centroids = class_embeddings(run.teacher.answers(images)[1], images.labels)  # type: ignore[union-attr]
    near = NeighborTable.build(centroids, k=2).indices
    assert torch.equal(run.method.sampler.classes, near.long())  # type: ignore[union-attr, arg-type]
    strange = tmp_path / "words.txt"
    strange.write_text("zebra 1.0 2.0\ncat 3.0 4.0\n")
    unknown = replace(wanted, words=str(strange))
    with pytest.raises(
        InputError, match=r"any word of 9 of 10 labels.*on_missing=.uniform.*words=FILE, or words= .empty. for centr"
    ):
        single(unknown, tmp_path / "other")
    strange.write_text("zebra 1.0 2.0\n")
    with pytest.raises(InputError, match=r"10 of 10 labels.* source\. In a recipe: words=FILE, or words= .empty."):
        single(replace(unknown, on_missing="uniform"), tmp_path / "other")
    strange.write_text("zebra 1.0 2.0\ncat 3.0 4.0\n")
    alike = single(replace(unknown, on_missing="uniform"), tmp_path / "alike").method.sampler
    assert torch.equal(alike.integers, alike.integers[:, :1].expand(-1, 2))  # type: ignore[union-attr, index]


def test_a_shelf_is_shared_by_calls_and_changes_nothing(tmp_path: Path) -> None:
    arguments = {"sampler": "instance", "k": 5, "negatives": 16}
    taught = recipe("infonce", epochs=1, arguments=arguments, teacher=str(teacher()), teacher_mode="cached")
    shelf = Shelf()
    first, second = (fit(taught, tmp_path / name, shelf=shelf) for name in ("first", "second"))
    assert first.teacher is second.teacher and first.data is second.data and shelf.teacher(taught) is first.teacher
    alone = fit(taught, tmp_path / "alone")
    assert alone.teacher is not first.teacher
    assert equal(weights(tmp_path / "first"), weights(tmp_path / "alone"))
    assert equal(weights(tmp_path / "second"), weights(tmp_path / "alone"))
    other = shelf.data(taught.with_settings(["labelled=3"]))
    assert other is not first.data and int((other.train.labels >= 0).sum()) == 30
    assert shelf.teacher(recipe()) is None
    again = taught.with_settings(["seed=1"])  # another order of the same images
    assert shelf.data(again) is first.data and shelf.teacher(again) is first.teacher
    for parted in ("validation=0.2", "subset=20", "labelled=3"):  # by the seed
        one, two = (shelf.data(each.with_settings([parted])).train for each in (taught, again))
        assert not (torch.equal(one.pixels, two.pixels) and torch.equal(one.labels, two.labels)), parted


def test_tables_start_alike_with_a_live_and_a_cached_teacher(tmp_path: Path) -> None:
    taught = recipe("infonce", arguments={"negatives": 16}, teacher=str(teacher()))
    live, cached = prepare([(taught, tmp_path / "live"), (replace(taught, teacher_mode="cached"), tmp_path / "cached")])
    tables = [run.method.teacher_table.features for run in (live, cached)]
    assert torch.allclose(*tables, atol=1e-5) and float(tables[0].norm()) > 0


# --- what is no teacher


def test_teachers_that_cannot_be_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="The teacher 'nowhere' does not exist; give a run folder, or a weights file"):
        load_network("nowhere", "", 10)
    with pytest.raises(InputError, match="is no finished run"):
        load_network(str(tmp_path), "", 10)
    with pytest.raises(InputError, match="is the run of a resnet8; leave teacher_network=resnet20 out"):
        load_network(str(teacher()), "resnet20", 10)
    load_network(str(teacher()), "resnet8", 10)
    with pytest.raises(InputError, match="is a file of weights: say which network with teacher_network="):
        load_network(str(teacher() / FILE), "", 10)
    with pytest.raises(InputError, match="Unknown network 'resnet9'; did you mean"):
        load_network(str(teacher() / FILE), "resnet9", 10)


def test_weights_of_another_architecture_are_told_with_their_keys() -> None:
    with pytest.raises(InputError, match=r"does not fit this network \(missing: layer1.1.conv1.weight.* and \d+ more"):
        load_network(str(teacher() / FILE), "resnet14", 10)
    with pytest.raises(InputError, match=r"missing: .*unexpected: "):
        load_network(str(teacher() / FILE), "vgg8", 10)


def test_another_number_of_classes_is_told() -> None:
    told = r"The teacher '.*teacher' knows 10 classes, but the images have 100; give one trained on the same classes\.$"
    with pytest.raises(InputError, match=told):
        load_network(str(teacher()), "", 100)


def test_the_same_classes_in_another_order_are_told(tmp_path: Path) -> None:
    names = datasets.load("cifar10-mini").names
    load_network(str(teacher()), "", 10, names)
    load_network(str(teacher()), "", 10, [f"a {name}" for name in names])  # may be the same in other words
    told = (
        r"The teacher '.*teacher' knows these classes in another order: its class 0 is 'airplane', that of the images "
        r"'truck'; number the images as its data were, or train it on these\.$"
    )
    with pytest.raises(InputError, match=told):
        load_network(str(teacher()), "", 10, names[::-1])
    weights = models.build("resnet8", 10).state_dict()
    for about in ({"classes": "ten"}, {"classes": "10"}, {}):  # a file of somebody else's
        save_file(weights, tmp_path / "other.safetensors", metadata=about)
        load_network(str(tmp_path / "other.safetensors"), "resnet8", 10, names)


@pytest.mark.parametrize(
    ("kept", "sentence"),
    [
        ('{"format": 2, "version": "9.0", "student": "resnet8"}', "was made by scns 9.0, which is newer than this one"),
        ('{"student": "resn', "recipe.json' cannot be read (Unterminated string"),
        ("[]", "recipe.json' must hold keys and values."),
    ],
)
def test_a_teacher_is_a_run_that_this_version_can_read(
    kept: str, sentence: str, scns: Callable, tmp_path: Path
) -> None:
    shutil.copytree(teacher(), tmp_path / "teacher")
    (tmp_path / "teacher" / "recipe.json").write_text(kept)
    ran = scns("train", "mini-kld", "--set", f"teacher={tmp_path / 'teacher'}", "--out", tmp_path / "run")
    assert ran.code == 2 and sentence in ran.err and ran.err.count("\n") == 1


def test_weights_cut_short_are_told(tmp_path: Path) -> None:
    cut = tmp_path / "run"
    shutil.copytree(teacher(), cut)
    (cut / FILE).write_bytes((teacher() / FILE).read_bytes()[:1000])
    with pytest.raises(InputError, match=r"model.safetensors' cannot be read as weights .cut short"):
        load_network(str(cut), "", 10)


def test_weights_of_a_file_are_those_of_the_run(tmp_path: Path) -> None:
    run, file = load_network(str(teacher()), "", 10), load_network(str(teacher() / FILE), "resnet8", 10)
    assert equal(dict(run.state_dict()), dict(file.state_dict()))
    torch.manual_seed(0)
    published = models.build("resnet8", 10)
    save_file(published.state_dict(), tmp_path / "published.safetensors")
    torch.save({"model": published.state_dict()}, tmp_path / "published.pth")
    for name in ("published.safetensors", "published.pth"):
        loaded = load_network(str(tmp_path / name), "resnet8", 10)
        assert equal(dict(loaded.state_dict()), dict(published.state_dict()))


# --- the one that comes with scns

BUNDLED = "bundled:wrn-16-2-cifar10"


def test_the_bundled_teacher_is_small_and_good() -> None:
    path = bundled("wrn-16-2-cifar10")
    assert path.stat().st_size < 2e6 and {value.dtype for value in load_file(path).values()} <= {
        torch.float16,
        torch.int64,
    }
    images = datasets.load("cifar10-mini", split="test").split(0.1)[1]
    logits, _ = Teacher(load_network(BUNDLED, "", 10)).embed(images)
    assert float((logits.argmax(1) == images.labels).float().mean()) > 0.85


def test_bundled_teachers_that_cannot_be_are_told() -> None:
    with pytest.raises(InputError, match="Unknown bundled teacher 'wrn-16-2'; did you mean wrn-16-2-cifar10"):
        load_network("bundled:wrn-16-2", "", 10)
    with pytest.raises(InputError, match="cifar10' knows 10 classes, but the images have 100"):
        load_network(BUNDLED, "", 100)
    with pytest.raises(InputError, match="bundled:wrn-16-2-cifar10 is a wrn-16-2; leave teacher_network=resnet8 out"):
        load_network(BUNDLED, "resnet8", 10)


def test_unlabelled_images_are_what_the_teacher_says(tmp_path: Path) -> None:
    """Nobody is drawn as a negative of an image that is, by its label or else by the teacher, of the same class."""
    taught = recipe("infonce", teacher=BUNDLED, teacher_mode="cached", labelled=3, subset=120)
    for sampler in ("uniform", "class", "instance"):
        k = {} if sampler == "uniform" else {"k": 2}
        chosen = replace(taught, arguments={"sampler": sampler, "negatives": 32, **k})
        (run,) = prepare([(chosen, tmp_path / sampler)])
        labels = run.data.train.labels
        assert run.teacher is not None and run.teacher.logits is not None and int((labels >= 0).sum()) == 30
        believed = torch.where(labels >= 0, labels, run.teacher.logits.argmax(1))
        anchors = torch.arange(120)
        drawn = run.method.sampler.sample(anchors, 32)
        assert not bool((believed[drawn] == believed[:, None]).any())
        positives = run.method.positives.sample(anchors)
        assert torch.equal(believed[positives[:, 0]], believed)
