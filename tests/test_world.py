"""Several processes train together: the same loss, gradients, tables and weights as one; stops and errors are agreed.

Two ranks here; four, and torchrun itself, in test_torchrun.py (make test-scale).
"""

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn

from conftest import ALONE
from engine_runs import recipe, single, teacher, weights
from scns import methods
from scns.capture import Replay
from scns.errors import AgreedError, InputError
from scns.features import Shapes
from scns.files import atomic
from scns.join import current, joined
from scns.memory import FeatureTable
from scns.methods import Setting
from scns.recipe import Recipe
from scns.run import Run, load_data
from scns.sgd import SGD
from scns.share import Share
from scns.sharedstep import SharedStep
from scns.step import Member, Step
from scns.syncnorm import synchronise
from scns.teacher import Teacher, load_network
from scns.world import World
from world_cases import CASES, Tiny, doubled, gap, pictures, trained

STEPS = 20
QUICK = ["infonce", "infonce, sharded", "infonce, its own negatives", "crd", "crd, sharded", "oim", "rkd", "sp", "cka"]
QUICK += ["ce, unlabelled", "fitnet"]
CLOSE, SUMS = 1e-9, 1e-6  # of float64 trainings; and of their sums, which are float32


class Ranks:
    """What every rank said of every job, and what it kept."""

    def __init__(self, size: int, jobs: dict[str, dict[str, Any]], where: Path) -> None:
        (where / "jobs.json").write_text(json.dumps(list(jobs.values())))
        helper = Path(__file__).with_name("world_helper.py")
        ran = subprocess.run(
            [sys.executable, "-W", "error", helper, str(size), where / "jobs.json"],
            capture_output=True,
            text=True,
            timeout=400,
            env=ALONE,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        self.where, self.size, self.names = where, size, list(jobs)
        self.words = [json.loads((where / f"{rank}.json").read_text()) for rank in range(size)]
        self.files = [load_file(where / f"{rank}.safetensors") for rank in range(size)]

    def said(self, job: str) -> list[Any]:
        return [words[self.names.index(job)] for words in self.words]

    def kept(self, job: str) -> list[dict[str, Tensor]]:
        start = f"{self.names.index(job)} "
        return [
            {name.removeprefix(start): x for name, x in file.items() if name.startswith(start)} for file in self.files
        ]


def worst(name: str, ranks: Ranks) -> dict[str, float]:
    """What differs too much from one process's training, and how much, on any rank."""
    want = trained(CASES[name], World(), STEPS)
    found = {}
    for rank, got in enumerate(ranks.kept(name)):
        gaps = gap(want, got)
        if CASES[name].sharded and rank > 0:  # a sharded table is put together on rank 0
            gaps = {key: x for key, x in gaps.items() if not key.endswith(("table.features", "table.filled", "bank"))}
        found |= {f"{key}, rank {rank}": x for key, x in gaps.items() if x > (SUMS if key == "sums" else CLOSE)}
    return found


def in_double(wanted: Recipe, out: Path) -> Run:
    with doubled():
        return single(wanted, out)


def shared_recipe(**changes: Any) -> Recipe:
    return recipe(
        "infonce", epochs=2, sync_batch_norm=True, arguments={"sampler": "uniform", "negatives": 64}, **changes
    )


def as_job(wanted: Recipe, out: Path, **more: Any) -> dict[str, Any]:
    return {"kind": "run", "recipe": asdict(wanted), "out": str(out), **more}


def all_jobs(made: Path) -> dict[str, dict[str, Any]]:
    elsewhere, blocked, empty = (made / name for name in ("elsewhere", "blocked", "empty"))
    for folder in (elsewhere / "runs" / "shared", blocked, empty):
        folder.mkdir(parents=True)
    (blocked / "runs").write_text("a file where the folder should be")
    named = {name: {"kind": "case", "name": name, "steps": STEPS} for name in QUICK}
    named["passing"] = {"kind": "passing"}
    named["run"] = as_job(shared_recipe(), made / "run")
    named["again"] = as_job(shared_recipe(), made / "run")
    named["stopped"] = as_job(shared_recipe(tables="sharded"), made / "stopped", stop=[1, 3])
    named["too many"] = as_job(recipe(batch=1), made / "too-many")
    named["on the host"] = as_job(shared_recipe(data_on="host"), made / "on-the-host")
    named["never"] = as_job(shared_recipe(tables="sharded", gather="never"), made / "never")
    named["recipes"] = as_job(recipe(), made / "recipes", changes={"1": {"lr": 0.1, "evaluate_every": 3}})
    named["blocked"] = as_job(recipe(), Path("runs/shared"), there={"0": str(made), "1": str(blocked)})
    named["elsewhere"] = as_job(recipe(), Path("runs/shared"), there={"0": str(made), "1": str(elsewhere)})
    named["data"] = as_job(recipe(), made / "data", changes={"1": {"root": str(empty)}})
    named["nan"] = as_job(recipe(lr=1e30), made / "nan")
    return named


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """Two ranks that have done all jobs: once for all processes that pytest runs beside each other."""
    place = tmp_path_factory.getbasetemp()
    made = (place.parent if "PYTEST_XDIST_WORKER" in os.environ else place) / "two-ranks"
    done = made / "done.pickle"
    try:
        made.mkdir()
    except FileExistsError:
        while not done.exists():
            time.sleep(0.1)
        found = pickle.loads(done.read_bytes())
        assert isinstance(found, Ranks), found
        return found
    found = None
    try:
        found = Ranks(2, all_jobs(made), made)
    finally:
        with atomic(done) as part:
            part.write_bytes(pickle.dumps(found))
    return found


@pytest.mark.parametrize("name", QUICK)
def test_two_ranks_train_as_one(name: str, two: Ranks) -> None:
    assert not worst(name, two)


def test_what_passes_is_in_rank_order_and_has_the_right_gradient(two: Ranks) -> None:
    rows, table = torch.arange(10.0).view(5, 2).double(), torch.arange(1.0, 22.0).view(7, 3).double()
    z = torch.tensor([[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]).double().requires_grad_()
    index = torch.tensor([[0, 6, 3], [5, 1, 2]])
    for rank in range(2):
        kept, said = two.kept("passing")[rank], two.said("passing")[rank]
        start, stop = said["span"]
        assert torch.equal(kept["gathered"], rows) and torch.equal(kept["whole"], rows)
        assert torch.equal(kept["own"], 2 * rows[start:stop])  # times the ranks, over which DDP takes the mean
        for name, asked in (("few", index[:, :1]), ("many", index.repeat(1, 4)), ("all", None)):
            want = z @ table.T if asked is None else (z @ table.T).gather(1, asked)
            assert torch.allclose(kept[f"{name} products"], want)
            assert torch.allclose(kept[f"{name} gradient"], torch.autograd.grad(want.square().sum(), z)[0])
        assert torch.equal(kept["taken"], table[index])
        assert torch.equal(kept["collected"], table if rank == 0 else table[:0])
        assert said["any"] == 3
    assert [said["span"] for said in two.said("passing")] == [[0, 3], [3, 5]]


def test_a_sharded_table_starts_with_the_rows_of_the_whole_one(two: Ranks) -> None:
    parts = [kept["first rows"] for kept in two.kept("passing")]
    assert torch.equal(torch.cat(parts), FeatureTable(7, 3, seed=4).features)


def test_a_run_of_two_ranks_is_that_of_one(two: Ranks, tmp_path: Path) -> None:
    alone = in_double(shared_recipe(), tmp_path / "alone")
    (one, other), (said, told) = two.kept("run"), two.said("run")
    assert all(torch.equal(one[name], other[name]) for name in one)
    for name, value in alone.student.state_dict().items():
        assert torch.allclose(one[name], value, atol=CLOSE), name
    assert said["result"]["test"] == told["result"]["test"] == alone.result["test"]
    for line, want in zip(said["history"], alone.history, strict=True):
        for key in ("ce", "infonce", "train"):
            assert line[key] == pytest.approx(want[key], abs=10 * SUMS)
    assert said["result"]["ranks"] == 2 and "ranks" not in alone.result
    names = {path.name for path in (two.where / "run").iterdir()}
    assert names == {path.name for path in (tmp_path / "alone").iterdir()}  # nothing of another rank's lies about


def test_images_that_stay_on_the_host_give_the_same_weights(two: Ranks) -> None:
    for one, other in zip(two.kept("run"), two.kept("on the host"), strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_finished_run_is_only_read(two: Ranks) -> None:
    one, other = two.said("again")
    assert one["result"] == other["result"] == two.said("run")[0]["result"]


def test_a_signal_to_one_rank_stops_all_at_the_same_step_and_one_process_goes_on(two: Ranks) -> None:
    assert two.said("stopped") == [{"code": 143, "place": 96}] * 2
    folder = two.where / "stopped"
    kept = weights(folder)
    assert len(kept["method.student_table.features"]) == 120  # whole, although each rank holds a half
    resumed = in_double(shared_recipe(), folder)
    for name, value in resumed.student.state_dict().items():
        assert torch.allclose(two.kept("run")[0][name], value, atol=CLOSE), name
    assert resumed.result["test"] == two.said("run")[0]["result"]["test"]


WRONG = {
    "too many": "2 processes cannot share a batch of 1; start at most 1, or raise batch",
    "never": "tables=sharded needs the features of the whole batch, so gather=never cannot be",
    "recipes": "another recipe than rank 0: lr (0.1 there, 0.05 on rank 0), evaluate_every (3 there, 100 on rank 0)",
    "blocked": "Rank 1 of 2 (on ",
    "elsewhere": "'runs/shared' is not the folder that rank 0 writes to; give an --out on storage that all ranks share",
    "data": "Rank 1 of 2 (on ",
    "nan": "lower lr",
}


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_of_any_rank_is_one_sentence_on_all(name: str, two: Ranks) -> None:
    one, other = (each["error"] for each in two.said(name))
    assert one == other and WRONG[name] in one


def test_ranks_that_diverge_keep_it_in_the_folder(two: Ranks) -> None:
    known = json.loads((two.where / "nan" / "diverged.json").read_text())
    assert known["done"] == 0 and known["reason"] in two.said("nan")[1]["error"]


def test_a_folder_that_one_rank_cannot_write_is_named(two: Ranks) -> None:
    why = "'runs/shared' cannot be written (Not a directory); give an --out on storage that all ranks share"
    assert why in two.said("blocked")[0]["error"]


def test_every_method_is_tried_in_several_processes() -> None:
    assert {case.method for case in CASES.values()} == set(methods.names())


def test_shares_are_consecutive_and_a_small_batch_is_everybodys() -> None:
    for size, count in ((1, 5), (2, 5), (4, 11), (4, 4)):
        shares = [Share(World(rank, size), count) for rank in range(size)]
        rows = torch.arange(count)
        assert torch.equal(torch.cat([share.own(rows) for share in shares]), rows)
        assert max(share.count for share in shares) - min(share.count for share in shares) <= 1
    assert all(torch.equal(Share(World(rank, 4), 3).own(torch.arange(3)), torch.arange(3)) for rank in range(4))


def test_a_process_alone_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(3, 2)
    with joined("cpu") as world:
        assert world == World() == current() and world.leads
        assert world.gather(rows, [3]) is rows and world.whole(rows, [3]) is rows and world.total(rows) is rows
        assert world.any(15) == 15 and world.together(lambda: 4) == world.each(lambda: 4) == 4
        world.same("recipe", {"a": 1}, "no remedy")
        with pytest.raises(InputError, match="as it was") as raised, world.alike():
            raise InputError("as it was")
    assert not isinstance(raised.value, AgreedError)


@pytest.mark.parametrize(
    ("method", "changes", "whole"),
    [
        ("infonce", {}, False),
        ("infonce", {"gather": "always"}, True),
        ("infonce", {"tables": "sharded"}, True),
        ("cka", {}, True),
        ("cka", {"gather": "never"}, False),
    ],
)
def test_which_losses_are_of_the_whole_batch(method: str, changes: dict[str, str], whole: bool, tmp_path: Path) -> None:
    wanted = recipe(method, teacher=str(teacher()), distil=method == "cka", **changes)
    images = load_data(wanted, torch.device("cpu"))
    frozen = Teacher(load_network(str(teacher()), "", 10))
    assert Run(wanted, tmp_path, images, frozen, World(0, 2)).whole is whole


@pytest.mark.parametrize("command", ["sweep", "tune", "demo"])
def test_commands_with_processes_of_their_own_are_not_for_torchrun(
    command: str, scns: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    ran = scns(command)
    assert ran.code == 2 and f"`scns {command}` starts its own processes: call it without torchrun" in ran.err


def test_a_process_group_without_hosts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(InputError, match=r"initialised for GPUs alone, .* use init_process_group"), joined("cuda"):
        pass


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_shared_step_of_one_rank_is_a_step_and_can_be_captured(device: str, tmp_path: Path) -> None:
    """On a GPU the captured step holds NCCL's calls."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        plain, shared = (few_steps(kind, device) for kind in (Step, partial(SharedStep, world=World())))
    finally:
        dist.destroy_process_group()
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(plain, shared, strict=True))


def few_steps(kind: Callable[..., Step], device: str) -> list[Tensor]:
    """The weights and tables after an epoch, captured where that is possible."""
    images = pictures(False).to(device)
    student = Tiny(1).float().to(device)
    setting = Setting(images.labels, Shapes.of(student(torch.zeros(2, 3, 8, 8, device=device), features=True)))
    torch.manual_seed(2)
    method = methods.build("infonce", setting, sampler="uniform", dim=5, negatives=16).to(device)
    for norm in (student.norm1, student.norm2):
        norm.reset_running_stats()
        norm.num_batches_tracked = None
    optimizer = SGD([*student.parameters(), *method.parameters()], 0.05, 0.9, 1e-3, False)
    step = kind(images, [Member(student, method, method.forward, optimizer)], None, batch=11, seed=3)
    replay = Replay(step, step.state, device == "cuda", warm_up=step.warm_up)
    step.begin(1)
    for size in step.sizes(1):
        replay(size)
    return [x.detach().clone() for x in (*student.parameters(), *method.parameters(), method.student_table.features)]


def test_synchronised_batch_norm_alone_is_batch_norm() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4, 3, 3, dtype=torch.float64)
    plain, shared = (nn.BatchNorm2d(4).double() for _ in range(2))
    synchronise([shared], World())
    outputs = []
    for norm in (plain, shared):
        own = x.clone().requires_grad_()
        y = norm(own)
        (y * torch.arange(6.0)[:, None, None, None]).square().sum().backward()
        outputs.append([y, own.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var])
        outputs[-1].append(norm.eval()(x))
    for one, other in zip(*outputs, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("options", [{"affine": False}, {"momentum": None}, {"track_running_stats": False}])
def test_synchronised_batch_norms_of_other_kinds_alone_are_batch_norms(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    plain, shared = (nn.BatchNorm2d(4, **options).double() for _ in range(2))
    synchronise([shared], World())
    for _ in range(3):
        x = torch.randn(6, 4, 3, 3, dtype=torch.float64)
        one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        for given, norm in ((one, plain), (other, shared)):
            (norm(given) * torch.arange(6.0)[:, None, None, None]).square().sum().backward()
        torch.testing.assert_close(one.grad, other.grad, atol=1e-12, rtol=0)
    for name, value in plain.state_dict().items():
        if "running" in name:  # torch counts batches also where nobody reads it
            torch.testing.assert_close(value, shared.state_dict()[name], atol=1e-12, rtol=0)


def test_a_synchronised_batch_norm_of_one_value_a_channel_keeps_its_statistics_finite() -> None:
    norm = nn.BatchNorm2d(2)
    synchronise([norm], World())
    norm(torch.ones(1, 2, 1, 1))
    assert torch.isfinite(norm.running_var).all()


def test_new_keys_leave_old_runs_as_they_were() -> None:
    old = {key: value for key, value in asdict(Recipe()).items() if key not in ("sync_batch_norm", "gather", "tables")}
    assert Recipe(**old) == Recipe() and replace(Recipe(), gather="never") != Recipe()
    with pytest.raises(InputError, match="Unknown tables 'shard'; did you mean sharded"):
        Recipe(tables="shard")
