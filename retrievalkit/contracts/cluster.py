"""Distributed work: the options of `--ray`, and the workers that a plugin provides."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from retrievalkit import registry
from retrievalkit.contracts.declarations import CommandOptions, Flag
from retrievalkit.contracts.workers import ClusterOptions, Item, Result, Workers
from retrievalkit.errors import ArtifactError, MissingDependencyError, OptionError

__all__ = ["RANKS", "ClusterOptions", "RayOptions", "check_same", "spread_map", "workers"]

RANKS = "torchrun"
"""The address that stands for the processes of torchrun instead of a Ray cluster."""
_MOST_WORKERS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class RayOptions(CommandOptions):
    """Options of commands that can distribute their work over a Ray cluster.

    Args:
        ray: Run on a Ray cluster: "auto" for this machine's cluster, HOST:PORT for another cluster, "local" for the
            processors of this machine.
        ray_workers: Maximum number of workers at a time; None = as many as fit on the cluster.
        ray_cpus: Processors per worker; None = 1.
        ray_gpus: GPUs per worker, or a fraction of a GPU; None = 1 if the cluster has any.
    """

    heading: ClassVar = "Ray cluster"

    ray: Annotated[str | None, Flag(metavar="auto|ADDRESS|local")] = None
    ray_workers: Annotated[int, Ge(1), Le(_MOST_WORKERS)] | None = None
    ray_cpus: Annotated[int, Ge(1)] | None = None
    ray_gpus: Annotated[float, Ge(0)] | None = None

    @property
    def cluster(self) -> ClusterOptions | None:
        """The cluster; None = run in this process.

        Raises:
            OptionError: Options of workers are set without `ray`.
        """
        if self.ray is not None:
            return ClusterOptions(
                ray=self.ray, workers=self.ray_workers, worker_cpus=self.ray_cpus or 1, worker_gpus=self.ray_gpus
            )
        if (self.ray_workers, self.ray_cpus, self.ray_gpus) != (None, None, None):
            msg = "ray_workers, ray_cpus and ray_gpus describe the workers of a Ray cluster. Add ray, or drop them."
            raise OptionError(msg)
        return None


def workers(options: ClusterOptions) -> Workers:
    """Return the workers of a cluster.

    Raises:
        MissingDependencyError: No plugin provides them.
    """
    name = RANKS if options.ray == RANKS else "ray"
    if name not in registry.names("workers"):
        raise MissingDependencyError("retrievalkit-ray", "--ray", "'retrievalkit[ray]'")
    cluster: Workers = registry.get("workers", name)(options)
    return cluster


def spread_map(
    make: Callable[[], Callable[[Item], Result]],
    items: Callable[[], Iterable[Item]],
    options: ClusterOptions,
    *,
    ordered: bool = True,
    here: Callable[[Item], Result] | None = None,
) -> Iterator[Result]:
    """Apply a function to each item on the workers of a cluster (`contracts.Workers.map`)."""
    yield from workers(options).map(make, items, ordered=ordered, here=here)


def check_same(kind: str, place: str | Path, fingerprint: str, expected: str) -> None:
    """Check on a worker that a model or an index is the command's.

    Raises:
        ArtifactError: The fingerprints differ.
    """
    if fingerprint != expected:
        msg = f"on {socket.gethostname()}, '{place}' is not the {kind} of the command. Copy the {kind} to that machine."
        raise ArtifactError(msg)
