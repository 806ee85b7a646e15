"""Processes that torchrun started end when it is gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time

import psutil

from killed_processes import forks, start
from retrievalkit.train import parent

pytestmark = forks


def wait_for_the_other():
    """What torchrun's processes do, in a step that does not end."""
    from torch import distributed

    if distributed.get_rank() == 0:
        time.sleep(60)
    distributed.barrier()


def fails_alone():
    """The first process meets an error while the second waits for it."""
    from torch import distributed

    from retrievalkit.train import processes

    with processes.joined():
        # Both are connected: on a busy machine the second could still be about to when the first ends.
        distributed.barrier()
        if distributed.get_rank() == 0:
            raise OSError(13, "refused")
        distributed.barrier()


def test_the_others_end_in_silence_when_a_process_fails(tmp_path, capfd):
    """It says why; what gloo makes of the lost connection would be a traceback for each of them."""
    found = start(fails_alone, tmp_path, 2)
    for one in found:
        one.join()
    assert [one.exitcode for one in found] == [1, 1]
    printed = capfd.readouterr().err
    assert "refused" in printed
    assert "gloo" not in printed


def starts_two(folder):
    """A process as torchrun, which is to be killed."""
    os.environ["TORCHELASTIC_RUN_ID"] = "1"
    parent._parent = os.getpid()
    parent.watch.cache_clear()
    for one in start(wait_for_the_other, folder, 2):
        one.join()


def test_two_processes_end_when_the_one_that_started_them_is_killed(tmp_path):
    """Also the one that waits in gloo."""
    process = multiprocessing.get_context("fork").Process(target=starts_two, args=(tmp_path,))
    process.start()
    time.sleep(2.0)
    children = psutil.Process(process.pid).children()
    assert len(children) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert psutil.wait_procs(children, timeout=10)[1] == []


def test_a_process_of_its_own_is_not_watched(monkeypatch):
    """Its parent may be a shell that has ended."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    parent.watch.cache_clear()
    parent.watch()
    assert "parent" not in [one.name for one in threading.enumerate()]
