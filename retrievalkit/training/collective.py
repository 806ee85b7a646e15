"""The processes that torchrun starts to train one model, their exchanges, and the sums of their gradients.

A step has the same samples for any number of processes, and gradients are summed over the processes, to the gradient of
the whole batch as in a single process. When training a retriever, each process encodes some of the texts, gathers the
representations of all others and computes the loss of the whole step; its gradient flows back to its own texts. In
pre-training and re-ranking, each process computes the loss of its own samples.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import torch
from annotated_types import Gt, Le
from torch import Tensor, distributed, nn
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]  # torch's list lacks them

from retrievalkit.contracts import Representation
from retrievalkit.contracts.models import pad_second
from retrievalkit.errors import InputError, RetrievalkitError
from retrievalkit.registry.component_options import convert

Item = TypeVar("Item")
Value = TypeVar("Value")

PATIENCE = "RKIT_RANK_TIMEOUT"
"""Minutes to wait for a process that no longer answers. If a process ends, torchrun ends the others sooner."""
_MINUTES = 20.0
_TO_ANSWER, _TO_CONNECT = timedelta(seconds=2), timedelta(minutes=10)
_OWN_STORE = "retrievalkit/store"
_SET_BY_TORCHRUN = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Collective:
    """The processes that compute together, and what they exchange; by default this process alone.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """True in the process that writes files and shows progress."""
        return self.rank == 0

    def restarted(self) -> bool:
        """True if torchrun restarted the processes after some were lost; the same in all processes."""
        own = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
        # Each machine counts its own restarts.
        return any(self.everywhere(own))

    def everywhere(self, value: Value) -> list[Value]:
        """Return the values of all processes, by rank."""
        values = [value] * self.size
        if self.size > 1:
            distributed.all_gather_object(values, value)
        return values

    def from_main(self, value: Value) -> Value:
        """Return the main process's value in all processes."""
        return self.everywhere(value)[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Leave the block in all processes or in none: the first process that fails reports, the others end silently.

        Raises:
            SystemExit: Another process failed; the exit code comes from its error.
        """
        if self.size == 1:
            yield
            return
        error: Exception | None = None
        try:
            yield
        except distributed.DistError:  # the others cannot be reached
            raise
        except Exception as caught:  # noqa: BLE001 - on any error, the others would wait for this process
            error = caught
        codes = self.everywhere(None if error is None else getattr(error, "exit_code", 1))
        failed = [number for number, code in enumerate(codes) if code is not None]
        if error is not None and failed[0] == self.rank:
            raise error
        if failed:
            raise SystemExit(codes[failed[0]])

    @contextmanager
    def same_draws(self, seed: int, device: torch.device) -> Iterator[None]:
        """Draw equal random numbers in all processes within the block; afterwards each continues its own sequence."""
        if self.size == 1:
            yield
            return
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield

    def gather(self, own: Representation, shares: Sequence[Sequence[int]]) -> Representation:
        """All-gather the representations of all texts, in their order; gradients flow only to this process's texts.

        Args:
            own: Representations of this process's texts, in their order; of any text if it has none.
            shares: Texts of each process, from `divide`.
        """
        own = _padded(own.rows(slice(len(shares[self.rank]))))
        sizes = [len(share) for share in shares]
        names = ("vectors", "vector_mask", "weights", "keys")
        tensors: dict[str, Any] = {name: _exchange(getattr(own, name), sizes, self.rank) for name in names}
        extras: dict[str, Any] = {name: _exchange(tensor, sizes, self.rank) for name, tensor in own.extras.items()}
        parts = [
            replace(
                own,
                **{name: of_each[number] for name, of_each in tensors.items()},
                extras={name: of_each[number] for name, of_each in extras.items()},
            )
            for number in range(len(sizes))
        ]
        order = torch.tensor([position for share in shares for position in share]).argsort()
        return Representation.concatenate(parts).rows(order.to(own.device))

    def add_up(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sum each scalar over all processes; the names are the same in all of them."""
        if self.size == 1:
            return dict(values)
        total = torch.stack(list(values.values()))
        distributed.all_reduce(total)
        return dict(zip(values, total, strict=True))

    def spread(self, function: Callable[[Item], Value], items: Sequence[Item]) -> list[Value]:
        """Apply a function to items, divided among the processes; each process gets all results."""
        parts = self.everywhere([function(item) for item in items[self.rank :: self.size]])
        return [parts[number % self.size][number // self.size] for number in range(len(items))]

    def share_weights(self, module: nn.Module) -> None:
        """Broadcast the main process's weights to all processes."""
        if self.size == 1:
            return
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                received = tensor.detach().reshape(-1).clone()
                distributed.broadcast(received.view(torch.uint8), 0)
                tensor.copy_(received.view_as(tensor))

    def gradient_sum(self, weights: Iterable[nn.Parameter], dtype: torch.dtype | None = None) -> GradientSum:
        """Return the sum of the gradients of these weights over all processes, for every step of a training."""
        return GradientSum(list(weights) if self.size > 1 else [], dtype)


ALONE = Collective()


def patience() -> timedelta:
    """Return the time to wait for a process."""
    limits = Annotated[float, Gt(0), Le(1e6)]
    return timedelta(minutes=convert(PATIENCE, limits, os.environ.get(PATIENCE) or _MINUTES))


def join() -> Collective:
    """Connect to the other processes, if torchrun started several.

    Raises:
        InputError: There are more processes than GPUs, or torchrun did not start them.
        RetrievalkitError: The others cannot be reached.
    """
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if distributed.is_initialized():
        return Collective(distributed.get_rank(), distributed.get_world_size())
    if started == 1:
        return ALONE
    if missing := [name for name in _SET_BY_TORCHRUN if name not in os.environ]:
        msg = f"WORLD_SIZE is {started}, and {missing[0]} is not set. Use torchrun, or unset WORLD_SIZE."
        raise InputError(msg)
    if torch.cuda.is_available():
        local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local >= gpus:
            msg = f"there is no GPU for process {local} on this machine: it has {gpus}. Use --nproc-per-node {gpus}."
            raise InputError(msg)
        torch.cuda.set_device(local)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            rank, store = int(os.environ["RANK"]), _own_store(started)
            distributed.init_process_group(backend, timeout=patience(), store=store, rank=rank, world_size=started)
        else:
            distributed.init_process_group(backend, timeout=patience())
    except RuntimeError as error:
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        first = str(error).partition("\n")[0]
        msg = f"process {os.environ['RANK']} cannot reach the others at {place} ({first}). Check that they are running."
        raise RetrievalkitError(msg) from error
    return Collective(distributed.get_rank(), distributed.get_world_size())


def _own_store(started: int) -> Store:
    """Open the store through which the processes of this start exchange their addresses.

    torchrun keeps the same store for all of its starts: restarted processes would read the addresses of lost processes
    and fail to connect, and each failure would cost a restart. So rank 0 opens a new store for each start, and
    publishes its address in torchrun's store; the store of an earlier start does not answer.
    """
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    shared = TCPStore(host, port, started, is_master=False, timeout=_TO_CONNECT)
    shared.set_timeout(patience())
    if os.environ["RANK"] == "0":
        own = TCPStore(host, 0, started, is_master=True, timeout=patience(), wait_for_workers=False)
        name = uuid.uuid4().hex
        own.set(name, "")
        shared.set(_OWN_STORE, f"{own.port} {name}")
        return own
    end = time.monotonic() + _TO_CONNECT.total_seconds()
    while True:
        place, name = shared.get(_OWN_STORE).decode().split()
        try:
            own = TCPStore(host, int(place), started, is_master=False, timeout=_TO_ANSWER)
            own.wait([name], _TO_ANSWER)
        except distributed.DistError:
            if time.monotonic() > end:
                raise
            continue
        own.set_timeout(patience())
        return own


@contextmanager
def joined() -> Iterator[Collective]:
    """Run the block connected to the other processes, if torchrun started several (Ray Train connects its own).

    If another process fails, it reports the reason; processes that wait for it end, the main process with a message.

    Raises:
        RetrievalkitError: Another process ended, and this is the main process.
        SystemExit: Another process ended, and this is not the main process.
    """
    theirs = distributed.is_initialized()
    collective = join()
    try:
        yield collective
    except RuntimeError as error:
        signs = ("gloo", "Connection closed", "remote worker")
        lost = isinstance(error, distributed.DistError) or any(sign in str(error) for sign in signs)
        if collective.size == 1 or not lost:
            raise
        if not collective.is_main:
            raise SystemExit(1) from error
        minutes = f"{patience().total_seconds() / 60:g} minutes ({PATIENCE})"
        msg = f"another process has ended, or has not answered for {minutes}. See the reason in its output."
        raise RetrievalkitError(msg) from error
    if not theirs and distributed.is_initialized():
        distributed.destroy_process_group()


def divide(sizes: Sequence[int], processes: int) -> list[list[int]]:
    """Divide texts among processes by about equal total size; with few texts, some processes get none."""
    order = sorted(range(len(sizes)), key=lambda position: -sizes[position])
    shares: list[list[int]] = [[] for _ in range(processes)]
    for number, position in enumerate(order):
        # In alternating order: otherwise the first process would get the longest text of each round.
        rounds, place = divmod(number, processes)
        shares[place if rounds % 2 == 0 else processes - 1 - place].append(position)
    return [sorted(share) for share in shares]


def _padded(own: Representation) -> Representation:
    """Pad to the largest number of vectors per text in any process, with a mask if any text needs it; extras too."""
    extras = {}
    for name, tensor in own.extras.items():
        size = torch.tensor(tensor.shape[1] if tensor.dim() > 1 and len(tensor) else 0, device=own.device)
        distributed.all_reduce(size, distributed.ReduceOp.MAX)
        extras[name] = pad_second(tensor, int(size))
    own = replace(own, extras=extras)
    if own.vectors is None:
        return own
    vectors, mask = own.vectors, own.vector_mask
    texts, here, _ = vectors.shape
    extremes = torch.tensor([here, -here, mask is not None] if texts else [0, -(1 << 30), 0], device=own.device)
    distributed.all_reduce(extremes, distributed.ReduceOp.MAX)
    most, least, masked = extremes.tolist()
    # Cut in a process without texts, if its placeholder text has more vectors.
    keys = None if own.keys is None else pad_second(own.keys, most)
    own = replace(own, vectors=pad_second(vectors, most), keys=keys)
    if not masked and most == -least:
        return replace(own, vector_mask=None)
    if mask is None:
        mask = torch.ones(texts, here, dtype=torch.bool, device=own.device)
    return replace(own, vector_mask=pad_second(mask, most))


def _exchange(own: Tensor | None, texts: Sequence[int], rank: int) -> Sequence[Tensor | None]:
    """All-gather tensors that differ only in their first dimension, known to all processes."""
    if own is None:
        return [None] * len(texts)
    sent = own.new_zeros((max(texts), *own.shape[1:]))
    sent[: len(own)] = own.detach()
    # As bytes, since not every backend supports every type.
    received = [torch.empty_like(sent.view(torch.uint8)) for _ in texts]
    distributed.all_gather(received, sent.view(torch.uint8))
    parts: list[Tensor | None] = [part.view(own.dtype)[:rows] for part, rows in zip(received, texts, strict=True)]
    parts[rank] = own
    return parts


class OutOfMemoryElsewhere(torch.OutOfMemoryError):
    """Another process ran out of memory in a step, which all processes compute again."""


class GradientSum:
    """Sums gradients over all processes in the last backward pass of a step, while it computes those of earlier layers.

    The sums cover the whole step. A gradient that a process lacks counts as 0; a weight without a gradient in
    any process keeps none.

    Args:
        weights: Weights in the order of the forward pass; the backward pass reaches the last of them first. [] = a
            process alone, or weights whose gradients need no sum: nothing is exchanged.
        dtype: Number format of the sums; None = that of the gradients.
    """

    def __init__(self, weights: Sequence[nn.Parameter], dtype: torch.dtype | None = None) -> None:
        self._order, self._dtype = list(weights[::-1]), dtype
        self._sums: list[tuple[Tensor, Any]] = []
        self._summing = self._awaited = False
        for weight in weights:
            weight.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]

    def await_others(self) -> None:
        """From here to the sums of the gradients, the other processes wait for this process."""
        self._awaited = True

    def give_up(self) -> None:
        """Take part in the sums of a step that has failed here, if others may wait for it: all compute it again."""
        if self._order and self._awaited:
            self._finish(failed=True)

    @contextmanager
    def last_backward(self) -> Iterator[None]:
        """Sum the gradients of a step over all processes; the block is the step's last backward pass."""
        if not self._order:
            yield
            return
        self._ready: set[nn.Parameter] = set()
        self._summing = True
        try:
            yield
        finally:
            self._summing = False
        self._finish(failed=False)

    def _finish(self, *, failed: bool) -> None:
        """Start the other sums, and wait for all of them.

        Raises:
            OutOfMemoryElsewhere: The step has failed in another process.
        """
        own = torch.tensor([*(weight.grad is not None for weight in self._order), failed], dtype=torch.int32)
        for weight in self._order[len(self._sums) :]:
            self._start(weight)
        somewhere = own.to(self._order[0].device)
        distributed.all_reduce(somewhere, distributed.ReduceOp.MAX)
        *several, failed_somewhere = map(bool, somewhere.tolist())
        used = dict(zip(self._order, several, strict=True))
        for weight, (total, pending) in zip(self._order, self._sums, strict=True):
            pending.wait()
            weight.grad = total.to(weight.dtype) if used[weight] else None
        self._sums, self._awaited = [], False
        # Unused weights last: in the next step, the others do not wait for them.
        self._order.sort(key=lambda weight: not used[weight])
        if failed_somewhere and not failed:
            raise OutOfMemoryElsewhere

    def _accumulated(self, weight: nn.Parameter) -> None:
        if self._summing:
            self._ready.add(weight)
            # In the same order in all processes.
            while len(self._sums) < len(self._order) and self._order[len(self._sums)] in self._ready:
                self._start(self._order[len(self._sums)])

    def _start(self, weight: nn.Parameter) -> None:
        total = torch.zeros_like(weight) if weight.grad is None else weight.grad
        total = total.to(self._dtype or total.dtype)
        self._sums.append((total, distributed.all_reduce(total, async_op=True)))
