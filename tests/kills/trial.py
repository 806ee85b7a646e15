"""A trial: disturbs a command at some moment, checks its remains, and runs it again."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shlex
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from kills.commands import COMMANDS, DATA, make_inputs
from kills.starting import Running

EXPECTED = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}


@dataclass
class Trial:
    """Result of a disturbed command: its exit code, None if it had ended before, and its failures."""

    name: str
    code: int | None = None
    problems: list[str] = field(default_factory=list)


class Bench:
    """Folder for disturbed commands and their inputs, empty at first."""

    def __init__(self, folder, names):
        self.folder, self.work, self.inputs = folder, folder / "work", folder / "inputs"
        for one in (self.work, self.inputs, folder / "tmp"):
            one.mkdir(parents=True)
        make_inputs(self.inputs, lambda line: self._done(line, self.inputs), names)
        self.before = digests(self.inputs)
        self.expected, self.states, self.seconds = {}, {}, {}

    def measure(self, name):
        """Run a command undisturbed, twice, to measure its output and its time."""
        if name in self.expected:
            return
        outcomes, before = [], ""
        for _ in range(2):
            self.prepare(name)
            before = self._hits() if COMMANDS[name].changes else ""
            started = time.monotonic()
            self._done(COMMANDS[name].words, self.work, processes=COMMANDS[name].processes)
            self.seconds[name] = time.monotonic() - started
            outcomes.append(self._outcome(name))
        assert outcomes[0] == outcomes[1], f"'{name}' does not repeat itself"
        self.expected[name] = outcomes[0]
        self.states[name] = before, self._hits() if COMMANDS[name].changes else ""

    def prepare(self, name):
        """Return a working folder that contains only the folder that the command replaces."""
        for folder in (self.work, self.folder / "tmp"):
            shutil.rmtree(folder)
            folder.mkdir()
        if existing := COMMANDS[name].existing:
            made = self.folder / "existing" / name.replace(" ", "-")
            if not made.exists():
                for line in existing.splitlines():
                    self._done(line, self.work)
                shutil.copytree(self.work, made)
            else:
                shutil.copytree(made, self.work, dirs_exist_ok=True)

    def _run(self, line, folder, **options):
        running = Running(shlex.split(line), folder, **options)
        if len(running.processes) > 1:
            running.end_others()
        try:
            return running.finish()
        finally:
            self.printed = running.printed

    def _done(self, line, folder, **options):
        assert self._run(line, folder, **options) == 0, f"rkit {line}\n{self.printed}"

    def kill(self, name, number, share, *, rank=0):
        """Send a signal to a command after a share of its time, check its remains, and run it again.

        Of several processes, only this rank gets the signal, except for an interrupt.
        """
        self.measure(name)
        command, made, moment = COMMANDS[name], Trial(name), share * self.seconds[name]
        self.prepare(name)
        earlier = digests(self.work)
        running = Running(shlex.split(command.words), self.work, processes=command.processes)
        interrupted = not running.wait(moment)
        hit = running.processes[min(rank, len(running.processes) - 1)]
        if interrupted:
            running.send(number, running.processes if number == signal.SIGINT else [hit])
            if len(running.processes) > 1 and number != signal.SIGINT:
                running.end_others()
        try:
            code = running.finish()
            made.code = hit.exitcode if interrupted else None
            assert interrupted or code == 0, running.printed
        except TimeoutError as error:
            made.problems.append(str(error))
        if left := running.left_running():
            made.problems.append(f"left {len(left)} processes running")
        # Before rkit's own first line Python ends as it does.
        if made.code not in (None, 0, EXPECTED[number]) and not (moment < 0.1 and made.code == -number):
            made.problems.append(f"ended with exit code {made.code}")
        printed = running.printed
        if "Traceback" in printed:
            made.problems.append(f"printed a traceback: {printed[-1500:]}")
        if number == signal.SIGINT and made.code == 130 and printed.count("nterrupted") > 1:
            made.problems.append(f"printed more than a line: {printed[-500:]}")
        self._check(made, earlier)
        return made

    def fault(self, name, kind, source):
        """Run a command with a fault of the machine, check its remains, and run it again."""
        self.measure(name)
        command, made, prepare = COMMANDS[name], Trial(name), kind(source)
        self.prepare(name)
        earlier = digests(self.work)
        try:
            made.code = self._run(command.words, self.work, processes=command.processes, before=prepare)
        except TimeoutError as error:
            made.problems.append(str(error))
        printed = self.printed
        if "Traceback" in printed or made.code not in (0, 1, 2) or (made.code and printed.count("Error: ") != 1):
            made.problems.append(f"did not end with one message: {printed[-1500:]}")
        made.code = made.code or None  # nothing went wrong
        self._check(made, earlier)
        return made

    def _check(self, made, earlier):
        """Check that outputs are whole or absent, and that the command writes the same output when it runs again."""
        command, now, expected = COMMANDS[made.name], digests(self.work), self.expected[made.name]
        for file in () if command.searched else now.keys() - {file for file in now if _hidden(file)}:
            if (
                now[file] not in (expected.get(file, "volatile"), earlier.get(file))
                and expected.get(file) != "volatile"
            ):
                made.problems.append(f"left '{file}', which is not whole")
        if command.changes and self._hits() not in self.states[made.name]:
            made.problems.append("left an index that is neither what it was nor what it becomes")
        code = self._run(f"{command.words} {command.again}", self.work, processes=command.processes)
        if code and not (code == 2 and "exists already" in self.printed):
            made.problems.append(f"run again it ended with exit code {code}: {self.printed[-1500:]}")
            return
        outcome = self._outcome(made.name)
        if different := sorted(file for file in outcome.keys() | expected if outcome.get(file) != expected.get(file)):
            made.problems.append(f"run again it wrote something else, or left for good: {different}")
        if digests(self.inputs) != self.before:
            made.problems.append("changed its inputs")

    def _outcome(self, name):
        """Return the digests of a command's output, or the hits of a searched index."""
        command, found = COMMANDS[name], digests(self.work)
        found |= {f"tmp/{file}": digest for file, digest in digests(self.folder / "tmp").items()}
        found = {file: "volatile" if Path(file).name in command.volatile else one for file, one in found.items()}
        if command.searched:
            found = {file: one for file, one in found.items() if not file.startswith("out/")} | {"found": self._hits()}
        return found

    def _hits(self):
        """Return a digest of the hits in the index that a command writes."""
        self._done(f"search out --queries {DATA} --k 5 --output found.trec", self.work)
        hits = self.work / "found.trec"
        try:
            return hashlib.sha256(hits.read_bytes()).hexdigest()
        finally:
            hits.unlink()


def largest_file(source):
    """Limit the size of files, like a disk that is full."""
    size = int((1 << 18) ** source.uniform(0.6, 1.0))

    def prepare():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return prepare


def failing_rename(source):
    """Make renames fail, from some rename on, as over a network."""
    number, first = source.choice((errno.EXDEV, errno.ESTALE, errno.EIO, errno.ENOSPC)), int(12 ** source.random())

    def prepare():
        calls, rename = [], os.rename

        def failing(before, after, **options):
            calls.append(1)
            if len(calls) >= first:
                raise OSError(number, os.strerror(number), before, None, after)
            return rename(before, after, **options)

        os.rename = os.replace = failing

    return prepare


FAULTS = (largest_file, failing_rename)


def digests(folder):
    """Return relative path -> digest of each file, except TensorBoard's files, whose names contain times."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if "logs" in name.parts:
            continue
        if path.is_file():
            found[name.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.is_dir() and not any(path.iterdir()):
            found[f"{name.as_posix()}/"] = "folder"
    return found


def _hidden(file):
    return any(part.startswith(".") for part in Path(file).parts)
