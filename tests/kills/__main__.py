"""Kills commands at random moments, and runs each again: `make kill N=200 SEED=1`.

    python -m kills --count 200 --seed 1 [--only encode --only "index flat"] [--fresh 0.1] [--faults]

Exit code 1 if a trial found something wrong; each is printed with what repeats it.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path

import click

from kills.commands import COMMANDS
from kills.starting import preload
from kills.trial import FAULTS, Bench, draw_moments


@click.command()
@click.option("--count", default=200, show_default=True, help="Trials.")
@click.option("--seed", default=0, show_default=True, help="Of commands, signals and moments.")
@click.option("--only", multiple=True, type=click.Choice(list(COMMANDS)), help="Only these commands.")
@click.option("--fresh", default=0.1, show_default=True, help="Share of the trials in a Python of its own.")
@click.option("--faults", is_flag=True, help="Full disks and failing renames instead of signals.")
def main(count, seed, only, fresh, faults):
    """Kill commands at random moments, and run each again."""
    preload()
    # Not a TemporaryDirectory, which a fork would remove at its end.
    folder = tempfile.mkdtemp(prefix="rkit-kills-")
    try:
        bench, source = Bench(Path(folder).resolve() / "bench", list(only) or list(COMMANDS)), random.Random(seed)
        if faults:
            names = islice(cycle(bench.seconds), count)
            made = (bench.fault(name, source.choice(FAULTS), source) for name in names)
        else:
            moments = draw_moments(bench, source, count, fresh_share=fresh)
            made = (bench.kill(*drawn, **options) for drawn, options in moments)
        trials = []
        for trial in made:
            trials.append(trial)
            click.echo(f"trial {len(trials)}: {trial}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    late, wrong = sum(one.code is None for one in trials), sum(bool(one.problems) for one in trials)
    click.echo(f"{len(trials)} trials, {late} of them after the command had ended; something was wrong in {wrong}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
