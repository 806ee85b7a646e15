"""Text files, plain or compressed: reading, writing and errors."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.data import files
from retrievalkit.data.files import packed
from retrievalkit.errors import DataError

LINES = st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=30), max_size=20)


def numbered(path):
    return [(line.number, line.text) for line in files.read_lines(path)]


@given(lines=LINES, end=st.sampled_from(["", ".gz", ".zst"]))
def test_written_lines_are_read_back(lines, end):
    """Lines may contain any character: form feeds and U+2028 do not end a line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"a{end}"
        for _ in range(2):
            before = path.read_bytes() if path.exists() else None
            with files.write_text(path) as stream:
                stream.writelines(line + "\n" for line in lines)
        assert path.read_bytes() == before, "the same lines give the same bytes"
        assert [line.text for line in files.read_lines(path)] == [
            line.removeprefix("\ufeff") if number == 0 else line for number, line in enumerate(lines)
        ]


def test_compression_is_detected_from_the_bytes(tmp_path):
    """A plain file named .gz is read, and a compressed file with another name."""
    (tmp_path / "plain.gz").write_text("a\n")
    (tmp_path / "packed.jsonl").write_bytes(gzip.compress(b"b\n"))
    assert numbered(tmp_path / "plain.gz") == [(1, "a")]
    assert numbered(tmp_path / "packed.jsonl") == [(1, "b")]


def test_line_ends_and_byte_order_mark_are_removed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\r\nc")
    assert [(line.start, line.end, line.text) for line in files.read_lines(path)] == [
        (3, 6, "a"),
        (6, 9, "b"),
        (9, 10, "c"),
    ]


@pytest.mark.parametrize("end", ["", ".gz", ".zst"])
def test_a_failed_write_leaves_nothing(tmp_path, end):
    with pytest.raises(ZeroDivisionError), files.write_text(tmp_path / f"a.txt{end}") as stream:
        stream.write("half")
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_names_the_nearest(tmp_path):
    (tmp_path / "corpus.jsonl.gz").touch()
    with pytest.raises(DataError, match=r"corpus\.jsonl' does not exist; did you mean '.*corpus\.jsonl\.gz'\?"):
        files.existing(tmp_path / "corpus.jsonl")
    with pytest.raises(DataError, match="does not exist\\. Check the path"):
        files.existing(tmp_path / "zzz")
    with pytest.raises(DataError, match="neither does the folder"):
        files.existing(tmp_path / "no" / "corpus.jsonl")


@pytest.mark.parametrize("end", ["", ".gz", ".zst"])
def test_wrong_encoding_names_line_and_byte(tmp_path, end):
    path = tmp_path / f"a.txt{end}"
    with files.write_file(path) as staging, staging.open("wb") as raw, packed(raw, path) as stream:
        stream.write("gut\ndr\u00fcben\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.txt.*:2: byte 0xfc at position 3 of the line is not UTF-8.*Save it as"):
        numbered(path)


@pytest.mark.parametrize("end", [".gz", ".zst"])
def test_a_cut_off_file_is_an_error(tmp_path, end):
    path = tmp_path / f"a{end}"
    with files.write_text(path) as stream:
        stream.writelines(f"{number * number}\n" for number in range(20_000))
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(DataError, match="damaged or cut off"):
        numbered(path)
