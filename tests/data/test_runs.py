"""Runs in all formats: order, writing, damage, and hits read on demand."""

from __future__ import annotations

import gzip
import tracemalloc

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from id_texts import id_texts
from retrievalkit.data import files
from retrievalkit.data.runs import RunFile, columns_of, open_run, read_run, write_run
from retrievalkit.errors import DataError

HITS = {"1": [("7", 2.5), ("8", 1.5), ("9", 0.25)], "2": [("8", 4.0)]}
BY_RANK = {"1": [("7", 1.0), ("8", 0.5), ("9", 1 / 3)], "2": [("8", 1.0)]}


def written(tmp_path, text):
    (tmp_path / "r").write_bytes(text if isinstance(text, bytes) else text.encode())
    return tmp_path / "r"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n"])
@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("{q} Q0 {d} {r} {s} t", HITS),
        ("{q}\tQ0\t{d}\t{r}\t{s}\tt", HITS),
        (" {q}  0 {d}\t{r} {s} t ", HITS),
        ("{q} any {d} {r} {s} t", HITS),
        ("{q}\t{d}\t{r}", BY_RANK),
        ("{q} {d} {r}", BY_RANK),
        ("{q}\t{d}\t{r}\t{s}", HITS),
        ("{q}\t{d}\t{s}", HITS),
        ("{q}\t{d}\twhat is it?\tIt is a text with 3 words", BY_RANK),
    ],
)
def test_formats_are_detected(tmp_path, form, expected, end, packed):
    lines = [form.format(q=q, d=d, r=r, s=s) + end for q, hits in HITS.items() for r, (d, s) in enumerate(hits, 1)]
    for text in ("".join(lines), "".join(lines).rstrip("\r\n"), "\ufeff" + "".join(lines)):
        assert read_run(written(tmp_path, gzip.compress(text.encode()) if packed else text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "q1 Q0 a 1 3.5 t\n\n q1 Q0 b 2 1e-05 t\r\nq2\tQ0\tc\t1\t-2\tt\nq1\tQ0\td\t3\t-1\tt\n",
            {"q1": [("a", 3.5), ("b", 1e-05), ("d", -1.0)], "q2": [("c", -2.0)]},
        ),
        (
            "q 1\tQ0\ta b\t1\t2\tt\nq 1\tQ0\tc\t2\t1\tt\nq Q0 d 1 1 t\n",
            {"q 1": [("a b", 2.0), ("c", 1.0)], "q": [("d", 1.0)]},
        ),
        ("1\t7\twhat\tthis\n2\t7\twhy\tthis\n1\t8\twhat\tthat\n", {"1": [("7", 1.0), ("8", 0.5)], "2": [("7", 1.0)]}),
        ('\ufeff{"1": {"8": 1.5,\n "7": 2.5, "9": 0.25}, "2": {"8": 4}}\n', HITS),
        ("q Q0 a 1 1 t\nq Q0 b 2 1 t\nq Q0 c 3 2 t\nq Q0 d 4 1 t\n", {"q": [("c", 2), ("d", 1), ("b", 1), ("a", 1)]}),
        ("q Q0 10 1 1 t\nq Q0 9 2 1 t\nq Q0 é 4 1 t\n", {"q": [("é", 1.0), ("9", 1.0), ("10", 1.0)]}),
    ],
    ids=["two separators", "ids with spaces", "texts", "json", "ties by id, descending", "ids as bytes"],
)
def test_unusual_lines(tmp_path, text, expected):
    assert read_run(written(tmp_path, text)) == expected


@given(
    rows=st.lists(
        st.tuples(st.sampled_from(["q", "q1", "1", "é"]), st.sampled_from("abcdef"), st.integers(0, 3)), min_size=1
    ),
    gap=st.sampled_from([" ", "\t"]),
    chunk=st.integers(1, 200),
)
@settings(max_examples=100, deadline=None)
def test_lines_in_any_order_and_blocks(tmp_path_factory, rows, gap, chunk):
    """A file that is not grouped by query has the same hits, by score, then by rank or by id."""
    path = tmp_path_factory.mktemp("runs") / "run"
    unique = {(query, document): score for query, document, score in rows}
    lines = [
        (query, "Q0", document, str(rank), str(score), "t")
        for rank, ((query, document), score) in enumerate(unique.items(), 1)
    ]
    path.write_text("".join(gap.join(line) + "\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "CHUNK", chunk)
        by_id, by_rank = open_run(path), open_run(path, ties="run")
    for query in dict(by_id):
        expected = [(document, float(score)) for (of, document), score in unique.items() if of == query]
        assert by_rank[query] == sorted(expected, key=lambda hit: -hit[1])
        assert by_id[query] == sorted(expected, key=lambda hit: hit[::-1], reverse=True)
        assert sorted(zip(*columns_of(by_id, query), strict=True)) == sorted(expected)
    assert set(by_id) == {query for query, _ in unique}


@pytest.mark.parametrize("form", ["trec", "msmarco", "beir"])
@pytest.mark.parametrize("end", ["", ".gz", ".zst"])
def test_all_formats_are_written_and_read(tmp_path, form, end):
    path = tmp_path / f"run{end}"
    assert write_run(path, HITS, form=form) == 4
    assert read_run(path) == (BY_RANK if form == "msmarco" else HITS)


def test_hits_are_written_in_their_order(tmp_path):
    path = tmp_path / "run.trec"
    assert write_run(path, {"q": [("b", 0.1), ("a", 2.0)], "p": [("c", 1 / 3)]}, tag="mine") == 3
    assert path.read_text() == "q Q0 b 1 0.1 mine\nq Q0 a 2 2.0 mine\np Q0 c 1 0.33333334 mine\n"
    assert list(read_run(tmp_path)) == ["q", "p"]


def test_a_changed_file_is_reported_and_a_replaced_file_stays_readable(tmp_path):
    path = written(tmp_path, "q1 Q0 a 1 3 t\nq2 Q0 a 1 3 t\n")
    write_run(path, open_run(path))
    assert path.read_text() == "q1 Q0 a 1 3.0 rkit\nq2 Q0 a 1 3.0 rkit\n"
    opened = open_run(path)
    path.write_text("q1 Q0 a 1 3 t\n")
    with pytest.raises(DataError, match="changed while it was being read"):
        opened["q2"]


def test_memory_does_not_grow_with_the_hits_of_a_query(tmp_path):
    """An open run keeps an id and 20 bytes per query in memory, in any reading order."""
    run = ((f"q{query}", [(f"d{number}", 1 - number / 500) for number in range(500)]) for query in range(200))
    write_run(tmp_path / "run", run)
    tracemalloc.start()
    try:
        opened = open_run(tmp_path / "run")
        assert isinstance(opened, RunFile)
        assert (len(opened), "q3" in opened, "x" in opened) == (200, True, False)
        for query in reversed(list(opened)):
            assert len(opened[query]) == 500
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200_000
    assert peak < 8_000_000  # some copies of a block of the file; the whole run takes 18 MB


ID = id_texts(5)
SCORES = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(run=st.dictionaries(ID, st.dictionaries(ID, SCORES, min_size=1, max_size=6), min_size=1, max_size=4))
def test_scores_are_read_back_as_the_same_32_bit_floats(tmp_path_factory, run):
    path = tmp_path_factory.getbasetemp() / "all-r"
    write_run(path, {query: list(hits.items()) for query, hits in run.items()})
    read = read_run(path)
    assert read.keys() == run.keys()
    for query, hits in read.items():
        assert hits == sorted(hits, key=lambda hit: (hit[1], hit[0]), reverse=True)
        assert {document: numpy.float32(score) for document, score in hits} == {
            document: numpy.float32(score) for document, score in run[query].items()
        }
