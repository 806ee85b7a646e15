"""A training tokenises a text once, with the same result as tokenising it at each draw."""

from __future__ import annotations

import pytest

from retrievalkit.contracts import Text
from retrievalkit.models.encoders.transformer import Transformer
from retrievalkit.training import token_cache
from retrievalkit.training.token_cache import TokenCache
from trainings import bytes_of, interrupt_at

TEXTS = [
    Text("", "rome"),
    Text("rome", ""),
    Text("", "rome", {"task": "capitals"}),
    Text("", "rome", {"task": "rivers"}),
    Text("", "rome is the capital of italy"),
]


class Letters:
    """Encoder whose tokens are the letters of title, body, fields and side."""

    def __init__(self):
        self.tokenized = []

    def tokenize(self, texts, side):
        self.tokenized += texts
        return [[ord(letter) for letter in f"{side} {text!r}"] for text in texts]


@pytest.mark.parametrize(("room", "again"), [(0, 5), (1_000, 3), (1 << 20, 0)])
def test_the_ids_are_those_of_the_text_its_fields_and_its_side(monkeypatch, room, again):
    """Without room, with room for some texts, and for all of them."""
    monkeypatch.setattr(token_cache, "_BYTES", room)
    encoder = Letters()
    cache = TokenCache(encoder.tokenize)
    for side in ("query", "document", "query"):
        for texts in (TEXTS, [*TEXTS[::-1], TEXTS[0]]):
            assert [ids.tolist() for ids in cache.tokenize(texts, side)] == encoder.tokenize(texts, side)
    encoder.tokenized.clear()
    cache.tokenize(TEXTS, "query")
    assert len(encoder.tokenized) == again


def test_a_resumed_training_with_kept_tokens_has_the_weights_of_a_training_without(programs, tmp_path, monkeypatch):
    tokenized = []

    def tokenize(self, texts, side, original=Transformer.tokenize):
        tokenized.extend((side, text) for text in texts)
        return original(self, texts, side)

    monkeypatch.setattr(Transformer, "tokenize", tokenize)
    with monkeypatch.context() as patch:
        patch.setattr(token_cache, "_BYTES", 0)
        programs["train"](tmp_path / "without")
    without, distinct = len(tokenized), len(set(tokenized))
    tokenized.clear()
    programs["train"](tmp_path / "with")
    assert len(tokenized) <= distinct + 8 < without, "the dry run tokenises its four texts twice"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt_at(patch, 5)
        programs["train"](tmp_path / "resumed")
    programs["train"](tmp_path / "resumed", resume=True)
    assert bytes_of(tmp_path / "with") == bytes_of(tmp_path / "without") == bytes_of(tmp_path / "resumed")
