"""faiss, scipy, bm25s, pytrec_eval and ranx: what people search and judge with in Python, everything in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import drawn
import numpy as np
from worker import rows, serve
from worker import texts as texts_of


def search(
    data: Path, folder: Path, *, texts: int, queries: int, k: int, dim: int = 0, vectors: int = 1, terms: int = 0
) -> Callable[[], Any]:
    """faiss IndexFlatIP for vectors (k * vectors of them, so that k texts are certain), scipy's product for weights.

    Both where there are both, and nothing is added up: that is done once, for the output to compare.
    """
    import faiss
    import scipy.sparse

    faiss.omp_set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
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
        with (folder / "run.trec").open("w") as stream:
            for query, (some, values) in enumerate(zip(ids[hits], scores, strict=True)):
                pairs = zip(some, values, strict=True)
                stream.writelines(
                    f"q{query} Q0 {one} {rank} {score:.6f} t\n" for rank, (one, score) in enumerate(pairs, 1)
                )

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
