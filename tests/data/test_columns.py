"""Custom tables: `.csv` with commas, Parquet, and fields named by the user."""

from __future__ import annotations

import json

import pyarrow
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from retrievalkit.cli import main
from retrievalkit.data.convert import convert
from retrievalkit.data.corpus import Columns, Passage, open_corpus, open_own
from retrievalkit.data.examples import read_examples
from retrievalkit.data.inputs import passages
from retrievalkit.errors import DataError, OptionError

FAQ = 'Topic,Answer,url\nRome,"It is, ""old"",\nvery old.",u1\n,Paris is not.,u2\n'


def file(path, content):
    path.write_text(content)
    return path


@pytest.fixture
def faq(tmp_path):
    return file(tmp_path / "faq.csv", FAQ)


def run(*words):
    return CliRunner().invoke(main, ["convert", *map(str, words)])


@pytest.mark.parametrize("gap", [",", ";"])
def test_a_corpus_with_commas_or_semicolons(tmp_path, gap):
    """With the header of a known format, all commands read it, also by id."""
    rows = [["id", "text", "title"], ["1", f'"a{gap} ""b""\nc"', "T"], ["2", "d", ""]]
    path = file(tmp_path / "corpus.csv", "".join(gap.join(row) + "\n" for row in rows))
    corpus = open_corpus(path)
    assert list(corpus) == [Passage("1", "T", f'a{gap} "b"\nc'), Passage("2", "", "d")]
    assert corpus.get("2").text == "d"
    assert convert(path, tmp_path / "out.jsonl") == {"passages": 2}
    assert list(open_corpus(tmp_path / "out.jsonl")) == list(corpus)


@pytest.mark.parametrize("text", ["text", "contents", "content", "body", "passage", "Body"])
@pytest.mark.parametrize("identifier", ["_id", "docid", "doc_id", "id", "passage_id", "psg_id", "pid", "docno", "ID"])
def test_a_passage_has_the_same_field_names_in_every_format(tmp_path, identifier, text):
    rows = [{identifier: "1", text: "alpha"}, {identifier: "2", text: "beta"}]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "c.json").write_text(json.dumps(rows))
    for ending, gap in ((".csv", ","), (".tsv", "\t")):
        table = [[identifier, text], *(row.values() for row in rows)]
        (tmp_path / f"c{ending}").write_text("".join(gap.join(row) + "\n" for row in table))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    assert [(passage.id, passage.text) for passage in open_corpus(passages(rows))] == [("1", "alpha"), ("2", "beta")]
    for path in sorted(tmp_path.iterdir()):
        for corpus in (open_corpus(path), open_own(path, None), open_own(path, Columns())):
            assert [(passage.id, passage.text) for passage in corpus] == [("1", "alpha"), ("2", "beta")], path


def test_the_header_of_a_table_is_no_passage(tmp_path):
    """A header without a known text is an error, and one without ids gives hashed ids."""
    path = tmp_path / "c.tsv"
    path.write_text("docid\tabstract\n1\talpha\n")
    with pytest.raises(DataError, match=r"no text \(.*Its fields are: docid, abstract"):
        list(open_own(path, None))
    path.write_text("title\tbody\nT\talpha\n")
    assert [(passage.title, passage.text) for passage in open_own(path, None)] == [("T", "alpha")]
    path.write_text("1\talpha\n2\tid\n")
    assert [passage.id for passage in open_own(path, None)] == ["1", "2"]


def test_fields_that_the_user_names(tmp_path, faq):
    """`--text-field`, `--title-field` and `--id-field`; the ids of passages derive from the rows' ids."""
    done = run(faq, tmp_path / "o.jsonl", "--text-field", "Answer", "--title-field", "Topic", "--id-field", "url")
    assert done.exit_code == 0
    assert list(open_corpus(tmp_path / "o.jsonl")) == [
        Passage("u1", "Rome", 'It is, "old",\nvery old.'),
        Passage("u2", "", "Paris is not."),
    ]
    named = ["--text-field", "Answer", "--id-field", "url", "--passages", 3]
    assert run(faq, tmp_path / "o.jsonl", *named).exit_code == 0
    assert [passage.id for passage in open_corpus(tmp_path / "o.jsonl")] == ["u1#1", "u1#2", "u2#1"]


def test_generated_ids_do_not_depend_on_other_rows(tmp_path):
    """They are hashes of the content; repeated rows get a number."""
    first = file(tmp_path / "a.csv", "title,text\nA,one\nB,two\n")
    longer = file(tmp_path / "b.csv", "title,text\nnew,0\nA,one\nB,two\nA,one\n")
    before, after = list(open_own(first, None)), list(open_own(longer, None))
    assert after[1:3] == before
    assert after[3].id == f"{after[1].id}-2"


@pytest.mark.parametrize(
    ("columns", "message"),
    [(Columns(text="Anser"), r"2: .* 'Anser'; did you mean 'Answer'\?"), (Columns(title="Topic"), "2: .* text_field")],
)
def test_a_missing_column_is_named(faq, columns, message):
    with pytest.raises(DataError, match=message):
        list(open_own(faq, columns))


def test_fields_of_json_lines(tmp_path):
    path = file(tmp_path / "a.jsonl", "".join(json.dumps({"k": k, "body": "x", "h": None}) + "\n" for k in (1, 2)))
    assert list(open_own(path, Columns("body", "h", "k"))) == [Passage("1", "", "x"), Passage("2", "", "x")]


def test_conflicting_options_are_refused(tmp_path, faq):
    file(tmp_path / "run.trec", "q Q0 d 1 1.0 t\n")
    with pytest.raises(OptionError, match=r"names a field of passages, but .* is read as run"):
        convert(tmp_path / "run.trec", tmp_path / "out", kind="run", text_field="a")
    for words in ("--stride 3", "--passages 3 --stride 4", "--passages 3 --parts sentences"):
        assert run(faq, tmp_path / "o", *words.split()).exit_code == 2


def test_parquet(tmp_path):
    """Passages and examples, detected by the names of the columns."""
    rows = [{"_id": 1, "title": "T", "text": "a"}, {"_id": 2, "title": None, "text": "b"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "corpus.parquet")
    assert list(open_corpus(tmp_path / "corpus.parquet")) == [Passage("1", "T", "a"), Passage("2", "", "b")]
    assert convert(tmp_path / "corpus.parquet", tmp_path / "out") == {"passages": 2}
    examples = [{"query_id": "q", "query": "who", "positives": ["1"], "negatives": ["2"]}]
    parquet.write_table(pyarrow.Table.from_pylist(examples), tmp_path / "train.parquet")
    assert read_examples(tmp_path / "train.parquet").rows[0].negatives == ("2",)
    parquet.write_table(pyarrow.Table.from_pylist([{"body": "x"}]), tmp_path / "a.parquet")
    assert run(tmp_path / "a.parquet", tmp_path / "a.jsonl", "--text-field", "body").exit_code == 0
    assert [passage.text for passage in open_corpus(tmp_path / "a.jsonl")] == ["x"]


def test_a_damaged_parquet_file(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 no")
    done = run(tmp_path / "a.parquet", tmp_path / "out.jsonl")
    assert done.exit_code == 2
    assert "the Parquet file cannot be read" in done.stderr
