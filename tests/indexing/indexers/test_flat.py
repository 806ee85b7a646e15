"""Options of the flat index; that it is exact, see test_exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import Representation
from retrievalkit.errors import OptionError, UnsupportedError
from vector_folders import drawn, opened, write


def test_precision_changes_the_scores(tmp_path):
    """bf16 scores are rough."""
    store, queries = (
        write(tmp_path / "vectors", vectors=drawn(70)),
        Representation(torch.from_numpy(drawn(5, 1))[:, None]),
    )
    exact = opened("flat", store, tmp_path / "a").search(queries, 5)[1]
    rough = opened("flat", store, tmp_path / "b", precision="bf16").search(queries, 5)[1]
    assert not np.array_equal(exact[0], rough[0])
    np.testing.assert_allclose(exact[0], rough[0], rtol=0.1)


def test_wrong_options_are_refused():
    """A block of nothing, a GPU that is not there, a precision that nobody knows."""
    with pytest.raises(OptionError, match="'block'"):
        registry.create("indexer", "flat", block=0)
    with pytest.raises(OptionError, match="precision"):
        registry.create("indexer", "flat", precision="fp8")
    if not torch.cuda.is_available():
        with pytest.raises(UnsupportedError, match="no GPU"):
            registry.create("indexer", "flat", device="cuda")
