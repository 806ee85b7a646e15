"""Encodes a corpus or queries into a vectors/ folder (`rkit encode`).

Memory does not grow with the corpus: texts are read in shards, a thread tokenises the next shard while the model
computes, and vectors are written shard by shard. A killed run keeps its complete shards. The workers of a Ray cluster
produce the same folder.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrievalkit import registry, storage
from retrievalkit.contracts import Compressor, Representation, Side, Text
from retrievalkit.contracts.cluster import RANKS, ClusterOptions, check_same, spread_map
from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.data.passage_parts import write_tables
from retrievalkit.data.queries import Query, read_queries
from retrievalkit.data.sources import InMemory
from retrievalkit.data.vectors import VectorWriter
from retrievalkit.data.vectors.ranges import read_ahead
from retrievalkit.data.vectors.writer import check_shard
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit.indexing.options import EncodingOptions
from retrievalkit.models.checkpoint import is_checkpoint, note_untrained_dimensions
from retrievalkit.models.opening import describe_retriever, open_retriever
from retrievalkit.models.precision import Precision, default_device, resolve_precision
from retrievalkit.models.retriever import Retriever, blamed, tokenize
from retrievalkit.registry import read_call
from retrievalkit.reporting import notices
from retrievalkit.reporting.progress import ProgressBar
from retrievalkit.reporting.terminal import counted, say

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_CALIBRATED = 512  # calibration texts, from the first shard
_NAMED = 5  # skipped texts named in the warning

_Rows = list[tuple[str, Text]]


def encode(
    model: str | Path,
    texts: str | Path,
    *,
    side: Side,
    output: str | Path,
    options: EncodingOptions | None = None,
    overwrite: bool = False,
    opened: Retriever | None = None,
    cluster: ClusterOptions | None = None,
) -> dict[str, Any]:
    """Encode texts, write a vectors/ folder, and return its manifest; see `EncodeOptions`.

    `opened` is the model if it is already loaded, `cluster` the cluster whose workers encode; None = this process.
    """
    options = options or EncodingOptions()
    if cluster is not None and cluster.ray != RANKS and isinstance(texts, InMemory):
        msg = "with ray, other processes read the texts. Pass a file or a folder, or leave ray out."
        raise OptionError(msg)
    storage.check_output(output, overwrite=overwrite)
    if side == "query" and is_checkpoint(model) and "document_length" in (options.encoder_options or {}):
        msg = "encoder.document_length has no effect on queries. Set encoder.query_length, or leave it out."
        raise OptionError(msg)
    retriever = opened or open_retriever(model, **options.parts)
    note_untrained_dimensions(model, options.dimensions)
    source = _Texts.open(texts, side)
    job = _Job.of(retriever, source, options)
    checkpoint = describe_retriever(model, retriever)
    if job.compression is not None:
        checkpoint["compressor"] = job.compression.call
    inputs = {"checkpoint": checkpoint, "texts": storage.describe_input(texts, source.fingerprint)}
    with storage.write_folder(output, overwrite=overwrite, keep_partial=True) as staging:
        identity = {"options": job.options(), "inputs": inputs}
        writer = VectorWriter(staging, identity=identity, store=storage.store_of(output))
        complete, changed = writer.completed_shards()
        if changed:
            say(f"'{changed}' was changed after it was written: its texts are encoded again", err=True)
        shards = job.shards(complete) if cluster is None else job.spread(complete, cluster, model, texts, options)
        left_out = _LeftOut(staging, complete, writer)
        for number, shard in shards:
            left_out.add(number, shard.left_out)
            parts = {"counts": shard.counts, "weights": shard.weights, "keys": shard.keys}
            writer.write_shard(number, shard.ids, shard.vectors, **parts)  # type: ignore[arg-type]
        counts = writer.finish()
        corpus: dict[str, Any] = {"corpus": {"source": inputs["texts"]["path"], "fingerprint": source.fingerprint}}
        files, reported = writer.checksums(), left_out.reported()
        if isinstance(source.rows, Corpus):
            skipped = {text["id"] for text in reported.get("left_out", ())}
            tables, form = write_tables(staging, (text for text in source.rows if text.id not in skipped))
            files, corpus = files | tables, corpus | form
        return storage.write_manifest(
            staging,
            "vectors",
            command="encode",
            options=job.options() | {"backend": retriever.backend},
            inputs=inputs,
            counts=counts,
            checkpoint=checkpoint,
            files=files,
            **(corpus if side == "document" else {}),
            **retriever.limit.entries(),
            **reported,
        )


def encoded_shards(
    retriever: Retriever, texts: str | Path, side: Side, options: EncodingOptions
) -> Iterator[EncodedShard]:
    """Yield the encoded shards of a source, as `encode` writes them."""
    for _, shard in _Job.of(retriever, _Texts.open(texts, side), options).shards(frozenset()):
        yield shard


@dataclass
class EncodedShard:
    """The encoded texts of a shard, in corpus order, and the skipped texts: id -> reason."""

    ids: list[str]
    vectors: np.ndarray | None
    counts: np.ndarray | None
    weights: csr_matrix | None
    keys: np.ndarray | None = None
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass
class _Texts:
    """Ids and texts to encode, from a corpus or from queries."""

    rows: Corpus | Sequence[Query]
    side: Side
    fingerprint: str

    @classmethod
    def open(cls, texts: str | Path, side: Side) -> _Texts:
        if side == "document":
            corpus = open_corpus(texts)
            return cls(corpus, side, corpus.fingerprint())
        queries = read_queries(texts)
        return cls(queries, side, storage.fingerprint_value([(query.id, query.content) for query in queries]))

    def shards(self, size: int, skip: frozenset[int]) -> Iterator[tuple[int, _Rows]]:
        """Yield the shards of texts with their numbers, except those in `skip`."""
        rows = iter(self)
        for number in itertools.count():
            shard = list(itertools.islice(rows, size))
            if not shard:
                return
            if number not in skip:
                yield number, shard

    def sample(self, size: int) -> list[Text]:
        """Return texts spread over the first shard."""
        first = [text for _, text in itertools.islice(self, size)]
        return first[:: max(1, -(-len(first) // _CALIBRATED))]

    def __iter__(self) -> Iterator[tuple[str, Text]]:
        for row in self.rows:
            yield row.id, row.content


def _read_shards(texts: str | Path, side: Side, size: int, skip: frozenset[int]) -> Iterator[tuple[int, _Rows]]:
    return _Texts.open(texts, side).shards(size, skip)


@dataclass
class _Job:
    """Encoding of texts, shard by shard."""

    retriever: Retriever
    texts: _Texts
    precision: Precision
    batch_tokens: int | None
    shard_texts: int
    compression: _Compression | None = None
    halved: bool = False
    sample: Sequence[Text] = ()

    @classmethod
    def of(
        cls, retriever: Retriever, texts: _Texts, options: EncodingOptions, sample: Sequence[Text] | None = None
    ) -> _Job:
        tower = retriever.tower(texts.side)
        among = tower.precisions
        precision = resolve_precision(options.precision, default_device(), half=tower.half_only, among=among)
        if precision == "int8":
            sample = texts.sample(options.shard_texts) if sample is None else sample
            shared = retriever.calibrate(sample, texts.side)
            say(
                f"int8 finds {shared:.1%} of the ten nearest texts that fp32 finds ({len(sample) // 2} texts tried)",
                err=True,
            )
        retriever.dimensions = options.dimensions
        return cls(
            retriever,
            texts,
            precision,
            options.batch_tokens,
            options.shard_texts,
            None if options.compressor is None else _Compression.of(options.compressor, texts.side),
            halved=options.stored == "fp16",
            sample=sample or (),
        )

    @property
    def side(self) -> Side:
        return self.texts.side

    def options(self) -> dict[str, Any]:
        """Return the options that determine the bytes of the folder."""
        values = {"precision": self.precision, "batch_tokens": self.batch_tokens, "shard_texts": self.shard_texts}
        optional = {"dimensions": self.retriever.dimensions, "stored": "fp16" if self.halved else None}
        optional |= {"compressor": None if self.compression is None else self.compression.call}
        return {"side": self.side, **values, **{name: value for name, value in optional.items() if value is not None}}

    def shards(self, skip: frozenset[int]) -> Iterator[tuple[int, EncodedShard]]:
        """Yield the encoded shards with their numbers, except those in `skip`."""
        with self._progress(skip) as progress:
            shards = self.texts.shards(self.shard_texts, skip)
            for number, ids, token_ids in read_ahead(self._tokenize(*shard) for shard in shards):
                yield number, self._encode(ids, token_ids, progress.advance)

    def spread(
        self,
        skip: frozenset[int],
        cluster: ClusterOptions,
        model: str | Path,
        texts: str | Path,
        options: EncodingOptions,
    ) -> Iterator[tuple[int, EncodedShard]]:
        """Yield the same shards, encoded by cluster workers."""
        items = functools.partial(_read_shards, texts, self.side, self.shard_texts, skip)
        make = functools.partial(
            _Worker, storage.absolute(model), self.side, options, self.retriever.fingerprint, self.sample
        )
        with self._progress(skip) as progress:
            # In any order: waiting for the first shards would leave workers idle when one is slow or lost.
            for number, shard in spread_map(
                make, items, cluster, ordered=False, here=lambda shard: self.without_failing(*shard)
            ):
                yield number, shard
                progress.advance(len(shard.ids))

    def without_failing(self, number: int, rows: _Rows) -> tuple[int, EncodedShard]:
        """Encode a shard, skipping texts that fail."""
        try:
            return number, self._checked(rows)
        except Exception:
            failing = {}
            for row in rows:
                try:
                    self._checked([row])
                except Exception as error:  # noqa: BLE001 - any error: the text is skipped with this reason
                    failing[row[0]] = f"{type(error).__name__}: {error}"
            if not 0 < len(failing) < len(rows):  # all texts fail, or no single text: e.g. out of memory
                raise
        shard = self._checked([row for row in rows if row[0] not in failing])
        shard.left_out = failing
        return number, shard

    def _checked(self, rows: _Rows) -> EncodedShard:
        _, ids, token_ids = self._tokenize(0, rows)
        shard = self._encode(ids, token_ids, lambda _: None)
        check_shard(ids, shard.vectors, shard.counts, shard.weights, shard.keys)
        return shard

    def _progress(self, skip: frozenset[int]) -> ProgressBar:
        rows, done = self.texts.rows, len(skip) * self.shard_texts
        plural = {"query": "queries", "document": "documents"}[self.side]
        total = rows.expected_size() if isinstance(rows, Corpus) else len(rows)
        if skip:
            of_all = "" if total is None else f" of {total:,}"
            say(f"resuming after {counted(done, 'texts')}{of_all}", err=True)
        return ProgressBar(f"encode {plural}", total, unit="texts", done=done)

    def _tokenize(self, number: int, rows: _Rows) -> tuple[int, list[str], list[np.ndarray]]:
        token_ids = tokenize(self.retriever, [text for _, text in rows], self.side)
        # Lists of Python integers would take many times the memory.
        return number, [name for name, _ in rows], [np.asarray(ids, dtype=np.int32) for ids in token_ids]

    def _encode(self, ids: list[str], token_ids: list[np.ndarray], advance: Callable[[int], None]) -> EncodedShard:
        positions: list[list[int]] = []
        vectors: list[Representation] = []
        weights: list[csr_matrix] = []
        batches = self.retriever.encode_tokens(
            token_ids, self.side, batch_tokens=self.batch_tokens, precision=self.precision
        )
        parts = {"encoder": self.retriever.tower(self.side), "pooler": self.retriever.pooler}
        with blamed(self.retriever.description, parts, when="on these texts", certain=True):
            for rows, part in batches:
                advance(len(rows))
                positions.append(rows)
                if self.compression is not None:
                    part = self.compression(part)
                if part.weights is not None:
                    from scipy.sparse import csr_matrix  # only if there are weights: the import is slow

                    weights.append(csr_matrix(part.weights.numpy()))
                if part.vectors is not None:
                    # The dense weights are dropped: they would take gigabytes per shard.
                    vectors.append(Representation(part.vectors, part.vector_mask, keys=part.keys))
        order = np.argsort(np.concatenate([np.asarray(rows) for rows in positions]))
        lexical = None
        if weights:
            from scipy.sparse import vstack

            lexical = vstack(weights, format="csr")[order]
        if not vectors:
            return EncodedShard(ids, None, None, lexical)
        matrix, counts, keys = _in_order(list(zip(positions, vectors, strict=True)), len(ids))
        return EncodedShard(ids, _in_half(matrix, ids, counts) if self.halved else matrix, counts, lexical, keys)


@dataclass(frozen=True)
class _Compression:
    """A compressor, and the text that creates it, with all options."""

    compressor: Compressor
    call: str

    @classmethod
    def of(cls, text: str, side: Side) -> _Compression:
        if side == "query":
            msg = f"compressor {text} reduces documents, but these are queries. Leave it out."
            raise OptionError(msg)
        name, options, _ = read_call(text)
        described = registry.describe("compressor", name, options)["options"]
        listed = ", ".join(f"{option}={value!r}" for option, value in described.items())
        return cls(registry.create("compressor", name, **options), f"{name}({listed})")

    def __call__(self, documents: Representation) -> Representation:
        compressed = self.compressor.compress(documents)
        if not isinstance(compressed, Representation) or _form(compressed) != _form(documents):
            form = _form(compressed) if isinstance(compressed, Representation) else type(compressed).__name__
            problem = (
                f"it returns {form} for {_form(documents)} (documents, dimension, vocabulary), and may change neither"
            )
            raise registry.wrong_result("compressor", self.compressor, problem)
        return compressed


def _form(documents: Representation) -> tuple[int, ...]:
    """Return the number of documents, the dimension of the vectors and the size of the vocabulary."""
    parts = documents.vectors, documents.weights
    return len(documents), *(0 if part is None else part.shape[-1] for part in parts)


@dataclass(frozen=True)
class _Unencoded:
    """A text that could not be encoded."""

    shard: int
    id: str
    reason: str


class _LeftOut:
    """The texts that workers could not encode, in a file next to the shards until they are reported."""

    def __init__(self, staging: Path, complete: frozenset[int], writer: VectorWriter) -> None:
        self._path, self._writer = staging / "left-out.json", writer
        do = f"Remove '{staging}', and encode again."
        listed = storage.read_document(self._path, list[_Unencoded], do=do) if self._path.exists() else []
        self._rows = [row for row in listed if row.shard in complete]

    def add(self, number: int, texts: Mapping[str, str]) -> None:
        """Record skipped texts and reasons of a shard before it is written."""
        if not texts:
            return
        self._rows += [_Unencoded(number, name, reason) for name, reason in texts.items()]
        storage.write_json(self._path, list(map(asdict, self._rows)), indent=None)
        self._writer.keep(self._path)

    def reported(self) -> dict[str, Any]:
        """Warn the user, and return the manifest entry."""
        self._path.unlink(missing_ok=True)
        if not self._rows:
            return {}
        first = "; ".join(f"'{row.id}' ({row.reason})" for row in self._rows[:_NAMED])
        rest = f"; and {len(self._rows) - _NAMED:,} more, see left_out in manifest.json" if self._rows[_NAMED:] else ""
        count = counted(len(self._rows), "texts")
        notices.note(f"{count} could not be encoded, and the folder lacks them: {first}{rest}.")
        return {"left_out": [{"id": row.id, "reason": row.reason} for row in self._rows]}


class _Worker:
    """Encoder of shards in a separate process, possibly on another machine."""

    def __init__(
        self, model: str | Path, side: Side, options: EncodingOptions, fingerprint: str, sample: Sequence[Text]
    ) -> None:
        model = storage.local(model)
        retriever = open_retriever(model, **options.parts)
        check_same("model", model, retriever.fingerprint, fingerprint)
        self._job = _Job.of(retriever, _Texts([], side, ""), options, sample)

    def __call__(self, shard: tuple[int, _Rows]) -> tuple[int, EncodedShard]:
        return self._job.without_failing(*shard)


def _in_half(rows: np.ndarray, ids: Sequence[str], counts: np.ndarray | None) -> np.ndarray:
    """Convert vectors to float16."""
    largest = np.abs(rows).reshape(len(rows), -1).max(axis=1)
    if wrong := np.flatnonzero(np.isfinite(largest) & (largest > np.finfo(np.float16).max)).tolist():
        text = wrong[0] if counts is None else int(np.searchsorted(np.cumsum(counts), wrong[0], side="right"))
        msg = f"a vector of the text '{ids[text]}' holds {largest[wrong[0]]:.6g}, beyond fp16. Drop --stored fp16."
        raise UnsupportedError(msg)
    return rows.astype(np.float16)


def _in_order(
    parts: Sequence[tuple[list[int], Representation]], texts: int
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return vectors in text order, (texts, m, dim), or (rows, dim) with a count per text; the counts; the keys."""
    shapes = {part.vectors.shape[1:] for _, part in parts if part.vectors is not None}
    keyed = parts[0][1].keys is not None
    if len(shapes) == 1 and all(part.vector_mask is None for _, part in parts) and not keyed:
        m, dim = next(iter(shapes))
        vectors = np.empty((texts, m, dim), dtype=np.float32)
        for positions, part in parts:
            assert part.vectors is not None
            vectors[positions] = part.vectors.numpy()
        return vectors, None, None
    rows: list[np.ndarray] = [np.empty(0)] * texts
    keys = [np.empty(0, dtype=np.int64)] * texts
    for positions, part in parts:
        assert part.vectors is not None
        for offset, position in enumerate(positions):
            kept = slice(None) if part.vector_mask is None else part.vector_mask[offset]
            rows[position] = part.vectors[offset][kept].numpy()
            if part.keys is not None:
                keys[position] = part.keys[offset][kept].numpy()
    counts = np.array(list(map(len, rows)), dtype=np.int64)
    return np.concatenate(rows), counts, np.concatenate(keys) if keyed else None
