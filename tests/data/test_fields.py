"""Fields of passages: read from all formats of corpora, converted, and stored with their types."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections import Counter
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from retrievalkit.cli import main
from retrievalkit.data.corpus import open_corpus, write_corpus
from retrievalkit.data.fields import FIELDS, FieldTable, fields_of, write_fields
from retrievalkit.data.inputs import passages
from retrievalkit.errors import ArtifactError, InputError
from retrievalkit.indexing.filter import passing_texts
from retrievalkit.reporting import notices


def fields_in(source):
    return {passage.id: dict(passage.fields) for passage in open_corpus(source)}


def test_metadata_and_other_keys_of_json_lines_are_fields(tmp_path):
    """Nested values are left out, and so are null, NaN and empty values."""
    rows = [
        {"_id": "a", "title": "", "text": "x", "metadata": {"year": 2020, "tags": ["p", "q"]}, "source": "faq"},
        {"_id": "b", "text": "x", "deep": {"a": 1}, "none": None, "nan": float("nan"), "e": "", "el": [], "n": [None]},
        {"_id": "c", "text": "x", "open": True, "share": 0.5, "metadata": "plain", "mixed": [1, "1", 1.5, True, 2**70]},
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = {
        "a": {"year": 2020, "tags": ["p", "q"], "source": "faq"},
        "b": {},
        "c": {"open": True, "share": 0.5, "metadata": "plain", "mixed": [1, "1", 1.5, True, 2**70]},
    }
    assert fields_in(path) == expected
    write_corpus(tmp_path / "again.jsonl", open_corpus(path))
    assert repr(fields_in(tmp_path / "again.jsonl")) == repr(expected)
    assert fields_in(passages(rows)) == expected


class Colour(Enum):
    RED = "red"


CONVERTED = [
    (np.int64(3), 3),
    (np.uint64(2**64 - 1), 2**64 - 1),
    (np.float32(0.1), 0.1),
    (np.float64(0.5), 0.5),
    (np.bool_(True), True),
    (np.str_("x"), "x"),
    (np.array(7), 7),
    (np.array([1, 2]), [1, 2]),
    (np.array([0.1], "float32"), [0.1]),
    (np.array(["2024-05-01T10:00"], "datetime64[ns]"), ["2024-05-01T10:00:00.000000000"]),
    (np.datetime64("2024-05-01"), "2024-05-01"),
    (Decimal("9.50"), 9.5),
    (Decimal("12"), 12),
    (Decimal("12.00"), 12.0),
    (Fraction(1, 2), 0.5),
    (date(2024, 5, 1), "2024-05-01"),
    (datetime(2024, 5, 1, 10, tzinfo=UTC), "2024-05-01T10:00:00+00:00"),
    (time(9, 30), "09:30:00"),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (Path("a/b"), "a/b"),
    (Colour.RED, "red"),
    ((1, 2.5, date(2024, 5, 1)), [1, 2.5, "2024-05-01"]),
    ({3, 1}, [1, 3]),
    (["a\ud800", ""], ["a\ufffd", ""]),
    (10**300, 10**300),
]


@pytest.mark.parametrize(("value", "expected"), CONVERTED, ids=[repr(value)[:40] for value, _ in CONVERTED])
def test_values_of_other_types_are_converted(value, expected):
    fields = fields_of({"a": value, "metadata": {"b": value}})
    assert repr(fields) == repr({"a": expected, "b": expected})


def test_values_of_pandas_are_converted():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"id": ["1", "2"], "text": ["x", "y"], "day": pandas.to_datetime(["2024-05-01", None]), "n": [1, 2]}
    ).astype({"n": "Int64", "text": "string"})
    expected = {"1": {"day": "2024-05-01T00:00:00", "n": 1}, "2": {"n": 2}}
    assert fields_in(passages(frame)) == fields_in(passages(frame.to_dict("records"))) == expected
    assert fields_of({"a": pandas.NA, "b": pandas.NaT, "c": pandas.Timestamp(0)}) == {"c": "1970-01-01T00:00:00"}


LEFT_OUT = {
    "a nested object": {"a": 1},
    "a list in a list": [[1]],
    "NaN": float("nan"),
    "infinity": Decimal("Infinity"),
    "a missing time": np.datetime64("NaT"),
    "a duration": np.timedelta64(1, "s"),
    "bytes": b"x",
    "a vector": [0.5] * 300,
    "an integer beyond floats": 10**400,
    "complex": 1j,
    "an object": object(),
}


@pytest.mark.parametrize("kind", LEFT_OUT)
def test_values_that_cannot_be_fields_are_counted_once_with_an_example(kind, capsys):
    rows = [{"id": str(row), "text": "x", "odd": LEFT_OUT[kind], "n": row} for row in range(3)]
    with notices.collected():
        corpus = open_corpus(passages(rows))
        assert [dict(passage.fields) for passage in (*corpus, *corpus)] == [{"n": row} for row in (0, 1, 2)] * 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "3 of 'odd'" in line
    with notices.collected(strict=True), pytest.raises(InputError, match="odd"):
        list(open_corpus(passages(rows)))


@pytest.mark.parametrize("name", [1, "x" * 1_000_000])
def test_names_that_cannot_be_fields_are_counted(name, capsys):
    assert fields_in(passages([{"id": "1", "text": "x", name: 1, "n": 2}])) == {"1": {"n": 2}}
    assert "1 of " in capsys.readouterr().err


def test_a_second_value_of_a_field_in_the_same_record_is_counted(capsys):
    rows = [
        {"id": "1", "text": "x", "n": 1, "metadata": {"n": 2}},
        {"id": "2", "text": "x", "n": 1, "fields": {"n": 1}},
    ]
    assert fields_in(passages(rows)) == {"1": {"n": 1}, "2": {"n": 1}}
    assert "1 of 'n'" in capsys.readouterr().err


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


SCALARS = st.one_of(
    st.text(max_size=4),
    st.integers(-(2**80), 2**80),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
)
VALUES = SCALARS | st.lists(SCALARS, min_size=1, max_size=3)
NAMES = ["a", "a.b", "and", "", " ", "x\0y", "_id", "_rare", "A", "'q\"", "\\", "a:", "ä\n", "list"]


@given(rows=st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), min_size=1, max_size=40))
def test_values_keep_their_types(rows, tmp_path_factory):
    """Whatever the other values of the field are, and however many texts have it."""
    path = tmp_path_factory.mktemp("fields") / FIELDS
    write_fields(path, ((str(number), str(number % 2 or ""), row) for number, row in enumerate(rows)))
    table = FieldTable(path)
    assert table.ids == [str(number) for number in range(len(rows))]
    assert sorted(table.names) == sorted({name for row in rows for name in row})
    for number, ((_, title, read), row) in enumerate(zip(table.rows(), rows, strict=True)):
        assert title == str(number % 2 or "")
        assert read.keys() == row.keys()
        assert all(repr(read[name]) == repr(value) for name, value in row.items())
    for name in table.names:
        held = Counter()
        for kind, (texts, values) in table.column(name).parts.items():
            held.update(
                (text, kind, repr(kind(value)))
                for text, value in zip(texts.tolist(), np.asarray(values).tolist(), strict=True)
            )
        lists = [(number, row[name]) for number, row in enumerate(rows) if name in row]
        items = [(n, item) for n, value in lists for item in (value if isinstance(value, list) else [value])]
        assert held == Counter((number, type(item), repr(item)) for number, item in items)


def test_memory_grows_with_the_values_of_rare_fields_not_with_rows_times_names(tmp_path):
    """Each row has a field of its own; as columns, they would be 100 million cells."""
    rows = ((str(row), "", {f"name {row}": row, "n": row}) for row in range(10_000))
    tracemalloc.start()
    write_fields(tmp_path / FIELDS, rows)
    table = FieldTable(tmp_path / FIELDS)
    assert sum(fields["n"] for *_, fields in table.rows()) == sum(range(10_000))
    assert passing_texts(table, "'name 7777' = 7777 or not has n").texts.ids == ["7777"]
    assert table.facets(20) == {}
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 50e6
    assert (tmp_path / FIELDS).stat().st_size < 1e6


def test_fields_beyond_the_limit_of_names_are_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("retrievalkit.data.fields._MOST_NAMES", 5)
    write_fields(tmp_path / FIELDS, ((str(row), "", {f"n{row}": row}) for row in range(8)))
    assert "3 fields" in capsys.readouterr().err
    assert FieldTable(tmp_path / FIELDS).names == [f"n{row}" for row in range(5)]


def test_an_open_table_reads_the_file_that_it_opened(tmp_path):
    """Also if the file is replaced, or its folder removed, before the first value is read."""
    folder = tmp_path / "index"
    folder.mkdir()
    write_fields(folder / FIELDS, [("a", "A", {"n": 1})])
    table = FieldTable(folder / FIELDS)
    write_fields(tmp_path / "new", [("b", "", {"n": "x"}), ("c", "", {})])
    (tmp_path / "new").rename(folder / FIELDS)
    assert list(table.rows()) == [("a", "A", {"n": 1})]
    shutil.rmtree(folder)
    assert passing_texts(table, "n = 1").texts.ids == ["a"]


def test_a_table_of_an_older_version_is_read(tmp_path):
    """A column for each field, without marks."""
    columns = {"_id": ["a", "b"], "n": [1, None], "tags": [["x"], ["y", "z"]], "t": ["1", "x"], "_rare": ["p", "q"]}
    columns["_title"] = ["A", "B"]
    parquet.write_table(pyarrow.table(columns), tmp_path / FIELDS)
    table = FieldTable(tmp_path / FIELDS)
    assert passing_texts(table, "n = 1 or tags = z and _rare = q").texts.ids == ["a", "b"]
    assert list(table.rows())[1] == ("b", "", {"tags": ["y", "z"], "t": "x", "_rare": "q", "_title": "B"})
    assert passing_texts(table, "_title = A and id = a").texts.ids == ["a"]
    with pytest.raises(ArtifactError, match="no titles: an older version"):
        passing_texts(table, "title = A")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 1000])
def test_a_damaged_file_is_reported(tmp_path, content):
    (tmp_path / FIELDS).write_bytes(content)
    with pytest.raises(ArtifactError, match="damaged"):
        FieldTable(tmp_path / FIELDS).names  # noqa: B018
