"""Times an rkit command alternately in two revisions of this repository.

    python benchmarks/revisions.py NEW_PYTHON OLD_PYTHON [--rounds 7] -- train MODEL ... -o {output}

Each interpreter has its revision installed. `{output}` becomes a new folder for each run. Prints the seconds of the
process, and the ratios new / old per round: below 1, the new revision is faster.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path


def seconds(python: str, command: list[str], folder: Path) -> float:
    """Return the wall-clock seconds of a run in a new process."""
    words = [word.replace("{output}", tempfile.mkdtemp(dir=folder) + "/out") for word in command]
    start = time.perf_counter()
    subprocess.run([python, "-m", "retrievalkit", *words], check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("new")
    parser.add_argument("old")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    times: dict[str, list[float]] = {options.new: [], options.old: []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds + 1):
            # The order alternates because a machine slows down as it heats up. The first round warms the disk cache.
            for python in (options.new, options.old)[:: 1 if number % 2 else -1]:
                took = seconds(python, options.command, Path(folder))
                if number:
                    times[python].append(took)
    ratios = sorted(new / old for new, old in zip(*times.values(), strict=True))
    for name, python in (("new", options.new), ("old", options.old)):
        print(f"{name}: median {statistics.median(times[python]):.2f} s of {len(ratios)} rounds")
    print(f"new / old: median {statistics.median(ratios):.3f}, minimum {ratios[0]:.3f}, maximum {ratios[-1]:.3f}")


if __name__ == "__main__":
    main()
