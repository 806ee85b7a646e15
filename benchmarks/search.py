"""Exact search: time against faiss, scipy and plain torch on the same data, and peak memory at two sizes.

    python benchmarks/search.py dense [--texts 1000000] [--dim 384] [--queries 1000] [--k 100] [--rounds 3]
    python benchmarks/search.py many --texts 200000 [--vectors 8]       # several vectors a text
    python benchmarks/search.py sparse --texts 200000                   # weights alone
    python benchmarks/search.py dense_sparse --texts 200000
    python benchmarks/search.py late --texts 5000 --queries 100         # late interaction: a vector a token, both sides
    python benchmarks/search.py dense --memory                          # at a quarter of --texts, and at --texts

Data is drawn at random into a temporary folder (--folder: where; 1,000,000 vectors of 384 dimensions are 1.5 GB). The
peers have everything in memory, and are given what a search must look at: of m vectors a text, faiss retrieves k * m.
Ours reads its files through the page cache, and its time includes the texts' ids. faiss multiplies matrices only where
queries * dim is 128,000 or more: fewer queries make it look slow.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
import scipy.sparse
import torch
from pairs import compare, machine

from retrievalkit import registry
from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorStore, VectorWriter

SHARD_VECTORS = 1 << 16
INDEXERS = {"dense": "flat", "many": "flat", "late": "flat", "sparse": "sparse", "dense_sparse": "dense_sparse"}
TOKENS, QUERY_TOKENS, TOKEN_DIM = 120, 32, 128


@dataclass(frozen=True)
class Sizes:
    """What is drawn, and how it is searched."""

    case: str
    texts: int
    queries: int
    k: int
    dim: int
    vectors: int
    terms: int
    weights: int
    query_weights: int

    @property
    def has_vectors(self) -> bool:
        return self.case != "sparse"

    @property
    def has_weights(self) -> bool:
        return self.case in ("sparse", "dense_sparse")


def draw(sizes: Sizes, folder: Path) -> None:
    """Write a vectors folder, shard by shard."""
    folder.mkdir(parents=True)
    writer = VectorWriter(folder)
    size = SHARD_VECTORS // (TOKENS if sizes.case == "late" else sizes.vectors)
    for number, start in enumerate(range(0, sizes.texts, size)):
        random = np.random.default_rng(number)
        texts = min(size, sizes.texts - start)
        counts, vectors = None, None
        if sizes.has_vectors:
            counts = np.full(texts, sizes.vectors)
            if sizes.case == "late":
                counts = random.integers(TOKENS // 2, 3 * TOKENS // 2, texts)
            vectors = random.standard_normal((counts.sum(), sizes.dim), dtype=np.float32)
        weights = draw_weights(sizes, texts, sizes.weights, random) if sizes.has_weights else None
        writer.write_shard(
            number, [f"d{row}" for row in range(start, start + texts)], vectors, counts=counts, weights=weights
        )
    writer.finish()


def draw_weights(sizes: Sizes, texts: int, each: int, random: np.random.Generator) -> scipy.sparse.csr_matrix:
    """So many terms a text, frequent ones far more often than rare ones, as in language."""
    share = 1 / (np.arange(sizes.terms) + 50.0)
    terms = np.searchsorted(np.cumsum(share / share.sum()), random.random(texts * each))
    rows = np.repeat(np.arange(texts), each)
    values = random.random(texts * each, dtype=np.float32)
    return scipy.sparse.csr_matrix((values, (rows, np.minimum(terms, sizes.terms - 1))), shape=(texts, sizes.terms))


def draw_queries(sizes: Sizes) -> Representation:
    random = np.random.default_rng(1_000_003)
    m = QUERY_TOKENS if sizes.case == "late" else 1
    vectors, weights = None, None
    if sizes.has_vectors:
        vectors = torch.from_numpy(random.standard_normal((sizes.queries, m, sizes.dim), dtype=np.float32))
    if sizes.has_weights:
        weights = torch.from_numpy(draw_weights(sizes, sizes.queries, sizes.query_weights, random).toarray())
    return Representation(vectors, None, weights)


def build(sizes: Sizes, folder: Path) -> Path:
    """Draw and index; returns the index folder."""
    draw(sizes, folder / "vectors")
    (folder / "index").mkdir()
    registry.create("indexer", INDEXERS[sizes.case]).build(VectorStore(folder / "vectors"), folder / "index")
    return folder / "index"


def ours(sizes: Sizes, index: Path) -> Callable[[], list[list[str]]]:
    indexer = registry.create("indexer", INDEXERS[sizes.case])
    indexer.open(index)
    queries = draw_queries(sizes)
    return lambda: indexer.search(queries, sizes.k)[0]


def peer(sizes: Sizes, folder: Path) -> Callable[[], list[list[str]]]:
    """The same search by others, from memory."""
    store, queries = VectorStore(folder / "vectors"), draw_queries(sizes)
    if sizes.case == "late":
        return lambda: plain_late_interaction(store, queries, sizes.k)
    searches = []
    if sizes.has_vectors:
        index = faiss.IndexFlatIP(sizes.dim)
        for _, vectors in store.shards():
            index.add(np.ascontiguousarray(vectors))
        asked = queries.vectors[:, 0].numpy()
        searches.append(lambda: index.search(asked, sizes.k * sizes.vectors)[1] // sizes.vectors)
    if sizes.has_weights:
        by_term = scipy.sparse.vstack([one for _, one in store.lexical()], format="csr").T.tocsr()
        terms = scipy.sparse.csr_matrix(queries.weights.numpy())
        searches.append(lambda: list(product_and_top(terms, by_term, sizes.k)))
    return lambda: [[f"d{row}" for row in one[: sizes.k]] for one in [search() for search in searches][-1]]


def product_and_top(terms: scipy.sparse.csr_matrix, by_term: scipy.sparse.csr_matrix, k: int) -> Iterator[np.ndarray]:
    """scipy's product of sparse matrices, and the best of each row; a hundred queries at once, which memory holds."""
    for start in range(0, terms.shape[0], 100):
        scores = terms[start : start + 100] @ by_term
        for row in range(scores.shape[0]):
            part = slice(scores.indptr[row], scores.indptr[row + 1])
            values, texts = scores.data[part], scores.indices[part]
            best = np.argpartition(-values, min(k, len(values)) - 1)[:k] if len(values) else texts
            yield texts[best[np.argsort(-values[best])]]


def plain_late_interaction(store: VectorStore, queries: Representation, k: int) -> list[list[str]]:
    """The sum of the greatest inner products, text by text, in torch's own operations."""
    flat = queries.vectors.reshape(-1, queries.vectors.shape[2])
    parts = []
    for block in store.blocks(8192):
        vectors = torch.from_numpy(block.vectors)
        products = flat @ vectors.T  # (queries * m, rows)
        starts = block.starts.tolist()
        best = [products[:, start:end].amax(dim=1) for start, end in itertools.pairwise(starts)]
        parts.append(torch.stack(best).view(block.texts, len(queries), -1).sum(dim=2).T)
    return [store.ids.take(row) for row in torch.cat(parts, dim=1).topk(k).indices.numpy()]


def speed(sizes: Sizes, folder: Path, rounds: int) -> dict:
    """The ratio, and the share of the peer's hits that ours are (less than 1 where peers search only a part)."""
    mine, theirs = ours(sizes, build(sizes, folder)), peer(sizes, folder)
    result = compare(mine, theirs, amount=sizes.queries, unit="queries", rounds=rounds)
    same = np.mean([len({*one} & {*two}) / len(one) for one, two in zip(mine(), theirs(), strict=True)])
    return result | {"hits that are the peer's": round(float(same), 4)}


def memory(sizes: Sizes, folder: Path) -> dict:
    """Peak resident memory of a process that opens an index and searches it, at two sizes."""
    peaks = {}
    for texts in (sizes.texts // 4, sizes.texts):
        some = Sizes(**{**vars(sizes), "texts": texts})
        build(some, folder / str(texts))
        command = [sys.executable, __file__, "--peak-of", str(folder / str(texts) / "index"), json.dumps(vars(some))]
        before, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        peaks[f"{texts:,} texts"] = {"before": float(before), "peak": float(peak)}
    first, last = (one["peak"] for one in peaks.values())
    return {"MB": peaks, "ratio": round(last / first, 3), "machine": machine()}


def peak_of(index: str, sizes: str) -> str:
    search = ours(Sizes(**json.loads(sizes)), Path(index))
    before = _peak()
    search()
    return f"{before} {_peak()}"


def _peak() -> float:
    """The most resident memory so far, in MB, what is mapped of files included.

    Of this program: what getrusage says of a child process starts at its parent's.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return round(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024, 1)


def main() -> None:
    """Run what was asked for and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="?", default="dense", choices=INDEXERS)
    defaults = {"texts": 1_000_000, "queries": 1000, "k": 100, "dim": 384, "vectors": 0, "terms": 30_522}
    for name, size in {**defaults, "weights": 120, "query_weights": 30, "rounds": 3}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--folder", help="where the temporary folder is made")
    parser.add_argument("--peak-of", nargs=2, help=argparse.SUPPRESS)
    arguments = vars(parser.parse_args())
    rounds, only_memory, where, peak = (arguments.pop(name) for name in ("rounds", "memory", "folder", "peak_of"))
    if peak:
        print(peak_of(*peak))
        return
    arguments["vectors"] = arguments["vectors"] or (8 if arguments["case"] == "many" else 1)
    arguments["dim"] = TOKEN_DIM if arguments["case"] == "late" else arguments["dim"]
    sizes = Sizes(**arguments)
    faiss.omp_set_num_threads(torch.get_num_threads())
    with tempfile.TemporaryDirectory(dir=where) as folder:
        found = memory(sizes, Path(folder)) if only_memory else speed(sizes, Path(folder), rounds)
    print(json.dumps({"sizes": vars(sizes), **found}, indent=2))


if __name__ == "__main__":
    main()
