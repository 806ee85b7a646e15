"""A command's options are declared once: the function, the flags, the help and recipes follow from the declaration."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

import click
import pytest
from annotated_types import Ge
from click.testing import CliRunner

import retrievalkit as rk
from retrievalkit.cli import main
from retrievalkit.cli.derived import DerivedCommand
from retrievalkit.declarations import Argument, CommandOptions, Flag, Sections, command, method
from retrievalkit.errors import OptionError
from retrievalkit.options import options


def declared(group=main):
    """All commands that are derived from a declaration."""
    for one in group.commands.values():
        if isinstance(one, click.Group):
            yield from declared(one)
        elif isinstance(one, DerivedCommand):
            yield one.declared


@dataclass(frozen=True)
class CountOptions(CommandOptions):
    """Options of `count`.

    Args:
        words: The text.
        least: Shortest word to count.
    """

    words: str
    _: KW_ONLY
    least: Annotated[int, Ge(1)] = 1


@dataclass
class Counted:
    count: int

    @property
    def summary(self):
        return f"{self.count} words"

    def as_json(self):
        return {"count": self.count}


@command("count", CountOptions)
def count(options: CountOptions) -> Counted:
    """Count words."""
    return Counted(sum(len(word) >= options.least for word in options.words.split()))


def test_a_new_option_is_a_field_and_nothing_else():
    """The function, its signature, the flag, the help with its default and `--json` follow."""
    assert count("a bb", least=2).count == 1
    assert {*inspect.signature(count).parameters} == {"words", "least", "strict"}
    run = CliRunner().invoke(DerivedCommand(count), ["--words", "a bb ccc", "--least", "2"])
    assert run.output == "2 words\n"
    assert CliRunner().invoke(DerivedCommand(count), ["--words", "a", "--json"]).output == '{\n  "count": 1\n}\n'
    shown = " ".join(CliRunner().invoke(DerivedCommand(count), ["--help"]).output.split())
    assert "--least N Shortest word to count. [default: 1]" in shown


@pytest.mark.parametrize("one", [*declared()], ids=lambda one: one.name)
def test_every_option_is_described_and_in_the_help(one):
    shown = " ".join(CliRunner().invoke(main, [*one.name.split(), "--help"], terminal_width=400).output.split())
    for option in options(one.declaration).values():
        if not option.name.endswith("_options"):
            assert option.description.endswith((".", ")"))
            assert option.description.split(";")[0][:40] in shown


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"leest": 1}, ["leest", "did you mean 'least'"]),
        ({"least": 0}, ["least", "0", "greater than or equal to 1"]),
        ({"least": "two"}, ["least", "two", "int"]),
        ({"words": "b"}, ["words", "twice"]),
    ],
)
def test_a_wrong_argument_is_refused(given, words):
    with pytest.raises(OptionError) as error:
        count("a", **given)
    assert all(word in str(error.value) for word in words)
    with pytest.raises(OptionError, match="positional"):
        count("a", 1, 2)
    with pytest.raises(OptionError, match="words"):
        count()


def test_settings_name_the_options_of_the_command_and_of_its_components():
    assert rk.train.settings({"epochs": "2", "pooler": {"layers": "4,6"}}) == {
        "epochs": 2,
        "pooler_options": {"layers": "4,6"},
    }
    with pytest.raises(OptionError, match="did you mean 'epochs'"):
        rk.train.settings({"epoch": 1})


def test_a_flag_wins_over_a_setting():
    seen = []
    watched = command("watched", CountOptions)(lambda options: seen.append(options.least) or Counted(0))
    run = CliRunner().invoke(DerivedCommand(watched), ["--words", "a", "--least", "3"])
    assert (run.exit_code, seen) == (0, [3])


@dataclass(frozen=True)
class FirstOptions(CommandOptions):
    """Options of `first`.

    Args:
        places: The places.
        weights: A number for each place.
        as_json: Print JSON.
        named_options: Options of some places, by their names.
    """

    places: Annotated[tuple[str, ...], Argument(several=True), Flag(metavar="PLACE...")]
    _: KW_ONLY
    weights: str | Sequence[float] | None = None
    as_json: Annotated[bool, Flag(("--json",))] = False
    named_options: Annotated[Mapping[str, Any], Sections()] = field(default_factory=dict)


def test_sections_without_a_field_numbers_with_commas_and_a_command_that_prints_by_itself():
    seen = []
    first = command("first", FirstOptions)(seen.append)
    words = ["a", "b", "--weights", "0.3,0.7", "--json", "--set", "b.k=1"]
    run = CliRunner().invoke(DerivedCommand(first), words)
    assert (run.exit_code, run.output) == (0, "")
    assert seen == [FirstOptions(("a", "b"), weights="0.3,0.7", as_json=True, named_options={"b": {"k": 1}})]
    assert "PLACE..." in CliRunner().invoke(DerivedCommand(first), ["--help"]).output


def test_a_method_takes_the_fields_of_a_dataclass():
    class Counter:
        @classmethod
        @method(CountOptions)
        def of(cls, options):
            """Count words."""
            return cls, options.least

    assert Counter.of("a b", least=2) == (Counter, 2)
    assert "least: Shortest word to count." in Counter.of.__doc__
    with pytest.raises(OptionError, match="did you mean 'least'"):
        Counter.of("a", leest=2)
