"""`rkit convert`: from all formats to ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from retrievalkit import storage
from retrievalkit.data.convert import convert
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import check_examples, read_examples
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import read_run
from retrievalkit.errors import ArtifactError, DataError, InputError, OptionError
from retrievalkit.storage import read_manifest

DPR = [
    {
        "question": "who",
        "answers": ["me"],
        "positive_ctxs": [{"title": "T", "text": "text 1", "passage_id": "1"}],
        "hard_negative_ctxs": [{"title": None, "text": "text 2", "passage_id": "2"}],
    },
    {"question": "what", "answers": [], "positive_ctxs": []},
]


@pytest.fixture
def collection(tiny_collection):
    """The folder of the tiny collection."""
    return tiny_collection.folder


@pytest.fixture
def dpr(tmp_path):
    (tmp_path / "dpr.json").write_text(json.dumps(DPR))
    return tmp_path / "dpr.json"


def test_a_corpus(tmp_path):
    (tmp_path / "psgs.tsv").write_text('id\ttext\ttitle\n1\t"a ""b"""\tT\n')
    assert convert(tmp_path / "psgs.tsv", tmp_path / "out.jsonl") == {"passages": 1}
    assert json.loads((tmp_path / "out.jsonl").read_text()) == {"_id": "1", "title": "T", "text": 'a "b'}
    convert(tmp_path / "psgs.tsv", tmp_path / "out.jsonl.gz")
    assert list(open_corpus(tmp_path / "out.jsonl.gz")) == list(open_corpus(tmp_path / "psgs.tsv"))
    assert convert(tmp_path / "psgs.tsv", tmp_path / "folder") == {"passages": 1}
    assert open_corpus(tmp_path / "folder").get("1").title == "T"


def test_examples_go_into_a_folder_with_their_passages(tmp_path, dpr):
    assert convert(dpr, tmp_path / "out") == {"examples": 1, "passages": 2, "without a positive": 1}
    examples = read_examples(tmp_path / "out")
    assert examples.rows == read_examples(dpr).rows
    assert examples.passages == {}
    check_examples(examples, open_corpus(tmp_path / "out"))
    manifest = read_manifest(tmp_path / "out", "collection")
    assert manifest["counts"]["passages"] == 2
    assert manifest["inputs"]["source"]["path"] == str(dpr)


def test_texts_are_not_lost_silently(tmp_path, dpr):
    with pytest.raises(InputError, match=r"contains the texts of 2 passages, .*Write to a folder"):
        convert(dpr, tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
    convert(dpr, tmp_path / "out")
    assert convert(dpr, tmp_path / "out.jsonl", corpus=tmp_path / "out")["examples"] == 1


@pytest.mark.parametrize("output", ["out.jsonl", "out"])
def test_examples_with_texts_are_mapped_to_the_passages_of_the_corpus(tmp_path, output):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1", "text": "text 1"}\n{"_id": "d2", "text": "text 2"}\n')
    triple = {"anchor": "who", "positive": "text 2", "negative": "text 1"}
    (tmp_path / "triples.jsonl").write_text(json.dumps(triple))
    assert convert(tmp_path / "triples.jsonl", tmp_path / output, corpus=tmp_path / "corpus.jsonl")["examples"] == 1
    written = read_examples(tmp_path / output)
    assert (written.rows[0].positives, written.rows[0].negatives) == (("d2",), ("d1",))
    assert not (tmp_path / output / "corpus.jsonl").exists()
    (tmp_path / "triples.jsonl").write_text(json.dumps({**triple, "negative": "text 3"}))
    with pytest.raises(DataError, match=r"triples\.jsonl:1: no passage of .* has the text 'text 3'"):
        convert(tmp_path / "triples.jsonl", tmp_path / "other.jsonl", corpus=tmp_path / "corpus.jsonl")


def test_a_collection(tmp_path, collection):
    counts = convert(collection, tmp_path / "out")
    assert set(counts) == {"passages", "queries", "judgements"}
    assert list(open_corpus(tmp_path / "out")) == list(open_corpus(collection))
    assert read_queries(tmp_path / "out") == read_queries(collection)
    for path in (Path(collection) / "qrels").iterdir():
        split = path.name.partition(".")[0]
        assert read_qrels(tmp_path / "out", split) == read_qrels(collection, split)


def test_parts_of_a_folder_that_are_not_converted_are_named(tmp_path, collection, capsys):
    """Examples of a collection, and judgements of a folder without queries, unless `kind` is set."""
    folder = Path(shutil.copytree(collection, tmp_path / "in"))
    (folder / "train.jsonl").write_text('{"query_id": "1", "query": "x", "positives": [], "negatives": []}\n')
    convert(folder, tmp_path / "a")
    assert "as kind examples" in capsys.readouterr().err
    for path in folder.glob("queries.jsonl*"):
        path.unlink()
    convert(folder, tmp_path / "b")
    assert "as kind qrels" in capsys.readouterr().err
    convert(folder, tmp_path / "c", kind="corpus")
    assert "not converted" not in capsys.readouterr().err


def test_a_part_of_a_collection(tmp_path, collection):
    split = next((Path(collection) / "qrels").iterdir()).name.partition(".")[0]
    convert(collection, tmp_path / "out.jsonl", kind="queries", split=split)
    assert {query.id for query in read_queries(tmp_path / "out.jsonl")} == set(read_qrels(collection, split))
    convert(collection, tmp_path / "train.jsonl", kind="examples", split=split)
    assert read_examples(tmp_path / "train.jsonl").rows == read_examples(collection, split=split).rows


@pytest.mark.parametrize(
    ("output", "kind", "message"), [("a.jsonl", None, r"whole collection, .*a\.jsonl'"), ("a", "corpsu", "corpsu")]
)
def test_wrong_usage(tmp_path, collection, output, kind, message):
    with pytest.raises(OptionError, match=message):
        convert(collection, tmp_path / output, kind=kind)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("output", ["out", "out.jsonl", "out.jsonl.gz"])
def test_a_failed_conversion_leaves_nothing(tmp_path, output):
    (tmp_path / "a.jsonl").write_text('{"_id": "1", "title": "", "text": ""}\n' * 2)
    with pytest.raises(DataError, match=r"a\.jsonl:2: the id '1' is already used at line 1"):
        convert(tmp_path / "a.jsonl", tmp_path / output)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    with pytest.raises(ArtifactError, match="exists already"):
        convert(tmp_path / "a.jsonl", tmp_path)


def test_runs_and_qrels_in_all_formats(tmp_path):
    (tmp_path / "a.trec").write_text("q Q0 d1 1 2.5 t\nq Q0 d2 2 1.5 t\n")
    assert convert(tmp_path / "a.trec", tmp_path / "b.tsv", form="msmarco") == {"results": 2}
    assert (tmp_path / "b.tsv").read_text() == "q\td1\t1\nq\td2\t2\n"
    assert convert(tmp_path / "b.tsv", tmp_path / "c.trec") == {"results": 2}
    assert (tmp_path / "c.trec").read_text() == "q Q0 d1 1 1.0 rkit\nq Q0 d2 2 0.5 rkit\n"
    assert convert(tmp_path / "a.trec", tmp_path / "d", form="beir") == {"results": 2}
    assert json.loads((tmp_path / "d").read_text()) == {"q": {"d1": 2.5, "d2": 1.5}}
    assert convert(tmp_path / "d", tmp_path / "e.trec.gz") == {"results": 2}
    assert read_run(tmp_path / "e.trec.gz") == read_run(tmp_path / "a.trec")
    (tmp_path / "qrels").write_text("q 0 d1 1\n")
    assert convert(tmp_path / "qrels", tmp_path / "qrels.tsv", form="msmarco") == {"judgements": 1}
    assert (tmp_path / "qrels.tsv").read_text() == "q\t0\td1\t1\n"
    (tmp_path / "queries.tsv").write_text("q\twho\n")
    with pytest.raises(OptionError, match=r"form is for runs and qrels, but '.*' is read as queries"):
        convert(tmp_path / "queries.tsv", tmp_path / "x", form="trec")
    with pytest.raises(ArtifactError, match="is a folder"):
        convert(tmp_path / "qrels", tmp_path, form="trec")


@pytest.mark.parametrize("kind", ["checkpoint", "vectors", "index", "reranker"])
def test_a_folder_of_another_command_holds_no_data(tmp_path, kind):
    storage.write_manifest(tmp_path, kind, command="some", options={})
    (tmp_path / "retrievalkit.json").write_text('{\n "a": 1\n}\n')
    with pytest.raises(DataError, match="not data"):
        convert(tmp_path, tmp_path / "out.jsonl")
