"""Fields of passages: read from all formats of corpora, and stored as columns."""

from __future__ import annotations

import json

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from retrievalkit.cli import main
from retrievalkit.data.corpus import open_corpus, write_corpus
from retrievalkit.data.fields import FIELDS, FieldTable, write_fields
from retrievalkit.data.inputs import passages
from retrievalkit.data.passage_parts import parts_of
from retrievalkit.errors import ArtifactError


def fields_in(source):
    return {passage.id: dict(passage.fields) for passage in open_corpus(source)}


def test_metadata_and_other_keys_of_json_lines_are_fields(tmp_path):
    """Values that are neither scalars nor lists of texts are left out, and so are null, NaN and empty texts."""
    rows = [
        {"_id": "a", "title": "", "text": "x", "metadata": {"year": 2020, "tags": ["p", "q"]}, "source": "faq"},
        {"_id": "b", "text": "x", "deep": {"a": 1}, "vector": [0.1, 0.2], "none": None, "nan": float("nan"), "e": ""},
        {"_id": "c", "text": "x", "open": True, "share": 0.5, "metadata": "plain"},
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = {
        "a": {"year": 2020, "tags": ["p", "q"], "source": "faq"},
        "b": {},
        "c": {"open": True, "share": 0.5, "metadata": "plain"},
    }
    assert fields_in(path) == expected
    write_corpus(tmp_path / "again.jsonl", open_corpus(path))
    assert fields_in(tmp_path / "again.jsonl") == expected
    assert fields_in(passages(rows)) == expected


def test_columns_of_tables_are_fields(tmp_path):
    (tmp_path / "a.tsv").write_text("id\ttext\ttitle\tyear\n1\tone\tOne\t2020\n2\ttwo\tTwo\t\n")
    assert fields_in(tmp_path / "a.tsv") == {"1": {"year": "2020"}, "2": {}}
    table = pyarrow.table({"id": ["1"], "text": ["one"], "year": [2020], "tags": [["p"]], "deep": [{"a": 1}]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert fields_in(tmp_path / "a.parquet") == {"1": {"year": 2020, "tags": ["p"]}}


def test_front_matter_of_markdown_is_fields(tmp_path):
    """Dates become texts; front matter that is not YAML has no fields."""
    (tmp_path / "a.md").write_text("---\ntitle: A\ndate: 2020-05-01\ntags: [p, q]\ndraft: false\n---\nText.\n")
    (tmp_path / "b.md").write_text("---\ntitle: [\n---\nText.\n")
    fields = fields_in(f"documents:{tmp_path}")
    assert fields == {"a.md": {"date": "2020-05-01", "tags": ["p", "q"], "draft": False}, "b.md": {}}


def test_convert_keeps_fields_and_parts_inherit_them(tmp_path):
    (tmp_path / "a.csv").write_text("key,body,year\n1,one two three four,2020\n")
    columns = ["--id-field", "key", "--text-field", "body"]
    cut = ["--passages", "2", "--stride", "2"]
    main(["convert", str(tmp_path / "a.csv"), str(tmp_path / "out"), *columns, *cut], standalone_mode=False)
    assert fields_in(tmp_path / "out") == {"1#1": {"year": "2020"}, "1#2": {"year": "2020"}}


def test_parts_have_the_fields_of_their_passage(tmp_path):
    (passage,) = open_corpus(passages([{"id": "a", "text": "one two", "year": 2020}]))
    assert [part.fields for part in parts_of(passage, str.split)] == [{"year": 2020}] * 2


VALUES = st.one_of(
    st.text(min_size=1, max_size=4).filter(lambda text: text.isprintable()),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.text(max_size=3).filter(str.isprintable), min_size=1, max_size=3),
)


@given(rows=st.lists(st.dictionaries(st.sampled_from("abc"), VALUES), min_size=1, max_size=8))
def test_columns_keep_values_of_a_single_type_and_convert_mixed_values(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("fields") / FIELDS
    written = write_fields(path, ((str(number), row) for number, row in enumerate(rows)))
    assert written == any(rows)
    if not written:
        return
    table = FieldTable(path)
    assert table.ids == [str(number) for number in range(len(rows))]
    kinds = {name: {type(row[name]) for row in rows if name in row} for name in table.names}
    for (_, read), row in zip(table.rows(), rows, strict=True):
        assert read.keys() == row.keys()
        for name, value in row.items():
            if len(kinds[name]) == 1:
                assert read[name] == value
            elif kinds[name] == {int, float}:
                assert read[name] == float(value)
            elif kinds[name] == {str, list}:
                assert read[name] == (value if isinstance(value, list) else [value])
            else:
                assert isinstance(read[name], str)


def test_a_damaged_file_is_reported(tmp_path):
    (tmp_path / FIELDS).write_bytes(b"PAR1")
    with pytest.raises(ArtifactError, match="damaged"):
        FieldTable(tmp_path / FIELDS)
