"""A service puts queries, filters and ids into the form of the texts."""

from __future__ import annotations

import unicodedata

import pytest
from services import service

import retrievalkit as rk


@pytest.fixture(scope="module")
def client(tmp_path_factory, tiny_model):
    """A service of an index whose passages record the plain form."""
    place = tmp_path_factory.mktemp("form") / "index"
    texts = {"caf\u00e9.md": "Le caf\u00e9 est ouvert", "b.md": "Tokyo"}
    rows = [
        {"_id": f"{name}#1", "title": text, "text": text, "text_form": "nfc-plain", "year": year}
        | {"cut": {"document": name, "number": 1, "of": 1}}
        for (name, text), year in zip(texts.items(), ("2019", 2020), strict=True)
    ]
    rk.Index.build(rows, tiny_model, place, pooler="mean")
    with service(place) as process, process.client() as client:
        yield client


def test_requests_are_answered_in_the_form_of_the_texts(client):
    name, query = (unicodedata.normalize("NFD", text) for text in ("caf\u00e9.md", "caf\u00e9"))
    document = client.get("/document", params={"id": name, "query": query}).json()
    assert (document["id"], document["spans"]) == ("caf\u00e9.md", [[3, 7]])
    (hit,) = client.post("/search", json={"query": query, "filter": f"id = '{name}'"}).json()["hits"]
    assert (hit["id"], hit["matches"]) == ("caf\u00e9.md", ["caf\u00e9"])
    hits = client.post("/explain", json={"query": query, "ids": [name]}).json()["hits"]
    assert [hit["id"] for hit in hits] == ["caf\u00e9.md"]
    vectors = client.post("/v1/embeddings", json={"input": [query, "caf\u00e9"]}).json()["data"]
    assert vectors[0]["embedding"] == vectors[1]["embedding"]


def test_titles_ids_and_mixed_fields_are_filtered(client):
    assert client.get("/indexes").json()["facets"] == {"year": [["2019", 1], [2020, 1]]}
    for filter in ("title = Tokyo", "document = b.md", "id in (b.md, c.md)", "id = 'b.md#1'", "year > 2019"):
        hits = client.get("/search", params={"query": "x", "filter": filter}).json()["hits"]
        assert [hit["id"] for hit in hits] == ["b.md"], filter
