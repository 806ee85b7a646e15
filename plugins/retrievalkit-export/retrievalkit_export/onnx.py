"""An ONNX graph of encoder and pooler for onnxruntime: token ids in, one vector (or weights) per text out.

model.onnx                    both sides; or query.onnx and document.onnx if they differ
tokenizer.json                for the package `tokenizers`
tokenization.json             by side: prefix, maximum tokens, how to join a title
model.int8.onnx               with --quantize int8
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from retrievalkit_openvino.backends import require_packages
from retrievalkit_openvino.onnx import open_session, write_onnx
from torch import Tensor, nn

from retrievalkit.contracts import SIDES, Batch, Representation, Side, Text
from retrievalkit.contracts.commands import write_json
from retrievalkit.errors import RetrievalkitError
from retrievalkit_export.card import Written
from retrievalkit_export.forms import PROBES, check_encoder, refuse, states_of

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever

_NAME = "ONNX"
_LEAST_COSINE = 0.99999
_LARGEST_FILE = 2_000_000_000
_EXAMPLE = """\
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("FOLDER/tokenizer.json")
tokenizer.enable_truncation(DOCUMENT_LENGTH)  # QUERY_LENGTH for queries
tokenizer.enable_padding(pad_id=PADDING)
tokens = tokenizer.encode_batch(["PREFIXa passage"])
inputs = {
    "input_ids": np.array([text.ids for text in tokens]),
    "attention_mask": np.array([text.attention_mask for text in tokens]),
}
(OUTPUT,) = onnxruntime.InferenceSession("FOLDER/GRAPH").run(None, inputs)"""


def write(retriever: Retriever, folder: Path) -> Written:
    """Write the graphs, and compare onnxruntime's outputs with torch's.

    Raises:
        MissingDependencyError: onnx, onnxscript or onnxruntime is not installed.
        UnsupportedError: A text has several vectors, or has tokens that the tokenizer does not produce.
        RetrievalkitError: The graph's vectors differ from the checkpoint's.
    """
    require_packages("onnx", "an ONNX graph")
    output = _output(retriever)
    tower = check_encoder(retriever, _NAME, separate=True)
    _make_plain(retriever)
    graphs = {"model": SIDES[1:]} if _same(retriever) else {side: (side,) for side in SIDES}
    figures: dict[str, Any] = {}
    for name, sides in graphs.items():
        path = folder / f"{name}.onnx"
        _trace(retriever, sides[0], path, output)
        figures[f"least cosine with torch ({path.name})"] = _verify(retriever, sides[0], path)
    if tower.tokenizer.is_fast:
        tower.tokenizer.backend_tokenizer.no_truncation()
        tower.tokenizer.backend_tokenizer.no_padding()
    tower.tokenizer.save_pretrained(folder)
    titles = {"query": None, "document": tower.title}
    described: dict[str, Any] = {
        side: {"prefix": tower.prefixes[side], "max_length": tower.lengths[side], "title": titles[side]}
        for side in SIDES
    }
    write_json(folder / "tokenization.json", {**described, "padding_id": tower.padding_id})
    example = _EXAMPLE
    for name, value in {
        "DOCUMENT_LENGTH": str(tower.lengths["document"]),
        "QUERY_LENGTH": str(tower.lengths["query"]),
        "PADDING": str(tower.padding_id),
        "PREFIX": tower.prefixes["document"],
        "OUTPUT": output,
        "GRAPH": f"{next(reversed(graphs))}.onnx",
    }.items():
        example = example.replace(name, value)
    advice = {
        "none": "Encode passages without their titles, as in training.",
        "space": 'Encode a passage with a title as "TITLE TEXT", as in training.',
    }
    pair = "Encode a passage with a title as a pair, as in training: tokenizer.encode(PREFIX + TITLE, TEXT)."
    return Written(
        library="onnx",
        example=example,
        notes=[advice.get(tower.title, pair)],
        tags=["onnx", "feature-extraction"],
        figures=figures,
    )


@torch.no_grad()
def _output(retriever: Retriever) -> str:
    """Return the name of the graph's output: "vectors" or "weights"."""
    pooled = {side: retriever.pooler(states_of(retriever, side)[1], side) for side in SIDES}
    name = retriever.description["pooler"]["name"]
    for side, texts in pooled.items():
        if texts.vectors is not None and (texts.vectors.shape[1] > 1 or texts.vector_mask is not None):
            refuse(_NAME, f"its pooler '{name}' computes several vectors per {side}, but the graph supports one")
        if texts.vectors is not None and texts.weights is not None:
            refuse(_NAME, f"its pooler '{name}' computes weights in addition to a vector, but the graph has one output")
    if retriever.pooler.needs.mask_filled:
        refuse(_NAME, "its texts are filled with [MASK] tokens, which the target's tokenizer does not support")
    return "vectors" if pooled["query"].vectors is not None else "weights"


@torch.no_grad()
def _same(retriever: Retriever) -> bool:
    """True if one graph computes the vectors of both sides."""
    if "query" in retriever.towers:
        return False
    tower = retriever.tower("query")
    batch = tower.collate(tower.tokenize([Text("", text) for text in PROBES], "query"), "query").to(retriever.device)
    of_each = []
    for side in SIDES:
        states = tower(batch, retriever.pooler.needs.layers_of(side, tower.info))
        of_each.append(_single(retriever.pooler(states, side)))
    return torch.allclose(of_each[0], of_each[1])


def _single(pooled: Representation) -> Tensor:
    """Return the vectors (batch, dimension) or the weights (batch, vocabulary)."""
    output = pooled.weights if pooled.vectors is None else pooled.vectors[:, 0]
    assert output is not None
    return output


def _make_plain(retriever: Retriever) -> None:
    """Replace layers that choose their arithmetic at run time by torch's own; merge LoRA into the weights."""
    for module in retriever.modules():
        kind = type(module)
        if hasattr(module, "base_layer") and not module.merged:
            module.merge()  # type: ignore[operator]
        for plain in (nn.Linear, nn.LayerNorm):
            if kind is not plain and issubclass(kind, plain) and kind.__module__.startswith("retrievalkit."):
                module.__class__ = plain


class _Graph(nn.Module):
    """Encoder and pooler of one side."""

    special: Tensor

    def __init__(self, retriever: Retriever, side: Side) -> None:
        super().__init__()
        self.tower, self.pooler, self.side = retriever.tower(side), retriever.pooler, side
        special: Any = self.tower._special_ids
        self.register_buffer("special", torch.tensor(special, dtype=torch.long))
        self.layers = self.pooler.needs.layers_of(side, self.tower.info)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Compute the output (batch, dimension) from token ids and their mask, both (batch, tokens)."""
        special = (input_ids[:, :, None] == self.special).any(dim=2) & attention_mask.bool()
        states = self.tower(Batch(input_ids, attention_mask, special), self.layers)
        # A plain function instead of a `VocabularyHead`, which fuses its product and pooling in data-dependent loops.
        states.head = None if states.head is None else states.head.__call__
        return _single(self.pooler(states, self.side))


def _trace(retriever: Retriever, side: Side, path: Path, output: str) -> None:
    graph = _Graph(retriever, side).eval()
    batch, _ = states_of(retriever, side)
    size = sum(parameter.numel() * parameter.element_size() for parameter in graph.parameters())
    sizes = {0: "batch", 1: "tokens"}
    example = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    with torch.no_grad():
        try:
            write_onnx(
                graph,
                example,
                path,
                shapes=dict.fromkeys(example, sizes),
                outputs=[output],
                external_data=size > _LARGEST_FILE,
            )
        except Exception as error:  # noqa: BLE001 - the exporter raises any exception of an operation
            reason = " ".join(str(error.__cause__ or error).split())[:160]
            name = retriever.description["pooler"]["name"]
            refuse(_NAME, f"torch cannot trace its pooler '{name}' with this encoder: {reason}")


@torch.no_grad()
def _verify(retriever: Retriever, side: Side, path: Path) -> float:
    """Return the smallest cosine between the graph's vectors and torch's."""
    batch, states = states_of(retriever, side)
    expected = _single(retriever.pooler(states, side)).cpu()
    opened = open_session(path)
    # Also with a batch shape other than the traced one.
    single = Batch(batch.input_ids[1:2], batch.attention_mask[1:2], batch.special_mask[1:2])
    least = 1.0
    for vectors, wanted in ((run(opened, batch), expected), (run(opened, single), expected[1:2])):
        cosines = nn.functional.cosine_similarity(torch.from_numpy(vectors), wanted, dim=1)
        least = min(least, float(cosines.min()))
    if not least >= _LEAST_COSINE:
        msg = (
            f"the ONNX graph's vectors differ from the checkpoint's (cosine {least:.6f}): torch's exporter does not "
            f"support this encoder or pooler. Nothing was written."
        )
        raise RetrievalkitError(msg)
    return round(least, 7)


def run(opened: Any, batch: Batch) -> np.ndarray:
    """Run the graph: (batch, dimension)."""
    inputs = {"input_ids": batch.input_ids.cpu().numpy(), "attention_mask": batch.attention_mask.cpu().numpy()}
    output: np.ndarray = opened.run(None, inputs)[0]
    return output
