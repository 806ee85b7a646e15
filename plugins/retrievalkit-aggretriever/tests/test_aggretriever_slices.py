"""Slice max pooling: numbers worked out apart from this code, an independent reference, and where the gradient goes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from retrievalkit_aggretriever.slices import SlicePooling, Table, signed_maxima, table

BERT = 30_522


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
        made = SlicePooling(BERT, dimensions, signed=signed).table
        assert made == Table(BERT, columns, dropped, padded)
        assert made.rows == rows

    @pytest.mark.parametrize(
        ("dimensions", "term", "place"),
        [
            (640, 0, (0, 1)),
            (640, 101, (50, -1)),
            (640, 102, (51, 1)),
            (640, 1037, (518, -1)),
            (640, 2003, (361, -1)),
            (640, 30521, (540, -1)),
            (128, 0, None),
            (128, 57, None),
            (128, 58, (0, 1)),
            (128, 101, (21, -1)),
            (128, 102, (22, 1)),
            (128, 103, (22, -1)),
            (128, 2003, (76, -1)),
        ],
    )
    def test_place_of_a_term(self, dimensions, term, place):
        """Dimension and sign of a term in agg*."""
        pooling = SlicePooling(BERT, dimensions)
        assert pooling.place(term) == place
        alone = torch.zeros(1, BERT)
        alone[0, term] = 0.5
        expected = torch.zeros(dimensions)
        if place:
            expected[place[0]] = 0.5 * place[1]
        assert torch.equal(pooling(alone)[0], expected)

    @pytest.mark.parametrize(("term", "dimension"), [(441, None), (442, 0), (1037, 595), (2003, 281), (30521, 639)])
    def test_place_of_a_term_without_sign(self, term, dimension):
        """agg+ of 640 dimensions."""
        place = SlicePooling(BERT, 640, signed=False).place(term)
        assert place == (None if dimension is None else (dimension, 1))

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
        found = values[column::columns]
        full = len(found) == -(-len(values) // columns)
        return max([*found, 0.0] if padded and not full else found)

    if not signed and not same_as_star:
        return [best(column) for column in range(columns)]
    made = []
    for dimension in range(dimensions):
        first, second = best(2 * dimension), best(2 * dimension + 1)
        made.append((first if first > second else -second) if signed else max(first, second))
    return made


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
    """An independent reference on random values of both signs, sizes, and rules."""
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
    made = pooling(torch.tensor(values)).numpy()
    for row in range(3):
        expected = reference(values[row], dimensions, signed, rule == "same_as_star", dropped, order)
        assert made[row].tolist() == expected


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("rule", ["strided", "seeded", "same_as_star"])
def test_every_term_is_where_place_says(signed, rule):
    """A term with the only value there is moves the dimension and sign that `place` names, and no other."""
    pooling = SlicePooling(45, 7, signed=signed, rule=rule, seed=3, remainder="drop", drop_limit=3)
    for term in range(45):
        alone = torch.zeros(1, 45)
        alone[0, term] = 2.0
        place = pooling.place(term)
        expected = torch.zeros(7)
        if place:
            expected[place[0]] = 2.0 * place[1]
        assert torch.equal(pooling(alone)[0], expected), term
    assert [pooling.place(term) is None for term in range(45)] == [term < pooling.table.dropped for term in range(45)]


class TestSeeded:
    """A random order of the vocabulary."""

    def test_dropped_ids_are_the_first_still(self):
        """Not random ones: what is dropped are the unused ids of BERT's vocabulary."""
        pooling = SlicePooling(45, 7, rule="seeded", remainder="drop")
        assert pooling.table.dropped == 3
        assert [term for term in range(45) if pooling.place(term) is None] == [0, 1, 2]


def test_same_as_star_is_the_size_of_agg_star():
    """The paper's definition, |agg*| = agg+, which the released slices of agg+ do not keep."""
    values = torch.rand(4, 50, generator=torch.Generator().manual_seed(0))
    star = SlicePooling(50, 5)(values).abs()
    assert torch.equal(SlicePooling(50, 5, signed=False, rule="same_as_star")(values), star)
    assert not torch.equal(SlicePooling(50, 5, signed=False)(values), star)


def test_negative_values_keep_the_rule():
    """The sign of a pair is that of its slice, also where values are below 0 (the released code's raw mode)."""
    assert signed_maxima(torch.tensor([[-0.1, -0.2, -0.4, -0.3]])).tolist() == [
        [pytest.approx(-0.1), pytest.approx(0.3)]
    ]


def test_auto_drops_of_berts_vocabulary_alone():
    """Of another vocabulary nobody knows which ids are unused, so none is lost unless asked."""
    assert table(BERT, 256) == Table(BERT, 256, 58, 0)
    assert table(BERT + 1, 256) == Table(BERT + 1, 256, 0, 197)
    assert table(BERT + 1, 256, remainder="drop") == Table(BERT + 1, 256, 59, 0)
    assert table(BERT, 256, remainder="pad") == Table(BERT, 256, 0, 198)
    assert table(BERT, 1280, drop_limit=1_100) == Table(BERT, 1280, 1082, 0)
