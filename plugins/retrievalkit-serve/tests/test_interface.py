"""What the service answers: the same as the programs, and for wrong input their words with a status of 4xx."""

from __future__ import annotations

import base64
import math
import subprocess
import sys

import numpy as np
import openai
import pytest

import retrievalkit as rk
from retrievalkit.errors import RetrievalkitError

pytestmark = pytest.mark.precision

QUERY = "what is the capital of Peru"


def ids(answer):
    return [hit["id"] for hit in answer["hits"]]


def test_a_search_gives_what_python_finds(client, folders):
    """Ids, scores, texts, reasons; of one index, of both, fused otherwise."""
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
        answer = client.post("/search", json={"query": QUERY, "k": 5, "texts": True} | body).json()
        expected = index.search(QUERY, k=5)
        assert ids(answer) == [hit.id for hit in expected]
        for hit, other in zip(answer["hits"], expected, strict=True):
            assert math.isclose(hit["score"], other.score, rel_tol=1e-5, abs_tol=1e-6)
            assert (hit["title"], hit["text"], hit["snippet"]) == (other.title, other.text, other.snippet)
            assert [tuple(span) for span in hit["spans"]] == list(other.matches)
            assert [one["rank"] for one in hit["found"]] == [one.rank for one in other.found]
            assert len(hit["why"]) == len(other.why)


def test_weights_belong_to_the_indexes_in_the_order_of_the_request(client):
    body = {"query": QUERY, "fusion": "linear", "normalization": "z_score"}
    one = client.post("/search", json=body | {"indexes": ["dense", "late"], "weights": [0.9, 0.1]}).json()
    other = client.post("/search", json=body | {"indexes": ["late", "dense"], "weights": [0.1, 0.9]}).json()
    third = client.post("/search", json=body | {"indexes": ["late", "dense"], "weights": [0.9, 0.1]}).json()
    assert one["hits"] == other["hits"] != third["hits"]


def test_an_address_searches_too(client):
    posted = client.post("/search", json={"query": QUERY, "k": 3, "indexes": ["late"]}).json()
    got = client.get("/search", params={"query": QUERY, "k": "3", "indexes": "late"}).json()
    assert got["hits"] == posted["hits"]


def test_explain_tells_of_documents_that_a_search_finds_and_of_others(client):
    """Rank and score are those of the search; the words come in the order of the scores."""
    found = client.post("/search", json={"query": QUERY, "k": 42}).json()["hits"]
    wanted = [found[5]["id"], found[0]["id"]]
    answer = client.post("/explain", json={"query": QUERY, "ids": wanted}).json()
    assert [(hit["id"], hit["rank"], hit["score"]) for hit in answer["hits"]] == [
        (hit["id"], hit["rank"], hit["score"]) for hit in (found[0], found[5])
    ]
    shallow = client.post("/explain", json={"query": QUERY, "ids": [found[-1]["id"]], "depth": 3}).json()["hits"][0]
    assert shallow["rank"] is None
    assert all(one["score"] is not None for one in shallow["found"])


def test_a_document_is_read_with_marks(client):
    answer = client.get("/document", params={"id": "c33", "query": "capital Peru Lima"}).json()
    assert client.get("/document", params={"id": "c33", "qurey": "Lima"}).status_code == 422
    assert answer["title"] == "Peru"
    assert [answer["text"][start:end] for start, end in answer["spans"]] == ["Lima"]


def test_embeddings_are_those_of_the_model_in_openai_s_form(client, tiny_model):
    """As numbers and as base64; texts of either side, and the count of tokens."""
    model = rk.Retriever.load(tiny_model, pooler="mean")
    name = client.get("/v1/models").json()["data"]
    body = {"input": ["Lima", "the capital of Peru"], "model": name[0]["id"]}
    answer = client.post("/v1/embeddings", json=body).json()
    assert answer["object"] == "list"
    assert answer["usage"]["prompt_tokens"] == 3 + 6
    rows = np.array([one["embedding"] for one in answer["data"]], dtype=np.float32)
    np.testing.assert_allclose(
        rows, np.asarray(model.encode_documents(body["input"], precision="fp32")), rtol=1e-4, atol=1e-6
    )
    encoded = client.post("/v1/embeddings", json=body | {"encoding_format": "base64", "input": "Lima"}).json()
    np.testing.assert_array_equal(np.frombuffer(base64.b64decode(encoded["data"][0]["embedding"]), "<f4").shape, (32,))
    queries = client.post("/v1/embeddings", json=body | {"input_type": "query"}).json()
    expected = np.asarray(model.encode_queries(body["input"], precision="fp32"))
    np.testing.assert_allclose([one["embedding"] for one in queries["data"]], expected, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def openai_client(served):
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0) as asker:
        yield asker


def test_openai_s_client_gets_embeddings(openai_client, client):
    """It asks for base64 by default."""
    model = openai_client.models.list().data[0].id
    assert openai_client.models.retrieve(model).id == model
    answer = openai_client.embeddings.create(model=model, input=["Lima", "Peru"], extra_body={"input_type": "query"})
    body = {"model": model, "input": ["Lima", "Peru"], "input_type": "query"}
    expected = client.post("/v1/embeddings", json=body).json()["data"]
    for one, other in zip(answer.data, expected, strict=True):
        np.testing.assert_allclose(one.embedding, other["embedding"], rtol=1e-6)


def test_embeddings_are_cut_to_dimensions_as_rkit_encode_cuts_them(openai_client, tiny_model):
    """Requests after it have whole vectors again."""
    model = rk.Retriever.load(tiny_model, pooler="mean")
    name = openai_client.models.list().data[0].id
    expected = np.asarray(model.encode_documents(["Lima"], precision="fp32", dimensions=8))
    for options in ({}, {"encoding_format": "float"}):
        cut = openai_client.embeddings.create(model=name, input="Lima", dimensions=8, **options)
        np.testing.assert_allclose([cut.data[0].embedding], expected, rtol=1e-4, atol=1e-6)
    assert len(openai_client.embeddings.create(model=name, input="Lima").data[0].embedding) == 32


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"input": [57668, 53901]}, "check_embedding_ctx_length"),
        ({"input": [[57668, 53901], [3]]}, "not token ids"),
        ({"input": ["a", 1]}, "must be a text or a list of texts"),
        ({"input": None}, "must be a text or a list of texts"),
        ({"input": ""}, "text 0 of input is empty"),
        ({"input": []}, "Give at least one"),
        ({"input": ["a"] * 61}, "takes 60 at once"),
        ({"dimensions": 33}, "Choose 32 or fewer"),
        ({"dimensions": 0}, "should be greater"),
        ({"dimensions": "8"}, "should be a whole number"),
        ({"encoding_format": "int8"}, "should be 'float' or 'base64'"),
        ({"extra_body": {"input_typ": "query"}}, "did you mean 'input_type'"),
        ({"model": 3}, "should be a text"),
    ],
)
def test_openai_s_client_raises_bad_request_for_a_mistake(openai_client, arguments, words):
    """As for one that OpenAI's service refuses."""
    model = openai_client.models.list().data[0].id
    with pytest.raises(openai.BadRequestError, match=words) as raised:
        openai_client.embeddings.create(**{"model": model, "input": "Lima"} | arguments)
    assert (raised.value.type, raised.value.param, raised.value.code) == ("invalid_request_error", None, None)


def test_openai_s_client_finds_no_unknown_model(openai_client):
    for ask in (
        lambda: openai_client.embeddings.create(model="gpt/4", input="Lima"),
        lambda: openai_client.models.retrieve("gpt/4"),
    ):
        with pytest.raises(openai.NotFoundError, match="unknown model 'gpt/4'"):
            ask()


def test_the_reranker_orders_texts_and_hits(client, reranker):
    """Texts that are sent, and the first hits of a search, with their places before."""
    from retrievalkit.models.cross_encoder import CrossEncoder

    model = CrossEncoder.load(reranker)
    texts = ["Lima is a city", "the peso", "people speak Spanish"]
    expected = model.score(model.tokenize([QUERY] * 3, [("", text) for text in texts]))
    answer = client.post("/rerank", json={"query": QUERY, "documents": texts, "return_documents": True}).json()
    assert [one["index"] for one in answer["results"]] == np.argsort(-expected).tolist()
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


def error_of(index, **options):
    with pytest.raises(RetrievalkitError) as raised:
        index.search(**options)
    return str(raised.value)


def test_a_mistake_has_the_words_of_the_exception(client, folders):
    """That Python raises for the same."""
    dense, late = (rk.Index.open(folders / name) for name in ("dense", "late"))
    both = [dense, late]
    cases = (
        ({"query": " "}, error_of(dense, query=" ")),
        ({"query": QUERY, "k": 0}, error_of(dense, query=QUERY, k=0)),
        ({"query": QUERY, "k": "ten"}, error_of(dense, query=QUERY, k="ten")),
        ({"query": QUERY, "k": True}, error_of(dense, query=QUERY, k=True)),
        ({"query": QUERY, "fusion": "sum", "rrf_k": 3}, _refusal(both, fusion="sum", rrf_k=3)),
        ({"query": QUERY, "fusion": "linear", "weights": [1.0]}, _refusal(both, fusion="linear", weights=[1.0])),
    )
    for body, words in cases:
        response = client.post("/search", json=body)
        assert response.status_code == 422, body
        assert response.json()["error"]["message"] == words


def _refusal(indexes, **options):
    with pytest.raises(RetrievalkitError) as raised:
        rk.Hybrid(indexes, **options)
    return str(raised.value)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/search", {}, 422, "search needs 'query', and it was not given."),
        ("/search", {"query": 5}, 422, "'query' is 5, and should be a text."),
        ("/search", {"query": QUERY, "depht": 5}, 422, "search has no option 'depht'; did you mean 'depth'?"),
        ("/search", {"query": QUERY, "depth": 0}, 422, "'depth' is 0, and should be greater than or equal to 1"),
        ("/search", {"query": QUERY, "fusion": ""}, 422, "'' is not written like NAME"),
        ("/search", {"query": QUERY, "fusion": "rff"}, 422, "unknown fusion 'rff'; did you mean 'rrf'?"),
        ("/search", {"query": QUERY, "indexes": ["dnse"]}, 422, "unknown index 'dnse'; did you mean 'dense'?"),
        ("/search", {"query": QUERY, "indexes": []}, 422, "each may be named once. Known: dense, late."),
        (
            "/search",
            {"query": QUERY, "indexes": ["late"], "fusion": "rrf"},
            422,
            "fusion combines several indexes, but there",
        ),
        ("/search", {"query": QUERY, "k": 1.5}, 422, "k is 1.5, and must be a whole number"),
        ("/search", {"query": QUERY, "k": 61}, 422, "k is 61; this service gives 60 hits at most."),
        ("/search", {"query": "x" * 201}, 422, "query has 201 characters; this service takes 200 at most."),
        ("/search", {"query": QUERY, "rerank": -1}, 422, "rerank is -1; it must be a number of hits"),
        ("/explain", {"query": QUERY, "ids": []}, 422, "ids are an empty list."),
        ("/explain", {"query": QUERY, "ids": ["nowhere"]}, 404, "unknown document id 'nowhere'."),
        ("/v1/embeddings", {"input": "a", "model": "modle"}, 404, "unknown model 'modle'"),
        ("/v1/embeddings", {"input": ["a", " "]}, 400, "text 1 of input is empty."),
        ("/rerank", {"query": QUERY, "documents": []}, 422, "documents are an empty list."),
        ("/rerank", {"query": QUERY, "documents": ["a"], "model": "x"}, 404, "unknown re-ranker 'x'"),
        ("/nowhere", {}, 404, "there is nothing at '/nowhere'."),
        ("/health", {}, 405, "'/health' does not take POST. Send GET."),
        ("/admin/reload", {}, 403, "reloading the indexes needs a token"),
    ],
)
def test_a_mistake_is_told_with_its_status(client, path, body, status, words):
    if path == "/v1/embeddings":
        body = {"model": client.get("/v1/models").json()["data"][0]["id"]} | body
    response = client.post(path, json=body)
    assert response.status_code == status
    assert words in response.json()["error"]["message"]
    assert response.json()["error"]["code"] == (None if path.startswith("/v1/") else status)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the request has no body of JSON."),
        (b"{", "the body is not JSON"),
        (b"[" * 9_000, ""),
        (b'{"query": "\\ud800"}', "half a surrogate pair"),
        (b'{"input": "\\ud800"}', "search needs 'query'"),
        (b'{"query": "a", "weights": [NaN, 1], "fusion": "linear"}', "not all finite numbers"),
        (b'{"query": "a", "k": 1e400}', "k is inf"),
        (b"\xff\xfe", ""),
    ],
)
def test_a_damaged_body_is_refused(client, content, words):
    response, openai_s = (
        client.post(path, content=content, headers={"content-type": "application/json"})
        for path in ("/search", "/v1/embeddings")
    )
    assert response.status_code in (400, 422)
    assert words in response.json()["error"]["message"]
    assert openai_s.status_code == 400


def test_a_form_of_another_site_is_no_search(client):
    """A browser sends text/plain to other sites without asking them first."""
    response = client.post("/search", content=b'{"query": "a"}', headers={"content-type": "text/plain"})
    assert response.status_code == 422


def test_the_interface_describes_itself(client):
    """For programs, and as a page that fetches nothing."""
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/search", "/explain", "/v1/embeddings", "/rerank", "/health", "/metrics", "/document"} <= paths.keys()
    page = client.get("/docs")
    assert "POST /search" in page.text
    assert "src=" not in page.text
    assert "default-src 'none'" in page.text


def test_health_and_metrics(client):
    """Requests are counted by address and status, and strangers' addresses as one."""
    client.get("/nowhere/else")
    client.post("/search", json={"query": QUERY})
    assert client.get("/health").json()["status"] == "ok"
    assert [one["name"] for one in client.get("/indexes").json()["indexes"]] == ["dense", "late"]
    text = client.get("/metrics").text
    assert 'rkit_requests_total{path="/search",status="200"}' in text
    assert 'rkit_requests_total{path="other",status="404"}' in text
    assert "nowhere" not in text
    assert 'rkit_index_texts{index="dense"} 43.0' in text
    assert 'rkit_batch_requests_count{kind="search"}' in text


def test_no_other_site_may_read_answers(client):
    """There is no CORS, whatever the origin."""
    headers = {"origin": "https://other.example", "access-control-request-method": "POST"}
    for response in (client.get("/search?query=Peru", headers=headers), client.options("/search", headers=headers)):
        assert response.status_code == 403
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_a_method_that_an_address_does_not_take_is_answered_with_those_that_it_takes(client):
    for method, path, allowed in (("OPTIONS", "/search", "GET, POST"), ("TRACE", "/admin/reload", "POST")):
        answer = client.request(method, path)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/indexes", "/docs", "/v1/models"])
def test_head_answers_as_get_without_the_body(client, path):
    """Monitors and load balancers ask so."""
    answer = client.head(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == client.get(path).headers["content-type"]


@pytest.mark.parametrize("options", [["--phases", "coverage"], pytest.param([], marks=pytest.mark.slow)])
def test_schemathesis_finds_no_answer_that_the_interface_does_not_describe(served, tmp_path, options):
    """Valid and invalid requests; options that depend on each other, which a schema cannot say, may be refused."""
    (tmp_path / "schemathesis.toml").write_text(
        '[[operations]]\ninclude-path-regex = "^/(search|explain|v1/embeddings)$"\n'
        "checks.positive_data_acceptance.enabled = false\n"
    )
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{served.address}/openapi.json",
        "--seed",
        "1",
        *options,
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
