"""The program behind `rkit search`: queries and one or several indexes in, a run out.

    rkit search INDEX... --queries FILE|--query TEXT [--model CHECKPOINT] --k N [--fusion rrf|sum|linear] --output RUN

Queries of an index of vectors are encoded by the checkpoint that made it; another one is refused. Several indexes may
be of different kinds and made by different checkpoints: each is searched, and the runs are fused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.text import Text as RichText

from retrievalkit import artifacts, registry
from retrievalkit.contracts import Indexer, Representation
from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.data.queries import Query
from retrievalkit.data.runs import Run
from retrievalkit.errors import ArtifactError, InputError, OptionError, RetrievalkitError, UnknownNameError
from retrievalkit.fusion import Method, Normalization, fuse
from retrievalkit.hits import DescribedHit, describe_hits
from retrievalkit.precision import Precision
from retrievalkit.retriever import CONFIGURATION, Retriever, checkpoint_fingerprint
from retrievalkit.score import check_k

FUSION_DEPTH = 1000
BATCH_QUERIES = 1024


@dataclass
class OpenIndex:
    """An index folder, opened.

    Attributes:
        folder: Where it is.
        manifest: What its manifest.json holds.
        name: Registered name of its indexer.
        indexer: The indexer, ready to search.
    """

    folder: Path
    manifest: Mapping[str, Any]
    name: str
    indexer: Indexer

    @property
    def needs_encoding(self) -> bool:
        """Whether queries are a Representation (else they are texts)."""
        return self.indexer.indexes == "vectors"

    @property
    def checkpoint(self) -> Mapping[str, Any] | None:
        """What encoded the texts: "path", "fingerprint" and, for an untrained model, "description"; None = unknown."""
        found: Mapping[str, Any] | None = self.manifest.get("checkpoint")
        return found

    def search(self, queries: Representation | Sequence[str], k: int) -> list[list[tuple[str, float]]]:
        """For each query the ids and scores of the best texts."""
        ids, scores = self.indexer.search(queries, k)
        return [list(zip(one, _numbers(two), strict=True)) for one, two in zip(ids, scores, strict=True)]


def open_index(folder: str | Path, *, options: Mapping[str, Any] | None = None) -> OpenIndex:
    """Open an index folder.

    Args:
        folder: What `rkit index` wrote.
        options: Options of the indexer that are to be other than when it was built, such as faiss's `parameters`.

    Raises:
        ArtifactError: It is not an index folder, it is damaged, or the plugin that made it is not installed.
    """
    folder = Path(folder)
    _check_kind(folder)
    manifest = artifacts.read_manifest(folder, "index")
    made_by = manifest["indexer"]
    try:
        indexer = registry.create("indexer", made_by["name"], **{**made_by["options"], **(options or {})})
    except UnknownNameError as error:
        distribution, version = made_by["distribution"], made_by["version"]
        msg = (
            f"index '{folder}' was made by the indexer '{made_by['name']}' of {distribution} {version}, which is not "
            f"installed. Install it: pip install {distribution}=={version}"
        )
        raise ArtifactError(msg) from error
    indexer.open(folder)
    return OpenIndex(folder, manifest, made_by["name"], indexer)


def _check_kind(folder: Path) -> None:
    kind = artifacts.kind_of(folder)
    if kind == "vectors":
        msg = f"'{folder}' is a vectors folder. Make an index of it first: rkit index {folder} --output index"
        raise ArtifactError(msg)
    if kind == "checkpoint":
        msg = (
            f"'{folder}' is a checkpoint. Encode a corpus and index it first: "
            f"rkit encode {folder} CORPUS --output vectors, rkit index vectors --output index"
        )
        raise ArtifactError(msg)


def search(
    indexes: Sequence[str | Path],
    *,
    queries: Sequence[Query],
    k: int = 1000,
    model: str | Path | None = None,
    fusion: Method | None = None,
    weights: Sequence[float] | None = None,
    normalization: Normalization | None = None,
    precision: Precision = "auto",
    batch_size: int = BATCH_QUERIES,
    depth: int = FUSION_DEPTH,
) -> Run:
    """Search one index, or several and fuse what they find.

    Args:
        indexes: Index folders.
        queries: What to search for.
        k: Hits of a query.
        model: The checkpoint that encodes queries, where it is not the one at the place where the index was made.
        fusion: How several runs become one ("rrf" where not given).
        weights: For "rrf" and "linear" fusion: one number an index.
        normalization: For "linear" fusion: what is done with the scores of an index.
        precision: What queries are encoded in.
        batch_size: Queries that are encoded and searched at once.
        depth: Hits of each index that are fused, at least; k where that is more.

    Returns:
        The run: for each query, in the order given, ids and scores, best first.

    Raises:
        InputError: There is no query, one is empty, an index or the model is wrong, or an option has no effect.
    """
    check_k(k)
    _check_queries(queries)
    _check_fusion(len(indexes), fusion, weights, normalization)
    opened = [open_index(folder) for folder in indexes]
    encoders = _Encoders(model, opened, precision)
    wanted = k if len(opened) == 1 else max(k, depth)
    runs: list[Run] = [{} for _ in opened]
    for batch in _batches(queries, batch_size):
        for index, run, hits in zip(opened, runs, _search_batch(opened, encoders, batch, wanted), strict=True):
            assert len(hits) == len(batch), f"indexer '{index.name}' answered {len(hits)} of {len(batch)} queries"
            run.update({query.id: found for query, found in zip(batch, hits, strict=True)})
    if len(runs) == 1:
        return runs[0]
    return fuse(runs, method=fusion or "rrf", weights=weights, normalization=normalization, depth=k)


def _search_batch(
    opened: Sequence[OpenIndex], encoders: _Encoders, batch: Sequence[Query], k: int
) -> Iterator[list[list[tuple[str, float]]]]:
    texts = [query.text for query in batch]
    encoded: dict[str, Representation] = {}
    for index in opened:
        if not index.needs_encoding:
            yield index.search(texts, k)
            continue
        retriever = encoders.of(index)
        if retriever.fingerprint not in encoded:
            pairs = [("", text) for text in texts]
            encoded[retriever.fingerprint] = retriever.encode(pairs, "query", precision=encoders.precision)
            _check_finite(encoded[retriever.fingerprint], batch)
        yield index.search(encoded[retriever.fingerprint], k)


def _check_finite(encoded: Representation, batch: Sequence[Query]) -> None:
    for tensor in (encoded.vectors, encoded.weights):
        if tensor is None:
            continue
        finite = tensor.isfinite().flatten(1).all(dim=1).tolist()
        if not all(finite):
            query = batch[finite.index(False)].id
            msg = f"the query '{query}' was encoded as numbers that are not finite. Look at the model, or use fp32."
            raise RetrievalkitError(msg)


def _batches(queries: Sequence[Query], size: int) -> Iterator[Sequence[Query]]:
    parts = [queries[start : start + size] for start in range(0, len(queries), size)]
    console = Console(stderr=True)
    yield from track(parts, "searching", console=console, transient=True, disable=len(parts) == 1)


def _check_queries(queries: Sequence[Query]) -> None:
    if not queries:
        msg = "there is no query to search for."
        raise InputError(msg)
    seen: set[str] = set()
    for query in queries:
        if not query.text.strip():
            msg = f"the query '{query.id}' is empty. Give it a text, or leave it out."
            raise InputError(msg)
        if query.id in seen:
            msg = f"two queries have the id '{query.id}'. Every query needs an id of its own."
            raise InputError(msg)
        seen.add(query.id)


def _check_fusion(
    indexes: int, fusion: Method | None, weights: Sequence[float] | None, normalization: Normalization | None
) -> None:
    if not indexes:
        msg = "there is no index to search. Give one or more index folders."
        raise InputError(msg)
    given = {"--fusion": fusion, "--weights": weights, "--normalization": normalization}
    named = [name for name, value in given.items() if value is not None]
    if indexes == 1 and named:
        msg = f"{', '.join(named)} combines several indexes, and there is only one. Give more, or leave it out."
        raise OptionError(msg)
    if indexes > 1:
        # Mistakes show before the search, which may take long.
        fuse([{}] * indexes, method=fusion or "rrf", weights=weights, normalization=normalization)


@dataclass
class _Encoders:
    """The retrievers that encode queries: for each index the one that made it, each loaded once.

    Attributes:
        model: Where the user says that a checkpoint is.
        indexes: All that are searched.
        precision: What queries are encoded in.
    """

    model: str | Path | None
    indexes: Sequence[OpenIndex]
    precision: Precision
    loaded: dict[str, Retriever] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the checkpoint of each index now, so that a mistake shows before anything is searched."""
        needing = [index for index in self.indexes if index.needs_encoding]
        if self.model is not None and not needing:
            msg = f"--model {self.model} encodes queries, and none of the indexes needs that. Leave it out."
            raise OptionError(msg)
        self._given = None if self.model is None else _fingerprint_of(self.model)
        if self._given is not None and not any(self._fits(index) for index in needing):
            raise _another(needing[0], str(self.model), self._given)
        self._folders = {str(index.folder): self._locate(index) for index in needing}

    def of(self, index: OpenIndex) -> Retriever:
        """The retriever that made an index.

        Raises:
            ArtifactError: What is loaded is not what made the index.
        """
        folder = self._folders[str(index.folder)]
        if folder not in self.loaded:
            self.loaded[folder] = _load(folder, index)
        retriever = self.loaded[folder]
        if index.checkpoint is not None and retriever.fingerprint != index.checkpoint["fingerprint"]:
            raise _another(index, folder, retriever.fingerprint)
        return retriever

    def _fits(self, index: OpenIndex) -> bool:
        if index.checkpoint is None:
            return True
        if "description" in index.checkpoint:
            return self._given == ""
        return bool(index.checkpoint["fingerprint"] == self._given)

    def _locate(self, index: OpenIndex) -> str:
        if self.model is not None and self._fits(index):
            return str(self.model)
        if index.checkpoint is None:
            msg = f"index '{index.folder}' does not say which checkpoint made it. Give it with --model."
            raise ArtifactError(msg)
        if "description" in index.checkpoint:
            return _located(index.checkpoint, index.folder) or str(index.checkpoint["description"]["model"])
        found = _located(index.checkpoint, index.folder)
        if found is None:
            msg = (
                f"index '{index.folder}' was made with the checkpoint '{index.checkpoint['path']}', which is not there "
                f"any more. Give its new place with --model."
            )
            raise ArtifactError(msg)
        fingerprint = _fingerprint_of(found)
        if fingerprint != index.checkpoint["fingerprint"]:
            raise _another(index, found, fingerprint)
        return found


def _fingerprint_of(model: str | Path) -> str:
    """The fingerprint of a checkpoint; "" for a model that was not trained here, which is known once it is loaded."""
    if (Path(model) / CONFIGURATION).is_file():
        return checkpoint_fingerprint(model)
    kind = artifacts.kind_of(model)
    if kind is not None:
        msg = f"--model '{model}' is of the kind {kind}, and should be a checkpoint (rkit train)."
        raise ArtifactError(msg)
    return ""


def _load(folder: str, index: OpenIndex) -> Retriever:
    if (Path(folder) / CONFIGURATION).is_file() or index.checkpoint is None or "description" not in index.checkpoint:
        return Retriever.load(folder)
    return Retriever.from_description({**index.checkpoint["description"], "model": folder})


def _another(index: OpenIndex, folder: str, fingerprint: str) -> ArtifactError:
    assert index.checkpoint is not None
    path, made = index.checkpoint["path"], index.checkpoint["fingerprint"]
    msg = (
        f"index '{index.folder}' was made with the checkpoint '{path}' (fingerprint {made[:12]}), and '{folder}' is "
        f"another one (fingerprint {fingerprint[:12] or 'unknown'}): their vectors do not compare. "
        f"Give the right one with --model, or encode and index again."
    )
    return ArtifactError(msg)


def _located(entry: Mapping[str, Any], folder: Path) -> str | None:
    """Where something is that a manifest names: at its place, or at the same place relative to the index."""
    places = [Path(entry["path"])] if "path" in entry else []
    places += [folder / entry["relative_path"]] if "relative_path" in entry else []
    return next((str(place) for place in places if place.exists()), None)


def _numbers(scores: np.ndarray) -> list[float]:
    numbers: list[float] = np.asarray(scores, dtype=np.float32).tolist()
    return numbers


def print_hits(
    indexes: Sequence[str | Path],
    query: str,
    hits: Sequence[tuple[str, float]],
    *,
    corpus: str | Path | None = None,
    as_json: bool = False,
) -> None:
    """Print hits on standard output: rank, score, title, and the part of the text that matches.

    Args:
        indexes: The index folders that were searched; their manifests say where the texts are.
        query: What was searched for.
        hits: What was found.
        corpus: Where the texts are, if not where they were when they were indexed.
        as_json: Print one JSON object.
    """
    described = describe_hits(hits, query, _texts(indexes, corpus))
    if as_json:
        rows = [{name: value for name, value in vars(hit).items() if name != "matches"} for hit in described]
        sys.stdout.write(json.dumps({"query": query, "hits": rows}, indent=2, ensure_ascii=False) + "\n")
        return
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    if not described:
        console.print("nothing found")
    for hit in described:
        console.print(_as_text(hit))


def _texts(indexes: Sequence[str | Path], corpus: str | Path | None) -> Corpus | None:
    if corpus is not None:
        return open_corpus(corpus)
    problem = "no index was given"
    for folder in indexes:
        manifest = artifacts.read_manifest(folder, "index")
        entry = manifest.get("corpus")
        try:
            if entry is not None:
                return open_corpus(_located(entry, Path(folder)) or entry["source"])
            problem = f"the manifest of '{folder}' names no corpus"
        except InputError as error:
            problem = str(error)
    Console(stderr=True, highlight=False).print(f"The texts are not at hand ({problem}). Give them with --corpus.")
    return None


def _as_text(hit: DescribedHit) -> RichText:
    text = RichText(f"{hit.rank:>3}  {hit.score:>9.4f}  ")
    text.append(hit.title or hit.id, style="bold")
    # The documentation of packages has the name as both.
    if hit.title and hit.title != hit.id:
        text.append(f"  {hit.id}", style="dim")
    if hit.snippet:
        text.append("\n" + " " * 16)
        snippet = RichText(hit.snippet)
        for start, end in hit.matches:
            snippet.stylize("bold yellow", start, end)
        text.append_text(snippet)
    return text
