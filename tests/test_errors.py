"""Error messages."""

from __future__ import annotations

import pytest

from retrievalkit import errors


def test_data_errors_show_file_and_line_like_compilers():
    """An editor can jump to "file:line:"."""
    error = errors.DataError("no 'text'", file="corpus.jsonl", line=7)
    assert str(error) == "corpus.jsonl:7: no 'text'"
    assert (error.file, error.line) == ("corpus.jsonl", 7)
    assert str(errors.DataError("it is empty", file="corpus.jsonl")) == "corpus.jsonl: it is empty"
    assert str(errors.DataError("there is nothing")) == "there is nothing"


def test_an_unknown_name_suggests_only_similar_names():
    assert str(errors.UnknownNameError("pooler", "zzz", ["mean"])) == "unknown pooler 'zzz'. Known: mean."
    assert str(errors.UnknownNameError("pooler", "zzz", [])) == "unknown pooler 'zzz'."


@pytest.mark.parametrize("value", ["'" + "ab c\n" * 5_000 + "'", "x" * 20_000, repr(["x"] * 5_000), "'" * 20_000])
def test_long_values_are_shortened(value):
    shown = str(errors.OptionError(f"the model's 'epochs' is {value}, and isn't a number. Give one."))
    assert len(shown) < 2_100
    assert shown.startswith("the model's 'epochs' is ")
    assert shown.endswith("and isn't a number. Give one.")


def test_messages_with_short_values_are_not_shortened():
    message = "'a/' isn't the model's, " * 50
    assert str(errors.InputError(message)) == message


def test_long_lists_of_names_are_shortened():
    assert errors.shortlist(map(str, range(15)), limit=3) == "0, 1, 2 and 12 more"
    assert errors.shortlist(["a", "b"]) == "a, b"
