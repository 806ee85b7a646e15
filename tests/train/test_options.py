"""The options of all trainings have one base, and every option can be listed with type, default and description."""

from __future__ import annotations

import dataclasses

import pytest
from click.testing import CliRunner

from retrievalkit import registry
from retrievalkit.cli import main
from retrievalkit.errors import InputError, UnknownNameError
from retrievalkit.train.options import LISTED, LoopOptions, list_options

COMMANDS = {"trainer": ["train"], "pretraining": ["pretrain"], "reranker_training": ["rerank", "train"]}


@pytest.mark.parametrize("name", LISTED)
def test_the_shared_options_come_from_one_base(name):
    """A subclass may give them other defaults, and no other type."""
    assert issubclass(LISTED[name], LoopOptions)
    base = registry.options(LoopOptions)
    own = registry.options(LISTED[name])
    assert len(base) == 12
    assert {option: own[option].type_name for option in base} == {one: base[one].type_name for one in base}


@pytest.mark.parametrize("name", LISTED)
def test_every_option_has_a_description_and_numbers_have_bounds(name):
    options = registry.options(LISTED[name])
    assert all(option.description.endswith((".", ")")) for option in options.values())
    types = {field.name: field.type.split(" | ")[0] for field in dataclasses.fields(LISTED[name])}
    numbers = {option for option, one in types.items() if one in ("int", "float")}
    assert numbers - set(LISTED[name].bounds) <= {"max_length"}, "a re-ranker's length is checked against its model"


@pytest.mark.parametrize("name", LISTED)
def test_every_option_is_listed_by_the_command_and_among_the_plugins(name):
    shown = CliRunner().invoke(main, ["plugins", "show", name])
    assert shown.exit_code == 0
    for option in registry.options(LISTED[name]).values():
        assert f"  {option.name}: {option.type_name}, default {option.default!r}\n" in shown.output
        assert option.description in shown.output
    helped = CliRunner().invoke(main, [*COMMANDS[name], "--help-all"])
    assert helped.exit_code == 0
    assert shown.output in helped.output
    assert "--output" in helped.output


def test_an_unknown_list_is_refused():
    with pytest.raises(UnknownNameError, match="did you mean 'trainer'"):
        list_options("traner")


def test_a_bound_names_the_option_and_its_value():
    with pytest.raises(InputError, match="batch_size is 0, and must be at least 1"):
        LoopOptions(batch_size=0).check()
