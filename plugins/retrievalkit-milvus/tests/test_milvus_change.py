"""An index of Milvus Lite that is changed: what is found, and what it refuses."""

import numpy as np
import pytest
import torch

from retrievalkit.contracts import Representation
from retrievalkit.errors import UnsupportedError
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.change import change_index
from retrievalkit.indexing.open_indexes import open_index

FORMS = [{"dim": 6}, {"vocabulary": 20}, {"dim": 6, "vocabulary": 20}, {"dim": 6, "m": 3, "varied": True}]


@pytest.fixture(params=FORMS, ids=lambda form: "+".join(form))
def case(request, draw):
    """Forty texts, of which the first thirty are indexed."""
    return draw(40, **request.param)


@pytest.fixture
def index(case, store, tmp_path):
    build_index(store(case.part(range(30))).folder, indexer="milvus", output=tmp_path / "index")
    return tmp_path / "index"


def test_added_and_deleted_texts_are_found_as_by_brute_force(index, case, store, assert_found):
    """One after the other, and by both in one command; a text that comes again takes the place of the old."""
    change_index(index, add=store(case.part([*range(30, 36), 3])).folder)
    held = [*(row for row in range(30) if row != 3), *range(30, 36), 3]
    assert_found(open_index(index).indexer.search(case.queries, 9), case.part(held).expected(9))
    gone = ["t0", "t7", "t33"]
    change_index(index, add=store(case.part(range(36, 40))).folder, delete=gone)
    held = [row for row in [*held, *range(36, 40)] if case.ids[row] not in gone]
    opened, wanted = open_index(index).indexer, case.part(held)
    for k in (1, 9, 50):
        assert_found(opened.search(case.queries, k), wanted.expected(k))
    documents = [["t3", "t36", "t0"]] * len(case.queries)
    for scores in opened.scores(case.queries, documents):
        assert np.isnan(scores).tolist() == [False, False, True]


def test_an_index_on_a_server_takes_no_texts_and_loses_those_that_are_deleted(draw, store, server, tmp_path):
    """Its collection stays as it is."""
    case = draw(12, dim=6)
    build_index(store(case).folder, indexer="milvus", output=tmp_path / "index", options={"uri": server})
    more = store(draw(2, dim=6, seed=1)).folder
    with pytest.raises(UnsupportedError, match="is built from all texts together"):
        change_index(tmp_path / "index", add=more)
    change_index(tmp_path / "index", delete=["t0", "t1"])
    query = Representation(vectors=torch.ones(1, 1, 6))
    (ids,), _ = open_index(tmp_path / "index", options={"uri": server}).indexer.search(query, 12)
    assert sorted(ids) == sorted(set(case.ids) - {"t0", "t1"})
