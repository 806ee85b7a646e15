"""The contract of a model's components and their training objectives, and the data types between them."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from retrievalkit.contracts.encoding import Precision, Text
from retrievalkit.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from retrievalkit.contracts.backends import Backend
    from retrievalkit.data.tokenized_text import Document, Vocabulary

Side = Literal["query", "document"]
SIDES: tuple[Side, Side] = ("query", "document")
Fields = TypeVar("Fields", "Batch", "Representation")
_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class EncoderInfo:
    """The shape of an encoder: hidden size, number of layers above the embeddings, vocabulary size."""

    width: int
    layers: int
    vocabulary_size: int


@dataclass(frozen=True)
class Progress:
    """The position in training: optimiser steps done, epochs done (0.0 at the start), total steps."""

    step: int
    epoch: float
    total_steps: int


@dataclass(frozen=True)
class ExtraTokens:
    """Tokens that a pooler prepends to a text, such as MVR's viewers.

    Attributes:
        count: Number of tokens.
        source: "new" embeddings, vocabulary rows "unused" in pre-training, or "named" tokens.
        standard_deviation: Standard deviation of new embeddings, which are normally distributed.
        replace_first: True to replace the [CLS]-like token.
        position: Position number of all of them; None numbers them as ordinary tokens.
        names: For the source "named": `count` entries of the vocabulary.
    """

    count: int
    source: Literal["new", "unused", "named"] = "new"
    standard_deviation: float = 0.02
    replace_first: bool = True
    position: int | None = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Needs:
    """A pooler's requirements of an encoder, which computes nothing else.

    Attributes:
        layers: Layer numbers (0 = embeddings, L = last, negative = counted from the last, -1), for both sides or
            by side ("query", "document").
        vocabulary_head: True if it needs `TokenStates.head`.
        extra_tokens: Tokens to prepend to the texts, by side.
        mask_filled: Sides whose texts are padded with [MASK]-like tokens to the maximum length. No token attends to
            these (attention_mask 0), but they have states: ColBERT's query augmentation.
        fill_attended: True if tokens attend to these (attention_mask 1).
    """

    layers: Sequence[int] | Mapping[str, Sequence[int]] = (-1,)
    vocabulary_head: bool = False
    extra_tokens: Mapping[str, ExtraTokens] = field(default_factory=dict)
    mask_filled: Sequence[Side] = ()
    fill_attended: bool = False

    def layers_of(self, side: Side, info: EncoderInfo) -> tuple[int, ...]:
        """Return the absolute layer numbers for a side, ascending.

        Raises:
            UnsupportedError: The encoder lacks a layer.
        """
        layers = self.layers[side] if isinstance(self.layers, Mapping) else self.layers
        return tuple(sorted({absolute_layer(layer, info) for layer in layers}))


def absolute_layer(layer: int, info: EncoderInfo) -> int:
    """Return a layer number counted from the embeddings (0); -1 is the last layer.

    Raises:
        UnsupportedError: The encoder lacks the layer.
    """
    absolute = layer if layer >= 0 else info.layers + 1 + layer
    if not 0 <= absolute <= info.layers:
        msg = (
            f"layer {layer} does not exist: this encoder has the layers 0 (embeddings) to {info.layers}, or, counted "
            f"from the last, -1 to -{info.layers + 1}. Choose one of these."
        )
        raise UnsupportedError(msg)
    return absolute


def absolute_layers(layers: Sequence[int], info: EncoderInfo, *, keep: str = "all") -> tuple[int, ...]:
    """Return layer numbers counted from the embeddings (0), the highest first.

    With `keep` = "last", only the last layer's vector is indexed, so the last layer must be among them.

    Raises:
        OptionError: No layer is named, or a layer is named twice.
        UnsupportedError: The encoder lacks a layer, or `keep` is "last" and the last layer is missing.
    """
    absolute = tuple(sorted((absolute_layer(layer, info) for layer in layers), reverse=True))
    listed = ",".join(map(str, layers))
    if not absolute or len(set(absolute)) < len(absolute):
        problem = "names one layer twice" if absolute else "names no layer"
        msg = f"layers={listed} {problem} (the encoder's last is {info.layers}, or -1). Name each once."
        raise OptionError(msg)
    if keep == "last" and absolute[0] != info.layers:
        msg = (
            f"keep=last needs the last layer ({info.layers}), which layers={listed} leaves out. "
            f"Add it: layers={listed},-1"
        )
        raise UnsupportedError(msg)
    return absolute


def refuse_idle(options: Mapping[str, Any], effects: Mapping[str, tuple[bool, str]]) -> None:
    """Refuse an option that differs from its default and has no effect with the component's other options.

    Args:
        options: The local variables at the start of the component's constructor: `locals()`.
        effects: Option -> (True if it has an effect, the options that determine this, separated by spaces).

    Raises:
        OptionError: An option has no effect; names it and the responsible options.
    """
    defaults = type(options["self"]).__init__.__kwdefaults__

    def shown(name: str) -> str:
        value = options[name]
        listed = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        return f"{name}={listed.lower() if isinstance(value, bool) else listed}"

    for name, (has_effect, deciding) in effects.items():
        if not has_effect and options[name] != defaults[name]:
            msg = f"{shown(name)} has no effect with {', '.join(map(shown, deciding.split()))}. Leave it out."
            raise OptionError(msg)


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a tensor to a device; a copy to a GPU does not wait for the GPU's computations."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    # From memory that is not pinned, the driver copies when the device is idle.
    if tensor.device.type == "cpu" and torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def masked_mean(vectors: Tensor, mask: Tensor) -> Tensor:
    """Return the mean (batch, width) of the vectors (batch, m, width) whose mask (batch, m) is not 0, or zeros.

    Sums in float32 or better, since bf16 would lose the small addends of a long text.
    """
    included = mask.bool()
    dtype = torch.promote_types(vectors.dtype, torch.float32)
    # Filled, not multiplied: states at padding may be infinite.
    total = vectors.masked_fill(~included[:, :, None], 0.0).sum(dim=1, dtype=dtype)
    return total / included.sum(dim=1, keepdim=True).clamp(min=1)


@dataclass
class Batch:
    """A batch of tokenised texts of one side.

    Attributes:
        input_ids: (batch, tokens) long.
        attention_mask: (batch, tokens) long, 1 = a real token.
        special_mask: (batch, tokens) bool, True at [CLS]/[SEP]-like tokens.
        extra: (batch, n) long, positions of the extra tokens, or None.
        position_ids: (batch, tokens) long, the position numbers of all tokens; None = the encoder's own.
        padded: False if all tokens are real; computing this on a GPU would synchronise.
        precision: The number format to compute in, for an encoder on a backend; torch's autocast has set it otherwise.
        parallel: True if other threads encode batches at the same time, each on one core.
    """

    input_ids: Tensor
    attention_mask: Tensor
    special_mask: Tensor
    extra: Tensor | None = None
    position_ids: Tensor | None = None
    padded: bool = True
    precision: Precision = "fp32"
    parallel: bool = False

    def __len__(self) -> int:
        return len(self.input_ids)

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on another device."""
        return _map_tensors(self, lambda tensor: to_device(tensor, device))

    def rows(self, rows: slice) -> Batch:
        """Return some texts of the batch."""
        return _map_tensors(self, lambda tensor: tensor[rows])


@dataclass(frozen=True)
class VocabularyHead:
    """The vocabulary (masked language model) head, in two parts: hidden states -> logits.

    The parts are separate so that `scoring.lexical` can fuse projection and pooling without storing all logits.

    Attributes:
        transform: (..., width) -> (..., inner): the layers before the projection (in BERT: dense, GELU, LayerNorm).
        weight: (vocabulary, inner), often tied to the word embeddings.
        bias: (vocabulary,), or None.
    """

    transform: Callable[[Tensor], Tensor]
    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """Compute the logits (..., vocabulary) of hidden states (..., width)."""
        return nn.functional.linear(self.transform(hidden), self.weight, self.bias)


@dataclass
class TokenStates:
    """The output of an encoder for a batch; masks, ids and extra positions come from the `Batch`.

    Attributes:
        layers: Layer number (0 = embeddings, L = last) -> hidden states (batch, tokens, width).
        head: The vocabulary head, hidden states -> logits (a `VocabularyHead` from the built-in encoder), or None
            if it was not requested.
    """

    layers: Mapping[int, Tensor]
    attention_mask: Tensor
    input_ids: Tensor
    special_mask: Tensor
    extra: Tensor | None = None
    head: Callable[[Tensor], Tensor] | None = None

    @property
    def last(self) -> Tensor:
        """The hidden states of the highest layer, (batch, tokens, width)."""
        return self.layers[max(self.layers)]

    @property
    def first(self) -> Tensor:
        """The position of each text's first real token, (batch,); above 0 if padding is on the left."""
        return self.attention_mask.long().argmax(dim=1)

    def first_states(self, layer: int) -> Tensor:
        """Return the states (batch, width) of the texts' first real tokens in a layer."""
        return self.layers[layer][torch.arange(self.first.shape[0], device=self.first.device), self.first]


class MisshapenError(ValueError):
    """A Representation whose parts are not tensors with the right number of axes."""


@dataclass
class Representation:
    """A batch of texts as dense vectors and/or weights over a vocabulary; `retrievalkit.scoring` compares two.

    Attributes:
        vectors: (batch, m, dim), m >= 1 vectors per text, or None.
        vector_mask: (batch, m) bool, True = a vector, False = padding; None = all are vectors.
        weights: (batch, vocabulary), non-negative, or None. A weight of exactly 0 is an absent term: it gets no
            gradient when gradients are cached, so a pooler must not rely on it.
        kept: Index (on the m axis) of the only vector to index, or None to index all.
        parts: Name -> column slice of the vectors, such as {"cls": slice(0, 128), "agg": slice(128, 768)}, or None.
        texts: The texts of queries, for an indexer that `reads_texts`, or None.
        extras: Name -> (batch, ...) tensor for the loss, such as a gate per text or a salience per vector (batch, m).
            Scoring ignores them, and they are not indexed. A second dimension that differs is padded with zeros.
        keys: (batch, m) long, the key of each vector, such as its token (COIL) or cluster, from -2**31 to 2**31 - 1;
            a query's vector is compared only with document vectors of its key. None = with all vectors.
    """

    vectors: Tensor | None = None
    vector_mask: Tensor | None = None
    weights: Tensor | None = None
    kept: int | None = None
    parts: Mapping[str, slice] | None = None
    texts: Sequence[str] | None = None
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    keys: Tensor | None = None

    def __post_init__(self) -> None:
        parts = ("vectors", self.vectors, "batch, m, dim", 3), ("weights", self.weights, "batch, vocabulary", 2)
        for name, tensor, axes, number in parts:
            if tensor is not None and (not isinstance(tensor, Tensor) or tensor.dim() != number):
                form = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                msg = f"the {name} of a Representation are {form}, and should be a tensor ({axes})"
                raise MisshapenError(msg)
        if self.vectors is None and self.weights is None:
            msg = "a Representation has no vectors (batch, m, dim) and no weights (batch, vocabulary)"
            raise MisshapenError(msg)

    def __len__(self) -> int:
        return len(self._any)

    @property
    def _any(self) -> Tensor:
        tensor = self.weights if self.vectors is None else self.vectors
        assert tensor is not None
        return tensor

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self._any.device

    def to(self, device: torch.device | str) -> Representation:
        """Return the representation on another device."""
        return _map_tensors(self, lambda tensor: tensor.to(device))

    def detach(self) -> Representation:
        """Return the representation without its autograd graph."""
        return _map_tensors(self, Tensor.detach)

    def float(self) -> Representation:
        """Convert half precision to float32, for sums over many scores."""
        return _map_tensors(self, lambda value: value.float() if value.dtype in _HALF else value)

    def rows(self, index: slice | Tensor) -> Representation:
        """Return the representation of some of the texts."""
        return _map_tensors(self, lambda tensor: tensor[index])

    def as_indexed(self) -> Representation:
        """Return the representation to index and search: only the `kept` vector, if it is set, and no extras."""
        if self.kept is None or self.vectors is None:
            return replace(self, extras={}) if self.extras else self
        kept = slice(self.kept, self.kept + 1)
        mask, keys = (None if tensor is None else tensor[:, kept] for tensor in (self.vector_mask, self.keys))
        return replace(self, vectors=self.vectors[:, kept], vector_mask=mask, keys=keys, kept=None, extras={})

    def cut(self, dimensions: int, *, normalize: bool) -> Representation:
        """Truncate each vector to its first `dimensions` numbers, scaled to length 1 on request.

        Weights are unchanged.

        Raises:
            UnsupportedError: There are no vectors.
            OptionError: The vectors are shorter.
        """
        if self.vectors is None:
            msg = f"dimensions is {dimensions}, and this model computes weights only, without vectors. Leave it out."
            raise UnsupportedError(msg)
        if dimensions > (width := self.vectors.shape[-1]):
            msg = f"dimensions is {dimensions}, and the vectors have {width}. Choose {width} or fewer."
            raise OptionError(msg)
        vectors = self.vectors[..., :dimensions]
        return replace(self, vectors=nn.functional.normalize(vectors, dim=-1) if normalize else vectors, parts=None)

    @classmethod
    def concatenate(cls, parts: Sequence[Representation]) -> Representation:
        """Concatenate representations of texts; texts with fewer vectors are padded and masked."""
        first = parts[0]
        if len(parts) == 1:
            return first
        weights = None if first.weights is None else torch.cat([part.weights for part in parts])  # type: ignore[misc]
        extras = {name: _stacked([part.extras[name] for part in parts]) for name in first.extras}
        if first.vectors is None:
            return cls(weights=weights, kept=first.kept, parts=first.parts, extras=extras)
        dense = [(part.vectors, part.vector_mask) for part in parts if part.vectors is not None]
        mask = None
        if len({vectors.shape[1] for vectors, _ in dense}) > 1 or any(mask is not None for _, mask in dense):
            mask = _stacked(
                [
                    torch.ones_like(vectors[:, :, 0], dtype=torch.bool) if mask is None else mask
                    for vectors, mask in dense
                ]
            )
        vectors = _stacked([vectors for vectors, _ in dense])
        keys = None if first.keys is None else _stacked([part.keys for part in parts if part.keys is not None])
        return cls(vectors, mask, weights, first.kept, first.parts, extras=extras, keys=keys)


def pad_second(tensor: Tensor, size: int) -> Tensor:
    """Pad with zeros, or cut, the second dimension of a tensor to `size`; one-dimensional tensors are unchanged."""
    if tensor.dim() == 1 or tensor.shape[1] == size:
        return tensor
    return nn.functional.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, size - tensor.shape[1]))


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors whose second dimensions may differ, padded with zeros to the largest."""
    size = max(tensor.shape[1] if tensor.dim() > 1 else 0 for tensor in tensors)
    return torch.cat([pad_second(tensor, size) for tensor in tensors])


def _map_tensors(value: Fields, function: Callable[[Tensor], Tensor]) -> Fields:
    changed: dict[str, Any] = {
        name: function(field) for name, field in vars(value).items() if isinstance(field, Tensor)
    }
    if isinstance(value, Representation) and value.extras:
        changed["extras"] = {name: function(tensor) for name, tensor in value.extras.items()}
    return replace(value, **changed)


def to_cpu(representation: Representation) -> Callable[[], Representation]:
    """Start to copy a representation to the CPU in one transfer; the returned function waits for the copy."""
    if representation.device.type == "cpu":
        return lambda: representation
    sent: list[Tensor] = []
    _map_tensors(representation, lambda tensor: sent.append(tensor) or tensor)  # type: ignore[func-returns-value]
    packed = [tensor.reshape(-1).view(torch.uint8) for tensor in sent]
    copy = torch.cat(packed).to("cpu", non_blocking=True)  # pinned
    copied = torch.Event(representation.device)
    copied.record()

    def arrived() -> Representation:
        if not copied.query():
            copied.synchronize()
        # Cloned: pinned memory is scarce, and a part should not keep the others.
        parts = (part.clone() for part in copy.split_with_sizes([len(part) for part in packed]))
        return _map_tensors(representation, lambda tensor: next(parts).view(tensor.dtype).view(tensor.shape))

    return arrived


@dataclass(frozen=True)
class LayerShape:
    """The shape of an encoder's transformer layers, for a decoder of the same shape.

    `inner` and `activation` describe the feed-forward part; `dropout` applies to its output and the attention's output.
    """

    heads: int
    inner: int
    activation: Callable[[Tensor], Tensor]
    dropout: float
    attention_dropout: float


@dataclass
class LossValue:
    """A loss: the number to minimise, and its named terms for the log.

    Attributes:
        total: A scalar.
        terms: Name -> value, for the log.
        addends: Name -> the term's weighted contribution to `total`, with its graph; {} if `total` is not a sum of
            terms. With these and the `counts` of a `Pretrainer`, a step can be computed in parts exactly.
    """

    total: Tensor
    terms: Mapping[str, Tensor] = field(default_factory=dict)
    addends: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def weighted(cls, terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> LossValue:
        """Return the weighted sum of terms; the default weight is 1."""
        addends = {name: weights.get(name, 1.0) * term for name, term in terms.items()}
        total = torch.stack(list(addends.values())).sum()
        return cls(total, {name: term.detach() for name, term in terms.items()}, addends)


class Encoder(nn.Module, ABC):
    """Base class of encoders, which turn texts into a Batch, and a Batch into TokenStates.

    Created with the name or folder of a model and keyword-only options; then `prepare` is called once with the
    pooler's needs, and may load the weights.
    """

    info: EncoderInfo

    offers: frozenset[str] = frozenset()
    """Supported optional needs: "vocabulary_head", "extra_tokens", "mask_filled"."""

    adjustable: frozenset[str] = frozenset()
    """Options that may change when training continues from a checkpoint."""

    backend: Backend | None = None
    """The backend that computes its layers; None = torch."""

    precisions: Collection[Precision] = ("fp32", "bf16", "fp16")
    """The number formats that it computes in; "int8" needs `calibrate`."""

    half_only: bool = False
    """True if the layers compute only in bf16 or fp16, as flash attention does; queries then use this format too."""

    def calibrate(self, batches: Sequence[Batch], layers: Sequence[int]) -> None:
        """Calibrate int8 on batches like those to encode; optional, by default refused (UnsupportedError)."""
        del batches, layers
        msg = f"the encoder {type(self).__name__} does not compute in int8 here. Use another --precision."
        raise UnsupportedError(msg)

    def prepare(self, needs: Needs) -> None:
        """Prepare for a pooler's needs, or raise UnsupportedError; called once, before the first use."""
        for name in ("vocabulary_head", "extra_tokens", "mask_filled"):
            if getattr(needs, name) and name not in self.offers:
                msg = (
                    f"the pooler needs {name.replace('_', ' ')}, which the encoder {type(self).__name__} does not "
                    f"offer. Choose --encoder transformer."
                )
                raise UnsupportedError(msg)
        for side in SIDES:
            needs.layers_of(side, self.info)

    def token_ids(self, tokens: Sequence[str]) -> list[int]:
        """Return the ids of tokens, such as punctuation marks, that are in the vocabulary; none by default."""
        del tokens
        return []

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return names to display for tokens of the vocabulary; their ids by default."""
        return [f"token {token}" for token in ids]

    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary for pre-training; optional for an encoder that is never pre-trained."""
        msg = f"the encoder {type(self).__name__} cannot be pre-trained: it defines no vocabulary."
        raise UnsupportedError(msg)

    def embed(self, batch: Batch) -> Tensor:
        """Return the embeddings (layer 0), (batch, tokens, width); optional."""
        del batch
        msg = f"the encoder {type(self).__name__} has no embeddings apart from its layers."
        raise UnsupportedError(msg)

    def word_embeddings(self) -> Tensor:
        """Return the word embeddings (vocabulary, width) with their graph, as wide as the states; optional."""
        msg = f"the encoder {type(self).__name__} has no word embeddings."
        raise UnsupportedError(msg)

    def layer_shape(self) -> LayerShape:
        """Return the shape of the layers; BERT's by default, with heads of 64 dimensions."""
        return LayerShape(max(1, self.info.width // 64), 4 * self.info.width, nn.functional.gelu, 0.1, 0.1)

    def file(self, name: str) -> Path | None:
        """Return a file next to the weights of the model; None if it does not exist."""
        del name
        return None

    @abstractmethod
    def tokenize(self, texts: Sequence[Text], side: Side) -> list[list[int]]:
        """Return each text's token ids, special and extra tokens included, truncated to the side's maximum length.

        Equal texts must have equal ids, since training tokenises a text once: random changes belong in `collate`. An
        encoder that formats texts, such as with an instruction by task, reads titles and fields of the `Text`s.
        """

    @abstractmethod
    def collate(self, token_ids: Sequence[Sequence[int] | np.ndarray], side: Side) -> Batch:
        """Pad tokenised texts to the longest of them."""

    @abstractmethod
    def forward(self, batch: Batch, layers: Sequence[int]) -> TokenStates:
        """Compute the hidden states of `layers` (absolute numbers), with the head if the needs include it."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write everything that `type(self)(folder, **options)` and `prepare` need to restore the encoder."""


class Pooler(nn.Module, ABC):
    """Base class of poolers, which turn TokenStates into a Representation. Created with `(info, **options)`.

    Returns the input of the loss in training mode, the representation to index in eval mode.
    """

    needs: Needs = Needs()
    """Requirements of the encoder; may be a property, and may differ between training and eval mode."""

    default_loss: str = "contrastive"
    """The default loss in training."""

    cosine: bool = False
    """True if a score is a cosine: vectors have length 1, a query has one vector, and there are no weights. The default
    temperature of losses is then 0.05."""

    def bind(self, encoder: Encoder) -> None:
        """Use the prepared encoder's vocabulary; called once, for poolers that depend on it."""

    def view_names(self, count: int) -> list[str]:
        """Return names to display for the first `count` vectors of an indexed document, such as "layer 12"."""
        return [f"vector {number}" for number in range(count)]

    @abstractmethod
    def forward(self, states: TokenStates, side: Side) -> Representation:
        """Compute the representation of a batch of texts of one side."""


class Loss(nn.Module, ABC):
    """Base class of losses, which compare the representations of a batch; they never see token states."""

    needs_teacher: bool = False
    """True if the training examples must have a teacher's scores."""

    wraps: ClassVar[bool] = False
    """True if it wraps another loss, `--loss NAME(OTHER)`, the first argument of its constructor."""

    @abstractmethod
    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> LossValue:
        """Compute the loss of a batch, a mean over its queries.

        Args:
            queries: Q texts.
            documents: D texts.
            positives: (Q,) long: the row of the document that answers each query; every other row is a negative.
            progress: The position in training.
            ignore: (Q, D) bool, True where a document is not a negative of a query (a known positive, a duplicate
                of the positive); never True at the positive itself. None = nothing is ignored.
            teacher: (Q, D) a teacher's scores, NaN for unscored pairs; None = no teacher.
        """


class Pretrainer(nn.Module, ABC):
    """Base class of objectives that train an encoder on plain text. The result is an ordinary pretrained model.

    Created with `(encoder, max_length, **options)`, after `encoder.prepare(needs)`. Other trained parts, such as a
    decoder, belong to this module and are dropped at the end. `max_length` counts special tokens.

    The program calls `samples` once per document, then in each epoch `sample` for each sample and `collate` for each
    batch. Random choices must come from the generator argument, which depends only on seed, epoch and place: resumed
    training then sees the same samples as uninterrupted training.

    A step may be computed in parts (`micro_batch_size`, several processes). They are collated in order with the same
    generator, so a `collate` that draws sample after sample masks the same tokens however a step is divided. With
    `counts` and `LossValue.addends`, the loss of the parts equals the loss of the whole step.
    """

    needs: Needs = Needs(vocabulary_head=True)
    """Requirements of the encoder. A vocabulary head missing from the weights is initialised at random."""

    wants: str = "text"
    """Requirement of a document, such as "two spans of text"; other documents are dropped and counted."""

    def __init__(self, encoder: Encoder, max_length: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.max_length = max_length
        self.vocabulary = encoder.vocabulary()

    @property
    def room(self) -> int:
        """Maximum number of tokens per text, special tokens excluded."""
        return self.max_length - self.vocabulary.special_tokens

    def samples(self, document: Document) -> int:
        """Return a document's constant number of samples per epoch; 0 drops it. By default, one per span."""
        return len(document.spans)

    def sample(self, document: Document, number: int, draw: random.Random) -> Any:
        """Draw the `number`-th sample (from 0) of a document, again in each epoch; by default that span, truncated."""
        return document.text(document.spans[number]).cut(self.room, draw)

    @abstractmethod
    def collate(self, samples: Sequence[Any], draw: random.Random) -> Mapping[str, Batch | Tensor]:
        """Collate and mask samples in order, into `Batch`es and tensors by name, on the CPU."""

    def counts(self, batch: Mapping[str, Any]) -> Mapping[str, int]:
        """Return the number of labelled tokens that each term of the loss averages over, in a batch from `collate`.

        Empty by default: the loss is then a mean over samples.
        """
        del batch
        return {}

    @abstractmethod
    def forward(self, batch: Mapping[str, Any], progress: Progress) -> LossValue:
        """Compute the mean loss of a batch, on the device of the module; its terms are logged by name."""

    def save(self, folder: Path) -> None:
        """Write the trained encoder as a Hugging Face folder."""
        self.encoder.save(folder)
