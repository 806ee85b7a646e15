"""Recipes: what is read, what is filled in, and where a mistake is said to be."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.errors import DataError, InputError, OptionError, UnknownNameError
from retrievalkit.recipe import recipe
from retrievalkit.recipe.files import find_recipe
from retrievalkit.recipe.settings import flatten, parse_set, read_yaml
from retrievalkit.recipe.step import merged

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
    expected: {source: a paper, nDCG@10: 0.5}
"""


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def load(path, *settings):
    return recipe.load_recipe(path, parse_set(settings))


def test_values_defaults_and_outputs_are_filled_in(write):
    found = load(write(TWO_STEPS), "corpus=data")
    index, search = found.steps
    assert found.name == "two steps"
    assert found.options_in(index, "out") == {"source": "data", "indexer": "bm25"}
    assert found.options_in(search, "out") == {
        "k": 10,
        "batch_size": 8,
        "indexes": ["out/bm25"],
        "queries": "data/queries.jsonl",
        "set": {"model.a": 1, "model.b": [2, 3]},
    }
    assert found.options_in(search, "")["indexes"] == ["bm25"]
    assert search.uses == ("bm25",)
    assert search.expected == {"source": "a paper", "nDCG@10": 0.5}
    assert found.values["queries"] == "data/queries.jsonl"


def test_an_override_changes_a_value_or_an_option_of_one_step(write):
    found = load(write(TWO_STEPS), "corpus=data", "k=5", "run.batch_size=1", "run.set.model.b=9", "bm25.indexer=flat")
    index, search = found.steps
    assert search.options["k"] == 5
    assert search.options["batch_size"] == 1
    assert search.options["set"] == {"model.a": 1, "model.b": 9}
    assert index.options["indexer"] == "flat"


def test_an_override_may_name_an_earlier_step(write):
    found = load(write(TWO_STEPS), "corpus=data", "run.model=${steps.bm25}/encoder")
    assert found.options_in(found.steps[1], "out")["model"] == "out/bm25/encoder"


def test_an_unknown_override_offers_the_nearest_name(write):
    with pytest.raises(UnknownNameError, match="did you mean 'corpus'"):
        load(write(TWO_STEPS), "corpsu=data")
    with pytest.raises(UnknownNameError, match="value of the recipe 'bm25'"):
        load(write(TWO_STEPS), "corpus=data", "bm25=x")


def test_a_value_that_was_not_given_says_how_to_give_it(write):
    with pytest.raises(InputError, match=r"recipe.yaml:13: .*needs a value for 'corpus'. Give it: --set corpus="):
        load(write(TWO_STEPS))


@pytest.mark.parametrize(
    ("old", "new", "line", "problem"),
    [
        ("  k: 10", "  k: [10", 6, "broken YAML"),
        ("values:", "valeus:", 3, "did you mean 'values'"),
        ("    command: search", "    comand: search", 17, "did you mean 'command'"),
        ("    command: search\n", "", 16, "'command' is missing"),
        ("${queries}", "${querys}", 18, "unknown value 'querys'; did you mean 'queries'"),
        ("${steps.bm25}", "${steps.bm52}", 18, "unknown step 'bm52'; did you mean 'bm25'"),
        ("${steps.bm25}", "${steps.run}", 18, r"reads its own output \(run -> run\)"),
        ("${corpus}/queries", "${queries}/queries", 6, "refers to itself"),
        ("  k: 10", "  k: ${kk}", 5, "unknown value 'kk'"),
        ("name: run\n", "name: bm25\n", 16, "another step has this name, in line 10"),
        ("name: run\n", "name: a run\n", 16, "has other characters than letters"),
        ("output: run.trec", "output: bm25", 16, "writes 'bm25' already"),
        ("output: run.trec", "output: ../run.trec", 19, "not inside the run's folder"),
        ("output: run.trec", "output: /run.trec", 19, "not inside the run's folder"),
        ("      indexer: bm25", "      source: bm25", 14, "is here twice; the first is in line 13"),
        ("    output: bm25\n", "", 17, "step 'bm25' has no output"),
        ("expected: {source: a paper, nDCG@10: 0.5}", "expected: 3", 20, "should be a mapping"),
        ("  - name: bm25", "  - nothing\n  - name: bm25", 9, "a step is a mapping"),
        ("steps:", "steps: 3\ndescription2:", 10, "did you mean 'description'"),
        ("name: two steps", "name: [two]", 1, "'name' is .*, and should be text"),
    ],
)
def test_a_mistake_is_said_with_file_and_line(write, old, new, line, problem):
    assert old in TWO_STEPS
    path = write(TWO_STEPS.replace(old, new, 1))
    with pytest.raises(DataError, match=f"^{path}:{line}: .*{problem}"):
        load(path, "corpus=data")


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "text"])
def test_a_file_that_holds_no_recipe_is_refused(write, text):
    with pytest.raises(DataError):
        load(write(text))


def test_another_encoding_is_refused_with_its_line(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"name: a\ndescription: caf\xe9\n")
    with pytest.raises(DataError, match=r"recipe.yaml:2: byte 0xe9"):
        load(path)


def test_scalars_follow_yaml_1_2(write):
    path = write("a: no\nb: 1e-5\nc: 1:30\nd: 10,12\ne: '7'\nf: 2024-01-02\ng: ~\nh: True\ni: -3\nj: .5\n")
    values = ["no", 1e-5, "1:30", "10,12", "7", "2024-01-02", None, True, -3, 0.5]
    assert read_yaml(path) == dict(zip("abcdefghij", values, strict=True))


def test_settings_become_nested_options():
    settings = ["pooler.layers=10,12", "epochs=3", "epochs=4", "a.b.c=true", "a.b.d=[1, x]", "e=", "f='3'", "g=x: y=z"]
    assert parse_set(settings) == {
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
def test_a_setting_that_makes_no_sense_is_refused(settings):
    with pytest.raises(OptionError, match=r"--set ['\"]"):
        parse_set(settings)


@given(st.dictionaries(st.from_regex(r"[a-z]{1,3}(\.[a-z]{1,3})?", fullmatch=True), st.integers(), max_size=4))
def test_flattening_undoes_nesting(options):
    try:
        nested = parse_set(f"{name}={value}" for name, value in options.items())
    except OptionError:
        return  # a name and a part of it
    assert flatten(nested) == options


def test_an_unknown_recipe_offers_those_that_come_along():
    with pytest.raises(UnknownNameError, match="did you mean 'quickstart'"):
        find_recipe("quikstart")


def test_reading_recipes_imports_nothing_heavy():
    heavy = "('yaml', 'torch', 'pydantic', 'numpy')"
    code = f"import sys, retrievalkit.recipe.recipe; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_example_in_the_documentation_is_a_recipe(write):
    shown = "\n".join((recipe.__doc__ or "").split("\n\n")[1:3])
    text = "\n".join(line[4:] for line in shown.splitlines())
    found = load(write(text), "corpus=data", "seeds=1,2")
    assert [step.name for step in found.steps][:5] == [
        *("near/seed-1/model", "near/seed-1/vectors", "near/seed-1/index", "near/seed-1/search", "near/seed-1/figures"),
    ]
    assert found.steps[0].options["batch_size"] == 32
    assert [row.title for row in found.rows] == ["Layers 4,6", "Layers 2,6"]
    assert Path(found.file).name == "recipe.yaml"


def test_a_step_that_names_another_component_does_not_take_the_options_of_the_default_one():
    shared = {"loss": "contrastive", "pooler": "${pooler}", "set": {"loss.temperature": 2, "pooler.dim": 8, "limit": 5}}
    own = {"loss": "distill_kl+flops", "pooler": "${pooler}", "set": {"loss": {"flops": {"flops_query": 1}}}}
    expected = {"pooler.dim": 8, "limit": 5, "loss.flops.flops_query": 1}
    assert merged(shared, own)["set"] == expected
    assert merged(shared, {"loss": "contrastive"})["set"] == shared["set"]
    assert merged({**shared, "set": {"loss": "${options}"}}, {"loss": "margin_mse"})["set"] == {}


@pytest.mark.parametrize("text", ["[" * 100_000, "a: &a [*a]"])
def test_values_nested_without_end_are_refused(write, text):
    with pytest.raises(DataError, match="nested too deep"):
        load(write(text))


def test_a_file_that_many_extend_is_read_once(tmp_path):
    for number in range(20):
        (tmp_path / f"r{number}.yaml").write_text(f"extends: [r{number + 1}.yaml, r{number + 1}.yaml]\n")
    (tmp_path / "r20.yaml").write_text("name: x\nsteps: []\n")
    assert recipe.load_recipe(tmp_path / "r0.yaml").name == "x"


@pytest.mark.parametrize("digits", ["9" * 5_000, "1e400"])
def test_a_number_beyond_all_types_stays_text(digits):
    assert parse_set([f"lr={digits}"]) == {"lr": digits}
