"""Fails where ours has become slower against a peer: small pairs of the main cases, before a release.

    python benchmarks/guard.py            # compare with results/guard.json: at most 25 % less
    python benchmarks/guard.py --write    # measure what to compare with

Ratios of another processor say little: guard.json names its own.
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
    parser.add_argument("--write", action="store_true", help="write what is compared with from now on")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--venvs", type=Path, default=ROOT)
    given = parser.parse_args()
    if not (given.write or COMMITTED.exists()):
        parser.error(f"there is no {COMMITTED} to compare with: write it with --write")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    data.write(BUILD / "data", given.venvs)
    found = {}
    for case in (case for case in CASES if case.guarded):
        found[case.name] = measure(case, given.rounds, case.small, given.venvs, None)["ratio"]["median"]
        print(f"{case.name}: {found[case.name]:.2f}", flush=True)
    about = machine()
    if given.write:
        RESULTS.mkdir(exist_ok=True)
        COMMITTED.write_text(json.dumps({"ratios": found, "machine": about}, indent=1) + "\n")
        return
    committed = json.loads(COMMITTED.read_text())
    if committed["machine"]["processor"] != about["processor"]:
        print(f"the committed ratios are of another machine: {committed['machine']}")
    slower = [name for name, ratio in committed["ratios"].items() if found[name] < LEAST * ratio]
    for name in slower:
        print(f"{name}: {found[name]:.2f}, and was {committed['ratios'][name]:.2f}")
    sys.exit(f"slower than committed: {', '.join(slower)}" if slower else 0)


if __name__ == "__main__":
    main()
