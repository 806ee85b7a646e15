"""Filters by fields, compared with filters of rows in Python."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrievalkit.data.fields import FIELDS, FieldTable, write_fields
from retrievalkit.errors import OptionError
from retrievalkit.indexing.filter import allowed_texts

ROWS = {
    "a": {"year": 2019, "source": "faq", "tags": ["x", "to do"], "open": True, "date": "2019-02-01", "price": "1.50"},
    "b": {"year": 2020, "source": "blog", "tags": ["y"], "open": False, "date": "2020-05-01", "price": "12"},
    "c": {"year": 2021, "source": "o'clock", "date": "2021-01-01T10:00:00"},
    "d": {"source": "2020"},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return opened(tmp_path_factory.mktemp("table") / FIELDS, ROWS)


def opened(path, rows):
    assert write_fields(path, rows.items())
    return FieldTable(path)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("year >= 2020", "bc"),
        ("year>=2020 and source=blog", "b"),
        ("year < 2020.5", "ab"),
        ("NOT (year = 2019 OR year = 2021)", "bd"),
        ("year = 2019 or year = 2020 and source = faq", "a"),
        ("source in (faq, 'blog')", "ab"),
        ("year in (2019, 2021)", "ac"),
        ("year not in (2019, 2021)", "bd"),
        ('source = "o\'clock"', "c"),
        (r"source = 'o\'clock'", "c"),
        ("source = 2020", "d"),
        ("tags = x", "a"),
        ("tags = 'to do'", "a"),
        ("tags != x", "ab"),
        ("not tags = x", "bcd"),
        ("open = true", "a"),
        ("date >= 2020", "bc"),
        ("date < 2020-06-01", "ab"),
        ("price > 2", "b"),
        ("price > '2'", ""),
        ("price = 1.5", "a"),
        ('"source" = faq', "a"),
    ],
)
def test_texts_pass(table, text, ids):
    assert "".join(allowed_texts(table, text).ids) == ids


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("yaer = 2020", "did you mean 'year'"),
        ("year", "'year' is not part"),
        ("year = ", "'year' is not part"),
        ("m0 and year = 1", "'m0' is not part"),
        ("(year = 1", "not joined"),
        ("year = 1 year = 2", "not joined"),
        ("year = 1 (year = 2)", "not joined"),
        ("year = soon", "numbers"),
        ("open = 1", "true and false"),
        ("year in 2020", "'year' is not part"),
        ("source = 'faq", "'source' is not part"),
        ("", "not joined"),
        ("not " * 20_000 + "year = 1", "not joined"),
        ("(" * 20_000 + "year = 1", "not joined"),
    ],
)
def test_errors_of_filters_are_reported(table, text, problem):
    with pytest.raises(OptionError, match=problem):
        allowed_texts(table, text)


COMPARISONS = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
FIELD_VALUES = {"n": st.integers(0, 4), "t": st.sampled_from("abc"), "l": st.lists(st.sampled_from("abc"), min_size=1)}


@st.composite
def comparisons(draw):
    """A comparison as text, and as a function of a row's fields."""
    name = draw(st.sampled_from("ntl"))
    value = draw(FIELD_VALUES["t" if name == "l" else name])
    sign = draw(st.sampled_from([*COMPARISONS]))

    def passes(row):
        values = row.get(name, [])
        return any(COMPARISONS[sign](one, value) for one in (values if isinstance(values, list) else [values]))

    return f"{name}{sign}{value}", passes


def joined(parts):
    def both(one, two, word):
        passes = (
            (lambda row: one[1](row) and two[1](row)) if word == "and" else (lambda row: one[1](row) or two[1](row))
        )
        return f"({one[0]}) {word} ({two[0]})", passes

    return st.one_of(
        st.builds(both, parts, parts, st.sampled_from(["and", "or"])),
        st.builds(lambda one: (f"not ({one[0]})", lambda row: not one[1](row)), parts),
    )


@given(
    rows=st.lists(st.fixed_dictionaries({}, optional=FIELD_VALUES), min_size=1, max_size=6),
    filter=st.recursive(comparisons(), joined, max_leaves=6),
)
def test_a_filter_passes_the_same_rows_as_python(rows, filter, tmp_path_factory):
    text, passes = filter
    rows = [{"n": 0, "t": "a", "l": ["a"]}, *rows]  # each field is known
    table = opened(tmp_path_factory.mktemp("drawn") / FIELDS, {str(number): row for number, row in enumerate(rows)})
    expected = [str(number) for number, row in enumerate(rows) if passes(row)]
    assert allowed_texts(table, text).ids == expected


def test_facets_count_the_values_of_fields_with_few_values(table):
    facets = table.facets(3)
    assert facets["year"] == [(2019, 1), (2020, 1), (2021, 1)]
    assert facets["tags"] == [("to do", 1), ("x", 1), ("y", 1)]
    assert facets["open"] == [(False, 1), (True, 1)]
    assert "source" not in facets
