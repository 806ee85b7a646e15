"""`import retrievalkit` is cold, typed and complete; wrong keywords name the nearest."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import subprocess
import sys

import pytest

import retrievalkit as rk
from places import ROOT
from retrievalkit.cli.command import command_names
from retrievalkit.errors import OptionError, UnknownNameError
from retrievalkit.search.search import search

HEAVY = {"click", "datasets", "faiss", "jinja2", "numpy", "pandas", "pyarrow", "pydantic", "rich", "scipy", "torch"}


def modules_after(program):
    ran = subprocess.run(
        [sys.executable, "-c", f"import sys, json\n{program}\nprint(json.dumps(sorted(sys.modules)))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in json.loads(ran.stdout)}


def test_the_import_is_cold():
    """Names are found without importing anything of ours."""
    assert not HEAVY & modules_after("import retrievalkit as rk; dir(rk)")


def test_an_index_of_texts_needs_no_torch():
    """Nor metrics, nor tables."""
    loaded = modules_after("import retrievalkit as rk; rk.Index, rk.Hybrid, rk.Run, rk.mine_negatives, rk.train")
    assert not loaded & {"torch", "transformers", "scipy", "ir_measures", "pandas", "datasets"}


def test_every_name_is_there_and_documented():
    for name in set(rk.__all__) - {"__version__", "hookimpl"}:
        assert name in dir(rk)
        assert inspect.getdoc(getattr(rk, name)), name
    with pytest.raises(AttributeError, match="Retreiver"):
        _ = rk.Retreiver


def test_type_checkers_see_the_names_that_there_are():
    stub = ast.parse((ROOT / "retrievalkit" / "__init__.pyi").read_text())
    declared = {node.names[0].name: node.module for node in stub.body if isinstance(node, ast.ImportFrom)}
    assert {*declared} - {"HookimplMarker"} == {*rk.__all__} - {"__version__", "hookimpl"}
    assert all(getattr(rk, name) is getattr(importlib.import_module(declared[name]), name) for name in declared)


def test_a_name_of_a_missing_distribution_is_absent_and_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "retrievalkit_serve", None)
    monkeypatch.delitem(sys.modules, "retrievalkit_serve.serve", raising=False)
    assert not hasattr(rk, "serve")
    with pytest.raises(AttributeError, match="pip install retrievalkit-serve"):
        _ = rk.serve


def test_functions_show_their_options():
    assert "batch_tokens" in inspect.signature(rk.rerank).parameters
    assert "learning_rate" in inspect.signature(rk.train).parameters
    with pytest.raises(OptionError, match="has no option 'corpsu'; did you mean 'corpus'"):
        rk.rerank("model", "examples", corpsu="x", output="out")


WITHOUT = {"output", "tune_queries", "tune_metric", "interactive", "as_json", "set", "named_options"}
"""Options of `search` that have another form in Python: Run.save, and arguments of Hybrid.tune."""


def test_the_options_of_search_are_those_of_indexes_and_hybrids():
    functions = (rk.Index.open, rk.Index.search, rk.Hybrid, rk.Hybrid.tune)
    shown = {name for function in functions for name in inspect.signature(function).parameters}
    assert set(inspect.signature(search).parameters) - shown == WITHOUT - {"set"} | {"tune"}


def test_the_docs_name_a_counterpart_for_each_command():
    table = (ROOT / "docs" / "how-to" / "from-python.md").read_text()
    assert not [name for name in command_names() if f"rkit {name}`" not in table]


def test_a_command_of_a_plugin_is_called_by_its_name(tiny_model, tiny_collection, tmp_path):
    places = {"queries": tiny_collection.queries, "qrels": tiny_collection.qrels, "corpus": tiny_collection.corpus}
    options = {"model": tiny_model, "pooler": "viewers", "limit": 4, "plot": False, "output": tmp_path / "views"}
    assert rk.command("analyse-views", **options, **places).documents == 4
    with pytest.raises(UnknownNameError, match="did you mean 'analyse-views'"):
        rk.command("analyze-views")
