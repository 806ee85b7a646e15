"""Kills commands at random moments, and runs each again: `make kill N=200 SEED=1`.

    python -m kills --count 200 --seed 1 [--only encode --only "index flat"] [--fresh 0.1]

Exit code 1 if a trial found something wrong; each is printed with what repeats it.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click

from kills.commands import COMMANDS
from kills.starting import preload
from kills.trial import Bench, draw_moments, table


@click.command()
@click.option("--count", default=200, show_default=True, help="Trials.")
@click.option("--seed", default=0, show_default=True, help="Of commands, signals and moments.")
@click.option("--only", multiple=True, type=click.Choice(list(COMMANDS)), help="Only these commands.")
@click.option("--fresh", default=0.1, show_default=True, help="Share of the trials in a Python of its own.")
@click.option("--verbose", is_flag=True, help="Print every trial.")
def main(count: int, seed: int, only: tuple[str, ...], fresh: float, verbose: bool) -> None:
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
        for drawn in draw_moments(bench, random.Random(seed), count, fresh_share=fresh, startup=bench.startup):
            name, number, moment, rank, alone = drawn
            trials.append(bench.trial(name, number, moment, rank=rank, fresh=alone))
            if verbose or trials[-1].problems:
                click.echo(f"trial {len(trials)} (rank {rank}): {trials[-1]}")
        click.echo(f"{table(trials)}\n{time.monotonic() - started:.0f} s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(any(one.problems for one in trials))


if __name__ == "__main__":
    main()
