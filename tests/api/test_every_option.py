"""All that the command line can do is there in Python, under the same names of options.

A new command or option fails here until it has its place in Python: let the function pass it on, and list it below.
"""

from __future__ import annotations

import inspect
import re

import pytest

import retrievalkit as rk
from places import ROOT
from retrievalkit import errors
from retrievalkit.api import options
from retrievalkit.cli.derived import DerivedCommand

WHOLE = {
    "compare": rk.compare,
    "convert": rk.convert,
    "doctor": rk.doctor,
    "evaluate": rk.Run.evaluate,
    "encode": rk.encode,
    "export": rk.export,
    "index": rk.index,
    "mine-negatives": rk.mine_negatives,
    "plugins list": rk.plugins,
    "plugins new": rk.new_plugin,
    "plugins package": rk.package_plugin,
    "plugins show": rk.show_plugin,
    "pretrain": rk.pretrain,
    "quickstart": rk.quickstart,
    "rerank apply": rk.rerank,
    "rerank train": rk.train_reranker,
    "run": rk.run,
    "serve": rk.serve,
    "train": rk.train,
}
"""Command -> the function that takes all of its options."""

_RAY = "ray ray_workers ray_cpus ray_gpus"
PARTS = {
    "search": {
        rk.Index.open: f"corpus model precision strict verify {_RAY}",
        rk.Index.search: "query k split explain strict",
        rk.Hybrid: "indexes fusion weights normalization missing rrf_k depth corpus",
        rk.Hybrid.tune: "queries k",
    },
}
"""Command -> the functions that share its options, and which of them each takes."""

OTHERWISE = {
    "evaluate": {"run": "the run itself", "per_query": "Evaluation.per_query"},
    "mine-negatives": {"from": "source"},
    "search": {
        "output": "Run.save",
        "tune": "qrels of Hybrid.tune",
        "tune_queries": "queries of Hybrid.tune",
        "tune_metric": "metric of Hybrid.tune",
        "set": "indexer_options and encoder_options of Index.open",
    },
}
"""Command -> options that have another form in Python."""


def shown(function):
    """What a notebook completes."""
    return set(inspect.signature(function).parameters) - {"self"}


@pytest.mark.parametrize("name", options.command_names())
def test_a_command_has_all_of_its_options_in_python(name):
    if name not in WHOLE and name not in PARTS:
        assert name not in options.main.commands, f"rkit {name} has no function in Python"
        return  # of a plugin: rk.command
    known = set(options.parameters_of(options.command_named(name)))
    given = shown(WHOLE[name]) if name in WHOLE else set().union(*map(shown, PARTS[name]))
    derived = isinstance(options.command_named(name), DerivedCommand)
    otherwise = {"set"} & known if derived else set()  # of components: pooler_options
    assert known - given == (set(OTHERWISE.get(name, {})) | otherwise) - given


@pytest.mark.parametrize("name", PARTS)
def test_a_function_shows_no_option_that_it_does_not_pass_on(name):
    known = set(options.parameters_of(options.command_named(name)))
    for function, words in PARTS[name].items():
        assert shown(function) & known == set(words.split()), function.__qualname__


@pytest.mark.parametrize("name", [*WHOLE, *PARTS])
def test_every_option_is_documented(name):
    """In the docstring: `help` and notebooks show it."""
    for function in [WHOLE[name]] if name in WHOLE else PARTS[name]:
        text = f"{inspect.getdoc(function)} {inspect.getdoc(function.__init__)}"
        assert [one for one in shown(function) if not re.search(rf"\*?\b{one}:", text)] == []


def test_the_docs_name_a_counterpart_for_each_command():
    table = (ROOT / "docs" / "how-to" / "from-python.md").read_text()
    for name in options.command_names():
        assert f"rkit {name}`" in table, f"{name} is not in the table"
    for function in WHOLE.values():
        assert f"{function.__name__.rpartition('.')[2]}`" in table


def test_a_command_of_a_plugin_is_called_by_its_name(tiny_model, tiny_collection, tmp_path):
    """And gives what it would print as JSON."""
    words = {"queries": tiny_collection.queries, "qrels": tiny_collection.qrels, "corpus": tiny_collection.corpus}
    found = rk.command(
        "analyse-views", model=tiny_model, pooler="viewers", limit=4, plot=False, output=tmp_path / "views", **words
    )
    assert "views" in str(found)
    with pytest.raises(errors.UnknownNameError, match="did you mean 'analyse-views'"):
        rk.command("analyze-views")
