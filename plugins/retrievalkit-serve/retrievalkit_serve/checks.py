"""What a request may ask for, checked with the words that the command line and the Python surface have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from retrievalkit.data.queries import Query, check_queries
from retrievalkit.errors import InputError, OptionError, RetrievalkitError, nearest, shortlist
from retrievalkit.search.public import hit_count
from retrievalkit_serve.serve import ServeOptions

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


def query_text(text: str, options: ServeOptions) -> str:
    """A query that can be searched for.

    Raises:
        InputError: It is empty, too long, or no text.
    """
    check_queries([Query("query", text)])
    check_length("query", text, options)
    return text


def check_length(name: str, text: str, options: ServeOptions) -> None:
    """Refuse a text of more characters than a query may have.

    Raises:
        OptionError: It is longer.
    """
    if len(text) > options.max_query:
        msg = f"{name} has {len(text):,} characters; this service takes {options.max_query:,} at most. Shorten it."
        raise OptionError(msg)


def count(k: Any, default: int, options: ServeOptions, name: str = "k") -> int:
    """A number of hits.

    Raises:
        OptionError: It is no whole number, or out of range.
    """
    number = hit_count(k, default)
    if number > options.max_k:
        most = f"this service gives {options.max_k:,} hits at most"
        msg = f"{name} is {number:,}; {most}. Ask for fewer (rkit serve --max-k)."
        raise OptionError(msg)
    return number


def several(what: str, values: Sequence[Any], options: ServeOptions) -> None:
    """Refuse an empty list, and one that is too long.

    Raises:
        OptionError: It has no element, or too many.
    """
    if not values:
        msg = f"{what} are an empty list. Give at least one."
        raise OptionError(msg)
    if len(values) > options.max_k:
        msg = f"{len(values):,} {what}; this service takes {options.max_k:,} at once. Send several requests."
        raise OptionError(msg)


def words_for(
    errors: Sequence[Mapping[str, Any]], form: type[BaseModel] | None, operation: str, *, framed: bool = False
) -> RetrievalkitError:
    """What is wrong with a body, by the first of the errors that pydantic found in it.

    Args:
        errors: Those of `ValidationError.errors()`.
        form: What the body should be.
        operation: A word for what was asked.
        framed: Whether places begin with the part of the request, "body" or "query".
    """
    first = errors[0]
    place = [str(part) for part in first["loc"]]
    place = place[1:] if framed else place
    name = ".".join(place)
    if first["type"] == "json_invalid":
        reason = first.get("ctx", {}).get("error", "it cannot be read")
        return InputError(f'the body is not JSON: {reason}. Send an object such as {{"query": "..."}}.')
    if not place:
        return InputError("the request has no body of JSON. Send an object, with Content-Type: application/json.")
    if first["type"] == "missing":
        return OptionError(f"{operation} needs '{name}', and it was not given.")
    if first["type"] == "extra_forbidden":
        known = [] if form is None else list(form.model_fields)
        close = nearest(place[-1], known)
        offer = f"; did you mean '{close}'?" if close else "."
        return OptionError(f"{operation} has no option '{place[-1]}'{offer} Its options: {shortlist(known, 30)}.")
    if first["type"] == "string_unicode":
        return InputError(f"{name} holds bytes that are not UTF-8, or half a surrogate pair.")
    shown = repr(first.get("input"))
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    expected = first.get("ctx", {}).get("expected") or _EXPECTED.get(first["type"].partition("_")[0])
    should = f"should be {expected}" if expected else first["msg"].removeprefix("Input ")
    return OptionError(f"'{name}' is {shown}, and {should}.")
