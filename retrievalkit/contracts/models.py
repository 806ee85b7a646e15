"""The contract of the components that a model is made of and trained by, and the data types between them."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from retrievalkit.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from retrievalkit.data.spans import Document
    from retrievalkit.data.tokenized_text import Vocabulary

Side = Literal["query", "document"]
SIDES: tuple[Side, Side] = ("query", "document")
Fields = TypeVar("Fields", "Batch", "Representation")
Text = tuple[str, str]
"""A text to encode: its title ("" if it has none, as for queries) and its body."""


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
    """Tokens that a pooler needs in front of a text, such as MVR's viewers.

    Attributes:
        count: Number of tokens.
        source: "new" embeddings, rows of the vocabulary that pre-training left "unused", or "named" ones.
        standard_deviation: Of the normal distribution that new embeddings are drawn from.
        replace_first: Whether they replace the [CLS]-like token.
        position: Position number of all of them; None numbers them as ordinary tokens.
        names: With the source "named", the tokens: `count` entries of the vocabulary.
    """

    count: int
    source: Literal["new", "unused", "named"] = "new"
    standard_deviation: float = 0.02
    replace_first: bool = True
    position: int | None = 0
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Needs:
    """What a pooler needs of an encoder, so that the encoder computes only that.

    Attributes:
        layers: Layer numbers, 0 = embeddings, L = last, negative = counted from the last (-1); for both sides, or
            by side ("query", "document").
        vocabulary_head: Whether `TokenStates.head` is needed.
        extra_tokens: Tokens to put in front of the texts, by side.
        mask_filled: Sides whose texts are filled up with [MASK]-like tokens to their maximum length. No token attends
            to these (attention_mask 0), but they have states: ColBERT's query augmentation.
        fill_attended: Whether tokens do attend to these (attention_mask 1).
    """

    layers: Sequence[int] | Mapping[str, Sequence[int]] = (-1,)
    vocabulary_head: bool = False
    extra_tokens: Mapping[str, ExtraTokens] = field(default_factory=dict)
    mask_filled: Sequence[Side] = ()
    fill_attended: bool = False

    def layers_of(self, side: Side, info: EncoderInfo) -> tuple[int, ...]:
        """The absolute layer numbers for one side, ascending.

        Raises:
            UnsupportedError: The encoder has no such layer.
        """
        layers = self.layers[side] if isinstance(self.layers, Mapping) else self.layers
        return tuple(sorted({absolute_layer(layer, info) for layer in layers}))


def absolute_layer(layer: int, info: EncoderInfo) -> int:
    """A layer number counted from the embeddings (0); -1 is the last layer.

    Raises:
        UnsupportedError: The encoder has no such layer.
    """
    absolute = layer if layer >= 0 else info.layers + 1 + layer
    if not 0 <= absolute <= info.layers:
        msg = (
            f"layer {layer} was asked for, and this encoder has the layers 0 (embeddings) to {info.layers} "
            f"(or -1 for the last to -{info.layers + 1}). Choose among these."
        )
        raise UnsupportedError(msg)
    return absolute


def absolute_layers(layers: Sequence[int], info: EncoderInfo, *, keep: str = "all") -> tuple[int, ...]:
    """Several layer numbers counted from the embeddings (0), each once, the highest first.

    With `keep` = "last" the last layer's vector alone is indexed, so it must be among them.

    Raises:
        OptionError: No layer is named, or one is named twice.
        UnsupportedError: The encoder lacks a layer, or the last one is left out and `keep` is "last".
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
    """Refuse an option of a component that differs from its default and has no effect with the others.

    Args:
        options: The local variables at the start of the component's constructor: `locals()`.
        effects: Option -> whether it has an effect, and the options that decide that, separated by spaces.

    Raises:
        OptionError: Names the option, and those that leave it without effect.
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


def masked_mean(vectors: Tensor, mask: Tensor) -> Tensor:
    """The mean (batch, width) of the vectors (batch, m, width) whose mask (batch, m) is not 0; zeros if none is.

    Summed in float32 at least, since bf16 would lose the small addends of a long text.
    """
    taken = mask.bool()
    dtype = torch.promote_types(vectors.dtype, torch.float32)
    # Filled, not multiplied: states at padding may be infinite.
    total = vectors.masked_fill(~taken[:, :, None], 0.0).sum(dim=1, dtype=dtype)
    return total / taken.sum(dim=1, keepdim=True).clamp(min=1)


@dataclass
class Batch:
    """A batch of tokenised texts of one side.

    Attributes:
        input_ids: (batch, tokens) long.
        attention_mask: (batch, tokens) long, 1 = a real token.
        special_mask: (batch, tokens) bool, True at [CLS]/[SEP]-like tokens.
        extra: (batch, n) long, positions of the extra tokens, or None.
    """

    input_ids: Tensor
    attention_mask: Tensor
    special_mask: Tensor
    extra: Tensor | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return _map_tensors(self, lambda tensor: tensor.to(device, non_blocking=True))


@dataclass(frozen=True)
class VocabularyHead:
    """The vocabulary (masked language model) head: hidden states -> logits, in its two parts.

    Kept apart, so that `scoring.lexical` can fuse the projection with its pooling, and never holds all logits.

    Attributes:
        transform: (..., width) -> (..., inner): the layers before the projection (in BERT: dense, GELU, LayerNorm).
        weight: (vocabulary, inner), often tied to the word embeddings.
        bias: (vocabulary,), or None.
    """

    transform: Callable[[Tensor], Tensor]
    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """The logits (..., vocabulary) of hidden states (..., width)."""
        return nn.functional.linear(self.transform(hidden), self.weight, self.bias)


@dataclass
class TokenStates:
    """The output of an encoder for a batch; the masks, ids and extra positions are those of the `Batch`.

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
        """(batch, tokens, width): the hidden states of the highest layer."""
        return self.layers[max(self.layers)]

    @property
    def first(self) -> Tensor:
        """(batch,) the position of each text's first real token: above 0 if padding is on the left."""
        return self.attention_mask.long().argmax(dim=1)

    def first_states(self, layer: int) -> Tensor:
        """(batch, width): the states of the texts' first real tokens in a layer."""
        return self.layers[layer][torch.arange(self.first.shape[0], device=self.first.device), self.first]


@dataclass
class Representation:
    """A batch of texts as dense vectors and/or weights over a vocabulary; `retrievalkit.scoring` compares two.

    Attributes:
        vectors: (batch, m, dim), m >= 1 vectors a text, or None.
        vector_mask: (batch, m) bool, True = a vector, False = padding; None = all are vectors.
        weights: (batch, vocabulary), non-negative, or None. A weight of exactly 0 is an absent term: it gets no
            gradient when gradients are cached, so a pooler may not rely on one.
        kept: Index (on the m axis) of the vector that the pooler keeps when indexing, or None if it keeps all.
        parts: Name -> column slice of the vectors, such as {"cls": slice(0, 128), "agg": slice(128, 768)}, or None.
        texts: The queries themselves, for an indexer that `reads_texts`, or None.
    """

    vectors: Tensor | None = None
    vector_mask: Tensor | None = None
    weights: Tensor | None = None
    kept: int | None = None
    parts: Mapping[str, slice] | None = None
    texts: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if (self.vectors is None and self.weights is None) or (self.vectors is not None and self.vectors.dim() != 3):
            shape = None if self.vectors is None else tuple(self.vectors.shape)
            msg = f"a Representation needs vectors (batch, m, dim), or weights, or both; vectors are {shape}"
            raise ValueError(msg)

    def __len__(self) -> int:
        return len(self._any)

    @property
    def _any(self) -> Tensor:
        tensor = self.weights if self.vectors is None else self.vectors
        assert tensor is not None
        return tensor

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self._any.device

    def to(self, device: torch.device | str) -> Representation:
        """The same representation on another device."""
        return _map_tensors(self, lambda tensor: tensor.to(device))

    def detach(self) -> Representation:
        """The same values without their graph."""
        return _map_tensors(self, Tensor.detach)

    def float(self) -> Representation:
        """Half precision widened to float32, as sums over many scores want; float64 stays as it is."""
        return _map_tensors(self, lambda one: one.float() if one.dtype in (torch.bfloat16, torch.float16) else one)

    def rows(self, index: slice | Tensor) -> Representation:
        """The representation of some of the texts."""
        return _map_tensors(self, lambda tensor: tensor[index])

    def as_indexed(self) -> Representation:
        """The vectors to index, which search compares: only the kept one if the pooler keeps one."""
        if self.kept is None or self.vectors is None:
            return self
        vectors = self.vectors[:, self.kept : self.kept + 1]
        mask = None if self.vector_mask is None else self.vector_mask[:, self.kept : self.kept + 1]
        return replace(self, vectors=vectors, vector_mask=mask, kept=None)

    def cut(self, dimensions: int, *, normalize: bool) -> Representation:
        """The same texts by the first `dimensions` numbers of each vector, scaled to length 1 on request.

        Weights stay as they are.

        Raises:
            UnsupportedError: There are no vectors.
            OptionError: The vectors are shorter.
        """
        if self.vectors is None:
            msg = f"vectors are to be cut to {dimensions} numbers, and this model makes weights alone. Leave it out."
            raise UnsupportedError(msg)
        if dimensions > (width := self.vectors.shape[-1]):
            msg = f"vectors are to be cut to {dimensions} numbers, and have {width}. Choose {width} or fewer."
            raise OptionError(msg)
        vectors = self.vectors[..., :dimensions]
        return replace(self, vectors=nn.functional.normalize(vectors, dim=-1) if normalize else vectors, parts=None)

    @classmethod
    def concatenate(cls, parts: Sequence[Representation]) -> Representation:
        """One representation of all the texts; texts with fewer vectors are padded, and masked."""
        first = parts[0]
        if len(parts) == 1:
            return first
        weights = None if first.weights is None else torch.cat([part.weights for part in parts])  # type: ignore[misc]
        if first.vectors is None:
            return cls(weights=weights, kept=first.kept, parts=first.parts)
        given = [(part.vectors, part.vector_mask) for part in parts if part.vectors is not None]
        longest = max(vectors.shape[1] for vectors, _ in given)
        padded, masks = [], []
        for vectors, mask in given:
            added = longest - vectors.shape[1]
            present = torch.ones_like(vectors[:, :, 0], dtype=torch.bool) if mask is None else mask
            padded.append(nn.functional.pad(vectors, (0, 0, 0, added)))
            masks.append(nn.functional.pad(present, (0, added)))
        masked = any(mask is not None or vectors.shape[1] != longest for vectors, mask in given)
        return cls(torch.cat(padded), torch.cat(masks) if masked else None, weights, first.kept, first.parts)


def _map_tensors(value: Fields, function: Callable[[Tensor], Tensor]) -> Fields:
    tensors: dict[str, Any] = {name: function(one) for name, one in vars(value).items() if isinstance(one, Tensor)}
    return replace(value, **tensors)


@dataclass(frozen=True)
class LayerShape:
    """The shape of an encoder's transformer layers, for a decoder of the same shape.

    `inner` and `activation` are of the feed-forward part, `dropout` of its output and that of attention.
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
        addends: Name -> what the term adds to `total`, its weight included, with its graph; {} if `total` is not a sum
            of terms. A `Pretrainer` that gives these and its `counts` may have a step computed in parts, exactly.
    """

    total: Tensor
    terms: Mapping[str, Tensor] = field(default_factory=dict)
    addends: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def weighted(cls, terms: Mapping[str, Tensor], weights: Mapping[str, float]) -> LossValue:
        """The weighted sum of some terms; a term without a weight has the weight 1."""
        addends = {name: weights.get(name, 1.0) * term for name, term in terms.items()}
        total = torch.stack(list(addends.values())).sum()
        return cls(total, {name: term.detach() for name, term in terms.items()}, addends)


class Encoder(nn.Module, ABC):
    """Turns texts into a Batch and a Batch into TokenStates.

    Made with the name or folder of a model and keyword-only options; `prepare` follows once, with what the pooler
    needs, and may load the weights.
    """

    info: EncoderInfo

    offers: frozenset[str] = frozenset()
    """The optional needs it can meet: "vocabulary_head", "extra_tokens", "mask_filled"."""

    adjustable: frozenset[str] = frozenset()
    """Options that may differ from those that its weights were trained with, in a training that goes on from them."""

    backend: str = "torch"
    """The library that computes its layers."""

    parallel_batches: int = 1
    """Batches to encode at once, each in a thread of its own."""

    @classmethod
    def compiled(cls, model: str | Path, *, backend: str, **options: Any) -> Encoder:
        """An encoder for inference only, computed by `backend` ("openvino" or "onnx"); optional."""
        del backend
        return cls(model, **options)  # type: ignore[call-arg]

    def computing(self, precision: str, *, parallel: bool) -> AbstractContextManager[None]:
        """A context for encoding a batch in a precision, in one of several threads if `parallel`; optional.

        Raises:
            UnsupportedError: It does not compute in this precision.
        """
        del parallel
        if precision == "int8":
            msg = "int8 is computed by OpenVINO: install 'retrievalkit[openvino]', or use another --precision."
            raise UnsupportedError(msg)
        return nullcontext()

    def calibrate(self, batches: Sequence[Batch], layers: Sequence[int]) -> None:
        """Calibrate int8 on batches like those to encode; optional.

        Raises:
            UnsupportedError: It does not compute in int8.
        """
        del batches, layers
        self.computing("int8", parallel=False)

    def prepare(self, needs: Needs) -> None:
        """Prepare for the needs of a pooler, or raise UnsupportedError; called once, before the first use."""
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
        """The vocabulary ids of those tokens, such as punctuation marks, that the vocabulary has; none by default."""
        del tokens
        return []

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Names to display for tokens of the vocabulary; their numbers by default."""
        return [f"token {one}" for one in ids]

    def vocabulary(self) -> Vocabulary:
        """Its tokens, as pre-training needs them; optional for an encoder that is never pre-trained."""
        msg = f"the encoder {type(self).__name__} cannot be pre-trained: it defines no vocabulary."
        raise UnsupportedError(msg)

    def embed(self, batch: Batch) -> Tensor:
        """(batch, tokens, width): the embeddings alone, which are layer 0; optional."""
        del batch
        msg = f"the encoder {type(self).__name__} has no embeddings apart from its layers."
        raise UnsupportedError(msg)

    def word_embeddings(self) -> Tensor:
        """(vocabulary, width): the word embeddings, with their graph, as wide as the states; optional."""
        msg = f"the encoder {type(self).__name__} has no vectors of words."
        raise UnsupportedError(msg)

    def layer_shape(self) -> LayerShape:
        """The shape of its layers; by default as BERT's, with heads of 64 dimensions."""
        return LayerShape(max(1, self.info.width // 64), 4 * self.info.width, nn.functional.gelu, 0.1, 0.1)

    def file(self, name: str) -> Path | None:
        """A file that lies beside the weights in the model it was made from; None if there is no such file."""
        del name
        return None

    @abstractmethod
    def tokenize(self, texts: Sequence[Text], side: Side) -> list[list[int]]:
        """The token ids of each text, special and extra tokens included, cut to the side's maximum length."""

    @abstractmethod
    def collate(self, token_ids: Sequence[Sequence[int] | np.ndarray], side: Side) -> Batch:
        """Pad tokenised texts to the longest of them."""

    @abstractmethod
    def forward(self, batch: Batch, layers: Sequence[int]) -> TokenStates:
        """The hidden states of the given layers (absolute numbers), and the head if the needs include it."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write all that `type(self)(folder, **options)` and `prepare` need to restore an equal encoder."""


class Pooler(nn.Module, ABC):
    """Turns TokenStates into a Representation. Made with `(info: EncoderInfo, **options)`.

    In training mode it returns what the loss needs, in eval mode what is indexed.
    """

    needs: Needs = Needs()
    """What it needs of the encoder; may be a property, and may differ between training and eval mode."""

    default_loss: str = "contrastive"
    """The loss to train it with if none is named."""

    cosine: bool = False
    """Whether a score is a cosine: vectors have length 1, a query has one, and there are no weights. Losses of it
    default to the temperature 0.05."""

    def bind(self, encoder: Encoder) -> None:
        """Called once with the prepared encoder, for poolers that depend on its vocabulary."""

    def view_names(self, count: int) -> list[str]:
        """Names to display for the first `count` vectors of an indexed document, such as "layer 12"."""
        return [f"vector {number}" for number in range(count)]

    @abstractmethod
    def forward(self, states: TokenStates, side: Side) -> Representation:
        """The representation of a batch of texts of one side."""


class Loss(nn.Module, ABC):
    """Turns the representations of a batch into a number to minimise. It never sees token states."""

    needs_teacher: bool = False
    """Whether the training examples must have a teacher's scores."""

    wraps: ClassVar[bool] = False
    """Whether it is made of another loss, `--loss NAME(OTHER)`, which its constructor takes as its first argument."""

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
        """The loss of a batch, a mean over its queries.

        Args:
            queries: Q texts.
            documents: D texts.
            positives: (Q,) long: which row of documents answers each query; every other row is a negative.
            progress: Where training is.
            ignore: (Q, D) bool, True where a document is not a negative of a query (a known positive, a duplicate
                of the positive); never True at the positive itself. None = nothing is ignored.
            teacher: (Q, D) a teacher's scores, NaN for pairs without one; None = no teacher.
        """


class Pretrainer(nn.Module, ABC):
    """An objective that trains an encoder on plain text, and leaves an ordinary pretrained model.

    Made with `(encoder, max_length, **options)`, an encoder that `prepare(needs)` made ready. Everything else that is
    trained, such as a decoder, is a part of this module and is dropped at the end.

    The program calls `samples` once for each document, then in each epoch `sample` for each of them and `collate` for
    each batch. Random choices come from the generator that is passed, which depends on seed, epoch and place alone: so
    a resumed training sees what the uninterrupted one saw.

    A step may be computed in parts (`micro_batch_size`, several processes). They are collated in order with the same
    generator, so a `collate` that draws sample after sample masks the same tokens however a step is divided. `counts`
    and `LossValue.addends` make the loss of the parts that of the whole step. `max_length` counts special tokens.
    """

    needs: Needs = Needs(vocabulary_head=True)
    """What it needs of the encoder. A vocabulary head that the weights lack is initialised at random."""

    wants: str = "text"
    """What a document must have, such as "two spans of text": documents without it are dropped, and counted."""

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
        """The number of samples per epoch from a document, always the same; 0 drops it. By default, one per span."""
        return len(document.spans)

    def sample(self, document: Document, number: int, draw: random.Random) -> Any:
        """The `number`-th sample (from 0) of a document, drawn anew in each epoch; by default that span, cut."""
        return document.text(document.spans[number]).cut(self.room, draw)

    @abstractmethod
    def collate(self, samples: Sequence[Any], draw: random.Random) -> Mapping[str, Batch | Tensor]:
        """A batch of samples: `Batch`es and tensors by name, on the CPU. Masking is done here, sample after sample."""

    def counts(self, batch: Mapping[str, Any]) -> Mapping[str, int]:
        """The number of labelled tokens that each term of the loss is a mean of, in a batch from `collate`.

        By default none are given: the loss counts as a mean over samples.
        """
        del batch
        return {}

    @abstractmethod
    def forward(self, batch: Mapping[str, Any], progress: Progress) -> LossValue:
        """The loss of a batch, on the device of the module: a mean; its terms are logged by name."""

    def save(self, folder: Path) -> None:
        """Write the trained encoder as a Hugging Face folder."""
        self.encoder.save(folder)
