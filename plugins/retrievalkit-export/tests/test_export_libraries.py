"""Exports to other libraries, and models of these libraries in rkit, have equal vectors.

PyLate needs other releases of its dependencies: RKIT_PYLATE is the Python interpreter of its environment.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from retrievalkit.models.opening import open_retriever
from retrievalkit.models.retriever import Retriever

pytestmark = pytest.mark.filterwarnings("ignore")

QUERIES = ["what is the capital of peru", "currency", " ".join(["language"] * 90)]
PASSAGES = [
    ("", "the seat of government is a city, and people pay with it."),
    ("peru", ""),
    ("capital of peru", "the seat of government is a city, and people pay with it."),
    ("the language", " ".join(["the number"] * 90)),
]
TEXTS = {"query": QUERIES, "document": [f"{title} {text}".strip() for title, text in PASSAGES]}
PARTS = {"query": [("", text) for text in QUERIES], "document": PASSAGES}
"""Queries and passages as single texts for other libraries, and as (title, text) pairs."""

PREFIXES = {"query_prefix": "query: ", "document_prefix": "passage: "}
SPLADE = {"views": "sparse", "pooled_tokens": "all"}
SINGLE = [
    ("cls", {}),
    ("mean", {"normalize": True}),
    ("max", {}),
    ("last", {}),
    (
        "projected",
        {"pooling": ("mean", "cls"), "dimensions": (24, 8), "activations": ("tanh", "identity"), "normalize": True},
    ),
    ("projected", {"pooling": ("cls", "max", "weighted_mean")}),  # in the order of the older format
    ("self_contrastive", {"layers": (1, 2)}),  # its vectors differ only in training
    ("dense_sparse", {"views": "dense", "dimension": 16}),  # a linear layer of a plugin
]
LATE = [
    {},
    {"dimension": None, "markers": False, "query_filled": False, "skip_punctuation": False},
    {"dimension": 8, "bias": True, "fill_attended": True, "marker_tokens": ("[unused5]", "")},
]


def by_rkit(source):
    """Encode the texts with rkit; returns the vectors or weights of each text as rows."""
    retriever, rows = open_retriever(source).to("cpu"), {}
    for side, texts in PARTS.items():
        encoded = retriever.encode(texts, side)
        if encoded.weights is not None:
            rows[side] = [weights[None].numpy() for weights in encoded.weights]
        else:
            masks = [slice(None)] * len(texts) if encoded.vector_mask is None else encoded.vector_mask
            rows[side] = [encoded.vectors[row][masks[row]].numpy() for row in range(len(texts))]
    return rows


def assert_equal_vectors(model, vectors):
    """Check that vectors have cosines above 0.99999 and equal lengths."""
    for side, rows in by_rkit(model).items():
        for row, expected in enumerate(rows):
            computed = np.atleast_2d(np.asarray(vectors[side][row], dtype=np.float32))
            assert computed.shape == expected.shape, (side, row)
            norms = [np.linalg.norm(matrix, axis=1) for matrix in (expected, computed)]
            assert ((expected * computed).sum(axis=1) >= 0.99999 * norms[0] * norms[1] - 1e-9).all(), (side, row)
            assert norms[1] == pytest.approx(norms[0], rel=1e-3)


@pytest.mark.parametrize(
    ("to", "pooler", "options", "reason"),
    [
        ("sentence-transformers", "multi_layer", {"layers": (1, 2)}, "several vectors per document"),
        ("sentence-transformers", "layer_average", {"layers": (1, 2)}, "pools the layers 1 of a document"),
        ("sentence-transformers", "mean", {"layer": 1}, "'mean' pools the layers 1 of a query"),
        ("sentence-transformers", "aggretriever", {"cls_dim": 8, "agg_dim": 16}, "no module of the target computes"),
        ("sentence-transformers", "colbert", {}, "'colbert' computes several vectors per query"),
        ("sentence-transformers", "dense_sparse", {"top_k": 20}, "weights over the vocabulary in addition to vectors"),
        ("sentence-transformers", "mean", {"separate_towers": True}, "separate encoders for queries and documents"),
        ("pylate", "mean", {}, "its pooler is 'mean'"),
        ("pylate", "colbert", {"layer": 1}, "come from layer 1"),
        ("pylate", "colbert", {"normalize": False}, "not normalised"),
        ("sparse-encoder", "dense_sparse", {"views": "sparse", "top_k": 20}, "are not SPLADE's"),
        ("sparse-encoder", "dense_sparse", {**SPLADE, "top_k": 9, "sparse_head": "projection"}, "not SPLADE's"),
        (
            "sparse-encoder",
            "dense_sparse",
            {**SPLADE, "views": "both", "top_k": 9},
            "a vector in addition to the weights",
        ),
        ("sparse-encoder", "dense_sparse", {"views": "dense"}, "computes vectors"),
        ("onnx", "multi_layer", {"layers": (1, 2)}, "several vectors per document"),
        ("onnx", "colbert", {}, "several vectors per query"),
        ("onnx", "dense_sparse", {"top_k": 20}, "weights in addition to a vector"),
    ],
)
def test_checkpoints_without_an_equivalent_are_refused(checkpoint, export, to, pooler, options, reason):
    assert reason in export(checkpoint(pooler, **options), to)


# --- sentence-transformers -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library():
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    pytest.importorskip("sentence_transformers.models")  # release 6 does not import it by itself
    return library


def encoded(model):
    rows = {side: getattr(model, f"encode_{side}")(texts) for side, texts in TEXTS.items()}
    return {side: list(part.to_dense().numpy() if hasattr(part, "to_dense") else part) for side, part in rows.items()}


@pytest.mark.parametrize(("pooler", "options"), SINGLE)
def test_sentence_transformers_and_rkit_open_the_export(library, checkpoint, export, pooler, options):
    """With prompts, and a length per side."""
    source = checkpoint(pooler, PREFIXES, **options)
    folder = export(source, "sentence-transformers")
    assert_equal_vectors(source, encoded(library.SentenceTransformer(str(folder), device="cpu")))
    assert_equal_vectors(folder, by_rkit(source))


def test_lora_adapters_are_merged_into_the_weights(library, checkpoint, export):
    source = checkpoint("mean", {"lora_rank": 2})
    retriever = Retriever.load(source, "cpu")
    with torch.no_grad():
        for name, parameter in retriever.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    retriever.save(source)
    folder = export(source, "sentence-transformers")
    assert_equal_vectors(source, encoded(library.SentenceTransformer(str(folder), device="cpu")))


@pytest.mark.parametrize("title", ["pair", "none"])
def test_an_export_keeps_the_encoding_of_titles(checkpoint, export, title):
    source = checkpoint("mean", {"title": title})
    assert_equal_vectors(export(source, "sentence-transformers"), by_rkit(source))


def test_length_sets_one_length_for_both_sides(checkpoint, export):
    """Releases before 6 do not support a length per side."""
    folder = export(checkpoint("mean"), "sentence-transformers", "--length", 50)
    settings = json.loads((folder / "sentence_bert_config.json").read_text())
    assert settings == {"max_seq_length": 50, "do_lower_case": False}


@pytest.mark.parametrize("top_k", [None, 8])
def test_sparse_encoder_and_rkit_open_the_export(library, checkpoint, export, top_k):
    source = checkpoint("dense_sparse", {"query_prefix": "what "}, top_k=top_k, **SPLADE)
    folder = export(source, "sparse-encoder")
    weights = encoded(library.SparseEncoder(str(folder), device="cpu"))
    assert_equal_vectors(source, weights)
    assert_equal_vectors(folder, weights)


@pytest.mark.parametrize("most", [None, 8])
def test_sparse_encoder_models_are_read(library, checkpoint, tiny_model, tmp_path, most):
    checkpoint("dense_sparse", top_k=20)  # skips without that plugin
    model = library.SparseEncoder(tiny_model, max_active_dims=most, prompts={"query": "what "}, device="cpu")
    model.save(str(tmp_path / "published"))
    assert_equal_vectors(tmp_path / "published", encoded(model))


@pytest.fixture
def published(library, tiny_model, tmp_path):
    """Function that saves a sentence-transformers model: the tiny model with more modules."""

    def save(*modules, **options):
        first = library.models.Transformer(tiny_model)
        model = library.SentenceTransformer(modules=[first, *modules], device="cpu", **options)
        model.max_seq_length = 40
        model.save(str(tmp_path / "published"))
        return tmp_path / "published", model

    return save


def test_models_with_projections_and_several_poolings_are_read(library, published):
    """Concatenated poolings, linear layers with and without bias and activation, prompts, the length."""
    models, identity = library.models, torch.nn.Identity()
    layers = [models.Dense(64, 24), models.Dense(24, 8, bias=False, activation_function=identity), models.Normalize()]
    prompts = {"query": "query: ", "document": "passage: "}
    folder, model = published(models.Pooling(32, pooling_mode=("mean", "max")), *layers, prompts=prompts)
    assert_equal_vectors(folder, encoded(model))


def test_models_with_every_pooling_are_read(library, published):
    modes = ("weightedmean", "mean_sqrt_len_tokens", "lasttoken", "cls", "max", "mean")
    folder, model = published(library.models.Pooling(32, pooling_mode=modes), similarity_fn_name="dot")
    assert_equal_vectors(folder, encoded(model))


def test_training_from_such_a_model_keeps_its_encoding_of_titles(library, published, tmp_path):
    """With a named pooler instead, title and text are a pair."""
    folder, model = published(library.models.Pooling(32), similarity_fn_name="dot")
    for pooler, title in ((None, "space"), ("mean", "pair")):
        (tmp_path / title).mkdir()
        Retriever.create(folder, pooler=pooler).save(tmp_path / title)
        assert Retriever.load(tmp_path / title, "cpu").tower("document").title == title
    assert_equal_vectors(tmp_path / "space", encoded(model))


def test_multi_vector_encoder_models_are_read(tiny_model, tmp_path):
    """Late interaction in sentence-transformers."""
    library = pytest.importorskip("sentence_transformers", minversion="6", reason="sentence-transformers 6 is missing")
    model = library.MultiVectorEncoder(str(tiny_model), device="cpu")
    model.save(str(tmp_path / "published"))
    assert_equal_vectors(tmp_path / "published", encoded(model))


# --- PyLate --------------------------------------------------------------------------------------------------------

PYLATE = os.environ.get("RKIT_PYLATE") or (sys.executable if importlib.util.find_spec("pylate") else "")
with_pylate = pytest.mark.skipif(not PYLATE, reason="PyLate is not installed; RKIT_PYLATE names a Python that has it")
_PROGRAM = """
import json, sys
import numpy as np
import torch
from pylate import models

texts, folder, make = json.load(sys.stdin)
if make is not None:
    torch.manual_seed(0)
    model = models.ColBERT(make["model"], device="cpu", embedding_size=16, **make["options"])
    if make["second"]:
        model.append(models.Dense(16, 8, bias=False))
    model.save(folder)
model = models.ColBERT(folder, device="cpu")
vectors = {side: model.encode(some, is_query=side == "query") for side, some in texts.items()}
named = {f"{side}{row}": matrix for side, rows in vectors.items() for row, matrix in enumerate(rows)}
np.savez(folder + "/vectors.npz", **named)
"""


def by_pylate(folder, make=None):
    """Encode the texts in PyLate, with a model that it creates first if `make` is set."""
    task = json.dumps([TEXTS, str(folder), make])
    done = subprocess.run([PYLATE, "-c", _PROGRAM], input=task, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    vectors = np.load(folder / "vectors.npz")
    (folder / "vectors.npz").unlink()
    return {side: [vectors[f"{side}{row}"] for row in range(len(texts))] for side, texts in TEXTS.items()}


@with_pylate
@pytest.mark.slow
@pytest.mark.parametrize("options", LATE)
def test_pylate_opens_the_folder_with_equal_vectors(checkpoint, export, options):
    source = checkpoint("colbert", **options)
    assert_equal_vectors(source, by_pylate(export(source, "pylate")))


@pytest.mark.parametrize("options", LATE)
def test_rkit_opens_its_export_to_pylate_with_equal_vectors(checkpoint, export, options):
    source = checkpoint("colbert", **options)
    assert_equal_vectors(export(source, "pylate"), by_rkit(source))


@with_pylate
@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "second"),
    [
        ({}, True),
        ({"bias": True, "query_length": 12}, True),
        ({"do_query_expansion": False, "query_prefix": "", "document_prefix": "[unused1]"}, False),
        ({"attend_to_expansion_tokens": True, "skiplist_words": ["the"]}, False),
    ],
)
def test_pylate_models_are_read(tiny_model, tmp_path, options, second):
    """Markers, lengths, masks, skipped words, and two successive linear layers."""
    make = {"model": str(tiny_model), "options": {"document_length": 100, **options}, "second": second}
    assert_equal_vectors(tmp_path / "published", by_pylate(tmp_path / "published", make))


# --- ONNX ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runtime():
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason="torch's exporter needs onnx and onnxscript")
    return pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")


def by_graph(runtime, folder):
    """Compute the output for each text with onnxruntime and tokenizers, as in the README of the export."""
    from tokenizers import Tokenizer

    described = json.loads((folder / "tokenization.json").read_text())
    outputs = {}
    for side, texts in TEXTS.items():
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.enable_truncation(described[side]["max_length"])
        tokenizer.enable_padding(pad_id=described["padding_id"])
        tokens = tokenizer.encode_batch([described[side]["prefix"] + text for text in texts])
        shared = folder / "model.onnx"
        session = runtime.InferenceSession(str(shared if shared.exists() else folder / f"{side}.onnx"))
        inputs = {
            "input_ids": np.array([text.ids for text in tokens]),
            "attention_mask": np.array([text.attention_mask for text in tokens]),
        }
        outputs[side] = list(session.run(None, inputs)[0])
    return outputs


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
        ("cls", {"separate_towers": True}),
    ],
)
def test_onnxruntime_computes_equal_vectors(runtime, checkpoint, export, pooler, options):
    """Also with poolers that no other library has: a graph can compute any single vector."""
    source = checkpoint(pooler, {"query_prefix": "what "}, **options)
    folder = export(source, "onnx")
    assert not isinstance(folder, str), folder
    assert (folder / "query.onnx").exists() or not options.get("separate_towers")
    assert_equal_vectors(source, by_graph(runtime, folder))


@pytest.mark.slow
def test_quantisation_reports_its_loss(runtime, checkpoint, export, tmp_path):
    """Cosines with the fp32 vectors, and the metrics of an exact search before and after."""
    import retrievalkit_testing as testing

    data = testing.tiny_collection(tmp_path / "countries")
    texts = ["--texts", data.corpus, "--queries", data.queries, "--qrels", data.qrels]
    folder = export(checkpoint("mean"), "onnx", "--quantize", "int8", *texts)
    figures = json.loads((folder / "manifest.json").read_text())["figures"]
    assert 0.9 < figures["int8 cosine with fp32, least"] < figures["int8 cosine with fp32, mean"] < 1
    before, after = map(float, figures["nDCG@10, fp32 -> int8"].split(" -> "))
    assert 0 < before <= 1
    assert after == pytest.approx(before, abs=0.2)
    assert (folder / "model.int8.onnx").stat().st_size < (folder / "model.onnx").stat().st_size
