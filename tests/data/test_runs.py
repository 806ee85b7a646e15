"""Runs in TREC's and MS MARCO's form, their order, and the complaints."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.data.runs import read_run, write_run
from retrievalkit.errors import DataError


def written(tmp_path, text):
    (tmp_path / "r").write_text(text)
    return tmp_path / "r"


def test_trec(tmp_path):
    text = "q1 Q0 a 1 3.5 tag\nq1 Q0 b 2 1e-05 tag\n\nq2\tQ0\tc\t1\t-2\ttag\nq1 Q0 c 3 -1 tag\n"
    assert read_run(written(tmp_path, text)) == {"q1": [("a", 3.5), ("b", 1e-05), ("c", -1.0)], "q2": [("c", -2.0)]}


def test_order_is_by_score_and_then_by_id_descending(tmp_path):
    """As in trec_eval, whatever the ranks say."""
    text = "".join(
        f"q Q0 {one} {rank} {score} t\n" for rank, (one, score) in enumerate(zip("abcd", "1121", strict=True))
    )
    assert [one for one, _ in read_run(written(tmp_path, text))["q"]] == ["c", "d", "b", "a"]


def test_ids_are_ordered_as_bytes_are(tmp_path):
    text = "q Q0 10 1 1 t\nq Q0 9 2 1 t\nq Q0 Z 3 1 t\nq Q0 \u00e9 4 1 t\n"
    assert [one for one, _ in read_run(written(tmp_path, text))["q"]] == ["\u00e9", "Z", "9", "10"]


def test_ms_marco(tmp_path):
    assert read_run(written(tmp_path, "1\t7\t2\n1\t8\t1\n")) == {"1": [("8", 1.0), ("7", 0.5)]}


def test_a_search_result_folder(tmp_path):
    write_run(tmp_path / "run.trec", {"q": [("a", 1.0)]})
    assert read_run(tmp_path) == {"q": [("a", 1.0)]}


def test_the_order_given_is_written(tmp_path):
    path = tmp_path / "a.trec"
    assert write_run(path, {"q": [("b", 0.1), ("a", 2.0)], "p": [("c", 1 / 3)]}, tag="mine") == 3
    assert path.read_text() == "q Q0 b 1 0.1 mine\nq Q0 a 2 2.0 mine\np Q0 c 1 0.33333334 mine\n"


def test_packed(tmp_path):
    write_run(tmp_path / "a.trec.gz", {"q": [("b", 0.25)]})
    assert read_run(tmp_path / "a.trec.gz") == {"q": [("b", 0.25)]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q Q0 a 1 3.5\n", r"r:1: the line has 5 columns\. Known forms: TREC"),
        ("q Q0 a 1 high t\n", r"r:1: 'high' is no score"),
        ("q\ta\t0\n", r"r:1: '0' is no rank"),
        ("q Q0 a 1 nan t\n", r"r:1: the score of 'a' is NaN"),
        ("q Q0 a 1 3 t\np Q0 a 1 3 t\nq Q0 a 2 2 t\n", r"r:3: document 'a' stands already at line 1 for query 'q'"),
        ("", r"r: there is no result in it"),
        ('{"_id": "1"}\n', r"r:1: the line has 2 columns"),
    ],
)
def test_damage_is_named(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_run(written(tmp_path, text))


def test_a_missing_run(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_run(tmp_path / "no.trec")


ID = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5).filter(str.strip)
SCORES = st.floats(width=32, allow_nan=False)
RUNS = st.dictionaries(ID, st.dictionaries(ID, SCORES, min_size=1, max_size=6), min_size=1, max_size=4)


@given(run=RUNS)
def test_scores_come_back_as_the_same_32_bit_floats(tmp_path_factory, run):
    path = tmp_path_factory.getbasetemp() / "all-r"
    write_run(path, {query: list(found.items()) for query, found in run.items()})
    read = read_run(path)
    assert {query: dict(found) for query, found in read.items()} == {
        query: {one: pytest.approx(score) for one, score in found.items()} for query, found in run.items()
    }
    for query, found in read.items():
        assert found == sorted(found, key=lambda one: (one[1], one[0]), reverse=True)
        for one, score in found:
            assert numpy.float32(score) == numpy.float32(run[query][one])
