"""`rkit` with one more command, `write`, that takes its time; and the program that runs a step of it.

python stepping.py run RECIPE --output DIR --jobs 2
python stepping.py                                     # a step, on standard input
"""

import json
import os
import sys
import time
from pathlib import Path

import click

from retrievalkit.cli import main as rkit
from retrievalkit.cli import step
from retrievalkit.errors import InputError
from retrievalkit.recipes import side_by_side

JOURNAL = "journal.txt"


@click.command()
@click.argument("text")
@click.option("--from", "sources", multiple=True)
@click.option("--seconds", type=float, default=0.0)
@click.option("--until")
@click.option("--fail", is_flag=True)
@click.option("--resume", is_flag=True)
@click.option("--output", required=True)
def write(text, sources, seconds, until, fail, resume, output):
    """Write figures of the text and of the files that it is made from."""
    note(f"{'resume' if resume else 'start'} {text} {os.environ.get('OMP_NUM_THREADS')}")
    try:
        time.sleep(seconds)
        # A name of a file would be an input of the step, whose appearance changes it.
        while until and not Path(f"{until}.txt").exists():
            time.sleep(0.02)
        if fail:
            msg = f"the text '{text}' is broken."
            raise InputError(msg)
        total = len(text) + sum(json.loads(Path(one).read_text())["metrics"]["nDCG@10"] for one in sources)
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        Path(output).write_text(json.dumps({"metrics": {"nDCG@10": total}}))
        click.echo(f"wrote {text}")
    finally:
        note(f"end {text}")


def note(line):
    """Lines of several processes come whole."""
    with Path(JOURNAL).open("a") as stream:
        stream.write(line + "\n")


if __name__ == "__main__":
    rkit.add_command(write)
    side_by_side.PROGRAM = "stepping"
    if len(sys.argv) > 1:
        rkit(prog_name="rkit")
    else:
        step.main()
