"""Commands of rkit in forked processes, which start fast because torch is already imported."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """Result of a command: its exit code (negative: the signal that killed it) and its output."""

    code: int | None
    out: str
    err: str


def _rkit(words):
    from retrievalkit.cli import main

    main(words, prog_name="rkit")


def _pytest(words):
    """Run pytest without the state of the pytest that the process was forked from."""
    import pytest

    from retrievalkit import registry

    for name in [variable for variable in os.environ if variable.startswith("PYTEST_")]:
        del os.environ[name]
    warnings.resetwarnings()
    registry.default_registry.cache_clear()
    sys.exit(int(pytest.main(["-p", "no:cacheprovider", "-p", "no:xdist", *words])))


class Command:
    """A command that runs in a folder.

    Args:
        words: The command line, without "rkit".
        folder: The working folder.
        prepare: Called in the new process before the command, to set a limit or to replace a function.
        program: Function to call with the words instead of rkit.
    """

    def __init__(self, *words, folder, prepare=None, program=None):
        self.program = program or _rkit
        self.folder = Path(folder)
        self.words = [str(word) for word in words]
        self.prepare = prepare
        self._printed = [Path(f"{self.folder}.{os.urandom(4).hex()}.{name}") for name in ("out", "err")]
        self.process = multiprocessing.get_context("fork").Process(target=self._run)
        self.process.start()

    def _run(self):
        for number, path in enumerate(self._printed, 1):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
        os.chdir(self.folder)
        # As in a terminal: tests may run in the background or under nohup, where these are ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if self.prepare is not None:
            self.prepare()
        self.program(self.words)

    def end(self, timeout=60):
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        out, err = (path.read_text(errors="replace") if path.exists() else "" for path in self._printed)
        for path in self._printed:
            path.unlink(missing_ok=True)
        return Ended(self.process.exitcode, out, err)


def rkit(*words, folder, prepare=None, timeout=60):
    return Command(*words, folder=folder, prepare=prepare).end(timeout)


def pytest_in(folder, *words, environment, timeout=120):
    """Run the tests of a folder with environment variables; PYTHONPATH applies to this process too."""

    def prepare():
        os.environ.update(environment)
        sys.path[:0] = environment.get("PYTHONPATH", "").split(os.pathsep)

    return Command(*words, folder=folder, prepare=prepare, program=_pytest).end(timeout)


def complete(words, output):
    return [*words, output] if words[0] == "convert" else [*words, "--output", output]


def content(place):
    """Return the files of an output, except those that contain times."""
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    return {file.name: file.read_bytes() for file in files if not file.name.startswith(("events.", "pace."))}
