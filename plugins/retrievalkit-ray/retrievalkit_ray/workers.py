"""Applies functions to items on a Ray cluster, with Ray Data and actors."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from retrievalkit import contracts
from retrievalkit.contracts import ClusterOptions
from retrievalkit.errors import InputError
from retrievalkit.reporting.notices import join

if TYPE_CHECKING:
    from ray.data import Dataset

    from retrievalkit_ray.actors import Actors

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOCAL = "local"
_MOST_WORKERS = 1 << 16
_ANSWER_SECONDS = 10.0


class RayWorkers(contracts.Workers):
    """Workers of a Ray cluster.

    Args:
        options: The cluster, and the resources of a worker.
    """

    def map(
        self,
        make: Callable[[], Callable[[Item], Result]],
        items: Callable[[], Iterable[Item]],
        *,
        ordered: bool = True,
        here: Callable[[Item], Result] | None = None,
    ) -> Iterator[Result]:
        """Stream the items through Ray Data; the command's process only reads and writes."""
        del here
        with connected(self.options.ray):
            from retrievalkit_ray.source import Failure, unpacked

            data = _data(make, items, self.options, ordered=ordered)
            for table in data.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for result in unpacked(table):
                    if isinstance(result, Failure):
                        result.error.add_note(f"On a worker of the cluster:\n{result.trace}")
                        raise result.error
                    value, notes = result
                    join(notes)
                    yield value

    def stay(self, make: Callable[[], Callable[[Any], Any]]) -> Actors:
        """Create long-lived workers as Ray actors."""
        from retrievalkit_ray.actors import Actors

        return Actors(make, self.options)


def _data(
    make: Callable[[], Callable[[Any], Any]],
    items: Callable[[], Iterable[Any]],
    options: ClusterOptions,
    *,
    ordered: bool,
) -> Dataset:
    import ray

    from retrievalkit_ray.source import Items, Worker

    gpus, _ = room(options)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = ordered
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # An item is a shard, and must not wait for others to form a larger block.
    context.target_max_block_size = context.target_min_block_size = 1
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    return ray.data.read_datasource(Items(items), override_num_blocks=1, num_cpus=0, label_selector=here).map_batches(
        Worker,
        fn_constructor_kwargs={"make": make, "threads": options.worker_cpus},
        batch_size=1,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=options.workers or _MOST_WORKERS),
        num_cpus=options.worker_cpus,
        num_gpus=gpus,
    )


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a cluster for a block, unless this process is already connected."""
    connected_here = connect(address)
    try:
        yield
    finally:
        if connected_here:
            import ray

            ray.shutdown()


def connect(address: str) -> bool:
    """Connect to a cluster until the process ends; returns False if it was already connected.

    Raises:
        InputError: The cluster does not exist.
    """
    import ray
    import ray.data

    if ray.is_initialized():
        return False
    # Ray's own messages (addresses, plans, retries) are in its logs and on its dashboard.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        _reach(address)
        where = {"address": address} | ({"num_cpus": os.cpu_count()} if address == _LOCAL else {})
        ray.init(
            **where,
            include_dashboard=False if address == _LOCAL else None,
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except (OSError, ValueError, RuntimeError) as error:
        known = "No Ray cluster runs on this machine" if address == "auto" else f"No Ray cluster answers at '{address}'"
        msg = f"{known} ({error}). Start a cluster (ray start --head), give its address, or use --ray local."
        raise InputError(msg) from error
    return True


def _reach(address: str) -> None:
    """Raise an OSError immediately if nothing answers at the address; Ray would take minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.rpartition("/")[2].strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()


def room(options: ClusterOptions) -> tuple[float, int]:
    """Return the GPUs of a worker, and the maximum number of workers on the cluster, regardless of its load.

    Raises:
        InputError: The cluster cannot hold a single worker.
    """
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = options.worker_cpus, options.worker_gpus
    if gpus is None:
        gpus = float(any("GPU" in machine for machine in machines))
    needed = {"CPU": cpus, "GPU": gpus}
    counts = (min(int(machine.get(name, 0) // size) for name, size in needed.items() if size) for machine in machines)
    if workers := sum(counts):
        return gpus, min(workers, options.workers or workers)
    most = {name: max(machine.get(name, 0) for machine in machines) for name in ("CPU", "GPU")}
    msg = (
        f"a worker has {cpus} CPUs and {gpus:g} GPUs, but the largest machine of the cluster {most['CPU']:g} and "
        f"{most['GPU']:g}. Request fewer with --ray-cpus and --ray-gpus."
    )
    raise InputError(msg)
