"""Checkpoints become ONNX graphs, which give equal vectors in onnxruntime."""

from __future__ import annotations

import json

import numpy as np
import pytest

from peer_vectors import TEXTS, assert_equal_vectors

pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def runtime():
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason="torch's exporter needs onnx and onnxscript")
    return pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


def by_graph(runtime, folder):
    """The output for each text by onnxruntime and tokenizers alone, as the README of the export says."""
    from tokenizers import Tokenizer

    described = json.loads((folder / "tokenization.json").read_text())
    found = {}
    for side, texts in TEXTS.items():
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.enable_truncation(described[side]["max_length"])
        tokenizer.enable_padding(pad_id=described["padding_id"])
        tokens = tokenizer.encode_batch([described[side]["prefix"] + text for text in texts])
        one = folder / "model.onnx"
        session = runtime.InferenceSession(str(one if one.exists() else folder / f"{side}.onnx"))
        inputs = {
            "input_ids": np.array([one.ids for one in tokens]),
            "attention_mask": np.array([one.attention_mask for one in tokens]),
        }
        found[side] = list(session.run(None, inputs)[0])
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooler", "options"),
    [
        ("mean", {"normalize": True}),
        ("projected", {"pooling": ("mean", "cls"), "dimensions": (8,), "activations": ("tanh",)}),
        ("mean", {"layer": 1}),
        ("self_contrastive", {"layers": (1, 2)}),
        ("scalar_mix", {"layers": (1, 2)}),
        ("aggretriever", {"cls_dim": 8, "agg_dim": 16}),
        ("dense_sparse", {"views": "sparse", "top_k": 20}),
    ],
)
def test_onnxruntime_gives_equal_vectors(runtime, checkpoint, export, pooler, options):
    """Poolers that no other library has, too: a graph can say anything that makes one vector of a text."""
    source = checkpoint(pooler, {"query_prefix": "what "}, **options)
    assert_equal_vectors(source, by_graph(runtime, export(source, "onnx")))


@pytest.mark.slow
def test_two_encoders_are_two_graphs(runtime, checkpoint, export):
    source = checkpoint("cls", separate_towers=True)
    folder = export(source, "onnx")
    assert sorted(path.name for path in folder.glob("*.onnx")) == ["document.onnx", "query.onnx"]
    assert_equal_vectors(source, by_graph(runtime, folder))


@pytest.mark.slow
def test_quantisation_states_its_loss(runtime, checkpoint, export, tiny_collection):
    """The cosine with the vectors of 32 bits, and what an exact search loses."""
    texts = ["--texts", tiny_collection.corpus, "--queries", tiny_collection.queries, "--qrels", tiny_collection.qrels]
    folder = export(checkpoint("mean"), "onnx", "--quantize", "int8", *texts)
    figures = json.loads((folder / "manifest.json").read_text())["figures"]
    assert 0.9 < figures["int8 cosine with fp32, least"] < figures["int8 cosine with fp32, mean"] < 1
    before, after = map(float, figures["nDCG@10, fp32 -> int8"].split(" -> "))
    assert 0 < before <= 1
    assert after == pytest.approx(before, abs=0.2)
    assert (folder / "model.int8.onnx").stat().st_size < (folder / "model.onnx").stat().st_size
    assert "int8 cosine with fp32, mean" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("pooler", "options", "reason"),
    [
        ("multi_layer", {"layers": (1, 2)}, "several vectors of a document"),
        ("colbert", {}, "several vectors of a query"),
        ("dense_sparse", {"top_k": 20}, "weights beside a vector"),
    ],
)
def test_more_than_a_vector_a_text_is_refused(runtime, checkpoint, export, pooler, options, reason):
    assert reason in export(checkpoint(pooler, **options), "onnx")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--to", "onnx", "--quantize", "int8"), "Give a corpus: --texts"),
        (("--to", "onnx", "--texts", "x"), "--texts states the loss of --quantize"),
        (("--to", "pylate", "--quantize", "int8"), "--quantize is for --to onnx"),
        (("--to", "onnx", "--quantize", "int8", "--texts", "x", "--queries", "q"), "--queries and --qrels go together"),
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path, options, reason):
    from click.testing import CliRunner

    from retrievalkit.cli import main

    result = CliRunner().invoke(main, ["export", "model", str(tmp_path / "out"), *options])
    assert (result.exit_code, reason in result.stderr) == (2, True)
