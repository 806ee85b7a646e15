"""faiss, usearch, scipy, bm25s, tantivy, pytrec_eval and ranx: what people search and judge with in Python."""

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
# faiss's factories that are tried, with the search parameter of each.
_FACTORIES = {
    "HNSW32": "efSearch",
    "HNSW32,SQ8": "efSearch",
    "IVF1024,Flat": "nprobe",
    "IVF1024,PQ96x4fs,RFlat": "nprobe",
}


def search(
    data: Path, folder: Path, *, texts: int, queries: int, k: int, dim: int = 0, vectors: int = 1, terms: int = 0
) -> Callable[[], Any]:
    """faiss IndexFlatIP for vectors (k * vectors of them, so that k texts are certain), scipy's product for weights.

    Both where there are both, and nothing is added up: that is done once, for the output to compare.
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
    asked, asked_terms = drawn.queries(queries, dim, terms)
    by_term = scipy.sparse.vstack(weights, format="csr").T.tocsr() if terms else None

    def expected() -> list[list[str]]:
        scores = np.zeros((20, texts), dtype=np.float32)
        if index is not None:
            stored = index.reconstruct_n(0, texts * vectors)
            scores += (asked[:20, 0] @ stored.T).reshape(20, texts, vectors).max(axis=2)
        if by_term is not None:
            scores += (asked_terms[:20] @ by_term).toarray()
        return [[str(row) for row in np.argsort(-one, kind="stable")[:k]] for one in scores]

    def round_() -> Callable[[], list[list[str]]]:
        if index is not None:
            index.search(asked[:, 0], k * vectors)
        if by_term is not None:
            list(_product_and_top(asked_terms, by_term, k))
        return expected

    return round_


def _product_and_top(terms: Any, by_term: Any, k: int) -> Iterator[np.ndarray]:
    """scipy's product of sparse matrices, and the best of each row; a hundred queries at once, which memory holds."""
    for start in range(0, terms.shape[0], 100):
        scores = terms[start : start + 100] @ by_term
        for row in range(scores.shape[0]):
            part = slice(scores.indptr[row], scores.indptr[row + 1])
            values, found = scores.data[part], scores.indices[part]
            best = np.argpartition(-values, min(k, len(values)) - 1)[:k] if len(values) else found
            yield found[best[np.argsort(-values[best])]]


def near_faiss(data: Path, folder: Path, *, texts: int, queries: int, k: int, dim: int, latent: int) -> Side:
    """The fastest of faiss's approximate indexes at a recall."""
    import faiss

    faiss.omp_set_num_threads(_THREADS)
    vectors, asked = _vectors(texts, queries, dim, latent)

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
            return index.search(asked, k)[1]

        return search

    tried = {f"{factory} {name}": searches(factory, name) for factory, name in _FACTORIES.items()}
    return _tuned(tried, drawn.nearest(texts, queries, k, dim, latent))


def near_usearch(data: Path, folder: Path, *, texts: int, queries: int, k: int, dim: int, latent: int) -> Side:
    """usearch's graph in the number format that is fastest at a recall."""
    from usearch.index import Index

    vectors, asked = _vectors(texts, queries, dim, latent)

    def searches(dtype: str) -> Callable[[int], np.ndarray]:
        index = Index(ndim=dim, metric="ip", dtype=dtype, connectivity=32, expansion_add=200)
        index.add(np.arange(texts), vectors, threads=_THREADS)

        def search(effort: int) -> np.ndarray:
            index.expansion_search = effort
            return index.search(asked, k, threads=_THREADS).keys.astype(np.int64)

        return search

    tried = {f"{dtype} expansion_search": searches(dtype) for dtype in ("f32", "bf16", "i8")}
    return _tuned(tried, drawn.nearest(texts, queries, k, dim, latent))


def _vectors(texts: int, queries: int, dim: int, latent: int) -> tuple[np.ndarray, np.ndarray]:
    vectors = np.concatenate([dense[:, 0] for dense, _ in drawn.parts(texts, dim, 1, 0, latent)])
    return vectors, drawn.queries(queries, dim, 0, latent)[0][:, 0]


def _tuned(searches: Mapping[str, Callable[[int], np.ndarray]], best: np.ndarray) -> Side:
    """The fastest search, each with the least effort that reaches the recall.

    Raises:
        ValueError: None reaches it.
    """
    taken: list[tuple[float, str, int]] = []
    for name, search in searches.items():
        if (effort := drawn.least_effort(search, best)) is not None:
            start = time.perf_counter()
            search(effort)
            taken.append((time.perf_counter() - start, name, effort))
    if not taken:
        msg = f"none of {', '.join(searches)} reaches a recall of {drawn.RECALL}"
        raise ValueError(msg)
    _, name, effort = min(taken)
    return Side(
        lambda: searches[name](effort),
        check=lambda: {"best": drawn.recall(searches[name](effort), best)},
        settings={"index": f"{name}={effort}"},
    )


def _write_run(path: Path, hits: Iterable[Iterable[tuple[str, float]]]) -> None:
    with path.open("w") as stream:
        for query, some in enumerate(hits):
            stream.writelines(f"q{query} Q0 {one} {rank} {score:.6f} t\n" for rank, (one, score) in enumerate(some, 1))


def bm25s_search(data: Path, folder: Path, *, count: int, queries: int, k: int) -> Callable[[], None]:
    """bm25s: tokenise the queries, search on all cores, and write a run."""
    import bm25s

    found = rows(data / "chunks.jsonl", count)
    ids = np.array([row["_id"] for row in found])
    index = bm25s.BM25(backend="numba")
    index.index(bm25s.tokenize([row["text"] for row in found], show_progress=False), show_progress=False)
    asked = texts_of(data / "questions.jsonl", queries)

    def round_() -> None:
        tokens = bm25s.tokenize(asked, show_progress=False)
        hits, scores = index.retrieve(tokens, k=k, n_threads=os.cpu_count(), show_progress=False)
        pairs = zip(ids[hits], scores, strict=True)
        _write_run(folder / "run.trec", (zip(some, values, strict=True) for some, values in pairs))

    return round_


def _tantivy(path: Path, folder: Path, count: int) -> Any:
    """An index of stemmed words with their frequencies; a hit's row is read from a column, not from a stored text."""
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
    """tantivy: a query a task, on all cores, and write a run."""
    index = _tantivy(data / "chunks.jsonl", folder / "index", count)
    ids = [row["_id"] for row in rows(data / "chunks.jsonl", count)]
    asked, searcher = texts_of(data / "questions.jsonl", queries), index.searcher()

    def search(text: str) -> list[tuple[str, float]]:
        query, _ = index.parse_query_lenient(re.sub(r"\W+", " ", text), ["text"])
        hits = searcher.search(query, k, count=False).hits
        found = searcher.fast_field_values("row", [address for _, address in hits])
        return [(ids[row], score) for row, (score, _) in zip(found, hits, strict=True)]

    def round_() -> None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            _write_run(folder / "run.trec", pool.map(search, asked))

    return round_


def tantivy_index(data: Path, folder: Path, *, count: int) -> Callable[[], dict[str, int]]:
    """tantivy: from the file to a saved index."""

    def round_() -> dict[str, int]:
        shutil.rmtree(folder / "index", ignore_errors=True)
        return {"texts": _tantivy(data / "chunks.jsonl", folder / "index", count).searcher().num_docs}

    return round_


def bm25s_index(data: Path, folder: Path, *, count: int) -> Callable[[], dict[str, int]]:
    """bm25s: from the file to a saved index."""
    import bm25s

    def round_() -> dict[str, int]:
        found = [row["text"] for row in rows(data / "chunks.jsonl", count)]
        index = bm25s.BM25(backend="numba")
        index.index(bm25s.tokenize(found, show_progress=False), show_progress=False)
        index.save(str(folder / "index"))
        return {"texts": len(found)}

    return round_


def pytrec_eval(data: Path, folder: Path, *, queries: int, depth: int) -> Callable[[], dict[str, float]]:
    """pytrec_eval, from the file to the means."""
    import pytrec_eval as judge

    run, qrels = drawn.run_file(data, queries, depth)
    names = {"nDCG@10": "ndcg_cut_10", "R@100": "recall_100", "R@1000": "recall_1000", "AP@1000": "map_cut_1000"}

    def round_() -> dict[str, float]:
        with qrels.open() as judged, run.open() as found:
            evaluator = judge.RelevanceEvaluator(judge.parse_qrel(judged), {*names.values(), "recip_rank"})
            values = evaluator.evaluate(judge.parse_run(found)).values()
        return {name: sum(one[key] for one in values) / len(values) for name, key in names.items()}

    return round_


def ranx(data: Path, folder: Path, *, queries: int, depth: int) -> Callable[[], dict[str, float]]:
    """ranx, from the file to the means."""
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
        found = evaluate(judged, Run.from_file(str(run), kind="trec"), list(names.values()))
        return {name: float(found[key]) for name, key in names.items()}

    return round_


if __name__ == "__main__":
    serve(globals())
