"""Variants of a recipe: which steps they share, where the others write, and what is refused."""

import pytest

from retrievalkit.errors import DataError, InputError, OptionError, UnknownNameError
from retrievalkit.recipe import recipe
from retrievalkit.recipe.settings import parse_set

TABLE = """\
name: demo
values: {corpus: null, layers: [4, 6], teacher: null, trained: "${steps.train}", seed: 7}
defaults:
  train: {examples: "${steps.negatives}", seed: "${seed}", set: {pooler.layers: "${layers}"}}
steps:
  - {name: figures, command: evaluate, with: {run: "${trained}"}, output: figures.json, expected: {RR@10: 0.2}}
  - {name: bm25, command: index, with: {source: "${corpus}"}, output: bm25}
  - {name: negatives, command: mine, with: {from: "${steps.bm25}"}, output: train.jsonl}
  - {name: train, command: train, with: {model: bert}, output: model}
  - {name: stage2, command: train, with: {model: "${steps.train}"}, output: model2}
  - {name: taught, command: train, with: {model: bert, teacher: "${teacher}"}, output: taught}
  - {name: unused, command: encode, with: {model: "${nothing?}"}, output: unused}
table: [figures]
variants:
  near: {title: Layers 4 and 6, expected: {source: "Paper, Table 1", nDCG@10: 0.4}}
  far: {values: {layers: [1, 6]}, expected: {nDCG@10: 0.3, figures.RR@10: 0.1}}
  both: {values: {trained: "${steps.stage2}"}}
  bm25_only: {values: {figures: {run: "${steps.bm25}"}}}
  distilled: {values: {trained: "${steps.taught}"}}
baseline: near
"""
TABLE = TABLE.replace("teacher: null,", "teacher: null, nothing: null,")
OTHERS = ("near", "far", "both", "bm25_only")


@pytest.fixture
def write(tmp_path):
    def write(text, name="recipe.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def load(path, *settings, variants=OTHERS):
    return recipe.load_recipe(path, parse_set(["corpus=data", *settings]), variants)


def names(found):
    return [step.name for step in found.steps]


def test_what_varies_is_run_once_a_variant_and_the_rest_once(write):
    found = load(write(TABLE))
    assert names(found) == [
        *("bm25", "negatives", "near/train", "near/figures"),
        *("far/train", "far/figures"),
        *("both/stage2", "both/figures"),
        "bm25_only/figures",
    ]
    steps = {step.name: step for step in found.steps}
    assert steps["far/train"].output == "far/model"
    assert steps["far/train"].options["set"] == {"pooler.layers": [1, 6]}
    assert found.options_in(steps["far/figures"], "out") == {"run": "out/far/model"}
    assert found.options_in(steps["both/stage2"], "out")["model"] == "out/near/model"
    assert found.options_in(steps["bm25_only/figures"], "out") == {"run": "out/bm25"}
    assert steps["both/stage2"].uses == ("negatives", "near/train")


def test_rows_have_titles_references_and_their_steps(write):
    found = load(write(TABLE))
    near, far, *_ = found.rows
    assert [row.title for row in found.rows] == ["Layers 4 and 6", "far", "both", "bm25_only"]
    assert near.cells == {None: {"figures": "near/figures"}}
    assert near.expected == {("figures", "RR@10"): 0.2, ("figures", "nDCG@10"): 0.4}
    assert far.expected == {("figures", "RR@10"): 0.1, ("figures", "nDCG@10"): 0.3}
    assert (near.source, far.source) == ("Paper, Table 1", "")
    assert (found.baseline, found.table) == ("near", ("figures",))


def test_some_variants_are_run_alone_where_all_would_have_put_them(write):
    path = write(TABLE)
    assert names(load(path, variants=["both"])) == ["bm25", "negatives", "near/train", "both/stage2", "both/figures"]
    assert [row.name for row in load(path, variants=["f*", "near"]).rows] == ["near", "far"]
    with pytest.raises(UnknownNameError, match="variant of the recipe 'fra'; did you mean 'far'"):
        load(path, variants=["near", "fra"])
    with pytest.raises(InputError, match="--variants names none"):
        load(path, variants=[])
    with pytest.raises(InputError, match="'demo' has no variants"):
        load(write(TABLE.partition("variants:")[0]), variants=["near"])


def test_a_value_is_asked_for_by_the_variants_that_need_it(write):
    path = write(TABLE)
    with pytest.raises(
        DataError, match=r"yaml:11: .* value for 'teacher'.*Without it: --variants near,far,both,bm25_only$"
    ):
        load(path, variants=None)
    found = load(path, "teacher=scores", variants=["distilled"])
    assert found.steps[-2].name == "distilled/taught"


def test_seeds_are_run_in_folders_of_their_own(write):
    path = write(TABLE + "seeds: [42, 43]\n")
    found = load(path, variants=["far", "bm25_only"])
    assert names(found) == [
        *("bm25", "negatives"),
        *("far/seed-42/train", "far/seed-42/figures", "far/seed-43/train", "far/seed-43/figures"),
        "bm25_only/figures",
    ]
    assert [step.options["seed"] for step in found.steps if step.command == "train"] == [42, 43]
    assert found.rows[0].cells == {seed: {"figures": f"far/seed-{seed}/figures"} for seed in (42, 43)}
    # A single seed stands in the same folder, so that others may be added.
    assert "far/seed-43/train" in names(load(path, "seeds=43", variants=["far"]))
    assert "far/seed-5/train" in names(load(write(TABLE), "seeds=[5, 6]", variants=["far"]))


@pytest.mark.parametrize(
    ("old", "new", "settings", "problem"),
    [
        ("", "", ["seeds=42,x"], r"^'seeds' is .*list of whole numbers"),
        ("", "", ["seeds=42,42"], r"^'seeds' is .*each seed once"),
        ("seeds: [42]", "seeds: [a]", [], r"yaml:21: 'seeds' is \['a'\]"),
        (", seed: 7}", "}", ["train.seed=1", "stage2.seed=1", "taught.seed=1"], "'seed', which the recipe lacks"),
        ("", "", ["seed=3"], "--set seeds=3"),
    ],
)
def test_seeds_that_make_no_sense_are_refused(write, old, new, settings, problem):
    text = TABLE + "seeds: [42]\n"
    with pytest.raises((DataError, OptionError), match=problem):
        load(write(text.replace(old, new) if old else text), *settings)


def test_set_goes_for_all_variants(write):
    found = load(write(TABLE), "layers=3", "train.model=roberta", variants=["near", "far"])
    assert names(found) == ["bm25", "negatives", "train", "near/figures"]
    assert found.steps[2].options["model"] == "roberta"
    assert [row.cells[None]["figures"] for row in found.rows] == ["near/figures", "near/figures"]


def test_set_may_be_for_one_variant(write):
    found = load(write(TABLE), "far.layers=2", "layers=3", "both.stage2.epochs=5", variants=["near", "far", "both"])
    steps = {step.name: step for step in found.steps}
    assert steps["near/train"].options["set"] == {"pooler.layers": 3}
    assert steps["far/train"].options["set"] == {"pooler.layers": 2}
    assert steps["both/stage2"].options["epochs"] == 5
    # A value may have the name of a variant.
    same = write(TABLE.replace("seed: 7", "seed: 7, far: 1").replace("model: bert", 'model: "${far}"'))
    assert load(same, "far=2").steps[2].options["model"] == 2
    with pytest.raises(UnknownNameError, match="'layrs'; did you mean 'layers'"):
        load(write(TABLE), "far.layrs=2")
    with pytest.raises(UnknownNameError, match="'fra'; did you mean 'far'"):
        load(write(TABLE), "fra.layers=2")


def test_a_value_may_be_options_that_variants_and_set_add_to(write):
    text = TABLE.replace("layers: [4, 6]", "options: {token: mean}").replace(
        "{layers: [1, 6]}", "{options: {layers: 2}}"
    )
    text = text.replace('pooler.layers: "${layers}"', 'pooler: "${options}"')
    found = load(write(text), "options.token=first", variants=["far"])
    assert found.steps[2].options["set"] == {"pooler": {"token": "first", "layers": 2}}
    with pytest.raises(InputError, match="the value 'seed' has no options, it is 7"):
        load(write(text), "seed.x=1")


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("far: {values: {layers", "far: {values: {layrs", 16, "variant 'far': .*'layrs'; did you mean 'layers'"),
        ("{figures: {run:", "{figurs: {run:", 18, "variant 'bm25_only': .*'figurs'; did you mean 'figures'"),
        ("far: {values", "far: {value", 16, "key of a variant 'value'; did you mean 'values'"),
        ("both: {", "far: {", 17, "'far' is here twice; the first is in line 16"),
        ("both: {", "bm25: {", 17, "the variant 'bm25' has the name of a step"),
        ("both: {", "seed-1: {", 17, "the variant 'seed-1' has the name of a folder of seeds"),
        ("both: {", "model: {", 17, "the variant 'model' has the name of a folder that a step writes"),
        ("seed: 7", "both: {x: 1}, seed: 7", 17, "the variant 'both' has the name of a value"),
        ("both: {", "b c: {", 17, "'b c' has other characters than letters"),
        ("both: {values: {trained", "both: {values: [trained], x: {y", 17, "unknown key of a variant 'x'"),
        ("both: {values: {trained: ", "both: 3 #", 17, "'both' is 3, and should be a mapping"),
        ("baseline: near", "baseline: nera", 20, "unknown variant 'nera'; did you mean 'near'"),
        ("table: [figures]", "table: [figurs]", 13, "unknown step 'figurs'; did you mean 'figures'"),
        ("table: [figures]", "table: figures", 13, "'table' is 'figures', and should be a list"),
        ("table: [figures]", "", 14, "variants need 'table'"),
        ("figures.RR@10", "figurs.RR@10", 16, "unknown step 'figurs'"),
        ("model: bert}, output: model}", 'model: "${steps.stage2}"}, output: model}', 10, "own output"),
    ],
)
def test_a_mistake_in_a_variant_is_said_with_file_and_line(write, old, new, line, problem):
    assert old in TABLE
    path = write(TABLE.replace(old, new, 1))
    with pytest.raises(DataError, match=f"^{path}:{line}: .*{problem}"):
        load(path, variants=None)


def test_steps_may_stand_in_any_order_and_values_may_name_them(write):
    text = TABLE.partition("variants:")[0].replace("table: [figures]\n", "")
    found = load(write(text), "teacher=x", variants=None)
    assert names(found) == ["bm25", "negatives", "train", "figures", "stage2", "taught", "unused"]
    assert found.steps[-1].options == {"model": None}
    assert found.values["trained"] == "${steps.train}"
    assert found.rows == ()


SMALL = """\
extends: recipe.yaml
name: small
values: {corpus: small, layers: [0, 1], extra: 1}
steps:
  - {name: train, with: {batch-size: "${extra}", set: {pooler: {normalize: true}}}}
  - {name: vectors, command: encode, with: {model: "${steps.train}"}, output: vectors}
variants:
  far: {values: {layers: [0, 2]}, expected: {nDCG@10: null}}
  bm25_only: null
  new: {values: {trained: "${steps.vectors}"}}
"""


def test_a_recipe_may_extend_another(write):
    write(TABLE)
    found = recipe.load_recipe(write(SMALL, "small.yaml"), {"teacher": "t"})
    assert [row.name for row in found.rows] == ["near", "far", "both", "distilled", "new"]
    steps = {step.name: step for step in found.steps}
    assert found.name == "small"
    assert steps["bm25"].options == {"source": "small"}
    assert steps["far/train"].options["set"] == {"pooler.layers": [0, 2], "pooler.normalize": True}
    assert steps["far/train"].options["batch_size"] == 1
    assert steps["new/vectors"].uses == ("near/train",)
    assert found.rows[1].expected == {("figures", "RR@10"): 0.1}
    assert found.rows[0].source == "Paper, Table 1"


def test_several_recipes_may_be_extended_the_later_over_the_earlier(write):
    write(TABLE)
    write("values: {layers: [9], seed: 3}\nbaseline: far\n", "mixin.yaml")
    found = recipe.load_recipe(write("extends: [recipe.yaml, mixin.yaml]\n"
                                     "values: {corpus: c, seed: 4, teacher: t}\n", "small.yaml"))  # fmt: skip
    assert (found.values["layers"], found.values["seed"], found.baseline) == ([9], 4, "far")


@pytest.mark.parametrize(
    ("text", "file", "line", "problem"),
    [
        ("name: x\nextends: recipe2.yaml\n", "small", 2, "unknown recipe 'recipe2.yaml'"),
        ("name: x\nextends: small.yaml\n", "small", 2, "extends this one"),
        ("name: x\nextends: 3\n", "small", 2, "'extends' is 3"),
        (SMALL.replace("extra: 1", ""), "small", 5, "unknown value 'extra'"),
        (SMALL.replace("far: {values: {l", "far: {values: {L"), "small", 8, "'Layers'; did you mean 'layers'"),
        (SMALL.replace("{values: {trained", "{values: {teached"), "small", 10, "unknown value of the recipe 'teached'"),
        (SMALL.replace("command: encode, ", ""), "small", 6, "'command' is missing"),
        (SMALL.replace("corpus: small", "corpus: null"), "recipe", 7, "needs a value for 'corpus'"),
        (SMALL + "table: [x]", "small", 11, "unknown step 'x'"),
    ],
)
def test_a_mistake_is_said_with_the_file_that_makes_it(write, tmp_path, text, file, line, problem):
    write(TABLE)
    path = write(text, "small.yaml")
    with pytest.raises(DataError, match=f"^{tmp_path}/{file}.yaml:{line}: .*{problem}"):
        recipe.load_recipe(path, {"teacher": "t"})


def test_labels_follow_what_is_set(write):
    text = TABLE.replace("title: Layers 4 and 6", "title: 'Layers ${layers}, ${trained}'").replace(
        "far: {", "far: {title: '${layers}', "
    )
    assert [row.title for row in load(write(text)).rows[:2]] == ["Layers 4,6, train", "1,6"]
    assert [row.title for row in load(write(text), "layers=2,3").rows[:2]] == ["Layers 2,3, train", "2,3"]
    assert load(write(text), "far.layers=5").rows[1].title == "5"
    with pytest.raises(DataError, match=r"yaml:15: unknown value 'layrs'; did you mean 'layers'"):
        load(write(text.replace("Layers ${layers}", "Layers ${layrs}")))


def test_steps_say_what_they_do(write):
    text = TABLE.replace("{name: train, command", "{name: train, title: 'Train on ${layers}', command")
    steps = {step.name: step.heading for step in load(write(text)).steps}
    assert steps["near/train"] == "near · Train on 4,6"
    assert steps["far/train"] == "far · Train on 1,6"
    assert steps["far/figures"] == "evaluate → far/figures.json"


SETS = """\
name: demo
values: {data: null, layers: [4, 6], metrics: RR@10, seed: 7}
steps:
  - {name: train, command: train, with: {model: bert, set: {pooler.layers: "${layers}"}}, output: model}
  - {name: vectors, command: encode, with: {model: "${steps.train}", texts: "${data}"}, output: vectors}
  - {name: figures, command: evaluate, with: {run: "${steps.vectors}", metrics: "${metrics}"}, output: figures.json}
table: [figures]
sets:
  web: {title: The web, values: {data: web}, expected: {source: Table 1, RR@10: 0.5}}
  forum_a: {values: {data: a}}
  forum_b: {values: {data: b, metrics: nDCG@10}}
means:
  forums: {title: Forums, of: ["forum_*"]}
  all: {title: Mean, of: [web, forums], expected: {RR@10: 0.4}}
variants:
  near: {title: "Layers ${layers}", expected: {source: Table 2, web.RR@10: 0.3, all.RR@10: 0.2}}
  far: {values: {layers: [1, 6]}}
baseline: near
"""
NO_VARIANTS = SETS.partition("variants:")[0]


def test_each_variant_is_run_with_each_set(write):
    found = recipe.load_recipe(write(SETS))
    assert names(found)[:6] == [
        *("near-web/train", "near-web/vectors", "near-web/figures"),
        *("near-forum_a/vectors", "near-forum_a/figures", "near-forum_b/vectors"),
    ]
    assert [row.name for row in found.rows[:6]] == [
        *("near-web", "near-forum_a", "near-forum_b", "near-forums", "near-all", "far-web"),
    ]
    web, *_, mean = found.rows[:5]
    assert (web.title, mean.title) == ("Layers 4,6 · The web", "Layers 4,6 · Mean")
    assert mean.of == ("near-web", "near-forums")
    assert (mean.cells, mean.expected, mean.source) == ({}, {("figures", "RR@10"): 0.2}, "Table 2")
    assert web.expected == {("figures", "RR@10"): 0.3}
    assert [row.baseline for row in found.rows[5:]] == [f"near-{one.partition('-')[2]}" for one in ROWS_OF_FAR]


ROWS_OF_FAR = ("far-web", "far-forum_a", "far-forum_b", "far-forums", "far-all")


def test_sets_without_variants_are_rows_by_themselves(write):
    found = recipe.load_recipe(write(NO_VARIANTS))
    assert [row.name for row in found.rows] == ["web", "forum_a", "forum_b", "forums", "all"]
    assert found.rows[0].expected == {("figures", "RR@10"): 0.5}
    assert found.rows[-1].expected == {("figures", "RR@10"): 0.4}
    assert found.rows[-1].of == ("web", "forums")


def test_variants_and_settings_can_be_named_by_a_part_of_a_row(write):
    path = write(SETS)
    settings = parse_set(["far.layers=[2]", "web.data=mine", "far-web.metrics=R@5"])
    assert [row.name for row in recipe.load_recipe(path, variants=["far"]).rows] == list(ROWS_OF_FAR)
    assert [row.name for row in recipe.load_recipe(path, variants=["forum_*"]).rows] == [
        *("near-forum_a", "near-forum_b", "near-forums", "far-forum_a", "far-forum_b", "far-forums"),
    ]
    plain = recipe.load_recipe(write(SETS.replace("web.RR@10", "RR@10").replace("sets:", "sets:\n  gone: null")))
    assert plain.rows[0].expected == {("figures", "RR@10"): 0.3}
    steps = {step.name: step for step in recipe.load_recipe(path, settings).steps}
    assert steps["near-web/vectors"].options["texts"] == steps["far-web/vectors"].options["texts"] == "mine"
    assert steps["far-web/train"].options["set"] == {"pooler.layers": [2]}
    assert steps["far-web/figures"].options["metrics"] == "R@5"
    assert steps["near-web/figures"].options["metrics"] == "RR@10"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("web.RR@10", "wbe.RR@10"), "unknown set or step 'wbe'; did you mean 'web'"),
        (("of: [web, forums]", "of: [web, all]"), "unknown set or variant 'all'"),
        (("of: [web, forums]", "of: web"), "'of' is 'web', and should be a list of sets"),
        (("forums: {title: Forums", "web: {title: Forums"), "the set 'web' has the name of another row"),
        (("  far: {", "  near-web: {}\n  near: {}\n  far: {"), "'near' is here twice"),
        (("baseline: near", "baseline: web"), "unknown variant 'web'"),
        (("  forum_a: {", "  figures: {"), "the set 'figures' has the name of a step"),
    ],
)
def test_a_wrong_set_or_mean_is_refused(write, change, problem):
    with pytest.raises((DataError, UnknownNameError), match=problem):
        recipe.load_recipe(write(SETS.replace(*change)))


def test_two_rows_of_one_name_are_refused(write):
    text = SETS.replace("  far: {", "  near-web: {}\n  far: {").replace("  forum_a:", "  web-web:")
    with pytest.raises(DataError, match="two rows have the name 'near-web-web'"):
        recipe.load_recipe(write(text))
