"""Filters, fusion methods, metrics, re-rankers and recipes of plugins, with the plugin of the guide."""

from __future__ import annotations

import json
import math
import re
import shlex

import pytest
import retrievalkit_testing as testing
from click.testing import CliRunner

from places import ROOT
from retrievalkit import registry
from retrievalkit.cli import main
from retrievalkit.contracts import Judged
from retrievalkit.errors import OptionError, PluginError
from retrievalkit.evaluation.metric_names import IrMeasure, open_metric
from retrievalkit.evaluation.metrics import per_query
from retrievalkit.models.rerankers import open_reranker
from retrievalkit.recipes.files import find_recipe
from retrievalkit.registry.component_options import read_call
from retrievalkit.registry.registrations import METRICS
from retrievalkit.search.fusion import Fusion

GUIDE = (ROOT / "docs" / "write-a-plugin.md").read_text()


def file_of_the_guide(name):
    return re.search(rf"<!-- file: {re.escape(name)} -->\n```\w+\n(.*?)```", GUIDE, re.DOTALL)[1]


@pytest.fixture
def run(tmp_path, monkeypatch, fresh_registry):
    (tmp_path / "my_recipes").mkdir()
    for name in ("word_overlap.py", "my_recipes/overlap.yaml"):
        (tmp_path / name).write_text(file_of_the_guide(name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RKIT_PLUGIN_FILES", "word_overlap.py")
    fresh_registry()
    testing.tiny_collection("data")
    queries = [json.loads(line) for line in (tmp_path / "data" / "queries.jsonl").read_text().splitlines()]
    lines = [f"{one['_id']} Q0 c{rank} {rank + 1} {50 - rank} t\n" for one in queries for rank in range(9)]
    (tmp_path / "run.trec").write_text("".join(lines))

    def invoke(*words):
        return CliRunner().invoke(main, [*words])

    return invoke


def well(result):
    assert result.exit_code == 0, result.output
    return result


RERANK = shlex.split("rerank apply overlap:lower --run run.trec --queries data --corpus data/corpus.jsonl")


def test_a_plugins_reranker_fusion_and_metric_work(run, tmp_path):
    """Words are counted, votes summed, and unjudged documents left out; the recipe gives the same bytes."""
    well(run(*RERANK, "--output", "overlap.trec"))
    first = (tmp_path / "overlap.trec").read_text().splitlines()[0].split()
    assert first[:3] == ["q0-0", "Q0", "c0"]  # what is the capital of argentina: is the of argentina
    assert float(first[4]) == 4
    well(run("search", "run.trec", "overlap.trec", "--fusion", "votes(top=3)", "--output", "votes.trec"))
    votes = {float(line.split()[4]) for line in (tmp_path / "votes.trec").read_text().splitlines()}
    assert votes == {0, 1, 2}
    line = ["--qrels", "data/qrels/test.tsv", "--metrics", "nDCG@10 condensed@5 condensed", "--json"]
    found = json.loads(well(run("evaluate", "run.trec", *line)).stdout)["metrics"]
    assert found["condensed@5"] == pytest.approx(5 / 42)  # each of c0 to c4 is relevant for one question
    assert found["condensed"] == pytest.approx(9 / 42)
    # The file of weights contains the fusion with its options, without normalisation.
    runs = ("search", "run.trec", "overlap.trec")
    tune = shlex.split("--fusion votes(top=3) --tune data/qrels/test.tsv --output weights.json")
    assert "votes(top=3)" in well(run(*runs, *tune)).output
    best = json.loads((tmp_path / "weights.json").read_text())["fusion"]
    assert (best["method"], best["normalization"]) == ("votes(top=3)", None)
    well(run(*runs, "--weights", "weights.json", "--output", "tuned.trec"))
    weights = ",".join(map(str, best["weights"]))
    well(run(*runs, "--fusion", "votes(top=3)", "--weights", weights, "--output", "same.trec"))
    assert (tmp_path / "tuned.trec").read_bytes() == (tmp_path / "same.trec").read_bytes()
    well(run("run", "extras/overlap", "--output", "by-recipe"))
    assert (tmp_path / "by-recipe" / "overlap.trec").read_bytes() == (tmp_path / "overlap.trec").read_bytes()


def test_a_plugins_filter_and_reranker_are_in_the_audit_by_name(run, tmp_path):
    """The audit has the filters' options, but no entry if there are no filters."""
    mine = shlex.split("mine-negatives --from run.trec --corpus data/corpus.jsonl --examples data --depth 8")

    def audit_of(name, *words):
        well(run(*mine, *words, "--output", name))
        return json.loads((tmp_path / f"{name}.audit.json").read_text())

    assert "filters" not in audit_of("all.jsonl")["options"]
    audit = audit_of("some.jsonl", "--filter", "longer_than(words=30)")
    assert audit["options"]["filters"] == ["longer_than(words=30)"]
    assert {one["name"]: one["dropped"] for one in audit["filters"]}["longer_than"] > 0
    lines = (tmp_path / "some.jsonl").read_text().splitlines()
    kept = {name for line in lines for name in json.loads(line)["negatives"]}
    texts = [json.loads(line) for line in (tmp_path / "data" / "corpus.jsonl").read_text().splitlines()]
    assert all((len(one["text"].split()) > 30) == (one["_id"] in kept) for one in texts[:8])
    audit = audit_of("scored.jsonl", "--reranker", "overlap:lower", "--reranker-above", "2")
    reasons = {shown["reason"] for one in audit["filters"] if one["name"] == "re-ranker" for shown in one["examples"]}
    assert reasons
    assert all(re.fullmatch(r"the re-ranker gives it [3-9], and the limit is 2", reason) for reason in reasons)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("search a b --fusion vots", "unknown fusion 'vots'; did you mean 'votes'? Known: linear, rrf, sum, votes."),
        ("search a b --fusion vots", "'votes' comes with word_overlap.py local file."),
        ("search {runs} --fusion 'votes(tip=3)'", "fusion 'votes' has no option 'tip'"),
        ("search {runs} --fusion 'votes(top=x y)'", "is not of the form NAME or NAME(option=value"),
        ("search {runs} --fusion votes --rrf-k 3", "rrf_k=3 has no effect with fusion 'votes'"),
        ("{evaluate} condenst@5", "Write 'condensed@5'. 'condensed' comes with word_overlap.py local file."),
        ("{evaluate} 'condensed(a=1)'", "has no option 'a'"),
        ("rerank apply overlop:x {pairs} -o o", "unknown reranker 'overlop'; did you mean 'overlap'?"),
        ("run extras/overlop -o o", "unknown recipe 'extras/overlop'; did you mean 'extras/overlap'?"),
        ("run no_such -o o", "or extras/NAME"),
        ("{mine} --filter longer", "unknown filter 'longer'; did you mean 'longer_than'?"),
        ("{mine} --filter longer_than --filter 'longer_than(words=3)'", "the filter 'longer_than' is listed twice"),
    ],
)
def test_a_wrong_name_or_option_is_refused(run, tmp_path, line, message):
    line = line.format(
        runs="run.trec run.trec",
        evaluate="evaluate run.trec --qrels data/qrels/test.tsv --metrics",
        pairs="--run run.trec --queries data --corpus data/corpus.jsonl",
        mine="mine-negatives --from run.trec --corpus data/corpus.jsonl --examples data -o o",
    )
    result = run(*shlex.split(line))
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not (tmp_path / "o").exists()


def test_a_name_of_two_plugins_is_a_clash(run, tmp_path, monkeypatch, fresh_registry):
    (tmp_path / "other.py").write_text((tmp_path / "word_overlap.py").read_text().replace('"word_overlap:', '"other:'))
    monkeypatch.setenv("RKIT_PLUGIN_FILES", "word_overlap.py,other.py")
    fresh_registry()
    for call in (
        lambda: Fusion("votes"),
        lambda: open_metric("condensed@5"),
        lambda: open_reranker("overlap:lower"),
        lambda: find_recipe("extras/overlap"),
        lambda: registry.create("filter", "longer_than", None),
    ):
        with pytest.raises(PluginError, match=r"registered by both word_overlap\.py local file and other\.py local"):
            call()
    assert well(run("--help")).output


def test_a_class_of_another_kind_is_refused(tmp_path, monkeypatch, fresh_registry):
    kinds = {"filter": "Filter", "fusion": "FusionMethod", "metric": "Metric", "reranker": "Reranker", "recipe": "Path"}
    hooks = "\n".join(f'@hookimpl\ndef register_{kind}s(register):\n    register("odd", "odd:Odd")' for kind in kinds)
    (tmp_path / "odd.py").write_text(f"from retrievalkit import hookimpl\nclass Odd:\n    pass\n{hooks}\n")
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(tmp_path / "odd.py"))
    fresh_registry()
    for kind, base in kinds.items():
        with pytest.raises(PluginError, match=f"'odd:Odd' is not a {base}"):
            registry.get(kind, "odd")


@pytest.mark.parametrize("name", [*METRICS, "nDCG@10", "RR@1", "P(rel=2)@3", "infAP"])
def test_a_metrics_value_for_a_query_equals_that_in_a_run(name):
    name = f"{name}@0.1" if name == "IPrec" else f"{name}@5" if name in ("P", "R", "Judged", "Success", "ERR") else name
    run = {"q": [("a", 3.0), ("b", 2.0), ("c", 1.0), ("d", 0.5)]}
    qrels = {"q": {"b": 2, "d": 1, "a": 0, "x": 1, "y": 0}}
    one = open_metric(name).value(Judged([0, 2, None, 1], [2, 1, 0, 1, 0]))
    assert isinstance(open_metric(name), IrMeasure)
    assert one == pytest.approx(per_query(run, qrels, name)[name]["q"])
    assert math.isfinite(one)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rrf", ("rrf", {}, None)),
        ("nDCG@10", ("nDCG", {}, 10)),
        ("votes(top=3, way=min_max)@5", ("votes", {"top": 3, "way": "min_max"}, 5)),
        ("a(b='x, y', c=[1, 2], d=None)", ("a", {"b": "x, y", "c": [1, 2], "d": None}, None)),
    ],
)
def test_options_in_parentheses_are_read(text, expected):
    assert read_call(text) == expected


@pytest.mark.parametrize(
    "text", ["", "a(", "a(1)", "a(b)", "a()(c=1)", "a(b=c())", "a(**b)", "a(b=1, b=2)", "a@0", "a@x", "a" * 600, "a b"]
)
def test_other_syntax_is_refused(text):
    with pytest.raises(OptionError, match="is not of the form NAME"):
        read_call(text)
