"""Readable hits: snippets, explanations, and their forms."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.snippets import matches, snippet
from retrievalkit.search.hits import DescribedHit, Found, TokenPair, describe_hits, render, write_hits


def printed(hits, width=80, terminal=True):
    stream = io.StringIO()
    render(hits, Console(file=stream, width=width, force_terminal=terminal, color_system=None, highlight=False))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def hit(*found, **fields):
    return DescribedHit(**{"rank": 1, "score": 0.5, "id": "d1", "title": "Title", "found": found, **fields})


def test_a_snippet_is_the_part_with_the_most_words_of_the_query():
    """Different words count more than repeated words; common words do not count; plurals match."""
    filler = " ".join(f"word{row}" for row in range(40))
    text = f"distance distance distance {filler} the distances of two points {filler}"
    found = snippet(text, "distance between points", words=10)
    assert found.startswith("… ")
    assert found.endswith(" …")
    assert "distances of two points" in found
    assert len(found.split()) == 12
    assert [found[start:end] for start, end in matches(found, "distance between the points")] == ["distances", "points"]
    assert snippet("short text", "anything") == "short text"
    assert matches("what is it", "what is") == ((0, 4), (5, 7))


def test_matching_words_are_in_the_middle_of_a_snippet():
    """Without a match, the snippet is the start of the text."""
    before, after = (" ".join(f"{name}{row}" for row in range(20)) for name in ("b", "a"))
    assert snippet(f"{before} point {after}", "point", words=5) == "… b18 b19 point a0 a1 …"
    assert snippet(f"{before} {after}", "point", words=3) == "b0 b1 b2 …"


def test_a_snippet_has_the_lines_of_the_text():
    """With the indentation of its code, without blank lines and runs of spaces; a long word is cut."""
    code = "def area(a,   b):\n    if a:\n\n\n        return a * b\n    return 0\n"
    lines = "def area(a, b):\n    if a:\n        return a * b\n    return 0"
    assert snippet(code, "area") == snippet(code.replace("\n", "\r\n"), "area") == lines
    assert snippet(code + "    stop", "stop", words=6) == "    … a * b\nreturn 0\nstop"
    assert snippet("one\n\ttwo", "one") == "one\n    two"
    assert len(snippet("x" * 10_000, "x")) < 2000
    assert 100 < len(snippet("字" * 10_000, "字")) < 200


def test_words_that_begin_with_a_term_of_the_index_are_marked():
    """Terms may be stems, or words that the query lacks; a short stem marks only itself."""
    text = "Computing with eigenvalues, a car and caring"
    marked = matches(text, "number", ["comput", "eigenvalu", "car", "with"])
    assert [text[start:end] for start, end in marked] == ["Computing", "eigenvalues", "car"]


@pytest.mark.parametrize(
    ("text", "query", "terms", "marked"),
    [
        ("退款政策、申请退款需要三十天。", "如何申请退款", [], ["退款", "申请退款"]),
        ("我的猫很可爱", "猫", [], ["猫"]),
        ("Python3教程,安装Docker", "docker 安装", [], ["安装Docker"]),
        ("東京タワーの高さは333メートルです。", "東京タワーはどのくらい高いですか", [], ["東京タワー"]),
        ("よく好きな猫です", "猫が好きです", [], ["好き"]),
        ("กรุงเทพมหานครเป็นเมืองหลวงของไทย", "เมืองหลวงคือกรุงเทพ", [], ["กรุงเทพ", "เมืองหลวง"]),
        ("มีแมวสองตัว", "แมว", [], ["แมว"]),
        ("今日は雨が降る", "weather", ["雨"], ["雨"]),
        ("别的文字", "申请退款", [], []),
    ],
)
def test_scripts_without_spaces_are_marked_by_common_signs(text, query, terms, marked):
    """Two of Chinese or Japanese, four of Thai, or terms of the index; a snippet is around them."""
    assert [text[start:end] for start, end in matches(text, query, terms)] == marked
    filler = "。" * 400 + "字" * 400
    if marked:
        assert max(marked, key=len)[:2] in snippet(f"{filler}{text}{filler}", query, terms=terms)


def test_hits_are_described_from_the_corpus():
    corpus = Corpus.of([Passage("a", "Alpha", "the first letter"), Passage("b", "", "second thoughts")])
    found = [(Found("i", 1, 2.0, terms={"thought": 1.0}),), (), (Found("i", 3, 0.5),)]
    first, second, third = describe_hits([("b", 2.0), ("a", 1.0), ("z", 0.5)], "letters", corpus, found)
    assert (first.rank, first.score, first.id, first.title, first.snippet) == (1, 2.0, "b", "", "second thoughts")
    assert [first.snippet[start:end] for start, end in first.matches] == ["thoughts"]
    assert (second.title, second.matches) == ("Alpha", ((10, 16),))
    assert (third.id, third.snippet, third.found) == ("z", "", found[2])


def test_a_snippet_without_words_of_the_query_shows_the_nearest_sentence():
    filler = " ".join(f"word{row}" for row in range(60))
    corpus = Corpus.of([Passage("a", "", f"{filler}. Its seat is La Paz. {filler}")])
    found = [(Found("dense", 1, 2.0, sentence="Its seat is La Paz.", sentence_score=0.5),)]
    [elsewhere] = describe_hits([("a", 2.0)], "government", corpus, found)
    assert "Its seat is La Paz." in elsewhere.snippet
    assert elsewhere.matches == ()
    [matching] = describe_hits([("a", 2.0)], "word3", corpus, found)
    assert "word3 " in matching.snippet


def test_json_has_only_known_values():
    pair = TokenPair("a", "b", 0.25)
    one = Found("dense", 2, 0.1234567890123, view="layer 3", view_number=0, views=2, tokens=(pair,))
    value = hit(one, Found("bm25"), snippet="a b", matches=((0, 1),)).to_json()
    assert value["matches"] == ["a"]
    dense = {"index": "dense", "rank": 2, "score": 0.1234568, "view": "layer 3", "view_number": 0, "views": 2}
    dense["tokens"] = ({"query": "a", "document": "b", "score": 0.25},)
    assert value["found"] == [dense, {"index": "bm25", "rank": None, "score": None}]


PAIRS = TokenPair("the", "the", 0.9), TokenPair("peru", "peru", 0.8), TokenPair("capital", "city", 0.7)


@pytest.mark.parametrize(
    ("found", "fields", "lines"),
    [
        # With a single index, rank and score are the hit's own.
        ([Found("dense", 1, 0.5)], {}, []),
        (
            [Found("both", 1, 0.5, dense=0.2, lexical=0.3, terms={"peru": 0.25, "lima": 0.05})],
            {},
            ["dense 0.2 + lexical 0.3; peru 0.25, lima 0.05"],
        ),
        ([Found("layers", 1, 0.5, view="layer 10", view_number=2, views=3)], {}, ["nearest of 3 vectors: layer 10"]),
        (
            [Found("dense", 3, 0.75), Found("bm25", None, 0.0), Found("run.trec")],
            {},
            ["dense #3 0.7500", "bm25 not found 0.0000", "run.trec not found"],
        ),
        (
            [Found("dense", 1, 0.5, sentence="Lima is\n  the capital.", sentence_score=0.625)],
            {},
            ["nearest sentence: Lima is the capital. 0.62"],
        ),
        # Common words are last; equal tokens are named once.
        ([Found("colbert", 1, 0.5, tokens=PAIRS)], {}, ["peru 0.80, capital ~ city 0.70, the 0.90"]),
        # A title that equals the id is printed once; markup in a title is text.
        ([], {"id": "numpy.sin", "title": "numpy.sin"}, []),
        ([], {"title": "[bold]x[/bold]"}, []),
    ],
)
def test_hits_are_printed_with_their_reasons(found, fields, lines):
    name = " ".join(dict.fromkeys([fields.get("title", "Title"), fields.get("id", "d1")])).replace(" ", "  ")
    assert printed([hit(*found, **fields)]) == [f"  1  {name}  0.5000", *(f"     {line}" for line in lines)]


def test_lines_are_wrapped_on_a_terminal_only():
    text = " ".join(["word"] * 30)
    wrapped = printed([hit(snippet=text)], width=40)
    assert len(wrapped) > 3
    assert all(line.startswith("     word") and len(line) <= 40 for line in wrapped[1:])
    assert printed([hit(snippet=text)], width=40, terminal=False)[1] == f"     {text}"


def test_the_suffix_of_the_file_determines_the_form(tmp_path):
    hits = [hit(Found("dense", 1, 0.5, terms={"sea": 0.25}), snippet="the <b>sea</b>", matches=((7, 10),))]
    for name in ("hits.html", "hits.json", "hits.trec"):
        write_hits(tmp_path / name, "what is the <sea>?", hits, ["dense"])
    page = (tmp_path / "hits.html").read_text()
    assert "<title>what is the &lt;sea&gt;?</title>" in page
    assert "the &lt;b&gt;<mark>sea</mark>&lt;/b&gt;" in page
    assert "sea 0.25" in page
    written = json.loads((tmp_path / "hits.json").read_text())
    assert written == json.loads(json.dumps({"query": "what is the <sea>?", "hits": [hits[0].to_json()]}))
    assert (tmp_path / "hits.trec").read_text().split()[:4] == ["query", "Q0", "d1", "1"]


@pytest.mark.parametrize("terminal", [True, False])
def test_titles_ids_and_texts_cannot_control_the_terminal(terminal):
    """They are untrusted; each hit stays on its own lines, and matching words stay marked."""
    snippet = "a \x1b[2J word \u202e"
    found = Found("i\x9b", 1, 1.0, terms={"t\x07": 1.0}), Found("j", 1, 1.0)
    hits = [hit(*found, id="d\x1b[1m", title="T\n  2  Fake  0.9", snippet=snippet, matches=((8, 12),))]
    shown = "\n".join(printed(hits, width=200, terminal=terminal))
    for part in (r"T\x0a  2  Fake  0.9", r"d\x1b[1m", r"a \x1b[2J word \u202e", r"i\x9b", r"t\x07"):
        assert part in shown
    assert not set("\x1b\x07\x9b\u202e") & set(shown)
