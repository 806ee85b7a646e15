"""Local plugin for tests: an indexer of texts, which counts the words that a query and a text share."""

from __future__ import annotations

import json

import numpy as np

from retrievalkit import hookimpl
from retrievalkit.contracts import Indexer


class Overlap(Indexer):
    """Indexer whose scores are numbers of shared words.

    Args:
        lower: Ignore case.
    """

    indexes = "texts"

    def __init__(self, *, lower: bool = True) -> None:
        self.lower = lower

    def build(self, source, index_dir):
        texts = {passage.id: f"{passage.title} {passage.text}" for passage in source}
        (index_dir / "texts.json").write_text(json.dumps(texts))
        return {"texts": len(texts)}

    def open(self, index_dir):
        self.texts = json.loads((index_dir / "texts.json").read_text())

    def search(self, queries, k):
        split = (lambda text: set(text.lower().split())) if self.lower else (lambda text: set(text.split()))
        results = []
        for query in queries:
            scored = [(-len(split(query) & split(text)), name) for name, text in self.texts.items()]
            results.append([(name, -score) for score, name in sorted(scored)[:k] if score])
        return [[name for name, _ in hits] for hits in results], [
            np.float32([score for _, score in hits]) for hits in results
        ]


@hookimpl
def register_indexers(register):
    register("overlap", "overlap_plugin:Overlap")
