"""Real collections, where this machine has them: as many of everything as their own READMEs say."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import read_examples
from retrievalkit.data.qrels import read_qrels, splits
from retrievalkit.data.queries import read_queries

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("RKIT_SHARED_DATA") or ROOT.parent / "shared" / "data")

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"there are no collections at {DATA} (RKIT_SHARED_DATA)")


@pytest.mark.parametrize("name", ["cacm", "medquad", "nq-oracle", "squad-open", "vaswani-npl"])
def test_counts(name):
    folder = DATA / name
    counts = dict(re.findall(r"^- (\w+): (\d+)$", (folder / "README.md").read_text(), re.MULTILINE))
    corpus = open_corpus(folder)
    assert len(corpus) == int(counts["passages"])
    assert len(read_queries(folder)) == int(counts["queries"])
    for split in splits(folder):
        qrels = read_qrels(folder, split)
        assert sum(map(len, qrels.values())) == int(counts[f"qrels_{split}"])
        assert not corpus.missing({one for judged in qrels.values() for one in judged})


def test_examples():
    examples = read_examples(DATA / "squad-open", corpus=open_corpus(DATA / "squad-open"))
    assert len(examples) == 26212
    assert examples.rows[0].answers
