"""Memory of tensors that were freed is used again, instead of new pages of the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FREED_AND_TAKEN_AGAIN = """
import resource, sys, torch
from retrievalkit.model.allocation import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit("the C library lacks the setting")
taken = []
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.empty(25 << 20).fill_(1.0)
    taken.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(taken))
"""


def faults(which):
    command = [sys.executable, "-c", _FREED_AND_TAKEN_AGAIN, which]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "lacks the setting" in done.stderr:
        pytest.skip(done.stderr.strip())
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="counts the pages that Linux gives")
def test_a_tensor_takes_the_memory_of_the_last():
    """100 MiB are 25,600 pages, or 50 large ones."""
    assert faults("kept") < 10 < faults("given back")


_STEPS_OF_NEW_SIZES = """
import sys, torch
from retrievalkit.model.allocation import Surplus, held_memory, keep_freed_memory
if not keep_freed_memory():
    sys.exit("the C library lacks the setting")
kept, surplus = [], Surplus(allowed=64 << 20)
for step in range(10):
    # What is kept lies between what is freed, and the gaps are too small for the next step.
    held = []
    for _ in range(50):
        held.append(torch.ones((step + 10) << 15))
        kept.append(torch.ones(1 << 12))
    del held
    if sys.argv[1] == "given back":
        surplus.after_step()
print(held_memory() >> 20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux says of a process")
def test_steps_of_ever_new_sizes_do_not_make_the_process_grow():
    """The gaps between the tensors of earlier steps are given back to the system."""
    held = {}
    for which in ("kept", "given back"):
        command = [sys.executable, "-c", _STEPS_OF_NEW_SIZES, which]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "lacks the setting" in done.stderr:
            pytest.skip(done.stderr.strip())
        held[which] = int(done.stdout)
    assert held["given back"] < 0.7 * held["kept"]
