"""Judgements in all formats, and errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from id_texts import id_texts
from retrievalkit.data.qrels import read_qrels, write_qrels
from retrievalkit.data.sources import open_source
from retrievalkit.errors import DataError, UnknownNameError

QRELS = {"q1": {"d1": 2, "d2": 0}, "q2": {"d1": 1}}


@pytest.mark.parametrize(
    "text",
    [
        "q1 0 d1 2\nq1 0 d2 0\nq2 0 d1 1\n",
        "q1\t0\td1\t2\r\nq1\t0\td2\t0\r\n\r\nq2\t0\td1\t1",
        "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td1\t1\n",
        "q1\td1\t2\nq1\td2\t0\nq2\td1\t1\n",
        "q1 Q0 d1  2\nq1 Q0 d2  0.0\nq2 Q0 d1  1\n",
        "q1 0\td1 2\nq1 0\td2 0\nq2 0\td1 1\nq2 0\td1 1\n",
        '{"q1": {"d1": 2, "d2": 0}, "q2": {"d1": 1}}',
    ],
)
def test_forms(tmp_path, text):
    (tmp_path / "q").write_bytes(text.encode())
    assert read_qrels(tmp_path / "q") == QRELS


def test_a_beir_folder(tmp_path):
    write_qrels(tmp_path / "qrels" / "test.tsv.gz", QRELS, "beir")
    write_qrels(tmp_path / "qrels" / "dev.tsv", {"q3": {"d": 1}})
    assert read_qrels(tmp_path) == QRELS
    assert read_qrels(tmp_path, "dev") == {"q3": {"d": 1}}
    assert open_source(tmp_path).splits() == ["dev", "test"]
    with pytest.raises(DataError, match=r"for the split 'train' .*It has dev, test"):
        read_qrels(tmp_path, "train")


def test_the_format_follows_the_name(tmp_path):
    write_qrels(tmp_path / "a.tsv.gz", QRELS)
    write_qrels(tmp_path / "b.tsv", QRELS, "trec")
    assert write_qrels(tmp_path / "c.qrels", QRELS) == 3
    assert read_qrels(tmp_path / "a.tsv.gz") == QRELS
    assert (tmp_path / "b.tsv").read_text() == (tmp_path / "c.qrels").read_text() == "q1 0 d1 2\nq1 0 d2 0\nq2 0 d1 1\n"
    write_qrels(tmp_path / "dev.tsv", QRELS, "msmarco")
    assert (tmp_path / "dev.tsv").read_text() == "q1\t0\td1\t2\nq1\t0\td2\t0\nq2\t0\td1\t1\n"
    with pytest.raises(UnknownNameError, match="did you mean 'msmarco'"):
        write_qrels(tmp_path / "x", QRELS, "ms-marco")
    assert not (tmp_path / "x").exists()


ID = id_texts(5)
ALL = st.dictionaries(ID, st.dictionaries(ID, st.integers(-3, 9), min_size=1, max_size=4), min_size=1, max_size=4)


@given(qrels=ALL, form=st.sampled_from(["trec", "beir"]))
def test_written_judgements_are_read_back(tmp_path_factory, qrels, form):
    path = tmp_path_factory.getbasetemp() / "all-q"
    write_qrels(path, qrels, form)
    assert read_qrels(path) == qrels
