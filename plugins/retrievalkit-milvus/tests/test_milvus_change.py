"""Added and deleted texts in an index of Milvus Lite."""

import numpy as np
import pytest
import torch
from milvus_cases import assert_hits, draw

from retrievalkit.contracts import Representation
from retrievalkit.errors import UnsupportedError
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.change import change_index
from retrievalkit.indexing.open_indexes import open_index

FORMS = [{"dim": 6}, {"vocabulary": 20}, {"dim": 6, "vocabulary": 20}, {"dim": 6, "m": 3, "varied": True}]


@pytest.fixture(params=FORMS, ids=lambda form: "+".join(form))
def case(request):
    """Forty texts; `index` has the first thirty."""
    return draw(40, **request.param)


@pytest.fixture
def index(case, store, tmp_path):
    build_index(store(case.part(range(30))).folder, indexer="milvus", output=tmp_path / "index")
    return tmp_path / "index"


def test_a_changed_index_equals_brute_force(index, case, store):
    """After adding, and after adding and deleting in one command; a text replaces the text with the same id."""
    change_index(index, add=store(case.part([*range(30, 36), 3])).folder)
    rows = [*(row for row in range(30) if row != 3), *range(30, 36), 3]
    assert_hits(open_index(index).indexer.search(case.queries, 9), case.part(rows).expected(9))
    deleted = ["t0", "t7", "t33"]
    change_index(index, add=store(case.part(range(36, 40))).folder, delete=deleted)
    rows = [row for row in [*rows, *range(36, 40)] if case.ids[row] not in deleted]
    opened, changed = open_index(index).indexer, case.part(rows)
    for k in (1, 9, 50):
        assert_hits(opened.search(case.queries, k), changed.expected(k))
    documents = [["t3", "t36", "t0"]] * len(case.queries)
    for scores in opened.scores(case.queries, documents):
        assert np.isnan(scores).tolist() == [False, False, True]


def test_texts_can_be_deleted_from_an_index_on_a_server_but_not_added(store, server, tmp_path):
    """Deleting does not change the collection."""
    case = draw(12, dim=6)
    build_index(store(case).folder, indexer="milvus", output=tmp_path / "index", options={"uri": server})
    more = store(draw(2, dim=6, seed=1)).folder
    with pytest.raises(UnsupportedError, match="is built from all texts together"):
        change_index(tmp_path / "index", add=more)
    change_index(tmp_path / "index", delete=["t0", "t1"])
    query = Representation(vectors=torch.ones(1, 1, 6))
    (ids,), _ = open_index(tmp_path / "index", options={"uri": server}).indexer.search(query, 12)
    assert sorted(ids) == sorted(set(case.ids) - {"t0", "t1"})
