"""`Recipe`: what it means, what it refuses, and that it survives every way of writing it down."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from scns import methods, preflight, recipes
from scns.errors import InputError
from scns.recipe import Recipe, differences, from_dict
from scns.recipes import load_recipe


def rates(recipe: Recipe, *epochs: int) -> list[float]:
    return [recipe.learning_rate(epoch) for epoch in epochs]


def test_steps_drop_the_rate_for_epochs_after_a_milestone() -> None:
    recipe = recipes.cifar100_repdistiller()
    assert rates(recipe, 1, 150) == [0.05, 0.05]
    assert rates(recipe, 151, 180, 181, 210, 211, 240) == pytest.approx([5e-3, 5e-3, 5e-4, 5e-4, 5e-5, 5e-5], rel=1e-12)


def test_repdistiller_is_trained_with_its_settings_by_name() -> None:
    """As its train_student.py and scripts/run_cifar_distill.sh have them, but for negatives that may repeat."""
    own = {"epochs": 240, "batch": 64, "lr": 0.05, "milestones": (150, 180, 210), "decay": 0.1, "momentum": 0.9}
    own |= {"nesterov": False, "weight_decay": 5e-4, "augment": True, "teacher_mode": "live", "student": "resnet20"}
    weights: dict[str, dict[str, object]] = {
        "cifar100-repdistiller": {},
        "cifar100-repdistiller-kd": {"ce": 0.1, "kld": 0.9, "temperature": 4.0},
        "cifar100-repdistiller-crd": {"ce": 1.0, "kld": 0.0, "weight": 0.8, "negatives": 16384, "positive": "exact"}
        | {"dim": 128, "tau": 0.07, "momentum": 0.5, "sampler": "uniform", "distinct": False},
    }
    for name, expected in weights.items():
        recipe = load_recipe(name)
        assert {key: getattr(recipe, key) for key in own} == own
        taken = methods.of_recipe(recipe)
        assert {key: taken[key] for key in expected} == expected


def test_cosine_starts_at_the_rate_and_ends_just_above_zero() -> None:
    recipe = Recipe(schedule="cosine", epochs=4, lr=0.8)
    assert rates(recipe, 1, 2, 3, 4) == pytest.approx([0.8, 0.8 * 0.853553390593, 0.4, 0.8 * 0.146446609407], rel=1e-9)


def test_warm_up_rises_to_the_rate_and_then_the_schedule_begins() -> None:
    steps = Recipe(epochs=10, lr=0.4, warmup=3, milestones=(5,))
    assert rates(steps, 1, 2, 3, 4, 5, 6) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.04])
    cosine = Recipe(schedule="cosine", epochs=6, lr=0.4, warmup=2)
    assert rates(cosine, 3, 5) == pytest.approx([0.4, 0.2])


# --- settings


def test_settings_take_the_type_of_their_key() -> None:
    words = [
        "epochs=5",
        "lr=1",
        "nesterov=true",
        "milestones=10,20",
        "teacher=runs/1,2",
        "method.k=500",
        "method.tau=0.1",
    ]
    recipe = Recipe().with_settings([*words, "method.k=none", "method.positive=instance", "data_seed=-1"])
    assert (recipe.epochs, recipe.lr, recipe.nesterov, recipe.milestones) == (5, 1.0, True, (10, 20))
    assert isinstance(recipe.lr, float) and recipe.teacher == "runs/1,2"
    assert recipe.arguments == {"k": None, "tau": 0.1, "positive": "instance"}
    assert Recipe().with_settings(["milestones=7"]).milestones == (7,)
    assert recipe.with_settings(["milestones="]).milestones == ()
    assert recipe.with_settings(["method.k=3"]).arguments["k"] == 3 and recipe.arguments["k"] is None


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("epochs=abc", "epochs must be a whole number, such as 20, but it is 'abc'."),
        ("epochs=1.5", "epochs must be a whole number, such as 20, but it is 1.5."),
        ("epochs=true", "epochs must be a whole number, such as 20, but it is True."),
        ("epochs=", "epochs must be a whole number, such as 20, but it is ''."),
        ("lr=fast", "lr must be a number, such as 0.05, but it is 'fast'."),
        ("nesterov=yes", "nesterov must be true or false, but it is 'yes'."),
        ("milestones=10,x", "milestones must be whole numbers, such as 100,150, but it is [10, 'x']."),
        ("epoch=3", "Unknown recipe key 'epoch'; did you mean epochs"),
        ("learning_rate=3", "Unknown recipe key 'learning_rate'; did you mean lr?"),
        ("lerning_rate=3", "Unknown recipe key 'lerning_rate'; did you mean lr?"),
        ("batch_size=3", "Unknown recipe key 'batch_size'; did you mean batch?"),
        ("wd=0", "Unknown recipe key 'wd'; did you mean weight_decay?"),
        ("tau=0.1", "Unknown recipe key 'tau'; did you mean method.tau?"),
        ("kld=0.9", "Unknown recipe key 'kld'; did you mean method.kld?"),
        ("arguments=3", "Unknown recipe key 'arguments'"),
        ("epochs", "'epochs' must be key=value, such as epochs=20 or method.k=500."),
        ("schedule=step", "Unknown schedule 'step'; did you mean steps?"),
        ("precision=fp16", "Unknown precision 'fp16'; did you mean"),
        ("epochs=0", "epochs=0 must be at least 1."),
        ("batch=0", "batch=0 must be at least 1."),
        ("seed=-1", "seed=-1 must be at least 0."),
        (f"seed={2**63}", f"seed={2**63} must be below 2^63 = {2**63}."),
        (f"data_seed={2**63}", f"data_seed={2**63} must be below 2^63 = {2**63}."),
        ("subset=-5", "subset=-5 must be at least 0."),
        ("lr=0", "lr=0.0 must be above 0 and finite."),
        ("lr=inf", "lr=inf must be above 0 and finite."),
        ("lr=nan", "lr=nan must be above 0 and finite."),
        ("decay=-1", "decay=-1.0 must be above 0 and finite."),
        ("lr=1e300", "lr=1e+300 must be at most 3.4e+38, the largest float32."),
        ("weight_decay=1e39", "weight_decay=1e+39 must be at most 3.4e+38"),
        ("labelled=99999999999999999999999", "labelled=99999999999999999999999 must be below 2^63"),
        ("input_size=1000000", "input_size=1000000 is a side of an image in pixels; at most 8,192."),
        ("momentum=1", "momentum=1.0 must be at least 0 and below 1."),
        ("weight_decay=nan", "weight_decay=nan must be at least 0 and finite."),
        ("validation=1", "validation=1.0 must be at least 0 and below 1."),
        ("milestones=20,10", "milestones=[20, 10] must be rising epoch numbers from 1."),
        ("milestones=0", "milestones=[0] must be rising epoch numbers from 1."),
        ("device=cuda:1", "device=cuda:1 is set from outside: device=cuda and CUDA_VISIBLE_DEVICES=1."),
        ("teacher_network=wrn-40-2", "teacher_network=wrn-40-2 needs teacher=: a file with its weights."),
    ],
)
def test_a_setting_that_cannot_be_is_told_with_what_was_expected(word: str, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        Recipe().with_settings([word])


def test_a_recipe_is_a_name_or_a_path(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("epochs = 7")
    for given in (tmp_path / "mine.toml", str(tmp_path / "mine.toml")):
        assert recipes.load_recipe(given).epochs == 7
    with pytest.raises(InputError, match="A recipe is a name or the path of a file, not NoneType: scns recipes"):
        recipes.load_recipe(None)  # type: ignore[arg-type]


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(InputError, match="nesterov=true needs a momentum above 0"):
        Recipe(nesterov=True, momentum=0.0)


def test_python_is_checked_as_the_command_line_is() -> None:
    with pytest.raises(InputError, match="epochs must be a whole number, such as 20, but it is '20'"):
        Recipe(epochs="20")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="must be numbers, texts, true or false, or lists of them"):
        Recipe(arguments={"k": object()})
    assert Recipe(milestones=[3, 4]).milestones == (3, 4)  # type: ignore[arg-type]


# --- files

NAMED = sorted(recipes.names())


@pytest.mark.parametrize("name", NAMED)
def test_a_named_recipe_survives_toml_and_json(name: str, tmp_path: Path) -> None:
    recipe = recipes.named(name)
    toml, plain = tmp_path / "r.toml", tmp_path / "r.json"
    toml.write_text(recipe.as_toml())
    plain.write_text(json.dumps(recipe.as_dict()))
    assert load_recipe(name) == load_recipe(str(toml)) == load_recipe(str(plain)) == recipe


def test_awkward_values_survive_toml(tmp_path: Path) -> None:
    arguments = {"k": None, "beta": 1e-05, "list": [1, 2.5], "text": 'a "quoted"\\ é\n', "flag": False, "odd key": 1}
    recipe = Recipe(root="C:\\data", milestones=(1, 2), weight_decay=1e-12, arguments=arguments)
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "r.toml").write_text(recipe.as_toml(), encoding=encoding)
        assert load_recipe(str(tmp_path / "r.toml")) == recipe


def test_a_file_may_start_from_a_named_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('extends = "cifar100"\nepochs = 3\nlr = 1\n[arguments]\nk = 5\n')
    recipe = load_recipe(str(tmp_path / "mine.toml"))
    assert recipe.data == "cifar100" and recipe.epochs == 3 and recipe.lr == 1.0 and recipe.arguments == {"k": 5}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("learning_rate = 3", "Unknown recipe key in '.*bad.toml' 'learning_rate'; did you mean lr"),
        ("epoch = 3", "Unknown recipe key in '.*bad.toml' 'epoch'; did you mean epochs"),
        ('epochs = "3"', "In '.*bad.toml': epochs must be a whole number, such as 20, but it is '3'"),
        ("epochs = 0", "In '.*bad.toml': epochs=0 must be at least 1"),
        ("arguments = 3", "In '.*bad.toml': arguments must be a table of the method's arguments, but it is 3"),
        ("epochs = ", "'.*bad.toml' cannot be read: Invalid value"),
        ('extends = "cifar11"', "Unknown recipe 'cifar11'; did you mean cifar10"),
    ],
)
def test_a_bad_file_is_told_with_its_name(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(InputError, match=sentence):
        load_recipe(str(tmp_path / "bad.toml"))


def test_missing_files_and_names_are_told() -> None:
    with pytest.raises(
        InputError, match=r"The recipe 'no/such.toml' does not exist; give a .toml or .json file, or a name"
    ):
        load_recipe("no/such.toml")
    with pytest.raises(InputError, match="Unknown recipe 'mini-cee'; did you mean mini-ce"):
        load_recipe("mini-cee")
    with pytest.raises(InputError, match=r"'t3/kld' is no cell, which is t3/ROW/COLUMN .*: scns sweep t3 --rows kld$"):
        load_recipe("t3/kld")


def test_a_run_folder_is_told_from_its_recipe(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(InputError, match=r"is a run folder, not a recipe; its recipe is '.*recipe\.json'"):
        load_recipe(tmp_path)


def test_differences_leave_out_where_a_run_is_made() -> None:
    one = Recipe(device="cpu", root="a", checkpoint_every=3, epochs=5, arguments={"k": (1, 2)})
    other = Recipe(device="auto", root="b", evaluate_every=2, epochs=6, arguments={"k": [1, 2]})
    assert differences(one, other) == {"epochs": (5, 6)}
    assert differences(from_dict(json.loads(json.dumps(one.as_dict())), "x"), one) == {}


# --- the named ones


@pytest.mark.parametrize("name", NAMED)
def test_a_named_recipe_can_be_trained_and_says_how(name: str) -> None:
    recipe, about = recipes.named(name), recipes.about(name)
    preflight.check(
        recipe if recipe.teacher or "needs a teacher" not in about else recipe.with_settings(["teacher=run"])
    )
    assert f"scns train {name}" in about and "Expected accuracy" in about
    assert "+-" not in about or "standard deviation" in about  # elsewhere +- is a 95 % interval
    for command in re.findall(r"scns train (\S+)", about):
        assert command in NAMED
    for word in re.findall(r"--set (\S+=\S+)", about):
        recipe = recipe.with_settings([word])
    preflight.check(recipe)  # with every setting that its text proposes


def test_recipes_are_the_papers() -> None:
    one, two, three = recipes.cifar10(), recipes.cifar100(), recipes.tiny_imagenet()
    assert (one.lr, one.batch, one.momentum, one.weight_decay, one.epochs) == (0.01, 128, 0.9, 5e-4, 200)
    assert (two.lr, two.batch, two.epochs, two.milestones) == (0.05, 64, 200, (100, 125, 150, 175))
    assert (three.batch, three.epochs, three.milestones) == (64, 100, (20, 40, 60, 80))
    assert recipes.cifar100("wrn-16-2", "crd", seed=3).with_settings([]).seed == 3


# --- before anything is loaded


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"method": "crd", "arguments": {"negativs": 4}, "teacher": "x"},
            "Unknown argument of 'crd' 'negativs'; did you",
        ),
        ({"method": "infonce", "preset": "t1-clas"}, "Unknown preset of 'infonce' 't1-clas'; did you mean t1-class"),
        (
            {"method": "kld"},
            "'kld' needs a teacher; train one first .scns train mini-ce --out runs/mini-ce.*teacher=runs",
        ),
        ({"method": "ce", "arguments": {"kld": 0.5}}, "'ce' needs a teacher"),
        ({"method": "infonce", "arguments": {"sampler": "instance"}}, "sampler 'instance' needs a teacher, whose emb"),
        ({"method": "infonce", "preset": "t1-instance"}, "sampler 'instance' needs a teacher"),
        (
            {"method": "infonce", "arguments": {"refresh": 0}},
            "sampler 'soft' needs .* .or method.refresh=1: the method's own table.; tr",
        ),
        ({"method": "infonce", "tables": "sharded"}, "'soft' draws by the whole table.* use tables=replicated or"),
        ({"method": "infonce", "arguments": {"tau": 0}}, "tau must be a finite number above 0; got 0"),
        ({"method": "infonce", "arguments": {"tau": "warm"}}, "tau of 'infonce' must be a number, but it is 'warm'"),
        ({"method": "kld", "teacher": "x", "distil": False}, "'kld' distils its teacher, so distil=false cannot be"),
        (
            {"method": "infonce", "preset": "t1-class", "words": ""},
            "words='' takes the classes' centroids",
        ),
        ({"teacher_size": 64}, "teacher_size=64 needs teacher="),
        ({"student": "resnet21"}, "Unknown network 'resnet21'; did you mean resnet32 or resnet20"),
    ],
)
def test_what_a_recipe_lacks_is_told_before_anything_is_loaded(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        preflight.check(Recipe(**changes))


def test_infonce_needs_no_teacher_to_draw_by_its_own_features() -> None:
    preflight.check(Recipe(method="infonce", labelled=3))
    preflight.check(Recipe(method="infonce", tables="sharded", teacher="run"))
    preflight.check(Recipe(method="infonce", tables="sharded", arguments={"sampler": "uniform"}))
    preflight.check(Recipe(method="infonce", arguments={"sampler": "instance", "refresh": 2}))


def test_every_method_of_the_library_passes_with_a_teacher() -> None:
    for name in methods.names():
        preflight.check(Recipe(method=name, teacher="run"))


@pytest.mark.parametrize("settings", ["epochs=2", [3], [("epochs", 2)]])
def test_settings_that_are_no_list_of_words_are_told(settings: object) -> None:
    with pytest.raises(InputError, match="Settings are a list of key=value"):
        load_recipe("mini-ce", settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method.k=2"], "method.k is for the sampler class, instance, mixed, but it is 'soft'; leave method.k out"),
        (["method.sampler=uniform", "method.scale=20"], "method.scale is for the sampler class, instance, mixed, soft"),
        (
            ["method.sampler=uniform", "method.clusters=20"],
            "method.clusters is for the sampler soft, but it is 'uniform'",
        ),
        (["method=scns", "method.sampler=uniform", "method.k=2"], "method.k is for the sampler class"),
        (["method.sampler=class", "method.k=2", "method.scale=3"], ""),
        (["preset=t1-class", "method.sampler=uniform"], ""),  # the preset's k is nobody's wish
    ],
)
def test_an_argument_that_the_sampler_does_not_have_is_refused_of_a_new_run(words: list[str], said: str) -> None:
    """Of `scns tune --grid method.k=...` all points would be one run; runs that are there already go on."""
    wanted = Recipe(method="infonce").with_settings(words)
    if said:
        with pytest.raises(InputError, match=said):
            preflight.check_used(wanted)
    else:
        preflight.check_used(wanted)
