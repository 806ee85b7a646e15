"""Runs many trials in several processes, groups their failures, and writes a report with the smallest trial of each."""

import functools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from fuzz import material, process
from fuzz.targets import TARGETS
from fuzz.trial import Bench, Trial
from fuzz.verdict import Failure


@contextmanager
def bench(*, plugins):
    """A bench with fresh material, which is removed at the end."""
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
        material.make(folder / "material", plugins=plugins)
        shutil.rmtree(folder / "made")
        yield Bench(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def targets(*, plugins, word=""):
    """The targets, or those with a word in their names."""
    return [one for one in TARGETS if (plugins or not one.plugins) and word in one.name]


def run(first, chosen, *, trials, seed, workers, minutes=60):
    """Make trials; returns the groups of failures, and how often each target and each exit code occurred.

    Args:
        first: A bench.
        chosen: The targets.
        trials: How many.
        seed: Of all trials.
        workers: Processes.
        minutes: After these, no trial is begun.
    """
    groups, counts, end = defaultdict(list), Counter(), time.monotonic() + 60 * minutes
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, _start, (first.folder,)) as pool:
        attempt = functools.partial(_attempt, seed, chosen, end)
        for done, (number, trial, code, failures, applied) in enumerate(pool.map(attempt, range(trials)), 1):
            if trial is None:
                continue
            without_effect = not applied and not trial.options
            counts.update([trial.target, f"exit {code}", *["without effect"] * without_effect])
            for failure in failures:
                groups[failure.kind, failure.place].append((number, trial, failure))
            if done % 500 == 0:
                sys.stderr.write(f"{done:,}/{trials:,} trials, {len(groups)} groups\n")
    return groups, counts


def _start(folder):
    global _own
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _own = Bench(folder, f"worker-{os.getpid()}")


def _attempt(seed, chosen, end, number):
    """A trial in a worker: number, trial (None = no time is left), exit code, failures, applied edits."""
    if time.monotonic() > end:
        return number, None, None, [], 0
    trial = _own.draw(seed, number, chosen)
    try:
        ended, failures, applied = _own.attempt(trial)
    except Exception as error:  # noqa: BLE001 - other trials go on
        return number, trial, None, [Failure("fuzzer", f"{type(error).__name__} {error}"[:300])], 0
    return number, trial, ended.code, failures, applied


def try_cases(own, folder, report):
    """Try the reproducers of a folder; writes by their names how they ended."""
    told = {}
    for path in sorted(folder.glob("*.json")):
        ended, failures, applied = own.attempt(Trial.of(json.loads(path.read_text())))
        failed = [f"{one.kind}: {one.place} {one.detail}" for one in failures]
        told[path.name] = {"failures": failed, "applied": applied, "code": ended.code, "err": ended.err[-2000:]}
    report.write_text(json.dumps(told, indent=1))


def write_report(folder, groups, counts, *, seed):
    """Write report.txt, and a file for each group that `ONLY` takes; returns the report."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    failed = len({number for found in groups.values() for number, *_ in found})
    lines = [f"seed {seed}: {failed:,} trials failed, {len(groups)} groups"]
    for row, (key, found) in enumerate(sorted(groups.items(), key=lambda pair: (pair[0][0], -len(pair[1]))), 1):
        # The smallest first.
        number, trial, failure = min(found, key=lambda one: (one[1].size(), one[0]))
        told = {"kind": key[0], "place": key[1], "detail": failure.detail, "number": number, "seed": seed}
        (folder / f"{row:03}.json").write_text(json.dumps(trial.to_json() | told, indent=1) + "\n")
        lines += [f"{row:03}.json {key[0]}: {key[1]}  x{len(found)} ({trial.target})", f"    {failure.detail[:200]!r}"]
        lines.append(f"    {json.dumps(list(trial.edits) or list(trial.options))[:300]}")
    text = "\n".join([*lines, *(f"{count:6,} {name}" for name, count in counts.most_common())]) + "\n"
    # Surrogates are among what is tried.
    text = text.encode(errors="backslashreplace").decode()
    (folder / "report.txt").write_text(text)
    return text
