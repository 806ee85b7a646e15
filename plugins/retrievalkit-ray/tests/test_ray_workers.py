"""The tests of a real Ray cluster, in a process of their own: Ray leaves threads and handlers of signals behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_on_a_cluster_of_two_nodes():
    cases = Path(__file__).with_name("ray_cases.py")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)]
    done = subprocess.run(words, cwd=cases.parents[3], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:]
