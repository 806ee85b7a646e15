"""A small collection, indexed once for all tests, and folders of vectors and weights."""

import os
from urllib.error import URLError

import numpy as np
import pytest
import scipy.sparse
from retrievalkit_pyserini.bm25 import BM25

from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.vectors import VectorStore, VectorWriter

ADJECTIVES = ("red", "green", "blue", "loud", "quiet", "wooden", "frozen", "ancient", "broken", "gentle")
NOUNS = ("river", "engine", "violin", "harbour", "candle", "glacier", "market", "sparrow", "ladder", "theorem")
VERBS = ("carries", "crosses", "repairs", "watches", "hides", "answers", "follows", "measures", "paints", "forgets")


def _passages(count=400):
    """Sentences of eleven to fourteen words, with some texts twice under two ids."""
    for number in range(count):
        a, b, c = number % 10, number // 10 % 10, number // 40 % 10
        text = f"The {ADJECTIVES[a]} {NOUNS[b]} {VERBS[c]} the {NOUNS[a]} near the {ADJECTIVES[b]} {NOUNS[c]}"
        yield Passage(f"p{number:04d}", "" if number % 3 else f"On the {NOUNS[c]}", text)


QUERIES = [
    "red river",
    "which engine repairs the violin near the harbour?",
    "frozen glacier glacier theorem",
    "paints",
    "the",
    "",
    "zebra",
    'AND OR NOT "violin" +candle -market (sparrow) *:* lad?er~2 id:p0001 \\ /x/ [a TO b]',
]


@pytest.fixture(scope="session")
def passages():
    return list(_passages())


@pytest.fixture(scope="session")
def corpus(passages):
    return Corpus.of(passages)


@pytest.fixture(scope="session")
def queries():
    return QUERIES


@pytest.fixture(scope="session")
def folder(tmp_path_factory, corpus):
    folder = tmp_path_factory.mktemp("bm25")
    BM25().build(corpus, folder)
    return folder


@pytest.fixture(scope="session")
def index(folder):
    index = BM25()
    index.open(folder)
    return index


@pytest.fixture(scope="session")
def pyserini_import():
    """Pyserini's own searchers, imported without a key for OpenAI, and the variables that the import has changed."""
    from retrievalkit_pyserini.java import environment, pyserini_module

    with environment(OPENAI_API_KEY=None):
        before = set(os.environ.items())
        try:
            module = pyserini_module("pyserini.search.lucene")
        except URLError as error:
            pytest.skip(f"this version of Pyserini fetches a list of indexes while it is imported: {error}")
        return module, {name for name, _ in set(os.environ.items()) ^ before}


@pytest.fixture(scope="session")
def pyserini(pyserini_import):
    return pyserini_import[0]


@pytest.fixture
def store(tmp_path):
    def write(texts, *, vectors=None, counts=None, weights=None, ids=None, name="vectors"):
        folder = tmp_path / name
        folder.mkdir()
        writer = VectorWriter(folder)
        ids = ids or [f"t{row}" for row in range(texts)]
        parts = [(0, texts)] if counts is not None or texts < 2 else [(0, texts // 2), (texts // 2, texts)]
        for number, (start, end) in enumerate(parts):
            part = slice(start, end) if counts is None else slice(None)
            writer.write_shard(
                number,
                ids[start:end],
                None if vectors is None else vectors[part],
                counts=counts,
                weights=None if weights is None else scipy.sparse.csr_matrix(weights)[start:end],
            )
        writer.finish()
        return VectorStore(folder)

    return write


@pytest.fixture
def random_weights():
    def draw(texts, vocabulary=200, seed=0):
        generator = np.random.default_rng(seed)
        weights = generator.gamma(1.5, 0.6, (texts, vocabulary)).astype(np.float32)
        return weights * (generator.random((texts, vocabulary)) < 0.1)

    return draw
