"""Starts rkit: as a fork of this process, which has imported everything, or as a process of its own.

Each started command is the leader of a session, so that whatever it leaves running is found.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_PATIENCE, _POLL = 60.0, 0.005


def preload() -> None:
    """Import what commands import, with one thread, so that a fork has it."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import faiss
    import pymilvus
    import scipy.sparse
    import tensorboard
    import torch

    import retrievalkit.cli
    import retrievalkit.evaluate.compare.page
    import retrievalkit.evaluate.evaluation
    import retrievalkit.indexing.build
    import retrievalkit.indexing.encoding
    import retrievalkit.mine.program
    import retrievalkit.recipe.run
    import retrievalkit.reranking.scoring
    import retrievalkit.search.tuning
    import retrievalkit.training.pretrain
    import retrievalkit.training.reranker
    import retrievalkit.training.retriever

    torch.set_num_threads(1)
    # Also where this runs in the background, with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    del faiss, pymilvus, scipy, tensorboard, retrievalkit


ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class Running:
    """A command that was started; of several processes, all of them.

    Attributes:
        leaders: The process ids of the processes that were started, the main one first.
        codes: The exit codes of those that ended; negative for a signal.
    """

    def __init__(self, leaders: Sequence[int]) -> None:
        self.leaders = list(leaders)
        self.codes: dict[int, int] = {}
        self._started: list[psutil.Process] = []

    def send(self, number: signal.Signals, leaders: Sequence[int]) -> None:
        """Send a signal to some processes, as far as they run; whatever they started has to end by itself."""
        for one in leaders:
            if not self._ended(one):
                with suppress(psutil.NoSuchProcess):
                    self._started += psutil.Process(one).children(recursive=True)
                os.kill(one, number)

    def wait(self, seconds: float) -> bool:
        """Wait until all have ended; returns whether they have."""
        until = time.monotonic() + seconds
        while sum(self._ended(one) for one in self.leaders) < len(self.leaders):
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL)
        return True

    def end_others(self) -> None:
        """When one process has failed, end the others as torchrun does; returns when all have ended."""
        while not any(self._ended(one) for one in self.leaders):
            time.sleep(_POLL)
        if any(self.codes.values()):
            self.send(signal.SIGTERM, self.leaders)
            if not self.wait(10.0):
                self.send(signal.SIGKILL, self.leaders)

    def finish(self) -> int:
        """The exit code of the main process, once all have ended.

        Raises:
            TimeoutError: One does not end; all are killed.
        """
        if not self.wait(_PATIENCE):
            left = [one for one in self.leaders if one not in self.codes]
            self.send(signal.SIGKILL, left)
            self.wait(_PATIENCE)
            msg = f"did not end within {_PATIENCE:.0f} s"
            raise TimeoutError(msg)
        return self.codes[self.leaders[0]]

    def left_running(self, seconds: float = 3.0) -> list[int]:
        """Processes of the sessions, and those that they had started, that are still there after some time.

        They are killed.
        """
        until = time.monotonic() + seconds
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(_POLL)
        for one in left:
            try:
                os.kill(one, signal.SIGKILL)
            except ProcessLookupError:
                continue
        return left

    def _left(self) -> list[int]:
        own = {one for leader in self.leaders for one in _session(leader)}
        return sorted(own | {one.pid for one in self._started if _is_running(one)})

    def _ended(self, process: int) -> bool:
        if process not in self.codes:
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                self.codes[process] = os.waitstatus_to_exitcode(status)
        return process in self.codes


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _session(leader: int) -> list[int]:
    """The processes of a session, but zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, _, session = (
                (entry / "stat").read_text().rpartition(")")[2].split()[:4] if entry.name.isdigit() else "Z000"
            )
        except (OSError, ValueError):
            continue
        if state != "Z" and int(session) == leader:
            found.append(int(entry.name))
    return found


def start(
    words: Sequence[str],
    folder: Path,
    *,
    processes: int = 1,
    fresh: bool = False,
    before: Callable[[], None] | None = None,
) -> Running:
    """Start a command in a folder; what it prints goes to `stdout` and `stderr` in the folder's parent.

    Args:
        words: The command line without "rkit".
        folder: The folder to run in.
        processes: How many processes to start together.
        fresh: Start a Python of its own, or torchrun, instead of a fork.
        before: Called in each fork before the command.
    """
    if fresh:
        return Running([_started(words, folder, processes)])
    if processes == 1:
        return Running([_forked(words, folder, {}, before)])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": probe.getsockname()[1]}
    own = [{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in range(processes)]
    return Running([_forked(words, folder, one, before) for one in own])


def _environment(folder: Path) -> dict[str, str]:
    return {**ENVIRONMENT, "TMPDIR": str(folder.parent / "tmp"), "TERM": "dumb"}


def _started(words: Sequence[str], folder: Path, processes: int) -> int:
    several = ("-m", "torch.distributed.run", "--nproc-per-node", str(processes)) if processes > 1 else ()
    with _streams(folder, "wb") as (out, err):
        process = subprocess.Popen(
            [sys.executable, *several, "-m", "retrievalkit", *words],
            cwd=folder,
            env={**os.environ, **_environment(folder)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    # `Running` waits for it by its number; the object would complain that nobody did.
    process.returncode = 0
    return process.pid


@contextmanager
def _streams(folder: Path, mode: str) -> Iterator[tuple]:
    with (folder.parent / "stdout").open(mode) as out, (folder.parent / "stderr").open(mode) as err:
        yield out, err


def _forked(words: Sequence[str], folder: Path, own: dict[str, object], before: Callable[[], None] | None) -> int:
    # A signal that comes at once waits until the command can answer it.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS[1:])
    process = os.fork()
    if process:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        return process
    code = 70
    try:
        code = _run_in_fork(words, folder, own, masked, before)
    finally:
        os._exit(code)


def _run_in_fork(
    words: Sequence[str],
    folder: Path,
    own: dict[str, object],
    unblocked: object,
    before: Callable[[], None] | None,
) -> int:
    import atexit
    import tempfile
    import threading
    import traceback

    from retrievalkit import cli

    os.setsid()
    os.chdir(folder)
    os.environ.update(_environment(folder) | {name: str(value) for name, value in own.items()})
    tempfile.tempdir = None
    with Path(os.devnull).open() as nothing, _streams(folder, "ab") as (out, err):
        for stream, number in ((nothing, 0), (out, 1), (err, 2)):
            os.dup2(stream.fileno(), number)
    # pytest replaces these by files of its own.
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: object = 1
    if before is not None:
        before()
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        cli.main(list(words), prog_name="rkit")
    except SystemExit as ended:
        code = ended.code or 0
    except KeyboardInterrupt:  # it came before the command's own first line
        code = 130
    except BaseException:  # noqa: BLE001 - shown as Python itself would
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else 1
