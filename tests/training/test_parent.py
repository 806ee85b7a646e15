"""Processes that torchrun started end when it is gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import psutil
import pytest

from killed_processes import forks, start
from retrievalkit.training import parent

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

    from retrievalkit.training import processes

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


WATCHED = """
import time
from retrievalkit.training import parent
parent.watch()
time.sleep({seconds})
"""


def running(program, starter):
    """The processes that run a program, but the one that starts it."""
    found = psutil.process_iter(["pid", "cmdline"])
    return [one for one in found if one.pid != starter and str(program) in (one.info["cmdline"] or ())]


def test_processes_end_when_torchrun_is_killed_while_they_start(tmp_path):
    """Python reads the number of its parent once it has started: by then it may have another parent."""
    program = tmp_path / "program.py"
    program.write_text(WATCHED.format(seconds=60))
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(program)]
    torchrun = subprocess.Popen(words, env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)})
    while not running(program, torchrun.pid):
        assert torchrun.poll() is None
    torchrun.kill()
    torchrun.wait()
    assert psutil.wait_procs(running(program, torchrun.pid), timeout=10)[1] == []


@pytest.mark.parametrize(("place", "expected"), [("closed", 143), ("open", 0), ("unknown", 0)])
def test_a_process_ends_where_nobody_listens_at_the_store_of_torchrun(place, expected):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if place == "closed":
            server.close()
        host = "nowhere.invalid" if place == "unknown" else "127.0.0.1"
        own = {
            "TORCHELASTIC_RUN_ID": "1",
            parent.STORE_OF_TORCHRUN: "True",
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
        }
        words = [sys.executable, "-c", WATCHED.format(seconds=2)]
        ended = subprocess.run(words, env=os.environ | own, check=False, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == expected
    assert ("torchrun, which started this process, has ended" in ended.stderr) == (place == "closed")


def test_a_process_of_its_own_is_not_watched(monkeypatch):
    """Its parent may be a shell that has ended."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    parent.watch.cache_clear()
    parent.watch()
    assert "parent" not in [one.name for one in threading.enumerate()]
