"""`rkit serve`: the command and its options."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le

from retrievalkit.contracts.commands import HybridOptions, OpenOptions, indexes_of
from retrievalkit.contracts.declarations import Argument, Flag, Place, Reads, Rest, command
from retrievalkit.data import inputs
from retrievalkit.errors import InputError, OptionError
from retrievalkit.reporting.notices import gathered

TOKEN = "RKIT_SERVE_TOKEN"
"""Environment variable: the token that requests must carry."""

_SHORTEST_TOKEN = 16


def _folders(value: Any) -> tuple[str, ...]:
    several = value if isinstance(value, list | tuple) else [value]
    places = [index if isinstance(index, os.PathLike) else getattr(index, "folder", index) for index in several]
    return tuple(inputs.place(index, "an index") for index in places)


@dataclass(frozen=True)
class ServeOptions(HybridOptions, OpenOptions):
    """Options of `serve`.

    Args:
        indexes: Index folders and collections; in Python also open indexes, whose folders are opened again.
        name: The name of the service on its page, for its model and for agents; by default that of the collection.
        reranker: A cross-encoder (rkit rerank train, or a hub name) that re-ranks the first hits.
        rerank: Default number of hits to re-rank; 100 if not set, 0 = none. Requests can override it.
        host: Address to listen on; 0.0.0.0 = all of them.
        port: Port to listen on; 0 = any free port.
        token_file: A file with the token that requests must carry; or set RKIT_SERVE_TOKEN.
        allow_host: Another host name of the service, such as a proxy's.
        mcp: Serve MCP on standard input and output, instead of HTTP (where MCP is at /mcp).
        queue: Maximum number of requests waiting or being answered; more are refused (429).
        batch: Maximum number of queries answered together.
        wait: Milliseconds that a query waits for others while the service is busy.
        threads: Number of batches answered in parallel.
        timeout: Seconds until a request is aborted (504).
        max_body: Maximum bytes per request (413).
        max_query: Maximum characters per query (422).
        max_k: Maximum hits per query, and documents per request (422).
        named_options: Options of single indexes, by the name of their indexer or their folder.
    """

    indexes: Annotated[Any, Argument(several=True), Flag(metavar="INDEX..."), Reads(_folders, ("index",))]
    _: KW_ONLY
    name: str | None = None
    reranker: Annotated[str | None, Reads(accepts=("reranker",))] = None
    rerank: Annotated[int, Ge(0)] | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Ge(0), Le(65535)] = 8000
    token_file: Place | None = None
    allow_host: Sequence[str] = ()
    mcp: bool = False
    queue: Annotated[int, Ge(1)] = 256
    batch: Annotated[int, Ge(1)] = 32
    wait: Annotated[float, Gt(0)] = 5.0
    threads: Annotated[int, Ge(1)] = 2
    timeout: Annotated[float, Gt(0)] = 30.0
    max_body: Annotated[int, Ge(1)] = 1 << 20
    max_query: Annotated[int, Ge(1)] = 4096
    max_k: Annotated[int, Ge(1)] = 1000
    named_options: Annotated[Mapping[str, Any], Rest(sections=True)] = field(default_factory=dict)

    @property
    def hosts(self) -> list[str]:
        """Accepted values of the Host header, because other sites could point their names to this machine."""
        if self.token is not None or not self.is_local:
            return ["*"]
        return ["localhost", "127.0.0.1", "[::1]", self.host, *self.extra_hosts]

    @property
    def extra_hosts(self) -> list[str]:
        """Values of `allow_host`, in lower case."""
        return [name.lower() for name in self.allow_host]

    @property
    def is_local(self) -> bool:
        """True if the service listens only on this machine."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def places(self) -> tuple[str, ...]:
        """The index folders; those of a collection change when its first sync ends."""
        with gathered():  # `Collection` has the notes
            return indexes_of(self.indexes)

    @cached_property
    def token(self) -> str | None:
        """Token from a file or the environment; other users of the machine could see an argument.

        Raises:
            InputError: The file cannot be read, or the token is too short or has characters not allowed in a header.
        """
        where = TOKEN if self.token_file is None else f"'{self.token_file}'"
        try:
            path = self.token_file
            token = os.environ.get(TOKEN) if path is None else Path(path).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            msg = f"the token cannot be read from {where}: {error}. Give a file with one line."
            raise InputError(msg) from error
        if token is None or (len(token) >= _SHORTEST_TOKEN and re.fullmatch("[!-~]+", token)):
            return token
        msg = (
            f"the token of {where} has {len(token)} characters; it needs {_SHORTEST_TOKEN} or more, ASCII without "
            f'spaces. Create a token: python -c "import secrets; print(secrets.token_urlsafe())"'
        )
        raise InputError(msg)

    def check(self) -> None:
        """Check the options before anything is opened.

        Raises:
            InputError: A path is not a folder, or an option has no effect.
        """
        for place in self.indexes:
            if not Path(place).is_dir():
                what = "is a file" if Path(place).exists() else "does not exist"
                msg = f"'{place}' {what}. Give index folders (rkit index)."
                raise InputError(msg)
        if self.rerank is not None and self.reranker is None:
            msg = f"rerank {self.rerank} has no effect here. Use it with reranker, or leave it out."
            raise OptionError(msg)
        for name in self.extra_hosts:
            if not re.fullmatch(r"[\w.-]+|\[[\da-f:.]+\]", name):
                msg = f"allow_host '{name}' is not a host name. Leave out scheme, port and '*': search.example.org."
                raise OptionError(msg)
        self.fused(len(self.places))
        _ = self.token


@command("serve", ServeOptions)
def serve(options: ServeOptions) -> None:
    """Serve each INDEX, or several together, over HTTP, in a web page, and to LLM agents (MCP).

    Models are loaded before the first request. When an index changes, the service opens its new state within seconds,
    while the old one answers. SIGTERM and Ctrl-C end the service once all requests are answered.

    \b
    rkit serve dense bm25                      # a page at http://127.0.0.1:8000, the API reference at /docs
    rkit serve dense bm25 --fusion linear --weights 0.3,0.7 --reranker reranker
    rkit serve dense --mcp
    """  # noqa: D301 - click needs the literal backspace to keep the lines apart
    options.check()
    from retrievalkit_serve import server

    (server.serve_on_pipes if options.mcp else server.serve)(options)
