"""`import retrievalkit` is cold, typed and complete; wrong keywords name the nearest."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest

import retrievalkit as rk
from retrievalkit.api import options
from retrievalkit.api.words import reworded
from retrievalkit.errors import OptionError

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
    with pytest.raises(AttributeError, match="no attribute 'Retreiver'"):
        _ = rk.Retreiver


def test_functions_show_their_options():
    assert "batch_tokens" in inspect.signature(rk.rerank).parameters
    assert "learning_rate" in inspect.signature(rk.train).parameters
    with pytest.raises(OptionError, match="has no option 'corpsu'; did you mean 'corpus'"):
        rk.rerank("model", "examples", corpsu="x", output="out")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fusoin": "rrf"}, "search has no option 'fusoin'; did you mean 'fusion'?"),
        ({"k": 2.5}, "should be a valid integer"),
        ({"k": True}, "should be a valid integer"),
        ({"verify": "yes"}, "'verify' is 'yes', and should be True or False"),
        ({"set": "a=b"}, "'set' is 'a=b', and should be a dict"),
        ({"indexes": None}, "search needs 'indexes', and it was not given"),
    ],
)
def test_a_wrong_option_is_one_error(given, message):
    """Never SystemExit, nor an exception of click."""
    with (
        pytest.raises(OptionError, match=message.replace("?", r"\?")),
        options.settled("search", {"indexes": ["a"]} | given),
    ):
        pass


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "'x' exists. Choose another --output, or replace it with --overwrite.",
            "another output=..., or replace it with overwrite=True.",
        ),
        ("Give --run RUN.", "Give run=RUN."),
        ("Invalid value for '--k': 'x'", "Invalid value for 'k': 'x'"),
        ("Set it: --set encoder.document_length=512.", 'Set it: set={"encoder.document_length": 512}.'),
        ("Type rkit index a.b --output c. Or give --model.", "Type rkit index a.b --output c. Or give model=..."),
        ("--set indexer.blok is not an option of", "set indexer.blok is not an option of"),
        ("a --strange-thing of others", "a --strange-thing of others"),
    ],
)
def test_messages_name_options_as_python_does(message, words):
    """Commands to type stay as they are."""
    assert words in reworded(message)


def test_values_reach_the_program_as_they_are():
    """Texts that look like numbers or patterns, lists, None, floats; and what a command line would split."""
    given = {"pooler": {"layers": [4, 6], "name": "12"}, "warmup_ratio": 1e-5, "same_document": "(.+)#", "x": None}
    with options.settled("search", {"indexes": ["-a", "b c"], "weights": (0.25, 1), "set": given}) as values:
        assert values["indexes"] == ("-a", "b c")
        assert values["weights"] == "0.25,1"
        from retrievalkit.cli.options import parse

        assert parse(values["settings"]) == given
