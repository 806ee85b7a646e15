"""Runs that are read query by query: the same content as read whole, in whatever order the lines are."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit.data import run_file
from retrievalkit.data.run_file import RunFile, check_run, columns_of, open_run
from retrievalkit.data.runs import read_run, write_run
from retrievalkit.errors import DataError

FORMS = {
    "trec": "q1 Q0 a 1 3.5 tag\nq2 Q0 c 1 -2 tag\nq1 Q0 b 2 3.5 tag\n",
    "two separators": "q1 Q0 a 1 3.5 tag\n\n q1 Q0 b 2 1e-05 tag\r\nq2\tQ0\tc\t1\t-2\ttag\nq1\tQ0\td\t3\t-1\ttag\n",
    "ids with spaces": "q 1\tQ0\ta b\t1\t2\ttag\nq 1\tQ0\tc\t2\t1\ttag\nq Q0 d 1 1 tag\n",
    "one id begins another": "q Q0 a 1 2 t\nq1 Q0 a 1 2 t\nq Q0 b 2 1 t\nq1 Q0 b 2 1 t\n",
    "ms marco": "1\t7\t2\n1\t8\t1\n2\t7\t1\n",
    "texts": "1\t7\twhat\tthis\n2\t7\twhy\tthis\n1\t8\twhat\tthat\n",
    "byte order mark": "\ufeffq1 Q0 a 1 3.5 tag\nq2 Q0 a 1 3.5 tag\n",
    "no last line end": "q1 Q0 a 1 3.5 tag\nq2 Q0 a 1 3.5 tag",
    "json": '{"q1": {"a": 1.0, "b": 2.0}, "q2": {"c": 1.0}}',
}


@pytest.mark.parametrize("ties", ["document_id", "run"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_the_content_is_that_of_the_run_read_whole(tmp_path, form, packed, ties):
    path = tmp_path / "run"
    path.write_bytes(gzip.compress(FORMS[form].encode()) if packed else FORMS[form].encode())
    assert list(open_run(path, ties).items()) == list(read_run(path, ties).items())


@given(rows=st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from("abcdef"), st.integers(0, 3)), min_size=1))
@settings(max_examples=50)
def test_lines_in_any_order(tmp_path_factory, rows):
    """A file that is not grouped by query has the same hits."""
    path = tmp_path_factory.mktemp("runs") / "run"
    unique = {(query, document): score for query, document, score in rows}
    path.write_text("".join(f"{query} Q0 {one} 1 {score} t\n" for (query, one), score in unique.items()))
    assert list(open_run(path).items()) == list(read_run(path).items())


CELLS = st.sampled_from(["q", "q1", "1", "11", "", " q", "\r", "\rq", "é"])
RESTS = st.sampled_from([" Q0 d 1 2 t", " Q0 d 1 2 t", "", " ", "x", " \r", " " + 2000 * "z"])


@given(st.lists(st.tuples(CELLS, RESTS, st.sampled_from([1, 2, 3, 90])), min_size=1, max_size=12), st.integers(0, 3000))
@settings(max_examples=200, deadline=None)
def test_lines_that_are_counted_end_where_those_that_are_looked_at_do(lines, size):
    block = "".join((cell + rest + "\n") * times for cell, rest, times in lines).encode()
    place = 0
    while place < len(block):
        after = run_file._after_lines(block, place, size)
        assert after == run_file._after_stretch(block, place)
        place = after


def test_columns_are_the_hits_in_the_order_of_the_lines_or_of_the_ranks(tmp_path):
    (tmp_path / "run").write_text("q Q0 a 3 1 t\nq Q0 b 2 2 t\nq Q0 c 1 1 t\n")
    assert columns_of(open_run(tmp_path / "run"), "q") == (["a", "b", "c"], [1.0, 2.0, 1.0])
    assert columns_of(open_run(tmp_path / "run", ties="run"), "q") == (["b", "c", "a"], [2.0, 1.0, 1.0])
    assert columns_of({"q": [("a", 1.0), ("b", 2.0)]}, "q") == (["a", "b"], [1.0, 2.0])


def test_a_query_can_be_asked_for_in_any_order(tmp_path):
    run = {f"q{number}": [("a", 2.0), ("b", float(number) / 10)] for number in range(9)}
    write_run(tmp_path / "run", run)
    opened = open_run(tmp_path / "run")
    assert (len(opened), list(opened), "q3" in opened, "x" in opened) == (9, list(run), True, False)
    for query in reversed(run):
        assert [document for document, _ in opened[query]] == ["a", "b"]


DAMAGED = {
    "q1 Q0 a 1 3 t\nq2 Q0 a 1 x t\n": ":2: 'x' is not a score",
    "q1 Q0 a 1 3 t\nq2 Q0 b 1 3 t\nq1 Q0 a 2 2 t\n": ":3: document 'a' is already at line 1 for query 'q1'",
    "q1 Q0 a 1 3 t\nq2 Q0 b 1 nan t\n": ":2: 'nan' is not a score",
    "q1 Q0 a 1 3 t\nq1 Q0 b\n": ":2: the line has 3 columns",
    "q1 Q0 a 1 3 t\nq2 Q0 b\n": ":2: the line has 3 columns",
}


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_line_is_located(tmp_path, text):
    (tmp_path / "run").write_text(text)
    with pytest.raises(DataError) as error:
        check_run(open_run(tmp_path / "run"))
    assert DAMAGED[text] in str(error.value)


def test_bytes_that_are_not_utf8_are_located(tmp_path):
    (tmp_path / "run").write_bytes(b"q1 Q0 a 1 3 t\n" * 1 + b"q1 Q0 \xff 2 2 t\n")
    with pytest.raises(DataError, match="run:2: byte 0xff"):
        check_run(open_run(tmp_path / "run"))


def test_a_file_that_changes_is_noticed(tmp_path):
    path = tmp_path / "run"
    path.write_text("q1 Q0 a 1 3 t\nq2 Q0 a 1 3 t\n")
    opened = open_run(path)
    path.write_text("q1 Q0 a 1 3 t\n")
    with pytest.raises(DataError, match="changed while it was being read"):
        opened["q2"]


def test_a_file_that_is_replaced_is_read_on(tmp_path):
    """A fused run may replace one of its inputs."""
    path = tmp_path / "run"
    path.write_text("q1 Q0 a 1 3 t\nq2 Q0 a 1 3 t\n")
    write_run(path, open_run(path))
    assert path.read_text() == "q1 Q0 a 1 3.0 rkit\nq2 Q0 a 1 3.0 rkit\n"


def test_memory_does_not_grow_with_the_hits_of_a_query(tmp_path):
    """An opened run holds an id and 20 bytes for each query."""
    write_run(
        tmp_path / "run", ((f"q{query}", [(f"d{one}", 1 - one / 500) for one in range(500)]) for query in range(200))
    )
    tracemalloc.start()
    try:
        opened = open_run(tmp_path / "run")
        assert isinstance(opened, RunFile)
        for hits in opened.values():
            assert len(hits) == 500
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200_000
    assert peak < 8_000_000  # a block of the file, in some copies; read whole the run takes 18 MB
