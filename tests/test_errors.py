"""Errors: what they say, and their exit codes."""

from __future__ import annotations

import pytest

from retrievalkit import errors


def test_the_place_of_a_data_error_reads_as_compilers_write_it():
    """An editor can jump to "file:line:"."""
    error = errors.DataError("no 'text'", file="corpus.jsonl", line=7)
    assert str(error) == "corpus.jsonl:7: no 'text'"
    assert (error.file, error.line) == ("corpus.jsonl", 7)
    assert str(errors.DataError("it is empty", file="corpus.jsonl")) == "corpus.jsonl: it is empty"
    assert str(errors.DataError("there is nothing")) == "there is nothing"


def test_an_unknown_name_offers_nothing_that_looks_different():
    assert str(errors.UnknownNameError("pooler", "zzz", ["mean"])) == "unknown pooler 'zzz'. Known: mean."
    assert str(errors.UnknownNameError("pooler", "zzz", [])) == "unknown pooler 'zzz'."


@pytest.mark.parametrize("value", ["'" + "ab c\n" * 5_000 + "'", "x" * 20_000, repr(["x"] * 5_000), "'" * 20_000])
def test_a_long_value_is_shortened_and_the_advice_stays(value):
    shown = str(errors.OptionError(f"the model's 'epochs' is {value}, and isn't a number. Give one."))
    assert len(shown) < 2_100
    assert shown.startswith("the model's 'epochs' is ")
    assert shown.endswith("and isn't a number. Give one.")


def test_a_message_with_apostrophes_and_short_values_is_whole():
    message = "'a/' isn't the model's, " * 50
    assert str(errors.InputError(message)) == message


def test_a_long_list_of_names_is_cut_and_counted():
    assert errors.shortlist(map(str, range(15)), limit=3) == "0, 1, 2 and 12 more"
    assert errors.shortlist(["a", "b"]) == "a, b"
