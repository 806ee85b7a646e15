"""A corpus on disk: every document is what it was, however it was sharded, and a killed reading goes on."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.tokenized_text import Pieces, Vocabulary
from retrievalkit.errors import DataError
from retrievalkit.training import token_store as tokens
from retrievalkit.training.token_store import Cutter, TokenStore, read_corpus

SENTENCES = ("One two three. ", "Four five. ", "Six seven eight nine ten. ", "Eleven. ")


def split(texts):
    """Each letter is a token, and a letter behind a space begins a word."""
    found = []
    for text in texts:
        places = [place for place, letter in enumerate(text) if letter.strip()]
        starts = [not place or not text[place - 1].strip() for place in places]
        found.append((Pieces([ord(text[place]) for place in places], starts), [place + 1 for place in places]))
    return found


VOCABULARY = Vocabulary(split, [1], [2], 3, range(10, 200))
CUTTER = Cutter(VOCABULARY, 12)


def corpus_of(count, seed=0):
    source = random.Random(seed)
    texts = ["".join(source.choices(SENTENCES, k=source.randrange(6))) for _ in range(count)]
    return [Passage(f"d{number}", source.choice(["", "A title"]), text) for number, text in enumerate(texts)]


def samples(document):
    return len(document.spans) if len(document.spans) > 1 else 0


def read(folder, corpus, cutter=CUTTER, **options):
    read_corpus(folder, corpus, cutter, samples, **options)
    return TokenStore(folder, cutter.max_length)


def parts_of(document):
    whole = document.pieces[0 : len(document.pieces)]
    return list(whole.ids), list(whole.starts), list(document.ends), list(document.spans), document.max_length


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("shard_tokens", [1, 50, 10_000])
def test_every_document_is_what_it_was(tmp_path, monkeypatch, shard_tokens):
    monkeypatch.setattr(tokens, "_GROUP_PASSAGES", 7)
    passages = corpus_of(40)
    store = read(tmp_path / "tokens", passages, shard_tokens=shard_tokens)
    expected = [parts_of(document) for document in CUTTER.cut(0, passages)]
    assert [parts_of(store.document(number)) for number in range(len(store))] == expected
    assert (len(list((tmp_path / "tokens").glob("tokens-*.npy"))) == 1) == (shard_tokens == 10_000)


def test_a_document_is_its_sentences_with_the_title_in_front():
    (document,) = CUTTER.cut(0, [Passage("d", "A title", "One two. Three four five. Six.")])
    parts = ["".join(map(chr, document.text(range(one, one + 1)).ids)) for one in range(len(document.ends))]
    assert parts == ["Atitle", "Onetwo.", "Threefourfive.", "Six."]
    (document,) = Cutter(VOCABULARY, 12, titles=False).cut(0, [Passage("d", "A title", "One two.")])
    assert "".join(map(chr, document.text(range(len(document.ends))).ids)) == "Onetwo."


def test_spans_differ_between_equal_documents_and_seeds_and_not_between_readings():
    text = "Go. " * 60
    passages = [Passage("a", "", text), Passage("b", "", text)]
    one, two = (document.spans for document in Cutter(VOCABULARY, 12, short_spans=0.5).cut(0, passages))
    assert one != two
    (again,) = Cutter(VOCABULARY, 12, short_spans=0.5).cut(1, passages[1:])
    assert again.spans == two
    (other,) = Cutter(VOCABULARY, 12, short_spans=0.5, seed=1).cut(1, passages[1:])
    assert other.spans != two


def test_each_sample_is_found_and_documents_without_one_are_counted(tmp_path):
    store = read(tmp_path / "tokens", corpus_of(40), shard_tokens=60)
    taken = [samples(store.document(number)) for number in range(len(store))]
    expected = [(number, place) for number, count in enumerate(taken) for place in range(count)]
    assert [store.find(sample) for sample in range(store.counts["samples"])] == expected
    lengths = [len(store.document(number).pieces) for number in range(len(store))]
    assert store.counts == {
        "documents": 40,
        "dropped": taken.count(0),
        "samples": sum(taken),
        "tokens": sum(lengths),
    }
    assert 0 < taken.count(0) < 40


@settings(max_examples=30)
@given(st.lists(st.text(max_size=40), max_size=5), st.integers(1, 60))
def test_any_text_can_be_read(tmp_path_factory, texts, shard_tokens):
    passages = [Passage(str(number), "", text) for number, text in enumerate(texts)]
    store = read(tmp_path_factory.mktemp("any"), passages, shard_tokens=shard_tokens)
    for number, text in enumerate(texts):
        document = store.document(number)
        assert "".join(map(chr, document.text(range(len(document.ends))).ids)) == "".join(text.split())


# --- killed and read again -----------------------------------------------------------------------------------------


class Killed(Exception):  # noqa: N818
    """Stands for a SIGKILL: nothing is tidied up."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a corpus that was read whole."""
    folder = tmp_path_factory.mktemp("whole") / "tokens"
    read(folder, corpus_of(40), shard_tokens=60)
    return folder


@pytest.mark.parametrize("count", range(1, 30, 4))
def test_a_killed_reading_goes_on_at_the_first_shard_that_is_not_whole(whole, tmp_path, monkeypatch, count):
    passages = corpus_of(40)
    written = []

    def save(*arguments, original=tokens._save):
        written.append(arguments)
        if len(written) == count:
            raise Killed
        original(*arguments)

    monkeypatch.setattr(tokens, "_save", save)
    with pytest.raises(Killed):
        read(tmp_path / "killed", passages, shard_tokens=60)
    monkeypatch.undo()
    advanced = []
    store = read(tmp_path / "killed", passages, shard_tokens=60, advance=advanced.append)
    assert store.counts == TokenStore(whole, CUTTER.max_length).counts
    assert bytes_of(tmp_path / "killed") == bytes_of(whole)
    assert sum(advanced) == 40
    assert (advanced[0] > 0) == (count > 4), "what is on the disk is not read again"


def test_what_is_whole_is_not_read_again(tmp_path):
    read(tmp_path / "tokens", corpus_of(5))
    assert len(read(tmp_path / "tokens", iter([]))) == 5


def test_a_duplicate_id_is_found_though_the_corpus_is_read_as_a_stream(tmp_path):
    with pytest.raises(DataError, match="d0"):
        read(tmp_path / "tokens", Corpus.of([Passage("d0", "", "Go."), Passage("d0", "", "Go on.")]))
