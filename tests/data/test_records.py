"""Records from JSON lines, JSON arrays and tables, with their locations."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit.data import files
from retrievalkit.data.records import read_records
from retrievalkit.errors import DataError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=5), VALUES, max_size=3), max_size=8)


def no_table(row):
    return None


def read(path, form=no_table):
    return list(read_records(path, form, "things"))


def written(tmp_path, text, name="a.jsonl"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@settings(max_examples=40)
@given(rows=OBJECTS, indent=st.sampled_from([None, 0, 2]), chunk=st.integers(1, 40))
def test_an_array_is_read_in_chunks_of_any_size(tmp_path_factory, rows, indent, chunk):
    """The elements equal those of json.loads wherever the chunks end."""
    path = tmp_path_factory.getbasetemp() / "all.json"
    path.write_text(json.dumps(rows, indent=indent, ensure_ascii=False), "utf-8", "surrogatepass")
    if "\ud800" <= max(path.read_text("utf-8", "surrogatepass")) <= "\udfff":
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "CHUNK", chunk)
        assert [record.fields for record in read(path)] == rows


def test_array_elements_have_numbers_and_lines(tmp_path):
    path = written(tmp_path, '[\n {"a": 1},\n {"a":\n 2}\n]\n')
    assert [(record.element, record.line, record.fields) for record in read(path)] == [
        (1, 2, {"a": 1}),
        (2, 3, {"a": 2}),
    ]
    assert "a.jsonl:3: element 2: wrong" in str(read(path)[1].error("wrong"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n{"a": }\n', r"a\.jsonl:2: broken JSON: Expecting value at column 7\. Each line must be"),
        ('{"a": 1}\n[1, 2]\n', r":2: the line is \[1, 2\], but should be a JSON object"),
        ('[{"a": 1}, {"a": }]', r":1: element 2: broken JSON: Expecting value\. Is the file complete"),
        ('[{"a": 1},\n{"a": 1', r":2: element 2: broken JSON"),
        ('[{"a": 1} {"a": 2}]', r":1: element 1: broken JSON: neither ',' nor ']'"),
        ('[{"a": 1}', r"element 1: broken JSON: neither"),
        ("[[0, 12, 13]]", r"element 1: it is \[0, 12, 13\], but should be a JSON object"),
        ("", r"a\.jsonl: the file is empty, but things were expected"),
        ("\x0b\n\x0c \u2003\n", r"a\.jsonl: the file is empty, but things were expected"),
        ("\n \n", r"the file is empty"),
        ("a\tb\tc\n", r":1: no things have 3 tab-separated columns: 'a\\tb\\tc'\."),
        ("{\n", r":1: broken JSON"),
    ],
)
def test_errors_name_the_location(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read(written(tmp_path, text))


def test_wrong_encoding_inside_an_array(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'[{"a": 1},\n{"a": "\xfc"}]')
    with pytest.raises(DataError, match=r"a\.json:2: byte 0xfc at position 8"):
        read(path)
