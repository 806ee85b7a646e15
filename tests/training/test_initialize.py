"""A training goes on from a checkpoint: with all that it has learnt, and with no part that contradicts it."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from retrievalkit import storage
from retrievalkit.cli.main import main
from retrievalkit.models.retriever import Retriever

WEIGHTS = ("pooler.safetensors", "retrievalkit.json")
SETTINGS = {"batch_size": 16, "limit": 32, "learning_rate": 1e-2, "precision": "fp32"}


@pytest.fixture(scope="module")
def rkit_train(tiny_collection):
    """Runs `rkit train` on the tiny collection; words are more of its command line."""

    def run(model, output, *words, code=0):
        line = ["train", "--model", model, "--examples", tiny_collection.folder, "--corpus", tiny_collection.folder]
        line += [f"--set={name}={value}" for name, value in SETTINGS.items()]
        result = CliRunner().invoke(main, [str(word) for word in (*line, "--output", output, *words)])
        assert result.exit_code == code, (result.output, result.exception)
        return result.output

    return run


@pytest.fixture(scope="module")
def two_towers(rkit_train, tiny_model, tmp_path_factory):
    """A checkpoint with a trained pooler and an encoder for each side."""
    folder = tmp_path_factory.mktemp("two") / "checkpoint"
    rkit_train(tiny_model, folder, *GIVEN, "--query-length", 20, "--epochs", 1)
    return folder


@pytest.fixture(scope="module")
def one_tower(rkit_train, tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one") / "checkpoint"
    rkit_train(tiny_model, folder, "--pooler", "mean", "--epochs", 1)
    return folder


GIVEN = ("--encoder", "transformer", "--pooler", "colbert", "--set", "pooler.dimension=8", "--separate-towers")


def weights(folder):
    """The bytes of everything that encoding needs."""
    inner = [path for name in ("query", "document", "encoder") for path in (folder / name).glob("*")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in [*(folder / name for name in WEIGHTS), *inner]}


@pytest.mark.parametrize(("checkpoint", "again"), [("one_tower", ()), ("two_towers", ()), ("two_towers", GIVEN)])
def test_zero_epochs_from_a_checkpoint_change_no_byte(checkpoint, again, rkit_train, tmp_path, request):
    """Both towers, tokenizer, pooler's parameters and options; they may be given again as they were."""
    start = request.getfixturevalue(checkpoint)
    rkit_train(start, tmp_path / "out", "--epochs", 0, *again)
    assert weights(tmp_path / "out") == weights(start)


def test_options_that_fit_any_weights_may_change(two_towers, rkit_train, tmp_path):
    """Lengths, dropout, prefixes: the new checkpoint has them, and the old one's others. No checkpoint has a loss."""
    changes = ("--document-length", 40, "--set", "encoder.dropout=0.2", "--set", "encoder.query_prefix=query: ")
    rkit_train(two_towers, tmp_path / "out", "--epochs", 0, *changes, "--set", "loss.temperature=0.5")
    before, after = (
        json.loads((folder / "retrievalkit.json").read_text())["encoder"]["options"]
        for folder in (two_towers, tmp_path / "out")
    )
    assert after == before | {"document_length": 40, "dropout": 0.2, "query_prefix": "query: "}
    assert Retriever.load(tmp_path / "out").tower("document").lengths == {"query": 20, "document": 40}
    manifest = storage.read_manifest(tmp_path / "out", "checkpoint")
    fingerprint = storage.read_manifest(two_towers)["fingerprint"]
    assert manifest["inputs"]["model"] == {"path": str(two_towers), "fingerprint": fingerprint}
    assert manifest["options"]["model"] == str(two_towers)
    assert manifest["options"]["pooler"]["options"]["dimension"] == 8
    assert manifest["options"]["loss"]["options"] == {"temperature": 0.5}


def test_training_continues_from_the_weights_of_the_checkpoint(two_towers, rkit_train, tmp_path):
    """The weights after one small step are near those of the checkpoint: pooler's and both encoders'."""
    rkit_train(two_towers, tmp_path / "out", "--epochs", 0.5, "--learning-rate", 1e-5, "--seed", 7)
    moved = [name for name in weights(two_towers) if name.endswith(".safetensors")]
    assert len(moved) == 3
    for name in moved:
        before, after = load_file(two_towers / name), load_file(tmp_path / "out" / name)
        assert any(not torch.equal(before[one], after[one]) for one in before)
        assert all(torch.allclose(before[one], after[one], atol=1e-4) for one in before)


def test_two_towers_start_from_a_shared_tower(one_tower, rkit_train, tmp_path):
    rkit_train(one_tower, tmp_path / "out", "--epochs", 0, "--separate-towers")
    both = Retriever.load(tmp_path / "out")
    shared = (one_tower / "encoder" / "model.safetensors").read_bytes()
    assert sorted(both.towers) == ["document", "query"]
    assert all((tmp_path / "out" / side / "model.safetensors").read_bytes() == shared for side in both.towers)


REFUSED = {
    "--pooler mean": "was trained with pooler 'colbert', not 'mean'. Leave --pooler out, or start from its "
    "encoder alone: --model {start}/query",
    "--set pooler.dimension=4": "was trained with pooler.dimension=8, not 4",
    "--set pooler.normalize=false": "was trained with pooler.normalize=True, not False",
    "--set pooler.sise=4": "pooler 'colbert' has no option 'sise'",
    "--set encoder.lora_rank=4": "was trained with encoder.lora_rank=0, not 4. "
    "Leave it out, or start from another model. Options that may change: attention, ",
    "--set encoder.revision=main": "was trained with encoder.revision=None, not main",
    "--shared-tower": "is a checkpoint with an encoder for each side. Leave --shared-tower out",
    "--document-length 4096": "document_length is 4096, and '{start}/query' takes 3 to 128 tokens. Set "
    "--document-length.",
}


@pytest.mark.parametrize("words", REFUSED)
def test_options_that_contradict_a_checkpoint_are_refused(words, two_towers, rkit_train, tmp_path):
    assert REFUSED[words].format(start=two_towers) in rkit_train(two_towers, tmp_path / "out", *words.split(), code=2)
    assert list(tmp_path.iterdir()) == []
