"""What installed plugins cost at each start: `rkit --help` with 20 more of them, in turn with as it is.

    python benchmarks/startup.py [--plugins 20] [--rounds 40]

Prints the median of the differences, in milliseconds: below 10 for 20 plugins.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODULE = '''"""A plugin."""

from retrievalkit import hookimpl


@hookimpl
def register_poolers(register):
    register("{name}", "{name}_parts:Pooler")


@hookimpl
def register_losses(register):
    register("{name}", "{name}_parts:Loss")
'''


def install(folder, count):
    """Write distributions with a plugin each into a folder of the path."""
    for number in range(count):
        name = f"acme_{number}"
        (folder / f"{name}.py").write_text(MODULE.format(name=name))
        about = folder / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[retrievalkit.plugins]\n{name} = {name}\n")


def seconds(*paths):
    """Processor time of `rkit --help`: of a busy machine, less depends on the others than of the clock."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "retrievalkit", "--help"], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, time.perf_counter() - start


def main():
    """Measure in turn, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugins", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), given.plugins)
        seconds(folder)  # compiles the modules
        pairs = [(seconds(), seconds(folder)) for _ in range(given.rounds)]
    for column, what in enumerate(("processor", "clock")):
        without = statistics.median(one[column] for one, _ in pairs)
        more = statistics.median(other[column] - one[column] for one, other in pairs)
        print(f"{what}: {1e3 * without:.1f} ms; with {given.plugins} plugins more {1e3 * more:+.1f} ms")


if __name__ == "__main__":
    main()
