"""Filters by fields, compared with filters of rows in plain Python."""

from __future__ import annotations

import operator
import random
import re
from calendar import monthrange
from datetime import UTC, datetime, time

import pytest

from retrievalkit.data.fields import FIELDS, FieldTable, write_fields
from retrievalkit.errors import OptionError
from retrievalkit.indexing.filter import passing_texts

ROWS = {
    "a": {"year": 2019, "source": "faq", "tags": ["x", "to do"], "open": True, "date": "2019-02-01", "price": "1.50"},
    "b": {"year": 2020, "source": "blog", "tags": ["y"], "open": False, "date": "2020-05-01", "price": "12"},
    "c": {"year": 2021, "source": "o'clock", "date": "2021-01-01T10:00:00", "has": 1, "at": "09:30:00"},
    "d": {"source": "2020", "year": "n/a", "in": "x"},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return opened(tmp_path_factory.mktemp("table") / FIELDS, ROWS)


def opened(path, rows):
    write_fields(path, ((name, "", fields) for name, fields in rows.items()))
    return FieldTable(path)


def passing(rows, filter, tmp_path):
    """Return the ids of rows that pass a filter, joined."""
    return "".join(passing_texts(opened(tmp_path / FIELDS, rows), filter).texts.ids)


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
        ("open not in (true)", "b"),
        ("not open in (true)", "bcd"),
        ("tags not in (x)", "b"),
        ('source = "o\'clock"', "c"),
        (r"source = 'o\'clock'", "c"),
        ("source = 2020", "d"),
        ("tags = x", "a"),
        ("tags = 'to do'", "a"),
        ("tags != x", "ab"),
        ("not tags = x", "bcd"),
        ("open = true", "a"),
        ("date >= 2020", "bc"),
        ("date <= 2021-01", "abc"),
        ("date < 2020-06-01", "ab"),
        ("date <= 2021-01-01", "abc"),
        ("date = 2021-01-01", "c"),
        ("date = '2021-01-01'", ""),
        ("date = 2021-01-01T11:00:00+01:00", "c"),
        ("at = 09:30", "c"),
        ("price > 2", "b"),
        ("price > '2'", ""),
        ("price = 1.5", ""),
        ("price = 1.50", "a"),
        ("price <= 1.5", "a"),
        ('"source" = faq', "a"),
        ("has year", "abcd"),
        ("not has tags", "cd"),
        ("has 'tags' and has open", "ab"),
        ("has = 1 or 'in' = x", "cd"),
        ("has has", "c"),
        ("has not in (2)", "c"),
        ("year = " + "9" * 400, ""),
        ("year < " + "9" * 5_000, "abc"),
        ("year > -1e400", "abc"),
        ("year = 02020", ""),
        ("year = 2_020", ""),
        ("year = ٢٠٢٠", ""),
        ("year = 0x7e4", ""),
        ("year = nan", ""),
        ("source = '\0'", ""),
    ],
)
def test_texts_pass(table, text, ids):
    assert "".join(passing_texts(table, text).texts.ids) == ids


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("yaer = 2020", "did you mean 'year'"),
        ("has yaer", "did you mean 'year'"),
        ("year", "'year' is not part"),
        ("year = ", "'year' is not part"),
        ("has", "'has' is not part"),
        ("source in ()", "'source' is not part"),
        ("m0 and year = 1", "'m0' is not part"),
        ("(year = 1", "not joined"),
        ("year = 1 year = 2", "not joined"),
        ("year = 1 (year = 2)", "not joined"),
        ("year in 2020", "'year' is not part"),
        ("source = 'faq", "'source' is not part"),
        ("", "not joined"),
        ("\0", "not part"),
        ("not " * 20_000 + "year = 1", "not joined"),
        ("(" * 20_000 + "year = 1", "not joined"),
        ("x" * 100_000, "not part"),
        ("x" * 100_000 + " = 1", "no field"),
        ("year = '" + "\\'" * 100_000, "not part"),
    ],
)
def test_errors_of_filters_are_reported(table, text, problem):
    with pytest.raises(OptionError, match=problem):
        passing_texts(table, text)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("year > 2000", "1 of 4"),
        ("year > 'a'", "3 of 4"),
        ("price > 1", None),
        ("date > 2020-01-01", None),
        ("open > 1", "2 of 2"),
        ("source >= 2020", "3 of 4"),
        ("year = soon", None),
        ("open = soon", "2 of 2"),
        ("open = '1'", "2 of 2"),
        ("open != soon", None),
    ],
)
def test_values_that_cannot_be_compared_are_counted(table, text, counts):
    notes = passing_texts(table, text).notes
    assert len(notes) == (counts is not None)
    assert counts is None or counts in notes[0]


def test_codes_are_compared_by_their_characters(tmp_path):
    rows = {
        "a": {"zip": "02134", "hash": "12e4", "version": "1.10"},
        "b": {"zip": "2134", "hash": "120000", "version": "1.1"},
        "c": {"zip": 2134, "hash": 120000, "version": 1.1},
    }
    for filter, ids in (
        ("zip = 02134", "a"),
        ("zip = 2134", "bc"),
        ("zip = '2134'", "b"),
        ("zip < 3000", "abc"),
        ("hash = 12e4", "ac"),
        ("version = 1.10", "ac"),
        ("version = '1.10'", "a"),
    ):
        assert passing(rows, filter, tmp_path) == ids, filter


def test_numbers_are_compared_exactly(tmp_path):
    """Integers and floats beyond 2^53, and integers beyond 64 bits."""
    numbers = [2**53, 2**53 + 1, float(2**53), -(2**63), 2**63, 10**300, 1e300, -5, 0.1]
    rows = {str(place): {"n": number} for place, number in enumerate(numbers)}
    table = opened(tmp_path / FIELDS, rows)
    large = ["9007199254740992", "9007199254740993", "-9223372036854775808", "9223372036854775808", "1" + "0" * 300]
    for literal in (*large, "1e300", "0.1", "-5.5", "1" + "0" * 309, "-1e999"):
        value = int(literal) if literal.strip("-").isdigit() else float(literal)
        for sign in ("=", "!=", "<", "<=", ">", ">="):
            expected = [str(place) for place, number in enumerate(numbers) if SIGNS[sign](number, value)]
            assert passing_texts(table, f"n {sign} {literal}").texts.ids == expected, (sign, literal)


SIGNS = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
WORDS = ["faq", "Faq", "n/a", "true", "TRUE", "02134", "2134", "1.10", "1.1", "1e3", ".5", "-7", "2024", "2024-05", "é",
         "2024-05-01", "2024-05-01T10:00", "2024-05-01T23:30:00-05:00", "2024-05-02T04:30:00Z", "09:30",
         "2024-02-30", "9999-12-31", "09:30:00", "25:00", "a b", 'q"q', "back\\slash", "٣", "00", "+5", "in",
         "\U0001f600"]  # fmt: skip
NUMBERS = [0, 1, -7, 5, 1000, 2024, 2134, 1.1, 0.5, -0.0, 2134.0, 1e300, 2**63, -(2**70)]
SCALARS = [*WORDS, *NUMBERS, True, False]


def quoted(text):
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def number_in(text, leading_zeros):
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII) is None:
        return None
    if not leading_zeros and re.match(r"[+-]?0\d", text):
        return None
    return int(text) if re.fullmatch(r"[+-]?\d+", text, re.ASCII) else float(text)


def moments_in(text, years):
    """The first and last moment of a date or time in ISO format, in UTC, and whether it is at least a day."""
    match = re.fullmatch(r"(\d{4})(-\d\d)?(-\d\d)?(T.*)?", text, re.ASCII)
    if match is None or not (match[2] or years) or (match[4] and not match[3]):
        return None
    try:
        first = datetime.fromisoformat(f"{match[1]}{match[2] or '-01'}{match[3] or '-01'}{match[4] or ''}")
    except ValueError:
        return None
    if match[4]:
        first = (first if first.tzinfo else first.replace(tzinfo=UTC)).astimezone(UTC).replace(tzinfo=None)
        return first, first, True
    last = datetime.combine(first, time.max)
    if not match[3]:
        last = last.replace(month=last.month if match[2] else 12)
        last = last.replace(day=monthrange(last.year, last.month)[1])
    return first, last, bool(match[3])


def clock_in(text):
    try:
        return time.fromisoformat(text) if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text, re.ASCII) else None
    except ValueError:
        return None


def equal(value, literal):
    """The rule of docs/how-to/filter.md for `=`; a literal is a text as it is written in a filter."""
    plain = literal[0] == '"'
    text = re.sub(r"\\(.)", r"\1", literal[1:-1]) if plain else literal
    if isinstance(value, str):
        if value == text or plain:
            return value == text
        period, moment = moments_in(text, years=False), moments_in(value, years=False)
        if period and moment and period[2]:
            return period[0] <= moment[0] <= period[1]
        return clock_in(text) is not None and clock_in(text) == clock_in(value)
    if isinstance(value, bool):
        return not plain and {"true": True, "false": False}.get(text.lower()) == value
    return not plain and number_in(text, leading_zeros=False) == value


def ordered(value, sign, literal):
    """The rule for < <= > >=: None for values that cannot be compared."""
    compare = SIGNS[sign]
    plain = literal[0] == '"'
    text = re.sub(r"\\(.)", r"\1", literal[1:-1]) if plain else literal
    number, period = number_in(text, leading_zeros=False), moments_in(text, years=True)
    if isinstance(value, bool):
        return None
    if not isinstance(value, str):
        return None if plain or number is None else compare(value, number)
    if plain or (number is None and period is None and clock_in(text) is None):
        return compare(value, text)
    if number is not None and (other := number_in(value, leading_zeros=True)) is not None:
        return compare(float(other), number)
    if period is not None and (moment := moments_in(value, years=False)) is not None:
        return compare(moment[0], period[sign in ("<=", ">")])
    if clock_in(text) is not None and clock_in(value) is not None:
        return compare(clock_in(value), clock_in(text))
    return None


def comparison(random):
    """A comparison as text, and as a function of a row's fields."""
    name = random.choice("abl")
    literals = [literal(random) for _ in range(random.randint(1, 3))]
    sign = random.choice([*SIGNS, "in", "not in", "has"])

    def passes(value):
        if sign in ("<", "<=", ">", ">="):
            return ordered(value, sign, literals[0])
        if sign in ("in", "not in"):
            return any(equal(value, other) for other in literals)
        return sign == "has" or equal(value, literals[0]) == (sign == "=")

    written = {"in": f" in ({', '.join(literals)})", "not in": f" not in ({','.join(literals)})"}
    text = f"has {name}" if sign == "has" else f"{name}{written.get(sign, sign + literals[0])}"
    if sign == "not in":
        return text, lambda row: name in row and not any(map(passes, values_of(row[name])))
    return text, lambda row: any(map(passes, values_of(row.get(name))))


def literal(random):
    value = random.choice(SCALARS)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    bare = re.fullmatch(r"""[^\s()=!<>,'"]+""", text)
    return text if bare and random.random() < 0.8 else quoted(text)


def values_of(value):
    return [] if value is None else value if isinstance(value, list) else [value]


def expression(random, depth):
    text, passes = comparison(random)
    for _ in range(depth):
        other, also = comparison(random)
        before, how = passes, random.choice(["and", "or", "not"])
        if how == "not":
            text, passes = f"not ({text})", lambda row, before=before: not before(row)
        elif how == "and":
            text, passes = f"({text}) and {other}", lambda row, a=before, b=also: a(row) and b(row)
        else:
            text, passes = (
                f"{other} or {text}" if depth == 1 else f"({other}) or ({text})",
                (lambda row, a=before, b=also: a(row) or b(row)),
            )
    return text, passes


@pytest.mark.parametrize("seed", range(8))
def test_a_filter_passes_the_same_rows_as_plain_python(seed, tmp_path):
    """Values of all types, mixed and in lists; common and rare fields."""
    draw = random.Random(seed)
    rows = []
    for _ in range(60):
        row = {name: draw.choice(SCALARS) for name in "ab" if draw.random() < (0.7 if name == "a" else 0.1)}
        rows.append(row | ({"l": draw.choices(SCALARS, k=draw.randint(1, 4))} if draw.random() < 0.4 else {}))
    rows.append({"a": 1, "b": "x", "l": ["x"]})  # each field is known
    table = opened(tmp_path / FIELDS, {str(number): row for number, row in enumerate(rows)})
    assert [sorted(map(repr, row.items())) for *_, row in table.rows()] == [
        sorted(map(repr, row.items())) for row in rows
    ]
    for _ in range(60):
        text, passes = expression(draw, draw.randint(0, 3))
        expected = [str(number) for number, row in enumerate(rows) if passes(row)]
        assert passing_texts(table, text).texts.ids == expected, text


def test_facets_count_the_values_of_fields_with_few_values(table):
    facets = table.facets(3)
    assert facets["tags"] == [("to do", 1), ("x", 1), ("y", 1)]
    assert facets["open"] == [(False, 1), (True, 1)]
    assert "source" not in facets
    assert table.facets(4)["year"] == [(2019, 1), (2020, 1), (2021, 1), ("n/a", 1)]


def test_a_number_and_the_text_written_like_it_are_one_facet(tmp_path):
    """A filter with the value, as of a check box, passes both."""
    years = [2019, "2019", 2020, True, "true"]
    table = opened(tmp_path / FIELDS, {str(place): {"year": year} for place, year in enumerate(years)})
    assert table.facets(5)["year"] == [(2019, 2), (True, 2), (2020, 1)]
    assert passing_texts(table, "year in (2019)").texts.ids == ["0", "1"]
