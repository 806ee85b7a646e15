"""Runs work on the machines of a Ray cluster: `--ray`.

    rkit encode CHECKPOINT corpus.jsonl --ray auto --output vectors

The command's machine reads and writes the files, so other machines need no access to input and output; models that the
workers load must be at the same path on each machine. If a worker or machine is lost, others repeat its current work.
Workers are added as the cluster grows.
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
