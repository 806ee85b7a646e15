"""BM25 and dense vectors in one command: fused and explained."""

import json

import pytest
import retrievalkit_testing as testing
from click.testing import CliRunner

from retrievalkit.cli import main

pytestmark = pytest.mark.precision


def rkit(*words, **options):
    result = CliRunner().invoke(main, [str(word) for word in words], **options)
    assert result.exit_code == 0, f"{words}\n{result.output}\n{result.exception!r}"
    return result


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    collection = testing.tiny_collection(folder / "data")
    model = testing.tiny_model(folder / "model")
    rkit("index", collection.corpus, "--indexer", "bm25", "--output", folder / "bm25")
    rkit("encode", model, collection.corpus, "--pooler", "mean", "--output", folder / "vectors")
    rkit("index", folder / "vectors", "--output", folder / "dense")
    return folder


def test_hits_are_explained_by_lucenes_terms(indexes):
    """The contributions of stems add up to the score, and the matching words are marked."""
    weights = ("--fusion", "linear", "--normalization", "min_max", "--weights", "0.99,0.01")
    options = ("search", indexes / "bm25", indexes / "dense", *weights, "--query", "languages spoken in Peru")
    value = json.loads(rkit(*options, "--k", 1, "--json").stdout)
    [hit] = value["hits"]
    assert hit["title"] == "Peru"
    bm25, dense = hit["found"]
    assert (bm25["index"], bm25["rank"], dense["index"]) == ("bm25", 1, "dense")
    assert set(bm25["terms"]) == {"languag", "spoken", "peru"}
    assert sum(bm25["terms"].values()) == pytest.approx(bm25["score"], abs=1e-3)
    assert hit["matches"] == ["language", "spoken"]
    printed = rkit(*options, "--k", 1).stdout.splitlines()
    assert printed[0].startswith("  1  Peru  c33  ")
    assert printed[2].startswith(f"     bm25 #1 {bm25['score']:.4f}  peru ")
