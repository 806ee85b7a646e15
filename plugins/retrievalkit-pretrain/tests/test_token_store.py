"""A tokenised corpus on disk: documents and samples are unchanged, and an interrupted reading resumes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from retrievalkit_pretrain import token_store as tokens
from retrievalkit_pretrain.token_store import Cutter, TokenStore, read_corpus

from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.tokenized_text import Pieces, Vocabulary
from retrievalkit.errors import DataError

SENTENCES = ("One two three. ", "Four five. ", "Six seven eight nine ten. ", "Eleven. ")


def split(texts):
    """Split texts into letters; a letter after a space begins a word."""
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


@settings(max_examples=30)
@given(st.lists(st.text(max_size=40), max_size=9), st.sampled_from([1, 3, 256]))
def test_stored_documents_and_samples_equal_the_originals(tmp_path_factory, texts, group):
    passages = [*corpus_of(20), *(Passage(str(number), "", text) for number, text in enumerate(texts))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokens, "GROUP", group)
        store = read(tmp_path_factory.mktemp("any"), passages)
    documents = [store.document(number) for number in range(len(store))]
    assert list(map(parts_of, documents)) == [parts_of(one) for one in CUTTER.cut(0, passages)]
    taken = list(map(samples, documents))
    expected = [(number, place) for number, count in enumerate(taken) for place in range(count)]
    assert [store.find(sample) for sample in range(sum(taken))] == expected
    counts = {"documents": len(passages), "dropped": taken.count(0), "samples": sum(taken)}
    assert store.counts == counts | {"tokens": sum(len(one.pieces) for one in documents)}


@pytest.mark.parametrize("count", [1, 2, 5, 9])
@pytest.mark.parametrize("lost", [0, 7])
def test_a_killed_reading_resumes_after_its_last_document(tmp_path, monkeypatch, count, lost):
    """Bytes of the last group, and part of a row of its documents, may have been written."""
    monkeypatch.setattr(tokens, "GROUP", 4)
    passages = corpus_of(40)

    def stop(done, calls=[]):  # noqa: B006
        calls.append(done)
        if len(calls) == count:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(tmp_path / "killed", passages, advance=stop)
    for path in (tmp_path / "killed").iterdir():
        with path.open("ab") as stream:
            stream.write(b"x" * lost)
    advanced = []
    store = read(tmp_path / "killed", passages, advance=advanced.append)
    assert store.counts == read(tmp_path / "whole", passages).counts
    folders = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("killed", "whole")]
    assert folders[0] == folders[1]
    assert (advanced[0], sum(advanced)) == (4 * (count - 1), 40)
    assert len(read(tmp_path / "whole", iter([]))) == 40, "a complete store is not read again"


def test_the_title_is_the_first_sentence_of_a_document():
    (document,) = CUTTER.cut(0, [Passage("d", "A title", "One two. Three four five. Six.")])
    parts = ["".join(map(chr, document.text(range(one, one + 1)).ids)) for one in range(len(document.ends))]
    assert parts == ["Atitle", "Onetwo.", "Threefourfive.", "Six."]
    (document,) = Cutter(VOCABULARY, 12, titles=False).cut(0, [Passage("d", "A title", "One two.")])
    assert "".join(map(chr, document.text(range(len(document.ends))).ids)) == "Onetwo."


def test_spans_depend_on_document_number_and_seed_only():
    text = "Go. " * 60
    passages = [Passage("a", "", text), Passage("b", "", text)]
    one, two = (document.spans for document in Cutter(VOCABULARY, 12, short_spans=0.5).cut(0, passages))
    assert one != two
    (again,) = Cutter(VOCABULARY, 12, short_spans=0.5).cut(1, passages[1:])
    assert again.spans == two
    (other,) = Cutter(VOCABULARY, 12, short_spans=0.5, seed=1).cut(1, passages[1:])
    assert other.spans != two


def test_a_duplicate_id_is_refused_while_the_corpus_is_streamed(tmp_path):
    with pytest.raises(DataError, match="d0"):
        read(tmp_path / "tokens", Corpus.of([Passage("d0", "", "Go."), Passage("d0", "", "Go on.")]))
