"""A function applied to many items by the workers of a Ray cluster.

    rkit encode CHECKPOINT corpus.jsonl --ray auto --output vectors

Ray Data streams the items. The command's own machine reads and writes the files, so that input and output need not be
visible from other machines; what the workers load (a model) must be at the same place on each. A worker or a machine
that is lost costs what it was working on, which others do again; workers are added while the cluster grows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from retrievalkit import oddities
from retrievalkit.cluster.options import MOST_WORKERS, ClusterOptions
from retrievalkit.errors import ArtifactError, InputError, MissingDependencyError

if TYPE_CHECKING:
    from ray.data import Dataset

Item = TypeVar("Item")
Result = TypeVar("Result")

_LOCAL = "local"
_ANSWER_SECONDS = 10.0


def spread_map(
    make: Callable[[], Callable[[Item], Result]],
    items: Callable[[], Iterable[Item]],
    options: ClusterOptions,
    *,
    ordered: bool = True,
) -> Iterator[Result]:
    """Apply a function to each item on the workers of a cluster.

    Args:
        make: Called in each worker, when it has its first item: gives the function. An item is done again if its worker
            is lost.
        items: Gives the items, called in a process on this machine. Each is large enough to be worth a journey.
        options: Where.
        ordered: Whether the results come in the order of the items, which wait for one that is late or lost.

    Yields:
        The results. Only so many items are read ahead as Ray's memory has room for.

    Raises:
        MissingDependencyError: Ray is not installed.
        InputError: There is no such cluster, or it has no room for a worker.
        Exception: As the function or the items raised it.
    """
    with connected(options.ray):
        from retrievalkit.cluster.source import Failure, unpacked

        data = _data(make, items, options, ordered=ordered)
        for table in data.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            for result in unpacked(table):
                if isinstance(result, Failure):
                    result.error.add_note(f"On a worker of the cluster:\n{result.trace}")
                    raise result.error
                value, met = result
                oddities.join(met)
                yield value


def check_same(what: str, place: str | Path, found: str, expected: str) -> None:
    """Refuse, on a worker, a model or an index that is not that of the command.

    Raises:
        ArtifactError: The fingerprints differ.
    """
    if found != expected:
        msg = f"on {socket.gethostname()}, '{place}' is another {what} than where the command runs. Copy it there."
        raise ArtifactError(msg)


def _data(
    make: Callable[[], Callable[[Any], Any]],
    items: Callable[[], Iterable[Any]],
    options: ClusterOptions,
    *,
    ordered: bool,
) -> Dataset:
    import ray

    from retrievalkit.cluster.source import Items, Worker

    gpus, _ = room(options)
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = ordered
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    # An item is a shard: it does not wait for others to make a larger block.
    context.target_max_block_size = context.target_min_block_size = 1
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    return ray.data.read_datasource(Items(items), override_num_blocks=1, num_cpus=0, label_selector=here).map_batches(
        Worker,
        fn_constructor_kwargs={"make": make, "threads": options.worker_cpus},
        batch_size=1,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=options.workers or MOST_WORKERS),
        num_cpus=options.worker_cpus,
        num_gpus=gpus,
    )


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect to a cluster for a block, unless this process is connected."""
    connected_here = connect(address)
    try:
        yield
    finally:
        if connected_here:
            import ray

            ray.shutdown()


def connect(address: str) -> bool:
    """Connect to a cluster until the process ends, unless it is connected; returns whether it was not.

    Raises:
        MissingDependencyError: Ray is not installed.
        InputError: There is no such cluster.
    """
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise MissingDependencyError("ray", "--ray", "'retrievalkit[ray]'") from error
    if ray.is_initialized():
        return False
    # Ray's own lines (addresses, plans, retries) are in its logs and on its pages.
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
        msg = f"{known} ({error}). Start one (ray start --head), give its address, or --ray local for this machine."
        raise InputError(msg) from error
    return True


def _reach(address: str) -> None:
    """Find out at once whether anything answers, for which Ray itself takes minutes."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.rpartition("/")[2].strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()


def room(options: ClusterOptions) -> tuple[float, int]:
    """The GPUs of a worker, and how many workers the machines of the cluster can hold, whatever else they do.

    Raises:
        InputError: Not even one.
    """
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus, gpus = options.worker_cpus, options.worker_gpus
    if gpus is None:
        gpus = float(any("GPU" in one for one in machines))
    needed = {"CPU": cpus, "GPU": gpus}
    counts = (min(int(one.get(name, 0) // size) for name, size in needed.items() if size) for one in machines)
    if workers := sum(counts):
        return gpus, min(workers, options.workers or workers)
    most = {name: max(one.get(name, 0) for one in machines) for name in ("CPU", "GPU")}
    msg = (
        f"a worker has {cpus} CPUs and {gpus:g} GPUs, and the largest machine of the cluster {most['CPU']:g} and "
        f"{most['GPU']:g}. Give fewer: --ray-cpus, --ray-gpus."
    )
    raise InputError(msg)
