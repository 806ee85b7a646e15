"""Sentences of a text."""

from __future__ import annotations


def sentence_ends(text: str, language: str = "en") -> list[int]:
    """Return the end of each sentence of a text, in characters, including the space after it."""
    import sentencex

    # Piece by piece: the time is quadratic in the length of an unclosed quotation.
    ends: list[int] = []
    start, piece = 0, 1 << 14
    while start < len(text):
        sentences = sentencex.segment(language, text[start : start + piece])
        if start + piece < len(text) and len(sentences) > 1:
            sentences.pop()  # it may be incomplete
        for sentence in sentences:
            start += len(sentence)
            ends.append(start)
    return ends
