"""BM25 and dense vectors in one command: fused by hand-checked sums, tuned, explained and asked at a prompt."""

import json

import pytest
import retrievalkit_testing as testing
from click.testing import CliRunner

from retrievalkit.cli import main
from retrievalkit.data.runs import read_run

pytestmark = pytest.mark.precision


def rkit(*words, **options):
    result = CliRunner().invoke(main, [str(word) for word in words], **options)
    assert result.exit_code == 0, f"{words}\n{result.output}\n{result.exception!r}"
    return result


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A collection, a BM25 index of it, and a flat index of vectors of an untrained model."""
    folder = tmp_path_factory.mktemp("hybrid")
    collection = testing.tiny_collection(folder / "data")
    model = testing.tiny_model(folder / "model")
    rkit("index", collection.corpus, "--indexer", "bm25", "--output", folder / "bm25")
    rkit("encode", model, collection.corpus, "--pooler", "mean", "--output", folder / "vectors")
    rkit("index", folder / "vectors", "--output", folder / "dense")
    return folder


def run_of(made, *words):
    output = made / "run.trec"
    rkit("search", *words, "--queries", made / "data", "--split", "test", "--output", output)
    return {query: dict(hits) for query, hits in read_run(output).items()}


def test_the_sum_of_bm25_and_dense_scores_is_over_all_that_either_found(made):
    """Five hits of each are fused; what the other one did not find has the score that it gives when it finds all."""
    bm25, dense = run_of(made, made / "bm25"), run_of(made, made / "dense")
    fused = run_of(made, made / "bm25", made / "dense", "--fusion", "sum", "--depth", 5)
    assert len(fused) == 42
    computed = 0
    for query, hits in fused.items():
        tops = [sorted(run[query].values())[-5:] for run in (bm25, dense)]
        # Lucene leaves out what shares no term with the query: its score is 0. Of equal texts any may be found.
        assert hits == pytest.approx({one: bm25[query].get(one, 0.0) + dense[query][one] for one in hits}, abs=2e-3)
        near = [
            {one for one in hits if run[query].get(one, 0.0) >= top[0] - 1e-3}
            for run, top in zip((bm25, dense), tops, strict=True)
        ]
        assert near[0] | near[1] == set(hits)
        assert all(len(some) >= len(top) for some, top in zip(near, tops, strict=True))
        computed += len(near[0] ^ near[1])
    assert computed > 42


def test_tuning_finds_out_that_bm25_is_the_better_one(made):
    """On the queries that are not searched; the run of the chosen weights is written at once."""
    output = made / "choice.json"
    given = (made / "bm25", made / "dense", "--tune", made / "data" / "qrels" / "train.tsv")
    rkit("search", *given, "--tune-queries", made / "data", "--output", output)
    choice = json.loads(output.read_text())
    assert choice["queries"] == 84
    assert choice["nDCG@10"] >= choice["references"]["bm25 alone"] > choice["references"]["dense alone"]
    fused = run_of(made, *given)
    assert fused == run_of(made, made / "bm25", made / "dense", "--weights", output)


def test_hits_say_which_terms_lucene_counted(made):
    """Stems, whose contributions add up to the score, and mark the words of the text."""
    weights = ("--fusion", "linear", "--normalization", "min_max", "--weights", "0.99,0.01")
    asked = ("search", made / "bm25", made / "dense", *weights, "--query", "languages spoken in Peru")
    value = json.loads(rkit(*asked, "--k", 1, "--json").stdout)
    [hit] = value["hits"]
    assert hit["title"] == "Peru"
    bm25, dense = hit["found"]
    assert (bm25["index"], bm25["rank"], dense["index"]) == ("bm25", 1, "dense")
    assert set(bm25["terms"]) == {"languag", "spoken", "peru"}
    assert sum(bm25["terms"].values()) == pytest.approx(bm25["score"], abs=1e-3)
    assert hit["matches"] == ["language", "spoken"]
    printed = rkit(*asked, "--k", 1).stdout.splitlines()
    assert printed[0].startswith("  1  Peru  c33  ")
    assert printed[2].startswith(f"     bm25 #1 {bm25['score']:.4f}  peru ")
