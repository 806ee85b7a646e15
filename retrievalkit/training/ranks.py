"""Workers in the processes that torchrun started: the main process runs a command, the others compute for it.

    torchrun --nproc-per-node 2 --no-python rkit encode CHECKPOINT corpus.jsonl --output vectors

Every command that can distribute its work over a Ray cluster can distribute it over these processes too. Only the main
process reads, writes and prints, and it computes as well. Items and results travel over sockets instead of collectives,
so they need no GPU memory, each process takes its next item when it is free, and a process may wait as long as the main
process is alive. Nothing is repeated if a process is lost: torchrun ends the others, and a command that is started
again continues after the items that it had written.
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
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NoReturn, TypeVar

import torch
from torch.distributed import DistError  # type: ignore[attr-defined]  # torch's list lacks it

from retrievalkit import contracts
from retrievalkit.contracts import ClusterOptions
from retrievalkit.contracts.workers import Item, Result
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.reporting import notices
from retrievalkit.training import processes

Value = TypeVar("Value")

_links: list[_Link] = []
"""In the main process while it leads: a link to each other process."""


def lead(function: Callable[[], Value]) -> Value | None:
    """Run a function in the main process, while the others compute what `Ranks` in it distributes; they return None.

    Raises:
        SystemExit: Another process failed; see `processes.together`.
    """
    if processes.count() == 1:
        return function()
    with processes.together():
        if not processes.is_main():
            place: Any = processes.from_main(None)
            host, port, key = place
            with closing(_Link(Client((host, port), authkey=key))) as link:
                _serve(link)
            return None
        with ExitStack() as stack:
            key = secrets.token_bytes()
            # On all addresses, since a machine may reach itself under another than the others do.
            listener = stack.enter_context(Listener(("", 0), backlog=processes.count(), authkey=key))
            processes.from_main((os.environ.get("MASTER_ADDR", "127.0.0.1"), listener.address[1], key))
            for _ in range(1, processes.count()):
                _links.append(stack.enter_context(closing(_Link(listener.accept()))))
            stack.callback(_links.clear)
            return function()
    return None


class Ranks(contracts.Workers):
    """Workers in the processes that torchrun started, including the main process.

    Args:
        options: The cluster; the number of workers is that of the processes.
    """

    def __init__(self, options: ClusterOptions) -> None:
        super().__init__(options)
        if not _links:
            msg = "the workers torchrun are the processes that torchrun started. Start rkit with torchrun, without ray."
            raise InputError(msg)

    def map(
        self,
        make: Callable[[], Callable[[Item], Result]],
        items: Callable[[], Iterable[Item]],
        *,
        ordered: bool = True,
        here: Callable[[Item], Result] | None = None,
    ) -> Iterator[Result]:
        """Apply a function to items, each in the next free process."""
        numbered, taking, stopped = enumerate(items()), threading.Lock(), threading.Event()
        results: queue.Queue[Any] = queue.Queue(2 * len(_links))

        def work(link: _Link | None) -> None:
            """Let a process compute items until there are none; the main process if there is no link."""
            try:
                if link is None and torch.cuda.is_available():
                    # The current device is one of a thread.
                    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
                function = (here or make()) if link is None else partial(link.ask, make)
                while not stopped.is_set():
                    with taking:
                        entry = next(numbered, None)
                    if entry is None:
                        break
                    results.put((entry[0], function(entry[1])))
                results.put(None)
            except BaseException as error:  # noqa: BLE001 - raised in the command
                results.put(error)

        threads = [threading.Thread(target=work, args=(link,), daemon=True) for link in (None, *_links)]
        for thread in threads:
            thread.start()
        try:
            computed: dict[int, Result] = {}
            following, working = 0, len(threads)
            while working:
                result = results.get()
                if isinstance(result, BaseException):
                    raise result
                if result is None:
                    working -= 1
                    continue
                number, value = result
                if isinstance(value, _Answer):
                    notices.join(value.met)
                    value = value.value
                computed[number] = value
                while (number := following if ordered else next(iter(computed), -1)) in computed:
                    yield computed.pop(number)
                    following += 1
        finally:
            stopped.set()
            while any(thread.is_alive() for thread in threads):
                with suppress(queue.Empty):
                    results.get(timeout=0.1)

    def stay(self, make: Callable[[], Callable[[Any], Any]]) -> NoReturn:
        """Refuse persistent workers, which no command that torchrun starts needs."""
        del make
        msg = "torchrun's processes share the items of a command, and keep no state. Use a Ray cluster: --ray."
        raise UnsupportedError(msg)

    def tasks(self, function: Callable[[Any, int], Any]) -> NoReturn:
        """Refuse single calls, as `stay` does."""
        self.stay(lambda: lambda item: function(item, 1))


class _Answer:
    """The result of an item in another process, with the warnings it met."""

    def __init__(self, value: Any, met: notices.Notices) -> None:
        self.value, self.met = value, met


class _Link:
    """A connection to another process, on which both report regularly that they are alive."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._sending, self._ended = connection, threading.Lock(), threading.Event()
        self._sent: Callable[[], Any] | None = None
        self._patience = processes.patience().total_seconds()
        threading.Thread(target=self._report, daemon=True).start()

    def ask(self, make: Callable[[], Callable[[Any], Any]], item: Any) -> _Answer:
        """Return the other process's answer to an item; the function is sent once."""
        try:
            self.send((None if make is self._sent else make, item))
            self._sent = make
            answer = self.receive()
        except (EOFError, OSError) as error:
            msg = "another process has ended"
            raise DistError(msg) from error
        if isinstance(answer, _Answer):
            return answer
        raise answer

    def send(self, value: Any) -> None:
        data = pickle.dumps(value, protocol=5)
        with self._sending:
            self._connection.send_bytes(data)

    def receive(self) -> Any:
        """Wait for a message, as long as the other process is alive.

        Raises:
            DistError: It has not reported for the timeout.
            EOFError: It has closed the connection.
        """
        while self._connection.poll(self._patience):
            if data := self._connection.recv_bytes():
                return pickle.loads(data)
        msg = "another process does not answer"
        raise DistError(msg)

    def _report(self) -> None:
        with suppress(OSError):
            while not self._ended.wait(self._patience / 8):
                with self._sending:
                    self._connection.send_bytes(b"")

    def close(self) -> None:
        self._ended.set()
        with self._sending:
            self._connection.close()


def _serve(link: _Link) -> None:
    """Answer the items of the main process until it closes the connection."""
    function: Callable[[Any], Any] = _portable
    with suppress(EOFError, OSError):
        while True:
            make, item = link.receive()
            try:
                with notices.gathered() as met:
                    function = function if make is None else make()
                    answer: Any = _Answer(function(item), met)
            except Exception as error:  # noqa: BLE001 - raised in the command
                error.add_note(f"In another process:\n{traceback.format_exc()}")
                answer = _portable(error)
            link.send(answer)


def _portable(error: Exception) -> Exception:
    """Return an error as another process receives it."""
    try:
        copy: Exception = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - an exception's own reduction may raise anything
        return RuntimeError(f"{type(error).__name__}: {error}")
    return copy
