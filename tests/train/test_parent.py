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
