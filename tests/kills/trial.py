"""One trial: a command is killed at some moment, what it left is looked at, and it is run again."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from kills.commands import COMMANDS, DATA, Command, make_inputs
from kills.starting import SIGNALS, Running, start

_OURS = re.compile(r"/retrievalkit/(?!__)")
EXPECTED = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
LISTENS = importlib.util.find_spec("retrievalkit.cli.signals") is not None
"""Whether rkit answers SIGTERM; without, it ends at once, as by SIGKILL."""


@dataclass
class Trial:
    """What happened.

    Attributes:
        name: Of the command.
        kind: What was done to it: the name of a signal or of a fault.
        how: The same, with its moment.
        code: Exit code of what was disturbed; None = it had ended before.
        left: Hidden files and folders that it left.
        problems: What should not be so.
    """

    name: str
    kind: str
    how: str
    code: int | None = None
    left: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"'{self.name}', {self.how}: exit code {self.code}, left {self.left}: " + (
            "; ".join(self.problems) or "ok"
        )


class Bench:
    """A folder in which commands are killed; what they read is in it too.

    Args:
        folder: An empty folder.
        names: The commands, of `COMMANDS`.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self.work = folder, folder / "work"
        self.inputs = folder / "inputs"
        self.inputs.mkdir(parents=True)
        make_inputs(self.inputs, self._make, names)
        self.before = digests(self.inputs)
        self.expected: dict[str, dict[str, str]] = {}
        self.states: dict[str, tuple[str, str]] = {}
        self.seconds: dict[str, float] = {}
        for name in names:
            self._measure(name)

    def _make(self, line: str) -> None:
        (self.folder / "tmp").mkdir(exist_ok=True)
        if start(shlex.split(line), self.inputs).finish():
            msg = f"rkit {line}\n{self._printed()}"
            raise RuntimeError(msg)

    def _measure(self, name: str) -> None:
        """Run a command twice undisturbed: what it writes, and how long that takes."""
        found, before = [], ""
        for _ in range(2):
            self.prepare(name)
            if COMMANDS[name].changes:
                before = self._found()
            started = time.monotonic()
            code = self._run(COMMANDS[name], COMMANDS[name].words)
            self.seconds[name] = time.monotonic() - started
            if code:
                msg = f"rkit {COMMANDS[name].words}\n{self._printed()}"
                raise RuntimeError(msg)
            found.append(self._outcome(name))
        if found[0] != found[1]:
            different = [file for file in found[0] if found[0][file] != found[1].get(file)]
            msg = f"'{name}' does not repeat itself: {different}"
            raise RuntimeError(msg)
        self.expected[name] = found[0]
        if COMMANDS[name].changes:
            self.states[name] = before, self._found()

    @cached_property
    def startup(self) -> float:
        """How much longer a command takes in a Python of its own."""
        started = time.monotonic()
        start(["search", "nowhere", "--queries", DATA], self.inputs, fresh=True).finish()
        return time.monotonic() - started

    def prepare(self, name: str) -> None:
        """An empty folder to work in, which may be a disk of its own, but for what the command is to replace."""
        for folder in (self.work, self.folder / "tmp"):
            folder.mkdir(exist_ok=True)
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if existing := COMMANDS[name].existing:
            made = self.folder / "existing" / name.replace(" ", "-")
            if not made.exists():
                for line in existing.splitlines():
                    assert start(shlex.split(line), self.work).finish() == 0, self._printed()
                shutil.copytree(self.work, made)
            else:
                shutil.copytree(made, self.work, dirs_exist_ok=True)

    def run_piped(self, command: Command, before: Callable[[], None]) -> tuple[int, str]:
        """Run a command in a fork that does something before; what it prints is no file, which might have no room."""
        read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 1 << 20)

        def prepare() -> None:
            os.dup2(write, 1)
            os.dup2(write, 2)
            before()

        try:
            code = self._run(command, command.words, prepare)
            os.write(write, b"\n")
            return code, os.read(read, 1 << 20).decode(errors="replace")
        finally:
            os.close(read)
            os.close(write)

    def _run(self, command: Command, line: str, before: Callable[[], None] | None = None) -> int:
        self._clear_streams()
        running = start(shlex.split(line), self.work, processes=command.processes, before=before)
        if command.processes > 1:
            running.end_others()
        return running.finish()

    def _clear_streams(self) -> None:
        for name in ("stdout", "stderr"):
            (self.folder / name).write_bytes(b"")

    def _printed(self) -> str:
        return (self.folder / "stderr").read_text(errors="replace")

    def trial(self, name: str, number: signal.Signals, moment: float, *, rank: int = 0, fresh: bool = False) -> Trial:
        """Kill a command, and run it again.

        Args:
            name: The command.
            number: The signal.
            moment: When it is sent, in seconds from the start.
            rank: Of several processes, the one that gets the signal; an interrupt goes to all.
            fresh: Start it as a process of its own.
        """
        command, place = COMMANDS[name], "a process of its own" if fresh else "a fork"
        made = Trial(name, number.name, f"{number.name} after {moment:.3f} s in {place}, rank {rank}")
        self.prepare(name)
        earlier = digests(self.work)
        self._clear_streams()
        running = start(shlex.split(command.words), self.work, processes=command.processes, fresh=fresh)
        try:
            self._disturb(running, command, made, number, moment, rank)
        except TimeoutError as error:
            made.problems.append(str(error))
        if left := running.left_running():
            made.problems.append(f"left {len(left)} processes running")
        # Before rkit's own first line Python ends as it does.
        early = moment < (self.startup if fresh else 0.1)
        self._check_killed(made, number, early=early, fresh=fresh)
        self.check_left(made, earlier)
        if command.changes and self._found() not in self.states[name]:
            made.problems.append("left an index that is neither what it was nor what it becomes")
        self.check_again(made, command)
        return made

    def _disturb(
        self, running: Running, command: Command, made: Trial, number: signal.Signals, moment: float, rank: int
    ) -> None:
        if running.wait(moment):
            assert running.finish() == 0, self._printed()
            return
        hit = running.leaders[min(rank, len(running.leaders) - 1)]
        interrupted = number == signal.SIGINT
        running.send(number, running.leaders if interrupted else [hit])
        if len(running.leaders) > 1 and not interrupted:
            running.end_others()
        running.finish()
        made.code = running.codes[hit]

    def _check_killed(self, made: Trial, number: signal.Signals, *, early: bool, fresh: bool) -> None:
        """How a killed command ended: in one line."""
        unheard = number != signal.SIGKILL and made.code == -number
        if made.code not in (None, 0, EXPECTED[number]) and not (unheard and (early or not LISTENS)):
            made.problems.append(f"ended with exit code {made.code}")
        printed = self._printed()
        # Python's own, before the command line is imported, and torchrun's are not ours.
        if "Traceback" in printed and not (fresh and not _OURS.search(printed)):
            made.problems.append(f"printed a traceback: {printed[-1500:]}")
        if number == signal.SIGINT and made.code == 130 and not fresh and printed.count("nterrupted") > 1:
            made.problems.append(f"printed more than a line: {printed[-500:]}")

    def check_left(self, made: Trial, earlier: dict[str, str]) -> None:
        """What a command left: whole outputs or none, and its inputs as they were."""
        now = digests(self.work)
        hidden = {file for file in now if _hidden(file)}
        made.left = sorted(
            {_top_hidden(file) for file in hidden} | {f"tmp/{one.name}" for one in (self.folder / "tmp").iterdir()}
        )
        expected = self.expected[made.name]
        if not COMMANDS[made.name].searched:
            for file in now.keys() - hidden:
                if (
                    now[file] not in (expected.get(file, "volatile"), earlier.get(file))
                    and expected.get(file) != "volatile"
                ):
                    made.problems.append(f"left '{file}', which is not whole")

    def check_again(self, made: Trial, command: Command) -> None:
        """That the command, run again, writes what it would have written."""
        code = self._run(command, f"{command.words} {command.again}")
        complete = code == 2 and "exists already" in self._printed()
        if code and not complete:
            made.problems.append(f"run again it ended with exit code {code}: {self._printed()[-1500:]}")
            return
        outcome, expected = self._outcome(made.name), self.expected[made.name]
        if different := sorted(file for file in outcome.keys() & expected.keys() if outcome[file] != expected[file]):
            made.problems.append(f"run again it wrote something else: {different}")
        if lacking := sorted(expected.keys() - outcome.keys()):
            made.problems.append(f"run again it did not write {lacking}")
        if more := sorted(outcome.keys() - expected.keys()):
            made.problems.append(f"left for good: {more}")
        if digests(self.inputs) != self.before:
            made.problems.append("changed its inputs")

    def _outcome(self, name: str) -> dict[str, str]:
        """All that a command that ended has left; of an index that is searched, what is found."""
        command, found = COMMANDS[name], digests(self.work)
        found |= {f"tmp/{file}": digest for file, digest in digests(self.folder / "tmp").items()}
        found = {file: "volatile" if Path(file).name in command.volatile else one for file, one in found.items()}
        if command.searched:
            visible = {file for file in found if file.startswith("out/")}
            found = {file: one for file, one in found.items() if file not in visible} | {"found": self._found()}
        return found

    def _found(self) -> str:
        """A digest of what is found in the index that a command writes."""
        words = ["search", "out", "--queries", DATA, "--k", "5", "--output", "found.trec"]
        assert start(words, self.work).finish() == 0, self._printed()
        hits = self.work / "found.trec"
        try:
            return _digest(hits.read_bytes())
        finally:
            hits.unlink()


def draw_moments(bench: Bench, source, count: int, *, fresh_share: float, startup: float) -> list[tuple]:
    """Commands, signals and moments: each command in turn, the moment drawn over its whole run time."""
    names = list(bench.seconds)
    drawn = []
    for number in range(count):
        name = names[number % len(names)]
        fresh = source.random() < fresh_share
        longest = bench.seconds[name] + (startup if fresh else 0.0)
        drawn.append((name, source.choice(SIGNALS), source.uniform(0.0, longest), source.randrange(2), fresh))
    return drawn


def table(trials: list[Trial]) -> str:
    """How many trials, and how many ended before anything went wrong, by command and kind."""
    kinds = list(dict.fromkeys(one.kind for one in sorted(trials, key=lambda one: one.kind)))
    counts = Counter((one.name, one.kind) for one in trials)
    late = Counter(one.name for one in trials if one.code is None)
    wrong = Counter(one.name for one in trials if one.problems)
    rows = [f"{'command':28} " + " ".join(f"{kind:>10}" for kind in kinds) + f" {'too late':>9} {'wrong':>6}"]
    for name in dict.fromkeys(one.name for one in trials):
        by_kind = " ".join(f"{counts[name, kind]:10}" for kind in kinds)
        rows.append(f"{name:28} {by_kind} {late[name]:9} {wrong[name]:6}")
    return "\n".join(rows)


def digests(folder: Path) -> dict[str, str]:
    """Relative path -> digest of each file; without TensorBoard's files, whose names hold times."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if "logs" in name.parts or name.parts[0].startswith("torchelastic_"):
            continue  # torchrun leaves its own folder where it is killed
        if path.is_file():
            found[name.as_posix()] = _digest(path.read_bytes())
        elif path.is_dir() and not any(path.iterdir()):
            found[f"{name.as_posix()}/"] = "folder"
    return found


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _hidden(file: str) -> bool:
    return any(part.startswith(".") for part in Path(file).parts)


def _top_hidden(file: str) -> str:
    parts = Path(file).parts
    place = next(row for row, part in enumerate(parts) if part.startswith("."))
    return "/".join(parts[: place + 1])
