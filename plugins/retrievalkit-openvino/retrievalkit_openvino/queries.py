"""Queries without torch, whose import takes longer than a search: retrievers that OpenVINO computes alone.

Torch exports the graphs of an encoder's layers and of a pooler on first use. They are entries of the cache, as is what
else a retriever needs: its tokenizer, prefixes and lengths.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tokenizers import Tokenizer

from retrievalkit.contracts import ExportError, Function
from retrievalkit.contracts.backends import fingerprint_value, model_input, private_folder
from retrievalkit.data.truncation import count_cut
from retrievalkit_openvino.runtime import CACHE, GRAPH, OpenVinoProgram, import_openvino, read_cached, write_cached

if TYPE_CHECKING:
    from torch import Tensor

    from retrievalkit.contracts import Side, Text
    from retrievalkit.contracts.commands import Retriever

SIDES: tuple[Side, Side] = ("query", "document")

_BATCH = 32  # texts


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


def open_compiled(model: str, identity: object, load: Callable[[], Retriever]) -> CompiledRetriever | None:
    """Open the compiled form of a retriever, exported on first use; see `Backend.open_queries`."""
    # The fingerprint of a model on a hub does not cover its weights.
    if not os.path.isdir(model) or private_folder(CACHE) is None:
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
    sides, tokenizers = dict[str, dict[str, Any]](), dict[str, str]()
    try:
        sides = {side: asdict(_export_side(retriever, side, identity)) for side in SIDES}
    except ExportError as error:
        if not getattr(error, "lasting", True):
            return
    for settings in sides.values():
        tokenizer = settings["tokenizer"]
        settings["tokenizer"] = f"{fingerprint_value(tokenizer)}.json"
        tokenizers[settings["tokenizer"]] = tokenizer

    def write(folder: Path) -> None:
        for name, tokenizer in tokenizers.items():
            (folder / name).write_text(tokenizer, encoding="utf-8")

    write_cached(identity, sides, write)


def _export_side(retriever: Retriever, side: Side, identity: object) -> SideSettings:
    """Export the graphs of a side, and return its settings, with the whole tokenizer.

    Raises:
        ExportError: The texts of the side need more than tokens, hidden states and one vector.
    """
    import torch

    from retrievalkit.contracts import TokenStates
    from retrievalkit_openvino.graphs import OpenVinoGraph

    tower: Any = retriever.tower(side)
    pooler: Any = retriever.pooler
    encoder = None
    if hasattr(tower, "program") and not pooler.needs.extra_tokens and not pooler.needs.mask_filled:
        layers = pooler.needs.layers_of(side, tower.info)
        encoder = tower.program(layers)
    if encoder is None or encoder.identity is None or not tower.tokenizer.is_fast:
        msg = "the pooler needs other tokens than those of a text, or the tokenizer is slow"
        raise ExportError(msg)
    names = {layer: f"layer{number}" for number, layer in enumerate(layers)}

    def pooled(inputs: Mapping[str, Tensor], side: Side = side) -> list[Tensor]:
        # A pooler that reads the tokens themselves raises an exception.
        tokens: Any = None
        states = {layer: inputs[name] for layer, name in names.items()}
        made = pooler(TokenStates(states, inputs["attention_mask"], tokens, tokens), side).float()
        values = {name for name, value in vars(made).items() if value is not None}
        if made.vectors.shape[1] != 1 or values - {"vectors", "kept", "parts", "extras"}:
            msg = "the pooler returns other values than a vector per text"
            raise ValueError(msg)
        return [made.vectors]

    def examples(texts: int, tokens: int) -> dict[str, Tensor]:
        states = torch.arange(texts * tokens * tower.info.width).sin().view(texts, tokens, -1)
        example = {"attention_mask": encoder.examples(texts, tokens)["attention_mask"]}
        return example | {name: states + layer for layer, name in names.items()}

    shared: str = side
    with suppress(Exception):  # the export reports it
        # A graph that both sides share is compiled once.
        shared = "both" if torch.equal(*(pooled(examples(2, 9), each)[0] for each in SIDES)) else side
    graph = OpenVinoGraph(Function(lambda: pooler, pooled, examples, identity=[identity, shared]))
    for each in (encoder, graph):
        each.file()
    return SideSettings(
        encoder=encoder.identity,
        pooler=graph.identity or [],
        tokenizer=tower.tokenizer.backend_tokenizer.to_str(),
        truncation_side=tower.tokenizer.truncation_side,
        prefix=tower.prefixes[side],
        title=tower.title,
        length=tower.lengths[side],
        end=tower.end,
        padding=tower.padding_id,
    )
