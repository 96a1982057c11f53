"""The paper's tables as recipes: every printed cell, its method as printed, its teacher, and the plan of a sweep."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from scns import methods, models, preflight, tables
from scns.checkpoint import Folder
from scns.errors import InputError
from scns.features import Shapes
from scns.methods import Setting
from scns.plan import check_folders, hours, notes, plan, single
from scns.sweep import Job
from scns.tables import Cell
from scns.train import fit

PRINTED = json.loads((Path(__file__).parent / "golden" / "table_cells.json").read_text())
SMALL = "resnet34-stem3-resnet14"  # of t2: beyond the printed columns, the teacher sees the images at their own 64 px
CELLS = [tables.cell(name) for table in tables.TABLES for name in tables.names(table, everything=True)]


def test_every_printed_cell_has_its_name() -> None:
    assert [len(tables.names(table)) for table in tables.TABLES] == [21 * 6, 17 * 10, 23 * 6]
    ours = [(c.table, c.row.paper, c.row.value, c.column.paper) for c in CELLS if c.printed]
    assert sorted(map(str, ours)) == sorted(str((table, *rest[:3])) for table, *rest in PRINTED)
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_networks_are_the_printed_ones() -> None:
    by_column = {(table, column): (teacher, student) for table, _, _, column, teacher, student in PRINTED}
    for cell in CELLS:
        if not cell.column.printed:
            assert "wrn-" in cell.column.slug or cell.column.slug == SMALL
            continue
        teacher, student = by_column[cell.table, cell.column.paper]
        assert cell.column.student == {"resnext32x4": "resnext29-32x4d"}.get(student, student)
        assert cell.column.teacher == (f"{teacher}-imagenet" if cell.table == "t2" else teacher or "")


def test_both_widths_are_named() -> None:
    printed, probable = tables.cell("t1/infonce/wrn-16-1"), tables.cell("t1/infonce/wrn-16-2")
    assert (printed.recipe.student, probable.recipe.student) == ("wrn-16-1", "wrn-16-2")
    assert printed.column.paper == probable.column.paper == "wrn-16-1" and not probable.printed
    assert tables.cell("t3/kld/wrn-40-2-resnet14").teacher == "t3/teacher/wrn-40-2"
    assert {cell.column.slug for cell in tables.select("t3")} == {
        c.column.slug for c in CELLS if c.table == "t3" and c.printed
    }
    assert len(tables.select("t3", "kld", "wrn-16-*")) == 4


@pytest.mark.parametrize("table", tables.TABLES)
def test_recipes_are_sound(table: str) -> None:
    for cell in CELLS:
        if cell.table == table:
            preflight.check(cell.recipe)
            if cell.teacher:
                (teacher, *_) = tables.of_run(cell.teacher)
                assert teacher.recipe.method == "ce" and not teacher.teacher
                assert teacher.recipe.student == (cell.column.teacher or cell.recipe.student)
                assert teacher.recipe.data == cell.recipe.data
                assert Path(cell.recipe.teacher) == tables.folder(cell.teacher, 0, Path("runs"))


def test_schedules_are_those_of_the_paper() -> None:
    one, two, three = (
        tables.cell(n).recipe for n in ("t1/ce/resnet20", "t2/kld/resnet50-resnet8", "t3/kld/resnet110-resnet8")
    )
    assert (one.data, one.lr, one.batch, one.epochs) == ("cifar10", 0.01, 128, 200)
    assert (two.data, two.batch, two.epochs, two.milestones) == ("tiny-imagenet-200", 64, 100, (20, 40, 60, 80))
    assert (three.lr, three.batch, three.epochs, three.milestones) == (0.05, 64, 200, (100, 125, 150, 175))


@cache
def shapes(network: str, classes: int, size: int) -> Shapes:
    built = models.build(network, classes).eval()
    with torch.no_grad():
        return Shapes.of(built(torch.zeros(1, 3, size, size), features=True))


def built(cell: Cell, rows: int = 40) -> methods.Method:
    """The method of a cell, for its own networks and a few samples."""
    classes, size = {"t1": (10, 32), "t2": (200, 64), "t3": (100, 32)}[cell.table]
    labels = torch.arange(rows) % classes
    generator = torch.Generator().manual_seed(0)
    taught = bool(cell.recipe.teacher) and cell.recipe.distil
    setting = Setting(
        labels,
        shapes(cell.recipe.student, classes, size),
        shapes(cell.column.teacher, classes, size) if taught else None,
        embeddings=lambda: torch.randn(rows, 8, generator=generator),
        class_vectors=lambda: torch.randn(classes, 8, generator=generator),
    )
    return methods.build(cell.recipe.method, setting, preset=cell.recipe.preset or None, **cell.recipe.arguments)


def test_every_row_builds_its_method() -> None:
    first = {(cell.table, cell.row.slug): cell for cell in reversed(CELLS) if "resnet152" not in cell.name}
    for cell in first.values():
        built(cell, rows=400 if cell.table == "t2" else 200)


def test_weights_and_k_are_those_of_the_rows() -> None:
    def of(name: str) -> Any:
        return built(tables.cell(name), rows=500)

    instance = of("t3/instance-scns-k50/resnet110-resnet8")
    assert instance.weight == 0.9 and instance.sampler.indices.shape == (500, 500 // 50)
    by_class = of("t3/class-scns-k5/resnet110-resnet8")
    assert by_class.weight == 0.65 and by_class.sampler.classes.shape == (100, 100 // 5)
    assert of("t1/class-scns-k5/resnet20").sampler.classes.shape == (10, 5)
    alone, beside = of("t1/infonce-lm-b0.2/resnet20"), of("t1/infonce+lm-b0.2/resnet20")
    assert (alone.weight, alone.lm_weight) == (0, 1) and (beside.weight, beside.lm_weight) == (1, 0.1)
    assert of("t3/at/resnet110-resnet8").weight == 600 and of("t3/pkt/resnet110-resnet8").weight == 10000
    both = of("t3/infonce-lm-instance-scns/resnet110-resnet8")
    assert (both.weight, both.lm_weight) == (0.9, 0.9)


def test_supervised_neighbours_come_from_the_same_network() -> None:
    cell = tables.cell("t1/instance-scns-k100/resnext32x4")
    assert cell.teacher == "t1/ce/resnext32x4" and not cell.recipe.distil
    assert not tables.cell("t1/class-scns-k2/resnet20").teacher


def test_tiny_teachers_are_cached_where_no_maps_are_needed() -> None:
    assert tables.cell("t2/crd/resnet50-resnet8").recipe.teacher_mode == "cached"
    assert tables.cell("t2/at/resnet50-resnet8").recipe.teacher_mode == "live"
    assert "from scratch" in tables.cell("t2/kld/resnet50-resnet8").notes


def test_tiny_teachers_see_256_pixels() -> None:
    teacher = tables.find("t2/teacher/resnet50-imagenet").recipe
    assert (teacher.student, teacher.input_size, teacher.weights) == ("resnet50-imagenet", 256, "")
    assert tables.cell("t2/kld/resnet50-resnet8").recipe.input_size == 0


def test_a_tiny_teacher_for_small_images_is_live_at_their_own_size() -> None:
    teacher, cells = tables.find("t2/teacher/ResNet34"), tables.select("t2", "*", SMALL)
    assert (teacher.recipe.student, teacher.recipe.input_size, teacher.recipe.augment) == ("ResNet34", 0, True)
    assert not tables.starts(teacher)  # ImageNet's weights are for another stem
    assert {cell.recipe.teacher_mode for cell in cells if cell.teacher} == {"live"}
    own = "teacher: from scratch at the images' own size; the paper's started from ImageNet's weights"
    assert {cell.notes for cell in cells if cell.row.slug != "ce"} == {own}
    assert SMALL not in {cell.column.slug for cell in tables.select("t2")}


def test_every_method_takes_a_tiny_teacher_for_small_images() -> None:
    for cell in tables.select("t2", "*", SMALL):
        built(cell, rows=400)


def test_folders_of_columns_differ_by_more_than_case() -> None:
    runs = {cell.run for cell in CELLS}
    assert len({run.lower() for run in runs}) == len(runs)  # disks of macOS and Windows take them for one


@pytest.mark.parametrize("file", ["resnet34-imagenet.safetensors", "resnet34.pt", "resnet34-b627a593.pth"])
def test_teachers_start_from_published_weights(tmp_path: Path, file: str) -> None:
    cells = tables.select("t2", "kld", "resnet34-resnet14,resnet50-resnet8")
    for other in ("resnet34-b627a593.txt", "resnet34-other.pth", "resnet340.pth"):
        (tmp_path / other).touch()
    with pytest.raises(InputError, match=r"no weights of these teachers; put there resnet34-imagenet\.pth"):
        plan(cells, Path("runs"), weights=tmp_path)
    (tmp_path / file).touch()
    jobs = {str(job.out): job for job in plan(cells, Path("runs"), weights=tmp_path)}
    with_file = jobs["runs/t2/teacher/resnet34-imagenet-0"].recipe
    assert with_file.weights == str(tmp_path / file) and not with_file.augment and with_file.input_size == 256
    assert jobs["runs/t2/teacher/resnet50-imagenet-0"].recipe.weights == ""  # no file: from scratch
    told = {str(path): words for path, words in notes(list(jobs.values())).items()}
    assert told["runs/t2/kld/resnet34-resnet14-0"] == f"teacher: started from {file}, at 256 px"
    assert told["runs/t2/kld/resnet50-resnet8-0"].startswith("teacher: from scratch at 256 px")
    (tmp_path / "resnet34.pth").touch()
    with pytest.raises(InputError, match="all of them weights of resnet34-imagenet; leave one"):
        plan(cells, Path("runs"), weights=tmp_path)


def test_weights_for_other_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is for the teachers of t2"):
        plan([*tables.select("t3", "kld"), *tables.select("t2", "kld", SMALL)], Path("runs"), weights=tmp_path)
    with pytest.raises(InputError, match="is no folder"):
        plan(tables.select("t2", "kld"), Path("runs"), weights=tmp_path / "nowhere")


def test_notes_are_about_the_teacher_that_is_given(tmp_path: Path) -> None:
    """A run in place of the table's teacher: what its recipe says, not what that of the student does."""
    place = tmp_path / "mine"
    Folder(place).open(tables.started(tables.find("t2/teacher/resnet50-imagenet").recipe, "w/mine.pth"))
    (job,) = plan([tables.cell("t2/kld/resnet50-resnet8")], tmp_path, settings=[f"teacher={place}"])
    assert notes([job]) == {job.out: "teacher: started from mine.pth, at 256 px"}


def test_notes_name_the_probable_width() -> None:
    assert tables.cell("t3/kld/wrn-16-2-resnet14").notes == "wrn-16-2 instead of wrn-16-1, as the paper probably had"
    assert not tables.cell("t3/kld/wrn-16-1-resnet14").notes and not tables.cell("t3/ce/wrn-16-2-resnet14").notes


def test_titles_are_the_paper_s_words() -> None:
    titles = [
        tables.cell(f"t3/{row}/resnet110-resnet8").row.title for row in ("class-scns-k50", "infonce+lm-b0.5", "at")
    ]
    assert titles == ["InfoNCE + Class-SCNS, k=1/50", "InfoNCE + LM, β=0.5", "AT"]
    assert tables.cell("t1/class-scns-k2/resnet20").row.title == "InfoNCE + Class-SCNS, k=2"


# --- one cell by its name


def test_a_single_cell_is_the_run_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "t3/kld/resnet110-resnet20"
    (tmp_path / "runs/t3/teacher/resnet110-0").mkdir(parents=True)
    (tmp_path / "runs/t3/teacher/resnet110-0/model.safetensors").touch()
    settings = ["lr=0.1", "method.temperature=2"]
    swept = plan([tables.cell(name)], Path("runs"), seeds=3, settings=settings, epochs=20)
    assert single(name, seed=2, settings=settings, epochs=20) == swept[-1]
    assert single(name, settings=["seed=1"]).recipe.seed == 1
    assert single(name, seed=2**62).recipe.seed == 2**62  # at once
    elsewhere = single(name, Path("mine"))
    assert elsewhere.out == Path("mine") and elsewhere.recipe.teacher == "runs/t3/teacher/resnet110-0"
    assert single("t3/ce/resnet20") == single("t3/ce/wrn-40-1-resnet20")
    assert single("t3/teacher/resnet110").recipe.student == "resnet110"


def test_a_missing_teacher_comes_with_the_line_that_trains_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name, words = "t3/kld/resnet110-resnet20", ["lr=0.1", "method.temperature=2", "seed=1"]
    with pytest.raises(InputError, match=r"train t3/teacher/resnet110 --set lr=0.1 --epochs 5 --subset 90 -- or"):
        single(name, settings=words, epochs=5, subset=90)
    with pytest.raises(InputError, match=r"train t3/teacher/resnet110 --out o/t3/teacher/resnet110-0 -- or"):
        single(name, Path("o/t3/kld/resnet110-resnet20-0"))
    assert single(name, settings=["teacher=mine"]).recipe.teacher == "mine"
    with pytest.raises(
        InputError, match=r"Unknown cell 't3/kld/resnet110-resnet2'; did you mean t3/kld/resnet110-resnet20"
    ):
        single("t3/kld/resnet110-resnet2")


def test_patterns() -> None:
    chosen = tables.select("t3", "instance*, kld", "resnet110-resnet20")
    assert {cell.row.slug for cell in chosen} == {"kld", *(f"instance-scns-k{n}" for n in (5, 10, 20, 50, 100))}
    assert tables.select("t3", "infonce", "resnet110-resnet8")[0].row.paper == ""  # uniform: not in the paper
    for words, message in (
        (("t3", "instanse*"), r"row of t3 'instanse\*'; did you mean instance"),
        (("t3", "kld,nonesuch"), "row of t3 'nonesuch'"),
        (("t3", "", "resnet110-resnet21"), "column of t3 'resnet110-resnet21'; did you mean resnet110-resnet20"),
        (("t4",), "Unknown table 't4'; did you mean t"),
    ):
        with pytest.raises(InputError, match=message):
            tables.select(*words)
    with pytest.raises(InputError, match="did you mean t3/kld/resnet110-resnet20"):
        tables.cell("t3/kld/resnet110-resnet2")


def test_folders_name_their_runs() -> None:
    for out in (Path("runs"), Path("runs/t3")):
        place = tables.folder("t3/kld/wrn-16-1-resnet14", 2, out)
        assert place == Path("runs/t3/kld/wrn-16-1-resnet14-2")
        assert tables.run_at(place) == "t3/kld/wrn-16-1-resnet14"
    assert tables.run_at(Path("runs/mini-ce-0")) == tables.run_at(Path("runs/t3/nothing/resnet8-0")) == ""
    assert [cell.name for cell in tables.of_run("t3/ce/resnet20")] == [
        "t3/ce/resnet110-resnet20", "t3/ce/wrn-40-1-resnet20", "t3/ce/wrn-40-2-resnet20",
    ]  # fmt: skip


def test_plan_has_each_teacher_once_and_first() -> None:
    cells = tables.select("t3", "teacher,ce,kld,instance-scns-k50", "resnet110-*")
    jobs = plan(cells, Path("runs"), seeds=2)
    places = [str(job.out) for job in jobs]
    # teacher x 2 seeds, 2 students alone x 2, (kld, instance) x 2 columns x 2
    assert len(places) == len(set(places)) == 2 + 4 + 8
    assert places[0] == "runs/t3/teacher/resnet110-0" and jobs[0].recipe.student == "resnet110"
    for job in jobs:
        assert bool(job.after) == bool(job.recipe.teacher)
        assert str(job.recipe.order_seed) == str(job.recipe.seed) == str(job.out)[-1]
        assert not job.after or (str(job.after[0]) == job.recipe.teacher == places[0])
    assert {job.recipe.order_seed for job in plan(cells, Path("runs"), seeds=2, same_batches=True)} == {0}


def test_settings_reach_teachers_but_not_the_method() -> None:
    cells = tables.select("t1", "instance-scns-k100", "resnet20")
    teacher, student = plan(
        cells, Path("o"), settings=["data=cifar10-mini", "method.negatives=8"], epochs=20, subset=50
    )
    assert teacher.recipe.data == student.recipe.data == "cifar10-mini"
    assert teacher.recipe.arguments == {} and student.recipe.arguments["negatives"] == 8
    assert teacher.recipe.milestones == student.recipe.milestones == (10, 15) and teacher.recipe.subset == 50
    (alone,) = plan(cells, Path("o"), settings=["teacher=mine"])
    assert alone.recipe.teacher == "mine" and not alone.after


def test_cross_entropy_alone_stays_without_a_teacher() -> None:
    """Of a teacher of one's own, too: it would pay for its passes, and be another run for every teacher."""
    cells = [*tables.select("t3", "teacher,ce,kld", "resnet110-resnet20"), tables.cell("t1/ce-lm-b0.5/resnet20")]
    own = ["teacher=mine.pth", "teacher_network=resnet110", "teacher_mode=cached", "lr=0.1"]
    taught = {job.out.parts[2]: job.recipe for job in plan(cells, Path("o"), settings=own)}
    assert (taught["kld"].teacher, taught["kld"].teacher_mode) == ("mine.pth", "cached")
    plain = {job.out.parts[2]: job.recipe for job in plan(cells, Path("o"), settings=["lr=0.1"])}
    assert all(taught[row] == plain[row] for row in ("teacher", "ce", "ce-lm-b0.5"))
    asked = plan(cells[1:2], Path("o"), settings=["teacher=mine", "method.kld=1"])  # then it is not alone
    assert asked[0].recipe.teacher == "mine"


def test_hours() -> None:
    ce = plan(tables.select("t3", "ce", "resnet110-resnet20"), Path("o"))
    assert hours(ce) == pytest.approx(200 * 1.56 / 3600)
    assert hours(ce, 8) == hours(ce)  # one run has no company
    assert hours(ce, 1, {ce[0].out}) == 0
    eight = plan(tables.select("t3", "ce", "resnet110-resnet20"), Path("o"), seeds=8)
    assert hours(eight, 8) == pytest.approx(8 * 200 * 0.99 / 3600)
    quick = [Job(replace(job.recipe, precision="bf16", compile="network"), job.out) for job in eight]
    assert hours(quick, 8) == pytest.approx(8 * 200 * 0.23 / 3600)
    kld = plan(tables.select("t3", "kld", "resnet110-resnet20"), Path("o"))
    teacher = (
        200 * 1.56 * models.flops(models.build("resnet110", 100), 32) / models.flops(models.build("resnet20", 100), 32)
    )
    assert hours(kld) == pytest.approx((teacher + 200 * (1.56 + 0.67)) / 3600)
    assert hours([Job(replace(ce[0].recipe, data="folder"), Path("o"))]) is None
    at_256 = plan(tables.select("t2", "teacher", "resnet34-resnet14"), Path("o"))
    at_64 = plan(tables.select("t2", "teacher", "resnet34-resnet14"), Path("o"), settings=["input_size=64"])
    assert 15 < hours(at_256) / hours(at_64) < 17  # type: ignore[operator]
    halved = plan(tables.select("t3", "ce", "resnet110-resnet20"), Path("o"), epochs=100, subset=25_000)
    assert hours(halved) == pytest.approx(100 * 0.78 / 3600)


def test_folders_of_other_recipes_are_refused(tmp_path: Path) -> None:
    cells = tables.select("t1", "ce", "resnet20")
    small = ["data=cifar10-mini", "student=resnet8", "device=cpu", "batch=50"]
    (job,) = plan(cells, tmp_path, settings=small, epochs=1, subset=50)
    fit(job.recipe, job.out)
    check_folders([job])
    with pytest.raises(InputError, match="another recipe: epochs"):
        check_folders(plan(cells, tmp_path, settings=[*small, "milestones=1"], epochs=2, subset=50))
