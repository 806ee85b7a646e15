"""`rkit` with another command, `write`, which can wait or fail; and the program that runs a step of it.

python stepping.py run RECIPE --output DIR --jobs 2
python stepping.py                                     # a step, on standard input
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import click

from retrievalkit.cli import main as rkit
from retrievalkit.cli import step
from retrievalkit.cli.derived import DerivedCommand
from retrievalkit.contracts.declarations import Argument, Flag, command
from retrievalkit.errors import InputError
from retrievalkit.recipes import schedule

JOURNAL = "journal.txt"


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of `write`."""

    text: Annotated[str, Argument()]
    sources: Annotated[Sequence[str], Flag(("--from",))] = ()
    seconds: float = 0.0
    until: str | None = None
    fail: bool = False
    resume: bool = False
    output: Annotated[str, Flag(("--output",))]


@command("write", WriteOptions)
def write_figures(options) -> None:
    text, until = options.text, options.until
    note(f"{'resume' if options.resume else 'start'} {text} {os.environ.get('OMP_NUM_THREADS')}")
    try:
        time.sleep(options.seconds)
        # The name of a file would be an input of the step, which changes when the file appears.
        while until and not Path(f"{until}.txt").exists():
            time.sleep(0.02)
        if options.fail:
            msg = f"the text '{text}' is broken."
            raise InputError(msg)
        total = len(text) + sum(
            json.loads(Path(source).read_text())["metrics"]["nDCG@10"] for source in options.sources
        )
        Path(options.output).parent.mkdir(parents=True, exist_ok=True)
        Path(options.output).write_text(json.dumps({"metrics": {"nDCG@10": total}}))
        click.echo(f"wrote {text}")
    finally:
        note(f"end {text}")


write = DerivedCommand(write_figures)


def note(line):
    with Path(JOURNAL).open("a") as stream:
        stream.write(line + "\n")


if __name__ == "__main__":
    rkit.add_command(write)
    schedule.PROGRAM = "stepping"
    if len(sys.argv) > 1:
        rkit(prog_name="rkit")
    else:
        step.main()
