"""`rkit serve`: options and hand-off."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click

from retrievalkit.cli.cluster import cluster_options
from retrievalkit.cli.derived import flags as flags_of
from retrievalkit.cli.options import Function, given_flags, parse, precision_option, verify_option
from retrievalkit.search.options import HybridOptions


def _number(name: str, default: float, text: str) -> Callable[[Function], Function]:
    """An option for a limit."""
    kind = click.IntRange(min=1) if isinstance(default, int) else click.FloatRange(min=0, min_open=True)
    return click.option(name, type=kind, default=default, show_default=True, help=text)


@click.command()
@click.argument("indexes", nargs=-1, required=True, metavar="INDEX...")
@flags_of(HybridOptions)
@click.option("--reranker", help="A cross-encoder (rkit rerank train, or a hub name) that reads the first hits.")
@click.option("--rerank", type=click.IntRange(min=0), help="How many hits it reads; 100 where not given, 0 = none.")
@click.option("--model", help="The checkpoint that encodes queries; by default the one that made the index.")
@precision_option("queries are encoded in", "fp32", unset=True)
@click.option("--corpus", help="Where the texts of hits are; by default the corpus that was indexed.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; 0.0.0.0 = all of them.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 = any that is free.")
@click.option(
    "--token-file", type=click.Path(), help="A file with the token that requests must bear; or set RKIT_SERVE_TOKEN."
)
@click.option("--allow-host", multiple=True, help="Another name of the service, such as that of a proxy.")
@click.option("--mcp", is_flag=True, help="Serve an agent on standard input and output instead (over HTTP: /mcp).")
@_number("--queue", 256, "Requests that wait or are answered; more are refused (429).")
@_number("--batch", 32, "Queries that are answered together, at most.")
@_number("--wait", 5.0, "Milliseconds that a query waits for others while the service is busy.")
@_number("--threads", 2, "Batches that are answered at once.")
@_number("--timeout", 30.0, "Seconds until a request is given up (504).")
@_number("--max-body", 1 << 20, "Bytes of a request (413).")
@_number("--max-query", 4096, "Characters of a query (422).")
@_number("--max-k", 1000, "Hits of a query, and documents of a request (422).")
@cluster_options("Search")
@verify_option
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="An option of an index, as in rkit search.")
def serve(
    indexes: tuple[str, ...],
    settings: tuple[str, ...],
    reranker: str | None,
    rerank: int | None,
    host: str,
    port: int,
    token_file: str | None,
    allow_host: tuple[str, ...],
    mcp: bool,
    queue: int,
    batch: int,
    wait: float,
    threads: int,
    timeout: float,
    max_body: int,
    max_query: int,
    max_k: int,
    **flags: Any,
) -> None:
    """Search each INDEX, or several together, over HTTP, on a page, and from language models' agents (MCP).

    Models are loaded before the first request. SIGHUP, or POST /admin/reload with the token, opens the indexes anew
    while the old ones answer; SIGTERM and Ctrl-C end the service once all requests are answered.

    \b
    rkit serve dense bm25                      # a page at http://127.0.0.1:8000, the interface at /docs
    rkit serve dense bm25 --fusion linear --weights 0.3,0.7 --reranker reranker
    rkit serve dense --mcp
    """  # noqa: D301 - for click, the backspace that is meant keeps the lines apart
    _check_packages()
    from retrievalkit.search.search import search
    from retrievalkit.serve.server import serve as over_http
    from retrievalkit.serve.server import serve_on_pipes
    from retrievalkit.serve.settings import Limits, Settings, token_of

    limits = Limits(queue, batch, wait / 1000, threads, timeout, max_body, max_query, max_k)
    chosen = Settings(
        search.read(indexes, **search.settings(parse(settings)) | given_flags(flags)),
        reranker=reranker,
        rerank=rerank,
        host=host,
        port=port,
        token=token_of(token_file, os.environ),
        hosts=tuple(map(str.lower, allow_host)),
        limits=limits,
    )
    (serve_on_pipes if mcp else over_http)(chosen)


def _check_packages() -> None:
    """Refuse to serve without the packages of the extra.

    Raises:
        MissingDependencyError: One is not installed.
    """
    from importlib.util import find_spec

    from retrievalkit.errors import MissingDependencyError

    for package in ("fastapi", "uvicorn", "prometheus_client", "mcp"):
        if find_spec(package) is None:
            raise MissingDependencyError(package, "rkit serve", "'retrievalkit[serve]'")
