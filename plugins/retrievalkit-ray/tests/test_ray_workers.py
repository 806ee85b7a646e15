"""Runs the tests on a Ray cluster in a subprocess, because Ray leaves threads and signal handlers behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_on_a_cluster_of_two_nodes():
    cases = Path(__file__).with_name("ray_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)]
    process = subprocess.run(command, cwd=cases.parents[3], capture_output=True, text=True, check=False, timeout=900)
    assert process.returncode == 0, process.stdout[-4000:]
