"""Runs the rows of the papers' tables, one after the other; what is done is skipped, so it may be cut off at any time.

    python benchmarks/tables/run.py --data DATA --collections COLLECTIONS --encoder MODEL --output RUNS [--only mlr,mvr]

Each part is an `rkit run` in a process of its own. RUNS/runs.jsonl says when each ran, at which commit, and how it
ended; a part that fails is left for the next time, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from plan import Item, content, queue, runs

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run all parts; returns how many failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for place in ("data", "collections", "encoder", "output"):
        parser.add_argument(f"--{place}", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of runs, between commas")
    parser.add_argument("--seeds", help="some of the seeds, between commas")
    parser.add_argument("--dry", action="store_true", help="print the commands")
    given = parser.parse_args()
    plan = content()
    output = given.output.resolve()
    places = {name: getattr(given, name).resolve() for name in ("data", "collections", "encoder")}
    seeds = [int(seed) for seed in given.seeds.split(",")] if given.seeds else plan["seeds"]
    only = set(filter(None, given.only.split(",")))
    if unknown := only - set(plan["runs"]):
        parser.error(f"--only: no run '{min(unknown)}'. Known: {', '.join(plan['runs'])}.")
    parts = [
        one for one in queue(plan, runs(plan, {**places, "runs": output}), seeds) if not only or one.run.name in only
    ]
    if given.dry:
        for part in parts:
            print(shlex.join(["rkit", *part.words(output)]))
        return 0
    output.mkdir(parents=True, exist_ok=True)
    return sum(not _done(part, output) for part in parts)


def _done(part: Item, output: Path) -> bool:
    words = part.words(output)
    started = time.time()
    print(time.strftime("%H:%M:%S"), part.run.name, ",".join(part.rows), part.seed or "", flush=True)
    code = subprocess.run(_rkit(words), check=False).returncode
    entry = {"run": part.run.name, "rows": part.rows, "seed": part.seed, "code": code, "commit": _commit()}
    entry |= {"started": round(started), "seconds": round(time.time() - started)}
    with (output / "runs.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")
    return code == 0


def _rkit(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "retrievalkit", *words]


def _commit() -> str:
    said = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return said.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
