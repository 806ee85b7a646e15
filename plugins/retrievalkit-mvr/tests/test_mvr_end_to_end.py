"""From the command line: train, encode, index, search, evaluate."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner

from retrievalkit.cli import main

pytestmark = pytest.mark.precision


def rkit(*arguments):
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return result.stdout


def train(model, tiny_collection, output, *options, **settings):
    data = tiny_collection.folder
    arguments = ["--model", model, "--corpus", data, "--examples", data, "--output", output]
    arguments += ["--pooler", "viewers", "--batch-size", 16, "--precision", "fp32", *options]
    given = {"pooler.viewers": 3, "negatives": 0, "encoder.dropout": 0, "logging_steps": 6} | settings
    for name, value in given.items():
        arguments += ["--set", f"{name}={value}"]
    manifest = json.loads(rkit("train", *arguments, "--json"))
    log = [json.loads(line) for line in (output / "training.jsonl").read_text().splitlines()]
    return manifest, log


def measure(checkpoint, tiny_collection, folder, *options):
    """nDCG@10 of exact search with a checkpoint or model, and the manifest of its vectors."""
    manifest = rkit("encode", checkpoint, tiny_collection.corpus, "--output", folder / "vectors", "--json", *options)
    rkit("index", folder / "vectors", "--indexer", "flat", "--output", folder / "index")
    rkit("search", folder / "index", "--queries", tiny_collection.queries, "--k", 10, "--output", folder / "run.trec")
    found = rkit("evaluate", folder / "run.trec", "--qrels", tiny_collection.qrels, "--metrics", "nDCG@10", "--json")
    return json.loads(found)["metrics"]["nDCG@10"], json.loads(manifest)


def test_from_training_to_evaluation(bert, tiny_collection, tmp_path):
    """Trained by the pooler's own loss, all viewers are indexed, and it beats the same model untrained."""
    manifest, log = train(bert, tiny_collection, tmp_path / "model", epochs=12, learning_rate=1e-2)
    assert manifest["options"]["loss"]["name"] == "global_local"
    # 84 examples are 6 steps an epoch: each line of the log is one epoch, and the temperature falls with it.
    assert [line["temperature"] for line in log] == pytest.approx([math.exp(-0.1 * epoch) for epoch in range(12)])
    for line in log:
        assert line["loss"] == pytest.approx(line["global"] + 0.01 * line["local"], rel=1e-4)
    trained, vectors = measure(tmp_path / "model", tiny_collection, tmp_path / "trained")
    assert (vectors["counts"]["texts"], vectors["counts"]["vectors"]) == (42, 3 * 42)
    options = ("--pooler", "viewers", "--set", "pooler.viewers=3")
    untrained, _ = measure(bert, tiny_collection, tmp_path / "untrained", *options)
    assert trained > untrained + 0.2
