"""Real collections, if available: the counts match their READMEs."""

from __future__ import annotations

import re

import pytest

from places import SHARED
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import read_examples
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.data.sources import open_source

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason=f"there are no collections at {SHARED} (RKIT_SHARED_DATA)")


@pytest.mark.parametrize("name", ["cacm", "medquad", "nq-oracle", "squad-open", "vaswani-npl"])
def test_counts(name):
    folder = SHARED / name
    counts = dict(re.findall(r"^- (\w+): (\d+)$", (folder / "README.md").read_text(), re.MULTILINE))
    corpus = open_corpus(folder)
    assert len(corpus) == int(counts["passages"])
    assert len(read_queries(folder)) == int(counts["queries"])
    for split in open_source(folder).splits():
        qrels = read_qrels(folder, split)
        assert sum(map(len, qrels.values())) == int(counts[f"qrels_{split}"])
        assert not corpus.missing({document for judged in qrels.values() for document in judged})


def test_examples():
    examples = read_examples(SHARED / "squad-open", corpus=open_corpus(SHARED / "squad-open"))
    assert len(examples) == 26212
    assert examples.rows[0].answers
