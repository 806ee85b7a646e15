"""A training goes on from a checkpoint with the vocabulary head and the projection that it has learnt (section 5.3)."""

from __future__ import annotations

from click.testing import CliRunner

from retrievalkit.cli.main import main

FIRST = "--pooler aggretriever --set pooler.agg_dim=24 --set pooler.cls_dim=8 --epochs 1 --learning-rate 1e-2"


def train(model, collection, output, words):
    line = f"train --model {model} --examples {collection.folder} --corpus {collection.folder} --output {output}"
    settings = "--batch-size 16 --precision fp32 --set limit=32"
    result = CliRunner().invoke(main, f"{line} {settings} {words}".split())
    assert result.exit_code == 0, result.output


def weights(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*.safetensors")}


def test_head_and_projection_go_on(tiny_model, tiny_collection, tmp_path):
    train(tiny_model, tiny_collection, tmp_path / "first", FIRST)
    train(tmp_path / "first", tiny_collection, tmp_path / "same", "--epochs 0")
    assert weights(tmp_path / "same") == weights(tmp_path / "first")
    train(tmp_path / "first", tiny_collection, tmp_path / "second", "--epochs 1 --set loss.temperature=0.1")
    before, after = weights(tmp_path / "first"), weights(tmp_path / "second")
    assert before.keys() == after.keys() == {"model.safetensors", "pooler.safetensors"}
    assert all(before[name] != after[name] for name in before)
