"""Damaged files of an index are reported when it is opened, before Java reads them."""

import numpy as np
import pytest

from damage import check_damage
from retrievalkit.indexing.build import build_index


@pytest.fixture
def sources(tmp_path, store, random_weights):
    """Functions that write the input of each indexer, by seed."""

    def corpus(seed):
        path = tmp_path / f"corpus-{seed}.jsonl"
        path.write_text("".join(f'{{"_id": "{n}", "title": "", "text": "text {seed} {n}"}}\n' for n in range(9)))
        return path

    def vectors(seed):
        drawn = np.random.default_rng(seed).standard_normal((20, 1, 8), dtype=np.float32)
        return store(20, vectors=drawn, name=f"vectors-{seed}").folder

    def weights(seed):
        return store(20, weights=random_weights(20, seed=seed), name=f"weights-{seed}").folder

    return {"bm25": corpus, "impact": weights, "lucene_hnsw": vectors}


@pytest.mark.parametrize("name", ["bm25", "impact", "lucene_hnsw"])
def test_damage_is_reported_when_an_index_is_opened(sources, tmp_path, name):
    """The message names the file, in one line."""
    for seed in (1, 2):
        build_index(sources[name](seed), indexer=name, output=tmp_path / f"index-{seed}")
    check_damage(tmp_path / "index-1", tmp_path / "index-2", tmp_path / "damaged", seeds=8)
