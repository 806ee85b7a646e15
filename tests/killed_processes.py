"""Forked processes: several that train together, or a process that is killed at a chosen moment."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket

import pytest

# For tests that fork: the forks use no threads of the libraries.
forks = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def first_fast(moments):
    """Return the moments as parameters of a test; all except the first are slow."""
    return [pytest.param(moment, marks=() if row == 0 else pytest.mark.slow) for row, moment in enumerate(moments)]


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_call(owner, name, count, *, after=False):
    """Replace a function so that the process is killed at its `count`-th call, before or after its work.

    For use in the forked process: the function is not restored.
    """
    original, calls = getattr(owner, name), []

    def replaced(*arguments, **options):
        calls.append(1)
        if len(calls) == count and not after:
            kill()
        result = original(*arguments, **options)
        if len(calls) == count:
            kill()
        return result

    setattr(owner, name, replaced)


def in_another_process(function):
    """Run in a fork, where torch is already imported; return its exit code, `-signal.SIGKILL` if it was killed."""
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    process.join()
    return process.exitcode


def start(function, folder, count):
    """Fork processes with the environment of torchrun; results of `function` are stored in the folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def run(rank):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in own.items()})
        from retrievalkit.training.collective import join

        join()
        import torch

        torch.save(function(), folder / f"{rank}.pt")

    context = multiprocessing.get_context("fork")
    started = [context.Process(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for process in started:
        process.start()
    return started
