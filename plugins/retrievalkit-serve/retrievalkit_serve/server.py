"""The server of `rkit serve`: opens the indexes, and answers requests until a signal stops it."""

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
"""Grace period in seconds, in which open connections may send a request after the service stops accepting others."""

_TICK = 0.02
_BACKLOG = 8
"""Connections that asyncio accepts before `_Connection` can close others to make room."""

_IDLE_CONNECTIONS = 1000
"""Maximum number of open connections without a request that waits or is being answered."""


def serve(options: ServeOptions) -> None:
    """Serve over HTTP until SIGTERM or Ctrl-C.

    Raises:
        InputError: An index or model cannot be opened, or the port is in use.
    """
    # Otherwise mcp logs through rich, whose tracebacks open files, which fails if no descriptors are free.
    logging.basicConfig(format="%(levelname)s: %(message)s")
    # Report a port in use before loading the models.
    with _bound(options) as listener:
        if not options.is_local and options.token is None:
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
        InputError: An index or model cannot be opened.
    """
    service = Service(options)
    say(f"serving {service.summary()} on standard input and output", err=True)
    try:
        asyncio.run(AgentServer(service).run_on_pipes())
    finally:
        service.batcher.close()


async def _serve(service: Service, listener: socket.socket) -> None:
    options = service.options
    most = options.queue + _IDLE_CONNECTIONS
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
        backlog=_BACKLOG,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=int(options.timeout) + 5,
    )
    await _Server(config, service, address).serve([listener])


class _Server(uvicorn.Server):
    """uvicorn's server, which also prints its address, reloads on SIGHUP, and loses no request when it stops."""

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
            raise _address_error(self._service.options, error) from error
        for listener in sockets or ():
            listener.listen(2048)
        say(f"serving {self._service.summary()} at {self._address} (Ctrl-C stops)", err=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, answer pending requests, and close connections after their next answer.

        Idle connections stay open for a moment, because a request may be on its way.
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
        """Stop on SIGINT and SIGTERM, immediately on the second signal; reload the indexes on SIGHUP."""
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
    """A uvicorn connection with protection against slow clients and too many connections.

    Args:
        most: Maximum open connections; beyond it, the connection that has waited longest for its client is closed.
        seconds: Time limit for a client to send a request's header, and to read a response. `Guards` has the limits
            for the body and the answer.
    """

    def __init__(self, *args: Any, most: int, seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._most = most
        self._seconds = seconds
        self._deadline: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer, and close the connection that has waited longest if there are too many."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self._seconds, self._expire)
        connections: set[Any] = self.connections  # all are of this class
        if len(connections) > self._most:
            min(connections, key=_Connection._priority)._abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._deadline.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Restart the timer for the client to read the response, and to send another request."""
        self._deadline.cancel()
        self._deadline = self.loop.call_later(self._seconds, self._expire)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse data that is not HTTP, unless the response to its header has started."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self._abort()

    def _priority(self) -> float:
        """Sort key for closing connections: connections whose request is being answered come last."""
        answered = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        return math.inf if answered else self._deadline.when()

    def _expire(self) -> None:
        answered = self.cycle is not None and not self.cycle.response_complete
        if answered and not self.flow.write_paused and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self._seconds, self._expire)
        else:
            self._abort()

    def _abort(self) -> None:
        self.connections.discard(self)
        if self.cycle is not None:
            self.cycle.disconnected = True
        self.transport.abort()


@contextmanager
def _bound(options: ServeOptions) -> Iterator[socket.socket]:
    """Bind a socket to the address, without listening."""
    with ExitStack() as stack:
        try:
            addresses = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, address = addresses[0]
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            raise _address_error(options, error) from error
        yield listener


def _address_error(options: ServeOptions, error: OSError) -> InputError:
    msg = (
        f"cannot listen at {options.host}, port {options.port}: {error.strerror or error}. Choose another --host or "
        f"--port (0 = any free port), or stop the program that uses it."
    )
    return InputError(msg)
