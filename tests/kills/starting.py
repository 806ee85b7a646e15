"""Starts rkit as forks of this process, which has imported everything.

Each started command is the leader of a session, so that whatever it leaves running is found.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from contextlib import suppress

import psutil

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_PATIENCE, _POLL = 60.0, 0.005


def preload():
    """Import what commands import, with one thread, so that a fork has it."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import faiss  # noqa: F401
    import pymilvus  # noqa: F401
    import scipy.sparse  # noqa: F401
    import tensorboard  # noqa: F401
    import torch

    import retrievalkit.cli
    import retrievalkit.evaluation.compare.page
    import retrievalkit.evaluation.evaluation
    import retrievalkit.indexing.build
    import retrievalkit.indexing.encoding
    import retrievalkit.mining.negatives
    import retrievalkit.recipes.run
    import retrievalkit.search.pair_scoring
    import retrievalkit.search.tuning
    import retrievalkit.training.pretraining
    import retrievalkit.training.reranker
    import retrievalkit.training.retriever  # noqa: F401

    torch.set_num_threads(1)
    # Also where this runs in the background, with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Running:
    """The processes of a command, the main one first, and the exit codes of those that ended; negative for a signal."""

    def __init__(self, leaders):
        self.leaders, self.codes = leaders, {}

    def send(self, number, leaders):
        """Send a signal to those that still run."""
        for one in leaders:
            if not self._ended(one):
                os.kill(one, number)

    def wait(self, seconds):
        """Wait until all have ended; returns whether they have."""
        until = time.monotonic() + seconds
        while sum(self._ended(one) for one in self.leaders) < len(self.leaders):
            if time.monotonic() >= until:
                return False
            time.sleep(_POLL)
        return True

    def end_others(self):
        """When one process has failed, end the others as torchrun does."""
        while not any(self._ended(one) for one in self.leaders):
            time.sleep(_POLL)
        if any(self.codes.values()):
            self.send(signal.SIGTERM, self.leaders)
            if not self.wait(10.0):
                self.send(signal.SIGKILL, self.leaders)

    def finish(self):
        """The exit code of the main process, once all have ended; those that do not end in time are killed."""
        if not self.wait(_PATIENCE):
            self.send(signal.SIGKILL, self.leaders)
            self.wait(_PATIENCE)
            msg = f"did not end within {_PATIENCE:.0f} s"
            raise TimeoutError(msg)
        return self.codes[self.leaders[0]]

    def left_running(self, seconds=3.0):
        """Processes of the sessions that are still there after some time; they are killed."""
        until = time.monotonic() + seconds
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(10 * _POLL)
        for one in left:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        return left

    def _left(self):
        found = []
        for one in psutil.process_iter(["status"]):
            with suppress(ProcessLookupError, PermissionError):
                if one.info["status"] != psutil.STATUS_ZOMBIE and os.getsid(one.pid) in self.leaders:
                    found.append(one)
        return found

    def _ended(self, process):
        if process not in self.codes:
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                self.codes[process] = os.waitstatus_to_exitcode(status)
        return process in self.codes


def start(words, folder, *, processes=1, before=None):
    """Start a command line in a folder; what it prints goes to `stdout` and `stderr` in the folder's parent.

    `before` is called in each process before the command.
    """
    environment = {**ENVIRONMENT, "TMPDIR": str(folder.parent / "tmp"), "TERM": "dumb"}
    if processes > 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        environment |= {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {} for rank in range(processes)]
    return Running([_forked(words, folder, environment | own, before) for own in ranks])


def _forked(words, folder, environment, before):
    # A signal that comes at once waits until the command can answer it.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS[1:])
    process = os.fork()
    if process:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        return process
    code = 70
    try:
        code = _run_in_fork(words, folder, environment, masked, before)
    finally:
        os._exit(code)


def _run_in_fork(words, folder, environment, unblocked, before):
    from retrievalkit import cli

    os.setsid()
    os.chdir(folder)
    os.environ.update(environment)
    tempfile.tempdir = None
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in enumerate(("stdout", "stderr"), 1):
        os.dup2(os.open(folder.parent / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT), number)
    # pytest replaces these by files of its own.
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if before is not None:
        before()
    warnings.simplefilter("ignore", ResourceWarning)  # as Python does, and pytest does not
    code = 1
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
