"""A wrong result of a plugin is an error that names the component, its plugin and the result."""

from __future__ import annotations

import numpy as np
import pytest

import retrievalkit as rk
from retrievalkit.contracts import Candidates, Found, Question, Text
from retrievalkit.data.queries import Query
from retrievalkit.errors import PluginError
from retrievalkit.evaluation.metrics import per_query
from retrievalkit.mining.filters import make_filters, mine_part
from retrievalkit.mining.options import MiningOptions
from retrievalkit.models.rerankers import open_reranker, score_pairs
from retrievalkit.models.retriever import Retriever
from retrievalkit.search.fusion import Fusion

PLUGIN = """
import json

import numpy as np
import torch

from retrievalkit import hookimpl
from retrievalkit.contracts import (
    Batch, Encoder, EncoderInfo, Filter, FusionMethod, Indexer, Metric, Pooler, Representation, Reranker, TokenStates,
)


class Words(Encoder):
    # Without weights; `wrong` is the part of its result that is wrong.
    def __init__(self, model, *, wrong: str = ""):
        super().__init__()
        self.info, self.wrong = EncoderInfo(8, 1, 100), wrong

    def tokenize(self, texts, side):
        return [[len(word) for word in text.body.split()] for text in texts][self.wrong == "tokens" :]

    def collate(self, token_ids, side):
        ids = torch.tensor([list(row) for row in token_ids])[self.wrong == "batch" :]
        return Batch(ids, torch.ones_like(ids), torch.zeros_like(ids).bool())

    def forward(self, batch, layers):
        states = batch.input_ids[..., None].float() * torch.arange(1, 9)
        wrong = {"layer": {7: states}, "list": [states], "width": {1: states[..., :3]}, "numpy": {1: states.numpy()}}
        layers = wrong.get(self.wrong, {1: states})
        result = TokenStates(layers, batch.attention_mask, batch.input_ids, batch.special_mask)
        return None if self.wrong == "none" else result

    def save(self, folder):
        (folder / "config.json").write_text("{}")


class Result(Pooler):
    # Its result is an expression.
    def __init__(self, info, *, result: str):
        super().__init__()
        self.result = result

    def forward(self, states, side):
        vectors = states.last[:, :1]
        return eval(self.result, globals(), {"v": vectors, "weights": vectors[:, 0].relu()})


class Hits(Indexer):
    # Its hits are an expression.
    indexes = "texts"

    def __init__(self, *, hits: str, counts: str = "{'texts': 2}"):
        self.hits, self.counts = hits, counts

    def build(self, source, index_dir):
        (index_dir / "texts.json").write_text("[]")
        return eval(self.counts)

    def open(self, index_dir):
        pass

    def search(self, queries, k):
        return eval(self.hits, globals(), {"n": len(queries)})


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
def register_encoders(register):
    register("words", "wrong_results:Words")


@hookimpl
def register_poolers(register):
    register("result", "wrong_results:Result")


@hookimpl
def register_indexers(register):
    register("hits", "wrong_results:Hits")


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


TEXTS = [Text("", "one two"), Text("", "three four")]


def retriever(**options):
    encoder = {name: value for name, value in options.items() if name == "wrong"}
    return Retriever.create(
        "none", encoder="words", pooler="result", encoder_options=encoder,
        pooler_options={"result": options.get("result", "Representation(v)")},
    ).eval()  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ("tokens", r"tokenize\(\) of 2 texts returns 1"), ("batch", r"collate\(\) of 2 texts returns a Batch of 1"),
        ("layer", r"lack layer 1, and have the layers \[7\]"), ("list", "are a list, and should be a mapping"),
        ("width", r"are \(2, 2, 3\), and should be a tensor \(2, 2, 8\)"), ("numpy", "are ndarray, and should be"),
        ("none", "a NoneType, and must return TokenStates"),
    ],
)  # fmt: skip
def test_a_wrong_result_of_an_encoder_is_named(wrong, problem):
    with pytest.raises(PluginError, match=f"encoder 'words' of plugin 'wrong_results' .*{problem}"):
        retriever(wrong=wrong).encode(TEXTS, "document")


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ("None", "a NoneType, and must return a Representation of 2 texts"),
        ("v.numpy()", "a ndarray, and must return a Representation"),
        ("Representation(v[:, 0])", r"vectors .* are \(2, 8\), and should be a tensor \(batch, m, dim\)"),
        ("Representation(v.numpy())", "are ndarray, and should be a tensor"),
        ("Representation(weights=v)", r"weights of a Representation are \(2, 1, 8\)"),
        ("Representation()", "no vectors .* and no weights"),
        ("Representation(v[:1])", "a Representation of 1, and must return a Representation of 2 texts"),
        ("Representation(v, weights=weights[:1])", r"its weights are \(1, 8\)"),
        ("Representation(v, extras={'gate': v[:1]})", r"its gate are \(1, 1, 8\)"),
        ("Representation(v.long())", "of torch.int64, and should be floating-point numbers"),
        ("Representation(v * 1j)", "of torch.complex64, and should be floating-point numbers"),
        ("Representation(v[:, :0])", r"are \(2, 0, 8\) .* at least one"),
        ("Representation(v[..., :0])", r"are \(2, 1, 0\) .* at least one"),
        ("Representation(v, vector_mask=torch.ones(2, 3).bool())", r"vector_mask is \(2, 3\) .* should be \(2, 1\)"),
        ("Representation(v, vector_mask=torch.ones(2, 1))", "of torch.float32, and should be .* of torch.bool"),
        ("Representation(v, vector_mask=torch.zeros(2, 1).bool())", "a text has no vector"),
        ("Representation(v, keys=torch.zeros(2, 1))", "keys is .* of torch.float32"),
        ("Representation(v, kept=1)", "kept is 1, and should be the number of one of 1 vector"),
        ("Representation(weights=-weights)", "a weight is negative"),
        ("Representation(v[..., : 4 if side == 'query' else 8])", "have 4 columns, and had 8 for other texts"),
    ],
)
def test_a_wrong_result_of_a_pooler_is_named(result, problem):
    model = retriever(result=result.replace("side == 'query'", "v[0, 0, 0] == 1"))
    with pytest.raises(PluginError, match=f"pooler 'result' of plugin 'wrong_results' .*{problem}"):
        model.encode(TEXTS, "document"), model.encode([Text("", "a bc")], "query")


def test_an_encoder_without_weights_encodes():
    """It is on the CPU."""
    model = retriever()
    assert str(model.device) == "cpu"
    assert model.encode(TEXTS, "document").vectors[:, 0, 0].tolist() == [3.0, 5.0]


@pytest.mark.parametrize(
    ("hits", "problem"),
    [
        ("None", "of 1 query does not return"), ("([], [])", "does not return"), ("([['a']] * 2, [[1]])", "does not"),
        ("([['a', 'b']], [[1.0]])", "the scores of 2 ids"), ("([['a']], [['1.0']])", "each id needs a number"),
        ("([['a', 'a']], [[2.0, 1.0]])", "different texts"), ("([[1]], [[2.0]])", r"the ids \[1\]"),
        ("([[*'abcd']], [[4, 3, 2, 1]])", "at most 3"), ("([['a', 'b']], [[1.0, 2.0]])", "the best first"),
    ],
)  # fmt: skip
def test_a_wrong_result_of_an_indexer_is_named(hits, problem, tmp_path):
    index = rk.Index.build(["one", "two"], output=tmp_path / "index", indexer="hits", indexer_options={"hits": hits})
    with pytest.raises(PluginError, match=f"indexer 'hits' of plugin 'wrong_results' .*{problem}"):
        index.search("one", k=2)


def test_an_indexer_without_counts_is_named(tmp_path):
    options = {"hits": "None", "counts": "None"}
    with pytest.raises(PluginError, match=r"indexer 'hits' of plugin .*build\(\) returns null"):
        rk.Index.build(["one", "two"], output=tmp_path / "index", indexer="hits", indexer_options=options)
