"""What every command has in common: how it ends."""

import click
import pytest
from click.testing import CliRunner

from retrievalkit.cli.group import RkitGroup
from retrievalkit.errors import InputError


@click.group(cls=RkitGroup)
def root():
    pass


@root.command()
def interrupted():
    raise KeyboardInterrupt


@root.command()
def refused():
    msg = "the input is wrong."
    raise InputError(msg)


@root.command()
def faulty():
    msg = "a bug"
    raise ZeroDivisionError(msg)


@root.command()
@click.option("--count", type=int)
def counted(count):
    click.echo(count)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["interrupted"], 130, "Interrupted."),
        (["refused"], 2, "Error: the input is wrong."),
        (["counted", "--count", "x"], 2, "Invalid value for '--count'"),
        (["counted", "--count", "3"], 0, "3"),
        (["count"], 2, "Did you mean 'counted'?"),
        (["--help"], 0, "interrupted"),
    ],
)
def test_an_ending_has_a_message_and_an_exit_code(words, code, text):
    outcome = CliRunner().invoke(root, words)
    assert outcome.exit_code == code
    assert text in outcome.output
    assert "Aborted" not in outcome.output


def test_a_bug_keeps_its_traceback():
    assert isinstance(CliRunner().invoke(root, ["faulty"]).exception, ZeroDivisionError)
