"""Slice max pooling: numbers computed independently of this code, and a reference in plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from retrievalkit_aggretriever.slices import SlicePooling, Table, table

BERT = 30_522
# The dimension and the sign of a term in agg*, and the dimension in agg+.
BY_640 = {0: (0, 1), 101: (50, -1), 102: (51, 1), 1037: (518, -1), 2003: (361, -1), 30521: (540, -1)}
BY_128 = {0: None, 57: None, 58: (0, 1), 101: (21, -1), 102: (22, 1), 103: (22, -1), 2003: (76, -1)}
UNSIGNED = {441: None, 1037: 595, 2003: 281, 30521: 639}


def pooled(values, dimensions, **options):
    values = torch.tensor([values], dtype=torch.float64)
    return SlicePooling(values.shape[1], dimensions, **options)(values)[0].tolist()


class TestGolden:
    """BERT's vocabulary of 30,522 terms, and a small one by hand."""

    @pytest.mark.parametrize(
        ("dimensions", "signed", "columns", "dropped", "padded", "rows"),
        [
            (128, True, 256, 58, 0, 119),
            (256, True, 512, 314, 0, 59),
            (512, True, 1024, 826, 0, 29),
            (640, True, 1280, 0, 198, 24),
            (768, True, 1536, 0, 198, 20),
            (128, False, 128, 58, 0, 238),
            (256, False, 256, 58, 0, 119),
            (512, False, 512, 314, 0, 59),
            (640, False, 640, 442, 0, 47),
            (768, False, 768, 570, 0, 39),
        ],
    )
    def test_table_of_berts_vocabulary(self, dimensions, signed, columns, dropped, padded, rows):
        """The sizes of the paper's Table 7, as the released code slices."""
        table = SlicePooling(BERT, dimensions, signed=signed).table
        assert table == Table(BERT, columns, dropped, padded)
        assert table.rows == rows

    @pytest.mark.parametrize(
        ("dimensions", "signed", "term", "place"),
        [
            *((640, True, term, place) for term, place in BY_640.items()),
            *((128, True, term, place) for term, place in BY_128.items()),
            *((640, False, term, place and (place, 1)) for term, place in UNSIGNED.items()),
        ],
    )
    def test_place_of_a_term(self, dimensions, signed, term, place):
        alone = torch.zeros(1, BERT)
        alone[0, term] = 0.5
        expected = torch.zeros(dimensions)
        if place:
            expected[place[0]] = 0.5 * place[1]
        assert torch.equal(SlicePooling(BERT, dimensions, signed=signed)(alone)[0], expected)

    def test_zeros_are_appended_where_too_many_ids_would_go(self):
        values = [0.1, 0.9, 0.3, 0.2, 0.5, 0.4, 0.8, 0.7, 0.6, 0.05]
        assert table(10, 4, remainder="drop", drop_limit=1) == Table(10, 4, 0, 2)
        assert table(10, 4, remainder="drop", drop_limit=1).rows == 3
        assert pooled(values, 2, remainder="drop", drop_limit=1) == [-0.9, 0.8]
        assert pooled(values, 2, remainder="pad") == [-0.9, 0.8]

    def test_ties_go_to_the_negative_side(self):
        assert pooled([0.5, 0.5, 0.1, 0.2, 0.3, 0.1, 0.0, 0.0], 4) == [-0.5, -0.2, 0.3, 0.0]


def reference(values, dimensions, signed, same_as_star, dropped, order):
    """One dimension at a time, in plain loops; zeros wherever the last row is not full."""
    values = list(values[dropped:])
    if order is not None:
        values = [values[index] for index in order]
    columns = dimensions * (2 if signed or same_as_star else 1)
    padded = len(values) % columns > 0

    def best(column):
        own = values[column::columns]
        full = len(own) == -(-len(values) // columns)
        return max([*own, 0.0] if padded and not full else own)

    if not signed and not same_as_star:
        return [best(column) for column in range(columns)]
    pooled = []
    for dimension in range(dimensions):
        first, second = best(2 * dimension), best(2 * dimension + 1)
        pooled.append((first if first > second else -second) if signed else max(first, second))
    return pooled


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    vocabulary=st.integers(4, 60),
    share=st.floats(0, 1),
    signed=st.booleans(),
    rule=st.sampled_from(["strided", "seeded", "same_as_star"]),
    remainder=st.sampled_from(["auto", "drop", "pad"]),
    drop_limit=st.integers(0, 10),
)
def test_equals_plain_loops(seed, vocabulary, share, signed, rule, remainder, drop_limit):
    random = np.random.default_rng(seed)
    values = random.normal(size=(3, vocabulary))
    dimensions = 1 + int(share * (vocabulary // 2 - 1))
    pooling = SlicePooling(
        vocabulary, dimensions, signed=signed, rule=rule, seed=seed, remainder=remainder, drop_limit=drop_limit
    )
    columns = dimensions * (2 if signed or rule == "same_as_star" else 1)
    rest = vocabulary % columns
    dropped = rest if remainder == "drop" and rest <= drop_limit else 0
    order = None if rule != "seeded" else pooling.order.tolist()
    pooled = pooling(torch.tensor(values)).numpy()
    for row in range(3):
        expected = reference(values[row], dimensions, signed, rule == "same_as_star", dropped, order)
        assert pooled[row].tolist() == expected


def test_auto_drops_of_berts_vocabulary_alone():
    """The unused ids of other vocabularies are unknown, so ids are dropped only on request."""
    assert table(BERT, 256) == Table(BERT, 256, 58, 0)
    assert table(BERT + 1, 256) == Table(BERT + 1, 256, 0, 197)
    assert table(BERT + 1, 256, remainder="drop") == Table(BERT + 1, 256, 59, 0)
    assert table(BERT, 256, remainder="pad") == Table(BERT, 256, 0, 198)
    assert table(BERT, 1280, drop_limit=1_100) == Table(BERT, 1280, 1082, 0)
