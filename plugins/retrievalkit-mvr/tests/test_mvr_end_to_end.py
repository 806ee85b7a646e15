"""From the command line: train, encode, index, search, evaluate."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from retrievalkit import testing
from retrievalkit.cli import main


def rkit(*arguments):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    return testing.tiny_collection(tmp_path_factory.mktemp("countries"))


def train(model, collection, output, *settings, epochs=1):
    arguments = ["--model", model, "--corpus", collection.corpus, "--examples", collection.folder, "--output", output]
    arguments += ["--pooler", "viewers", "--epochs", epochs, "--batch-size", 28, "--learning-rate", 3e-3]
    for setting in ("pooler.viewers=3", "negatives=0", *settings):
        arguments += ["--set", setting]
    return json.loads(rkit("train", *arguments, "--separate-towers", "--precision", "fp32", "--json"))


def measure(checkpoint, collection, folder, *options):
    """nDCG@10 of exact search with a checkpoint or model, and the manifest of its vectors."""
    manifest = rkit("encode", checkpoint, collection.corpus, "--output", folder / "vectors", "--json", *options)
    rkit("index", folder / "vectors", "--indexer", "flat", "--output", folder / "index")
    rkit("search", folder / "index", "--queries", collection.queries, "--k", 10, "--output", folder / "run.trec")
    found = rkit("evaluate", folder / "run.trec", "--qrels", collection.qrels, "--metrics", "nDCG@10", "--json")
    return json.loads(found)["metrics"]["nDCG@10"], json.loads(manifest)


def test_from_training_to_evaluation(bert, collection, tmp_path):
    """Trained by the loss of the pooler, all viewers are indexed, and it beats the same model untrained."""
    manifest = train(bert, collection, tmp_path / "model", epochs=12)
    assert manifest["options"]["loss"]["name"] == "global_local"
    trained, vectors = measure(tmp_path / "model", collection, tmp_path / "trained")
    assert vectors["counts"] == vectors["counts"] | {"texts": 42, "vectors": 3 * 42}
    untrained, _ = measure(bert, collection, tmp_path / "untrained", "--pooler", "viewers", "--set", "pooler.viewers=3")
    assert trained > untrained + 0.05
    log = [json.loads(line) for line in (tmp_path / "model" / "training.jsonl").read_text().splitlines()]
    print(trained, untrained, log[0], log[-1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--set", "pooler.viewers=127"], "127 extra tokens leave no room for a text"),
        (["--set", "pooler.viewer=2"], "did you mean 'viewers'"),
        (["--set", "loss.temperature=0.1", "--set", "loss.floor=0.2"], "Set one or the other"),
    ],
)
def test_wrong_settings_are_said_before_training(settings, message, bert, collection, tmp_path):
    arguments = ["--model", bert, "--corpus", collection.corpus, "--examples", collection.folder]
    arguments += ["--output", tmp_path / "model", "--pooler", "viewers", *settings]
    result = CliRunner().invoke(main, list(map(str, ["train", *arguments])))
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "model").exists()
