"""Texts with instructions, for models such as E5 and BGE: a format for each side, filled from the text's record.

After Wang et al. 2024, "Improving Text Embeddings with Large Language Models" (arXiv:2401.00368): a query is encoded as

    Instruct: {instruction}
    Query: {text}

where the instruction describes the query's task, so that a model can serve many tasks; documents have no instruction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retrievalkit import registry
from retrievalkit.contracts import Side, Text

Transformer: Any = registry.get("encoder", "transformer")
_FIELD = re.compile(r"\{(\w+)\}( ?)")


class Instruct(Transformer):
    """An encoder of formatted texts (E5, BGE, instruction-tuned embeddings): instructions by query, document fields.

    A format contains `{title}`, `{text}` and the names of any fields of the record, such as `{instruction}` of a query
    or `{source}` of a passage; `\\n` is a line break. A field that a record lacks is empty. Empty texts have no format.

    Args:
        query_format: Format of queries; E5's and BGE's first models have "query: {text}".
        document_format: Format of documents.
        instruction: Instruction for queries whose records have none.
        query_length: Maximum tokens per query, with its instruction and special tokens; None = 64, or the model's limit
            if lower.
        document_length: Maximum tokens per document; None = 256, or the model's limit if lower.
        end_token: Append the tokenizer's end token to every text, for the pooler `last` with decoder-only models.
    """

    adjustable = frozenset({
        "query_format", "document_format", "instruction", "query_length", "document_length", "end_token",
    })  # fmt: skip

    def __init__(
        self,
        model: str | Path,
        *,
        query_format: str = r"Instruct: {instruction}\nQuery: {text}",
        document_format: str = "passage: {title} {text}",
        instruction: str = "Given a query, retrieve passages that answer it",
        query_length: int | None = None,
        document_length: int | None = None,
        end_token: bool = False,
    ) -> None:
        super().__init__(model, query_length=query_length, document_length=document_length, end_token=end_token)
        formats = {"query": query_format, "document": document_format}
        self.formats = {side: template.replace(r"\n", "\n") for side, template in formats.items()}
        self.instruction = instruction

    def tokenize(self, texts: Sequence[Text], side: Side) -> list[list[int]]:
        """Tokenise the formatted texts, truncated to the side's maximum length."""
        ids: list[list[int]] = super().tokenize([Text("", self.formatted(text, side)) for text in texts], side)
        return ids

    def formatted(self, text: Text, side: Side) -> str:
        """Return the text in the format of its side; an empty text stays empty."""
        if not text.title and not text.body:
            return ""
        values = {"instruction": self.instruction, **text.fields, "title": text.title, "text": text.body}

        def value(field: re.Match[str]) -> str:
            filled = str(values.get(field[1], ""))
            return filled + field[2] if filled else ""

        return _FIELD.sub(value, self.formats[side])
