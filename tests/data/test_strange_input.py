"""Malformed data files: readers return a value or raise an error that names the file, in bounded memory."""

from __future__ import annotations

import bz2
import gc
import gzip
import io
import json
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz.nasty import SNIPPETS, VALUES
from retrievalkit.data import files
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import read_examples
from retrievalkit.data.kinds import kind_of
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import Query, check_queries, read_queries
from retrievalkit.data.runs import check_run, open_run, read_run
from retrievalkit.errors import DataError, InputError, RetrievalkitError

READERS = {
    "corpus": lambda path: list(open_corpus(path)),
    "queries": read_queries,
    "qrels": read_qrels,
    "run": lambda path: (check_run(open_run(path)), read_run(path)),
    "examples": read_examples,
    "kind": kind_of,
}
VALID = (
    b'{"_id": "1", "title": "a", "text": "one two"}\n{"_id": "2", "text": "three"}\n',
    b'[{"id": 7, "contents": "one two"}, {"id": 8, "contents": "three"}]',
    b'1\tabc\n2\t"def\n',
    b'id\ttext\ttitle\n1\t"a ""b"" c"\tTitle\n2\tdef\tOther\n',
    b'who is it\t["he", "she"]\n',
    b"q1 0 d1 1\nq1 0 d2 2\n",
    b"query-id\tcorpus-id\tscore\n1\t2\t1\n",
    b"q1 Q0 d1 1 3.5 t\nq1 Q0 d2 2 -1e-5 t\n",
    b"1\t7\t1\n1\t8\t2\n",
    b'{"q": {"a": 1.5, "b": 2}, "p": {"a": 1}}',
    b'{"query_id": "1", "query": "w", "positives": ["a"], "negatives": ["b"], "teacher": {"a": 1, "b": 0.5}}\n',
    b'[{"question": "w", "answers": ["x"], "positive_ctxs": [{"title": "t", "text": "u", "passage_id": "3"}]}]',
    b'{"anchor": "w", "positive": "x", "negative_1": "y"}\n',
)
KEYS = "_id id docid title text contents query query_id question answers positives negatives pos neg teacher anchor"
snippets = st.sampled_from([put.encode("latin-1") * min(times, 5000) for put, times in SNIPPETS])
words = st.sampled_from(["q1", "d1", "0", "1", "Q0", "0.5", "query-id", "corpus-id", "score", "id", "text"]) | st.text(
    max_size=8
)
cells = words.map(lambda word: word.encode("utf-8", errors="surrogatepass")) | snippets
tables = st.builds(
    lambda gap, end, rows: end.join(gap.join(row) for row in rows),
    st.sampled_from([b"\t", b" ", b"  "]),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.lists(cells, min_size=1, max_size=6), max_size=5),
)
values = st.sampled_from(VALUES) | st.text(max_size=8) | st.lists(st.sampled_from(["d1", "d2"]), max_size=3)
objects = st.dictionaries(st.sampled_from(KEYS.split()), values, max_size=5).map(
    lambda fields: json.dumps(fields).encode()
)
lines = st.lists(objects, max_size=4).map(b"\n".join)
arrays = lines.map(lambda text: b"[" + text.replace(b"\n", b",") + b"]")

# No time stamp: it would change the names of the test cases in each process.
PACKED = gzip.compress(b"1\tabc\n", mtime=0)


def written(tmp_path: Path, content: bytes | str, name: str = "a") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return path


def read_or_refuse(kind: str, path: Path) -> None:
    try:
        READERS[kind](path)
    except RetrievalkitError as error:
        assert (error.exit_code, str(path) in str(error), len(str(error)) < 3000) == (2, True, True)  # noqa: PT017


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(sorted(READERS)))
def test_any_content_is_read_or_refused_with_the_name_of_the_file(tmp_path, data, kind):
    """Bytes, tables and JSON of nasty cells and values, and valid files, with pieces replaced, inserted or cut off."""
    content = data.draw(st.sampled_from(VALID) | st.binary(max_size=200) | tables | lines | arrays)
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(start + 8, len(content))))
        content = content[:start] + data.draw(snippets) + content[end:]
    if data.draw(st.booleans()):
        content = gzip.compress(content, mtime=0)[: data.draw(st.sampled_from([None, -1, -9, 12]))]
    read_or_refuse(kind, written(tmp_path, content))


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("corpus", "1\tabc\r2\tdef\r", r"a:1: the row cannot be read: a carriage return \(CR\) is in it"),
        ("corpus", '{"_id": ' + "9" * 5000 + ', "text": "x"}', r"a:1: a whole number in it has thousands of digits"),
        ("corpus", '[{"_id": ' + "9" * 5000 + ', "text": "x"}]', r"a:1: element 1: a whole number in it has thousands"),
        ("corpus", '{"_id": "1", "text": "x", "m": ' + "[" * 100_000, r"a:1: its values are nested too deeply"),
        ("queries", "who\t" + "[" * 100_000 + "]" * 100_000, r"a:1: the answers are not a list of texts"),
        ("corpus", '{"_id": "1", "_id": "2", "text": "x"}', r"a:1: the key '_id' occurs twice"),
        ("corpus", '{"_id": "a\\ud800", "text": "x"}', r"a:1: '_id' is 'a\\ud800'; an id may not contain"),
        ("corpus", '{"_id": "a", "text": "x\\ud800"}', r"a:1: character 2 of 'text' is half a surrogate pair"),
        ("queries", '[{"_id": "1", "text": "a"}]\n[{"_id": "2", "text": "b"}]', r"a:2: broken JSON: .* follows"),
        ("corpus", '1\tabc\tx\n2\t"def\ty\n', r"a:2: the quotation mark that opens in this row is never closed"),
        ("corpus", "id\ttext\ttext\n1\ta\tb\n", r"a:1: the header names the column 'text' twice"),
        ("qrels", "q 0 d 100000000000000000000\n", r"a:1: the grade is '100000000000000000000', but should be a whole"),
        ("qrels", "q 0 d 1_0\n", r"a:1: the grade is '1_0'"),
        ("qrels", "q\x1f0 d 1 1\n", r"a:1: 'query_id' is 'q\\x1f0'; an id may not contain"),
        ("run", "q Q0 d 1 1e39 t\n", r"a:1: '1e39' is not a score"),
        ("run", "q Q0 d 1 1_0 t\n", r"a:1: '1_0' is not a score"),
        ("run", "q\td\t1\nq\te\t2_0\nq\tf\tx\n", r"a:2: '2_0' is not a"),
        ("run", "q Q0 d\x1b[2J 1 2 t\n", r"a:1: the id of the document is 'd\\x1b\[2J'; an id may not contain"),
        ("run", "q\tQ0\td \t1\t2\tt\n", r"a:1: the id of the document is 'd '; an id may not begin or end"),
        ("run", "q\tQ0\t\t1\t2\tt\n", r"a:1: the id of the document is ''; an id may not be empty"),
        ("run", "q Q0 a 1 2 t\rq Q0 b 2 1 t\r", r"a:1: the line has 11 columns"),
        ("run", '{"q": {"a": 1}, "q": {"a": 2}}', r"a:1: the key 'q' occurs twice"),
        ("run", '{"q": {"\\u0007": 1}}', r"a:1: query 'q' with document '\\x07': an id may not contain"),
        ("examples", '{"anchor": "w", "positives": ["a"], "teacher": {"a": 1e400}}', r"a:1: 'teacher' of"),
        ("corpus", b"\xff\xfea\0b\0", r"a:1: byte 0xff .* the file is in UTF-16"),
        ("corpus", bz2.compress(b"1\tabc\n"), r"a: the file is compressed with bzip2, which is not supported"),
        ("corpus", gzip.compress(PACKED, mtime=0), r"a:1: byte 0x8b .* the file is compressed twice"),
        ("corpus", PACKED + b"junk", r"a: the compressed file is damaged or cut off"),
        ("queries", "", r"a: the file is empty, but queries were expected"),
        ("queries", '{"_id": "1"}', r"a:1: the query has no text \(query, .*\)\. Its fields are: _id\."),
        ("queries", '{"_id": "1", "text": ["who"]}', r"a:1: 'text' is \[\"who\"\], but should be text"),
        ("queries", "1\twho\n2\n", r"a:2: the row has 1 column, but the table has 2: id, text"),
        ("queries", "[]", r"a: it contains no queries"),
        ("qrels", "1 Q0 a 1 0.5 tag\n", r"a:1: .* as in a run\. Known formats"),
        ("qrels", "1 0 a 0.5\n", r"a:1: the grade is '0\.5'"),
        ("qrels", "1 0 a 1\n1 0 b 1\n1 0 a 2\n", r"a:3: document 'a' of query '1' was judged 1 at line 1"),
        ("qrels", "", r"a: it contains no judgements"),
        ("run", "q Q0 a 1 3.5\n", r"a:1: the line has 5 columns\. Known formats of a run: TREC"),
        ("run", "q\ta\t0\n", r"a:1: '0' is not a rank"),
        ("run", "q Q0 a 1 3 t\np Q0 a 1 3 t\nq Q0 a 2 2 t\n", r"a:3: document 'a' is already at line 1 for query 'q'"),
        ("run", "q Q0 a 1 2 t\nq Q0 b 2 -inf t\nq Q0 c 2 NaN t\n", r"a:2: '-inf' is not a score"),
        ("run", "q Q0 a 1 1 t\nq Q0 b 2 1 t x\nq Q0 c 3 1\n", r"a:2: the line has 7 columns, but earlier lines have 6"),
        ("run", "".join(f"q\td{n}\t{n}\n" for n in range(1, 30)) + "q\tx\t1.5\n", r"a:30: '1\.5' is not a rank"),
        ("run", "", r"a: the file contains no results"),
        ("run", "{}", r"a: the file contains no results"),
        ("run", '{"q": {"a": "high"}}', r"a:1: query 'q' has 'high' instead of"),
        ("run", '{"q": {"a": 1,\n "b": }}', r"a:2: the key 'q': broken JSON: Expecting value. Is the file complete"),
        ("run", b"q Q0 a 1 2 t\nq Q0 \xff 2 1 t\n", r"a:2: byte 0xff at position 6"),
        ("run", "1 0 d1 1\n1 0 d2 0\n", r"a:1: these are judgements \(qrels\), but a run was expected"),
    ],
)
def test_a_malformed_file_is_refused_with_its_location(tmp_path, kind, content, message):
    """Content that once caused a traceback or was misread."""
    with pytest.raises(DataError, match=message):
        READERS[kind](written(tmp_path, content))
    assert gc.isenabled()


@pytest.mark.parametrize("odd", ["a\0", "\ufeffa", "a ", " a", "a\u2028b", "a\x85", "\x1b[31m", "a\u2029"])
def test_ids_that_break_lines_or_terminals_are_refused(tmp_path, odd):
    with pytest.raises(DataError, match=r"a:2: '_id' is .*; an id may not"):
        READERS["corpus"](
            written(tmp_path, json.dumps({"_id": 1, "text": ""}) + "\n" + json.dumps({"_id": odd, "text": ""}))
        )


def test_all_members_of_a_gzip_file_are_read(tmp_path):
    packed = PACKED + gzip.compress(b"2\tdef\n")
    assert [passage.id for passage in READERS["corpus"](written(tmp_path, packed))] == ["1", "2"]


def test_a_cell_may_be_longer_than_the_limit_of_the_csv_module(tmp_path):
    assert len(read_queries(written(tmp_path, "x" * 200_000 + "\t['a']\n"))[0].text) == 200_000


def test_white_space_that_is_not_ascii_belongs_to_an_id(tmp_path):
    assert read_run(written(tmp_path, "q\u00a0x Q0 d 1 2 t\n")) == {"q\u00a0x": [("d", 2.0)]}
    assert read_qrels(written(tmp_path, "q\u00a0x 0 d 1\n")) == {"q\u00a0x": {"d": 1}}


def test_the_first_passage_after_a_byte_order_mark_is_read(tmp_path):
    """Byte positions in a quoted table exclude the mark."""
    corpus = open_corpus(written(tmp_path, '\ufeff1\t"one"\tA\n2\ttwo\tB\n'))
    assert (corpus.get("1").text, corpus.get("2").text) == ("one", "two")


@pytest.mark.parametrize("kind", ["corpus", "queries", "run"])
@pytest.mark.parametrize("start", [b"", b'{"_id": "', b'[{"_id": "'])
def test_a_line_that_would_fill_the_memory_is_refused(tmp_path, monkeypatch, kind, start):
    monkeypatch.setattr(files, "LONGEST_LINE", 1 << 20)
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1) as packer:
        packer.write(start + b"x" * (1 << 26))
    path = written(tmp_path, stream.getvalue())
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=r"a:1: .*(longer|larger) than 1 MiB"):
            READERS[kind](path)
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", sorted(READERS))
def test_a_pipe_is_refused(tmp_path, kind):
    os.mkfifo(tmp_path / "a")
    with pytest.raises(DataError, match="a' is a pipe"):
        READERS[kind](tmp_path / "a")
    with pytest.raises(DataError, match="/dev/null' is a pipe, a device"):
        READERS[kind](Path("/dev/null"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_link_to_a_kernel_file_is_refused(tmp_path):
    (tmp_path / "a").symlink_to("/proc/self/status")
    with pytest.raises(DataError, match="a' is a pipe, a device or a kernel file"):
        READERS["corpus"](tmp_path / "a")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_cannot_be_read(tmp_path):
    path = written(tmp_path, "1\tabc\n")
    path.chmod(0)
    with pytest.raises(DataError, match=r"cannot read '.*a': Permission denied"):
        READERS["corpus"](path)


@pytest.mark.parametrize("path", ["", "a\0b", "a\udcff", "x" * 5000])
def test_an_invalid_path_is_refused(path):
    with pytest.raises(DataError, match="path"):
        open_corpus(path)


def test_a_query_with_invalid_characters_is_refused():
    """Command-line bytes that are not UTF-8 arrive as lone surrogates."""
    with pytest.raises(InputError, match="holds bytes that are not UTF-8"):
        check_queries([Query("q", "caf\udce9")])
