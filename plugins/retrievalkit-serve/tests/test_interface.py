"""The service returns the results of the Python API, and answers mistakes with its messages and a 4xx status."""

from __future__ import annotations

import base64
import json
import math
import subprocess
import sys

import numpy as np
import openai
import pytest
from retrievalkit_serve.collection import corpus_name
from services import service

import retrievalkit as rk
from retrievalkit.errors import RetrievalkitError
from retrievalkit.storage import write_manifest

pytestmark = pytest.mark.precision

QUERY = "what is the capital of Peru"


def ids(answer):
    return [hit["id"] for hit in answer["hits"]]


def test_a_search_returns_the_hits_of_python(client, folders):
    dense, late = (rk.Index.open(folders / name) for name in ("dense", "late"))
    cases = (
        ({"indexes": ["dense"]}, dense),
        ({"indexes": ["late"]}, late),
        ({}, rk.Hybrid([dense, late])),
        (
            {"fusion": "linear", "weights": [0.3, 0.7], "normalization": "min_max"},
            rk.Hybrid([dense, late], fusion="linear", weights=[0.3, 0.7], normalization="min_max"),
        ),
    )
    for body, index in cases:
        answer = client.post("/search", json={"query": QUERY, "k": 5, "texts": True, "explain": True} | body).json()
        expected = index.search(QUERY, k=5)
        assert ids(answer) == [hit.id for hit in expected]
        if "indexes" in body:
            by_address = client.get("/search", params={"query": QUERY, "k": "5"} | body).json()
            assert ids(by_address) == ids(answer)
        for hit, other in zip(answer["hits"], expected, strict=True):
            assert math.isclose(hit["score"], other.score, rel_tol=1e-5, abs_tol=1e-6)
            assert (hit["title"], hit["text"], hit["snippet"]) == (other.title, other.text, other.snippet)
            assert [tuple(span) for span in hit["spans"]] == list(other.matches)
            assert [part["rank"] for part in hit["found"]] == [part.rank for part in other.found]
            assert len(hit["why"]) == len(other.why)


def test_only_pdf_documents_inside_their_folder_have_a_file(tmp_path, tiny_model):
    """Ids come from a corpus, which may name any file; links may lead anywhere."""
    folder, secret = tmp_path / "docs", tmp_path / "secret.pdf"
    folder.mkdir()
    for path in (folder / "guide.pdf", secret, folder / "notes.txt"):
        path.write_bytes(b"%PDF-1.4")
    (folder / "link.pdf").symlink_to(secret)
    names = ("guide.pdf", "../secret.pdf", str(secret), "link.pdf", "notes.txt", "gone.pdf", "sub/guide.pdf")
    rows = [{"_id": name, "title": "", "text": f"text of {name}"} for name in names]
    collection = tmp_path / "collection"
    rk.Index.build(rows, tiny_model, collection / "dense", pooler="mean")
    (collection / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_manifest(collection, "collection", command="sync", options={"root": str(folder)})
    with service(collection / "dense", "--corpus", collection / "corpus.jsonl") as process, process.client() as client:
        answers = {name: client.get("/file", params={"id": name}) for name in (*names, "unknown")}
    assert {name for name, answer in answers.items() if answer.status_code == 200} == {"guide.pdf"}
    assert {answer.status_code for answer in answers.values()} == {200, 404}
    assert answers["guide.pdf"].content == b"%PDF-1.4"
    assert answers["guide.pdf"].headers["content-type"] == "application/pdf"


def test_a_filtered_search_returns_the_hits_of_python(client, folders):
    hybrid = rk.Hybrid([rk.Index.open(folders / name) for name in ("dense", "late")])
    filter = "number >= 10 and not number in (11, 12)"
    answer = client.post("/search", json={"query": QUERY, "k": 5, "filter": filter}).json()
    assert ids(answer) == [hit.id for hit in hybrid.search(QUERY, k=5, filter=filter)]
    numbers = [hit["fields"]["number"] for hit in answer["hits"]]
    assert all(number >= 10 and number not in (11, 12) for number in numbers)
    alone = client.get("/search", params={"query": QUERY, "filter": f"number = {numbers[1]}"}).json()
    assert ids(alone) == [ids(answer)[1]]
    assert answer["notes"] == []
    quoted = client.post("/search", json={"query": QUERY, "filter": "number > '10'"}).json()
    assert quoted["hits"] == []
    assert "hold no text" in quoted["notes"][0]
    wrong = client.post("/search", json={"query": QUERY, "filter": "numbr = 1"})
    assert wrong.status_code == 422
    assert "did you mean 'number'" in wrong.json()["error"]["message"]


def test_weights_follow_the_order_of_indexes_in_the_request(client):
    body = {"query": QUERY, "fusion": "linear", "normalization": "z_score"}
    first = client.post("/search", json=body | {"indexes": ["dense", "late"], "weights": [0.9, 0.1]}).json()
    other = client.post("/search", json=body | {"indexes": ["late", "dense"], "weights": [0.1, 0.9]}).json()
    third = client.post("/search", json=body | {"indexes": ["late", "dense"], "weights": [0.9, 0.1]}).json()
    assert first["hits"] == other["hits"] != third["hits"]


def test_explained_documents_have_the_rank_and_score_of_the_search(client):
    hits = client.post("/search", json={"query": QUERY, "k": 42}).json()["hits"]
    answer = client.post("/explain", json={"query": QUERY, "ids": [hits[5]["id"], hits[0]["id"]]}).json()
    assert [(hit["id"], hit["rank"], hit["score"]) for hit in answer["hits"]] == [
        (hit["id"], hit["rank"], hit["score"]) for hit in (hits[0], hits[5])
    ]
    shallow = client.post("/explain", json={"query": QUERY, "ids": [hits[-1]["id"]], "depth": 3}).json()["hits"][0]
    assert shallow["rank"] is None
    assert all(hit["score"] is not None for hit in shallow["found"])


def test_a_document_has_the_positions_of_query_words(client):
    answer = client.get("/document", params={"id": "c33", "query": "capital Peru Lima"}).json()
    assert client.get("/document", params={"id": "c33", "qurey": "Lima"}).status_code == 422
    assert answer["title"] == "Peru"
    assert [answer["text"][start:end] for start, end in answer["spans"]] == ["Lima"]


def test_passages_of_a_document_form_one_hit(tmp_path, tiny_model, reranker):
    """As in Python; re-ranked by its best passage, explained, and returned whole with the positions of its passages."""
    words = [f"word{number}" for number in range(40)] + ["the", "capital", "of", "Peru", "is", "Lima"]
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "peru.md").write_text(" ".join(words))
    (tmp_path / "notes" / "rome.md").write_text("the Tiber flows through Rome")
    rk.convert(tmp_path / "notes", tmp_path / "corpus", passages=10, stride=5)
    index = rk.Index.build(tmp_path / "corpus", tiny_model, tmp_path / "cut", pooler="colbert")
    with service(tmp_path / "cut", "--reranker", reranker, "--rerank", "0") as process, process.client() as client:
        for score in ("best", "sum"):
            body = {"query": QUERY, "document_score": score}
            hits, expected = client.post("/search", json=body).json()["hits"], index.search(QUERY, document_score=score)
            assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
            for hit, other in zip(hits, expected, strict=True):
                assert math.isclose(hit["score"], other.score, rel_tol=1e-5)
                assert [passage["id"] for passage in hit["passages"]] == [passage.id for passage in other.passages]
                assert [part["rank"] for part in hit["passages"][0]["found"]] == [other.passages[0].found[0].rank]
        passages = client.get("/search", params={"query": QUERY, "by": "passage", "k": "20"}).json()["hits"]
        assert [hit["id"] for hit in passages] == [hit.id for hit in index.search(QUERY, 20, by="passage")]
        read = client.post("/search", json={"query": QUERY, "rerank": 5}).json()["hits"]
        assert {hit["id"]: hit["retrieved"]["rank"] for hit in read} == {"peru.md": 1, "rome.md": 2}
        why = client.post("/explain", json={"query": QUERY, "ids": ["rome.md", "peru.md", "peru.md#2"]}).json()["hits"]
        ranks = {hit["id"]: hit["rank"] for hit in passages} | {"peru.md": 1, "rome.md": 2}
        assert {hit["id"]: hit["rank"] for hit in why} == {
            name: ranks[name] for name in ("rome.md", "peru.md", "peru.md#2")
        }
        assert len(why[0]["passages"]) == 9
        whole = client.get("/document", params={"id": "peru.md", "query": "Lima"}).json()
        assert whole["text"] == " ".join(words)
        assert whole["file"] == str(tmp_path / "notes" / "peru.md")
        assert [whole["text"][start:end] for start, end in whole["spans"]] == ["Lima"]
        by_id = {hit["id"]: hit["snippet"] for hit in passages}
        assert {
            passage["id"]: whole["text"][passage["start"] : passage["end"]] for passage in whole["passages"]
        }.items() <= by_id.items()
        part = client.get("/document", params={"id": "peru.md#2"}).json()
        assert (part["text"], part["file"]) == (by_id["peru.md#2"], None)


def test_texts_whose_own_ids_look_like_passages_are_hits_of_their_own(tmp_path, tiny_model):
    """Next to a document that was cut: in hits, explanations and texts, over HTTP and for agents."""
    own = ["tools#1", "tools#2", "tools#01", "peru.md#4"]
    rows = [{"id": name, "text": f"ticket {name} about the capital"} for name in own] + [
        {"id": f"peru.md#{n}", "text": f"part {n} of Peru", "cut": {"document": "peru.md", "number": n, "of": 3}}
        for n in (1, 2, 3)
    ]
    rk.Index.build(rows, tiny_model, tmp_path / "mixed", pooler="mean")
    with service(tmp_path / "mixed") as process, process.client() as client:
        body = {"query": QUERY, "by": "document"}
        hits = client.post("/search", json=body).json()["hits"]
        assert {hit["id"]: len(hit.get("passages", [])) for hit in hits} == {**dict.fromkeys(own, 0), "peru.md": 3}
        why = client.post("/explain", json={"query": QUERY, "ids": ["tools#1", "peru.md"]}).json()["hits"]
        ranks = {hit["id"]: rank for rank, hit in enumerate(hits, 1)}
        assert all(hit["rank"] == ranks[hit["id"]] for hit in why)
        assert {passage["id"] for hit in why for passage in hit.get("passages", [])} == {
            f"peru.md#{n}" for n in (1, 2, 3)
        }
        assert client.get("/document", params={"id": "tools#2"}).json()["text"] == "ticket tools#2 about the capital"
        assert [client.get("/document", params={"id": name}).status_code for name in ("tools", "peru.md")] == [404, 200]
        call = {"name": "search", "arguments": body}
        answer = client.post(
            "/mcp",
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
            headers={"Accept": "application/json, text/event-stream"},
        ).json()
        assert [hit["id"] for hit in answer["result"]["structuredContent"]["hits"]] == [hit["id"] for hit in hits]


def test_openais_client_gets_the_embeddings_of_the_model(served, client, tiny_model):
    """As base64, its default, and as numbers; of queries and documents, complete and truncated."""
    model, texts = rk.Retriever.load(tiny_model, pooler="mean"), ["Lima", "the capital of Peru"]
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0) as openai_client:
        name = openai_client.models.list().data[0].id
        assert openai_client.models.retrieve(name).id == name
        for options in ({}, {"dimensions": 8}, {"encoding_format": "float"}, {"extra_body": {"input_type": "query"}}):
            answer = openai_client.embeddings.create(model=name, input=texts, **options)
            assert (answer.object, answer.usage.prompt_tokens) == ("list", 3 + 6)
            encode = model.encode_queries if "extra_body" in options else model.encode_documents
            expected = np.asarray(encode(texts, precision="fp32", dimensions=options.get("dimensions")))
            np.testing.assert_allclose([row.embedding for row in answer.data], expected, rtol=1e-4, atol=1e-6)
        with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length") as raised:
            openai_client.embeddings.create(model=name, input=[57668, 53901])
        assert (raised.value.type, raised.value.param, raised.value.code) == ("invalid_request_error", None, None)
        with pytest.raises(openai.NotFoundError, match="unknown model"):
            openai_client.models.retrieve("gpt/4")
    body = client.post("/v1/embeddings", json={"model": name, "input": "Lima", "encoding_format": "base64"}).json()
    assert len(base64.b64decode(body["data"][0]["embedding"])) == 32 * 4


def test_the_reranker_orders_texts_and_hits(client, reranker):
    """Texts of a request, and the first hits of a search, with their ranks before re-ranking."""
    from retrievalkit.models.cross_encoder import CrossEncoder

    model = CrossEncoder.load(reranker)
    texts = ["Lima is a city", "the peso", "people speak Spanish"]
    expected = model.score(model.tokenize([QUERY] * 3, [("", text) for text in texts]))
    answer = client.post("/rerank", json={"query": QUERY, "documents": texts, "return_documents": True}).json()
    assert [result["index"] for result in answer["results"]] == np.argsort(-expected).tolist()
    assert answer["results"][0]["document"]["text"] == texts[int(expected.argmax())]
    best = client.post("/rerank", json={"query": QUERY, "documents": texts, "top_n": 1}).json()
    assert len(best["results"]) == 1
    plain = client.post("/search", json={"query": QUERY, "k": 10}).json()
    read = client.post("/search", json={"query": QUERY, "k": 10, "rerank": 5}).json()
    assert sorted(ids(read)[:5]) == sorted(ids(plain)[:5])
    assert ids(read)[5:] == ids(plain)[5:]
    scores = [hit["score"] for hit in read["hits"][:5]]
    assert scores == sorted(scores, reverse=True)
    assert [plain["hits"][hit["retrieved"]["rank"] - 1]["id"] for hit in read["hits"]] == ids(read)
    alone = client.post("/search", json={"query": QUERY, "k": 5, "rerank": 5, "indexes": ["dense"]}).json()["hits"]
    assert [hit["found"][0]["rank"] for hit in alone] == [hit["retrieved"]["rank"] for hit in alone] != [1, 2, 3, 4, 5]
    assert [hit["found"][0]["score"] for hit in alone] == [hit["retrieved"]["score"] for hit in alone]


def test_a_mistake_has_the_message_that_python_raises(client, folders):
    indexes = [rk.Index.open(folders / name) for name in ("dense", "late")]
    for body in (
        {"query": " "},
        {"query": QUERY, "k": 0},
        {"query": QUERY, "k": True},
        {"query": QUERY, "fusion": "sum", "rrf_k": 3},
        {"query": QUERY, "fusion": "linear", "weights": [1.0]},
    ):
        fusion = {name: value for name, value in body.items() if name not in ("query", "k")}
        with pytest.raises(RetrievalkitError) as raised:
            rk.Hybrid(indexes, **fusion).search(body["query"], k=body.get("k", 10))
        response = client.post("/search", json=body)
        assert response.status_code == 422
        assert response.json()["error"]["message"] == str(raised.value)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/search", {}, 422, "needs 'query'"),
        ("/search", {"query": 5}, 422, "should be a text"),
        ("/search", {"query": QUERY, "depht": 5}, 422, "did you mean 'depth'?"),
        ("/search", {"query": QUERY, "depth": 0}, 422, "'depth' is 0"),
        ("/search", {"query": QUERY, "fusion": "rff"}, 422, "did you mean 'rrf'?"),
        ("/search", {"query": QUERY, "indexes": ["dnse"]}, 422, "did you mean 'dense'?"),
        ("/search", {"query": QUERY, "indexes": []}, 422, "Known: dense, late."),
        ("/search", {"query": QUERY, "indexes": ["late"], "fusion": "rrf"}, 422, "several indexes"),
        ("/search", {"query": QUERY, "k": 61}, 422, "at most 60 hits"),
        ("/search", {"query": "x" * 201}, 422, "accepts 200"),
        ("/search", {"query": QUERY, "rerank": -1}, 422, "rerank is -1"),
        ("/explain", {"query": QUERY, "ids": []}, 422, "ids is an empty list"),
        ("/explain", {"query": QUERY, "ids": ["nowhere"]}, 404, "'nowhere'"),
        ("/v1/embeddings", {"input": "a", "model": "modle"}, 404, "'modle'"),
        ("/v1/embeddings", {"input": ["a", " "]}, 400, "text 1 of input is empty"),
        ("/v1/embeddings", {"input": ["a", 1]}, 400, "not token ids"),
        ("/v1/embeddings", {"input": ["a"] * 61}, 400, "60 at a time"),
        ("/v1/embeddings", {"input": "a", "dimensions": 33}, 400, "32 or fewer"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, 400, "'float' or 'base64'"),
        ("/rerank", {"query": QUERY, "documents": []}, 422, "documents is an empty list"),
        ("/rerank", {"query": QUERY, "documents": ["a"], "model": "x"}, 404, "unknown re-ranker 'x'"),
        ("/nowhere", {}, 404, "nothing at '/nowhere'"),
        ("/health", {}, 405, "Send GET."),
        ("/admin/reload", {}, 403, "needs a token"),
    ],
)
def test_a_mistake_has_its_status_and_message(client, path, body, status, message):
    if path == "/v1/embeddings":
        body = {"model": client.get("/v1/models").json()["data"][0]["id"]} | body
    response = client.post(path, json=body)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == (None if path.startswith("/v1/") else status)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the request has no JSON body."),
        (b"{", "the body is not JSON"),
        (b"[" * 9_000, ""),
        (b'{"query": "\\ud800"}', "half a surrogate pair"),
        (b'{"input": "\\ud800"}', "search needs 'query'"),
        (b'{"query": "a", "weights": [NaN, 1], "fusion": "linear"}', "not all finite numbers"),
        (b'{"query": "a", "k": 1e400}', "k is inf"),
        (b"\xff\xfe", ""),
    ],
)
def test_a_damaged_body_is_refused(client, content, message):
    headers = {"content-type": "application/json"}
    response = client.post("/search", content=content, headers=headers)
    assert response.status_code in (400, 422)
    assert message in response.json()["error"]["message"]
    assert client.post("/v1/embeddings", content=content, headers=headers).status_code == 400


def test_the_api_has_a_reference(client):
    """For programs, and as a page that loads nothing else."""
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/search", "/explain", "/v1/embeddings", "/rerank", "/health", "/metrics", "/document"} <= paths.keys()
    page = client.get("/docs").text
    assert "POST /search" in page
    assert "src=" not in page
    assert "default-src 'none'" in page


def test_health_and_metrics(client):
    client.get("/nowhere/else")
    client.post("/search", json={"query": QUERY})
    assert client.get("/health").json()["status"] == "ok"
    assert [index["name"] for index in client.get("/indexes").json()["indexes"]] == ["dense", "late"]
    text = client.get("/metrics").text
    assert 'rkit_requests_total{path="/search",status="200"}' in text
    assert 'rkit_requests_total{path="other",status="404"}' in text
    assert "nowhere" not in text
    assert 'rkit_index_texts{index="dense"} 43.0' in text
    assert 'rkit_batch_requests_count{kind="search"}' in text


def test_indexes_describes_the_collection(client, folders):
    """By its name, the size of each index, and titles as example queries."""
    description = client.get("/indexes").json()
    assert description["collection"] == folders.name
    dense, late = description["indexes"]
    assert (dense["texts"], dense["vectors"], late["texts"]) == (43, 43, 43)
    assert late["vectors"] > 43
    rows = (folders / "corpus.jsonl").read_text().splitlines()
    titles = {json.loads(row)["title"] for row in rows}
    examples = description["examples"]
    assert len(set(examples)) == len(examples) <= 5
    assert set(examples) <= titles


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("/data/scifact/corpus.jsonl.gz", "scifact"),
        ("faq.csv", "faq"),
        ("documents:/home/me/handbook", "handbook"),
        ("pydoc:numpy,scipy", "pydoc:numpy,scipy"),
        ("corpus.jsonl", "corpus"),
    ],
)
def test_a_collection_is_named_after_its_file_or_folder(source, name):
    assert corpus_name(source) == name


def test_no_origin_is_allowed_by_cors(client):
    headers = {"origin": "https://other.example", "access-control-request-method": "POST"}
    for response in (client.get("/search?query=Peru", headers=headers), client.options("/search", headers=headers)):
        assert response.status_code == 403
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_a_refused_method_is_answered_with_the_allowed_methods(client):
    for method, path, allowed in (("OPTIONS", "/search", "GET, POST"), ("TRACE", "/admin/reload", "POST")):
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


def test_head_returns_the_headers_of_get(client):
    for path in ("/", "/metrics", "/v1/models"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"] == client.get(path).headers["content-type"]


@pytest.mark.parametrize("options", [["--phases", "coverage"], pytest.param([], marks=pytest.mark.slow)])
def test_all_answers_conform_to_the_schema(served, tmp_path, options):
    """To valid and invalid requests of Schemathesis, except that combinations of options may be refused."""
    (tmp_path / "schemathesis.toml").write_text(
        '[[operations]]\ninclude-path-regex = "^/(search|explain|v1/embeddings)$"\n'
        "checks.positive_data_acceptance.enabled = false\n"
    )
    address = f"{served.address}/openapi.json"
    command = [sys.executable, "-m", "schemathesis.cli", "run", address, "--seed", "1", *options]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
