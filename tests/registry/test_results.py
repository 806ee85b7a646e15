"""A wrong result of a plugin is an error that names the component, its plugin and the result."""

from __future__ import annotations

import numpy as np
import pytest

from retrievalkit.contracts import Candidates, Found, Question
from retrievalkit.data.queries import Query
from retrievalkit.errors import PluginError
from retrievalkit.evaluation.metrics import per_query
from retrievalkit.mining.filters import make_filters, mine_part
from retrievalkit.mining.options import MiningOptions
from retrievalkit.models.rerankers import open_reranker, score_pairs
from retrievalkit.search.fusion import Fusion

PLUGIN = """
import numpy as np
from retrievalkit import hookimpl
from retrievalkit.contracts import Filter, FusionMethod, Metric, Reranker


class Column(FusionMethod):
    def parts(self, found):
        return found.scores[:, 0]


class Garbage(Filter):
    def keep_of(self, found, left):
        return "garbage"


class NaN(Metric):
    def value(self, query):
        return float("nan")


class Scores(Reranker):
    @classmethod
    def load(cls, source, *, max_length=None):
        reranker = cls()
        reranker.scores = source.split()
        if source:
            reranker.fingerprint = "1"
        return reranker

    def score(self, pairs, **options):
        return [word if word == "high" else float(word) for word in self.scores]


@hookimpl
def register_fusions(register):
    register("column", "wrong_results:Column")


@hookimpl
def register_filters(register):
    register("garbage", "wrong_results:Garbage")


@hookimpl
def register_metrics(register):
    register("NaN", "wrong_results:NaN")


@hookimpl
def register_rerankers(register):
    register("scores", "wrong_results:Scores")
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


def evaluated():
    per_query({"q": [("a", 1.0)]}, {"q": {"a": 1}}, "NaN")


def reranked(source):
    return lambda: score_pairs(open_reranker(f"scores:{source}"), [("query", ("", "text"))] * 2)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (fused, r"fusion 'column' of plugin 'wrong_results'.* shape \(2,\), and should"),
        (mined, "filter 'garbage' of plugin 'wrong_results'"),
        (evaluated, "is nan for query 'q'"),
        (reranked("high high"), "reranker 'scores' of plugin 'wrong_results'"),
        (reranked("1"), r"shape \(1,\) for 2 pairs"),
        (reranked("1 inf"), "not finite"),
        (reranked(""), "the re-ranker 'scores' has no fingerprint"),
    ],
)
def test_a_wrong_result_names_the_component(use, message):
    with pytest.raises(PluginError, match=message):
        use()
