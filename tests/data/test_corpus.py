"""Corpora in all formats: passages, random access and errors."""

from __future__ import annotations

import itertools
import json
import pickle
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from id_texts import id_texts
from retrievalkit.data import files, positions
from retrievalkit.data.corpus import Corpus, Passage, open_corpus, split_contents
from retrievalkit.errors import DataError

A, B = Passage("1", "Violin", "A string instrument."), Passage("x 2", "", "\u00dcber tabs\tand\nlines")


def jsonl(tmp_path, rows, name="corpus.jsonl"):
    path = tmp_path / name
    files.write_jsonl(path, rows)
    return path


def beir(*passages):
    return [{"_id": passage.id, "title": passage.title, "text": passage.text} for passage in passages]


FORMS = {
    "beir": beir(A, B),
    "beir with more fields": [{**row, "metadata": {"deep": {}}, "url": None} for row in beir(A, B)],
    "beir without title": [{"_id": "1", "title": A.title, "text": A.text}, {"_id": "x 2", "text": B.text}],
    "tevatron": [{"docid": 1, "title": A.title, "text": A.text}, {"docid": "x 2", "title": None, "text": B.text}],
    "id and text": [{"id": passage.id, "title": passage.title, "text": passage.text} for passage in (A, B)],
}


@pytest.mark.parametrize("rows", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("name", ["c.jsonl", "c.jsonl.gz", "c.jsonl.zst"])
def test_json_lines(tmp_path, rows, name):
    corpus = open_corpus(jsonl(tmp_path, rows, name))
    assert list(corpus) == list(corpus) == [A, B]
    assert len(corpus) == 2
    assert (corpus.get("x 2"), corpus.get("1")) == (B, A)
    assert "1" in corpus
    assert "3" not in corpus
    assert 1 not in corpus
    assert corpus.missing(["1", "3", "x 2", "4"]) == {"3", "4"}
    assert corpus.ids() == ["1", "x 2"]


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ("Violin\nA string instrument.", "Violin", "A string instrument."),
        ('"Weird Al"\nA singer.\nAnd more.', "Weird Al", "A singer.\nAnd more."),
        ("One line only.", "", "One line only."),
        ("One line only.\n", "", "One line only."),
    ],
)
def test_pyserini(tmp_path, contents, title, text):
    corpus = open_corpus(jsonl(tmp_path, [{"id": "1", "contents": contents}]))
    assert list(corpus) == [corpus.get("1")] == [Passage("1", title, text)]
    assert split_contents(contents) == (title, text)


def test_dpr(tmp_path):
    """CSV quoting; then quotation marks at both ends of the text are stripped, as in DPR's reader."""
    path = tmp_path / "psgs.tsv"
    path.write_text(
        'id\ttext\ttitle\n1\t"Aaron ""the"" prophet"\tAaron\n2\tplain\t"""Weird Al"" Yankovic"\n'
        '3\t"He said ""hi"""\t\n4\t"two\nlines"\tT\n'
    )
    corpus = open_corpus(path)
    wanted = [
        Passage("1", "Aaron", 'Aaron "the" prophet'),
        Passage("2", '"Weird Al" Yankovic', "plain"),
        Passage("3", "", 'He said "hi'),
        Passage("4", "T", "two\nlines"),
    ]
    assert list(corpus) == wanted
    assert [corpus.get(name) for name in "4321"] == wanted[::-1]


def test_a_folder_of_files(tmp_path):
    """Files are read in the order of their names, and a passage is found in any of them."""
    jsonl(tmp_path, [{"id": "x 2", "contents": "b"}], "docs01.jsonl")
    jsonl(tmp_path, beir(A), "docs00.jsonl")
    (tmp_path / "README.txt").write_text("no corpus")
    corpus = open_corpus(tmp_path)
    assert list(corpus) == [A, Passage("x 2", "", "b")]
    assert (corpus.get("x 2").text, corpus.get("1")) == ("b", A)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_an_unknown_id_names_the_nearest(tmp_path, name):
    path = jsonl(tmp_path, [{"_id": f"doc-{number}", "text": "t"} for number in range(20)], name)
    corpus = open_corpus(path)
    with pytest.raises(DataError, match="unknown document id 'doc17'; did you mean 'doc-17'\\? It is not among the 20"):
        corpus.get("doc17")
    with pytest.raises(DataError, match=r"^train:7: unknown document id 'zzz'\. It is not among"):
        raise corpus.unknown("zzz", file="train", line=7)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("second", [2, 900, 1100, 5000])
def test_a_duplicated_id_names_both_lines(tmp_path, name, second):
    rows = [{"_id": str(number), "text": "t"} for number in range(5000)]
    rows[second - 1]["_id"] = "0"
    path = jsonl(tmp_path, rows, name)
    message = rf"{name}:{second}: the id '0' is already used at line 1\. Every id"
    for use in (list, len, lambda corpus: corpus.get("0"), lambda corpus: "0" in corpus):
        with pytest.raises(DataError, match=message):
            use(open_corpus(path))


def test_a_duplicate_is_reported_before_the_end(tmp_path):
    corpus = open_corpus(jsonl(tmp_path, ({"_id": str(min(number, 10)), "text": "t"} for number in range(5000))))
    with pytest.raises(DataError):
        list(itertools.islice(corpus, 2000))


def test_equal_hashes_of_different_ids(tmp_path, monkeypatch):
    """Different ids with the same hash are not duplicates, and each is found."""

    monkeypatch.setattr(positions, "hash", lambda _: 7, raising=False)
    corpus = open_corpus(jsonl(tmp_path, beir(A, B)))
    assert list(corpus) == [A, B]
    assert (corpus.get("1"), corpus.get("x 2")) == (A, B)
    with pytest.raises(DataError, match="unknown document id 'y'"):
        corpus.get("y")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"_id": "2"}, r"the passage has no text \(text, contents, content, body, passage\)\. Its fields are: _id\."),
        ({"text": "x"}, r"the passage has no id \(_id, .*\)\. Its fields are: text\."),
        ({}, "these fields: none"),
        ({"_id": "2", "text": None}, "'text' is null, but should be text"),
        ({"_id": "2", "text": 5}, "'text' is 5, but should be text"),
        ({"_id": "2", "title": 5, "text": ""}, "'title' is 5"),
        ({"_id": None, "text": ""}, "'_id' is null; an id is text or a whole number"),
        ({"_id": "a\tb", "text": ""}, "an id may not contain tabs"),
    ],
)
def test_a_damaged_passage_is_named(tmp_path, row, message):
    path = jsonl(tmp_path, [*beir(A), row])
    for use in (list, lambda corpus: corpus.get("1")):
        with pytest.raises(DataError, match=rf"corpus\.jsonl:2: .*{message}"):
            use(open_corpus(path))


@pytest.mark.parametrize("text", ["", "\n\n", "[]"])
def test_an_empty_corpus(tmp_path, text):
    (tmp_path / "a.jsonl").write_text(text)
    for use in (list, len, lambda corpus: corpus.get("1")):
        with pytest.raises(DataError, match=r"a\.jsonl: .*empty"):
            use(open_corpus(tmp_path / "a.jsonl"))
    with pytest.raises(DataError, match="memory: the corpus is empty"):
        list(Corpus.of([]))


@pytest.mark.parametrize("change", [Path.unlink, lambda path: jsonl(path.parent, beir(B), path.name)])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_an_open_corpus_keeps_its_file(tmp_path, name, change):
    """If the file is removed or replaced before the first read, and after it."""
    path = jsonl(tmp_path, beir(A, B), name)
    corpus, used = open_corpus(path), open_corpus(path)
    assert used.find(["1"]) == {"1": A}
    change(path)
    for opened in (corpus, used):
        assert (opened.find(["1"]), opened.get("x 2"), list(opened)) == ({"1": A}, B, [A, B])


@pytest.mark.parametrize("before", [lambda _: None, lambda corpus: corpus.find(["1"]), lambda corpus: corpus.get("1")])
def test_a_corpus_that_is_modified_in_place_is_refused(tmp_path, before):
    path = jsonl(tmp_path, beir(A, B))
    corpus = open_corpus(path)
    before(corpus)
    path.write_text(path.read_text().replace("1", "3"))
    with pytest.raises(DataError, match="changed while"):
        corpus.get("x 2")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_corpus_can_be_pickled(tmp_path, name):
    corpus = open_corpus(jsonl(tmp_path, beir(A, B), name))
    corpus.get("1")
    assert pickle.loads(pickle.dumps(corpus)).get("x 2") == B
    assert list(pickle.loads(pickle.dumps(Corpus.of([A, B])))) == [A, B]


TRICKY = [
    {"_id": "c1", "text": 'a mention of "_id": "c12", and {"_id": "c3"}'},
    {"_id": "c12", "text": "the whole id and not its start", "metadata": {"id": "c1", "_id": "c9"}},
    {"text": "the field comes last", "_id": "c3"},
    {"_id": "a-b/c:d.e#f@g+h", "text": "signs"},
]


@pytest.mark.parametrize(
    ("form", "scanned"), [("lines", True), ("escapes", False), ("damaged", False), ("table", False), ("folder", True)]
)
def test_scanning_lines_finds_the_same_passages_as_parsing_them(tmp_path, form, scanned):
    """Ids inside other ids, texts and nested objects; if ids are written with escapes, all lines are parsed."""
    text = "".join(json.dumps(row, separators=(",", " : ")) + "\n" for row in TRICKY)
    if form == "escapes":
        text = text.replace('"_id" : "c3"', '"_id" : "\\u0063\\u0033"')
    path = tmp_path / "corpus.jsonl"
    path.write_text(text)
    if form == "table":
        path = tmp_path / "corpus.tsv"
        path.write_text("".join(f"{row['_id']}\t{row['text']}\n" for row in TRICKY))
    if form == "folder":
        path = tmp_path
    if form == "damaged":
        path.write_text(text + '{"_id": "c12", ')
        with pytest.raises(DataError, match=r"jsonl:5: broken JSON"):
            open_corpus(path).find(["c12", "c1"])
        return
    wanted = ["c3", "c12", "a-b/c:d.e#f@g+h", "c1"]
    corpus = open_corpus(path)
    passages = corpus.find(wanted)
    assert (corpus._positions is None) == scanned
    assert passages == {name: open_corpus(path).get(name) for name in wanted}
    assert open_corpus(path).find(["c9", "c2"]) == {}


def test_random_access_holds_no_texts(tmp_path):
    path = jsonl(tmp_path, ({"_id": f"d{number}", "text": "word " * 400} for number in range(2000)))
    corpus = open_corpus(path)
    corpus.get("d1")
    tracemalloc.start()
    corpus = open_corpus(path)
    assert corpus.get("d1999").text.startswith("word")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000 < path.stat().st_size


IDS = st.lists(id_texts(8), min_size=1, unique=True)


@given(ids=IDS, text=st.text(max_size=40), end=st.sampled_from(["", ".gz"]))
def test_every_passage_is_found(tmp_path_factory, ids, text, end):
    passages = [Passage(name, text[:3], text + name) for name in ids]
    corpus = open_corpus(jsonl(tmp_path_factory.getbasetemp(), beir(*passages), f"all.jsonl{end}"))
    assert list(corpus) == passages
    assert [corpus.get(passage.id) for passage in passages] == passages
    assert corpus.missing([*ids, "\n"]) == {"\n"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id\ttitle\ttext\n1\tViolin\tA string instrument.\n", A),
        ("1\tA string instrument.\tViolin\n", A),
        ('0\t"Manhattan" project\n1\tThe "end\n', Passage("1", "", 'The "end')),
    ],
    ids=["names", "three", "ms marco"],
)
def test_columns_by_their_names_or_their_number(tmp_path, text, expected):
    (tmp_path / "collection.tsv").write_text(text)
    assert list(open_corpus(tmp_path))[-1] == open_corpus(tmp_path).get("1") == expected
