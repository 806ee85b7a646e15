"""What goes wrong, as HTTP: a status, and the words of the exception."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from retrievalkit.contracts.commands import printable
from retrievalkit.errors import ArtifactError, InputError, RetrievalkitError

_FIELD = re.compile(r"--(fusion|weights|normalization|missing|rrf-k|depth|k)\b")
"""Options of the command line that a request has too."""


class NotFoundError(InputError):
    """Something that is asked for by its name is not there."""

    status = 404


class UnauthorizedError(InputError):
    """A request without the token that it needs."""

    status = 401


class ForbiddenError(InputError):
    """A request that this service answers to nobody, or not under this name."""

    status = 403


class SlowRequestError(InputError):
    """A request whose body did not arrive in time."""

    status = 408


class ConflictError(InputError):
    """A request that does not go with what the service does already."""

    status = 409


class BusyError(RetrievalkitError):
    """The service has as much to do as it takes on.

    Args:
        seconds: When to come again.
    """

    status = 429

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the service is busy. Ask again in {seconds} s.")
        self.seconds = seconds


class LateError(RetrievalkitError):
    """A request that was given up because it took too long."""

    status = 504


class Json(Response):
    """A JSON response; a lone half of a surrogate pair, which UTF-8 cannot hold, becomes a question mark."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", errors="replace")


def failure(error: RetrievalkitError, path: str) -> Json:
    """The response to a request that failed, in the form of OpenAI's errors."""
    headers = {}
    if isinstance(error, BusyError):
        headers["Retry-After"] = str(error.seconds)
    if isinstance(error, SlowRequestError):
        headers["Connection"] = "close"  # the rest of the body would be read as another request
    if isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = "Bearer"
    # An index that is damaged is not the fault of who asks.
    mistake = isinstance(error, InputError) and not isinstance(error, ArtifactError)
    status = getattr(error, "status", 422 if mistake else 500)
    return told(path, status, words_of(error), type(error).__name__, headers)


def words_of(error: RetrievalkitError) -> str:
    """The message as the command line prints it, but that `--rrf-k` is the field `rrf_k`."""
    message = _FIELD.sub(lambda match: match[1].replace("-", "_"), str(error))
    return printable(message, lines=True)


def told(path: str, status: int, message: str, kind: str, headers: Mapping[str, str] | None = None) -> Json:
    """A response that says what is wrong; at /v1 in OpenAI's form, as its clients expect."""
    error = {"message": message, "type": kind, "param": None, "code": status}
    if path.startswith("/v1/"):
        status = 400 if status == 422 else status
        error |= {"type": "invalid_request_error" if status in (400, 404) else kind, "code": None}
    return Json({"error": error}, status_code=status, headers=dict(headers or {}))
