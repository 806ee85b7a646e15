"""What `rkit compare --output` writes: a page, pictures, figures."""

from __future__ import annotations

import json
import re
import struct
from io import StringIO

import pytest
from click.testing import CliRunner
from rich.console import Console

from retrievalkit.cli import main
from retrievalkit.data.corpus import Passage
from retrievalkit.data.queries import Query
from retrievalkit.data.runs import write_run
from retrievalkit.errors import ArtifactError, DataError, InputError
from retrievalkit.evaluate.compare.output import Output
from retrievalkit.evaluate.compare.page import comparison_page
from retrievalkit.evaluate.compare.plot import draw_differences, draw_means
from retrievalkit.evaluate.compare.program import Sampling, compare
from retrievalkit.evaluate.compare.result import render
from retrievalkit.evaluate.options import Conventions

QRELS = {f"q{n}": {f"d{n}": 1, "both": 2, "bad": 0, "lost": 1} for n in range(6)}
PASSAGES = [Passage(f"d{n}", f"Title {n}", f"What <b>is</b> asked in number {n} & more.") for n in range(6)]
PASSAGES += [Passage("both", "", "For all of them."), Passage("bad", "Bad & worse", "Nothing."), Passage("x", "", "X.")]
QUERIES = [Query(f"q{n}", f"what is <i>asked</i> in {n}?") for n in range(6)]
FIRST = {f"q{n}": [("bad", 3.0), (f"d{n}", 2.0), ("both", 1.0)] for n in range(6)}
SECOND = {f"q{n}": [(f"d{n}", 3.0), ("x", 2.0)] for n in range(5)} | {"q5": [("x", 1.0)]}
RUNS = {"first": FIRST, "second": SECOND}


def shown(page):
    """The texts of a page, a line each."""
    body = page.partition("<main>")[2].partition("<script>")[0]
    return re.sub(r"\s*\n\s*", "\n", re.sub(r"<[^>]+>", "\n", body))


def test_what_each_run_has_first_is_told_with_its_judgement():
    (found,) = compare(
        RUNS, qrels=QRELS, metrics="RR(rel=1)@10", queries=QUERIES, corpus=PASSAGES, examples=1
    ).differences
    won, lost = found.largest
    assert (won.query_id, lost.query_id) == ("q0", "q5")
    first, second = won.rankings["first"], won.rankings["second"]
    assert [(hit.rank, hit.document_id, hit.score, hit.grade) for hit in first.first] == [
        (1, "bad", 3.0, 0),
        (2, "d0", 2.0, 1),
        (3, "both", 1.0, 2),
    ]
    assert (first.relevant_at, first.relevant) == ([2, 3], 3)
    assert [(hit.document_id, hit.grade) for hit in second.first] == [("d0", 1), ("x", None)]
    assert (second.relevant_at, second.relevant) == ([1], 3)
    hit = second.first[0]
    assert hit.title == "Title 0"
    assert "asked" in [hit.snippet[start:end] for start, end in hit.matches]
    assert (lost.rankings["second"].relevant_at, lost.rankings["first"].relevant_at) == ([], [2, 3])


def test_equal_scores_stand_as_the_metric_sees_them():
    runs = {"a": {"q0": [("d0", 1.0), ("x", 1.0)]}, "b": {"q0": [("d0", 1.0)]}}
    found = compare(runs, qrels={"q0": {"d0": 1}}, metrics="RR@10").differences[0].largest[0]
    assert found.rankings["a"].relevant_at == [2]
    assert (
        compare(runs, qrels={"q0": {"d0": 1}}, metrics="RR@10", conventions=Conventions(ties="run"))
        .differences[0]
        .largest
        == []
    )


def test_the_page_says_all_of_it():
    found = compare(RUNS, qrels=QRELS, metrics="RR@10 nDCG@10", queries=QUERIES, corpus=PASSAGES)
    page = shown(comparison_page(found))
    assert "no difference between second and first is shown (+0.3333" in page
    for text in ("0.5000", "0.8333", "5/0/1", "+0.5000", "-0.5000"):
        assert text in page
    assert "what is &lt;i&gt;asked&lt;/i&gt; in 5?" in page
    assert "Bad &amp; worse\n&ensp;\nnot relevant" in page
    assert "relevant (2)" in page
    assert "not judged" in page
    assert "Relevant documents at 2, 3; 1 of 3 not found." in page
    assert "Relevant documents: 3 of 3 not found." in page
    assert len(re.findall("<details>", comparison_page(found))) == 6


def test_a_shown_difference_is_called_better_or_worse():
    qrels = {f"q{n}": {"r": 1} for n in range(8)}
    runs = {name: {f"q{n}": [(one, 2.0), ("z", 1.0)] for n in range(8)} for name, one in (("a", "r"), ("b", "no"))}
    page = shown(comparison_page(compare(runs, qrels=qrels, metrics="RR@10")))
    assert "b is\nworse\nthan a (-1.0000 [-1.0000, -1.0000], p = 0.0078)." in page
    assert "▼ 0.0000" in page
    page = shown(comparison_page(compare(dict(reversed(runs.items())), qrels=qrels, metrics="RR@10")))
    assert "a is\nbetter\nthan b" in page
    assert "▲ 1.0000" in page
    every = shown(comparison_page(compare(runs, qrels=qrels, metrics="RR@10", baseline="all")))
    assert "▼" not in every


def test_a_page_holds_no_more_rows_than_a_browser_bears(monkeypatch):
    monkeypatch.setattr("retrievalkit.evaluate.compare.page.MOST_ROWS", 4)
    page = shown(comparison_page(compare(RUNS, qrels=QRELS, examples=0)))
    assert "The 4 that differ most; 2 more are in per_query.tsv." in page


def size(png):
    assert png.startswith(b"\x89PNG")
    return struct.unpack(">II", png[16:24])


def test_pictures_grow_with_what_they_show_and_have_a_dark_twin():
    two = compare(RUNS, qrels=QRELS, metrics="RR@10")
    more = compare(RUNS | {"$x$_third": FIRST}, qrels=QRELS, metrics="RR@10 P@1", baseline="all")
    assert size(draw_differences(more, "RR@10").light)[1] == 3 * size(draw_differences(two, "RR@10").light)[1]
    drawn = draw_means(two)
    assert size(draw_means(more).light)[0] > size(drawn.light)[0]
    assert drawn.light != drawn.dark
    assert size(drawn.light) == size(drawn.dark)
    assert drawn.width / 96 == size(drawn.light)[0] / 160


def test_many_queries_are_drawn_too():
    runs = {name: {f"q{n}": [("r" if n % 3 < k else "no", 1.0)] for n in range(900)} for k, name in enumerate("ab")}
    found = compare(
        runs, qrels={f"q{n}": {"r": 1} for n in range(900)}, sampling=Sampling(resamples=20, permutations=20)
    )
    assert size(draw_differences(found, "nDCG@10").light)[0] > 1000


@pytest.fixture
def files(tmp_path):
    """Options of the command line for the runs, judgements, queries and passages as files."""
    for name, run in RUNS.items():
        write_run(tmp_path / f"{name}.trec", run)
    lines = [f"{query} 0 {one} {grade}\n" for query, judged in QRELS.items() for one, grade in judged.items()]
    (tmp_path / "qrels").write_text("".join(lines))
    texts = [json.dumps({"_id": query.id, "text": query.text}) + "\n" for query in QUERIES]
    (tmp_path / "queries.jsonl").write_text("".join(texts))
    rows = [json.dumps({"_id": one.id, "title": one.title, "text": one.text}) + "\n" for one in PASSAGES]
    (tmp_path / "corpus.jsonl").write_text("".join(rows))
    return tmp_path


def rkit(files, *arguments):
    runs = [str(files / "first.trec"), str(files / "second.trec")]
    return CliRunner().invoke(main, ["compare", *runs, "--qrels", str(files / "qrels"), *map(str, arguments)])


def test_a_folder_from_the_command_line(files):
    more = ("--queries", files / "queries.jsonl", "--corpus", files / "corpus.jsonl", "--metrics", "AP(rel=2)@5")
    ran = rkit(files, "--output", files / "out", *more)
    assert ran.exit_code == 0, ran.output
    assert f"open {files / 'out' / 'compare.html'} in a browser" in ran.output.replace("\n", " ")
    assert sorted(path.name for path in (files / "out").iterdir()) == [
        "compare.html", "comparison.json", "differences-AP-rel-2-@5.png", "manifest.json",
        "means.png", "per_query.tsv",
    ]  # fmt: skip
    html = (files / "out" / "compare.html").read_text()
    assert html.count("data:image/png;base64,") == 4
    assert "Title 2" in html
    figures = json.loads((files / "out" / "comparison.json").read_text())
    assert figures["differences"][0]["largest"][0]["rankings"]["second"]["first"][0]["title"] == "Title 1"
    lines = (files / "out" / "per_query.tsv").read_text().splitlines()
    assert lines[:2] == ["metric\tquery\tfirst\tsecond", "AP(rel=2)@5\tq0\t0.333333\t0"]
    assert len(lines) == 7
    manifest = json.loads((files / "out" / "manifest.json").read_text())
    assert manifest["counts"] == {"runs": 2, "queries": 6}
    assert sorted(manifest["inputs"]) == ["qrels", "queries", "run first", "run second"]


def test_equal_inputs_give_equal_bytes_and_a_folder_is_replaced_only_when_asked(files):
    assert rkit(files, "--output", files / "out", "--no-plot").exit_code == 0
    before = {path.name: path.read_bytes() for path in (files / "out").iterdir()}
    refused = rkit(files, "--output", files / "out")
    assert refused.exit_code == 2
    assert "exists already" in refused.output
    assert rkit(files, "--output", files / "out", "--no-plot", "--overwrite").exit_code == 0
    assert {path.name: path.read_bytes() for path in (files / "out").iterdir()} == before


def test_a_difference_is_coloured_only_if_it_is_shown(monkeypatch):
    """By the corrected p-value, on the page and on a terminal."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    qrels = {f"q{n}": {"r": 1} for n in range(8)}
    runs = {name: {f"q{n}": [(one, 2.0), ("z", 1.0)] for n in range(8)} for name, one in (("a", "r"), ("b", "no"))}
    for compared, colour in (((runs, qrels), True), ((RUNS, QRELS), False)):
        found = compare(compared[0], qrels=compared[1], metrics="RR@10")
        (one,) = found.differences
        assert found.shows(one) is colour
        cell = f'<span class="{"bad" if colour else ""}">{one.difference:+.4f}</span>'
        assert cell in comparison_page(found)
        stream = StringIO()
        render(found, Console(file=stream, width=200, force_terminal=True, color_system="standard"))
        red = re.search(rf"\x1b\[1;31m *{re.escape(f'{one.difference:+.4f}')}", stream.getvalue())
        assert (red is not None) is colour
        assert "\x1b[1;32m" not in stream.getvalue()


@pytest.mark.parametrize(
    ("name", "start"),
    [("t.csv", "metric,run,mean"), ("t.md", "| metric | run | mean"), ("t.tex", "\\begin{tabular}{llrrl")],
)
def test_a_table_is_written_in_the_form_of_its_name(files, name, start):
    """A row per run and metric; no plot, so no matplotlib."""
    ran = rkit(files, "--output", files / name, "--metrics", "RR@10", "--metrics", "P@1")
    assert ran.exit_code == 0, ran.output
    written = (files / name).read_text()
    assert written.startswith(start)
    assert sum("second" in line for line in written.splitlines()) == 2
    assert "P@1" in written


def test_a_page_or_the_figures_alone(files):
    assert rkit(files, "--output", files / "a.html", "--no-plot").exit_code == 0
    page = (files / "a.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "per_query.tsv" not in page
    assert rkit(files, "--output", files / "a.json").exit_code == 0
    assert json.loads((files / "a.json").read_text()) == json.loads(rkit(files, "--json").stdout)
    (files / "b.html").mkdir()
    refused = rkit(files, "--output", files / "b.html", "--no-plot")
    assert refused.exit_code == 2
    assert "is a folder" in refused.output


def test_without_pictures_matplotlib_is_not_needed(files, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    refused = rkit(files, "--output", files / "out")
    assert refused.exit_code == 2
    assert "pip install 'retrievalkit[plot]'" in refused.output
    assert "--no-plot" in refused.output
    assert not (files / "out").exists()
    assert rkit(files, "--output", files / "out", "--no-plot").exit_code == 0
    assert not list((files / "out").glob("*.png"))
    assert "<img" not in (files / "out" / "compare.html").read_text()


def test_the_terminal_tells_what_is_first(files):
    more = ("--queries", files / "queries.jsonl", "--corpus", files / "corpus.jsonl", "--metrics", "RR@10")
    ran = rkit(files, *more)
    assert "first: not relevant: Bad & worse" in " ".join(ran.output.split())
    assert "second: relevant: Title 0" in " ".join(ran.output.split())


def test_queries_and_a_corpus_of_something_else_are_refused():
    with pytest.raises(InputError, match="none of the queries is in the qrels: the queries have 'z', the qrels 'q0'"):
        compare(RUNS, qrels=QRELS, queries=[Query("z", "z")])
    with pytest.raises(DataError, match="unknown document ids: 'x'"):
        compare(RUNS, qrels=QRELS, corpus=PASSAGES[:-1])
    found = compare(RUNS, qrels=QRELS, queries=QUERIES[:2])
    assert found.notes[-1] == ("4 of 6 queries of the qrels have no text in the queries: 'q2', 'q3', 'q4' and 1 more.")


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ArtifactError, match="is a file"):
        compare(["no.trec", "none.trec"], qrels="no", output=Output(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "mine"


def test_documents_with_the_id_of_the_query_can_be_left_out():
    run = {"x": [("x", 2.0), ("y", 1.0)]}
    runs = {"a": run, "b": {"x": [("y", 1.0)]}}
    assert compare(runs, qrels={"x": {"y": 1}}, metrics="RR@10").differences[0].difference == 0.5
    assert (
        compare(runs, qrels={"x": {"y": 1}}, metrics="RR@10", conventions=Conventions(exclude_self=True))
        .differences[0]
        .difference
        == 0
    )
