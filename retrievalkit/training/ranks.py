"""Workers in the processes that torchrun started: the main process runs a command, the others compute for it.

    torchrun --nproc-per-node 2 --no-python rkit encode CHECKPOINT corpus.jsonl --output vectors

Only the main process reads, writes and prints; it computes as well. Items and results travel over sockets, not by
collectives: each process gets its next item when it is free, and waits as long as the main process is alive. If a
process is lost, torchrun ends the others, and the same command continues after its last item.
"""

from __future__ import annotations

import os
import pickle
import queue
import secrets
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from contextvars import ContextVar
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NoReturn, TypeVar

import torch
from torch.distributed import DistError  # type: ignore[attr-defined]  # torch's list lacks it

from retrievalkit import contracts
from retrievalkit.contracts.workers import Item, Result
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.models.batches import in_threads
from retrievalkit.reporting import notices
from retrievalkit.training.collective import Collective, patience

Value = TypeVar("Value")

_links: ContextVar[tuple[_Link, ...]] = ContextVar("links", default=())
"""In a command of the main process, while it leads: a link to each other process."""


def lead(collective: Collective, function: Callable[[], Value]) -> Value | None:
    """Run a function in the main process, while the others compute what `Ranks` in it distributes; they return None.

    Raises:
        SystemExit: Another process failed; see `Collective.together`.
    """
    if collective.size == 1:
        return function()
    with collective.together(), ExitStack() as stack:
        if not collective.is_main:
            place: Any = collective.from_main(None)
            host, port, key = place
            _serve(stack.enter_context(closing(_Link(Client((host, port), authkey=key)))))
            return None
        key = secrets.token_bytes()
        # On all addresses, since a machine may reach itself under another address than the others do.
        listener = stack.enter_context(Listener(("", 0), backlog=collective.size, authkey=key))
        collective.from_main((os.environ.get("MASTER_ADDR", "127.0.0.1"), listener.address[1], key))
        others = range(1, collective.size)
        links = tuple(stack.enter_context(closing(_Link(listener.accept()))) for _ in others)
        stack.callback(_links.reset, _links.set(links))
        return function()
    return None


class Ranks(contracts.Workers):
    """Workers in the processes that torchrun started, including the main process.

    Args:
        options: The cluster; there are as many workers as processes.
    """

    def map(
        self,
        make: Callable[[], Callable[[Item], Result]],
        items: Callable[[], Iterable[Item]],
        *,
        ordered: bool = True,
        here: Callable[[Item], Result] | None = None,
    ) -> Iterator[Result]:
        """Apply a function to items, each in the next free process; results are always in order."""
        del ordered
        links = _links.get()
        if not links:
            msg = "the workers torchrun are the processes that torchrun started. Start rkit with torchrun, without ray."
            raise InputError(msg)
        # Of this thread: each thread has its own.
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        free: queue.SimpleQueue[_Link | None] = queue.SimpleQueue()
        for link in (None, *links):
            free.put(link)

        def compute(item: Item) -> Result:
            nonlocal here
            link = free.get()
            try:
                if link is not None:
                    result: Result = link.ask(make, item)
                    return result
                if device is not None:
                    torch.cuda.set_device(device)
                here = here or make()
                return here(item)
            finally:
                free.put(link)

        return in_threads(compute, items(), free.qsize())

    def stay(self, make: Callable[[], Callable[[Any], Any]]) -> NoReturn:
        """Refuse persistent workers, which no command under torchrun needs."""
        del make
        msg = "torchrun's processes share the items of a command, and keep no state. Use a Ray cluster: --ray."
        raise UnsupportedError(msg)


class _Link:
    """A connection to another process, on which both report regularly that they are alive."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._sending, self._closed = connection, threading.Lock(), threading.Event()
        self._patience = patience().total_seconds()
        self._sent: Callable[[], Any] | None = None
        threading.Thread(target=self._report, daemon=True).start()

    def ask(self, make: Callable[[], Callable[[Any], Any]], item: Any) -> Any:
        """Return the other process's result for an item; the function is sent once."""
        try:
            self.send((None if make is self._sent else make, item))
            self._sent = make
            value, error, met = self.receive()
        except (EOFError, OSError) as lost:
            msg = "another process has ended"
            raise DistError(msg) from lost
        if error is not None:
            raise error
        notices.join(met)
        return value

    def send(self, value: Any = None) -> None:
        data = pickle.dumps(value, protocol=5)
        with self._sending:
            self._connection.send_bytes(data)

    def receive(self) -> Any:
        while self._connection.poll(self._patience):
            if (value := pickle.loads(self._connection.recv_bytes())) is not None:
                return value
        msg = "another process does not answer"
        raise DistError(msg)

    def _report(self) -> None:
        with suppress(OSError):
            while not self._closed.wait(self._patience / 8):
                self.send()

    def close(self) -> None:
        self._closed.set()
        with self._sending:
            self._connection.close()


def _serve(link: _Link) -> None:
    """Compute the items of the main process until it closes the connection."""
    function: Any = None
    with suppress(EOFError, OSError):
        while True:
            make, item = link.receive()
            value = failure = None
            with notices.gathered() as met:
                try:
                    function = make() if make else function
                    value = function(item)
                except Exception as error:  # noqa: BLE001 - raised in the command
                    error.add_note(f"In another process:\n{traceback.format_exc()}")
                    failure = _portable(error)
            link.send((value, failure, met))


def _portable(error: Exception) -> Exception:
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - an exception's own reduction may raise anything
        return RuntimeError(f"{type(error).__name__}: {error}")
    return copy
