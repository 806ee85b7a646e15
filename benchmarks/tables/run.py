"""Runs the rows of the papers' tables in order; completed rows are skipped, so it can be interrupted at any time.

    python benchmarks/tables/run.py --data DATA --collections COLLECTIONS --encoder MODEL --output RUNS [--only mlr,mvr]

Each part is an `rkit run` in a separate process. RUNS/runs.jsonl records its start, commit and exit code; a part that
fails is repeated by the next run, and the other parts continue.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

from plan import Item, content, queue, runs

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run all parts; returns the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for place in ("data", "collections", "encoder", "output"):
        parser.add_argument(f"--{place}", type=Path, required=True)
    parser.add_argument("--only", default="", help="comma-separated names of runs")
    parser.add_argument("--seeds", help="comma-separated seeds")
    parser.add_argument("--dry", action="store_true", help="print the commands")
    options = parser.parse_args()
    plan = content()
    output = options.output.resolve()
    places = {name: getattr(options, name).resolve() for name in ("data", "collections", "encoder")}
    seeds = [int(seed) for seed in options.seeds.split(",")] if options.seeds else plan["seeds"]
    only = set(filter(None, options.only.split(",")))
    if unknown := only - set(plan["runs"]):
        parser.error(f"--only: no run '{min(unknown)}'. Known: {', '.join(plan['runs'])}.")
    parts = [
        item for item in queue(plan, runs(plan, {**places, "runs": output}), seeds) if not only or item.run.name in only
    ]
    if options.dry:
        for part in parts:
            print(shlex.join(["rkit", *part.words(output)]))
        return 0
    output.mkdir(parents=True, exist_ok=True)
    return sum(not _done(part, output) for part in parts)


def _done(part: Item, output: Path) -> bool:
    words = part.words(output)
    started = time.time()
    print(time.strftime("%H:%M:%S"), part.run.name, ",".join(part.rows), part.seed or "", flush=True)
    code = subprocess.run([sys.executable, "-m", "retrievalkit", *words], check=False).returncode
    entry = {"run": part.run.name, "rows": part.rows, "seed": part.seed, "code": code, "commit": _commit()}
    entry |= {"started": round(started), "seconds": round(time.time() - started)}
    with (output / "runs.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps(entry) + "\n")
    return code == 0


def _commit() -> str:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return git.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
