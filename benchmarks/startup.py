"""Start-up cost of installed plugins: `rkit --help` with and without 20 additional plugins, alternately.

    python benchmarks/startup.py [--plugins 20] [--rounds 40]

Prints the median difference in milliseconds, which should be below 10 for 20 plugins.
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
    """Write distributions, each with a plugin, into a folder on the path."""
    for number in range(count):
        name = f"acme_{number}"
        (folder / f"{name}.py").write_text(MODULE.format(name=name))
        about = folder / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[retrievalkit.plugins]\n{name} = {name}\n")


def seconds(*paths):
    """Return the processor and wall-clock seconds of `rkit --help`; other load affects processor time less."""
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
    """Measure alternately, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugins", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder), options.plugins)
        seconds(folder)  # compiles the modules
        pairs = [(seconds(), seconds(folder)) for _ in range(options.rounds)]
    for column, clock_name in enumerate(("processor", "clock")):
        without = statistics.median(plain[column] for plain, _ in pairs)
        more = statistics.median(extended[column] - plain[column] for plain, extended in pairs)
        print(f"{clock_name}: {1e3 * without:.1f} ms; with {options.plugins} more plugins {1e3 * more:+.1f} ms")


if __name__ == "__main__":
    main()
