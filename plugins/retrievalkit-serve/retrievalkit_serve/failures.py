"""HTTP responses to failed requests: a status, and the same message as on the command line and in Python."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from retrievalkit.contracts.commands import printable
from retrievalkit.errors import ArtifactError, InputError, OptionError, RetrievalkitError, nearest, shortlist

_FIELD = re.compile(r"--(fusion|weights|normalization|missing|rrf-k|depth|k)\b")
"""Command line options that are also request fields."""

_TYPES = {
    401: "UnauthorizedError", 403: "ForbiddenError", 404: "NotFoundError", 408: "SlowRequestError",
    409: "ConflictError", 429: "BusyError", 500: "Exception", 504: "LateError",
}  # fmt: skip
"""OpenAI's error `type` for each status."""

_EXPECTED = {
    "string": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "list": "a list",
    "dict": "an object",
    "model": "an object",
}
_SHOWN = 80


class RefusedError(RetrievalkitError):
    """A refused request with its own status; other errors have status 422."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


class Json(Response):
    """A JSON response; lone surrogates, which UTF-8 cannot encode, become question marks."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the content."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", errors="replace")


def failure(error: RetrievalkitError, path: str) -> Json:
    """Return the response to a failed request in OpenAI's error format, at /v1 with OpenAI's statuses and types."""
    status, kind, headers = 500, type(error).__name__, None
    if isinstance(error, RefusedError):
        status, headers = error.status, error.headers
        kind = _TYPES.get(status, "InputError")
    elif isinstance(error, InputError) and not isinstance(error, ArtifactError):
        status = 422  # a damaged index is not the client's fault
    body = {"message": message_of(error), "type": kind, "param": None, "code": status}
    if path.startswith("/v1/"):
        status = 400 if status == 422 else status
        body |= {"type": "invalid_request_error" if status in (400, 404) else kind, "code": None}
    return Json({"error": body}, status_code=status, headers=headers)


def message_of(error: RetrievalkitError) -> str:
    """Return the message of the command line, with fields instead of flags: `rrf_k` for `--rrf-k`."""
    message = _FIELD.sub(lambda match: match[1].replace("-", "_"), str(error))
    return printable(message, lines=True)


def invalid_request(
    error: Mapping[str, Any], place: Sequence[Any], form: type[BaseModel] | None, operation: str
) -> InputError:
    """Convert an error of pydantic, at a place in the request body, to an error that describes the problem."""
    name = ".".join(map(str, place))
    match error["type"]:
        case "json_invalid":
            reason = error.get("ctx", {}).get("error", "it cannot be read")
            return InputError(f'the body is not JSON: {reason}. Send an object such as {{"query": "..."}}.')
        case _ if not place:
            return InputError("the request has no JSON body. Send an object, with Content-Type: application/json.")
        case "missing":
            return OptionError(f"{operation} needs '{name}', which is missing.")
        case "extra_forbidden":
            known = [] if form is None else list(form.model_fields)
            close = nearest(str(place[-1]), known)
            offer = f"; did you mean '{close}'?" if close else "."
            return OptionError(f"{operation} has no option '{place[-1]}'{offer} Its options: {shortlist(known, 30)}.")
        case "string_unicode":
            return InputError(f"{name} contains invalid UTF-8 or half a surrogate pair. Remove it.")
    shown = repr(error.get("input"))
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    expected = error.get("ctx", {}).get("expected") or _EXPECTED.get(error["type"].partition("_")[0])
    should = f"should be {expected}" if expected else error["msg"].removeprefix("Input ")
    return OptionError(f"'{name}' is {shown}, and {should}.")
