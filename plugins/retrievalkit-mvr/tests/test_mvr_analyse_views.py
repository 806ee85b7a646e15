"""Which view of a document answers which query: the figures, the files, the plot, and what is refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from io import StringIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from retrievalkit_mvr.analyse_views import program
from retrievalkit_mvr.analyse_views.command import analyse_views
from retrievalkit_mvr.analyse_views.figures import local_variation, render
from retrievalkit_mvr.analyse_views.plot import draw
from rich.console import Console

from retrievalkit.cli import main
from retrievalkit.contracts import Representation
from retrievalkit.models.retriever import Retriever

pytestmark = pytest.mark.precision

PNG = b"\x89PNG\r\n\x1a\n"
ANSWERED = {"d1": [0, 0, 2, 1], "d2": [1, 1], "d3": [2]}
ALL_ANSWERED = [view for views in ANSWERED.values() for view in views]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Stub:
    """In the place of a retriever: texts are keys of tables of vectors (and masks)."""

    def __init__(self, queries, documents, masks=None):
        self.tables = {"query": queries, "document": documents}
        self.masks = masks
        self.pooler = SimpleNamespace(view_names=lambda count: [f"view {number}" for number in range(count)])
        self.description = {"pooler": {"name": "stub"}}
        self.fingerprint, self.changed, self.dimensions = "stub", {}, None

    def encode(self, texts, side, precision):
        vectors = torch.tensor(np.stack([self.tables[side][text.body] for text in texts]))
        mask = None if self.masks is None else torch.tensor(np.stack([self.masks[side][text.body] for text in texts]))
        return Representation(vectors, mask)


@pytest.fixture
def analyse(monkeypatch, tmp_path):
    """Analyse made-up vectors: {query: (m_q, dim)}, {document: (m, dim)} and {document: its queries}."""

    def run(queries, documents, queries_of, masks=None, **options):
        monkeypatch.setattr(program, "open_retriever", lambda *_, **__: Stub(queries, documents, masks))
        (tmp_path / "corpus.jsonl").write_text(
            "".join(json.dumps({"_id": document, "title": "", "text": document}) + "\n" for document in documents)
        )
        (tmp_path / "queries.tsv").write_text("".join(f"{query}\t{query}\n" for query in queries))
        rows = [f"{query} 0 {document} 1\n" for document, ids in queries_of.items() for query in ids]
        (tmp_path / "qrels.txt").write_text("".join(rows))
        sources = {"corpus": "corpus.jsonl", "queries": "queries.tsv", "qrels": "qrels.txt"}
        paths = {name: tmp_path / file for name, file in sources.items()}
        report = analyse_views("model", output=tmp_path / "out", plot=False, overwrite=True, **paths, **options)
        return report, lines_of(tmp_path / "out" / "answers.jsonl")

    return run


class TestGolden:
    """Numbers worked out apart from this code: three views, two pairs; and seven queries of three documents."""

    SCORES = ((0.9, 0.5, 0.1), (0.2, 0.8, 0.5))

    @pytest.mark.parametrize(("scores", "expected"), [("raw", 0.525), ("softmax", 0.1813960285)])
    def test_local_variation_by_the_program(self, scores, expected, analyse):
        queries = {f"q{row}": np.array([vector]) for row, vector in enumerate(self.SCORES)}
        report, lines = analyse(queries, {"d": np.eye(3)}, {"d": ["q0", "q1"]}, scores=scores)
        assert report.local_variation == pytest.approx(expected, abs=1e-9)
        assert [line["view"] for line in lines] == [0, 1]
        assert lines[0]["scores"] == {"view 0": 0.9, "view 1": 0.5, "view 2": 0.1}

    def test_perplexity_by_the_program(self, analyse):
        queries, documents_of = {}, {}
        for document, views in ANSWERED.items():
            for number, view in enumerate(views):
                queries[f"{document}q{number}"] = np.eye(3)[[view]]
                documents_of.setdefault(document, []).append(f"{document}q{number}")
        report, lines = analyse(queries, dict.fromkeys(ANSWERED, np.eye(3)), documents_of)
        assert report.perplexity == pytest.approx(1.6094757082, abs=1e-9)
        assert report.perplexity_pooled == pytest.approx(2.9417134211, abs=1e-9)
        assert report.perplexity_bound == pytest.approx((3 + 2 + 1) / 3)
        assert [line["view"] for line in lines] == ALL_ANSWERED
        assert [view.answered for view in report.views] == [2, 3, 2]
        assert [view.share for view in report.views] == pytest.approx([2 / 7, 3 / 7, 2 / 7])
        assert (report.pairs, report.queries, report.documents, report.compared) == (7, 7, 3, 7)


def by_brute_force(queries, documents, queries_of, masks, scores, temperature):
    """The definitions, pair by pair: the answering views, Local Variations and Perplexities."""
    rows, variations, perplexities = [], [], []
    for document, ids in queries_of.items():
        there = [number for number in range(len(documents[document])) if masks["document"][document][number]]
        views = []
        for query in ids:
            for vector in range(len(queries[query])):
                if not masks["query"][query][vector]:
                    continue
                q = queries[query][vector]
                f = {number: float(q @ documents[document][number]) for number in there}
                view = max(there, key=lambda number: (f[number], -number))
                views.append(view)
                rows.append((query, document, vector, view, f))
                s = dict(f)
                if scores == "cosine":
                    norm = math.sqrt(q @ q)
                    s = {v: f[v] / norm / math.sqrt(documents[document][v] @ documents[document][v]) for v in f}
                if scores == "softmax":
                    total = sum(math.exp(value / temperature) for value in f.values())
                    s = {v: math.exp(f[v] / temperature) / total for v in f}
                if len(there) > 1:
                    best = max(s, key=s.get)
                    variations.append(s[best] - np.mean([s[v] for v in s if v != best]))
        p = [count / len(views) for count in Counter(views).values()]
        perplexities.append(math.exp(-sum(share * math.log(share) for share in p)))
    return rows, variations, perplexities


@pytest.mark.parametrize(
    ("scores", "temperature"), [("cosine", None), ("raw", None), ("softmax", None), ("softmax", 0.3)]
)
@pytest.mark.parametrize("query_vectors", [1, 3])
def test_equals_brute_force(scores, temperature, query_vectors, analyse, monkeypatch):
    monkeypatch.setattr(program, "CHUNK_DOCUMENTS", 2)
    random = np.random.default_rng(7)
    queries = {f"q{row}": random.normal(size=(query_vectors, 3)) for row in range(12)}
    documents = {f"d{row}": random.normal(size=(4, 3)) for row in range(5)}
    masks = {
        "query": {query: random.random(query_vectors) < 0.7 for query in queries},
        "document": {document: random.random(4) < 0.7 for document in documents},
    }
    for side in masks.values():
        for mask in side.values():
            mask[-1] = True
    masks["document"]["d4"][:] = [False, False, False, True]
    queries_of = {
        document: [str(query) for query in random.choice(list(queries), 4, replace=False)] for document in documents
    }
    rows, variations, perplexities = by_brute_force(queries, documents, queries_of, masks, scores, temperature or 1.0)
    report, lines = analyse(queries, documents, queries_of, masks, scores=scores, temperature=temperature)
    by_key = {(line["query_id"], line["document_id"], line.get("query_vector", 0)): line for line in lines}
    assert len(by_key) == len(lines) == len(rows)
    for query, document, vector, view, f in rows:
        line = by_key[query, document, vector]
        assert (line["view"], line["label"]) == (view, f"view {view}")
        assert line["scores"] == pytest.approx({f"view {number}": value for number, value in f.items()}, abs=1e-5)
    # Documents come in the order in which the judgements name them.
    assert sorted(report.local_variations) == pytest.approx(sorted(variations), abs=1e-6)
    assert sorted(report.perplexities) == pytest.approx(sorted(perplexities))
    assert report.local_variation == pytest.approx(np.mean(variations), abs=1e-6)
    assert report.perplexity == pytest.approx(np.mean(perplexities))
    for view in report.views:
        scored = [row[4][view.number] for row in rows if view.number in row[4]]
        assert view.offered == len(scored)
        assert view.answered == sum(row[3] == view.number for row in rows)
        assert view.share == pytest.approx(view.answered / len(rows))
        assert view.mean_score == pytest.approx(np.mean(scored), abs=1e-6)
    assert report.pairs == 20
    assert report.compared == len(rows)


def test_the_first_of_equal_views_answers(analyse):
    twice = np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    assert analyse({"q": np.array([[1.0, 0.5]])}, {"d": twice}, {"d": ["q"]})[1][0]["view"] == 1


OPTIONS = {"viewers": 1, "source": "unused", "layers": (0, 1, 2)}


class TestCommand:
    """`rkit analyse-views` on the tiny collection."""

    @pytest.fixture
    def rkit(self, tiny_model, tiny_collection, tmp_path):
        """Run the command on the tiny model with some options; returns click's result and the folder."""

        def run(*options, output="views", judged=("--queries", "--qrels")):
            sources = {"--queries": tiny_collection.queries, "--qrels": tiny_collection.qrels}
            sources |= {"--examples": tiny_collection.folder}
            arguments = ["analyse-views", tiny_model, "--corpus", tiny_collection.corpus, "--output", tmp_path / output]
            arguments += [word for name in judged for word in (name, sources[name])]
            return CliRunner().invoke(main, [str(word) for word in (*arguments, *options)]), tmp_path / output

        return run

    # The embedding of an unused token, so that it is the same whenever the model is opened.
    LAYERS = ("--pooler", "viewers", "--set", "pooler.viewers=1", "--set", "pooler.source=unused")
    LAYERS += ("--set", "pooler.layers=0,1,2")

    def test_layers(self, rkit, tiny_model, tiny_collection, monkeypatch):
        monkeypatch.setenv("RKIT_PRECISION", "fp32")
        result, folder = rkit(*self.LAYERS, "--json")
        assert result.exit_code == 0, result.output
        answer = json.loads(result.stdout)
        assert answer == json.loads((folder / "analysis.json").read_text())
        assert [view["label"] for view in answer["views"]] == ["layer 2", "layer 1", "layer 0"]
        assert answer["pairs"] == answer["queries"] == answer["documents"] == 42
        assert answer["perplexity"] == answer["perplexity_bound"] == 1
        assert sorted(path.name for path in folder.iterdir()) == [
            "analysis.json", "answers.jsonl", "manifest.json", "views.png",
        ]  # fmt: skip
        assert (folder / "views.png").read_bytes().startswith(PNG)
        lines = lines_of(folder / "answers.jsonl")
        assert Counter(line["label"] for line in lines) == Counter(
            {view["label"]: view["answered"] for view in answer["views"] if view["answered"]}
        )
        pooler = {"pooler": "viewers", "pooler_options": OPTIONS}
        retriever = Retriever.create(tiny_model, **pooler).to("cpu").eval()
        texts = {row["_id"]: row["text"] for row in lines_of(tiny_collection.queries)}
        passages = {row["_id"]: (row["title"], row["text"]) for row in lines_of(tiny_collection.corpus)}
        line = lines[5]
        query = retriever.encode([("", texts[line["query_id"]])], "query", precision="fp32").vectors[0, 0]
        document = retriever.encode([passages[line["document_id"]]], "document", precision="fp32").vectors[0]
        assert list(line["scores"].values()) == pytest.approx((document @ query).tolist(), abs=1e-3)
        assert line["local_variation"] == pytest.approx(
            local_variation(torch.cosine_similarity(document, query[None], dim=1)).item(), abs=1e-4
        )

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--pooler", "cls", "--strict"), "Documents have one vector each"),
            (("--temperature", "0.5"), "temperature 0.5 has no effect on cosine scores"),
            (("--examples", "train.jsonl"), "Leave out --queries and --qrels"),
        ],
    )
    def test_wrong_options(self, options, message, rkit):
        result, folder = rkit(*options)
        assert result.exit_code == 2, result.output
        assert message in result.stderr
        assert not folder.exists()

    def test_data_left_out_is_reported(self, rkit, tiny_collection, tmp_path):
        (tmp_path / "some.tsv").write_text("q0-0\tc0\t1\nq0-1\tc0\t0\nq0-2\tnone\t1\nnobody\tc1\t1\n")
        options = ("--queries", tiny_collection.queries, "--qrels", tmp_path / "some.tsv", "--no-plot")
        result, _ = rkit(*self.LAYERS, *options, judged=[])
        assert result.exit_code == 0, result.output
        shown = " ".join(result.output.split())
        assert "1 pairs of 1 queries" in shown
        assert "1 judged documents are not in the corpus and are left out: none." in shown
        assert "1 judged queries are not in the queries and are left out: nobody." in shown
        (tmp_path / "some.tsv").write_text("q0-2\tnone\t1\n")
        result, _ = rkit(*self.LAYERS, *options, "--overwrite", judged=[])
        assert result.exit_code == 2
        assert "no pair of a query and a relevant document" in result.stderr


def test_the_table_and_the_plot_show_any_number_of_views(analyse, tmp_path):
    # The first 30 of 40 views answer a query each, and the last one two.
    queries = {f"q{row}": np.eye(40)[[min(row, 39)]] for row in (*range(30), 39, 40)}
    many, _ = analyse(queries, {"d": np.eye(40)}, {"d": list(queries)})
    few, _ = analyse({"q": np.ones((1, 2))}, {"d": np.eye(2)}, {"d": ["q"]})
    mask = {"query": {"q": np.array([True])}, "document": {"d": np.array([True, False])}}
    alone, _ = analyse({"q": np.ones((1, 2))}, {"d": np.eye(2)}, {"d": ["q"]}, mask)
    assert alone.local_variation is None
    stream = StringIO()
    render(alone, Console(file=stream, width=100))
    assert "Local Variation -" in stream.getvalue()
    sizes = set()
    for number, analysis in enumerate((many, few, alone)):
        draw(analysis, tmp_path / f"{number}.png", title="model")
        image = (tmp_path / f"{number}.png").read_bytes()
        assert image.startswith(PNG)
        sizes.add(len(image))
    assert len(sizes) == 3
