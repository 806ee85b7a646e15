"""Kills commands at random moments, and runs each again: `make kill N=200 SEED=1`.

    python -m kills --count 200 --seed 1 [--only encode --only "index flat"] [--fresh 0.1] [--faults]

Exit code 1 if a trial found something wrong; each is printed with what repeats it.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click

from kills.commands import COMMANDS
from kills.faults import faulted, possible
from kills.starting import preload
from kills.trial import Bench, Trial, draw_moments, table


@click.command()
@click.option("--count", default=200, show_default=True, help="Trials.")
@click.option("--seed", default=0, show_default=True, help="Of commands, signals and moments.")
@click.option("--only", multiple=True, type=click.Choice(list(COMMANDS)), help="Only these commands.")
@click.option("--fresh", default=0.1, show_default=True, help="Share of the trials in a Python of its own.")
@click.option("--verbose", is_flag=True, help="Print every trial.")
@click.option("--faults", is_flag=True, help="Full disks, failing renames ... instead of signals.")
def main(count: int, seed: int, only: tuple[str, ...], fresh: float, verbose: bool, faults: bool) -> None:
    """Kill commands at random moments, and run each again."""
    preload()
    trials = []
    # Not a TemporaryDirectory, which a fork would remove at its end.
    folder = tempfile.mkdtemp(prefix="rkit-kills-")
    try:
        started = time.monotonic()
        bench = Bench(Path(folder).resolve() / "bench", list(only) or list(COMMANDS))
        shown = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in bench.seconds.items())
        click.echo(f"undisturbed ({time.monotonic() - started:.0f} s in all): {shown}")
        source = random.Random(seed)
        made = _faulted(bench, source, count) if faults else _killed(bench, source, count, fresh)
        for trial in made:
            trials.append(trial)
            if verbose or trial.problems:
                click.echo(f"trial {len(trials)}: {trial}")
        click.echo(f"{table(trials)}\n{time.monotonic() - started:.0f} s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(any(one.problems for one in trials))


def _killed(bench: Bench, source: random.Random, count: int, fresh: float) -> Iterator[Trial]:
    for drawn in draw_moments(bench, source, count, fresh_share=fresh, startup=bench.startup):
        name, number, moment, rank, alone = drawn
        yield bench.trial(name, number, moment, rank=rank, fresh=alone)


def _faulted(bench: Bench, source: random.Random, count: int) -> Iterator[Trial]:
    names, kinds = list(bench.seconds), possible(bench.folder)
    for number in range(count):
        yield faulted(bench, names[number % len(names)], source.choice(kinds)(source))


if __name__ == "__main__":
    main()
