"""Commands of rkit as forks of this process, which has imported everything.

Each started command is the leader of a session, so that all its remaining processes are found.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from functools import partial
from multiprocessing import connection

import psutil

from forked_commands import Command
from retrievalkit.cli import main

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
_PATIENCE, _POLL = 60.0, 0.05


def preload():
    """Import what commands import, with one thread, so that a fork has it."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import faiss  # noqa: F401
    import pymilvus  # noqa: F401
    import scipy.sparse  # noqa: F401
    import tensorboard  # noqa: F401
    import torch

    import retrievalkit.evaluation.compare.page
    import retrievalkit.evaluation.results
    import retrievalkit.indexing.build
    import retrievalkit.indexing.corpus_encoding
    import retrievalkit.mining.pipeline
    import retrievalkit.recipes.run
    import retrievalkit.search.fusion_tuning
    import retrievalkit.search.pair_scoring
    import retrievalkit.training.reranker
    import retrievalkit.training.retriever  # noqa: F401

    torch.set_num_threads(1)


class Running:
    """The processes of a command line in a folder, the main one first, and what they printed once they have ended.

    `before` is called in each process before the command.
    """

    def __init__(self, words, folder, *, processes=1, before=None):
        environment = {**ENVIRONMENT, "TMPDIR": str(folder.parent / "tmp"), "TERM": "dumb"}
        if processes > 1:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = str(probe.getsockname()[1])
            environment |= {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

        def prepare(own):
            os.setsid()
            os.environ.update(environment | own)
            tempfile.tempdir = None
            if before is not None:
                before()
            warnings.simplefilter("ignore", ResourceWarning)  # as Python does, and pytest does not

        def program(words):
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, masked)
                main(words, prog_name="rkit")
            except KeyboardInterrupt:  # it came before the command's own first line
                sys.exit(130)

        self.commands, self.printed = [], ""
        # A signal that comes immediately waits until the command can answer it.
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS[1:])
        for rank in range(processes):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}
            self.commands.append(Command(*words, folder=folder, prepare=partial(prepare, own), program=program))
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        self.processes = [one.process for one in self.commands]
        self.leaders = [one.pid for one in self.processes]

    def send(self, number, processes):
        """Send a signal to the running processes."""
        for one in processes:
            if one.is_alive():
                os.kill(one.pid, number)

    def wait(self, seconds):
        """Wait until all processes have ended; True if they have."""
        until = time.monotonic() + seconds
        for one in self.processes:
            one.join(max(0, until - time.monotonic()))
        return not any(one.is_alive() for one in self.processes)

    def end_others(self):
        """End the other processes after a failure, like torchrun."""
        while not connection.wait([one.sentinel for one in self.processes]):
            pass
        if any(one.exitcode for one in self.processes):
            self.send(signal.SIGTERM, self.processes)
            self.wait(10.0)
            self.send(signal.SIGKILL, self.processes)

    def finish(self):
        """Wait for all processes, kill those that do not end in time, and return the exit code of the main process."""
        in_time = self.wait(_PATIENCE)
        ended = [one.end(0) for one in self.commands]
        self.printed = "".join(one.err for one in ended)
        if not in_time:
            msg = f"did not end within {_PATIENCE:.0f} s"
            raise TimeoutError(msg)
        return ended[0].code

    def left_running(self, seconds=3.0):
        """Return the processes of the sessions that do not end in time, and kill them."""
        until = time.monotonic() + seconds
        while (left := self._left()) and time.monotonic() < until:
            time.sleep(_POLL)
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
