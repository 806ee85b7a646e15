"""Documents in any Unicode form are found, filtered and opened by queries, values and ids in any other form."""

from __future__ import annotations

import json
import unicodedata

import pytest
from document_folders import rkit, write

import retrievalkit as rk
from retrievalkit.data.corpus import open_corpus

TEXTS = {
    "r\u00e9sum\u00e9.md": "---\ncat\u00e9gorie: \u00e9t\u00e9\n---\nR\u00e9servation de la salle \u00e0 Orl\u00e9ans",
    "\uff54\uff4f\uff4b\uff59\uff4f.txt": "\uff34\uff4f\uff57\uff45\uff52 \uff12\uff10\uff12\uff14 \uff76\uff9e\uff72",
    "letters.txt": "A \ufb01ne co\u00adoperation \ufee3\ufeae\ufea3\ufe92\ufe8e and\u00a0more",
    "table.csv": "id,text,city\n\u00e91,fl\u00e8che arrow,New\u00a0York\n2,bow,Paris\n",
}
FOUND = {
    "Orl\u00e9ans": "r\u00e9sum\u00e9.md",
    "Tower": "tokyo.txt",
    "2024": "tokyo.txt",
    "\u30ac\u30a4": "tokyo.txt",
    "fine": "letters.txt",
    "cooperation": "letters.txt",
    "\u0645\u0631\u062d\u0628\u0627": "letters.txt",
    "fl\u00e8che": "table.csv/\u00e91",
}
OTHER_FORMS = [
    lambda text: unicodedata.normalize("NFD", text),
    lambda text: text.replace("fi", "\ufb01").replace("oo", "o\u00ado"),
    lambda text: "".join(
        chr(ord(letter) + 0xFEE0) if letter.isalnum() and letter.isascii() else letter for letter in text
    ),
]


@pytest.fixture(scope="module")
def synced(tmp_path_factory, tiny_model):
    """The documents in decomposed letters, as on macOS, and the collection."""
    folder = tmp_path_factory.mktemp("forms")
    for name, text in TEXTS.items():
        path = folder / "docs" / unicodedata.normalize("NFD", name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(unicodedata.normalize("NFD", text))
    rk.sync(folder / "docs", folder / "index", model=str(tiny_model))
    return folder


def test_words_are_found_however_they_are_typed(synced):
    """By BM25, vectors and both."""
    parts = [rk.Index.open(place) for place in rk.Collection(synced / "index").indexes]
    for index in (*parts, rk.Hybrid(parts)):
        for query, document in FOUND.items():
            hits = index.search(query, 3)
            assert index.name == "dense" or hits[0].id == document
            assert all(index.search(typed(query), 3) == rk.Hits(typed(query), hits) for typed in OTHER_FORMS)


@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        ("cat\u00e9gorie = \u00e9t\u00e9", ["r\u00e9sum\u00e9.md"]),
        ("city = 'New York'", ["table.csv/\u00e91"]),
        ("id in ('tokyo.txt', 'table.csv/\u00e91')", ["table.csv/\u00e91", "tokyo.txt"]),
        ("id = 'letters.txt#1' or document = r\u00e9sum\u00e9.md", ["letters.txt", "r\u00e9sum\u00e9.md"]),
        (
            "id != tokyo.txt and not document in (letters.txt, r\u00e9sum\u00e9.md)",
            ["table.csv/2", "table.csv/\u00e91"],
        ),
    ],
)
def test_filters_pass_values_and_ids_however_they_are_typed(synced, filter, ids):
    decomposed = unicodedata.normalize("NFD", filter).replace("New York", "New\u00a0York")
    for typed in (filter, decomposed):
        found = rkit("search", synced / "index", "--query", "a", "--filter", typed, "--json")
        assert sorted(hit["id"] for hit in json.loads(found)["hits"]) == ids


def test_documents_are_opened_and_deleted_by_their_names(synced, tmp_path, tiny_model):
    """The id is in plain form, the file has the name that it has."""
    hybrid = rk.Hybrid(synced / "index")
    for name in ("r\u00e9sum\u00e9.md", unicodedata.normalize("NFD", "r\u00e9sum\u00e9.md")):
        document = hybrid.document(name)
        assert (document.id, document.text[:4]) == ("r\u00e9sum\u00e9.md", "R\u00e9se")
        assert document.file.read_text()
    converted = tmp_path / "corpus.jsonl"
    rkit("convert", synced / "docs", converted, "--passages", "3")
    rkit("encode", tiny_model, converted, "--pooler", "mean", "--output", tmp_path / "vectors")
    rkit("index", tmp_path / "vectors", "--output", tmp_path / "index")
    rkit("index", tmp_path / "index", "--delete", unicodedata.normalize("NFD", "r\u00e9sum\u00e9.md"))
    left = {passage.id.partition("#")[0] for passage in open_corpus(rk.Index.open(tmp_path / "index").texts_address)}
    assert {name for name in left if name.endswith((".md", ".txt"))} == {"tokyo.txt", "letters.txt"}


def test_files_whose_names_differ_only_in_their_form_are_listed(tmp_path, tiny_model):
    """As rows of a table whose ids do."""
    write(tmp_path / "docs" / "caf\u00e9.txt", "one")
    write(tmp_path / "docs" / "cafe\u0301.txt", "two")
    (tmp_path / "docs" / "t.csv").write_text("id,text\n\u00e9,one\ne\u0301,two\n")
    (report,) = json.loads(rkit("sync", tmp_path / "docs", tmp_path / "i", "--model", tiny_model, "--json"))
    assert sorted(name for names in report["skipped"].values() for name in names) == ["caf\u00e9.txt", "t.csv"]
