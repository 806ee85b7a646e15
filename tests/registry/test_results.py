"""A plugin's result of the wrong form is an error that names the plugin, the component and the form."""

from __future__ import annotations

import numpy as np
import pytest

from retrievalkit.contracts import Candidates, Found, Question
from retrievalkit.data.queries import Query
from retrievalkit.errors import PluginError
from retrievalkit.mining.filters import make_filters, mine_part
from retrievalkit.mining.options import MiningOptions
from retrievalkit.models.rerankers import open_reranker, score_pairs
from retrievalkit.search.fusion import Fusion

PLUGIN = """
import numpy as np
from retrievalkit import hookimpl
from retrievalkit.contracts import Filter, FusionMethod, Reranker


class Column(FusionMethod):
    def parts(self, found):
        return found.scores[:, 0]


class Garbage(Filter):
    def keep_of(self, found, left):
        return "garbage"


class Words(Reranker):
    fingerprint = "1"

    @classmethod
    def load(cls, source, *, max_length=None):
        return cls()

    def score(self, pairs, **options):
        return ["high"] * len(pairs)


@hookimpl
def register_fusions(register):
    register("column", "wrong_results:Column")


@hookimpl
def register_filters(register):
    register("garbage", "wrong_results:Garbage")


@hookimpl
def register_rerankers(register):
    register("words", "wrong_results:Words")
"""


@pytest.fixture(autouse=True)
def plugin(tmp_path, monkeypatch, fresh_registry):
    (tmp_path / "wrong_results.py").write_text(PLUGIN)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(tmp_path / "wrong_results.py"))
    fresh_registry()


def fused():
    Fusion("column")(Candidates(["a", "b"], np.ones((2, 3)), np.ones((2, 3), np.int32)), 2)


def mined():
    options = MiningOptions(filters=("garbage",))
    found = Found(Question(Query("q", "what"), ("q",), frozenset()), ["a", "b"], [2.0, 1.0])
    mine_part([found], options, make_filters(options, lambda name: None))


def reranked():
    score_pairs(open_reranker("words:"), [("query", ("", "text"))])


@pytest.mark.parametrize(
    ("use", "component"), [(fused, "fusion 'column'"), (mined, "filter 'garbage'"), (reranked, "reranker 'words'")]
)
def test_it_names_the_component_and_its_plugin(use, component):
    with pytest.raises(PluginError, match=f"{component} of plugin 'wrong_results'"):
        use()
