"""Training with Ray Train, whose workers are the processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from killed_processes import forks
from retrievalkit.training.train import train
from trainings import bytes_of, quick_training

pytest.importorskip("ray.train.torch")
pytestmark = forks

# As in docs/how-to/several-gpus.md.
SCRIPT = """
import json, sys

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def on_each_worker(config):
    import retrievalkit as rk

    rk.train(**config, resume=True)

ray.init(address="local", num_cpus=3, object_store_memory=200 << 20, include_dashboard=False)
TorchTrainer(
    on_each_worker,
    train_loop_config=json.loads(sys.argv[1]),
    scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
    run_config=RunConfig(storage_path=sys.argv[2]),
).fit()
"""
QUICK = {"batch_size": 8, "precision": "fp32", "epochs": 1.0, "limit": 24}


@pytest.mark.slow
def test_two_workers_write_the_bytes_of_two_processes(together, tmp_path, tiny_model, tiny_collection):
    places = {"model": tiny_model, "corpus": str(tiny_collection.corpus), "examples": str(tiny_collection.folder)}
    run = quick_training(train, QUICK, **places)
    together(lambda: run(tmp_path / "processes"))
    config = json.dumps(places | QUICK | {"output": str(tmp_path / "workers")})
    words = [sys.executable, "-c", SCRIPT, config, str(tmp_path / "ray")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert bytes_of(tmp_path / "workers") == bytes_of(tmp_path / "processes")
