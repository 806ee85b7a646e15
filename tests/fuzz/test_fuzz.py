"""Commands that read damaged input end with exit code 0, or 2 and one message; what once failed is kept in cases/."""

import os
import subprocess
import sys
from pathlib import Path


def test_kept_cases_and_300_damaged_inputs_end_in_a_result_or_one_message(tmp_path):
    """No traceback, no signal, nothing left behind, no other result in silence; in a process that can fork."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    command = [sys.executable, "-m", "fuzz", "--trials", "300", "--seed", "11", "--report", str(tmp_path / "report")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
