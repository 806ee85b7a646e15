"""Runs and judgements of ranx, ir_measures and pytrec_eval are read here, and ours there."""

from __future__ import annotations

import ir_measures
import pytest
import pytrec_eval
from ir_measures import nDCG

import retrievalkit as rk
from retrievalkit.data.qrels import read_qrels, write_qrels

RUN = {"q1": {"d1": 3.5, "d2": 1.25, "d9": 0.5}, "q2": {"d4": 0.75, "d1": 0.125}}
QRELS = {"q1": {"d2": 2, "d1": 1, "d3": 1}, "q2": {"d4": 1, "d7": 0}}


@pytest.fixture
def files(tmp_path):
    """TREC files of our run and judgements."""
    rk.Run(RUN, "ours").save(tmp_path / "ours.trec")
    write_qrels(tmp_path / "ours.qrels", QRELS)
    return tmp_path


def value(run, qrels=QRELS):
    """Return nDCG@10 as rkit computes it."""
    return run.evaluate(qrels, ["nDCG@10"])["nDCG@10"]


def test_ir_measures_reads_our_files_and_we_read_its_rows(files):
    run = list(ir_measures.read_trec_run(str(files / "ours.trec")))
    qrels = list(ir_measures.read_trec_qrels(str(files / "ours.qrels")))
    assert rk.Run(run) == rk.Run(RUN)
    theirs = ir_measures.calc_aggregate([nDCG @ 10], qrels, run)[nDCG @ 10]
    assert value(rk.Run(run), qrels) == pytest.approx(theirs)


def test_pytrec_eval_reads_our_files_and_we_read_its_dicts(files):
    with open(files / "ours.trec") as one, open(files / "ours.qrels") as other:
        run, qrels = pytrec_eval.parse_run(one), pytrec_eval.parse_qrel(other)
    assert (rk.Run(run).to_dict(), qrels) == (RUN, QRELS)
    found = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10"}).evaluate(rk.Run(RUN).to_dict())
    assert value(rk.Run(run)) == pytest.approx(sum(one["ndcg_cut_10"] for one in found.values()) / 2)


@pytest.mark.slow  # it compiles for a minute, with warnings of its own
@pytest.mark.filterwarnings("default")
def test_ranx_and_rkit_read_files_and_objects_of_each_other(files):
    """Also a run without a name, and a file without a final line end."""
    ranx = pytest.importorskip("ranx")
    theirs = ranx.Run(RUN, name="theirs")
    for ending, form in (("json", "beir"), ("trec", "trec")):
        theirs.save(str(files / f"theirs.{ending}"))
        ranx.Qrels(QRELS).save(str(files / f"qrels.{ending}"))
        assert rk.Run.load(files / f"theirs.{ending}") == rk.Run(RUN)
        assert read_qrels(files / f"qrels.{ending}") == QRELS
        rk.Run(RUN).save(files / f"again.{ending}", form=form)
        assert ranx.Run.from_file(str(files / f"again.{ending}")).to_dict() == RUN
    assert ranx.Qrels.from_file(str(files / "ours.qrels"), kind="trec").to_dict() == QRELS
    assert rk.Run(theirs.to_dict()) == rk.Run(theirs.to_dataframe()) == rk.Run(RUN)
    found = ranx.evaluate(ranx.Qrels(QRELS), theirs, "ndcg@10")
    assert value(rk.Run(RUN), ranx.Qrels(QRELS).to_dict()) == pytest.approx(found, abs=1e-6)
