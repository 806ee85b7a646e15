"""Long-lived workers of a Ray cluster, which open their state once and then answer requests.

Ray restarts a lost worker if the cluster has room. Until then, other workers answer its requests.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from retrievalkit.contracts import ClusterOptions
from retrievalkit.errors import InputError, RetrievalkitError
from retrievalkit.reporting.notices import join
from retrievalkit_ray.workers import connect, room

_FIRST_SECONDS = 60.0
"""Seconds to wait for the first worker, and for any worker after all were lost."""

_OTHERS_SECONDS, _PAUSE_SECONDS = 5.0, 0.5


class Actors:
    """The workers of a cluster.

    Args:
        make: Returns the function that answers requests; called once in each worker, at its first request.
        options: The cluster and the resources of a worker.

    Raises:
        InputError: The cluster does not exist, or has no room.
    """

    def __init__(self, make: Callable[[], Callable[[Any], Any]], options: ClusterOptions) -> None:
        connect(options.ray)
        self._make, self._options = make, options
        self._actors: list[Any] = []
        self._coming: dict[Any, Any] = {}
        self._lost: dict[int, Any] = {}
        self._growing = threading.Lock()

    def grow(self, wanted: int) -> int:
        """Start workers up to a number; returns the actual number, at least 1.

        Raises:
            InputError: Other work occupies the whole cluster.
        """
        import ray

        from retrievalkit_ray.source import Worker

        with self._growing:
            gpus, most = room(self._options)
            cpus = self._options.worker_cpus
            kind = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=0)(Worker)
            for _ in range(len(self._actors) + len(self._coming), min(wanted, most)):
                actor = kind.remote(self._make, cpus)
                self._coming[actor.__ray_ready__.remote()] = actor
            if not self._actors:
                self._welcome(1, _FIRST_SECONDS)
            self._welcome(len(self._coming), _OTHERS_SECONDS)
            if not self._actors:
                self._coming.clear()
                msg = (
                    f"the cluster has no room for a worker of {cpus} CPUs and {gpus:g} GPUs: other work occupies it. "
                    "Wait until that ends, add machines, or request fewer with --ray-cpus and --ray-gpus."
                )
                raise InputError(msg)
            return len(self._actors)

    def __call__(self, items: Mapping[int, Any]) -> dict[int, Any]:
        """Answer items, each by the worker with its number, or by another worker if that is lost.

        Raises:
            RetrievalkitError: No worker is available.
            Exception: An exception of the function itself.
        """
        answers: dict[int, Any] = {}
        waited = 0.0
        while open_items := {number: item for number, item in items.items() if number not in answers}:
            available = [place for place in range(len(self._actors)) if self._is_available(place)]
            if available:
                places = {number: number % len(self._actors) for number in open_items}
                places |= {n: available[n % len(available)] for n, place in places.items() if place not in available}
                answers |= _results({number: self._actors[place] for number, place in places.items()}, open_items)
                self._lost |= {place: None for number, place in places.items() if number not in answers}
            elif waited < _FIRST_SECONDS:
                time.sleep(_PAUSE_SECONDS)
                waited += _PAUSE_SECONDS
            else:
                msg = "no worker of the cluster answers: all were lost, and there is no room for others. Try again."
                raise RetrievalkitError(msg)
        return answers

    def _is_available(self, place: int) -> bool:
        """True if a worker is not lost, or is running again; checks a lost worker without waiting."""
        import ray
        from ray.exceptions import RayActorError

        ready = self._lost.get(place, "never lost")
        if ready == "never lost":
            return True
        if ready is not None:
            if not ray.wait([ready], timeout=0)[0]:
                return False
            with contextlib.suppress(RayActorError):
                ray.get(ready)
                self._lost.pop(place, None)
                return True
        self._lost[place] = self._actors[place].__ray_ready__.remote()
        return False

    def _welcome(self, count: int, seconds: float) -> None:
        """Wait for starting workers."""
        import ray

        if self._coming:
            ready, _ = ray.wait(list(self._coming), num_returns=count, timeout=seconds)
            self._actors = [*self._actors, *map(self._coming.pop, ready)]


def _results(actors: Mapping[int, Any], items: Mapping[int, Any]) -> dict[int, Any]:
    """Collect the answers of workers, except of lost workers."""
    import ray
    from ray.exceptions import ObjectLostError, RayActorError

    from retrievalkit_ray.source import Failure, packed, unpacked

    running = {number: actors[number].__call__.remote(packed(item)) for number, item in items.items()}
    answers = {}
    for number, call in running.items():
        try:
            result: Any = unpacked(ray.get(call))[0]
        except (RayActorError, ObjectLostError):
            continue
        if isinstance(result, Failure):
            result.error.add_note(f"On a worker of the cluster:\n{result.trace}")
            raise result.error
        answers[number], notes = result
        join(notes)
    return answers
