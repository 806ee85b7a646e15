"""Commands that read damaged input end with exit code 0, or 2 and one message; earlier failures are in cases/."""

import os
import subprocess
import sys
from pathlib import Path


def test_damaged_inputs_end_in_a_result_or_a_single_message(tmp_path):
    """The kept cases and 300 random trials: no traceback, no signal, no remains, no silently different result."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    command = [sys.executable, "-m", "fuzz", "--trials", "300", "--seed", "11", "--report", str(tmp_path / "report")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
