"""A small collection, indexed once for all tests."""

import os

import pytest
from retrievalkit_pyserini.bm25 import BM25

from retrievalkit.data.corpus import Corpus, Passage

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
    """Queries with ties, without hits, empty, and with all that means something in Lucene's query language."""
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
        return pyserini_module("pyserini.search.lucene"), {name for name, _ in set(os.environ.items()) ^ before}


@pytest.fixture(scope="session")
def pyserini(pyserini_import):
    return pyserini_import[0]
