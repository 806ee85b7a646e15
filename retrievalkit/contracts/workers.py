"""Workers: processes that apply functions to items, registered as `ray` (for `--ray`) and `torchrun`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The cluster to use, and the resources of its workers.

    Attributes:
        ray: The address of the cluster, or Ray's "auto" or "local"; "torchrun" = the processes that torchrun started.
        workers: Maximum number of workers at a time; None = as many as the cluster has room for.
        worker_cpus: Processors per worker.
        worker_gpus: GPUs per worker, or a fraction of a GPU; None = 1 if the cluster has any.
    """

    ray: str
    workers: int | None = None
    worker_cpus: int = 1
    worker_gpus: float | None = None


class Staying(Protocol):
    """Persistent workers: each keeps its state and serves any number of requests."""

    def grow(self, wanted: int) -> int:
        """Grow to at most `wanted` workers; returns the number of workers, at least 1.

        Raises:
            InputError: Other work occupies the whole cluster.
        """

    def __call__(self, items: Mapping[int, Any]) -> dict[int, Any]:
        """Return the results of items, each from the worker of its number, or from another if that worker is lost.

        Raises:
            RetrievalkitError: No worker is left.
            Exception: Any exception of the function.
        """


class Workers(ABC):
    """Workers of a cluster.

    Functions and items are pickled. Warnings of a function (`notices`) reach the command.

    Args:
        options: The cluster, and the resources of a worker.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options

    @abstractmethod
    def map(
        self,
        make: Callable[[], Callable[[Item], Result]],
        items: Callable[[], Iterable[Item]],
        *,
        ordered: bool = True,
        here: Callable[[Item], Result] | None = None,
    ) -> Iterator[Result]:
        """Apply a function to each item.

        Args:
            make: Returns the function; called in each worker on its first item. An item is repeated if its worker is
                lost.
            items: Returns the items; called in a process on this machine. Items should be worth a transfer.
            ordered: Yield results in the order of the items, which waits for late and lost items.
            here: The function in the command's process, for workers that share this process and its models.

        Yields:
            The results. Items are read ahead only as far as memory allows.

        Raises:
            InputError: The cluster does not exist, or has no room for a worker.
            Exception: Any exception of the function or the items.
        """

    @abstractmethod
    def stay(self, make: Callable[[], Callable[[Any], Any]]) -> Staying:
        """Start persistent workers.

        Args:
            make: Returns the function that answers requests; called in each worker on its first request.

        Raises:
            InputError: The cluster does not exist, or has no room.
        """
