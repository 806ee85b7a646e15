"""Cutting by tokens of a model: the document is restored, nothing is longer than the model reads, structure is kept."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from document_folders import rkit, write
from hypothesis import given, settings
from hypothesis import strategies as st
from retrievalkit_documents.cutting import Cutter, ModelInput, Outline, outline_of
from retrievalkit_documents.worker import read
from retrievalkit_testing.samples import kit_encoder, kit_models
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from written import pdf, shown

import retrievalkit as rk
from retrievalkit.contracts import Needs
from retrievalkit.data.corpus import Passage, open_corpus
from retrievalkit.data.passage_parts import joined, open_document
from retrievalkit.errors import OptionError
from retrievalkit.reporting.notices import gathered

WORDS = [
    "the",
    "capital",
    "of",
    "Peru.",
    "is",
    "Lima?\n",
    "\n\n",
    "借书证",
    "的办理方法。",
    "การศึกษา",
    "한국어",
    "🙂",
    "e\u0301",
]
LONG = ["x" * 200, "การศึกษาเป็นสิ่งสำคัญ" * 9, "借书证的办理方法" * 20, "-" * 90]
TEXTS = st.lists(st.sampled_from([*WORDS, *LONG]), max_size=60).flatmap(
    lambda words: st.sampled_from(["", " ", "\n"]).map(lambda gap: gap.join(words))
)


def trained(model, trainer, pre_tokenizer):
    """A tokenizer trained on the words."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([" ".join(WORDS[:6])] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", unk_token="<unk>")


@pytest.fixture(scope="module")
def inputs():
    """The input of models that read 40 tokens, with titles, by the kind of their tokenizers."""
    special, letters = ["<unk>", "<pad>"], pre_tokenizers.ByteLevel.alphabet()
    bytes_ = trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=letters, show_progress=False)
    pieces = trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token="<unk>", show_progress=False)
    kinds = {
        "words": None,
        "bytes": trained(models.BPE(), bytes_, pre_tokenizers.ByteLevel()),
        "pieces": trained(models.Unigram(), pieces, pre_tokenizers.Metaspace()),
    }
    known = {}
    for number, (kind, tokenizer) in enumerate(kinds.items()):
        prefix = f"passage {number}: "
        encoder = kit_encoder(kit_models()["bert"], Needs(), document_length=40, title="space", document_prefix=prefix)
        encoder.tokenizer = tokenizer or encoder.tokenizer
        known[kind] = encoder, ModelInput(encoder)
    return known


@settings(max_examples=60)
@given(data=st.data(), text=TEXTS, size=st.integers(8, 60), kind=st.sampled_from(["words", "bytes", "pieces"]))
def test_passages_restore_their_document_and_are_read_whole(inputs, data, text, size, kind):
    """For any text, size and structure: no token is lost, and no passage has more tokens than the size."""
    places = st.lists(st.integers(0, len(text)), max_size=6).map(sorted)
    sections = [(start, "a heading", None) for start in data.draw(places)]
    marks = data.draw(places)
    blocks = [(a, c, min(b, c)) for a, b, c in zip(marks[::3], marks[1::3], marks[2::3], strict=False) if a < c]
    encoder, model = inputs[kind]
    cut = Cutter(size, data.draw(st.integers(0, size)), model)
    passages = cut(Passage("d", data.draw(st.sampled_from(["", "of Peru"])), text, outline=Outline(sections, blocks)))
    assert joined(passages)[0] == text
    assert cut.lost == 0
    with gathered() as noted:
        encoder.tokenize([passage.content for passage in passages], "document")
    assert not noted.cut
    counts = encoder.tokenizer([passage.text for passage in passages], add_special_tokens=False)["input_ids"]
    assert max(map(len, counts)) <= size


def cut_file(path, content, size, model, overlap=0):
    """Read a document and cut it."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    document = read(str(path), path.suffix)
    passages = Cutter(size, overlap, model)(Passage("d", document.title, document.text, outline=outline_of(document)))
    assert joined(passages)[0] == document.text
    return passages


def test_sections_pages_tables_and_code(inputs, tmp_path):
    """Passages start at headings and pages, tables repeat their header, and code is whole where it fits."""
    _, model = inputs["words"]
    rows = "".join(f"| of {number} | is {number} |\n" for number in range(10, 22))
    code = "for x in y:\n\n    use(x)\n"
    source = (
        f"# Guide\n\n## Install\n\nin use. {'of ' * 12}\n\n```\n{code}```\n\n## Use\n\n| which | do |\n|-|-|\n{rows}"
    )
    passages = cut_file(tmp_path / "guide.md", source, 24, model)
    headings = [passage.cut.heading for passage in passages]
    assert headings == sorted(headings)
    assert {*headings} == {"Guide > Install", "Guide > Use"}
    assert any("for x in y:\n\n    use(x)" in passage.text for passage in passages)
    table = [passage for passage in passages if "|" in passage.text]
    assert len(table) > 2
    assert all(passage.text.startswith(("Use\nwhich | do\n", "which | do\nof ")) for passage in table)
    assert sum(passage.text.count("\nof ") for passage in table) == 12
    pages = cut_file(tmp_path / "a.pdf", pdf([shown("Lima is"), shown("of Peru"), shown("in use")]), 24, model)
    assert [(passage.cut.page, passage.text) for passage in pages] == [(1, "Lima is"), (2, "of Peru"), (3, "in use")]


def test_passages_share_whole_sentences_within_a_section(inputs, tmp_path):
    sentences = [f"{word} is the capital of it." for word in ("Peru", "Lima", "Rome", "Chad", "Oslo", "Cuba")]
    passages = cut_file(
        tmp_path / "a.md", f"# of\n\n{' '.join(sentences)}\n\n# in\n\nThe end.", 24, inputs["bytes"][1], 24
    )
    of_first = [passage.text for passage in passages[:-1]]
    assert len(of_first) > 2
    for before, after in pairwise(of_first):
        assert any(before.endswith(shared) and after.startswith(shared) for shared in sentences)
    assert passages[-1].text == "in\nThe end."


def test_a_sync_cuts_no_token_and_its_hits_have_their_place(tmp_path, tiny_model):
    """Chinese is several passages; the settings are kept; a lone file of converted passages restores documents."""
    chinese = "借书证的办理方法和有效期限。" * 60
    write(
        tmp_path / "docs" / "a.md", f"# Rules\n\n## Cards\n\n{chinese}\n\n## Fees\n\nWhich currency is in use in Peru?"
    )
    write(tmp_path / "docs" / "b.txt", "x" * 3000)
    words = ("sync", tmp_path / "docs", tmp_path / "index", "--model", tiny_model, "--json")
    report = json.loads(rkit(*words))[0]
    assert (report["read"], report["tokens_cut"]) == (2, 0)
    options = read_options(tmp_path / "index")
    assert (options["by"], bool(options["tokenizer"])) == ("tokens", True)
    assert json.loads(rkit(*words))[0]["read"] == 0
    assert ", 0 tokens cut" in rkit(*words[:-1])
    hit = json.loads(rkit("search", tmp_path / "index" / "dense", "--query", "currency in Peru", "--json"))["hits"][0]
    best = next(passage for passage in hit["passages"] if "Peru" in passage["snippet"])
    assert best["heading"] == "Rules > Fees"
    assert "Rules > " in rkit("search", tmp_path / "index" / "dense", "--query", "currency in Peru")
    document = rk.Index.open(tmp_path / "index" / "dense").document("a.md")
    assert document.text == read(str(tmp_path / "docs" / "a.md"), ".md").text
    assert document.cuts["a.md#1"].heading == "Rules > Cards"
    for more in (("--model", tiny_model), ("--passages", 50)):
        rkit("convert", tmp_path / "docs", tmp_path / "corpus.jsonl", *more)
        assert open_document(open_corpus(tmp_path / "corpus.jsonl"), "a.md").text == document.text
    with pytest.raises(OptionError, match=r"passages is 9,999 tokens, but the model reads 1\d\d"):
        rk.convert(tmp_path / "docs", tmp_path / "c.jsonl", model=tiny_model, passages=9999)
    with pytest.raises(OptionError, match="model cuts by its tokens"):
        rk.convert(tmp_path / "docs", tmp_path / "c.jsonl", model=tiny_model, by="words", passages=9)


def read_options(collection):
    return json.loads((collection / "manifest.json").read_text())["options"]
