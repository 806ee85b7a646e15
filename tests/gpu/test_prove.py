"""prove.py passes on a GPU (CUDA_VISIBLE_DEVICES=0), or on a simulated device (the folder RKIT_SIMCUDA)."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from places import ROOT

SIMULATOR = Path(os.environ.get("RKIT_SIMCUDA") or ROOT.parent / "shared" / "tools" / "simcuda")
REAL = torch.cuda.is_available()

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(
        not REAL and not SIMULATOR.is_dir(), reason="there is no GPU, and RKIT_SIMCUDA names no simulated one"
    ),
    pytest.mark.skipif(not REAL and shutil.which("g++") is None, reason="the simulated device is compiled with g++"),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The environment variables of the device."""
    if REAL:
        return dict(os.environ)
    built = tmp_path_factory.mktemp("simulated")
    for name in ("simcuda.py", "guard.cpp", "build.sh"):
        shutil.copyfile(SIMULATOR / name, built / name)
    subprocess.run(["sh", built / "build.sh", sys.executable], check=True)
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(built))))
    return os.environ | {"LD_PRELOAD": str(built / "guard.so"), "PYTHONPATH": path}


@pytest.mark.parametrize("word", ["equals", "resumes", "synchronises", "calculated"])
def test_passes(environment, word):
    """Results of the CPU, saved and resumed trainings, numbers of synchronisations, and bytes."""
    run = subprocess.run(
        [sys.executable, ROOT / "tests/gpu/prove.py", word],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(lines) > 1, run.stderr
    assert not [line for line in lines if line["passed"] is False]
    assert run.returncode == 0
