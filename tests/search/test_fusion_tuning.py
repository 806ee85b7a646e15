"""Tuning of fusion: known optima, metric values equal to those of written runs, and the written file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from fused_runs import fuse
from retrievalkit.data.queries import Query
from retrievalkit.errors import ArtifactError, InputError
from retrievalkit.evaluation.run import Run
from retrievalkit.indexing.open_indexes import OpenRun
from retrievalkit.indexing.query_encoders import Encoders
from retrievalkit.search.fusion import Fusion, read_choice
from retrievalkit.search.fusion_tuning import tune
from retrievalkit.search.searcher import Searcher


def tuned(runs, qrels, method="linear", **options):
    fixed = {name: options.pop(name) for name in ("normalization", "rrf_k", "missing") if name in options}
    opened = [OpenRun(Path(f"run{number}"), run) for number, run in enumerate(runs)]
    searcher = Searcher.of(opened, Encoders(None, []), lambda _: None)
    queries = [Query(one, "") for one in dict.fromkeys(itertools.chain(*runs))]
    return tune(searcher, queries, qrels, Fusion(method, **fixed), **options)


def best_first(scores):
    return sorted(scores.items(), key=lambda hit: -hit[1])


def known(mirrored=False):
    """The relevant document is first if the weight of run 0 is between 4/7 and 2/3, and second otherwise."""
    one = best_first({"p": 1.0, "q": 0.3, "relevant": 0.9, "s": 0.0})
    two = best_first({"p": 0.0, "q": 1.0, "relevant": 0.2, "s": 0.1})
    runs = [{"q1": one}, {"q1": two}]
    return runs[::-1] if mirrored else runs


QRELS = {"q1": {"relevant": 1}}


@pytest.fixture(scope="module")
def noisy():
    """Three runs of 30 queries, each with its own noise and scale, and each without some documents."""
    random = np.random.default_rng(3)
    qrels = {f"q{row}": {f"d{row % 7}": 2, f"d{(row + 3) % 7}": 1} for row in range(30)}
    runs = []
    for noise, scale, shift in ((0.9, 1, 0), (0.6, 30, -5), (1.5, 0.01, 2)):
        run = {}
        for query, judged in qrels.items():
            scores = {
                f"d{i}": scale * (judged.get(f"d{i}", 0) + noise * random.standard_normal()) + shift for i in range(12)
            }
            run[query] = [(name, float(np.float32(score))) for name, score in best_first(scores)[:9]]
        runs.append(run)
    return runs, qrels


def test_the_known_optimum_is_found():
    """0.6 and 0.65 are equally good; the more even weights win."""
    found = tuned(known(), QRELS, normalization="min_max")
    assert (found.best.fusion.weights, found.best.value) == ((0.6, 0.4), 1.0)
    good = [trial.fusion.weights for trial in found.trials if trial.value == 1]
    assert good == [(0.6, 0.4), (0.65, 0.35)]
    assert len(found.trials) == 21
    assert tuned(known(mirrored=True), QRELS, normalization="min_max").best.fusion.weights == (0.4, 0.6)


def test_without_normalisation_weights_compensate_for_the_scale_of_scores():
    """A run whose scores are a thousand times as large gets a weight a thousand times smaller."""
    runs = known()
    runs[1] = {"q1": [(name, 1000 * score) for name, score in runs[1]["q1"]]}
    plain, scaled = (tuned(some, QRELS, normalization="none") for some in (known(), runs))
    assert plain.best.value == scaled.best.value == 1
    ratios = [one.best.fusion.weights[0] / one.best.fusion.weights[1] for one in (plain, scaled)]
    assert ratios[1] / ratios[0] == pytest.approx(1000, rel=1e-3)
    assert sum(scaled.best.fusion.weights) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("metric", ["nDCG@3", "nDCG(judged_only=True)@3", "RR@10", "AP"])
def test_metric_values_equal_those_of_written_runs(noisy, metric):
    runs, qrels = noisy
    found = tuned(runs[:2], qrels, metric=metric)

    def value(run):
        return pytest.approx(Run(run).evaluate(qrels, metric)[metric], abs=1e-9)

    assert len(found.trials) == 63
    for trial in found.trials[::7]:
        options = {"weights": trial.fusion.weights, "normalization": trial.fusion.normalization}
        assert trial.value == value(fuse(runs[:2], method="linear", **options))
    assert found.references["run1 alone"] == value(runs[1])
    assert found.references["rrf, not tuned"] == value(fuse(runs[:2]))


def test_three_runs_are_weighted_one_at_a_time(noisy):
    """The result is better than each run alone and than equal weights; weights sum to 1; tuning is deterministic."""
    runs, qrels = noisy
    found = tuned(runs, qrels, normalization="z_score")
    assert sum(found.best.fusion.weights) == pytest.approx(1, abs=1e-3)
    equal = Run(fuse(runs, method="linear", normalization="z_score")).evaluate(qrels, "nDCG@10")["nDCG@10"]
    assert found.best.value >= max(equal, *(found.references[f"run{number} alone"] for number in range(3)))
    assert found == tuned(runs, qrels, normalization="z_score")


def test_options_that_are_set_are_not_tuned(noisy):
    runs, qrels = noisy
    found = tuned(runs[:2], qrels, "rrf")
    assert {trial.fusion.rrf_k for trial in found.trials} > {0, 1, 60, 200}
    assert found.best.value >= found.references["rrf, not tuned"]
    assert {trial.fusion.rrf_k for trial in tuned(runs[:2], qrels, "rrf", rrf_k=7).trials} == {7}
    found = tuned(runs[:2], qrels, normalization="min_max", missing="zero")
    assert {(one.fusion.normalization, one.fusion.missing) for one in found.trials} == {("min_max", "zero")}
    weights = ",".join(f"{one:g}" for one in found.best.fusion.weights)
    assert found.options() == f"--fusion linear --weights {weights} --normalization min_max --missing zero"


def test_the_number_of_judged_hits_can_be_limited(noisy):
    runs, qrels = noisy
    assert tuned(runs[:2], qrels, metric="R@1000", k=1).best.value < tuned(runs[:2], qrels, metric="R@1000").best.value


def test_the_tuned_fusion_can_be_written_and_read(noisy, tmp_path):
    runs, qrels = noisy
    found = tuned(runs[:2], qrels)
    first, second = found.identities
    (tmp_path / "choice.json").write_text(json.dumps(found.to_json()))
    assert read_choice(tmp_path / "choice.json", [first, second]) == found.best.fusion
    assert read_choice(tmp_path / "choice.json", ["other0", "other1"]) == found.best.fusion
    for identities in ([second, first], [first], [first, second, "other"]):
        with pytest.raises(InputError, match="2 indexes in this order: run0, run1"):
            read_choice(tmp_path / "choice.json", identities)
    for text in ("{}", "[1]", "nothing", json.dumps({**found.to_json(), "fusion": {"weights": "x"}})):
        (tmp_path / "choice.json").write_text(text)
        with pytest.raises(ArtifactError, match=r"choice.json' is.* writes a file of tuned weights"):
            read_choice(tmp_path / "choice.json", found.identities)


def test_the_table_shows_the_best_trials_and_the_references(noisy, capsys):
    runs, qrels = noisy
    found = tuned(runs[:2], qrels)
    found.render(["a folder/dense", "bm25"])
    text = capsys.readouterr().out
    assert f"{found.best.value:.4f}" in text
    assert all(name in text for name in ("run0 alone", "run1 alone", "rrf, not tuned", "min_max", "z_score", "none"))
    assert f"rkit search 'a folder/dense' bm25 {found.options()}" in text
    assert "63 fusions tried on 30 queries:" in text
