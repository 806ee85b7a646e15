"""`rkit pretrain --pretrainer cot_mae_v2`: it learns real text, resumes, and leaves a model to train from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file
from tokenizers import BertWordPieceTokenizer

from retrievalkit.cli import main
from retrievalkit.data.corpus import open_corpus
from retrievalkit.models.pretrained import quiet

TERMS = ("encoder_mlm", "ae_dense", "ae_sparse", "ar_dense", "ar_sparse")
REAL_TEXT = "pydoc:json,argparse"
QUICK = ("--batch-size", 8, "--learning-rate", 1e-2, "--precision", "fp32")
QUICK += ("--set", "logging_steps=2", "--set", "save_steps=2")


def rkit(*words):
    """Run a command that succeeds; returns what it prints."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, f"rkit {' '.join(map(str, words))}\n{result.output}\n{result.exception!r}"
    return result.stdout


def log_of(folder):
    return [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def pretrain(tiny_model, tiny_collection):
    """Runs the command on the tiny tiny_collection."""

    def pretrain(output, *words):
        given = ("--model", tiny_model, "--output", output)
        given += () if "--corpus" in words else ("--corpus", tiny_collection.corpus)
        given += () if "--max-length" in words else ("--max-length", 14)
        return rkit("pretrain", "--pretrainer", "cot_mae_v2", *given, *QUICK, *words)

    return pretrain


@pytest.fixture(scope="module")
def pretrained(pretrain, tmp_path_factory):
    """A model pre-trained for six steps."""
    output = tmp_path_factory.mktemp("pretrained") / "model"
    pretrain(output, "--steps", 6)
    return output


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    """A small BERT that knows nothing, with a vocabulary of real text."""
    folder = tmp_path_factory.mktemp("random")
    learnt = BertWordPieceTokenizer(lowercase=True)
    learnt.train_from_iterator([passage.text for passage in open_corpus(REAL_TEXT)], 1000, show_progress=False)
    learnt.save_model(str(folder))
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        tokenizer = transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"), do_lower_case=True)
        tokenizer.save_pretrained(folder)
        config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=64, **sizes)
        transformers.BertForMaskedLM(config).save_pretrained(folder)
    return str(folder)


def test_each_term_falls_from_random_initialisation(random_model, tmp_path):
    """From ln 1000, about 6.9, on the documentation of two packages."""
    how = ("--steps", 40, "--batch-size", 8, "--max-length", 24, "--learning-rate", 3e-3, "--precision", "fp32")
    given = ("--model", random_model, "--corpus", REAL_TEXT, "--output", tmp_path / "out")
    rkit("pretrain", "--pretrainer", "cot_mae_v2", *given, *how, "--set", "logging_steps=5")
    log = log_of(tmp_path / "out")
    assert [line["step"] for line in log] == list(range(5, 41, 5))
    for term in TERMS:
        values = [line[term] for line in log]
        assert values[0] > 6.4, term
        assert sum(values[-2:]) / 2 < values[0] - 0.8, f"{term}: {values}"
    for line in log:
        assert line["loss"] == pytest.approx(sum(line[term] for term in TERMS), abs=1e-4)


def test_the_decoders_are_not_in_the_model(pretrained, tiny_model):
    tensors, started = (load_file(Path(folder) / "model.safetensors") for folder in (pretrained, tiny_model))
    assert tensors.keys() == started.keys()
    name = "cls.predictions.transform.dense.weight"
    assert not torch.equal(tensors[name], started[name])
    with quiet():
        assert type(transformers.AutoModelForMaskedLM.from_pretrained(pretrained)) is transformers.BertForMaskedLM


def test_documents_of_one_span_are_dropped_and_counted(pretrain, tmp_path):
    """Said at the end, and kept in the manifest."""
    texts = ["The city of Lima. People pay with the sol. It is in Peru."] * 6
    texts += ["The capital of Peru is the city of Lima"] * 3
    corpus = tmp_path / "corpus.jsonl"
    rows = ({"_id": f"d{row}", "title": "", "text": text} for row, text in enumerate(texts))
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    printed = pretrain(tmp_path / "out", "--steps", 1, "--corpus", corpus, "--max-length", 6)
    assert "3 without two spans were dropped" in printed
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["counts"]["dropped"] == 3
