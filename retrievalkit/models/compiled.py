"""Models computed by OpenVINO without torch, whose import takes longer than a search.

Torch exports graphs on first use, of an encoder's layers or of a pooler. They are entries of the cache "graphs" (see
`storage.cache`), as is what else a retriever needs: its tokenizer, prefixes and lengths.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from tokenizers import Tokenizer

from retrievalkit import storage
from retrievalkit.data.truncation import count_cut
from retrievalkit.registry.modules import module_spec
from retrievalkit.storage import Entry

if TYPE_CHECKING:
    from retrievalkit.contracts import Side, Text
    from retrievalkit.models.retriever import Retriever

_VERSIONED = ("retrievalkit", "torch", "transformers", "tokenizers", "openvino", "onnxruntime")
GRAPH = "graph.xml"
"""OpenVINO's file in a graph's entry of the cache."""

_CACHE, _MOST_ENTRIES = "graphs", 80  # four entries of a retriever that searches without torch
_BATCH = 32  # texts
_FIRST_USE = threading.Lock()

Form = TypeVar("Form")


@dataclass(frozen=True)
class SideSettings:
    """Settings of a retriever for queries or documents; its graphs by their identities in the cache."""

    encoder: list[Any]
    pooler: list[Any]
    tokenizer: str  # the name of its file
    truncation_side: Literal["left", "right"]
    prefix: str
    title: str
    length: int
    end: list[int]
    padding: int


def read_cached(identity: object, form: type[Form]) -> Entry[Form] | None:
    """Return an entry of the cache for an identity and the versions of packages; see `storage.read_entry`."""
    return storage.read_entry(_CACHE, [identity, _versions()], form)


def write_cached(identity: object, value: object, write: Callable[[Path], None] | None = None) -> Entry[Any] | None:
    """Write an entry of the cache for an identity and the versions of packages; see `storage.write_entry`."""
    return storage.write_entry(_CACHE, [identity, _versions()], value, write, most=_MOST_ENTRIES)


@cache
def _versions() -> tuple[str | None, ...]:
    discover = importlib.metadata.Distribution.discover
    return tuple(next((package.version for package in discover(name=name)), None) for name in _VERSIONED)


class OpenVinoProgram:
    """A graph compiled by OpenVINO, from arrays to arrays, with a request for each thread that calls it."""

    def __init__(self, model: Any, precision: str = "fp32", *, parallel: bool = False) -> None:
        limit = os.environ.get("OMP_NUM_THREADS", "")
        torch = sys.modules.get("torch")
        threads = torch.get_num_threads() if torch else int(limit) if limit.isdecimal() else 0  # 0: OpenVINO chooses
        options = {
            "PERFORMANCE_HINT": "THROUGHPUT" if parallel else "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
        }
        # In int8, the rest of the graph is computed as OpenVINO chooses, so that an exported graph has equal outputs.
        if precision != "int8":
            options["INFERENCE_PRECISION_HINT"] = "bf16" if precision == "bf16" else "f32"
        self._compiled = import_openvino().Core().compile_model(model, "CPU", options)
        self._requests = threading.local()

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Compute the outputs for contiguous input arrays."""
        if not hasattr(self._requests, "own"):
            self._requests.own = self._compiled.create_infer_request()
        results = self._requests.own.infer(inputs, share_inputs=True)
        return [results[number] for number in range(len(results))]


def import_openvino() -> Any:
    """Import openvino with its telemetry disabled; otherwise each import sends a report."""
    # Its first conversion of an array fills C++ statics, and may let another thread run meanwhile. If that converts an
    # array too, it waits for the statics with Python's lock, which the first thread needs: a deadlock.
    with _FIRST_USE:
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        import openvino

        _ = openvino.Tensor(np.zeros(1, dtype=np.int64)).data
    return openvino


def model_input(text: Text, prefix: str, title: str) -> str | tuple[str, str]:
    """Return a text with its prefix as a model reads it: a pair of title and body, or one string; see `Transformer`."""
    heading, body, *_ = text
    if heading and title == "pair":
        return prefix + heading, body
    return prefix + (f"{heading} {body}".strip() if heading and title == "space" else body)


class CompiledRetriever:
    """A dual encoder with one vector per text, for a few texts at a time.

    Args:
        sides: Its settings by side; none if vectors need more than these.
        folder: The folder of the tokenizers.
        graphs: The files of an encoder's and a pooler's graph by side.
    """

    def __init__(
        self, sides: Mapping[Side, SideSettings], folder: Path, graphs: Mapping[Side, tuple[Path, Path]]
    ) -> None:
        self.sides, self._folder, self._graphs = sides, folder, graphs
        self._program, self._tokenizer = cache(_program), cache(Tokenizer.from_file)
        self._tokenizing = threading.Lock()

    def tokenize(self, texts: Sequence[Text], side: Side) -> list[list[int]]:
        """Tokenise texts with prefix and special tokens, as the encoder `transformer` does."""
        settings = self.sides[side]
        rows: Any = [model_input(text, settings.prefix, settings.title) for text in texts]
        with self._tokenizing:
            tokenizer = self._tokenizer(str(self._folder / settings.tokenizer))
            tokenizer.no_padding()
            tokenizer.enable_truncation(settings.length - len(settings.end), direction=settings.truncation_side)
            encodings = tokenizer.encode_batch(rows)
        if side == "query":
            count_cut(None, SimpleNamespace(encodings=encodings), rows, kind="query texts", limit=settings.length)
        return [encoding.ids + settings.end for encoding in encodings]

    def encode(self, texts: Sequence[Text], side: Side) -> np.ndarray:
        """Return the vectors (texts, dim) of texts, in float32."""
        settings, token_ids = self.sides[side], self.tokenize(texts, side)
        program = self._program(*self._graphs[side])
        order, parts = sorted(range(len(texts)), key=lambda row: len(token_ids[row])), list[np.ndarray]()
        for start in range(0, len(order), _BATCH):
            rows = [token_ids[row] for row in order[start : start + _BATCH]]
            ids = np.full((len(rows), max(1, len(rows[-1]))), settings.padding, dtype=np.int64)
            mask = np.zeros_like(ids)
            for row, tokens in enumerate(rows):
                ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
            parts += program({"input_ids": ids, "attention_mask": mask})
        vectors: np.ndarray = np.concatenate(parts)[np.argsort(order), 0]
        return vectors


def _program(encoder: Path, pooler: Path) -> OpenVinoProgram:
    """Compile the graphs of an encoder and a pooler as a single graph, from token ids to vectors."""
    openvino = import_openvino()
    layers, pooling = (openvino.Core().read_model(file) for file in (encoder, pooler))
    sources = {f"layer{number}": result.input_value(0) for number, result in enumerate(layers.get_results())}
    sources["attention_mask"] = layers.input("attention_mask")
    for port in pooling.inputs:
        for reader in port.get_target_inputs():
            reader.replace_source_output(sources[port.get_any_name()])
    return OpenVinoProgram(openvino.Model(pooling.get_results(), layers.get_parameters()))


def open_compiled(
    model: str, identity: object, backend: str, load: Callable[[], Retriever]
) -> CompiledRetriever | None:
    """Open the compiled form of a retriever, exported on first use; None if only torch encodes its texts here.

    `identity` is the fingerprint and options of the retriever; `load` loads it for the export.
    """
    backend = os.environ.get("RKIT_BACKEND", "auto") if backend == "auto" else backend
    selected = backend in ("auto", "openvino") and module_spec("openvino") is not None
    # The fingerprint of a model on a hub does not cover its weights.
    if not selected or not os.path.isdir(model) or storage.private_folder(_CACHE) is None:
        return None
    opened = _opened(identity := ["retriever", identity])
    if opened is None:
        retriever = load()
        if retriever.backend != "openvino":  # on a GPU
            return None
        _export(retriever, identity)
        opened = _opened(identity)
    return opened if opened is not None and opened.sides else None


def _opened(identity: object) -> CompiledRetriever | None:
    """Open a retriever's entry of the cache; None if it or a graph is missing."""
    form: Any = dict[Literal["query", "document"], SideSettings]
    if (entry := read_cached(identity, form)) is None:
        return None
    graphs: Any = {}
    for side, settings in entry.value.items():
        encoder, pooler = (read_cached(graph, str) for graph in (settings.encoder, settings.pooler))
        if encoder is None or pooler is None or encoder.value or pooler.value:
            return None
        graphs[side] = encoder.folder / GRAPH, pooler.folder / GRAPH
    return CompiledRetriever(entry.value, entry.folder, graphs)


def _export(retriever: Retriever, identity: object) -> None:
    """Write a retriever's entry of the cache: {} if vectors need more than its settings and graphs."""
    from retrievalkit.contracts import SIDES
    from retrievalkit.models.graphs import ExportError

    towers: Any = {side: retriever.tower(side) for side in SIDES}
    sides, tokenizers = dict[str, dict[str, Any]](), dict[str, str]()
    try:
        if all(hasattr(tower, "export") for tower in towers.values()):
            sides = {side: asdict(tower.export(retriever.pooler, side, identity)) for side, tower in towers.items()}
    except ExportError as error:
        if not error.lasting:
            return
    for settings in sides.values():
        tokenizer = settings["tokenizer"]
        settings["tokenizer"] = f"{storage.fingerprint_value(tokenizer)}.json"
        tokenizers[settings["tokenizer"]] = tokenizer

    def write(folder: Path) -> None:
        for name, tokenizer in tokenizers.items():
            (folder / name).write_text(tokenizer, encoding="utf-8")

    write_cached(identity, sides, write)
