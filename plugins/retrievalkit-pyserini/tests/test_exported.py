"""Exports of `rkit export --to pyserini` open in Pyserini's encoders and FaissSearcher, with equal vectors."""

from __future__ import annotations

import shlex

import numpy as np
import pytest
import retrievalkit_testing as testing
from click.testing import CliRunner
from retrievalkit_pyserini.java import pyserini_module

from retrievalkit.cli import main
from retrievalkit.models.retriever import Retriever

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("pyserini_import")]

QUERIES = ["what is the capital of peru", " ".join(["language"] * 90)]
PASSAGES = [("peru", "the seat of government is a city."), ("rome", " ".join(["the number"] * 90))]
PREFIXES = {"query_prefix": "what is ", "document_prefix": "list: "}


def rkit(*words, code=0):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def checkpoint(tmp_path):
    def save(pooler, encoder=None, **options):
        folder = tmp_path / "checkpoint"
        folder.mkdir()
        lengths = {"query_length": 32, "document_length": 100, "title": "space"}
        separate = options.pop("separate_towers", False)
        Retriever.create(
            testing.tiny_model(tmp_path / "bert"),
            pooler=pooler,
            pooler_options=options,
            encoder_options={**lengths, **(encoder or {})},
            separate_towers=separate,
        ).save(folder)
        return folder

    return save


def flags_of(folder, program):
    line = next(line for line in (folder / "README.md").read_text().splitlines() if f"-m {program}" in line)
    words = shlex.split(line)
    return {word: after for word, after in zip(words, [*words[1:], ""], strict=True) if word.startswith("--")}


@pytest.mark.parametrize(
    ("pooler", "encoder", "options"),
    [
        ("cls", PREFIXES, {}),
        ("mean", {"title": "pair"}, {"normalize": True}),
        ("mean", {}, {"separate_towers": True}),
        ("self_contrastive", {}, {"layers": (1, 2)}),
    ],
)
def test_pyserinis_auto_encoder_gives_equal_vectors(checkpoint, tmp_path, pooler, encoder, options):
    """With the options in the README: pooling, normalisation, prefixes, lengths and titles."""
    module, output = pyserini_module("pyserini.encode"), tmp_path / "exported"
    source = checkpoint(pooler, encoder, **options)
    rkit("export", source, output, "--to", "pyserini")
    ours = Retriever.load(source, "cpu")
    encode, search = flags_of(output, "pyserini.encode"), flags_of(output, "pyserini.search.faiss")
    shape = {"pooling": encode["--pooling"], "l2_norm": "--l2-norm" in encode, "device": "cpu"}
    folders = [output / flags["--encoder"].partition("/")[2] for flags in (encode, search)]
    documents = module.AutoDocumentEncoder(str(folders[0]), prefix=encode.get("--prefix"), **shape)
    titles, texts = zip(*PASSAGES, strict=True)
    representation = documents.encode(
        list(texts), titles=list(titles), max_length=int(encode["--max-length"]), add_sep="--add-sep" in encode
    )
    if "--prefix" not in encode:  # Pyserini puts a prefix between title and text
        expected = ours.encode(PASSAGES, "document").vectors[:, 0]
        np.testing.assert_allclose(representation, expected, rtol=1e-3, atol=1e-4)
    queries = module.AutoQueryEncoder(str(folders[1]), prefix=search.get("--query-prefix"), **shape)
    expected = ours.encode([("", query) for query in QUERIES], "query").vectors[:, 0]
    np.testing.assert_allclose([queries.encode(query) for query in QUERIES], expected, rtol=1e-3, atol=1e-4)


def test_splade_differs_only_by_rounding(checkpoint, tmp_path):
    """Pyserini rounds weights to integers, in steps of 5/256."""
    module, output = pyserini_module("pyserini.encode"), tmp_path / "exported"
    source = checkpoint("dense_sparse", {}, views="sparse", pooled_tokens="all", top_k=None)
    rkit("export", source, output, "--to", "pyserini")
    encoder = module.SpladeDocumentEncoder(str(output / "encoder"), device="cpu")
    (vector,) = encoder.encode(["peru is a city"], max_length=100)
    ours = Retriever.load(source, "cpu")
    weights = ours.encode([("", "peru is a city")], "document").weights[0]
    vocabulary = ours.tower("document").tokenizer.get_vocab()
    expected = {token: round(float(weights[row]) / 5 * 256) for token, row in vocabulary.items() if weights[row] > 0}
    assert vector.keys() == expected.keys()
    assert all(abs(vector[token] - expected[token]) <= 1 for token in vector)


@pytest.mark.parametrize("kind", ["vectors", "flat"])
def test_vectors_open_in_the_faiss_searcher(store, tmp_path, kind):
    random = np.random.default_rng(0)
    written = store(40, vectors=random.normal(size=(40, 1, 8)).astype(np.float32), ids=[f"d {n}" for n in range(40)])
    source = written.folder
    if kind == "flat":
        source = tmp_path / "index"
        rkit("index", written.folder, "--indexer", "flat", "--output", source)
    rkit("export", source, tmp_path / "exported", "--to", "pyserini")
    query = random.normal(size=8).astype(np.float32)

    class Encoder:
        def encode(self, text):
            return query

    searcher = pyserini_module("pyserini.search.faiss").FaissSearcher(str(tmp_path / "exported"), Encoder())
    hits = searcher.search("any", k=10)
    scores = np.concatenate([block.vectors for block in written.blocks(100)]) @ query
    best = np.argsort(-scores)[:10]
    assert [hit.docid for hit in hits] == [f"d {row}" for row in best]
    np.testing.assert_allclose([hit.score for hit in hits], scores[best], rtol=1e-5)
