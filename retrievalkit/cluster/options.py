"""Options of work that the machines of a Ray cluster share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from retrievalkit.declarations import CommandOptions, Flag
from retrievalkit.errors import OptionError

MOST_WORKERS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where and how work is spread; see `RayOptions`."""

    ray: str
    workers: int | None = None
    worker_cpus: int = 1
    worker_gpus: float | None = None


@dataclass(frozen=True, kw_only=True)
class RayOptions(CommandOptions):
    """Options of commands whose work can be spread over the workers of a Ray cluster.

    Args:
        ray: Work on a Ray cluster: "auto" for the one that this machine belongs to, HOST:PORT for another, "local" for
            the processors of this machine.
        ray_workers: Most workers at a time; None = as many as the cluster has room for.
        ray_cpus: Processors of a worker; None = 1.
        ray_gpus: GPUs of a worker, or a share of one; None = 1 if the cluster has any.
    """

    heading: ClassVar = "Ray cluster"

    ray: Annotated[str | None, Flag(metavar="auto|ADDRESS|local")] = None
    ray_workers: Annotated[int, Ge(1), Le(MOST_WORKERS)] | None = None
    ray_cpus: Annotated[int, Ge(1)] | None = None
    ray_gpus: Annotated[float, Ge(0)] | None = None

    @property
    def cluster(self) -> ClusterOptions | None:
        """The cluster; None = this process works.

        Raises:
            OptionError: Workers are described, and `ray` is not given.
        """
        if self.ray is not None:
            return ClusterOptions(
                ray=self.ray, workers=self.ray_workers, worker_cpus=self.ray_cpus or 1, worker_gpus=self.ray_gpus
            )
        if (self.ray_workers, self.ray_cpus, self.ray_gpus) != (None, None, None):
            msg = "ray_workers, ray_cpus and ray_gpus describe the workers of a Ray cluster. Add ray, or drop them."
            raise OptionError(msg)
        return None
