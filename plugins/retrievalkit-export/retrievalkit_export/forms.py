"""Equivalents of a retriever's computation in other libraries; refuses retrievers without an equivalent.

A plugin's pooler may be equivalent to a plain pooler when encoding, as `self_contrastive` is. Poolers are therefore
recognised by their vectors for some texts, not by their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch
from torch import Tensor, nn

from retrievalkit.contracts import SIDES, Batch, Representation, Side, Text, TokenStates
from retrievalkit.contracts.commands import create, open_retriever
from retrievalkit.errors import LengthError, UnsupportedError

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever

POOLINGS = ("cls", "mean", "max", "last")
PROBES = ("what is the capital of peru", "rome", "a text, which is longer than the others, about numbers 1, 2 and 3.")
"""Texts of several lengths for comparing computations."""

_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Layer:
    """A linear layer on top of the pooled states: weight (out, in), bias (out) or None, and an activation function."""

    weight: Tensor
    bias: Tensor | None
    activation: str = "identity"

    @classmethod
    def of(cls, linear: nn.Linear, activation: str = "identity") -> Layer:
        """Convert a torch layer."""
        return cls(linear.weight.detach(), None if linear.bias is None else linear.bias.detach(), activation)


@dataclass(frozen=True)
class SingleVector:
    """One vector per text: concatenated poolings of the last layer, linear layers, and optional L2 normalisation."""

    poolings: tuple[str, ...]
    layers: tuple[Layer, ...]
    normalize: bool


def opened(
    source: str, *, for_tracing: bool = False, length: int | None, backend: Literal["openvino"] | None = None
) -> Retriever:
    """Load a checkpoint or a pretrained model on the CPU, in eval mode.

    Args:
        source: Name or folder.
        for_tracing: Use attention without fused operations, which can be traced.
        length: Maximum number of tokens per text on both sides; None = the model's lengths.
        backend: The library that computes the encoder's layers; None = torch.

    Raises:
        LengthError: The model does not support that length.
    """
    options: dict[str, Any] = {"attention": "eager"} if for_tracing else {}
    options |= dict.fromkeys(("query_length", "document_length"), length) if length else {}
    try:
        return open_retriever(source, encoder_options=options, backend=backend).to("cpu")
    except LengthError as error:
        raise error.of_option("length") from error


def refuse(target: str, problem: str) -> NoReturn:
    """Refuse the export, naming the part of the checkpoint that the target does not support.

    Raises:
        UnsupportedError: Always.
    """
    msg = f"the checkpoint cannot be exported to {target}: {problem}."
    raise UnsupportedError(msg)


def check_encoder(retriever: Retriever, target: str, *, separate: bool = False, markers: bool = False) -> Any:
    """Return the encoder of documents if it is a plain Hugging Face model with its tokenizer, and refuse it otherwise.

    Args:
        retriever: The retriever.
        target: The target, for the message.
        separate: True if the target has an encoder for each side.
        markers: True if the target prepends tokens to texts.

    Raises:
        UnsupportedError: The encoder is of another kind, or its token handling cannot be expressed in the target.
    """
    name = retriever.description["encoder"]["name"]
    if name != "transformer":
        refuse(target, f"its encoder '{name}' is not a plain Hugging Face model")
    if "query" in retriever.towers and not separate:
        refuse(target, "it has separate encoders for queries and documents, but the target has a single encoder")
    for side in SIDES:
        tower: Any = retriever.tower(side)
        if tower.end:
            refuse(target, "its encoder appends an end token (end_token), but the target's tokenizer does not")
        if tower.extra.ids[side] and not markers:
            count = len(tower.extra.ids[side])
            refuse(target, f"it prepends {count} extra tokens to every {side}, but the target's tokenizer does not")
    return retriever.tower("document")


def states_of(retriever: Retriever, side: Side, texts: Sequence[str] = PROBES) -> tuple[Batch, TokenStates]:
    """Tokenise texts and compute the encoder's states; return the batch and the states."""
    tower = retriever.tower(side)
    batch = tower.collate(tower.tokenize([Text("", text) for text in texts], side), side).to(retriever.device)
    return batch, tower(batch, retriever.pooler.needs.layers_of(side, tower.info))


@torch.no_grad()
def single_vector(retriever: Retriever, target: str) -> SingleVector:
    """Return the `SingleVector` that computes the same vectors as a retriever.

    Raises:
        UnsupportedError: A text has several vectors or has weights, or the target does not support the pooling.
    """
    forms_of_sides: list[SingleVector] = []
    for side in SIDES:
        _, states = states_of(retriever, side)
        pooled = retriever.pooler(states, side)
        _check_single(retriever, pooled, side, target)
        last = retriever.tower(side).info.layers
        wanted = pooled.vectors[:, 0]
        forms = _candidates(retriever) if last in states.layers else ()
        candidates = [form for form in forms if _equal(_pooled(form, retriever, states, side), wanted)]
        if not candidates:
            name = retriever.description["pooler"]["name"]
            others = ", ".join(str(layer) for layer in states.layers if layer != last)
            if others:
                refuse(
                    target, f"its pooler '{name}' pools the layers {others} of a {side}, but the target pools the last"
                )
            refuse(target, f"no module of the target computes the vector of a {side} like its pooler '{name}'")
        forms_of_sides.append(candidates[0])
    first, second = forms_of_sides
    if (first.poolings, first.normalize) != (second.poolings, second.normalize):
        refuse(target, "queries and documents are pooled in different ways")
    return first


def _check_single(retriever: Retriever, pooled: Representation, side: Side, target: str) -> None:
    name = retriever.description["pooler"]["name"]
    if pooled.weights is not None:
        with_vectors = " in addition to vectors" if pooled.vectors is not None else ""
        refuse(target, f"its pooler '{name}' computes weights over the vocabulary{with_vectors}")
    assert pooled.vectors is not None
    if pooled.vectors.shape[1] > 1 or pooled.vector_mask is not None:
        refuse(target, f"its pooler '{name}' computes several vectors per {side}, but the target supports one")


def _candidates(retriever: Retriever) -> Iterator[SingleVector]:
    """Yield candidates for the equivalent of a pooler, with its linear layer and without."""
    pooler: Any = retriever.pooler
    if retriever.description["pooler"]["name"] == "projected":
        options = retriever.description["pooler"]["options"]
        functions = options.get("activations") or ["identity"] * len(pooler.layers)
        layers = tuple(Layer.of(linear, name) for linear, name in zip(pooler.layers, functions, strict=True))
        yield SingleVector(tuple(pooler.pooling), layers, pooler.normalize)
        return
    linear = [module for module in pooler.modules() if isinstance(module, nn.Linear)]
    projections = [(), (Layer.of(linear[0]),)] if len(linear) == 1 else [()]
    for name, layers, normalize in product(POOLINGS, projections, (False, True)):
        yield SingleVector((name,), layers, normalize)


def _pooled(form: SingleVector, retriever: Retriever, states: TokenStates, side: Side) -> Tensor:
    """Compute the vectors (batch, dimension) of a candidate."""
    info = retriever.tower(side).info
    options = {"pooling": form.poolings, "normalize": False}
    pooled: Tensor = create("pooler", "projected", info, **options)(states, side).vectors[:, 0]
    for layer in form.layers:
        if layer.weight.shape[1] != pooled.shape[1]:
            return pooled
        pooled = ACTIVATIONS[layer.activation]()(nn.functional.linear(pooled, layer.weight, layer.bias))
    return nn.functional.normalize(pooled, dim=-1) if form.normalize else pooled


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "identity": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
}


def _equal(tensor: Tensor, other: Tensor) -> bool:
    return tensor.shape == other.shape and torch.allclose(tensor, other, rtol=_TOLERANCE, atol=_TOLERANCE)


def write_encoder(retriever: Retriever, side: Side, folder: Path) -> None:
    """Write the encoder of a side as a Hugging Face folder, with LoRA adapters merged into its weights."""
    tower: Any = retriever.tower(side)
    folder.mkdir(parents=True, exist_ok=True)
    for module in tower.model.modules():
        if hasattr(module, "base_layer") and not module.merged:
            module.merge()
    tower.save(folder)
    # Merged into the weights already.
    (folder / "adapters.safetensors").unlink(missing_ok=True)


def title_note(title: str, library: str) -> str:
    """Return instructions for passages with a title, by the encoder's option `title`."""
    if title == "space":
        return f'{library} encodes a passage as a single text: pass "TITLE TEXT", as in training.'
    if title == "none":
        return f"{library} encodes a passage as a single text: pass it without its title, as in training."
    return (
        f'{library} encodes a passage as a single text, but rkit encodes title and text as a pair: pass "TITLE TEXT". '
        f"Vectors of passages with a title differ a little from rkit's; those of texts without a title are equal."
    )
