"""Fails if ours has become slower relative to a peer: the main cases at small sizes, before a release.

    python benchmarks/guard.py            # compare with results/guard.json: at most 25 % slower
    python benchmarks/guard.py --write    # measure new ratios for the comparison

Ratios of different processors are not comparable: guard.json names its processor.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from bench import BUILD, RESULTS, ROOT, machine, measure
from cases import CASES

import data

COMMITTED = RESULTS / "guard.json"
LEAST = 0.75


def main() -> None:
    """Measure, and compare or write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the ratios for later comparisons")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--venvs", type=Path, default=ROOT)
    options = parser.parse_args()
    if not (options.write or COMMITTED.exists()):
        parser.error(f"{COMMITTED} does not exist. Create it with --write")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    data.write(BUILD / "data", options.venvs)
    ratios = {}
    for case in (case for case in CASES if case.guarded):
        ratios[case.name] = measure(case, options.rounds, case.small, options.venvs, None)["ratio"]["median"]
        print(f"{case.name}: {ratios[case.name]:.2f}", flush=True)
    about = machine()
    if options.write:
        RESULTS.mkdir(exist_ok=True)
        COMMITTED.write_text(json.dumps({"ratios": ratios, "machine": about}, indent=1) + "\n")
        return
    committed = json.loads(COMMITTED.read_text())
    if committed["machine"]["processor"] != about["processor"]:
        print(f"the committed ratios come from another machine: {committed['machine']}")
    slower = [name for name, ratio in committed["ratios"].items() if ratios[name] < LEAST * ratio]
    for name in slower:
        print(f"{name}: {ratios[name]:.2f}, before: {committed['ratios'][name]:.2f}")
    sys.exit(f"slower than committed: {', '.join(slower)}" if slower else 0)


if __name__ == "__main__":
    main()
