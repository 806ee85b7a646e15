"""Peers for search and evaluation in Python: faiss, usearch, scipy, bm25s, tantivy, pytrec_eval and ranx."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import drawn
import numpy as np
from worker import Side, rows, serve
from worker import texts as texts_of

_THREADS = int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
# The faiss factories to try, with their search parameters.
_FACTORIES = {
    "HNSW32": "efSearch",
    "HNSW32,SQ8": "efSearch",
    "IVF1024,Flat": "nprobe",
    "IVF1024,PQ96x4fs,RFlat": "nprobe",
}


def search(
    data: Path, folder: Path, *, texts: int, queries: int, k: int, dim: int = 0, vectors: int = 1, terms: int = 0
) -> Callable[[], Any]:
    """Search vectors with faiss IndexFlatIP (k * vectors hits, which cover k texts), and weights with scipy's product.

    With vectors and weights, both are searched without adding the scores; the sum is computed once, for comparison.
    """
    import faiss
    import scipy.sparse

    faiss.omp_set_num_threads(_THREADS)
    index, weights = faiss.IndexFlatIP(dim) if dim else None, []
    for dense, lexical in drawn.parts(texts, dim, vectors, terms):
        if index is not None:
            index.add(dense.reshape(-1, dim))
        if lexical is not None:
            weights.append(lexical)
    query_vectors, query_terms = drawn.queries(queries, dim, terms)
    by_term = scipy.sparse.vstack(weights, format="csr").T.tocsr() if terms else None

    def expected() -> list[list[str]]:
        scores = np.zeros((20, texts), dtype=np.float32)
        if index is not None:
            stored = index.reconstruct_n(0, texts * vectors)
            scores += (query_vectors[:20, 0] @ stored.T).reshape(20, texts, vectors).max(axis=2)
        if by_term is not None:
            scores += (query_terms[:20] @ by_term).toarray()
        return [[str(row) for row in np.argsort(-values, kind="stable")[:k]] for values in scores]

    def round_() -> Callable[[], list[list[str]]]:
        if index is not None:
            index.search(query_vectors[:, 0], k * vectors)
        if by_term is not None:
            list(_product_and_top(query_terms, by_term, k))
        return expected

    return round_


def _product_and_top(terms: Any, by_term: Any, k: int) -> Iterator[np.ndarray]:
    """The top k of each row of scipy's sparse product, for 100 queries at a time, which fit into memory."""
    for start in range(0, terms.shape[0], 100):
        scores = terms[start : start + 100] @ by_term
        for row in range(scores.shape[0]):
            part = slice(scores.indptr[row], scores.indptr[row + 1])
            values, texts = scores.data[part], scores.indices[part]
            best = np.argpartition(-values, min(k, len(values)) - 1)[:k] if len(values) else texts
            yield texts[best[np.argsort(-values[best])]]


def near_faiss(data: Path, folder: Path, *, texts: int, queries: int, k: int, dim: int, latent: int) -> Side:
    """The fastest approximate index of faiss at the recall."""
    import faiss

    faiss.omp_set_num_threads(_THREADS)
    vectors, query_vectors = _vectors(texts, queries, dim, latent)

    def searches(factory: str, parameter: str) -> Callable[[int], np.ndarray]:
        index, space = faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT), faiss.ParameterSpace()
        if parameter == "efSearch":
            index.hnsw.efConstruction = 200
        index.train(vectors)
        index.add(vectors)
        if "RFlat" in factory:
            space.set_index_parameter(index, "k_factor_rf", 10)

        def search(effort: int) -> np.ndarray:
            space.set_index_parameter(index, parameter, effort)
            return index.search(query_vectors, k)[1]

        return search

    tried = {f"{factory} {name}": searches(factory, name) for factory, name in _FACTORIES.items()}
    return _tuned(tried, drawn.nearest(texts, queries, k, dim, latent))


def near_usearch(data: Path, folder: Path, *, texts: int, queries: int, k: int, dim: int, latent: int) -> Side:
    """The graph of usearch in the fastest number format at the recall."""
    from usearch.index import Index

    vectors, query_vectors = _vectors(texts, queries, dim, latent)

    def searches(dtype: str) -> Callable[[int], np.ndarray]:
        index = Index(ndim=dim, metric="ip", dtype=dtype, connectivity=32, expansion_add=200)
        index.add(np.arange(texts), vectors, threads=_THREADS)

        def search(effort: int) -> np.ndarray:
            index.expansion_search = effort
            return index.search(query_vectors, k, threads=_THREADS).keys.astype(np.int64)

        return search

    tried = {f"{dtype} expansion_search": searches(dtype) for dtype in ("f32", "bf16", "i8")}
    return _tuned(tried, drawn.nearest(texts, queries, k, dim, latent))


def _vectors(texts: int, queries: int, dim: int, latent: int) -> tuple[np.ndarray, np.ndarray]:
    vectors = np.concatenate([dense[:, 0] for dense, _ in drawn.parts(texts, dim, 1, 0, latent)])
    return vectors, drawn.queries(queries, dim, 0, latent)[0][:, 0]


def _tuned(searches: Mapping[str, Callable[[int], np.ndarray]], best: np.ndarray) -> Side:
    """Select the fastest search, each with the smallest effort that reaches the recall.

    Raises:
        ValueError: No search reaches the recall.
    """
    times: list[tuple[float, str, int]] = []
    for name, search in searches.items():
        if (effort := drawn.least_effort(search, best)) is not None:
            start = time.perf_counter()
            search(effort)
            times.append((time.perf_counter() - start, name, effort))
    if not times:
        msg = f"none of {', '.join(searches)} reaches a recall of {drawn.RECALL}"
        raise ValueError(msg)
    _, name, effort = min(times)
    return Side(
        lambda: searches[name](effort),
        check=lambda: {"best": drawn.recall(searches[name](effort), best)},
        settings={"index": f"{name}={effort}"},
    )


def _write_run(path: Path, hits: Iterable[Iterable[tuple[str, float]]]) -> None:
    with path.open("w") as stream:
        for query, ranking in enumerate(hits):
            stream.writelines(
                f"q{query} Q0 {text} {rank} {score:.6f} t\n" for rank, (text, score) in enumerate(ranking, 1)
            )


def bm25s_search(data: Path, folder: Path, *, count: int, queries: int, k: int) -> Callable[[], None]:
    """Tokenise the queries with bm25s, search on all cores, and write a run."""
    import bm25s

    chunks = rows(data / "chunks.jsonl", count)
    ids = np.array([row["_id"] for row in chunks])
    index = bm25s.BM25(backend="numba")
    index.index(bm25s.tokenize([row["text"] for row in chunks], show_progress=False), show_progress=False)
    questions = texts_of(data / "questions.jsonl", queries)

    def round_() -> None:
        tokens = bm25s.tokenize(questions, show_progress=False)
        hits, scores = index.retrieve(tokens, k=k, n_threads=os.cpu_count(), show_progress=False)
        pairs = zip(ids[hits], scores, strict=True)
        _write_run(folder / "run.trec", (zip(names, values, strict=True) for names, values in pairs))

    return round_


def _tantivy(path: Path, folder: Path, count: int) -> Any:
    """Index stemmed words with their frequencies; a hit's row is read from a column instead of a stored text."""
    import tantivy

    schema = tantivy.SchemaBuilder()
    schema.add_text_field("text", tokenizer_name="en_stem", index_option="freq")
    schema.add_unsigned_field("row", fast=True)
    folder.mkdir()
    index = tantivy.Index(schema.build(), path=str(folder))
    writer = index.writer(heap_size=256 << 20, num_threads=os.cpu_count() or 1)
    for number, row in enumerate(rows(path, count)):
        document = tantivy.Document()
        document.add_unsigned("row", number)
        document.add_text("text", row["text"])
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    return index


def tantivy_search(data: Path, folder: Path, *, count: int, queries: int, k: int) -> Callable[[], None]:
    """Search with tantivy, a query per task on all cores, and write a run."""
    index = _tantivy(data / "chunks.jsonl", folder / "index", count)
    ids = [row["_id"] for row in rows(data / "chunks.jsonl", count)]
    questions, searcher = texts_of(data / "questions.jsonl", queries), index.searcher()

    def search(text: str) -> list[tuple[str, float]]:
        query, _ = index.parse_query_lenient(re.sub(r"\W+", " ", text), ["text"])
        hits = searcher.search(query, k, count=False).hits
        numbers = searcher.fast_field_values("row", [address for _, address in hits])
        return [(ids[row], score) for row, (score, _) in zip(numbers, hits, strict=True)]

    def round_() -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            _write_run(folder / "run.trec", pool.map(search, questions))

    return round_


def tantivy_index(data: Path, folder: Path, *, count: int) -> Callable[[], dict[str, int]]:
    """Index with tantivy, from the file to a saved index."""

    def round_() -> dict[str, int]:
        shutil.rmtree(folder / "index", ignore_errors=True)
        return {"texts": _tantivy(data / "chunks.jsonl", folder / "index", count).searcher().num_docs}

    return round_


def bm25s_index(data: Path, folder: Path, *, count: int) -> Callable[[], dict[str, int]]:
    """Index with bm25s, from the file to a saved index."""
    import bm25s

    def round_() -> dict[str, int]:
        chunks = [row["text"] for row in rows(data / "chunks.jsonl", count)]
        index = bm25s.BM25(backend="numba")
        index.index(bm25s.tokenize(chunks, show_progress=False), show_progress=False)
        index.save(str(folder / "index"))
        return {"texts": len(chunks)}

    return round_


def pytrec_eval(data: Path, folder: Path, *, queries: int, depth: int) -> Callable[[], dict[str, float]]:
    """Evaluate with pytrec_eval, from the file to the means."""
    import pytrec_eval as judge

    run, qrels = drawn.run_file(data, queries, depth)
    names = {"nDCG@10": "ndcg_cut_10", "R@100": "recall_100", "R@1000": "recall_1000", "AP@1000": "map_cut_1000"}

    def round_() -> dict[str, float]:
        with qrels.open() as judged, run.open() as hits:
            evaluator = judge.RelevanceEvaluator(judge.parse_qrel(judged), {*names.values(), "recip_rank"})
            values = evaluator.evaluate(judge.parse_run(hits)).values()
        return {name: sum(query[key] for query in values) / len(values) for name, key in names.items()}

    return round_


def ranx(data: Path, folder: Path, *, queries: int, depth: int) -> Callable[[], dict[str, float]]:
    """Evaluate with ranx, from the file to the means."""
    from ranx import Qrels, Run, evaluate

    run, qrels = drawn.run_file(data, queries, depth)
    names = {
        "nDCG@10": "ndcg@10",
        "RR@10": "mrr@10",
        "R@100": "recall@100",
        "R@1000": "recall@1000",
        "AP@1000": "map@1000",
    }

    def round_() -> dict[str, float]:
        judged = Qrels.from_file(str(qrels), kind="trec")
        means = evaluate(judged, Run.from_file(str(run), kind="trec"), list(names.values()))
        return {name: float(means[key]) for name, key in names.items()}

    return round_


if __name__ == "__main__":
    serve(globals())
