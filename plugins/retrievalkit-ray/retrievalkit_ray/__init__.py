"""Work on the machines of a Ray cluster: `--ray`.

    rkit encode CHECKPOINT corpus.jsonl --ray auto --output vectors

The command's own machine reads and writes the files, so that input and output need not be visible from other machines;
what the workers load (a model) must be at the same place on each. A worker or a machine that is lost costs what it was
working on, which others do again; workers are added while the cluster grows.
"""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

__version__ = "0.1.0"
retrievalkit_contract = "1"


@hookimpl
def register_workers(register: Register) -> None:
    """Register the workers of `--ray`."""
    register("ray", "retrievalkit_ray.workers:RayWorkers")
