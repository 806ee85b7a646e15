"""Workers: processes, on machines of a cluster, that apply functions to items. `--ray` uses those named `ray`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Where and how work is spread.

    Attributes:
        ray: The address of the cluster; "auto" and "local" have a meaning for it.
        workers: Most workers at a time; None = as many as the cluster has room for.
        worker_cpus: Processors of a worker.
        worker_gpus: GPUs of a worker, or a share of one; None = 1 if the cluster has any.
    """

    ray: str
    workers: int | None = None
    worker_cpus: int = 1
    worker_gpus: float | None = None


class Staying(Protocol):
    """Workers that stay, each with what it has opened, and answer as often as they are asked."""

    def grow(self, wanted: int) -> int:
        """Have up to so many workers; returns how many there are, at least one.

        Raises:
            InputError: Other work takes all of the cluster.
        """

    def __call__(self, items: Mapping[int, Any]) -> dict[int, Any]:
        """The answers to items, each given to the worker of its number if that is there, or else to another.

        Raises:
            RetrievalkitError: No worker is left.
            Exception: As the function raised it.
        """


class Tasks(Protocol):
    """Calls of a function, each in a worker of its own.

    Attributes:
        slots: How many run at a time, at most.
        lost: The errors by which a call is lost with its machine, and may be made again.
    """

    slots: int
    lost: tuple[type[BaseException], ...]

    def submit(self, item: Any) -> Future[Any]:
        """Call the function with an item and the number of its processors as soon as there is room."""

    def stop(self, patience: float) -> None:
        """End all calls, and wait so many seconds at most until they have ended."""


class Workers(ABC):
    """Workers of a cluster.

    Functions and items are pickled. What a function notes (`notices`) reaches the command.

    Args:
        options: Where, and what a worker has.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options

    @abstractmethod
    def map(
        self, make: Callable[[], Callable[[Item], Result]], items: Callable[[], Iterable[Item]], *, ordered: bool = True
    ) -> Iterator[Result]:
        """Apply a function to each item.

        Args:
            make: Called in each worker, when it has its first item: gives the function. An item is done again if its
                worker is lost.
            items: Gives the items, called in a process on this machine. Each is large enough to be worth a journey.
            ordered: Whether the results come in the order of the items, which wait for one that is late or lost.

        Yields:
            The results. Only so many items are read ahead as memory has room for.

        Raises:
            InputError: There is no such cluster, or it has no room for a worker.
            Exception: As the function or the items raised it.
        """

    @abstractmethod
    def stay(self, make: Callable[[], Callable[[Any], Any]]) -> Staying:
        """Workers that stay.

        Args:
            make: Called in each, when it is first asked: gives the function that answers.

        Raises:
            InputError: There is no such cluster, or it has no room.
        """

    @abstractmethod
    def tasks(self, function: Callable[[Any, int], Any]) -> Tasks:
        """Calls of a function, each in a worker of its own.

        Raises:
            InputError: There is no such cluster, or it has no room.
        """
