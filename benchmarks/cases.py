"""The cases: the two sides, the comparison of their outputs, and the target ratio."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Check = Literal["cosine", "hits", "difference", "best", "none"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A pair of sides, or only ours.

    Attributes:
        name: Name in ONLY= and of the results file.
        what: Description for the table.
        ours: Script in ours/ and its function.
        peer: Description of the peer; "" = none, and the target is a time.
        theirs: Script in peers/ and its function.
        settings: The peer's settings, and why they are its fastest; the table adds those selected on the machine.
        unit: Unit of the rates.
        amount: The options whose product is the number of units per round; "" = 1.
        target: Target ratio; without a peer, seconds.
        options: Options of both sides.
        only_ours: Options of our side.
        only_theirs: Options of the peer.
        check: Comparison of outputs: the smallest cosine, the overlap of hits, the largest difference of values, or
            "best": the overlap of each side's ten best hits with an exact search.
        tolerance: Minimum cosine or overlap, maximum difference; for "best", how far ours may be below the peer's.
        venv: The peer's environment.
        small: Options of a pair that takes seconds, for the guard.
        guarded: True if the guard measures it.
        grows: Values of options, for the curves.
    """

    name: str
    what: str
    ours: tuple[str, str]
    peer: str = ""
    theirs: tuple[str, str] = ("", "")
    settings: str = ""
    unit: str = "texts"
    amount: str = "count"
    target: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    only_ours: Mapping[str, Any] = field(default_factory=dict)
    only_theirs: Mapping[str, Any] = field(default_factory=dict)
    check: Check = "none"
    tolerance: float = 0.0
    venv: str = ".venv-bench"
    small: Mapping[str, Any] = field(default_factory=dict)
    guarded: bool = False
    grows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


_ENCODE = {"ours": ("models", "encode"), "check": "cosine", "tolerance": 0.9998, "small": {"count": 128}}
_TRAIN = {
    "ours": ("models", "train"),
    "unit": "examples",
    "amount": "batch*steps",
    "check": "difference",
}
_NEAR = {
    "what": "approximate dense, 100,000 texts x 384, recall@10 of 0.95",
    "ours": ("search", "near"),
    "unit": "queries",
    "amount": "queries",
    "options": {"texts": 100_000, "queries": 1000, "k": 10, "dim": 384, "latent": 32},
    "only_ours": {"factory": "IVF1024,PQ96x4fs,RFlat", "parameter": "k_factor_rf=10,nprobe"},
    "check": "best",
    "tolerance": 0.01,
}
_EXACT = {
    "ours": ("search", "exact"),
    "theirs": ("exact", "search"),
    "unit": "queries",
    "amount": "queries",
    "check": "hits",
    "tolerance": 0.999,
}
_LATE, _OPENVINO = ".venv-bench-late", ".venv-bench-openvino"
_BATCH = "fastest batch size of 8 to 64 on the same texts"
_BF16 = "bf16 if the hardware multiplies bf16, else fp32 (emulated bf16 is slower)"
_LATENCY = "LATENCY hint, because it runs one batch at a time"
_STATIC = f"static int8, calibrated on the same texts by its export; {_LATENCY}"
_DYNAMIC = "dynamic int8 by its export, for the processor's best instructions"
_INT8 = {"backend": "openvino", "precision": "int8"}

CASES = (
    Case(
        name="encode",
        what="encode passages of mixed length",
        peer="sentence-transformers, torch",
        theirs=("sentence", "encode"),
        settings=f"{_BF16}; {_BATCH}",
        target=4,
        options={"count": 256},
        only_ours={"precision": "auto"},
        **_ENCODE,
        guarded=True,
        grows={"count": (256, 800, 2560), "length": (16, 64, 200)},
    ),
    Case(
        name="encode_openvino",
        what="encode passages of mixed length",
        peer="sentence-transformers, OpenVINO",
        theirs=("sentence", "encode"),
        settings=f"{_BF16}; {_LATENCY}; {_BATCH}",
        target=1,
        options={"count": 256},
        only_ours={"precision": "auto"},
        only_theirs={"backend": "openvino"},
        venv=_OPENVINO,
        **_ENCODE,
    ),
    *(
        Case(
            name=name,
            what="encode passages in int8",
            ours=("models", "encode"),
            peer=peer,
            theirs=("sentence", function),
            settings=f"{settings}; {_BATCH}",
            target=1,
            options={"count": 512},
            only_ours=_INT8,
            only_theirs=only,
            check="best",
            venv=_OPENVINO,
            small={"count": 128},
        )
        for name, peer, function, only, settings in (
            ("encode_int8", "sentence-transformers, OpenVINO int8", "encode", _INT8, _STATIC),
            (
                "encode_onnx",
                "sentence-transformers, ONNX int8",
                "encode",
                {"backend": "onnx", "precision": "int8"},
                _DYNAMIC,
            ),
            (
                "encode_fastembed",
                "fastembed, ONNX int8",
                "fastembed",
                {},
                "the ONNX int8 model that sentence-transformers exports; texts sorted by length",
            ),
        )
    ),
    Case(
        name="encode_command",
        what="`rkit encode` of 500 passages, including start-up and writing",
        ours=("models", "encode_command"),
        peer="a script of sentence-transformers, OpenVINO",
        theirs=("sentence", "encode_command"),
        settings=f"model exported beforehand; {_BF16}; {_LATENCY}; {_BATCH}",
        target=3,
        options={"count": 500},
        only_theirs={"backend": "openvino"},
        check="cosine",
        tolerance=0.999,
        venv=_OPENVINO,
    ),
    Case(
        name="query",
        what="encode a query, median latency, fp32",
        ours=("models", "query"),
        peer="sentence-transformers, OpenVINO",
        theirs=("sentence", "query"),
        settings="LATENCY hint: all cores compute a query",
        unit="queries",
        target=1.3,
        options={"count": 100},
        only_theirs={"backend": "openvino"},
        check="cosine",
        tolerance=0.9999,
        venv=_OPENVINO,
        small={"count": 50},
        guarded=True,
    ),
    Case(
        name="query_int8",
        what="encode a query in int8, median latency",
        ours=("models", "query"),
        peer="sentence-transformers, OpenVINO int8",
        theirs=("sentence", "query"),
        settings="static int8, calibrated on the same queries by its export; LATENCY hint",
        unit="queries",
        target=1,
        options={"count": 100},
        only_ours=_INT8,
        only_theirs=_INT8,
        check="best",
        venv=_OPENVINO,
    ),
    Case(
        name="search_command",
        what="`rkit search --query` from the shell, BM25",
        ours=("search", "search_bm25"),
        peer="pyserini.search.lucene",
        theirs=("lucene", "search_command"),
        settings="Lucene on all cores",
        unit="commands",
        amount="",
        target=2,
        options={"count": 20_000},
        check="hits",
        tolerance=0.9,
    ),
    Case(
        name="train",
        what="train with a hard negative, batch 64, up to 256 tokens",
        peer="SentenceTransformerTrainer, MultipleNegativesRankingLoss",
        theirs=("sentence", "train"),
        settings=f"{_BF16}; without gradient caching",
        target=5,
        options={"batch": 64, "steps": 1, "length": 256},
        tolerance=0.02,
        **_TRAIN,
        small={"batch": 16},
        guarded=True,
        grows={"steps": (1, 3, 10)},
    ),
    Case(
        name="train_cached",
        what="train with gradient caching, batch 256, up to 128 tokens",
        peer="SentenceTransformerTrainer, CachedMultipleNegativesRankingLoss",
        theirs=("sentence", "train"),
        settings=f"{_BF16}; 32 texts at a time, as ours",
        target=4,
        options={"batch": 256, "steps": 1, "length": 128, "negatives": 0, "micro": 32},
        tolerance=0.02,
        **_TRAIN,
    ),
    Case(
        name="train_tevatron",
        what="train with a hard negative, batch 64, up to 256 tokens",
        peer="Tevatron's loop as published",
        theirs=("plain", "tevatron"),
        settings=f"{_BF16}; padded to multiples of 16, as in its repository",
        target=1,
        options={"batch": 64, "steps": 1, "length": 256},
        tolerance=0.02,
        **_TRAIN,
    ),
    Case(
        name="colbert_encode",
        what="ColBERT: encode",
        ours=("models", "colbert_encode"),
        peer="PyLate",
        theirs=("late", "encode"),
        settings=f"{_BF16}; {_BATCH}",
        target=2,
        options={"count": 128, "length": 180},
        check="cosine",
        tolerance=0.999,
        venv=_LATE,
    ),
    Case(
        name="colbert_train",
        what="ColBERT: train with a hard negative, batch 32",
        peer="PyLate",
        theirs=("late", "train"),
        settings=_BF16,
        target=2,
        options={"batch": 32, "steps": 1, "length": 180},
        only_ours={"kind": "colbert"},
        tolerance=0.02,
        venv=_LATE,
        **_TRAIN,
    ),
    Case(
        name="colbert_search",
        what="ColBERT: search 10,000 texts",
        ours=("search", "late"),
        peer="PyLate with PLAID",
        theirs=("late", "search"),
        settings="PLAID with its defaults",
        unit="queries",
        amount="queries",
        target=2,
        options={"count": 10_000, "queries": 32, "k": 10},
        only_ours={"indexer": "flat"},
        check="hits",
        tolerance=0.8,
        venv=_LATE,
    ),
    Case(
        name="splade_encode",
        what="SPLADE: encode, 2 layers x 128",
        ours=("models", "splade_encode"),
        peer="sentence-transformers SparseEncoder",
        theirs=("sentence", "splade_encode"),
        settings=f"torch (OpenVINO was slower in a trial); {_BF16}; {_BATCH}",
        target=2,
        options={"count": 512},
        check="cosine",
        tolerance=0.999,
    ),
    Case(
        name="splade_train",
        what="SPLADE: train with a hard negative, batch 32, 2 layers x 128",
        peer="SparseEncoderTrainer, SpladeLoss",
        theirs=("sentence", "splade_train"),
        settings=_BF16,
        target=2,
        options={"batch": 32, "steps": 1, "length": 256},
        only_ours={"kind": "splade"},
        tolerance=0.05,
        **_TRAIN,
    ),
    Case(
        name="rerank",
        what="re-rank pairs",
        ours=("models", "rerank"),
        peer="CrossEncoder, OpenVINO",
        theirs=("sentence", "rerank"),
        settings=f"{_BF16}; {_LATENCY}; {_BATCH}",
        unit="pairs",
        target=2,
        options={"count": 128},
        only_ours={"precision": "auto"},
        only_theirs={"backend": "openvino"},
        check="difference",
        tolerance=0.1,
        venv=_OPENVINO,
    ),
    Case(
        name="rerank_int8",
        what="re-rank pairs in int8",
        ours=("models", "rerank"),
        peer="CrossEncoder, OpenVINO int8",
        theirs=("sentence", "rerank"),
        settings=f"{_STATIC}; {_BATCH}",
        unit="pairs",
        target=1,
        options={"count": 256},
        only_ours=_INT8,
        only_theirs=_INT8,
        check="best",
        venv=_OPENVINO,
    ),
    Case(
        name="pretrain",
        what="pre-train with five loss terms (CoT-MAE v2), two spans of 128 tokens per text",
        ours=("models", "pretrain"),
        peer="transformers' Trainer, masked language modelling on equally many tokens",
        theirs=("plain", "mlm"),
        settings=_BF16,
        amount="batch*steps",
        target=0.5,
        options={"batch": 32, "steps": 2, "length": 128},
    ),
    Case(
        name="dense_sparse",
        what="exact dense + sparse sum, 200,000 texts x 768, 768 terms",
        peer="scipy's product and faiss IndexFlatIP, without adding the scores",
        settings="faiss: all queries in one call; scipy: 100 at a time, because the result must fit into memory",
        target=3,
        options={"texts": 200_000, "queries": 200, "k": 100, "dim": 768, "terms": 768},
        only_ours={"indexer": "dense_sparse"},
        **_EXACT,
        small={"texts": 20_000},
        guarded=True,
        grows={"texts": (20_000, 60_000, 200_000), "k": (1, 10, 100, 1000)},
    ),
    Case(
        name="sparse",
        what="exact sparse, 100,000 texts, 120 terms",
        peer="scipy's product and top-k",
        settings="100 queries at a time, because the result must fit into memory",
        target=2,
        options={"texts": 100_000, "queries": 500, "k": 100, "terms": 120},
        only_ours={"indexer": "sparse"},
        **_EXACT,
    ),
    Case(
        name="dense",
        what="exact dense, 300,000 texts x 384",
        peer="faiss IndexFlatIP",
        settings="all queries in one call on all cores: a matrix product",
        target=0.83,
        options={"texts": 300_000, "queries": 1000, "k": 100, "dim": 384},
        only_ours={"indexer": "flat"},
        **_EXACT,
    ),
    Case(
        name="dense_many",
        what="exact dense, 50,000 texts of 8 vectors x 384, from disk",
        peer="faiss IndexFlatIP",
        settings="all queries in one call on all cores; vectors in memory",
        target=1.2,
        options={"texts": 50_000, "queries": 200, "k": 100, "dim": 384, "vectors": 8},
        only_ours={"indexer": "flat"},
        **_EXACT,
    ),
    Case(
        name="near_faiss",
        peer="faiss",
        theirs=("exact", "near_faiss"),
        settings="fastest of HNSW, HNSW SQ8, IVF and re-ranked IVF PQ, each with the smallest effort for the recall",
        **_NEAR,
    ),
    Case(
        name="near_usearch",
        peer="usearch",
        theirs=("exact", "near_usearch"),
        settings="fastest of f32, bf16 and i8, each with the smallest effort for the recall",
        **_NEAR,
    ),
    Case(
        name="bm25_index",
        what="BM25: index 20,000 passages",
        ours=("search", "bm25_index"),
        peer="pyserini.index.lucene",
        theirs=("lucene", "index"),
        settings="a thread per core",
        target=1.2,
        options={"count": 20_000},
        check="difference",
        small={"count": 10_000},
    ),
    Case(
        name="bm25_index_bm25s",
        what="BM25: index 20,000 passages",
        ours=("search", "bm25_index"),
        peer="bm25s",
        theirs=("exact", "bm25s_index"),
        settings="numba, its fastest backend; no stemming",
        target=1.2,
        options={"count": 20_000},
        check="difference",
    ),
    Case(
        name="bm25_index_tantivy",
        what="BM25: index 20,000 passages",
        ours=("search", "bm25_index"),
        peer="tantivy",
        theirs=("exact", "tantivy_index"),
        settings="a thread per core; neither texts nor positions are stored",
        target=1.2,
        options={"count": 20_000},
        check="difference",
    ),
    Case(
        name="bm25_search",
        what="BM25: 5,000 queries over 20,000 passages, 100 hits each, run written",
        ours=("search", "bm25_search"),
        peer="pyserini.search.lucene",
        theirs=("lucene", "search"),
        settings="a thread per core, batches of 64 queries per thread",
        unit="queries",
        amount="queries",
        target=2,
        options={"count": 20_000, "queries": 5000, "k": 100},
        check="hits",
        tolerance=0.99,
        small={"count": 10_000, "queries": 2000},
        guarded=True,
        grows={"count": (10_000, 30_000, 100_000), "queries": (2000, 6000, 20_000), "k": (10, 100, 1000)},
    ),
    Case(
        name="bm25_search_bm25s",
        what="BM25: 5,000 queries over 20,000 passages, 100 hits each, from an open index; different text analysis",
        ours=("search", "bm25_open"),
        peer="bm25s",
        theirs=("exact", "bm25s_search"),
        settings="numba, its fastest backend; all cores; no stemming; index in memory",
        unit="queries",
        amount="queries",
        target=0.8,
        options={"count": 20_000, "queries": 5000, "k": 100},
    ),
    Case(
        name="bm25_search_tantivy",
        what="BM25: 5,000 queries over 20,000 passages, 100 hits each, from an open index; different text analysis",
        ours=("search", "bm25_open"),
        peer="tantivy",
        theirs=("exact", "tantivy_search"),
        settings="a query per task on all cores; hits from a column",
        unit="queries",
        amount="queries",
        target=2,
        options={"count": 20_000, "queries": 5000, "k": 100},
    ),
    Case(
        name="mine",
        what="mine 2,000 questions from BM25 of 20,000 passages, filters on",
        ours=("search", "mine_bm25"),
        peer="Pyserini's batch_search, only reading hits",
        theirs=("lucene", "batch_search"),
        settings="one batch, a thread per core",
        unit="questions",
        amount="questions",
        target=2,
        options={"questions": 2000, "depth": 200, "count": 20_000},
    ),
    Case(
        name="mine_dense",
        what="mine 2,000 questions from vectors, filters on, 4,000 passages encoded (2 layers x 128)",
        ours=("search", "mine_dense"),
        peer="mine_hard_negatives",
        theirs=("sentence", "mine"),
        settings=f"{_BF16}; all scores from one matrix product",
        unit="questions",
        amount="questions",
        target=3,
        options={"questions": 2000, "depth": 200, "count": 4000},
    ),
    Case(
        name="start_help",
        what="`rkit --help`",
        ours=("search", "start_help"),
        peer="python -c 'import torch'",
        theirs=("plain", "import_torch"),
        settings="no settings",
        unit="commands",
        amount="",
        target=8,
    ),
    Case(
        name="start_bm25",
        what="`rkit search --query`, BM25: seconds to the first hit",
        ours=("search", "search_bm25"),
        unit="commands",
        amount="",
        target=1.5,
        options={"count": 20_000},
    ),
    Case(
        name="start_dense",
        what="`rkit search --query`, vectors: seconds to the first hit",
        ours=("search", "search_dense"),
        unit="commands",
        amount="",
        target=3,
        options={"count": 500},
    ),
    Case(
        name="evaluate",
        what="evaluate a run of 2,000 queries x 1,000 hits from its file, five metrics",
        ours=("search", "evaluate"),
        peer="pytrec_eval",
        theirs=("exact", "pytrec_eval"),
        settings="no settings",
        unit="results",
        amount="queries*depth",
        target=1,
        options={"queries": 2000, "depth": 1000},
        check="difference",
        tolerance=1e-6,
    ),
    Case(
        name="evaluate_ranx",
        what="evaluate a run of 2,000 queries x 1,000 hits from its file, five metrics",
        ours=("search", "evaluate"),
        peer="ranx",
        theirs=("exact", "ranx"),
        settings="compiled by numba beforehand, on all cores",
        unit="results",
        amount="queries*depth",
        target=2,
        options={"queries": 2000, "depth": 1000},
        check="difference",
        tolerance=1e-6,
    ),
    *(
        Case(
            name=f"pool_{method}",
            what=f"{what}, forward and backward, 32 texts x 128 tokens x 30,522 terms",
            ours=("models", "pool"),
            peer="the plain expression in torch",
            theirs=("plain", "pool"),
            settings="all logits from one product; the logarithm after the maximum",
            amount="texts",
            target=1,
            options={"method": method, "texts": 32, "tokens": 128, "terms": 30_522, "width": 384},
            check="cosine",
            tolerance=0.999,
        )
        for method, what in (("saturated", "saturated logits, top 768"), ("weighted", "weighted softmax, 1,280 slices"))
    ),
)
