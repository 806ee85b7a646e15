"""Models go to sentence-transformers and come back with equal vectors."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from peer_vectors import PARTS, TEXTS, assert_equal_vectors
from retrievalkit.model.retriever import Retriever, open_retriever

pytestmark = pytest.mark.filterwarnings("ignore")

PREFIXES = {"query_prefix": "query: ", "document_prefix": "passage: "}
POOLERS = {
    "cls": ("cls", {}),
    "mean, normalised": ("mean", {"normalize": True}),
    "max": ("max", {}),
    "last": ("last", {}),
    "joined and projected": (
        "projected",
        {"pooling": ("mean", "cls"), "dimensions": (24, 8), "activations": ("tanh", "identity"), "normalize": True},
    ),
    "in the older order": ("projected", {"pooling": ("cls", "max", "weighted_mean")}),
    "a vector that only training has others beside": ("self_contrastive", {"layers": (1, 2)}),
    "a linear layer of a plugin": ("dense_sparse", {"views": "dense", "dimension": 16}),
}


@pytest.fixture(scope="module")
def library():
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    pytest.importorskip("sentence_transformers.models")  # release 6 does not import it by itself
    return library


def encoded(model):
    return {
        "query": list(model.encode_query(TEXTS["query"])),
        "document": list(model.encode_document(TEXTS["document"])),
    }


@pytest.mark.parametrize("name", POOLERS)
def test_the_library_opens_the_folder_with_equal_vectors(library, checkpoint, export, name):
    """With prompts, and with a length of each side."""
    pooler, options = POOLERS[name]
    source = checkpoint(pooler, PREFIXES, **options)
    folder = export(source, "sentence-transformers")
    assert_equal_vectors(source, encoded(library.SentenceTransformer(str(folder), device="cpu")))


def test_lora_goes_along_in_the_weights(library, checkpoint, export):
    source = checkpoint("mean", {"lora_rank": 2})
    retriever = Retriever.load(source, "cpu")
    with torch.no_grad():
        for name, parameter in retriever.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    retriever.save(source)
    (source / "manifest.json").unlink(missing_ok=True)
    folder = export(source, "sentence-transformers")
    assert_equal_vectors(source, encoded(library.SentenceTransformer(str(folder), device="cpu")))


@pytest.mark.parametrize("name", POOLERS)
def test_what_was_exported_is_read_again(checkpoint, export, name):
    """Without the library, by our own reader."""
    pooler, options = POOLERS[name]
    source = checkpoint(pooler, PREFIXES, **options)
    assert_equal_vectors(export(source, "sentence-transformers"), by_us(source))


def by_us(source):
    ours = open_retriever(source).to("cpu")
    return {side: ours.encode(texts, side).vectors[:, 0] for side, texts in PARTS.items()}


@pytest.mark.parametrize("title", ["pair", "none"])
def test_titles_are_encoded_as_they_were_before_an_export(library, checkpoint, export, title):
    """Our reader joins them as the checkpoint did; the library still opens the folder, and takes texts without them."""
    source = checkpoint("mean", {"title": title})
    folder = export(source, "sentence-transformers")
    assert_equal_vectors(folder, by_us(source))
    query = library.SentenceTransformer(str(folder), device="cpu").encode_query(TEXTS["query"])
    np.testing.assert_allclose(query, by_us(source)["query"], rtol=1e-4, atol=1e-5)


def test_a_checkpoint_that_starts_from_such_a_model_joins_titles_in_its_way(library, published, tmp_path):
    """A named pooler starts a model of our own, with title and text as a pair."""
    folder, model = published(library.models.Pooling(32), similarity_fn_name="dot")
    for pooler, title in ((None, "space"), ("mean", "pair")):
        (tmp_path / title).mkdir()
        Retriever.create(folder, pooler=pooler).save(tmp_path / title)
        assert Retriever.load(tmp_path / title, "cpu").tower("document").title == title
    assert_equal_vectors(tmp_path / "space", encoded(model))


def test_one_length_for_both_sides(checkpoint, export):
    """As releases of the library before 6 want it: they stop at a length of each side."""
    source = checkpoint("mean")
    settings = json.loads(
        (export(source, "sentence-transformers", "--length", 50) / "sentence_bert_config.json").read_text()
    )
    assert settings == {"max_seq_length": 50, "do_lower_case": False}


@pytest.mark.parametrize(
    ("pooler", "options", "reason"),
    [
        ("multi_layer", {"layers": (1, 2)}, "'multi_layer' makes several vectors of a document"),
        ("layer_average", {"layers": (1, 2)}, "'layer_average' reads the layers 1 of a document"),
        ("mean", {"layer": 1}, "'mean' reads the layers 1 of a query"),
        ("aggretriever", {"cls_dim": 8, "agg_dim": 16}, "in a way that no module there has"),
        ("colbert", {}, "'colbert' makes several vectors of a query"),
        ("dense_sparse", {"top_k": 20}, "makes weights over the vocabulary beside vectors"),
        ("dense_sparse", {"top_k": 20, "views": "sparse"}, "makes weights over the vocabulary."),
    ],
)
def test_what_modules_cannot_say_is_refused(checkpoint, export, pooler, options, reason):
    assert reason in export(checkpoint(pooler, **options), "sentence-transformers")


def test_two_encoders_are_refused(checkpoint, export):
    source = checkpoint("mean", separate_towers=True)
    assert "an encoder for queries and another one for documents" in export(source, "sentence-transformers")


@pytest.fixture
def published(library, tiny_model, tmp_path):
    """Saves a model of the library made of modules above the tiny model."""

    def save(*modules, length=40, **options):
        first = library.models.Transformer(tiny_model)
        model = library.SentenceTransformer(modules=[first, *modules], device="cpu", **options)
        model.max_seq_length = length
        model.save(str(tmp_path / "published"))
        return tmp_path / "published", model

    return save


def test_projections_and_several_poolings_are_taken(library, published):
    """Poolings side by side, linear layers with and without bias and function, prompts and the length."""
    models, identity = library.models, torch.nn.Identity()
    layers = [models.Dense(64, 24), models.Dense(24, 8, bias=False, activation_function=identity), models.Normalize()]
    prompts = {"query": "query: ", "document": "passage: "}
    folder, model = published(models.Pooling(32, pooling_mode=("mean", "max")), *layers, prompts=prompts)
    assert_equal_vectors(folder, encoded(model))


def test_every_pooling_is_taken(library, published):
    modes = ("weightedmean", "mean_sqrt_len_tokens", "lasttoken", "cls", "max", "mean")
    folder, model = published(library.models.Pooling(32, pooling_mode=modes), similarity_fn_name="dot")
    assert_equal_vectors(folder, encoded(model))


def test_a_projection_survives_training_and_search(library, published, tmp_path):
    """A checkpoint that starts from such a model has its weights, not random ones."""
    models = library.models
    folder, _ = published(models.Pooling(32), models.Dense(32, 8))
    (tmp_path / "saved").mkdir()
    made = Retriever.create(folder)
    made.save(tmp_path / "saved")
    again = Retriever.from_description(made.description, "cpu")
    expected = made.encode([("", "peru")], "query").vectors
    for one in (Retriever.load(tmp_path / "saved", "cpu"), again):
        np.testing.assert_allclose(one.encode([("", "peru")], "query").vectors, expected, rtol=1e-5, atol=1e-6)
