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


def declared(group):
    for member in group.commands.values():
        if isinstance(member, click.Group):
            yield from declared(member)
        elif isinstance(member, DerivedCommand):
            yield member.declared


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


def test_a_field_declares_an_option_of_the_function_and_the_command():
    assert count("a bb", least=2).count == 1
    assert {*inspect.signature(count).parameters} == {"words", "least", "strict"}
    run = CliRunner().invoke(DerivedCommand(count), ["--words", "a bb ccc", "--least", "2"])
    assert run.output == "2 words\n"
    assert CliRunner().invoke(DerivedCommand(count), ["--words", "a", "--json"]).output == '{\n  "count": 1\n}\n'
    shown = " ".join(CliRunner().invoke(DerivedCommand(count), ["--help"]).output.split())
    assert "--least N Shortest word to count. [default: 1]" in shown


@pytest.mark.parametrize("program", [*declared(main.with_all_commands())], ids=lambda program: program.name)
def test_every_option_is_described_and_in_the_help(program):
    shown = " ".join(CliRunner().invoke(main, [*program.name.split(), "--help"], terminal_width=400).output.split())
    for option in options(program.declaration).values():
        if not option.name.endswith("_options"):
            assert option.description.endswith((".", ")"))
            assert option.description.split(";")[0][:40] in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"leest": 1}, ["leest", "did you mean 'least'"]),
        ({"least": 0}, ["least", "0", "greater than or equal to 1"]),
        ({"least": "two"}, ["least", "two", "int"]),
        ({"words": "b"}, ["words", "twice"]),
    ],
)
def test_a_wrong_argument_is_refused(arguments, words):
    with pytest.raises(OptionError) as error:
        count("a", **arguments)
    assert all(word in str(error.value) for word in words)
    with pytest.raises(OptionError, match="positional"):
        count("a", 1, 2)
    with pytest.raises(OptionError, match="words"):
        count()


@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [
        (rk.train, {"epochs": "2", "pooler": {"layers": "4,6"}}, {"epochs": 2, "pooler_options": {"layers": "4,6"}}),
        # Settings without a section are options of the command or of its component.
        (
            rk.index,
            {"block": 3, "indexer": {"k": 4}, "shards": "2"},
            {"indexer_options": {"block": 3, "k": 4}, "shards": 2},
        ),
    ],
)
def test_settings_name_the_options_of_the_command_and_of_its_components(function, values, expected):
    assert function.settings(values) == expected
    with pytest.raises(OptionError, match="did you mean 'epochs'"):
        rk.train.settings({"epoch": 1})


@dataclass(frozen=True)
class ManyOptions(CommandOptions):
    """Options of `many`.

    Args:
        texts: The texts.
        kinds: Kinds of words; repeated flags add up.
        lengths: Lengths of words; repeated flags add up.
        weights: A number for each text.
        as_json: Print JSON.
        named_options: Options by the name of a text.
    """

    texts: Annotated[tuple[str, ...], Argument(several=True), Flag(metavar="TEXT...")]
    _: KW_ONLY
    kinds: str | Sequence[str] = "noun"
    lengths: Sequence[int] = ()
    weights: str | Sequence[float] | None = None
    as_json: Annotated[bool, Flag(("--json",))] = False
    named_options: Annotated[Mapping[str, Any], Rest(sections=True)] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a"], {}),
        (
            ["b", "--kinds", "noun verb", "--kinds", "f(x=1, y=2)", "--lengths", "4", "--lengths", "8"],
            {"kinds": ["noun verb", "f(x=1, y=2)"], "lengths": [4, 8]},
        ),
        # A flag wins over a setting; sections without a field are kept together.
        (
            ["b", "--weights", "0.3,0.7", "--json", "--set", "b.k=1", "--set", "weights=5"],
            {"weights": "0.3,0.7", "as_json": True, "named_options": {"b": {"k": 1}}},
        ),
    ],
)
def test_positional_words_repeated_flags_and_sections_of_settings(words, expected):
    """A command whose function returns nothing prints nothing."""
    seen = []
    many = command("many", ManyOptions)(seen.append)
    run = CliRunner().invoke(DerivedCommand(many), ["a", *words])
    assert (run.exit_code, run.output) == (0, "")
    (options,) = seen
    assert vars(options) == vars(ManyOptions(("a", *words[:1]), **expected))
    shown = CliRunner().invoke(DerivedCommand(many), ["--help"]).output
    assert "TEXT..." in shown
    assert "The texts." in shown


def test_notes_of_a_result_are_printed_to_standard_error():
    @command("noted", CountOptions)
    def noted(options: CountOptions) -> Counted:
        counted = Counted(options.least)
        counted.notes = ["there are few."]
        return counted

    run = CliRunner().invoke(DerivedCommand(noted), ["--words", "a"])
    assert (run.stdout, run.stderr) == ("1 words\n", "Note: there are few.\n")


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
    (tmp_path / "mistyped.py").write_text(MISTYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), "mistyped.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    refused = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert refused == set(range(4, 15)), done.stdout
