"""What a service is told when it starts: what it serves, where, and how much it takes on."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retrievalkit.errors import InputError, OptionError
from retrievalkit.search.search import SearchOptions

TOKEN = "RKIT_SERVE_TOKEN"
"""Environment variable: the token that requests must bear."""

_SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Limits:
    """How much a service takes on; see `rkit serve --help`.

    Attributes:
        queue: Requests that wait or are answered, at most: more are refused.
        batch: Queries that are answered together, at most.
        wait: Seconds that a query waits for others while the service is busy.
        threads: Batches that are answered at once.
        timeout: Seconds until a request is given up.
        body: Bytes of a request.
        query: Characters of a query.
        k: Hits of a query, and documents of a request.
    """

    queue: int = 256
    batch: int = 32
    wait: float = 0.005
    threads: int = 2
    timeout: float = 30.0
    body: int = 1 << 20
    query: int = 4_096
    k: int = 1_000


@dataclass(frozen=True)
class Settings:
    """What is served, and where.

    Attributes:
        search: Indexes, models and texts, and how indexes are fused unless a request says otherwise.
        reranker: A cross-encoder.
        rerank: How many hits it re-ranks unless a request says otherwise; None = 100.
        token: What requests must bear; None = nothing.
        hosts: Other names of the service, such as that of a proxy, in lower case.
    """

    search: SearchOptions
    reranker: str | None = None
    rerank: int | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    hosts: tuple[str, ...] = ()
    limits: Limits = Limits()

    def check(self) -> None:
        """Refuse what cannot be served, before anything is opened.

        Raises:
            InputError: A place is no folder, or an option has no effect.
        """
        for place in self.search.indexes:
            if not Path(place).is_dir():
                what = "is a file" if Path(place).exists() else "does not exist"
                msg = f"'{place}' {what}. Give index folders, which rkit index makes."
                raise InputError(msg)
        if self.rerank is not None and self.reranker is None:
            msg = f"--rerank {self.rerank} has no effect here: it goes with --reranker."
            raise OptionError(msg)
        for name in self.hosts:
            if not re.fullmatch(r"[\w.-]+|\[[\da-f:.]+\]", name):
                msg = (
                    f"--allow-host '{name}' is not a name. Give one without a scheme, port or '*', such as "
                    f"search.example.org."
                )
                raise OptionError(msg)
        self.search.fused(len(self.search.indexes))

    @property
    def names(self) -> list[str]:
        """Values of the Host header that are answered; a page of another site could let its own name lead here."""
        if self.token is not None or not self.stays_here:
            return ["*"]
        return ["localhost", "127.0.0.1", "[::1]", self.host, *self.hosts]

    @property
    def stays_here(self) -> bool:
        """Whether only programs of this machine can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def token_of(path: str | None, environment: Mapping[str, str]) -> str | None:
    """The token of a file or of the environment; None if there is none. It is never an argument, which all users see.

    Raises:
        InputError: The file cannot be read, or the token is too short or holds characters that no header may hold.
    """
    where = TOKEN if path is None else f"'{path}'"
    try:
        token = environment.get(TOKEN) if path is None else Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"the token cannot be read from {where}: {error}. Give a file with one line."
        raise InputError(msg) from error
    if token is None:
        return None
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        msg = (
            f"the token of {where} has {len(token)} characters; it needs {_SHORTEST_TOKEN} or more, ASCII without "
            f'spaces. Make one: python -c "import secrets; print(secrets.token_urlsafe())"'
        )
        raise InputError(msg)
    return token
