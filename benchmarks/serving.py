"""Queries per second of `rkit serve` and their latency (percentiles 50, 95, 99) with 1, 8 and 64 clients.

    python benchmarks/serving.py [--passages 100000] [--folder DIR] [--only bm25,flat,hybrid] [--clients 1,8,64]
    python benchmarks/serving.py --passages 500 --requests 50      # a tiny trial
    python benchmarks/serving.py --drawn    # random vectors, which saves an hour of encoding
    python benchmarks/serving.py --only embeddings  # with infinity as the peer: make .venv-bench-infinity/installed

The baseline is a Python loop that searches the same open index with a query at a time. Clients are coroutines of this
process with their own connections; each sends its next query after the previous answer. A round ends after `--requests`
queries or `--seconds`, whichever is first; a warm-up with a tenth of the queries is not counted. Queries are distinct
as long as there are enough. The `--k` hits have texts, without reasons. Chunks, vectors and indexes
stay in `--folder` for later runs. Writes results/serving.json and prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import numpy as np
from bench import BUILD, machine
from worker import multiplies_bf16

import data
from retrievalkit import storage
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.vectors import VectorStore, VectorWriter

HERE = Path(__file__).parent
SYSTEMS = {"bm25": ["bm25"], "flat": ["flat"], "hybrid": ["flat", "bm25"]}
_RUN = [sys.executable, "-m", "retrievalkit"]


def prepare(folder: Path, passages: int, drawn: bool) -> None:
    """Build the missing indexes."""
    data.write(folder, HERE.parent)
    place = folder / f"serving-{passages}"
    place.mkdir(exist_ok=True)
    if not (place / "corpus.jsonl").exists():
        with (folder / "chunks.jsonl").open(encoding="utf-8") as chunks:
            (place / "corpus.jsonl").write_text("".join(itertools.islice(chunks, passages)), encoding="utf-8")
    encode = ["encode", folder / "model", "--pooler", "mean", "--precision", "auto"]
    if drawn and not (place / "vectors").exists():
        (place / "some.jsonl").write_text("".join((place / "corpus.jsonl").open(encoding="utf-8").readlines()[:64]))
        subprocess.run([*_RUN, *map(str, encode), "some.jsonl", "--output", "some"], cwd=place, check=True)
        draw(place / "some", place / "corpus.jsonl", place / "vectors")
    steps = {
        "vectors": [*encode, "corpus.jsonl", "--output", "vectors"],
        "flat": ["index", "vectors", "--indexer", "flat", "--output", "flat"],
        "bm25": ["index", "corpus.jsonl", "--indexer", "bm25", "--output", "bm25"],
    }
    for name, words in steps.items():
        if not (place / name / "manifest.json").exists():
            subprocess.run([*_RUN, *map(str, words)], cwd=place, check=True)


def draw(some: Path, corpus: Path, output: Path) -> None:
    """Write a vectors folder with random vectors of length 1, as if encoded by the model of another folder."""
    encoded, ids = VectorStore(some), [passage.id for passage in open_corpus(corpus)]
    vectors = np.random.default_rng(0).standard_normal((len(ids), 1, encoded.dim), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    with storage.write_folder(output) as folder:
        writer = VectorWriter(folder)
        writer.write_shard(0, ids, vectors)
        entries = {name: encoded.manifest[name] for name in ("options", "checkpoint")}
        texts = storage.describe_input(str(corpus), open_corpus(corpus).fingerprint())
        entries |= {"inputs": {"texts": texts}, "corpus": {"source": str(corpus), **texts}}
        counts = writer.finish()
        storage.write_manifest(folder, "vectors", command="encode", counts=counts, files=writer.checksums(), **entries)


@contextmanager
def service(place: Path, indexes: Sequence[str], options: Sequence[str]) -> Iterator[str]:
    """Run `rkit serve`; yields its address."""
    command = [*_RUN, "serve", *indexes, "--port", "0", *options]
    child = subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stderr is not None
        line = next((text for text in child.stderr if " at http://" in text), None)
        if line is None:
            sys.exit("rkit serve did not start.")
        yield line.split(" at ")[1].split()[0]
    finally:
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=60)
        if child.returncode:
            sys.exit(f"rkit serve ended with exit code {child.returncode}.")


@contextmanager
def infinity(model: Path) -> Iterator[str]:
    """Run infinity, which serves embeddings, in bf16 if the hardware multiplies bf16; yields its address."""
    program, address = HERE.parent / ".venv-bench-infinity/bin/infinity_emb", "http://127.0.0.1:7997"
    words = ["v2", "--model-id", str(model), "--device", "cpu", "--served-model-name", "model", "--url-prefix", "/v1"]
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    words += ["--port", "7997", "--log-level", "error", "--dtype", "bfloat16" if multiplies_bf16() else "float32"]
    child = subprocess.Popen([program, *words], env=offline, stdout=subprocess.DEVNULL)
    try:
        while not _answers(f"{address}/health"):
            if child.poll() is not None:
                sys.exit("infinity did not start.")
            time.sleep(0.2)
        yield address
    finally:
        child.terminate()
        child.wait(timeout=60)


def _answers(address: str) -> bool:
    try:
        with urlopen(address):
            return True
    except OSError:
        return False


class Client:
    """A connection that sends queries sequentially; it needs less computation than the service on the same processors.

    Args:
        address: Address of the service.
        path: Path of the requests.
        field: Field of the body with the query.
        fields: Other fields of the body.
    """

    def __init__(self, address: str, path: str, field: str, **fields: Any) -> None:
        self._place = urlsplit(address)
        self._path, self._field, self._fields = path, field, fields

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(self._place.hostname, self._place.port)

    async def ask(self, query: str) -> None:
        if self._reader.at_eof():  # closed by the service while other clients finished their round
            self._writer.close()
            await self.open()
        body = json.dumps({self._field: query, **self._fields}).encode()
        head = f"POST {self._path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}"
        self._writer.write(head.encode() + b"\r\n\r\n" + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.split(b"\r\n", 1)[0]:
            sys.exit(answer.decode())
        length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await self._reader.readexactly(int(length.split(b":")[1]))

    def close(self) -> None:
        self._writer.close()


async def load(
    client: Callable[[], Client], queries: Sequence[str], clients: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure a round."""
    most, seconds = options.requests, options.seconds
    cycle = itertools.cycle(queries)
    open_clients = [client() for _ in range(clients)]
    await asyncio.gather(*(client.open() for client in open_clients))
    times: list[float] = []

    async def ask_on(client: Client, numbers: Iterator[int], end: float) -> None:
        for _ in numbers:
            start = time.perf_counter()
            if start > end:
                return
            await client.ask(next(cycle))
            times.append(time.perf_counter() - start)

    async def round_of(count: int) -> float:
        times.clear()
        numbers, start = iter(range(count)), time.perf_counter()
        await asyncio.gather(*(ask_on(client, numbers, start + seconds) for client in open_clients))
        return time.perf_counter() - start

    await round_of(max(clients, most // 10))
    took = await round_of(most)
    for client in open_clients:
        client.close()
    return {"clients": clients, **figures(times, took)}


def figures(times: Sequence[float], took: float) -> dict[str, Any]:
    p50, p95, p99 = (1000 * float(value) for value in np.percentile(times, [50, 95, 99]))
    return {"queries": len(times), "per_second": len(times) / took, "p50_ms": p50, "p95_ms": p95, "p99_ms": p99}


def loop(place: Path, indexes: Sequence[str], queries: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Measure sequential queries in this process."""
    import retrievalkit as rk

    opened = [rk.Index.open(place / name) for name in indexes]
    index = (opened[0] if len(opened) == 1 else rk.Hybrid(opened)).warm()
    times: list[float] = []
    for query in queries[: options.requests // 10]:
        index.search(query, k=options.k, explain=False)
    begin = time.perf_counter()
    for query in itertools.islice(itertools.cycle(queries), options.requests):
        start = time.perf_counter()
        index.search(query, k=options.k, explain=False)
        times.append(time.perf_counter() - start)
        if time.perf_counter() - begin > options.seconds:
            break
    return {"clients": "a loop", **figures(times, time.perf_counter() - begin)}


def at_each(client: Callable[[], Client], queries: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure a round for each number of clients."""
    return [asyncio.run(load(client, queries, clients, options)) for clients in map(int, options.clients.split(","))]


def embeddings(place: Path, queries: Sequence[str], options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Measure embeddings over HTTP, ours and infinity's."""
    with service(place, ["flat"], options.options.split()) as address:
        with urlopen(f"{address}/v1/models") as answer:
            name = json.load(answer)["data"][0]["id"]
        client = partial(Client, address, "/v1/embeddings", "input", model=name, input_type="query")
        measured = {"embeddings": at_each(client, queries, options)}
    with infinity(options.folder / "model") as address:
        client = partial(Client, address, "/v1/embeddings", "input", model="model")
        measured["infinity"] = at_each(client, queries, options)
    return measured


def table(results: dict[str, list[dict[str, Any]]]) -> str:
    rows = ["| index | clients | queries/s | p50 ms | p95 ms | p99 ms |", "|---|--:|--:|--:|--:|--:|"]
    for name, measured in results.items():
        for row in measured:
            numbers = " | ".join(f"{row[key]:,.1f}" for key in ("per_second", "p50_ms", "p95_ms", "p99_ms"))
            rows.append(f"| {name} | {row['clients']} | {numbers} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=BUILD / "data")
    parser.add_argument("--only", default=",".join(SYSTEMS))
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--requests", type=int, default=2_000, help="Maximum number of queries per round.")
    parser.add_argument("--seconds", type=float, default=30.0, help="Maximum duration of a round.")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--drawn", action="store_true", help="Use random vectors; queries are encoded by the model.")
    parser.add_argument("--note", default="", help="A note about the machine, for the results.")
    parser.add_argument("--options", default="", help="Options of rkit serve, such as '--threads 1 --depth 100'.")
    parser.add_argument("--output", type=Path, default=HERE / "results" / "serving.json")
    options = parser.parse_args()
    prepare(options.folder, options.passages, options.drawn)
    place = options.folder / f"serving-{options.passages}"
    rows = (options.folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    queries = [json.loads(row)["text"] for row in rows]
    results: dict[str, list[dict[str, Any]]] = {}
    for name in options.only.split(","):
        if name == "embeddings":
            measured = embeddings(place, queries, options)
        else:
            looped = loop(place, SYSTEMS[name], queries, options)
            with service(place, SYSTEMS[name], options.options.split()) as address:
                client = partial(Client, address, "/search", "query", k=options.k)
                measured = {name: [looped, *at_each(client, queries, options)]}
        results |= measured
        sys.stderr.write(table(measured) + "\n")
    about = {"machine": machine(), "passages": options.passages, "k": options.k, "options": options.options}
    about |= {"vectors": "drawn" if options.drawn else "encoded", "note": options.note}
    options.output.write_text(json.dumps({**about, "results": results}, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(table(results) + "\n")


if __name__ == "__main__":
    main()
