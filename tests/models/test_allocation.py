"""Freed memory stays in the process until it is returned to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

# In its own process, where no other setting of the allocator applies.
PROGRAM = """
import torch
from retrievalkit.models.allocation import held_memory, keep_freed_memory, return_freed_memory
if held_memory() is None or not keep_freed_memory():
    raise SystemExit("the system lacks the setting")
start, last = held_memory(), None
tensors = [torch.ones(1 << 22) for _ in range(16)]
last = torch.ones(1)
del tensors
kept = held_memory()
return_freed_memory()
print((kept - start) >> 20, (held_memory() - start) >> 20)
"""


def test_freed_memory_is_kept_until_it_is_returned():
    """The tensors have 256 MiB."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    if "lacks the setting" in done.stderr:
        pytest.skip(done.stderr)
    kept, returned = map(int, done.stdout.split())
    assert kept > 200
    assert returned < 50
