"""The program behind `rkit serve`: opens the indexes and answers until a signal stops it, without losing requests."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from retrievalkit.contracts.commands import say
from retrievalkit.errors import InputError
from retrievalkit_serve.app import create_app
from retrievalkit_serve.mcp import AgentServer
from retrievalkit_serve.serve import TOKEN, ServeOptions
from retrievalkit_serve.service import Service

_SETTLE = 1.0
"""Grace period in seconds: idle connections may still send a request after the service stops accepting new ones."""

_TICK = 0.02
_ACCEPTED_AT_ONCE = 8
"""Connections that asyncio accepts at a time before `_Connection` can close others to make room."""

_MORE_CONNECTIONS = 1000
"""Open connections allowed in addition to those with requests waiting or being answered."""


def serve(options: ServeOptions) -> None:
    """Serve over HTTP until SIGTERM or Ctrl-C.

    Raises:
        InputError: Something cannot be opened, or the port is in use.
    """
    # Otherwise mcp logs through rich, whose tracebacks open files: without free descriptors, the service would end.
    logging.basicConfig(format="%(levelname)s: %(message)s")
    # Report a port in use before loading the models.
    with _bound(options) as listener:
        if not options.stays_here and options.token is None:
            say(
                f"Warning: anyone who reaches {options.host} can search and read all texts: there is no token, and "
                f"requests are not encrypted. Set {TOKEN} or --token-file and use a TLS proxy, or leave out --host.",
                err=True,
            )
        service = Service(options)
        asyncio.run(_serve(service, listener))
    say("stopped: all requests were answered.", err=True)


def serve_on_pipes(options: ServeOptions) -> None:
    """Serve an agent that started this process, on standard input and output.

    Raises:
        InputError: Something cannot be opened.
    """
    service = Service(options)
    say(f"serving {service.summary()} on standard input and output", err=True)
    try:
        asyncio.run(AgentServer(service).run_on_pipes())
    finally:
        service.batcher.close()


async def _serve(service: Service, listener: socket.socket) -> None:
    options = service.options
    most = options.queue + _MORE_CONNECTIONS
    with suppress(ImportError):  # Windows has no limits
        import resource

        # At most half of the file descriptors: indexes need the others.
        most = min(most, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    config = uvicorn.Config(
        create_app(service),
        http=partial(_Connection, most=most, seconds=options.timeout),  # type: ignore[arg-type]
        log_config=None,
        log_level="error",  # clients must not be able to fill the log with warnings
        access_log=False,
        server_header=False,
        backlog=_ACCEPTED_AT_ONCE,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=int(options.timeout) + 5,
    )
    await _Server(config, service, address).serve([listener])


class _Server(uvicorn.Server):
    """uvicorn's server that also prints when it is ready, reloads on SIGHUP, and closes no connection too early."""

    def __init__(self, config: uvicorn.Config, service: Service, address: str) -> None:
        super().__init__(config)
        self._service = service
        self._address = address
        self._reloads: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and print the address."""
        try:
            await super().startup(sockets)
        except OSError as error:
            raise _refused(self._service.options, error) from error
        for listener in sockets or ():
            listener.listen(2048)
        say(f"serving {self._service.summary()} at {self._address} (Ctrl-C stops)", err=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, answer pending requests, and close connections after their next answer.

        An idle connection is closed only after some time: closing it immediately could lose a request already on its
        way.
        """
        self._service.stopping = True
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        settled = loop.time() + _SETTLE
        while self.server_state.connections and loop.time() < settled:
            await asyncio.sleep(_TICK)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on SIGINT and SIGTERM, immediately on the second; reload the indexes on SIGHUP.

        The event loop watches for signals meanwhile, instead of the command line (`cli.signals`).
        """
        loop = asyncio.get_running_loop()
        actions: dict[int, Any] = {number: partial(self._stop, number) for number in (signal.SIGINT, signal.SIGTERM)}
        if hasattr(signal, "SIGHUP"):
            actions[signal.SIGHUP] = self._reload
        try:
            for number, action in actions.items():
                loop.add_signal_handler(number, action)
        except NotImplementedError:  # Windows
            with super().capture_signals():
                yield
            return
        try:
            yield
        finally:
            for number in actions:
                loop.remove_signal_handler(number)

    def _stop(self, number: int) -> None:
        if self.should_exit:
            say("stopped immediately: pending requests were lost.", err=True)
            # A running computation cannot be interrupted, and Python would wait for it.
            os._exit(128 + number)
        self.should_exit = True

    def _reload(self) -> None:
        task = asyncio.get_running_loop().create_task(self._service.reload_and_print())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)


class _Connection(H11Protocol):
    """A uvicorn connection that slow clients cannot hold open and many clients cannot exhaust for others.

    Args:
        most: Maximum open connections; beyond it, the connection that has waited longest for its client is closed.
        seconds: Time to send a request's head, and to read a response. `Guards` limits the time between them.
    """

    def __init__(self, *args: Any, most: int, seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most = most
        self._seconds = seconds
        self._deadline: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock and make room."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self._seconds, self._expire)
        connections: set[Any] = self.connections  # all are of this class
        if len(connections) > self._most:
            min(connections, key=_Connection._waits_since)._hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._deadline.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Restart the clock: the client reads the response and may send another request."""
        self._deadline.cancel()
        self._deadline = self.loop.call_later(self._seconds, self._expire)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP, unless a response to its head is on the way."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self._hang_up()

    def _waits_since(self) -> float:
        """Sort key for closing connections; those whose request is being answered come last."""
        answered = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        return math.inf if answered else self._deadline.when()

    def _expire(self) -> None:
        answered = self.cycle is not None and not self.cycle.response_complete
        if answered and not self.flow.write_paused and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self._seconds, self._expire)
        else:
            self._hang_up()

    def _hang_up(self) -> None:
        self.connections.discard(self)
        if self.cycle is not None:
            self.cycle.disconnected = True
        self.transport.abort()


@contextmanager
def _bound(options: ServeOptions) -> Iterator[socket.socket]:
    """A socket bound to the address but not listening yet."""
    with ExitStack() as stack:
        try:
            addresses = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = addresses[0]
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            raise _refused(options, error) from error
        yield listener


def _refused(options: ServeOptions, error: OSError) -> InputError:
    msg = (
        f"cannot listen at {options.host}, port {options.port}: {error.strerror or error}. Choose another --host or "
        f"--port (0 = any free port), or stop the program that uses it."
    )
    return InputError(msg)
