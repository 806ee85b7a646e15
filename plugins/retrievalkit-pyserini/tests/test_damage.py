"""Damage to the files of an index is found when it is opened, before Java reads them."""

import numpy as np
import pytest
import retrievalkit_testing as testing

from damage import check_damage
from retrievalkit.indexing.build import build_index


@pytest.fixture
def sources(tmp_path, store, random_weights):
    """For each indexer, what two indexes of different texts are made of."""

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
def test_damage_is_found_when_an_index_is_opened(sources, tmp_path, name):
    """Whichever file it is; the message names it, in one line."""
    for seed in (1, 2):
        build_index(sources[name](seed), indexer=name, output=tmp_path / f"index-{seed}")
    check_damage(tmp_path / "index-1", tmp_path / "index-2", tmp_path / "damaged", seeds=8)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "recall"), [("bm25", 1.0), ("impact", 0.99), ("lucene_hnsw", 0.7)])
def test_the_contract_is_kept(tmp_path, name, recall):
    """In processes of their own too: tests/cli/test_plugin_installation.py. Weights of impact are rounded."""
    testing.check("indexer", name, folder=tmp_path, recall=recall)
