"""Recipes: reading, values, variants and sets, and errors with file and line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from places import ROOT
from retrievalkit.errors import DataError, InputError, OptionError, UnknownNameError
from retrievalkit.recipes import recipe
from retrievalkit.recipes.settings import flatten, parse_set, read_yaml
from retrievalkit.recipes.step import merged

TWO_STEPS = """\
name: two steps
description: Index, then search.
values:
  corpus: null
  k: 10
  queries: ${corpus}/queries.jsonl
defaults:
  search: {k: "${k}", batch-size: 8, set: {model.a: 1}}
steps:
  - name: bm25
    command: index
    with:
      source: ${corpus}
      indexer: bm25
    output: bm25
  - name: run
    command: search
    with: {indexes: ["${steps.bm25}"], queries: "${queries}", set: {model: {b: [2, 3]}}}
    output: run.trec
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="recipe.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def load(path, *settings):
    return recipe.load_recipe(path, parse_set(settings))


def test_values_defaults_and_outputs_are_filled_in(write):
    loaded = load(write(TWO_STEPS), "corpus=data")
    index, search = loaded.steps
    assert loaded.name == "two steps"
    assert loaded.options_in(index, "out") == {"source": "data", "indexer": "bm25"}
    assert loaded.options_in(search, "out") == {
        "k": 10,
        "batch_size": 8,
        "indexes": ["out/bm25"],
        "queries": "data/queries.jsonl",
        "set": {"model.a": 1, "model.b": [2, 3]},
    }
    assert loaded.options_in(search, "")["indexes"] == ["bm25"]
    assert search.uses == ("bm25",)
    assert loaded.values["queries"] == "data/queries.jsonl"


def test_an_override_changes_a_value_or_an_option_of_one_step(write):
    """An override of a step's option is filled in like the option itself."""
    settings = ("k=5", "run.batch_size=1", "run.set.model.b=9", "bm25.indexer=flat", "run.model=${steps.bm25}/encoder")
    loaded = load(write(TWO_STEPS), "corpus=data", *settings)
    index, search = loaded.steps
    assert (search.options["k"], search.options["batch_size"], index.options["indexer"]) == (5, 1, "flat")
    assert search.options["set"] == {"model.a": 1, "model.b": 9}
    assert loaded.options_in(search, "out")["model"] == "out/bm25/encoder"


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("  k: 10", "  k: [10", 6, "broken YAML"),
        ("    command: search", "    comand: search", 17, "did you mean 'command'"),
        ("    command: search\n", "", 16, "'command' is missing"),
        ("${queries}", "${querys}", 18, "unknown value 'querys'; did you mean 'queries'"),
        ("${steps.bm25}", "${steps.bm52}", 18, "unknown step 'bm52'; did you mean 'bm25'"),
        ("${steps.bm25}", "${steps.run}", 18, r"reads its own output \(run -> run\)"),
        ("${corpus}/queries", "${queries}/queries", 6, "refers to itself"),
        ("name: run\n", "name: bm25\n", 16, "another step has this name, in line 10"),
        ("name: run\n", "name: a run\n", 16, "has characters other than letters"),
        ("output: run.trec", "output: bm25", 16, "writes 'bm25' already"),
        ("output: run.trec", "output: ../run.trec", 19, "not inside the run's folder"),
        ("      indexer: bm25", "      source: bm25", 14, "occurs twice, first in line 13"),
        ("    output: bm25\n", "", 17, "step 'bm25' has no output"),
        ("  - name: bm25", "  - nothing\n  - name: bm25", 9, "a step is a mapping"),
    ],
)
def test_a_mistake_is_reported_with_file_and_line(write, old, new, line, problem):
    assert old in TWO_STEPS
    path = write(TWO_STEPS.replace(old, new, 1))
    with pytest.raises(DataError, match=f"^{path}:{line}: .*{problem}"):
        load(path, "corpus=data")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"# nothing\n", "is empty"),
        (b"- a\n", "a recipe is a mapping"),
        (b"name: a\ndescription: caf\xe9\n", r"recipe.yaml:2: byte 0xe9"),
        (b"[" * 100_000, "nested too deeply"),
        (b"a: &a [*a]", "nested too deeply"),
    ],
    ids=range(5),
)
def test_a_file_without_a_recipe_is_refused(tmp_path, text, problem):
    (tmp_path / "recipe.yaml").write_bytes(text)
    with pytest.raises(DataError, match=problem):
        load(tmp_path / "recipe.yaml")


def test_scalars_follow_yaml_1_2(write):
    path = write("a: no\nb: 1e-5\nc: 1:30\nd: 10,12\ne: '7'\nf: 2024-01-02\ng: ~\nh: True\ni: -3\nj: .5\n")
    values = ["no", 1e-5, "1:30", "10,12", "7", "2024-01-02", None, True, -3, 0.5]
    assert read_yaml(path) == dict(zip("abcdefghij", values, strict=True))


def test_settings_become_nested_options():
    settings = ["pooler.layers=10,12", "epochs=3", "epochs=4", "a.b.c=true", "a.b.d=[1, x]", "e=", "f='3'", "g=x: y=z"]
    beyond = {"h": "9" * 5_000, "i": "1e400"}
    assert parse_set([*settings, *(f"{name}={digits}" for name, digits in beyond.items())]) == {
        **beyond,
        "pooler": {"layers": "10,12"},
        "epochs": 4,
        "a": {"b": {"c": True, "d": [1, "x"]}},
        "e": "",
        "f": "3",
        "g": "x: y=z",
    }


@pytest.mark.parametrize(
    "settings",
    [["epochs"], ["=3"], ["pooler..layers=3"], ["a=1", "a.b=2"], ["a.b=2", "a=1"], ["a=[1"], ["a='1"], [""]],
)
def test_an_invalid_setting_is_refused(settings):
    with pytest.raises(OptionError, match=r"--set ['\"]"):
        parse_set(settings)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,3}(\.[a-z]{1,3})?", fullmatch=True), st.integers(), max_size=4))
def test_flattening_undoes_nesting(options):
    try:
        nested = parse_set(f"{name}={value}" for name, value in options.items())
    except OptionError:
        return  # a name and its prefix
    assert flatten(nested) == options


def test_the_example_in_the_documentation_is_a_recipe(write):
    text = (ROOT / "recipes" / "README.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    loaded = load(write(text), "corpus=data", "seeds=1,2")
    assert [step.name for step in loaded.steps][:5] == [
        *("near/seed-1/model", "near/seed-1/vectors", "near/seed-1/index", "near/seed-1/search", "near/seed-1/figures"),
    ]
    assert loaded.steps[0].options["batch_size"] == 32
    assert [row.title for row in loaded.rows] == ["Layers 4,6", "Layers 2,6"]
    assert Path(loaded.file).name == "recipe.yaml"


def test_options_of_the_default_component_do_not_apply_to_another_component():
    shared = {"loss": "contrastive", "pooler": "${pooler}", "set": {"loss.temperature": 2, "pooler.dim": 8, "limit": 5}}
    own = {"loss": "distill_kl+flops", "pooler": "${pooler}", "set": {"loss": {"flops": {"flops_query": 1}}}}
    expected = {"pooler.dim": 8, "limit": 5, "loss.flops.flops_query": 1}
    assert merged(shared, own)["set"] == expected
    assert merged(shared, {"loss": "contrastive"})["set"] == shared["set"]
    assert merged({**shared, "set": {"loss": "${options}"}}, {"loss": "margin_mse"})["set"] == {}


# --- variants and sets ----------------------------------------------------------------------------------------------

TABLE = """\
name: demo
values: {corpus: null, layers: [4, 6], teacher: null, trained: "${steps.train}", seed: 7}
defaults:
  train: {examples: "${steps.negatives}", seed: "${seed}", set: {pooler.layers: "${layers}"}}
steps:
  - {name: figures, command: evaluate, with: {run: "${trained}"}, output: figures.json}
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


def load_table(path, *settings, variants=OTHERS):
    return recipe.load_recipe(path, parse_set(["corpus=data", *settings]), variants)


def names(loaded):
    return [step.name for step in loaded.steps]


def test_steps_that_vary_run_once_per_variant_and_others_once(write):
    loaded = load_table(write(TABLE))
    assert names(loaded) == [
        *("bm25", "negatives", "near/train", "near/figures"),
        *("far/train", "far/figures"),
        *("both/stage2", "both/figures"),
        "bm25_only/figures",
    ]
    steps = {step.name: step for step in loaded.steps}
    assert steps["far/train"].output == "far/model"
    assert steps["far/train"].options["set"] == {"pooler.layers": [1, 6]}
    assert loaded.options_in(steps["far/figures"], "out") == {"run": "out/far/model"}
    assert loaded.options_in(steps["both/stage2"], "out")["model"] == "out/near/model"
    assert loaded.options_in(steps["bm25_only/figures"], "out") == {"run": "out/bm25"}
    assert steps["both/stage2"].uses == ("negatives", "near/train")


def test_rows_have_titles_references_and_their_steps(write):
    loaded = load_table(write(TABLE))
    near, far, *_ = loaded.rows
    assert [row.title for row in loaded.rows] == ["Layers 4 and 6", "far", "both", "bm25_only"]
    assert near.cells == {None: {"figures": "near/figures"}}
    assert near.expected == {("figures", "nDCG@10"): 0.4}
    assert far.expected == {("figures", "RR@10"): 0.1, ("figures", "nDCG@10"): 0.3}
    assert (near.source, far.source) == ("Paper, Table 1", "")
    assert (loaded.baseline, loaded.table) == ("near", ("figures",))


SEEDS = "seeds: [42, 43]\n"
SHARED = ["bm25", "negatives"]


@pytest.mark.parametrize(
    ("more", "settings", "variants", "expected"),
    [
        ("", [], ["both"], [*SHARED, "near/train", "both/stage2", "both/figures"]),
        ("", ["layers=3"], ["near", "far"], [*SHARED, "train", "near/figures"]),
        ("", ["teacher=x"], ["distilled"], [*SHARED, "distilled/taught", "distilled/figures"]),
        ("", ["seeds=[5]"], ["far"], [*SHARED, "far/seed-5/train", "far/seed-5/figures"]),
        (SEEDS, ["seeds=43"], ["far"], [*SHARED, "far/seed-43/train", "far/seed-43/figures"]),
        (
            SEEDS,
            [],
            ["f*"],
            [*SHARED, *(f"far/seed-{seed}/{step}" for seed in (42, 43) for step in ("train", "figures"))],
        ),
        (SEEDS, [], ["bm25_only"], ["bm25", "bm25_only/figures"]),
    ],
)
def test_steps_have_the_same_folders_as_in_a_run_of_all_variants(write, more, settings, variants, expected):
    loaded = load_table(write(TABLE + more), *settings, variants=variants)
    assert names(loaded) == expected
    if (more, variants) == (SEEDS, ["f*"]):
        assert [step.options["seed"] for step in loaded.steps if step.command == "train"] == [42, 43]
        assert loaded.rows[0].cells == {seed: {"figures": f"far/seed-{seed}/figures"} for seed in (42, 43)}


@pytest.mark.parametrize(
    ("change", "settings", "variants", "problem"),
    [
        (("", ""), ["seeds=42,x"], None, r"^'seeds' is .*list of whole numbers"),
        (("", ""), ["seeds=42,42"], None, r"^'seeds' is .*each seed once"),
        (("seeds: [42, 43]", "seeds: [a]"), [], None, r"yaml:21: 'seeds' is \['a'\]"),
        (
            (", seed: 7}", "}"),
            [f"{step}.seed=1" for step in ("train", "stage2", "taught")],
            None,
            "'seed', which the rec",
        ),
        (("", ""), ["layesr=3"], None, "did you mean 'layers'"),
        (("", ""), ["corpus=null"], ["near"], r"recipe.yaml:7: .*needs a value for 'corpus'. Set it: --set corpus="),
        (("", ""), ["seed=3"], None, "--set seeds=3"),
        (("", ""), ["far.layrs=2"], OTHERS, "'layrs'; did you mean 'layers'"),
        (("", ""), ["fra.layers=2"], OTHERS, "'fra'; did you mean 'far'"),
        (("", ""), ["layers.x=1"], OTHERS, r"the value 'layers' has no options: it is \[4, 6\]"),
        (("", ""), [], ["near", "fra"], "variant of the recipe 'fra'; did you mean 'far'"),
        ((TABLE[TABLE.index("variants:") :], ""), ["seeds=1"], ["near"], "'demo' has no variants"),
        (("", ""), [], None, r"yaml:11: .* value for 'teacher'.*Without it: --variants near,far,both,bm25_only$"),
    ],
)
def test_invalid_settings_and_variants_are_refused(write, change, settings, variants, problem):
    with pytest.raises((InputError, OptionError), match=problem):
        load_table(write((TABLE + SEEDS).replace(*change)), *settings, variants=variants)


def test_set_may_change_a_single_variant(write):
    loaded = load_table(
        write(TABLE), "far.layers=2", "layers=3", "both.stage2.epochs=5", variants=["near", "far", "both"]
    )
    steps = {step.name: step for step in loaded.steps}
    assert steps["near/train"].options["set"] == {"pooler.layers": 3}
    assert steps["far/train"].options["set"] == {"pooler.layers": 2}
    assert steps["both/stage2"].options["epochs"] == 5
    # A value may have the name of a variant.
    same = write(TABLE.replace("seed: 7", "seed: 7, far: 1").replace("model: bert", 'model: "${far}"'))
    assert load_table(same, "far=2").steps[2].options["model"] == 2


def test_variants_and_set_add_to_a_value_of_options(write):
    text = TABLE.replace("layers: [4, 6]", "options: {token: mean}").replace(
        "{layers: [1, 6]}", "{options: {layers: 2}}"
    )
    text = text.replace('pooler.layers: "${layers}"', 'pooler: "${options}"')
    loaded = load_table(write(text), "options.token=first", variants=["far"])
    assert loaded.steps[2].options["set"] == {"pooler": {"token": "first", "layers": 2}}


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("far: {values: {layers", "far: {values: {layrs", 16, "variant 'far': .*'layrs'; did you mean 'layers'"),
        ("{figures: {run:", "{figurs: {run:", 18, "variant 'bm25_only': .*'figurs'; did you mean 'figures'"),
        ("far: {values", "far: {value", 16, "key of a variant 'value'; did you mean 'values'"),
        ("both: {", "bm25: {", 17, "the variant 'bm25' has the name of a step"),
        ("both: {", "seed-1: {", 17, "the variant 'seed-1' has the name of a folder of seeds"),
        ("both: {", "model: {", 17, "the variant 'model' has the name of a folder that a step writes"),
        ("seed: 7", "both: {x: 1}, seed: 7", 17, "the variant 'both' has the name of a value"),
        ("baseline: near", "baseline: nera", 20, "unknown variant 'nera'; did you mean 'near'"),
        ("table: [figures]", "table: [figurs]", 13, "unknown step 'figurs'; did you mean 'figures'"),
        ("table: [figures]", "", 14, "variants need 'table'"),
        ("figures.RR@10", "figurs.RR@10", 16, "unknown step 'figurs'"),
    ],
)
def test_a_mistake_in_a_variant_is_reported_with_file_and_line(write, old, new, line, problem):
    assert old in TABLE
    path = write(TABLE.replace(old, new, 1))
    with pytest.raises(DataError, match=f"^{path}:{line}: .*{problem}"):
        load_table(path, variants=None)


def test_steps_may_be_in_any_order_and_values_may_refer_to_steps(write):
    text = TABLE.partition("variants:")[0].replace("table: [figures]\n", "")
    loaded = load_table(write(text), "teacher=x", variants=None)
    assert names(loaded) == ["bm25", "negatives", "train", "figures", "stage2", "taught", "unused"]
    assert loaded.steps[-1].options == {"model": None}
    assert loaded.values["trained"] == "${steps.train}"
    assert loaded.rows == ()


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
    loaded = recipe.load_recipe(write(SMALL, "small.yaml"), {"teacher": "t"})
    assert [row.name for row in loaded.rows] == ["near", "far", "both", "distilled", "new"]
    steps = {step.name: step for step in loaded.steps}
    assert loaded.name == "small"
    assert steps["bm25"].options == {"source": "small"}
    assert steps["far/train"].options["set"] == {"pooler.layers": [0, 2], "pooler.normalize": True}
    assert steps["far/train"].options["batch_size"] == 1
    assert steps["new/vectors"].uses == ("near/train",)
    assert loaded.rows[1].expected == {("figures", "RR@10"): 0.1}
    assert loaded.rows[0].source == "Paper, Table 1"
    # Later recipes override earlier recipes.
    write("values: {layers: [9], seed: 3}\nbaseline: far\n", "mixin.yaml")
    text = "extends: [recipe.yaml, mixin.yaml]\nvalues: {corpus: c, seed: 4, teacher: t}\n"
    loaded = recipe.load_recipe(write(text, "small.yaml"))
    assert (loaded.values["layers"], loaded.values["seed"], loaded.baseline) == ([9], 4, "far")


@pytest.mark.parametrize(
    ("text", "file", "line", "problem"),
    [
        ("name: x\nextends: recipe2.yaml\n", "small", 2, "unknown recipe 'recipe2.yaml'"),
        ("name: x\nextends: small.yaml\n", "small", 2, "extends this one"),
        (SMALL.replace("extra: 1", ""), "small", 5, "unknown value 'extra'"),
        (SMALL.replace("far: {values: {l", "far: {values: {L"), "small", 8, "'Layers'; did you mean 'layers'"),
        (SMALL.replace("{values: {trained", "{values: {teached"), "small", 10, "unknown value of the recipe 'teached'"),
        (SMALL.replace("corpus: small", "corpus: null"), "recipe", 7, "needs a value for 'corpus'"),
    ],
)
def test_a_mistake_is_reported_with_the_file_that_contains_it(write, tmp_path, text, file, line, problem):
    write(TABLE)
    path = write(text, "small.yaml")
    with pytest.raises(DataError, match=f"^{tmp_path}/{file}.yaml:{line}: .*{problem}"):
        recipe.load_recipe(path, {"teacher": "t"})


def test_titles_and_headings_follow_the_settings(write):
    titled = TABLE.replace("{name: train, command", "{name: train, title: 'Train on ${layers}', command")
    steps = {step.name: step.heading for step in load_table(write(titled)).steps}
    assert (steps["far/train"], steps["far/figures"]) == ("far · Train on 1,6", "evaluate → far/figures.json")
    text = TABLE.replace("title: Layers 4 and 6", "title: 'Layers ${layers}, ${trained}'").replace(
        "far: {", "far: {title: '${layers}', "
    )
    assert [row.title for row in load_table(write(text)).rows[:2]] == ["Layers 4,6, train", "1,6"]
    assert [row.title for row in load_table(write(text), "layers=2,3").rows[:2]] == ["Layers 2,3, train", "2,3"]
    assert load_table(write(text), "far.layers=5").rows[1].title == "5"


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


def test_each_variant_is_run_with_each_set(write):
    loaded = recipe.load_recipe(write(SETS))
    assert names(loaded)[:6] == [
        *("near-web/train", "near-web/vectors", "near-web/figures"),
        *("near-forum_a/vectors", "near-forum_a/figures", "near-forum_b/vectors"),
    ]
    assert [row.name for row in loaded.rows[:6]] == [
        *("near-web", "near-forum_a", "near-forum_b", "near-forums", "near-all", "far-web"),
    ]
    web, *_, mean = loaded.rows[:5]
    assert (web.title, mean.title) == ("Layers 4,6 · The web", "Layers 4,6 · Mean")
    assert mean.of == ("near-web", "near-forums")
    assert (mean.cells, mean.expected, mean.source) == ({}, {("figures", "RR@10"): 0.2}, "Table 2")
    assert web.expected == {("figures", "RR@10"): 0.3}
    sets = ("web", "forum_a", "forum_b", "forums", "all")
    assert [(row.name, row.baseline) for row in loaded.rows[5:]] == [(f"far-{name}", f"near-{name}") for name in sets]
    # Without variants, sets are rows.
    loaded = recipe.load_recipe(write(SETS.partition("variants:")[0]))
    assert [row.name for row in loaded.rows] == list(sets)
    assert loaded.rows[0].expected == {("figures", "RR@10"): 0.5}
    assert (loaded.rows[-1].expected, loaded.rows[-1].of) == ({("figures", "RR@10"): 0.4}, ("web", "forums"))


def test_variants_and_settings_may_name_a_part_of_a_row(write):
    path = write(SETS)
    settings = parse_set(["far.layers=[2]", "web.data=mine", "far-web.metrics=R@5"])
    assert {row.name.partition("-")[0] for row in recipe.load_recipe(path, variants=["far"]).rows} == {"far"}
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
    ("changes", "problem"),
    [
        # The variant near-web with the set web, and the variant near with the set web-web.
        (
            [("  far: {", "  near-web: {}\n  far: {"), ("  forum_a:", "  web-web:")],
            "two rows have the name 'near-web-web'",
        ),
        ([("web.RR@10", "wbe.RR@10")], "unknown set or step 'wbe'; did you mean 'web'"),
        ([("of: [web, forums]", "of: [web, all]")], "unknown set or variant 'all'"),
        ([("forums: {title: Forums", "web: {title: Forums")], "the set 'web' has the name of another row"),
        ([("baseline: near", "baseline: web")], "unknown variant 'web'"),
    ],
)
def test_a_wrong_set_or_mean_is_refused(write, changes, problem):
    text = SETS
    for change in changes:
        text = text.replace(*change)
    with pytest.raises((DataError, UnknownNameError), match=problem):
        recipe.load_recipe(write(text))
