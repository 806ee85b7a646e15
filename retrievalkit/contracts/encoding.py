"""The contract of encoding texts: the texts with their context, and the compression of encoded documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from retrievalkit.contracts.models import Representation

Precision = Literal["auto", "fp32", "bf16", "fp16", "int8"]
"""A number format to compute in."""


class Text(NamedTuple):
    """A text to encode, with its context: all that an encoder may tokenise.

    Attributes:
        title: The title; "" if there is none, as for queries.
        body: The text itself.
        fields: The other fields of its record: a passage's metadata, or a query's, such as its task. Values are texts,
            numbers, booleans and lists of texts (`data.fields`).
    """

    title: str
    body: str
    fields: Mapping[str, Any] = {}

    def __hash__(self) -> int:
        # Fields may hold lists.
        return hash(self[:2])


def model_input(text: Text, prefix: str, title: str) -> str | tuple[str, str]:
    """Return a text with its prefix as a model reads it: title and body as a "pair", or one string."""
    heading, body, *_ = text
    if heading and title == "pair":
        return prefix + heading, body
    return prefix + (f"{heading} {body}".strip() if heading and title == "space" else body)


class Compressor(ABC):
    """Base class of compressors, which merge, cluster, prune or round the vectors or weights of documents.

    `rkit encode --compressor "NAME(option=value)"` applies it to documents; queries are unchanged, so it must keep
    the dimension of the vectors and the vocabulary. Vectors folders and indexes record its name and options.
    """

    @abstractmethod
    def compress(self, documents: Representation) -> Representation:
        """Return the compressed representation of a batch; the result for a document does not depend on the others.

        Args:
            documents: The documents as they would be indexed: float32, on the CPU. Must not be changed.

        Returns:
            The same documents in the same order, each with at least one vector if it had vectors; with a `vector_mask`
            if their numbers of vectors differ.
        """
