"""Comparison of runs: figures, terminal output and files."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from retrievalkit.cli import main
from retrievalkit.data.corpus import Passage
from retrievalkit.data.queries import Query
from retrievalkit.data.runs import write_run
from retrievalkit.errors import ArtifactError, DataError, InputError, OptionError, UnknownNameError
from retrievalkit.evaluation.compare.compare import compare
from retrievalkit.evaluation.compare.comparison import HEADER, render
from retrievalkit.evaluation.compare.page import comparison_page


def run_of(ranks):
    """Create a run with the relevant document "r" of query i at this rank; 0 = not retrieved."""
    return {
        f"q{number}": [("r" if place == rank else f"d{place}", 10.0 - place) for place in range(1, 5)]
        for number, rank in enumerate(ranks)
    }


JUDGED = {f"q{number}": {"r": 1} for number in range(4)}
RANKED = {"first": run_of([2, 2, 0, 1]), "better": run_of([1, 1, 1, 1]), "mixed": run_of([4, 1, 0, 2])}
# RR@10: first .5 .5 0 1; better 1 1 1 1; mixed .25 1 0 .5
EIGHT = {f"q{n}": {"r": 1} for n in range(8)}
SHOWN = {name: {query: [(first, 2.0), ("z", 1.0)] for query in EIGHT} for name, first in (("a", "r"), ("b", "no"))}
QRELS = {f"q{n}": {f"d{n}": 1, "both": 2, "bad": 0, "lost": 1} for n in range(6)}
PASSAGES = [Passage(f"d{n}", f"Title {n}", f"What <b>is</b> asked in number {n} & more.") for n in range(6)]
PASSAGES += [Passage("both", "", "For all of them."), Passage("bad", "Bad & worse", "Nothing."), Passage("x", "", "X.")]
QUERIES = [Query(f"q{n}", f"what is <i>asked</i> in {n}?") for n in range(6)]
FIRST = {f"q{n}": [("bad", 3.0), (f"d{n}", 2.0), ("both", 1.0)] for n in range(6)}
SECOND = {f"q{n}": [(f"d{n}", 3.0), ("x", 2.0)] for n in range(5)} | {"q5": [("x", 1.0)]}
RUNS = {"first": FIRST, "second": SECOND}


def compared(runs=RANKED, qrels=JUDGED, metrics="RR@10", **options):
    return compare(runs, qrels, metrics, **options)


def test_a_comparison_by_hand():
    found = compared(examples=1, queries=[Query("q2", "what [is] lost?")])
    assert [(mean.run, mean.mean) for mean in found.means] == [("first", 0.5), ("better", 1.0), ("mixed", 0.4375)]
    assert {mean.queries for mean in found.means} == {4}
    better, mixed = found.differences
    assert (better.run, better.against, better.difference) == ("better", "first", 0.5)
    assert (better.wins, better.ties, better.losses) == (3, 1, 0)
    assert better.p_value == 0.25  # .5, .5 and 1 all of one sign: 2 of 8
    assert (mixed.wins, mixed.ties, mixed.losses, mixed.difference) == (1, 1, 2, -0.0625)
    assert mixed.p_value == 1.0  # |.5 - .25 - .5| is the least that .25, .5, .5 can add up to
    assert (better.p_corrected, mixed.p_corrected) == (0.5, 1.0)
    (most,) = better.largest
    assert (most.query_id, most.text, most.value, most.against) == ("q2", "what [is] lost?", 1.0, 0.0)
    assert [query.query_id for query in mixed.largest] == ["q1", "q3"]
    assert all(mean.low <= mean.mean <= mean.high for mean in found.means)
    assert all(pair.low <= pair.difference <= pair.high for pair in found.differences)
    assert found.differences == compared(metrics="RR@10 P@1", examples=1, queries={"q2": most.text}).differences[:2]
    rows = found.to_table()
    assert [row[:3] for row in rows] == [["RR@10", mean.run, f"{mean.mean:.4f}"] for mean in found.means]
    assert (rows[0][4:], rows[1][4:6], rows[1][7:9]) == (["-"] * 8, ["first", "+0.5000"], ["0.2500", "0.5000"])
    assert (rows[2][-1], len(rows[2])) == ("1/1/2", len(HEADER))
    written = json.loads(json.dumps(found.as_json()))
    assert written["means"][1]["mean"] == 1.0
    assert written["differences"][0]["largest"][0]["query_id"] == "q2"
    assert written["options"] == {
        "permutations": 10_000, "resamples": 10_000, "confidence": 0.95, "seed": 0, "ties": "document_id",
        "over": "qrels", "ignore_same_id": False,
    }  # fmt: skip
    assert "per_query" not in written
    assert found.as_json(per_query=True)["per_query"]["RR@10"]["mixed"]["q0"] == 0.25


@pytest.mark.parametrize(
    ("baseline", "pairs"),
    [
        (None, ["better-first", "mixed-first"]),
        ("mixed", ["first-mixed", "better-mixed"]),
        ("all", ["better-first", "mixed-first", "mixed-better"]),
    ],
)
def test_runs_are_compared_with_the_baseline(baseline, pairs):
    found = compared(baseline=baseline)
    assert [f"{pair.run}-{pair.against}" for pair in found.differences] == pairs
    assert found.baseline == (baseline or "first")
    assert len(found.to_table()) == (4 if baseline == "all" else 3)


SELF = {"a": {"x": [("x", 2.0), ("y", 1.0)]}, "b": {"x": [("y", 1.0)]}}
TIED = {"a": {"q0": [("d0", 1.0), ("x", 1.0)]}, "b": {"q0": [("d0", 1.0)]}}
THREE = {"all": RANKED["better"], "three": {query: RANKED["better"][query] for query in ("q0", "q2", "q3")}}


@pytest.mark.parametrize(
    ("runs", "qrels", "options", "difference"),
    [
        (SELF, {"x": {"y": 1}}, {}, 0.5),
        (SELF, {"x": {"y": 1}}, {"exclude_self": True}, 0),
        (TIED, {"q0": {"d0": 1}}, {}, 0.5),
        (TIED, {"q0": {"d0": 1}}, {"ties": "run"}, 0),
        (THREE, JUDGED, {}, -0.25),
        (THREE, JUDGED, {"over": "run"}, 0),
    ],
)
def test_conventions_apply(runs, qrels, options, difference):
    found = compared(runs, qrels, **options)
    assert found.differences[0].difference == difference
    noted = "1 of 4 queries of the qrels are not in run 'three' and count 0: 'q1'." in found.notes
    assert noted == (runs is THREE and not options)


def test_equal_runs_do_not_differ_and_seeds_matter():
    (same,) = compared({"a": RANKED["mixed"], "b": RANKED["mixed"]}).differences
    assert (same.p_value, same.t_test, same.p_corrected, same.difference) == (1.0, 1.0, 1.0, 0.0)
    assert (same.wins, same.ties, same.losses, same.largest) == (0, 4, 0, [])
    generator = np.random.default_rng(5)
    runs = {name: run_of(generator.integers(0, 5, 60)) for name in "ab"}
    first, again, other = (compared(runs, {query: {"r": 1} for query in runs["a"]}, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.differences[0].p_value != other.differences[0].p_value
    assert first.means[0].low != other.means[0].low


def test_top_hits_have_judgements():
    (found,) = compared(RUNS, QRELS, "RR(rel=1)@10", queries=QUERIES, corpus=PASSAGES, examples=1).differences
    won, lost = found.largest
    assert (won.query_id, lost.query_id) == ("q0", "q5")
    first, second = won.rankings["first"], won.rankings["second"]
    hits = [(hit.rank, hit.document_id, hit.score, hit.grade) for hit in first.first]
    assert hits == [(1, "bad", 3.0, 0), (2, "d0", 2.0, 1), (3, "both", 1.0, 2)]
    assert (first.relevant_at, first.relevant) == ([2, 3], 3)
    assert [(hit.document_id, hit.grade) for hit in second.first] == [("d0", 1), ("x", None)]
    hit = second.first[0]
    assert hit.title == "Title 0"
    assert "asked" in [hit.snippet[start:end] for start, end in hit.matches]
    assert (lost.rankings["second"].relevant_at, lost.rankings["first"].relevant_at) == ([], [2, 3])


def text_of(page):
    """Return the texts of a page, one per line."""
    body = page.partition("<main>")[2].partition("<script>")[0]
    return re.sub(r"\s*\n\s*", "\n", re.sub(r"<[^>]+>", "\n", body))


def test_the_page_shows_all_results(monkeypatch):
    html = comparison_page(compared(RUNS, QRELS, "RR@10 nDCG@10", queries=QUERIES, corpus=PASSAGES))
    page = text_of(html)
    for text in (
        "no difference between second and first is shown (+0.3333", "0.5000", "0.8333", "5/0/1", "+0.5000", "-0.5000",
        "what is &lt;i&gt;asked&lt;/i&gt; in 5?", "Bad &amp; worse\n&ensp;\nnot relevant", "relevant (2)", "not judged",
        "Relevant documents at 2, 3; 1 of 3 not found.", "Relevant documents: 3 of 3 not found.",
    ):  # fmt: skip
        assert text in page
    assert html.count("<details>") == 6
    monkeypatch.setattr("retrievalkit.evaluation.compare.page.MOST_ROWS", 4)
    page = text_of(comparison_page(compared(RUNS, QRELS, examples=0)))
    assert "The 4 that differ most; 2 more are in per_query.tsv." in page


def test_a_difference_is_coloured_and_named_only_if_it_is_significant(monkeypatch):
    """By the corrected p-value, on the page and on a terminal."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for runs, qrels, significant in ((SHOWN, EIGHT, True), (RUNS, QRELS, False)):
        found = compared(runs, qrels, "RR@10" if significant else "RR(rel=1)@10")
        (pair,) = found.differences
        assert found.shows(pair) is significant
        page = comparison_page(found)
        assert f'<span class="{"bad" if significant else ""}">{pair.difference:+.4f}</span>' in page
        assert ("b is\nworse\nthan a (-1.0000 [-1.0000, -1.0000], p = 0.0078)." in text_of(page)) is significant
        assert ("▼ 0.0000" in text_of(page)) is significant
        stream = io.StringIO()
        render(found, Console(file=stream, width=200, force_terminal=True, color_system="standard"))
        red = re.search(rf"\x1b\[1;31m *{re.escape(f'{pair.difference:+.4f}')}", stream.getvalue())
        assert ((red is not None), "\x1b[1;32m" in stream.getvalue()) == (significant, False)
    page = text_of(comparison_page(compared(dict(reversed(SHOWN.items())), EIGHT)))
    assert "a is\nbetter\nthan b" in page
    assert "▲ 1.0000" in page
    assert "▼" not in text_of(comparison_page(compared(SHOWN, EIGHT, baseline="all")))


@pytest.mark.parametrize(("count", "name"), [(2, "short"), (5, "a-run-with-a-long-name"), (15, "x" * 90)])
def test_a_narrow_terminal_shows_whole_names_on_one_screen(count, name):
    """With several pairs, only the page shows the queries that differ most."""
    runs = {f"{name}-{number}": RANKED["first" if number else "better"] for number in range(count)}
    stream = io.StringIO()
    render(compared(runs), Console(file=stream, width=80))
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines[2 : 2 + count]] == list(runs)
    assert max(map(len, lines)) <= 80 or len(name) > 80
    assert len(lines) <= 30


@pytest.fixture
def rkit(tmp_path, monkeypatch):
    """`rkit compare` in a folder with the runs, judgements, queries and passages as files."""
    monkeypatch.chdir(tmp_path)
    for name, run in RUNS.items():
        write_run(f"{name}.trec", run)
    lines = [f"{query} 0 {document} {grade}\n" for query, judged in QRELS.items() for document, grade in judged.items()]
    (tmp_path / "qrels").write_text("".join(lines))
    texts = [json.dumps({"_id": query.id, "text": query.text}) + "\n" for query in QUERIES]
    (tmp_path / "queries.jsonl").write_text("".join(texts))
    rows = [
        json.dumps({"_id": passage.id, "title": passage.title, "text": passage.text}) + "\n" for passage in PASSAGES
    ]
    (tmp_path / "corpus.jsonl").write_text("".join(rows))
    fixed = ["compare", "first.trec", "second.trec", "--qrels", "qrels"]
    return lambda words: CliRunner().invoke(main, [*fixed, *words.split()])


TEXTS = "--queries queries.jsonl --corpus corpus.jsonl"


def test_a_folder_has_page_pictures_and_figures(rkit, tmp_path):
    ran = rkit(f"--output out --metrics AP(rel=2)@5 {TEXTS}")
    assert ran.exit_code == 0, ran.output
    assert "open out/compare.html in a browser" in ran.output.replace("\n", " ")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "compare.html", "comparison.json", "differences-AP-rel-2-@5.png", "manifest.json",
        "means.png", "per_query.tsv",
    ]  # fmt: skip
    html = (tmp_path / "out" / "compare.html").read_text()
    assert (html.count("data:image/png;base64,"), "Title 2" in html) == (4, True)
    figures = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert figures["differences"][0]["largest"][0]["rankings"]["second"]["first"][0]["title"] == "Title 1"
    lines = (tmp_path / "out" / "per_query.tsv").read_text().splitlines()
    assert lines[:2] == ["metric\tquery\tfirst\tsecond", "AP(rel=2)@5\tq0\t0.333333\t0"]
    assert len(lines) == 7
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["counts"] == {"runs": 2, "queries": 6}
    assert sorted(manifest["inputs"]) == ["qrels", "queries", "run first", "run second"]


def test_a_folder_is_replaced_only_with_overwrite_and_with_equal_bytes(rkit, tmp_path):
    assert rkit("--output out --no-plot").exit_code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    refused = rkit("--output out")
    assert (refused.exit_code, "exists already" in refused.output) == (2, True)
    assert rkit("--output out --no-plot --overwrite").exit_code == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize(
    ("name", "start"),
    [("t.csv", "metric,run,mean"), ("t.md", "| metric | run | mean"), ("t.tex", "\\begin{tabular}{llrrl")],
)
def test_the_extension_selects_the_format_of_a_table(rkit, tmp_path, name, start):
    ran = rkit(f"--output {name} --metrics RR@10 --metrics P@1")
    assert ran.exit_code == 0, ran.output
    written = (tmp_path / name).read_text()
    assert written.startswith(start)
    assert sum("second" in line for line in written.splitlines()) == 2
    assert "P@1" in written


def test_a_page_or_the_figures_alone(rkit, tmp_path):
    assert rkit("--output a.html --no-plot").exit_code == 0
    page = (tmp_path / "a.html").read_text()
    assert (page.startswith("<!DOCTYPE html>"), "per_query.tsv" in page) == (True, False)
    assert rkit("--output a.json").exit_code == 0
    assert json.loads((tmp_path / "a.json").read_text()) == json.loads(rkit("--json").stdout)
    shown = " ".join(rkit(f"--metrics RR@10 {TEXTS}").output.split())
    assert "first: not relevant: Bad & worse" in shown
    assert "second: relevant: Title 0" in shown


def test_without_pictures_matplotlib_is_not_needed(rkit, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    refused = rkit("--output out")
    assert refused.exit_code == 2
    assert "pip install 'retrievalkit[plot]'" in refused.output
    assert not (tmp_path / "out").exists()
    assert rkit("--output out --no-plot").exit_code == 0
    assert not list((tmp_path / "out").glob("*.png"))
    assert "<img" not in (tmp_path / "out" / "compare.html").read_text()


def test_runs_from_files_are_named_after_them(tmp_path):
    paths = [tmp_path / "x" / "bm25.trec.gz", tmp_path / "x" / "dense.v2.run", tmp_path / "y" / "bm25.trec"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        write_run(path, RANKED["first"])
    assert compared(paths[:2]).runs == ["bm25", "dense.v2"]
    found = compared(paths, baseline=str(paths[2]))
    assert found.runs == [str(paths[0]), "dense.v2", str(paths[2])]
    assert found.baseline == str(paths[2])


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (InputError, "at least two runs, not 1", {"runs": {"a": FIRST}}),
        (InputError, "no query of run 'b' is in the qrels", {"runs": {"a": FIRST, "b": {"z": [("d", 1.0)]}}}),
        (
            InputError,
            "no query has a value",
            {"runs": {query: {query: FIRST[query]} for query in ("q0", "q1")}, "over": "run"},
        ),
        (UnknownNameError, "did you mean 'second'", {"baseline": "secnd"}),
        (UnknownNameError, "unknown metric", {"metrics": "MPR@3"}),
        (OptionError, "confidence", {"confidence": 95}),
        (InputError, "the queries have 'z', the qrels 'q0'", {"queries": {"z": "z"}}),
        (DataError, "unknown document id 'x'", {"corpus": PASSAGES[:-1]}),
        (ArtifactError, "exists already", {"output": Path(__file__).parent, "qrels": {"unread": {"no": 1}}}),
    ],
)
def test_invalid_comparisons_are_refused(error, message, options):
    with pytest.raises(error, match=message):
        compared(**{"runs": RUNS, "qrels": QRELS, **options})
