"""Runs many trials in several processes, groups their failures, and writes a report with a small trial for each."""

import json
import multiprocessing
import multiprocessing.connection
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path

from fuzz import material, process
from fuzz.shrink import shrink
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


def run(first, chosen, *, trials, seed, workers, minutes=60, shrunk=True):
    """Make trials; returns the groups of failures and statistics.

    Args:
        first: A bench.
        chosen: The targets.
        trials: How many.
        seed: Of all trials.
        workers: Processes.
        minutes: After these, no trial is begun.
        shrunk: Whether to look for small trials.
    """
    groups, statistics, seconds = defaultdict(list), Counter(), Counter()
    begun = time.monotonic()
    for done, (number, trial, code, failures, applied, took) in enumerate(
        _outcomes(first, chosen, trials, seed, workers, begun + 60 * minutes), 1
    ):
        statistics[trial.target] += 1
        statistics["exit", code] += 1
        statistics["without effect"] += not applied and not trial.options
        seconds[trial.target] += took
        for failure in failures:
            groups[failure.kind, failure.place].append((number, trial, failure))
        if done % 500 == 0:
            sys.stderr.write(f"{done:,}/{trials:,} trials, {len(groups)} groups, {time.monotonic() - begun:.0f} s\n")
    if begun + 60 * minutes > time.monotonic() and (lost := trials - sum(statistics[name] for name in seconds)):
        groups["fuzzer", "a worker ended"].append(
            (0, trial, Failure("fuzzer", "a worker ended", f"{lost} trials lost"))
        )
    if shrunk:
        groups = {key: _smallest_first(first, key, found) for key, found in groups.items()}
    return dict(groups), statistics, seconds


def _outcomes(first, chosen, trials, seed, workers, end):
    """What the workers find, as they find it."""
    context = multiprocessing.get_context("fork")
    started, pipes = [], []
    try:
        for number in range(workers):
            ours, theirs = context.Pipe(duplex=False)
            share = range(number, trials, workers)
            # No daemon: commands start processes of their own.
            started.append(
                context.Process(target=_work, args=(first, chosen, share, seed, end, f"worker-{number}", theirs))
            )
            started[-1].start()
            theirs.close()
            pipes.append(ours)
        while pipes:
            for pipe in multiprocessing.connection.wait(pipes):
                try:
                    yield pipe.recv()
                except EOFError:
                    pipes.remove(pipe)
    finally:
        for one in started:
            one.terminate()
            one.join()


def _work(first, chosen, numbers, seed, end, name, pipe):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    own = Bench(first.folder, name)
    for number in numbers:
        if time.monotonic() > end:
            break
        trial = own.draw(seed, number, chosen)
        try:
            ended, failures, applied = own.attempt(trial)
        except Exception as error:  # noqa: BLE001 - other trials go on
            pipe.send((number, trial, None, [Failure("fuzzer", f"{type(error).__name__} {error}"[:300])], 0, 0))
            continue
        pipe.send((number, trial, ended.code, failures, applied, ended.seconds))
    shutil.rmtree(own.place, ignore_errors=True)


def _smallest_first(own, key, found):
    """The failures of a group, the smallest made smaller still."""
    found = sorted(found, key=lambda one: (one[1].size(), one[0]))
    number, trial, failure = found[0]

    def fails(candidate):
        return any((one.kind, one.place) == key for one in own.attempt(candidate)[1])

    # What takes long is not tried again and again.
    if key[0] not in ("time", "fuzzer"):
        trial = shrink(trial, fails)
    return [(number, trial, failure), *found[1:]]


def try_cases(own, folder, report):
    """Try the reproducers of a folder; writes by their names how they ended."""
    told = {}
    for path in sorted(folder.glob("*.json")):
        ended, failures, applied = own.attempt(Trial.of(json.loads(path.read_text())))
        failed = [f"{one.kind}: {one.place} {one.detail}" for one in failures]
        told[path.name] = {"failures": failed, "applied": applied, "code": ended.code, "err": ended.err[-2000:]}
    report.write_text(json.dumps(told, indent=1))


def write_report(folder, groups, statistics, seconds, *, seed):
    """Write report.txt, and a file for each group that `ONLY` takes; returns the report."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    failed = len({number for found in groups.values() for number, *_ in found})
    codes = ", ".join(f"{count:,} exit {name[1]}" for name, count in statistics.items() if isinstance(name, tuple))
    lines = [
        f"{sum(statistics[name] for name in seconds):,} trials, seed {seed}: {failed:,} failed, {len(groups)} groups",
        f"{codes}; {statistics['without effect']:,} without effect\n",
    ]
    ordered = sorted(groups.items(), key=lambda pair: (pair[0][0], -len(pair[1])))
    for row, (key, found) in enumerate(ordered, 1):
        lines += _group(folder / f"{row:03}.json", key, found, seed)
    lines += ["", "trials, seconds each:"]
    lines += [f"  {name}: {statistics[name]:,}, {took / statistics[name]:.2f}" for name, took in seconds.most_common()]
    text = "\n".join(lines) + "\n"
    # Surrogates are among what is tried.
    text = text.encode(errors="backslashreplace").decode()
    (folder / "report.txt").write_text(text)
    return text


def _group(path, key, found, seed):
    """Write the first trial of a group to a file; returns the group's lines."""
    number, trial, failure = found[0]
    told = {"kind": key[0], "place": key[1], "detail": failure.detail, "number": number, "seed": seed}
    path.write_text(json.dumps(trial.to_json() | told, indent=1) + "\n")
    of = ", ".join(f"{name} {count}" for name, count in Counter(one.target for _, one, _ in found).most_common(4))
    yield f"{path.name} {key[0]}: {key[1]}  x{len(found)} ({of})"
    if failure.detail:
        yield f"         {failure.detail.splitlines()[0][:200]}"
    yield f"         {json.dumps(list(trial.edits) or list(trial.options))[:300]}"
