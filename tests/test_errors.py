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


def test_an_unknown_name_offers_the_nearest_and_lists_the_known():
    error = errors.UnknownNameError("pooler", "maen", ["mean", "last", "cls"], hint="Look it up.")
    assert str(error) == "unknown pooler 'maen'; did you mean 'mean'? Known: cls, last, mean. Look it up."


def test_an_unknown_name_offers_nothing_that_looks_different():
    assert str(errors.UnknownNameError("pooler", "zzz", ["mean"])) == "unknown pooler 'zzz'. Known: mean."
    assert str(errors.UnknownNameError("pooler", "zzz", [])) == "unknown pooler 'zzz'."


def test_a_missing_dependency_says_how_to_install_it():
    error = errors.MissingDependencyError("pypdfium2", "a PDF document", "retrievalkit[pdf]")
    assert str(error) == "a PDF document needs the package 'pypdfium2'. Install it: pip install retrievalkit[pdf]"
    assert str(errors.MissingDependencyError("peft", "LoRA")).endswith("pip install peft")


@pytest.mark.parametrize("name", ["DataError", "UnknownNameError", "OptionError", "ArtifactError", "UnsupportedError"])
def test_a_users_mistake_has_exit_code_2(name):
    error_class = getattr(errors, name)
    assert issubclass(error_class, errors.InputError)
    assert error_class.exit_code == 2


@pytest.mark.parametrize("value", ["'" + "ab c\n" * 5_000 + "'", "x" * 20_000, repr(["x"] * 5_000), "'" * 20_000])
def test_a_long_value_is_shortened_and_the_advice_stays(value):
    """Values come from files of any size."""
    shown = str(errors.OptionError(f"the model's 'epochs' is {value}, and isn't a number. Give one."))
    assert len(shown) < 2_100
    assert shown.startswith("the model's 'epochs' is ")
    assert shown.endswith("and isn't a number. Give one.")


def test_a_message_with_apostrophes_and_short_values_is_whole():
    message = "'a/' isn't the model's, " * 50
    assert str(errors.InputError(message)) == message


def test_failed_work_has_exit_code_1():
    assert errors.RetrievalkitError.exit_code == 1


def test_a_long_list_of_names_is_cut_and_counted():
    assert errors.shortlist(map(str, range(15)), limit=3) == "0, 1, 2 and 12 more"
    assert errors.shortlist(["a", "b"]) == "a, b"
