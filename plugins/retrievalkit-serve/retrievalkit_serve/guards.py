"""Middleware for all requests and responses.

It checks the origin, the token, the size of the body and the response time, sends headers that restrict what a browser
does with a response, and counts requests. Starlette checks the host names (`app`).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from retrievalkit_serve.failures import Json, RefusedError, failure
from retrievalkit_serve.service import Service

_LOG = logging.getLogger(__name__)
RELOAD = "/admin/reload"
_OPEN = ("/", "/health", "/docs", "/openapi.json", "/favicon.ico")
"""Public addresses; the page prompts for the token."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # under no-referrer, a browser may send "Origin: null" for our own page
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}


class Guards:
    """The outermost ASGI layer of the service.

    Args:
        app: The application.
        service: The service behind it.
        paths: All known addresses, for the metrics.
    """

    def __init__(self, app: ASGIApp, *, service: Service, paths: frozenset[str]) -> None:
        self._app = app
        self._service = service
        self._options = service.options
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # the server drops the body
        start, path, options = time.perf_counter(), scope["path"], self._options
        status, size, complete = 0, 0, False

        async def received() -> Message:
            nonlocal size, complete
            message = await receive()
            size += len(message.get("body", b""))
            if size > options.max_body:
                # Starlette's RequestBodyLimitMiddleware answers immediately; some clients send all before reading.
                while message.get("more_body"):
                    message = await receive()
                raise HTTPException(413, f"the body has more than {options.max_body:,} bytes (rkit serve --max-body)")
            complete = not message.get("more_body", False)
            return message

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if self._service.stopping:
                    headers["Connection"] = "close"
            await send(message)

        answer: ASGIApp = self._refusal(path, Headers(scope=scope)) or self._app
        failed: RefusedError | None = None
        try:
            # Opening indexes may take long.
            async with asyncio.timeout(None if path == RELOAD else options.timeout):
                await answer(scope, received, sent)
        except TimeoutError:
            seconds = f"within {options.timeout:g} s"
            late = f"there was no answer {seconds}. Request less, or retry later (rkit serve --timeout)."
            slow = f"the body did not arrive {seconds}. Send it faster."
            # If the connection stayed open, the rest of the body would be parsed as another request.
            failed = RefusedError(504, late) if complete else RefusedError(408, slow, {"Connection": "close"})
        except Exception:  # noqa: BLE001 - logged here, while the request is known
            # A bug. The connection stays open: the next request on it may succeed.
            _LOG.exception("%s %s failed", scope["method"], path)
            failed = RefusedError(500, "the service failed. Its log has the traceback; please report it.")
        finally:
            if failed and not status:
                await failure(failed, path)(scope, received, sent)
            known = path if path in self._paths else "other"
            self._service.metrics.request(known, status or 500, time.perf_counter() - start)

    def _refusal(self, path: str, headers: Headers) -> Json | None:
        """Return the response that refuses a request by its headers, or None."""
        options = self._options
        for origin in headers.getlist("origin"):  # browsers send the address of the requesting page
            authority = origin.partition("://")[2].lower()
            name = re.sub(r":\d+$", "", authority)
            if not authority or (authority != headers.get("host", "").lower() and name not in options.extra_hosts):
                msg = (
                    f"the request comes from a page of '{origin:.100}', but this service only answers its own page. "
                    f"Behind a proxy, forward the Host header, or start rkit serve with --allow-host NAME."
                )
                return failure(RefusedError(403, msg), path)
        if "content-length" in headers and "transfer-encoding" in headers:
            # A proxy may use the other header, and see a second request in the body (RFC 9112, 6.3).
            msg = "the request has both Content-Length and Transfer-Encoding. Send one of them."
            return failure(RefusedError(400, msg, {"Connection": "close"}), path)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if options.token is None or path in _OPEN:
            return None
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), options.token.encode()):
            msg = "the token is missing or wrong. Send the header Authorization: Bearer TOKEN."
            return failure(RefusedError(401, msg, {"WWW-Authenticate": "Bearer"}), path)
        return None
