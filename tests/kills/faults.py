"""Faults of the machine while a command writes: each has to be a message, and nothing may be lost.

`python -m kills --faults --count 100 --seed 1` draws commands, faults and their moments, as `make kill` draws kills.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from kills.commands import COMMANDS
from kills.trial import Bench, Trial, digests

_LARGEST = 1 << 18
"""Bytes: about what the largest files of these commands have."""

_ROOM = "size=1g"
_DAY = 24 * 3600.0
_ERRORS = (errno.EXDEV, errno.ESTALE, errno.EBUSY, errno.EIO, errno.ENOSPC, errno.EACCES)


@dataclass(frozen=True)
class Fault:
    """What goes wrong.

    Attributes:
        kind: What it is.
        text: The same, in detail.
        prepare: Called in the process of the command before it starts.
        place: Wraps the command alone: a change of the machine.
        harmless: The command must succeed.
        disk: The output is on a disk of its own.
    """

    kind: str
    text: str
    prepare: Callable[[], None] = lambda: None
    place: Callable[[Bench], AbstractContextManager[object]] = nullcontext
    harmless: bool = False
    disk: bool = False


def largest_file(source: random.Random) -> Fault:
    """A limit to the size of files, which stands for a disk that is full at some byte."""
    size = int(_LARGEST ** source.uniform(0.3, 1.0))

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return Fault("file size", f"with files of at most {size} bytes", limited)


def small_disk(source: random.Random) -> Fault:
    """A disk of some pages, which all files share."""
    pages = int(256 ** source.random())

    @contextmanager
    def mounted(bench: Bench) -> Iterator[None]:
        used = os.statvfs(bench.work)
        full = used.f_blocks - used.f_bfree + pages
        _mount("-o", f"remount,size={full * used.f_frsize}", bench.work)
        try:
            yield
        finally:
            # What is left stays for the next command, which has room.
            _mount("-o", f"remount,{_ROOM}", bench.work)

    return Fault("small disk", f"with room for {pages} pages", place=mounted, disk=True)


def failing_rename(source: random.Random) -> Fault:
    """A rename fails as over a network; once, or from then on."""
    number, count, once = source.choice(_ERRORS), int(12 ** source.random()), source.random() < 0.5

    def failing() -> None:
        calls = []

        def wrap(original):
            def rename(before, after, **options):
                calls.append(1)
                if len(calls) == count or (len(calls) > count and not once):
                    raise OSError(number, os.strerror(number), before, None, after)
                return original(before, after, **options)

            return rename

        os.rename, os.replace = wrap(os.rename), wrap(os.replace)

    when = f"rename {count}" if once else f"every rename from {count} on"
    return Fault("rename", f"{when} fails: {errno.errorcode[number]}", failing)


def clock_back(source: random.Random) -> Fault:
    """The clock goes back by a day."""
    count = source.randint(1, 40)

    def back() -> None:
        calls, original = [], time.time

        def now() -> float:
            calls.append(1)
            return original() - (_DAY if len(calls) >= count else 0.0)

        time.time = now
        time.time_ns = lambda: int(now() * 1e9)

    return Fault("clock", f"the clock goes back when it is read for the {count}th time", back, harmless=True)


def read_only_output(_: random.Random) -> Fault:
    """The folder of the output cannot be written to."""

    @contextmanager
    def mounted(bench: Bench) -> Iterator[None]:
        _mount("--bind", bench.work, bench.work)
        _mount("-o", "remount,ro,bind", bench.work)
        try:
            yield
        finally:
            _unmount(bench.work)

    return Fault("no writing", "in a folder that cannot be written to", place=mounted)


def read_only_inputs(_: random.Random) -> Fault:
    """The inputs cannot be written to."""

    @contextmanager
    def mounted(bench: Bench) -> Iterator[None]:
        _mount("--bind", bench.inputs, bench.inputs)
        _mount("-o", "remount,ro,bind", bench.inputs)
        try:
            yield
        finally:
            _unmount(bench.inputs)

    return Fault("inputs", "with inputs that cannot be written to", place=mounted, harmless=True)


WITHOUT_MOUNTS = (largest_file, failing_rename, clock_back)
ALL = (*WITHOUT_MOUNTS, small_disk, read_only_output, read_only_inputs)


def possible(folder: Path) -> tuple[Callable[[random.Random], Fault], ...]:
    """The faults that this user can make in a folder: mounts need root."""
    place = folder / "mount"
    place.mkdir()
    try:
        _mount("-t", "tmpfs", "none", place)
        _unmount(place)
    except (OSError, subprocess.CalledProcessError):
        return WITHOUT_MOUNTS
    finally:
        place.rmdir()
    return ALL


def faulted(bench: Bench, name: str, fault: Fault) -> Trial:
    """Run a command while something is wrong, look at what it left, and run it again.

    Args:
        bench: The bench.
        name: The command.
        fault: What is wrong.
    """
    command, made = COMMANDS[name], Trial(name, fault.kind, fault.text)
    if fault.disk:
        _mount("-t", "tmpfs", "-o", _ROOM, "none", bench.work)
    try:
        bench.prepare(name)
        earlier = digests(bench.work)
        with fault.place(bench):
            made.code, printed = bench.run_piped(command, fault.prepare)
        check(made, printed, fault)
        bench.check_left(made, earlier)
        bench.check_again(made, command)
    except TimeoutError as error:
        made.problems.append(str(error))
    finally:
        if fault.disk:
            _unmount(bench.work)
    return made


def check(made: Trial, printed: str, fault: Fault) -> None:
    """One message, and an exit code that says whose fault it was."""
    if "Traceback" in printed or "Exception ignored" in printed:
        made.problems.append(f"printed a traceback: {printed[-1500:]}")
    elif made.code not in ((0,) if fault.harmless else (0, 1, 2)):
        made.problems.append(f"ended with exit code {made.code}: {printed[-500:]}")
    elif made.code and printed.count("Error: ") != 1:
        made.problems.append(f"printed another number of messages than one: {printed[-800:]}")
    if made.code == 0:
        # Nothing went wrong.
        made.code = None
    made.how += "".join(f" ({line})" for line in printed.splitlines() if line.startswith("Error: "))


def _mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", str(folder)], check=True, capture_output=True)
