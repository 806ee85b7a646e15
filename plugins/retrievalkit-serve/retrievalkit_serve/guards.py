"""What every request passes on its way in, and every response on its way out.

The page that asks, the token, the size of a body, the time of an answer, headers that keep a browser from doing more
than showing a page, and the counting of requests. The service's names are checked by starlette (`app`).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrievalkit_serve.failures import (
    ForbiddenError,
    Json,
    LateError,
    SlowRequestError,
    UnauthorizedError,
    failure,
    told,
)
from retrievalkit_serve.metrics import Metrics
from retrievalkit_serve.serve import ServeOptions

_LOG = logging.getLogger(__name__)
RELOAD = "/admin/reload"
_OPEN = ("/", "/health", "/docs", "/openapi.json", "/favicon.ico")
"""Addresses that hold nothing secret: the page asks for the token."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # under no-referrer, a browser may send "Origin: null" for our own page
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


class Guards:
    """The outermost part of the service.

    Args:
        app: What answers.
        options: What is asked of a request.
        metrics: Where requests are counted.
        paths: All addresses, for the counting.
        stopping: Whether connections are to be closed.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        options: ServeOptions,
        metrics: Metrics,
        paths: frozenset[str],
        stopping: Callable[[], bool],
    ) -> None:
        self._app = app
        self._options = options
        self._metrics = metrics
        self._paths = paths
        self._stopping = stopping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server leaves out the body
        start, path, options = time.perf_counter(), scope["path"], self._options
        status, size, whole = 0, 0, False

        async def received() -> Message:
            nonlocal size, whole
            message = await receive()
            size += len(message.get("body", b""))
            if size > options.max_body:
                while message.get("more_body"):  # a client may read the answer only when it has sent everything
                    message = await receive()
                raise HTTPException(413, f"the body has more than {options.max_body:,} bytes (rkit serve --max-body)")
            whole = not message.get("more_body", False)
            return message

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if self._stopping():
                    headers["Connection"] = "close"
            await send(message)

        answer = self._refusal(path, Headers(scope=scope)) or self._app
        try:
            # Indexes may take long to open.
            async with asyncio.timeout(None if path == RELOAD else options.timeout):
                await answer(scope, received, sent)
        except TimeoutError:
            late = f"there was no answer within {options.timeout:g} s. Ask for less, or later (rkit serve --timeout)."
            slow = f"the body did not arrive within {options.timeout:g} s. Send it faster."
            if not status:
                await failure(LateError(late) if whole else SlowRequestError(slow), path)(scope, received, sent)
        except Exception:  # noqa: BLE001 - logged here, where the request is known
            # A mistake of ours. The connection stays as it is: the next request on it may be a good one.
            _LOG.exception("%s %s failed", scope["method"], path)
            if not status:
                words = "the service failed. Its log says where; please report it."
                await told(path, 500, words, "Exception")(scope, received, sent)
        finally:
            known = path if path in self._paths else "other"
            self._metrics.request(known, status or 500, time.perf_counter() - start)

    def _refusal(self, path: str, headers: Headers) -> Json | None:
        """The answer to a request that is refused before it is read; None = it is not."""
        for origin in headers.getlist("origin"):  # browsers send the address of the page that asks
            authority = origin.partition("://")[2].lower()
            name = re.sub(r":\d+$", "", authority)
            if not authority or (
                authority != headers.get("host", "").lower() and name not in self._options.other_names
            ):
                msg = (
                    f"the request comes from a page of '{origin:.100}', and this service answers only its own page. "
                    f"Behind a proxy, pass the Host header on, or start rkit serve with --allow-host NAME."
                )
                return failure(ForbiddenError(msg), path)
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy may go by the other one, and see a second request in the body (RFC 9112, 6.3).
            msg = "the request has both Content-Length and Transfer-Encoding. Send one of them."
            return told(path, 400, msg, "InputError", {"Connection": "close"})
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if self._options.token is None or path in _OPEN:
            return None
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self._options.token.encode()):
            msg = "the token is missing or wrong. Send the header Authorization: Bearer TOKEN."
            return failure(UnauthorizedError(msg), path)
        return None
