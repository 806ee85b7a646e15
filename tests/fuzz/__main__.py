"""`python -m fuzz`: the kept cases and trials by number, or one of them again; exit code 0 if none fails."""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

from fuzz import material, process
from fuzz.trial import Bench, Trial
from fuzz.verdict import Failure


def main():
    """Run the trials on a bench with new material, which is removed at the end."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="the number of a trial, or the file of a reproducer")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--report", type=Path, default=Path("build/fuzz"))
    given = parser.parse_args()
    # Ended from outside, it tidies up too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    process.warm()
    # An edit may be a bomb for the fuzzer itself.
    process.bound_memory()
    # A name of fixed length: places are in manifests, and edits count bytes.
    folder = Path(tempfile.mkdtemp(prefix="rkit-fuzz-"))
    try:
        (folder / "outside").mkdir()
        (folder / "outside" / "passwd").write_text("root:x:0:0\n")
        material.make(folder / "material")
        shutil.rmtree(folder / "made")
        return _perform(Bench(folder), given)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _perform(bench, given):
    if given.only is not None:
        trial = _trial(bench, given.seed, Path(given.only) if Path(given.only).is_file() else int(given.only))
        ended, failures, applied = bench.attempt(trial)
        _show(f"{trial}\n{applied} edits applied; exit {ended.code}, {ended.seconds:.1f} s, {ended.memory >> 20} MB\n")
        _show(f"{ended.out[-3000:]}{ended.err[-6000:]}\n{ended.stack[-3000:]}")
        _show("".join(f"{one}\n" for one in failures))
        return bool(failures)
    groups, counts = defaultdict(list), Counter()
    context = multiprocessing.get_context("fork")
    jobs = [*sorted((Path(__file__).parent / "cases").glob("*.json")), *range(given.trials)]
    with ProcessPoolExecutor(given.workers, context, _start, (bench.folder,)) as pool:
        for job, (trial, code, failures) in zip(jobs, pool.map(partial(_attempt, given.seed), jobs), strict=True):
            counts.update([trial.target, f"exit {code}"])
            for failure in failures:
                groups[failure.kind, failure.place].append((trial.size(), str(job), trial, failure))
    _report(given.report, groups, counts)
    return bool(groups)


def _start(folder):
    global _own
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _own = Bench(folder, f"worker-{os.getpid()}")


def _trial(bench, seed, job):
    """Return the trial of a number, or of a file."""
    return Trial(**json.loads(job.read_text())) if isinstance(job, Path) else bench.draw(seed, job)


def _attempt(seed, job):
    """Run a trial in a worker; return the trial, its exit code and its failures."""
    trial = _trial(_own, seed, job)
    try:
        ended, failures, applied = _own.attempt(trial)
    except Exception as error:  # noqa: BLE001 - other trials go on
        return trial, None, [Failure("fuzzer", f"{type(error).__name__} {error}"[:300])]
    if isinstance(job, Path) and applied < len(trial.edits):
        failures.append(Failure("edits of a case can no longer be made", job.name))
    return trial, ended.code, failures


def _report(folder, groups, counts):
    """Print and write the groups, each with a file of its smallest trial for `ONLY`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    lines = [f"{len(groups)} groups of failures"]
    for row, (key, found) in enumerate(sorted(groups.items(), key=lambda pair: (pair[0][0], -len(pair[1]))), 1):
        _, number, trial, failure = min(found, key=lambda one: one[:2])
        (folder / f"{row:03}.json").write_text(json.dumps(asdict(trial), indent=1) + "\n")
        lines += [f"{row:03}.json {key[0]}: {key[1]}  x{len(found)} ({trial.target}, {number})"]
        lines += [f"    {failure.detail[:200]!r}"]
        lines.append(f"    {json.dumps(list(trial.edits) or list(trial.options))[:300]}")
    lines += [f"{count:6,} {name}" for name, count in counts.most_common()]
    text = "\n".join(lines).encode(errors="backslashreplace").decode() + "\n"  # surrogates are among what is tried
    (folder / "report.txt").write_text(text)
    _show(text)


def _show(text):
    sys.stdout.write(text.encode(errors="backslashreplace").decode())


if __name__ == "__main__":
    sys.exit(main())
