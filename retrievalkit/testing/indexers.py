"""The conformance check of indexers, against brute force."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrievalkit import registry
from retrievalkit.contracts import Representation
from retrievalkit.errors import UnsupportedError
from retrievalkit.score import scores


def check_indexer(name: str, folder: str | Path, **options: Any) -> None:
    """Check that an indexer of vectors finds what brute force finds, and scores given texts as it does.

    It is given one vector a text, or where it refuses that (UnsupportedError), weights, or both.

    Raises:
        AssertionError: Says what it does wrong.
    """
    refused = []
    for kind, (documents, queries) in _collections().items():
        try:
            _check_index(name, Path(folder) / kind, documents, queries, options)
        except UnsupportedError as error:
            refused.append(f"{kind}: {error}")
        else:
            return
    msg = f"it indexes neither vectors nor weights. {' '.join(refused)}"
    raise AssertionError(msg)


def _collections() -> dict[str, tuple[Representation, Representation]]:
    """50 documents and 4 queries each: vectors, weights, both.

    Weights are multiples of 1/255 and at most 1, so that an index that rounds them to 8 bits loses nothing.
    """
    random = np.random.default_rng(0)
    vectors = [torch.from_numpy(random.standard_normal((rows, 1, 16), dtype=np.float32)) for rows in (50, 4)]
    drawn = [random.integers(0, 256, (rows, 30)) for rows in (50, 4)]
    weights = [torch.from_numpy((one * (one > 127) / 255).astype(np.float32)) for one in drawn]
    return {
        "vectors": (Representation(vectors[0]), Representation(vectors[1])),
        "weights": (Representation(weights=weights[0]), Representation(weights=weights[1])),
        "both": (Representation(vectors[0], weights=weights[0]), Representation(vectors[1], weights=weights[1])),
    }


def _check_index(
    name: str, folder: Path, documents: Representation, queries: Representation, options: Mapping[str, Any]
) -> None:
    import scipy.sparse

    from retrievalkit.data.vectors import VectorStore, VectorWriter

    (folder / "vectors").mkdir(parents=True)
    (folder / "index").mkdir()
    writer = VectorWriter(folder / "vectors")
    names = [f"t{row}" for row in range(len(documents))]
    vectors = None if documents.vectors is None else documents.vectors.numpy()
    weights = None if documents.weights is None else scipy.sparse.csr_matrix(documents.weights.numpy())
    writer.write_shard(0, names, vectors, weights=weights)
    writer.finish()
    registry.create("indexer", name, **options).build(VectorStore(folder / "vectors"), folder / "index")
    indexer = registry.create("indexer", name, **options)
    indexer.open(folder / "index")
    ids, found = indexer.search(queries, 5)
    all_scores = scores(queries, documents)
    expected = all_scores.topk(5)
    for row, texts in enumerate(expected.indices.tolist()):
        assert list(ids[row]) == [names[text] for text in texts], f"query {row}: {ids[row]} is not the exact top 5"
        np.testing.assert_allclose(found[row], expected.values[row].numpy(), rtol=1e-4, atol=1e-5)
    beyond, _ = indexer.search(queries, 2 * len(names))
    assert all(len(set(row)) == len(row) <= len(names) for row in beyond), "with a large k it finds a text twice"
    try:
        given = indexer.scores(queries, [[*names, "nobody"]] * len(queries))
    except UnsupportedError:
        return
    for row, values in enumerate(given):
        np.testing.assert_allclose(values[:-1], all_scores[row].numpy(), rtol=1e-4, atol=1e-5)
        assert np.isnan(values[-1]), "a text that is not in the index has a score, and should have NaN"
