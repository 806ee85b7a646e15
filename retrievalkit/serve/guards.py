"""What every request passes on its way in, and every response on its way out.

Names under which the service may be asked, the token, the size of a body, the time of an answer, headers that
keep a browser from doing more than showing a page, and the counting of requests.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrievalkit.errors import RetrievalkitError
from retrievalkit.serve.failures import (
    ForbiddenError,
    LateError,
    SlowRequestError,
    TooLongError,
    UnauthorizedError,
    failure,
    told,
)
from retrievalkit.serve.metrics import Metrics
from retrievalkit.serve.settings import Settings

_LOG = logging.getLogger(__name__)
RELOAD = "/admin/reload"
_OPEN = ("/", "/health", "/docs", "/openapi.json", "/favicon.ico")
"""Addresses that hold nothing secret: the page asks for the token."""

_LOCAL = ("localhost", "127.0.0.1", "[::1]")
_MOST_DRAINED = 1 << 24
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class TooLargeError(HTTPException):
    """A body that turned out to be too large while it was read: FastAPI hands this type on."""


@dataclass
class _Exchange:
    """A request and its response, as far as they have come."""

    receive: Receive
    send: Send
    most: int
    closing: Callable[[], bool]
    read: int = 0
    whole: bool = False
    status: int = 0

    async def received(self) -> Message:
        """The next part of the request."""
        message = await self.receive()
        if message["type"] == "http.request":
            self.read += len(message.get("body", b""))
            if self.read > self.most:
                raise TooLargeError(413)
            self.whole = not message.get("more_body", False)
        return message

    async def sent(self, message: Message) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            if "cache-control" not in headers:
                headers["Cache-Control"] = "no-store"
            if self.closing():
                headers["Connection"] = "close"
        await self.send(message)


class Guards:
    """The outermost part of the service.

    Args:
        app: What answers.
        settings: What is asked of a request.
        metrics: Where requests are counted.
        paths: All addresses, for the counting.
        stopping: Whether connections are to be closed.
    """

    def __init__(
        self, app: ASGIApp, *, settings: Settings, metrics: Metrics, paths: frozenset[str], stopping: Callable[[], bool]
    ) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._paths = paths
        self._stopping = stopping
        local = settings.stays_here and settings.token is None
        self._hosts = {*_LOCAL, settings.host, *settings.hosts} if local else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves out the body
        start = time.perf_counter()
        exchange = _Exchange(receive, send, self._settings.limits.body, self._stopping)
        try:
            await self._answer(scope, exchange)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.request(path, exchange.status or 500, time.perf_counter() - start)

    async def _answer(self, scope: Scope, exchange: _Exchange) -> None:
        problem = self._problem(scope["path"], Headers(scope=scope))
        try:
            # Indexes may take long to open.
            async with asyncio.timeout(None if scope["path"] == RELOAD else self._settings.limits.timeout):
                if problem is None:
                    await self._app(scope, exchange.received, exchange.sent)
                    return
                if isinstance(problem, TooLongError):
                    await _drain(exchange)
        except TimeoutError:
            if exchange.status:
                raise
            problem = self._late(whole=exchange.whole)
        except Exception:
            # A mistake of ours. The connection stays as it is: the next request on it may be a good one.
            _LOG.exception("%s %s failed", scope["method"], scope["path"])
            if exchange.status:
                raise
            broken = told(scope["path"], 500, "the service failed. Its log says where; please report it.", "Exception")
            await broken(scope, exchange.received, exchange.sent)
            return
        await failure(problem, scope["path"])(scope, exchange.received, exchange.sent)

    def _problem(self, path: str, headers: Headers) -> RetrievalkitError | None:
        """Why a request is refused before it is read; None = it is not."""
        host = headers.get("host", "")
        if self._hosts is not None and _name_of(host) not in self._hosts:
            msg = (
                f"this service answers under names of its own machine, and was asked as '{host:.100}': a page of "
                f"another site may be asking. Start it with --allow-host {_name_of(host) or 'NAME':.100}, or a token."
            )
            return ForbiddenError(msg)
        if path not in _OPEN and not self._bears_token(headers.get("authorization", "")):
            msg = "the token is missing or wrong. Send the header Authorization: Bearer TOKEN."
            return UnauthorizedError(msg)
        length = headers.get("content-length", "")
        return self.too_large() if length.isdigit() and int(length[:18]) > self._settings.limits.body else None

    def too_large(self) -> TooLongError:
        """The error for a body that is too large."""
        msg = f"the body has more than {self._settings.limits.body:,} bytes. Send less (rkit serve --max-body)."
        return TooLongError(msg)

    def _bears_token(self, header: str) -> bool:
        token = self._settings.token
        scheme, _, given = header.partition(" ")
        return token is None or (
            scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())
        )

    def _late(self, *, whole: bool) -> RetrievalkitError:
        seconds = f"{self._settings.limits.timeout:g} s"
        if whole:
            return LateError(f"there was no answer within {seconds}. Ask for less, or later (rkit serve --timeout).")
        return SlowRequestError(f"the body did not arrive within {seconds}. Send it faster.")


async def _drain(exchange: _Exchange) -> None:
    """Read a body that is too large, up to a point: who sends it sees the answer only then."""
    exchange.most = _MOST_DRAINED
    message: dict[str, Any] = {"more_body": True}
    while message.get("more_body"):
        try:
            message = dict(await exchange.received())
        except TooLargeError:
            return


def _name_of(host: str) -> str:
    """The name in a Host header, without the port."""
    return host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
