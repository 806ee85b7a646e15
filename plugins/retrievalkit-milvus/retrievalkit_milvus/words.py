"""The words of texts beside their vectors, for BM25 in Milvus."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.errors import InputError, OptionError, UnsupportedError
from retrievalkit_milvus.layout import MOST_BYTES


@dataclass(frozen=True)
class Words:
    """The passages that a vectors folder was encoded from, and BM25's parameters.

    Attributes:
        source: The corpus, as the user named it.
        analyzer: Milvus's analyzer, in its JSON.
        k1: How slowly a term's repetition stops adding to the score.
        b: Length normalisation, 0 to 1.
    """

    source: str
    analyzer: str
    k1: float
    b: float

    @property
    def identity(self) -> list[object]:
        """What tells one set of words from another."""
        return [open_corpus(self.source).fingerprint(), self.analyzer, self.k1, self.b]

    def of(self, ids: Iterable[str]) -> Iterator[str]:
        """Title and text of each of these ids, which are in the order of the corpus.

        Raises:
            InputError: The corpus lacks a text, or has it elsewhere.
            UnsupportedError: A passage is longer than Milvus takes.
        """
        passages = iter(self._corpus())
        for text_id in ids:
            # Both come in one order, so that neither is ever held as a whole.
            found = next((passage for passage in passages if passage.id == text_id), None)
            if found is None:
                msg = (
                    f"the corpus '{self.source}' has no text '{text_id}' where the vectors have it. Give the corpus "
                    f"that was encoded, in the same order, by the option texts."
                )
                raise InputError(msg)
            content = f"{found.title} {found.text}".strip()
            if len(content) > MOST_BYTES // 4 and (size := len(content.encode())) > MOST_BYTES:
                msg = (
                    f"the text '{text_id}' has {size:,} bytes, and Milvus takes {MOST_BYTES:,} at most. Cut it into "
                    f"passages, or index without the option texts."
                )
                raise UnsupportedError(msg)
            yield content

    def _corpus(self) -> Corpus:
        return open_corpus(self.source)


def analyzer_json(text: str) -> str:
    """An analyzer by its name, such as standard or english, or by Milvus's JSON, as JSON.

    Raises:
        OptionError: It is neither.
    """
    if not text.lstrip().startswith("{"):
        return json.dumps({"type": text})
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError as error:
        msg = f"option 'analyzer' is '{text}', and must be a name such as english, or Milvus's JSON: {error}."
        raise OptionError(msg) from error
