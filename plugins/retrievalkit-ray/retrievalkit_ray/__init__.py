"""Runs work on the machines of a Ray cluster: `--ray`.

    rkit encode CHECKPOINT corpus.jsonl --ray auto --output vectors

The command's machine reads and writes the files, so input and output need not be visible from other machines; whatever
the workers load (a model) must be at the same path on each. If a worker or machine is lost, others repeat its current
work; workers are added as the cluster grows.
"""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_workers(register: Register) -> None:
    """Register the workers of `--ray`."""
    register("ray", "retrievalkit_ray.workers:RayWorkers")
