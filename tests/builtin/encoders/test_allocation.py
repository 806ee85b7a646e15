"""Memory of tensors that were freed is used again, instead of new pages of the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

_FREED_AND_TAKEN_AGAIN = """
import resource, sys, torch
from retrievalkit.builtin.encoders.allocation import keep_freed_memory
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
