"""Runs in TREC's and MS MARCO's form, their order, and the complaints."""

from __future__ import annotations

import gc

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from id_texts import id_texts
from retrievalkit.data.runs import read_run, write_run
from retrievalkit.errors import DataError, UnknownNameError


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
        ("q Q0 a 1 3.5\n", r"r:1: the line has 5 columns\. Known forms of a run: TREC"),
        ("q Q0 a 1 high t\n", r"r:1: 'high' is not a score"),
        ("q\ta\t0\n", r"r:1: '0' is not a rank"),
        ("q Q0 a 1 nan t\n", r"r:1: 'nan' is not a score"),
        ("q Q0 a 1 3 t\np Q0 a 1 3 t\nq Q0 a 2 2 t\n", r"r:3: document 'a' is already at line 1 for query 'q'"),
        ("q Q0 a x 3 t\nq Q0 a 2 4 t\n", r"r:2: document 'a' is already at line 1"),
        ("q Q0 a 1 2 t\nq Q0 b 2 -inf t\nq Q0 c 2 NaN t\n", r"r:2: '-inf' is not a score"),
        ("q Q0 a 1 1 t x\nq Q0 b 2 1\n", r"r:1: the line has 7 columns"),
        ("q Q0 a 1 1 t\nq Q0 b 2 1 t x\nq Q0 c 3 1\n", r"r:2: the line has 7 columns, but earlier lines have 6"),
        ("".join(f"q\td{n}\t{n}\n" for n in range(1, 30)) + "q\tx\t1.5\n", r"r:30: '1\.5' is not a rank"),
        ("", r"r: the file contains no results"),
        ("{}", r"r: the file contains no results"),
        ('{"q": {}}', r"r: the file contains no results"),
        ('{"q": {"a": "high"}}', r"r:1: query 'q' has 'high' where"),
        ('{"q": {"a": NaN}}', r"r:1: query 'q' has NaN where"),
        ('{"q": {"a": 1,\n "b": }}', r"r:2: the key 'q': broken JSON: Expecting value. Is the file complete"),
        ('{"q": {"a": 1, "a": 2}}', r"r:1: the key 'q': the key 'a' occurs twice in the same object"),
        ('{"_id": "1"}\n', r"r:1: the line has 2 columns"),
    ],
)
def test_damage_is_named(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_run(written(tmp_path, text))


def lines_of(form, hits):
    """A run with one query a number, in one of the forms."""
    rows = [(query, one, rank, score) for query, ranked in hits.items() for rank, (one, score) in enumerate(ranked, 1)]
    return "".join(form.format(q=query, d=one, r=rank, s=score) for query, one, rank, score in rows)


HITS = {"1": [("7", 2.5), ("8", 1.5), ("9", 0.25)], "2": [("8", 4.0)]}
BY_RANK = {"1": [("7", 1.0), ("8", 0.5), ("9", 1 / 3)], "2": [("8", 1.0)]}


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
def test_forms_are_told_apart(tmp_path, form, expected, end):
    text = lines_of(form + end, HITS)
    assert read_run(written(tmp_path, text)) == expected
    assert read_run(written(tmp_path, text.rstrip("\r\n"))) == expected


def test_results_of_a_query_may_stand_apart_and_in_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("retrievalkit.data.runs._BLOCK", 37)
    text = "".join(f"q{n % 3} Q0 d{n} 1 {1 - n / 64} t\n" + "\n" * (n == 20) for n in range(30))
    expected = {f"q{n}": [(f"d{m}", 1 - m / 64) for m in range(n, 30, 3)] for n in range(3)}
    assert read_run(written(tmp_path, text)) == expected
    with pytest.raises(DataError, match="r:32: the line has 2 columns, but earlier lines have 6"):
        read_run(written(tmp_path, text + "q d\n"))


def test_a_run_as_json(tmp_path):
    text = '\ufeff{"1": {"8": 1.5,\n "7": 2.5, "9": 0.25}, "2": {"8": 4}}\n'
    assert read_run(written(tmp_path, text)) == HITS
    assert list(read_run(written(tmp_path, text))["1"][0]) == ["7", 2.5]


@pytest.mark.parametrize("form", ["trec", "msmarco", "beir"])
@pytest.mark.parametrize("end", ["", ".gz", ".zst"])
def test_every_form_is_written_and_read(tmp_path, form, end):
    path = tmp_path / f"run{end}"
    assert write_run(path, HITS, form=form) == 4
    assert read_run(path) == (BY_RANK if form == "msmarco" else HITS)


def test_an_unknown_form_or_choice_is_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'msmarco'"):
        write_run(tmp_path / "r", HITS, form="ms-marco")
    assert not (tmp_path / "r").exists()
    with pytest.raises(UnknownNameError, match="document_id, run"):
        read_run(written(tmp_path, "q Q0 a 1 1 t\n"), ties="rank")


def test_equal_scores_can_stand_by_the_ranks_of_the_file(tmp_path):
    text = "q Q0 b 2 1 t\nq Q0 c 3 1 t\nq Q0 d 4 2 t\nq Q0 a 1 1 t\n"
    assert [one for one, _ in read_run(written(tmp_path, text), ties="run")["q"]] == ["d", "a", "b", "c"]
    assert [one for one, _ in read_run(written(tmp_path, text))["q"]] == ["d", "c", "b", "a"]
    unranked = "q\tb\t1.0\nq\tc\t1.0\nq\ta\t1.0\n"
    assert [one for one, _ in read_run(written(tmp_path, unranked), ties="run")["q"]] == ["b", "c", "a"]


def test_judgements_in_place_of_a_run_are_told(tmp_path):
    for text in ("1 0 d1 1\n1 0 d2 0\n", "1\t0\t7067032\t1\n", "query-id\tcorpus-id\tscore\n1\t2\t1\n"):
        with pytest.raises(DataError, match=r"r:1: these are judgements \(qrels\), but a run was expected"):
            read_run(written(tmp_path, text))


def test_bytes_that_are_not_utf8_are_named_by_their_line(tmp_path):
    (tmp_path / "r").write_bytes(b"q Q0 a 1 2 t\n" * 1 + b"q Q0 \xff 2 1 t\n")
    with pytest.raises(DataError, match=r"r:2: byte 0xff at position 6"):
        read_run(tmp_path / "r")


def test_garbage_is_looked_for_again_after_a_complaint(tmp_path):
    with pytest.raises(DataError):
        read_run(written(tmp_path, "q Q0 a 1 high t\n"))
    assert gc.isenabled()


def test_a_missing_run(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        read_run(tmp_path / "no.trec")


ID = id_texts(5)
SCORES = st.floats(width=32, allow_nan=False, allow_infinity=False)
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
