"""A command's options are declared once: the function, the flags, the help and recipes follow from the declaration."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

import click
import pytest
from annotated_types import Ge
from click.testing import CliRunner

import retrievalkit as rk
from places import ROOT
from retrievalkit.cli import main
from retrievalkit.cli.derived import DerivedCommand
from retrievalkit.contracts.declarations import Argument, CommandOptions, Flag, Rest, command, method
from retrievalkit.errors import OptionError
from retrievalkit.registry.component_options import options


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


@dataclass(frozen=True)
class ManyOptions(CommandOptions):
    """Options of `many`.

    Args:
        texts: The texts.
        kinds: Kinds of words; given several times, they add up.
        lengths: Lengths of words; given several times, they add up.
    """

    texts: Annotated[tuple[str, ...], Argument(several=True)]
    _: KW_ONLY
    kinds: str | Sequence[str] = "noun"
    lengths: Sequence[int] = ()


def test_options_that_take_several_values_and_notes():
    """A positional option takes all words, a flag adds up; a result's notes stay out of standard output."""
    seen = []

    @command("many", ManyOptions)
    def many(options: ManyOptions) -> Counted:
        seen.append((options.texts, options.kinds, [*options.lengths]))
        counted = Counted(len(options.texts))
        counted.notes = ["there are few."]
        return counted

    words = ["a", "b", "--kinds", "noun verb", "--kinds", "f(x=1, y=2)", "--lengths", "4", "--lengths", "8"]
    run = CliRunner().invoke(DerivedCommand(many), words)
    assert (run.stdout, run.stderr) == ("2 words\n", "Note: there are few.\n")
    CliRunner().invoke(DerivedCommand(many), ["a", "--json"])
    assert seen == [(("a", "b"), ["noun verb", "f(x=1, y=2)"], [4, 8]), (("a",), "noun", [])]
    assert "The texts." in CliRunner().invoke(DerivedCommand(many), ["--help"]).output


def test_settings_without_a_section_go_to_the_component_that_takes_them():
    assert rk.index.settings({"block": 3, "indexer": {"k": 4}, "shards": "2"}) == {
        "indexer_options": {"block": 3, "k": 4},
        "shards": 2,
    }


def test_a_method_has_the_fields_of_its_options_as_keywords():
    class Counter:
        scale = 10

        @method(CountOptions)
        def count(self, options):
            """Count words."""
            return self.scale * count.run(options).count

        @classmethod
        @method(CountOptions)
        def counted(cls, options):
            """Count words."""
            return cls.scale * count.run(options).count

    assert Counter().count("a bb", least=2) == Counter.counted(words="a bb", least=2) == 10
    assert [*inspect.signature(Counter().count).parameters] == [*inspect.signature(count).parameters]
    assert Counter.counted.__doc__.startswith("Count words.\n\nArgs:\n    words: The text.")
    with pytest.raises(OptionError, match="count has no option 'leest'; did you mean 'least'"):
        Counter().count("a", leest=1)


def test_a_flag_wins_over_a_setting():
    seen = []
    watched = command("watched", CountOptions)(lambda options: seen.append(options.least) or Counted(0))
    run = CliRunner().invoke(DerivedCommand(watched), ["--words", "a", "--least", "3", "--set", "least=5"])
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
    named_options: Annotated[Mapping[str, Any], Rest(sections=True)] = field(default_factory=dict)


def test_sections_without_a_field_numbers_with_commas_and_a_command_that_prints_by_itself():
    seen = []
    first = command("first", FirstOptions)(seen.append)
    words = ["a", "b", "--weights", "0.3,0.7", "--json", "--set", "b.k=1"]
    run = CliRunner().invoke(DerivedCommand(first), words)
    assert (run.exit_code, run.output) == (0, "")
    assert seen == [FirstOptions(("a", "b"), weights="0.3,0.7", as_json=True, named_options={"b": {"k": 1}})]
    assert "PLACE..." in CliRunner().invoke(DerivedCommand(first), ["--help"]).output


MISTYPED = """
import retrievalkit as rk

rk.train("m", "e", output="o", epochz=3)
rk.train("m", "e", output="o", batch_size="many")
rk.encode("m", "t", output="o", side="doc")
rk.Index.build(["a"], "m", "o", indexr="flat")
rk.Index.open("i", presicion="fp32")
rk.Hybrid(["a", "b"], fusoin="rrf")
rk.compare(["a", "b"], "q", metrcs="nDCG@10")
rk.convert("a", "b", knd="corpus")
rk.mine_negatives("bm25", "e", marginrelative=0.9)
rk.mine_negatives("bm25", "e", depth="many")
rk.rerank("m", "run", precison="fp32")
"""


@pytest.mark.slow
def test_a_type_checker_refuses_each_mistyped_keyword(tmp_path):
    """And nothing else: the declarations give the functions their signatures."""
    (tmp_path / "mistyped.py").write_text(MISTYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), "mistyped.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    refused = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert refused == set(range(4, 15)), done.stdout
