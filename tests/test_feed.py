"""Images that stay on the host: the same run gives the same weights, and subsets of a mapped set copy nothing."""

import gc
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_runs import equal, recipe, single, teacher, weights
from scns import room
from scns.ahead import Ahead
from scns.data import Images, Mapped
from scns.errors import InputError
from scns.feed import Feed
from scns.run import Run, load_data
from scns.train import Stopped, Watch, fit_packed

CPU = torch.device("cpu")


@pytest.fixture
def images() -> Images:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (50, 3, 8, 8), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.arange(50) % 5, tuple("abcde"), (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))


def test_images_on_the_host_are_the_same_images(images: Images) -> None:
    host = images.on_host()
    assert isinstance(host.pixels, Mapped) and host.pixels.whole is images.pixels and host.on_host() is host
    index = torch.tensor([7, 7, 0, 49])
    for one, other in (
        (images, host),
        (images.subset(index), host.subset(index)),
        *zip(images.split(0.4), host.split(0.4), strict=True),
    ):
        assert torch.equal(one.take(slice(None)), other.take(slice(None))) and torch.equal(one.labels, other.labels)
        assert other.pixels.whole is images.pixels  # type: ignore[union-attr]
        assert len(one) == len(other) and one.size == other.size
    assert torch.equal(host.take(index), images.pixels[index])
    assert isinstance(host.to("cpu").pixels, Mapped)


def test_a_feed_holds_the_samples_of_each_batch_in_turn(images: Images) -> None:
    fed = Feed(images.on_host().subset(torch.arange(49, -1, -1)), 6)
    batches = [torch.tensor([3, 1, 4, 1, 5, 9]), torch.tensor([0]), torch.tensor([49, 2, 2])]
    for _ in range(2):  # a feed can begin again, also before all was taken
        fed.begin(batches)
        fed.supply()
        assert torch.equal(fed.pixels[fed.slot[batches[0]]], images.pixels[49 - batches[0]])
        fed.begin(batches)
        for batch in batches:
            place = fed.pixels.data_ptr()
            fed.supply()
            assert torch.equal(fed.pixels[fed.slot[batch]], images.pixels[49 - batch])
            assert torch.equal(fed.pixels[fed.slot[batch.flip(0)[:2]]], images.pixels[49 - batch.flip(0)[:2]])
            assert fed.pixels.data_ptr() == place


def test_what_fails_in_the_reading_thread_is_raised() -> None:
    def read(job: str, into: torch.Tensor) -> int:
        raise OSError(5, "Input/output error", job)

    ahead = Ahead(read, (2, 2), torch.uint8, CPU)
    ahead.start("pixels.safetensors")
    with pytest.raises(OSError, match="Input/output error"):
        ahead.take()


METHODS: dict[str, dict[str, Any]] = {
    "ce": {"validation": 0.2, "evaluate_every": 1},
    "infonce": {"arguments": {"sampler": "uniform", "negatives": 16, "lm_weight": 0.1}},
    "ce-lm": {},  # companions
    "cka": {"batch": 10},  # an order of its own, companions that depend on the batch, a live teacher
    "kld": {},  # a teacher that looks ahead
    "at": {},  # a teacher that is asked in the step
}


@pytest.mark.parametrize("method", METHODS)
def test_weights_are_the_same_bits_wherever_the_pixels_lie(tmp_path: Path, method: str) -> None:
    taught = {"teacher": str(teacher())} if method in ("cka", "kld", "at") else {}
    wanted = recipe(method, **{"epochs": 2, **METHODS[method], **taught})
    runs = [single(replace(wanted, data_on=where), tmp_path / where) for where in ("device", "host")]
    assert isinstance(runs[1].data.train.pixels, Mapped) and not isinstance(runs[0].data.train.pixels, Mapped)
    assert equal(weights(tmp_path / "device"), weights(tmp_path / "host"))
    assert [{**line, "seconds": 0} for line in runs[0].history] == [{**line, "seconds": 0} for line in runs[1].history]


def test_a_run_stopped_on_the_host_goes_on_on_the_device(tmp_path: Path) -> None:
    class StopAt(Watch):
        def step(self, run: Run, epoch: int, done: int, total: int) -> None:
            if (epoch, done) == (2, 2):
                os.kill(os.getpid(), signal.SIGTERM)

    wanted = recipe("ce-lm", epochs=2)
    single(wanted, tmp_path / "whole")
    for first, second in (("host", "device"), ("device", "host")):
        out = tmp_path / f"{first}-{second}"
        with pytest.raises(Stopped):
            single(replace(wanted, data_on=first), out, watch=StopAt())
        single(replace(wanted, data_on=second), out)
        assert equal(weights(tmp_path / "whole"), weights(out))


def test_packed_runs_share_a_feed(tmp_path: Path) -> None:
    wanted = recipe("ce", epochs=1, data_on="host")
    jobs = [(replace(wanted, seed=seed, data_seed=0), tmp_path / f"packed-{seed}") for seed in (0, 1)]
    fit_packed(jobs)  # type: ignore[arg-type]
    for each, out in jobs:
        single(replace(each, data_on="device"), tmp_path / f"alone-{each.seed}")
        assert equal(weights(out), weights(tmp_path / f"alone-{each.seed}"))


def test_where_pixels_lie_is_chosen_by_the_room_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from scns import run

    wanted = recipe(size=32)
    data = load_data(wanted, CPU)
    assert data.note == "" and not isinstance(data.train.pixels, Mapped)
    for free, host in ((10**12, False), (10**6, True)):
        monkeypatch.setattr(room, "free", lambda device, free=free: free)
        found, note = run._on_host(wanted, data.train, data.test, torch.device("cuda"))
        assert found is host and bool(note) is host
    assert note == (
        "553.0 kB of pixels are more than half of the 1.0 MB that cuda has free: they stay on the host and are sent "
        "batch by batch (data_on=host)."
    )
    assert run._on_host(replace(wanted, data_on="device"), data.train, data.test, torch.device("cuda")) == (False, "")


def test_the_choice_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scns import run

    class Notes(Watch):
        def note(self, sentence: str) -> None:
            said.append(sentence)

    said: list[str] = []
    monkeypatch.setattr(run, "_on_host", lambda *given: (True, "They stay on the host."))
    single(recipe(epochs=1), tmp_path / "run", watch=Notes())
    assert said == ["They stay on the host."]


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(InputError, match="Unknown data_on 'hsot'; did you mean host"):
        recipe(data_on="hsot")


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["ce", "ce-lm", "kld"])
def test_captured_steps_read_the_same_pixels(tmp_path: Path, method: str) -> None:
    gc.collect()
    taught = {"teacher": str(teacher())} if method == "kld" else {}
    wanted = recipe(method, epochs=2, device="cuda", deterministic=True, precision="fp32", **taught)
    for where in ("device", "host"):
        single(replace(wanted, data_on=where), tmp_path / where)
    assert equal(weights(tmp_path / "device"), weights(tmp_path / "host"))
