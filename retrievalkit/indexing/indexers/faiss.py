"""faiss indexes over vectors/ folders: any factory string, by inner product.

faiss returns vectors. If a text has at most m, its top k*m vectors cover the top k texts. For a query with several
vectors (ColBERT), each vector retrieves candidates, which are then scored by the exact rule.

faiss's default search parameters have low recall: an inverted file (IVF) probes a single list. `build` therefore picks
parameters for a target recall, measured with vectors of the folder as queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt

from retrievalkit.contracts import Allowed, Representation
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError, MissingDependencyError, OptionError, UnsupportedError
from retrievalkit.indexing.indexers.flat import Hits, VectorIndexer, named
from retrievalkit.scoring import (
    best_of_candidates,
    check_k,
    documents_of_vectors,
    is_single,
    top_k,
    vectors_alone,
    viewed,
)

# Maximum hits that faiss's GPU indexes return for a query.
GPU_MOST = 2048
_PARAMETERS = "parameters.txt"
_BLOCK = 16_384
_QUERIES = 64

# Queries, and hits besides the query itself, for choosing search parameters.
_TRIALS, _DEPTH = 200, 10
# Search parameter -> smallest and largest value tried.
_EFFORTS = {"nprobe": (1, 1 << 20), "efSearch": (16, 1 << 10), "k_factor_rf": (1, 1 << 6)}


class Faiss(VectorIndexer):
    """Approximate nearest neighbour search with faiss (IVF, HNSW, PQ); exact with the factory "Flat".

    faiss (Douze et al. 2024, https://arxiv.org/abs/2401.08281) builds indexes from factory strings. Memory per vector
    of d dimensions: 4 d bytes for "Flat" and IVF, about 4 d + 8 M for "HNSWM", M for "PQM". Search time: linear in the
    number of vectors for "Flat", in the length of the probed lists for IVF, about logarithmic for HNSW, whose build
    is the slowest.

    Example: `rkit index VECTORS --indexer faiss --set indexer.factory=HNSW32 --output INDEX --check`.

    Args:
        factory: faiss's index factory string, such as "Flat", "IVF1024,Flat", "HNSW32" or "IVF1024,PQ48".
        parameters: Search parameters in faiss's syntax, such as "nprobe=16" or "efSearch=64"; "" = selected by `build`.
        recall: Target recall@10 for choosing search parameters, with vectors of the folder as queries. If quantised
            vectors (PQ) cannot reach it, `build` selects the least effort within 0.01 of the best recall.
        train_size: Number of vectors to train on, for indexes that need training.
        shard_vectors: Maximum vectors per index file; files are built and searched sequentially.
        candidates: For queries with several vectors: minimum number of document vectors per query vector.
        device: "auto" uses the GPU if faiss was built for it and supports the index.
        view: "vectors" ignores the weights of texts that have vectors and weights; "all" refuses them.
    """

    def __init__(
        self,
        *,
        factory: str = "Flat",
        parameters: str = "",
        recall: Annotated[float, Field(gt=0, le=1)] = 0.95,
        train_size: PositiveInt = 100_000,
        shard_vectors: PositiveInt = 1_000_000,
        candidates: PositiveInt = 1000,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        view: Literal["all", "vectors"] = "all",
    ) -> None:
        try:
            import faiss
        except ImportError as error:
            extras = "'retrievalkit[faiss]', or on a GPU 'retrievalkit[faiss-gpu]'"
            raise MissingDependencyError("faiss", "indexer 'faiss'", extras) from error
        self._faiss: Any = faiss
        if re.search(r"(?<!\d)0+(?!\d)|(HNSW|NSG)1(?!\d)", factory):
            # With these numbers, faiss crashes the process or hangs.
            msg = f"option 'factory' of indexer 'faiss' is '{factory}'. faiss fails on 0, HNSW1 and NSG1: use more."
            raise OptionError(msg)
        if re.search(r"(nprobe|efSearch|k_factor_rf)=[-0]", parameters):
            msg = f"option 'parameters' of indexer 'faiss' is '{parameters}': its numbers must be 1 or more."
            raise OptionError(msg)
        gpus = self._faiss.get_num_gpus() if hasattr(self._faiss, "get_num_gpus") else 0
        if device == "cuda" and not gpus:
            msg = "option 'device' of indexer 'faiss' is cuda, but faiss detects no GPU. Use cpu or faiss-gpu-cu12."
            raise UnsupportedError(msg)
        # Ids are row numbers, and an IDMap index cannot add vectors without ids.
        self.factory = re.sub(r"\bIDMap2?,|,IDMap2?$", "", factory)
        self.parameters = parameters
        self.recall = recall
        self.train_size = train_size
        self.shard_vectors = shard_vectors
        self.candidates = candidates
        self.device = device
        self.view = view
        self.on_gpu = device != "cpu" and gpus > 0
        self.exact = self.factory == "Flat"
        self._shards: list[tuple[int, Any]] = []

    def build(self, source: VectorStore | Any, index_dir: Path) -> Mapping[str, float]:
        """Train on a sample, add the vectors block by block, write a file per shard, select search parameters."""
        if not source.dim:
            msg = f"'{source.folder}' holds weights and no vectors, which indexer 'faiss' needs. Use --indexer sparse."
            raise UnsupportedError(msg)
        if source.vocabulary and self.view == "all":
            msg = f"'{source.folder}' also holds weights. Use --indexer dense_sparse, or --set view=vectors."
            raise UnsupportedError(msg)
        source = VectorStore(source.folder, view="vectors")
        source.link(index_dir / "vectors")
        self._use_threads()
        faiss, size = self._faiss, min(self.train_size, source.rows)
        with self._reported(f"cannot create the index '{self.factory}' for vectors of {source.dim} dimensions"):
            empty = faiss.index_factory(source.dim, self.factory, faiss.METRIC_INNER_PRODUCT)
        if not empty.is_trained:
            with self._reported(f"cannot train '{self.factory}' on {size} vectors"):
                empty.train(_sample(source, size))
        self._set_parameters(empty, self.parameters)
        with self._reported(f"cannot build the index '{self.factory}' of {source.rows} vectors"):
            shards = 0
            index, first = faiss.clone_index(empty), 0
            for block in source.blocks(_BLOCK):
                assert block.vectors is not None
                if index.ntotal and index.ntotal + len(block.vectors) > self.shard_vectors:
                    self._write(index, index_dir, first)
                    shards, first, index = shards + 1, first + index.ntotal, faiss.clone_index(empty)
                index.add(_as_float32(block.vectors))
            self._write(index, index_dir, first)
            selected = {} if self.parameters else self._select_parameters(source, index_dir)
        return {"texts": len(source), "vectors": source.rows, "files": shards + 1} | selected

    def open(self, index_dir: Path) -> None:
        """Map the index files into memory."""
        self._use_threads()
        self._store = VectorStore(index_dir / "vectors", view="vectors")
        file = index_dir / _PARAMETERS
        selected = file.read_text("utf-8", "replace") if file.exists() else ""
        self._shards, first = [], 0
        while first < self._store.rows and (file := _shard_file(index_dir, first)).exists():
            index = self._read(file, self.parameters or selected)
            if not index.ntotal or index.d != self._store.dim:
                break
            self._shards.append((first, index))
            first += index.ntotal
        if first != self._store.rows:
            msg = f"'{index_dir}' is damaged: its faiss files do not hold its {self._store.rows} vectors. Index again."
            raise ArtifactError(msg)

    def search(self, queries: Representation | Any, k: int) -> Hits:
        """Return the top-k texts: exact for the factory "Flat" and single-vector queries, else among faiss's hits."""
        store = self._store
        check_k(k)
        queries = viewed(queries, self.view)
        vectors = vectors_alone(queries, store.dim).float().cpu().contiguous()
        k = min(k, len(store))
        if is_single(queries) and store.vectors_per_text == 1 and not self.exact:
            return named(store.ids, *self._nearest(vectors[:, 0].numpy(), k))
        if is_single(queries):
            hits = self._search_single(vectors[:, 0].numpy(), k)
        else:
            hits = []
            queries = Representation(vectors, queries.vector_mask)
            for start in range(0, len(queries), _QUERIES):
                batch = queries.rows(slice(start, start + _QUERIES))
                hits += best_of_candidates(batch, store, self._candidates(batch, max(k, self.candidates)), k)
        return [store.ids.take(texts) for texts, _ in hits], [scores for _, scores in hits]

    def search_among(self, queries: Representation | Any, k: int, allowed: Allowed) -> Hits:
        """Search with a faiss ID selector if the index supports it and many texts are allowed."""
        store, queries = self._store, viewed(queries, self.view)
        check_k(k)
        texts = allowed.mask(store.ids)
        if self.on_gpu or not is_single(queries) or texts.sum() ** 2 <= 2 * k * len(store):
            return super().search_among(queries, k, allowed)
        mask = texts[store.texts_of(np.arange(store.rows))]
        selected = [self._selecting(index, mask[first : first + index.ntotal]) for first, index in self._shards]
        if None in selected:
            return super().search_among(queries, k, allowed)
        vectors = vectors_alone(queries, store.dim).float().cpu().contiguous()
        hits = self._search_single(vectors[:, 0].numpy(), k, selected)
        if any(len(rows) < min(k, texts.sum()) for rows, _ in hits):  # a graph may not reach every allowed text
            return self.rank(queries, k, allowed)
        return [store.ids.take(rows) for rows, _ in hits], [scores for _, scores in hits]

    def _selecting(self, index: Any, mask: np.ndarray) -> Any:
        """Return the search parameters that restrict an index to some vectors; None if its type has no selector."""
        faiss, selector = self._faiss, self._faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
        if isinstance(index, faiss.IndexIVF):
            return faiss.SearchParametersIVF(sel=selector, nprobe=index.nprobe)
        if isinstance(index, faiss.IndexHNSW):
            return faiss.SearchParametersHNSW(sel=selector, efSearch=index.hnsw.efSearch)
        return faiss.SearchParameters(sel=selector) if isinstance(index, faiss.IndexFlat) else None

    def _most(self, index: Any) -> int:
        """Return the maximum number of hits of a search."""
        vectors: int = index.ntotal
        return min(vectors, GPU_MOST) if self.on_gpu else vectors

    def _nearest(self, vectors: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and rows (queries, k) of faiss's hits if each text has one vector; -1 past the last."""
        all_scores, all_rows = [], []
        for first, index in self._shards:
            scores, rows = index.search(vectors, min(k, self._most(index)))
            all_scores.append(scores)
            all_rows.append(np.where(rows < 0, -1, rows + first))
        scores, rows = np.concatenate(all_scores, axis=1), np.concatenate(all_rows, axis=1)
        order = np.lexsort((rows, np.where(rows < 0, np.inf, -scores)))[:, :k]
        return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)

    def _search_single(
        self, vectors: np.ndarray, k: int, selected: Sequence[Any] | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return rows and scores of each query's top-k texts; shards are searched sequentially and merged.

        `selected` has the search parameters of each shard; None = its own.
        """
        store, best = self._store, [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in vectors]
        for (first, index), parameters in zip(self._shards, selected or [None] * len(self._shards), strict=True):
            most = self._most(index)
            # One extra hit shows whether a tie was cut off.
            wanted = min(most, k * -(-store.rows // len(store)) + 1)
            hits: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0), np.empty(0))] * len(vectors)
            open_queries = np.arange(len(vectors))
            while len(open_queries):
                all_scores, all_rows = index.search(vectors[open_queries], wanted, params=parameters)
                unsure = []
                for query, scores, rows in zip(open_queries, all_scores, all_rows, strict=True):
                    m, rows_of_all = store.vectors_per_text or 1, np.where(rows < 0, -1, rows + first)
                    hits[query] = documents_of_vectors(rows_of_all, scores, k, m=m, offsets=store.offsets)
                    texts = hits[query][1]
                    # Another vector, if there is one, can change the top k.
                    if rows[-1] >= 0 and (len(texts) < k or (self.exact and not texts[-1] > scores[-1])):
                        unsure.append(query)
                if wanted >= most:
                    break
                open_queries, wanted = np.array(unsure, dtype=np.int64), min(most, 2 * wanted)
            for row, (texts, scores) in enumerate(hits):
                all_texts, all_scores = np.concatenate([best[row][0], texts]), np.concatenate([best[row][1], scores])
                order = np.argsort(-all_scores, kind="stable")[:k]  # ties: earlier shards come first
                best[row] = all_texts[order], all_scores[order]
        return best

    def _candidates(self, queries: Representation, wanted: int) -> list[np.ndarray]:
        """Return the texts that any vector of a query retrieves, ascending, per query; all texts if there are few."""
        store, mask = self._store, queries.vector_mask
        if wanted >= len(store):
            return [np.arange(len(store))] * len(queries)
        assert queries.vectors is not None
        counts = np.full(len(queries), queries.vectors.shape[1]) if mask is None else mask.sum(dim=1).numpy()
        # In one call, because the time per vector falls many times with the number of vectors.
        vectors = (queries.vectors.reshape(-1, store.dim) if mask is None else queries.vectors[mask]).numpy()
        texts: list[list[np.ndarray]] = [[] for _ in counts]
        for first, index in self._shards:
            most = self._most(index)
            _, nearest = index.search(vectors, min(wanted, most))
            for query, rows in enumerate(np.split(nearest, np.cumsum(counts)[:-1])):
                texts[query].append(np.unique(store.texts_of(rows[rows >= 0] + first)))
        return [np.unique(np.concatenate(parts)) for parts in texts]

    def _select_parameters(self, source: VectorStore, index_dir: Path) -> dict[str, float]:
        """Try search parameters with doubling effort; return the first that reach the target recall, and the recall."""
        faiss = self._faiss
        trial = Faiss(device="cpu")
        trial.open(index_dir)
        space = faiss.ParameterSpace()
        space.initialize(trial._shards[0][1])
        names = [space.parameter_ranges.at(number).name for number in range(space.parameter_ranges.size())]
        efforts = {name: _EFFORTS[base] for name in names if (base := name.removeprefix("quantizer_")) in _EFFORTS}
        k = min(_DEPTH + 1, len(source))
        if not efforts or k < 2:
            return {}
        if "nprobe" in efforts:
            efforts["nprobe"] = (1, faiss.extract_index_ivf(trial._shards[0][1]).nlist)
        queries = Representation(torch.from_numpy(_sample(source, _TRIALS)).unsqueeze(1))
        best = top_k(queries, source.blocks(_BLOCK), k, width=source.block_rows(_BLOCK))[0].numpy()
        tried: list[tuple[float, dict[str, int]]] = []
        larger = {name: least for name, (least, _) in efforts.items()}
        while not tried or (tried[-1][0] < self.recall and tried[-1][1] != larger):
            values = larger
            for _, index in trial._shards:
                space.set_index_parameters(index, _written(values))
            exact = trial.scores(queries, trial.search(queries, k)[0])
            hits = [
                int((row >= least - 1e-5 * abs(least)).sum()) for row, least in zip(exact, best[:, -1], strict=True)
            ]
            # Each query retrieves its own text, which does not count.
            tried.append((max(0.0, float(np.mean(hits) - 1) / (k - 1)), values))
            larger = {name: min(2 * value, efforts[name][1]) for name, value in values.items()}
        best_recall = max(recall for recall, _ in tried)
        enough = self.recall if best_recall >= self.recall else best_recall - 0.01
        recall, values = next(attempt for attempt in tried if attempt[0] >= enough)
        (index_dir / _PARAMETERS).write_text(_written(values))
        return {**values, f"recall@{k - 1}": round(recall, 3)}

    def _set_parameters(self, index: Any, parameters: str) -> None:
        if parameters:
            with self._reported(f"rejects the parameters '{parameters}' for '{self.factory}'"):
                self._faiss.ParameterSpace().set_index_parameters(index, parameters)

    @contextmanager
    def _reported(self, problem: str) -> Iterator[None]:
        """Turn faiss errors into option errors."""
        try:
            yield
        except RuntimeError as error:
            msg = f"faiss {problem}: {_reason(error)}. Examples of factories: Flat, IVF1024,Flat, HNSW32, IVF1024,PQ48."
            raise OptionError(msg) from error

    def _write(self, index: Any, index_dir: Path, first: int) -> None:
        # Faiss's own writer only prints a line if the last bytes cannot be written.
        with _shard_file(index_dir, first).open("wb") as stream:
            self._faiss.write_index(index, self._faiss.PyCallbackIOWriter(stream.write))

    def _read(self, file: Path, parameters: str) -> Any:
        faiss = self._faiss
        flag = getattr(faiss, "IO_FLAG_MMAP_IFC", None) or faiss.IO_FLAG_MMAP
        try:
            # On-disk lists are read from the index folder, regardless of the path in the file.
            index = faiss.read_index(str(file), flag | faiss.IO_FLAG_ONDISK_SAME_DIR)
        except RuntimeError:
            try:
                # Some types of index cannot be memory-mapped.
                index = faiss.read_index(str(file), faiss.IO_FLAG_ONDISK_SAME_DIR)
            except RuntimeError as error:
                msg = f"'{file}' cannot be read ({_reason(error)}): it is damaged. Index the vectors again."
                raise ArtifactError(msg) from error
        self._set_parameters(index, parameters)
        if self.on_gpu:
            try:
                return faiss.index_cpu_to_all_gpus(index)
            except RuntimeError:
                if self.device == "cuda":
                    raise
                self.on_gpu = False
        return index

    def _use_threads(self) -> None:
        # faiss ships its own OpenMP, which ignores torch's number of threads.
        self._faiss.omp_set_num_threads(torch.get_num_threads())


def _shard_file(index_dir: Path, first: int) -> Path:
    return index_dir / f"vectors-from-{first:012d}.faiss"


def _reason(error: RuntimeError) -> str:
    """Return the message of faiss without its C++ function and line, and without the condition if text follows it."""
    text = str(error).partition(": ")[2].removeprefix("Error: ").strip() or str(error)
    return re.sub(r"^'.*' failed: (?=.)", "", text).rstrip(".")


def _written(parameters: Mapping[str, int]) -> str:
    return ",".join(f"{name}={value}" for name, value in parameters.items())


def _as_float32(vectors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(vectors, dtype=np.float32)


def _sample(source: VectorStore, size: int) -> np.ndarray:
    """Sample at most `size` vectors from the whole folder with a fixed seed."""
    size = min(size, source.rows)
    rows = np.sort(np.random.default_rng(0).choice(source.rows, size, replace=False))
    parts, first = [], 0
    for _, shard in source.shards():
        start, end = np.searchsorted(rows, [first, first + len(shard)])
        parts.append(_as_float32(shard[rows[start:end] - first]))
        first += len(shard)
    return np.concatenate(parts)
