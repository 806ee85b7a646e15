"""Commands that read damaged input end with exit code 0, or 2 and one message; what once failed is kept in cases/."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    """Run the kept cases and 300 trials in a process of its own, which imports everything once and forks."""
    folder = tmp_path_factory.mktemp("fuzzed")
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    command = [sys.executable, "-m", "fuzz", "--trials", "300", "--seed", "11", "--no-plugins"]
    command += ["--report", str(folder / "report"), "--cases", str(Path(__file__).parent / "cases")]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert (folder / "report" / "report.txt").exists(), done.stdout + done.stderr
    return folder / "report"


def test_300_damaged_inputs_end_in_a_result_or_one_message(fuzzed):
    """No traceback, no signal, nothing left behind, no other result in silence."""
    groups = sorted(fuzzed.glob("[0-9]*.json"))
    assert not groups, (fuzzed / "report.txt").read_text()


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_what_once_failed_does_not_fail_again(case, fuzzed):
    """Each is the smallest input found, and its edits can still be made."""
    told = json.loads((fuzzed / "cases.json").read_text())[case.name]
    assert told["failures"] == [], told
    assert told["applied"] == len(json.loads(case.read_text())["edits"]), told
