"""Writes or prints a run while it is found, so that the hits of a batch of queries are in memory, not those of all."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from retrievalkit import artifacts
from retrievalkit.data.runs import Hits, write_run
from retrievalkit.report.counts import counted
from retrievalkit.report.terminal import printable, printable_json, say
from retrievalkit.search.fusion import Fusion
from retrievalkit.search.search import SearchOptions
from retrievalkit.search.tuning import Tuned

Found = Iterator[tuple[str, Hits]]


def write_found(options: SearchOptions, found: Found, fusion: Fusion | None, tuned: Tuned | None) -> None:
    """Write a run to the output of a search, or print it.

    Args:
        options: Options of the search.
        found: The queries with their hits.
        fusion: How several indexes were fused, for the report.
        tuned: The tuning of the fusion, for the report.
    """
    about: dict[str, Any] = {} if fusion is None else {"fusion": asdict(fusion)}
    about |= {} if tuned is None else {"tuned": tuned.to_json()}
    if options.output is not None:
        _write(os.fspath(options.output), found, about, as_json=options.as_json)
    elif options.as_json:
        _print_json(found, about)
    else:
        _print(found)


def _write(output: str, found: Found, about: dict[str, Any], *, as_json: bool) -> None:
    queries = 0

    def passed() -> Found:
        nonlocal queries
        for query in found:
            queries += 1
            yield query

    lines = write_run(output, passed())
    output = artifacts.named(output)
    if as_json:
        sys.stdout.write(_json({"queries": queries, "hits": lines, "run": output} | about) + "\n")
    else:
        say(f"{output}: {counted(queries, 'queries')}, {counted(lines, 'hits')}")


def _print(found: Found) -> None:
    # A program is given the ids as they are, a terminal nothing that could control it.
    shown = printable if sys.stdout.isatty() else str
    for query_id, hits in found:
        scores = np.array([score for _, score in hits], dtype=np.float32).astype(str).tolist()
        sys.stdout.writelines(
            shown(f"{query_id} Q0 {document_id} {rank} {score} rkit") + "\n"
            for rank, ((document_id, _), score) in enumerate(zip(hits, scores, strict=True), 1)
        )


def _print_json(found: Found, about: dict[str, Any]) -> None:
    # The counts come first, so the hits wait in a file.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as waiting:
        queries = lines = 0
        for query_id, hits in found:
            entry = _json({query_id: hits}).removeprefix("{").removesuffix("\n}").replace("\n", "\n  ")
            waiting.write(("," if queries else "") + entry)
            queries, lines = queries + 1, lines + len(hits)
        waiting.seek(0)
        counts = _json({"queries": queries, "hits": lines, "run": None} | about).removesuffix("\n}")
        sys.stdout.write(f'{counts},\n  "results": {{')
        shutil.copyfileobj(waiting, sys.stdout)
        sys.stdout.write("\n  }\n}\n")


def _json(value: Any) -> str:
    return printable_json(json.dumps(value, indent=2, ensure_ascii=False))
