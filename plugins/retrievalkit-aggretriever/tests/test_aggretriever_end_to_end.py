"""Through a real encoder: the contract, cached gradients, and the walk from training to evaluation."""

from __future__ import annotations

import json

import pytest
import retrievalkit_testing as testing
from click.testing import CliRunner

from retrievalkit.cli import main
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.models.retriever import Retriever

pytestmark = pytest.mark.precision

SMALL = {"cls_dim": 8, "agg_dim": 24}
CASES = [
    {},
    {"term_weight": "signed"},
    {"vocabulary_head": False},
    {"aggregation": "linear"},
    {"aggregation": "average"},
    {"agg_dim": "vocabulary"},
    {"slices": "seeded", "slice_seed": 7},
    {"cls_dim": 0, "aggregation": "semi"},
    {"layers": (1, 2)},
    {"layers": (1, 2), "keep": "last"},
]


QUICK = ({}, {"agg_dim": "vocabulary"}, {"layers": (1, 2), "keep": "last"})


@pytest.mark.parametrize(
    "options", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in CASES], ids=str
)
def test_the_contract_is_kept(options, tiny_model):
    """Padding, order and batch size change nothing; saving and loading give equal vectors; gradients arrive."""
    testing.check_pooler("aggretriever", model=tiny_model, **(SMALL | options))


def test_other_architectures(tmp_path):
    """RoBERTa, whose head is another one."""
    testing.check_pooler("aggretriever", model=testing.tiny_model(tmp_path, architecture="roberta"), **SMALL)


class TestEncodersThatItIsNotFor:
    """Refused before any training step."""

    def test_without_a_head(self, tmp_path):
        model = testing.tiny_model(tmp_path, architecture="t5")
        with pytest.raises(InputError, match="vocabulary head"):
            Retriever.create(model, pooler="aggretriever", pooler_options=SMALL)

    @pytest.mark.parametrize("architecture", ["t5", "llama"])
    def test_without_cls(self, architecture, tmp_path):
        model = testing.tiny_model(tmp_path, architecture=architecture)
        with pytest.raises(UnsupportedError, match=r"\[CLS\]-like token .* begin with none\. Choose a model with one"):
            Retriever.create(model, pooler="aggretriever", pooler_options=SMALL | {"vocabulary_head": False})


def rkit(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, f"rkit {' '.join(map(str, words))}\n{result.output}\n{result.exception!r}"
    return result.stdout


def settings(given):
    return [word for name, value in given.items() for word in ("--set", f"{name}={value}")]


def train(model, tiny_collection, output, **given):
    data = tiny_collection.folder
    words = ["--model", model, "--corpus", data, "--examples", data, "--output", output]
    words += ["--pooler", "aggretriever", "--batch-size", 16, "--precision", "fp32", "--json"]
    small = {"pooler.cls_dim": 8, "pooler.agg_dim": 24, "negatives": 0, "encoder.dropout": 0, "logging_steps": 6}
    manifest = json.loads(rkit("train", *words, *settings(small | given)))
    return manifest, [json.loads(line) for line in (output / "training.jsonl").read_text().splitlines()]


def measure(model, tiny_collection, folder, *options):
    """nDCG@10 of exact search, and the counts of the vectors."""
    vectors = rkit("encode", model, tiny_collection.corpus, "--output", folder / "vectors", "--json", *options)
    rkit("index", folder / "vectors", "--indexer", "flat", "--output", folder / "index")
    rkit("search", folder / "index", "--queries", tiny_collection.queries, "--k", 10, "--output", folder / "run.trec")
    found = rkit("evaluate", folder / "run.trec", "--qrels", tiny_collection.qrels, "--metrics", "nDCG@10", "--json")
    return json.loads(found)["metrics"]["nDCG@10"], json.loads(vectors)["counts"]


def test_from_training_to_evaluation(tiny_model, tiny_collection, tmp_path):
    """Trained by the pooler's own loss it beats the same model untrained; one vector of 32 numbers a text."""
    manifest, log = train(tiny_model, tiny_collection, tmp_path / "model", epochs=10, learning_rate=1e-2)
    assert manifest["options"]["loss"]["name"] == "aggretriever"
    for line in log:
        assert line["loss"] == pytest.approx(line["contrastive"] + 0.5 * (line["agg"] + line["cls"]), rel=1e-4)
    trained, counts = measure(tmp_path / "model", tiny_collection, tmp_path / "trained")
    assert (counts["texts"], counts["vectors"]) == (42, 42)
    small = settings({"pooler.cls_dim": 8, "pooler.agg_dim": 24})
    untrained, _ = measure(tiny_model, tiny_collection, tmp_path / "untrained", "--pooler", "aggretriever", *small)
    assert trained > untrained + 0.2
