"""The service over HTTP: an address for each thing that it can do, in JSON; `/` is the page, `/docs` the reference."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response
from starlette.routing import Route

import retrievalkit as rk
from retrievalkit.contracts.commands import names, printable
from retrievalkit.errors import RetrievalkitError
from retrievalkit_serve import forms, page
from retrievalkit_serve.checks import words_for
from retrievalkit_serve.failures import ForbiddenError, Json, failure, told
from retrievalkit_serve.guards import RELOAD, Guards
from retrievalkit_serve.mcp import AgentServer
from retrievalkit_serve.metrics import MEDIA_TYPE
from retrievalkit_serve.serve import TOKEN
from retrievalkit_serve.service import Service

_FORMS: dict[str, type[BaseModel]] = {
    "/search": forms.SearchForm,
    "/explain": forms.ExplainForm,
    "/document": forms.DocumentLine,
    "/v1/embeddings": forms.EmbeddingForm,
    "/rerank": forms.RerankForm,
}
_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": forms.ErrorBody}, "5XX": {"model": forms.ErrorBody}}

routes = APIRouter(responses=_ERRORS)


def create_app(service: Service) -> FastAPI:
    """The application of a service."""
    agents = AgentServer(service)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with agents.running():
            yield
        service.close()

    app = FastAPI(
        title="retrievalkit",
        version=rk.__version__,
        description="Open indexes, searched by words, vectors or both.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(routes)
    for route in agents.routes():
        assert isinstance(route, Route)
        route.methods = {"POST"}  # GET would hold a stream open, and there is nothing to stream
        app.router.routes.append(route)
    app.add_exception_handler(RetrievalkitError, _failed)
    app.add_exception_handler(RequestValidationError, _misread)
    app.add_exception_handler(HTTPException, _refused)
    described = app.openapi()
    _bound(described, service)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=service.options.names, www_redirect=False)
    app.add_middleware(
        Guards,
        options=service.options,
        metrics=service.metrics,
        paths=frozenset({"/", "/docs", "/openapi.json", "/mcp", *described["paths"]}),
        stopping=lambda: service.stopping,
    )
    return app


def _bound(described: dict[str, Any], service: Service) -> None:
    """Add the limits of a service to the description of its interface."""
    options = service.options
    bodies = described["components"]["schemas"].items()
    for name, field in (
        item for title, body in bodies if title.endswith("Form") for item in body["properties"].items()
    ):
        if name in ("k", "rerank", "top_n"):
            field["maximum"] = options.max_k
        elif name in ("ids", "documents", "input"):
            field["maxItems"] = options.max_k
        elif name == "query":
            field["maxLength"] = options.max_query
        elif name == "depth":
            field["maximum"] = service.collection.deepest
        elif name == "fusion":
            field["enum"] = [*names("fusion"), None]


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@routes.get("/search", response_model=forms.SearchBody)
async def search_by_address(request: Request, asked: Annotated[forms.SearchLine, Query()]) -> Response:
    """Search for a text; the same in an address."""
    return Json(await _service(request).search(asked))


@routes.post("/search", response_model=forms.SearchBody)
async def search(request: Request, asked: Annotated[forms.SearchForm, Body()]) -> Response:
    """Search for a text: the best hits, with their texts and the reasons for their scores."""
    return Json(await _service(request).search(asked))


@routes.post("/explain", response_model=forms.ExplainBody)
async def explain(request: Request, asked: Annotated[forms.ExplainForm, Body()]) -> Response:
    """Why documents have their scores and ranks for a query, whether they are among the best or not."""
    return Json(await _service(request).explain(asked))


@routes.get("/document", response_model=forms.DocumentBody)
async def document(request: Request, asked: Annotated[forms.DocumentLine, Query()]) -> Response:
    """A whole document."""
    return Json(await _service(request).document(asked))


@routes.post("/v1/embeddings", response_model=forms.EmbeddingBody)
async def embeddings(request: Request, asked: Annotated[forms.EmbeddingForm, Body()]) -> Response:
    """Vectors of texts, in OpenAI's form, by a model that made one of the indexes."""
    return Json(await _service(request).embed(asked))


@routes.get("/v1/models")
async def models(request: Request) -> forms.ModelsBody:
    """The models of /v1/embeddings, in OpenAI's form."""
    return forms.ModelsBody(object="list", data=[forms.Model(id=name) for name in _service(request).collection.models])


@routes.get("/v1/models/{model:path}")
async def model(request: Request, model: str) -> forms.Model:
    """One of the models of /v1/embeddings."""
    return forms.Model(id=_service(request).model(model))


@routes.post("/rerank", response_model=forms.RerankBody)
async def rerank(request: Request, asked: Annotated[forms.RerankForm, Body()]) -> Response:
    """The order of documents by the re-ranker."""
    return Json(await _service(request).rerank(asked))


@routes.get("/indexes")
async def indexes(request: Request) -> Response:
    """What is served: indexes, models, the re-ranker, limits."""
    return Json(_service(request).about())


@routes.get("/health")
async def health(request: Request) -> Response:
    """Whether the service answers (200) or is stopping (503). Needs no token."""
    service = _service(request)
    status = "stopping" if service.stopping else "ok"
    body = {"status": status, "version": rk.__version__, "generation": service.collection.generation}
    return Json(body, status_code=503 if service.stopping else 200)


@routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    return Response(_service(request).metrics.text(), media_type=MEDIA_TYPE)


@routes.post(RELOAD)
async def reload(request: Request) -> Response:
    """Reload the indexes; the old ones answer until the new ones are open. Needs a token."""
    if _service(request).options.token is None:
        msg = f"reloading the indexes needs a token, and the service has none. Set {TOKEN}, or send SIGHUP."
        raise ForbiddenError(msg)
    return Json(await _service(request).reload())


@routes.get("/", include_in_schema=False)
async def home() -> Response:
    """The page to search on."""
    return page.search_page()


@routes.get("/docs", include_in_schema=False)
async def reference(request: Request) -> Response:
    """The reference of the interface."""
    return page.reference_page(request.app.openapi())


@routes.get("/favicon.ico", include_in_schema=False)
async def icon() -> Response:
    """None: browsers ask for it."""
    return Response(status_code=204)


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RetrievalkitError)
    return failure(error, request.url.path)


async def _misread(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    path = request.url.path
    return failure(words_for(error.errors(), _FORMS.get(path), path.rpartition("/")[2], framed=True), path)


async def _refused(request: Request, error: Exception) -> Response:
    """What the framework refuses: unknown addresses, other methods, bodies that cannot be read."""
    assert isinstance(error, HTTPException)
    path = printable(request.url.path[:200])
    if error.status_code == 404:
        known = "/search, /explain, /document, /indexes, /v1/embeddings, /v1/models, /rerank, /health, /metrics, /mcp"
        return told(path, 404, f"there is nothing at '{path}'. Known: {known}; /docs describes them.", "NotFoundError")
    if error.status_code == 405:
        # The framework names the methods of one route, and an address may have several.
        methods = request.app.openapi()["paths"].get(request.url.path, {})
        allowed = ", ".join(methods).upper() or (error.headers or {}).get("Allow", "")
        message = f"'{path}' does not take {request.method}. Send {allowed}."
        return told(path, 405, message, "InputError", {"Allow": allowed})
    return told(path, error.status_code, f"{error.detail}. See /docs.", "InputError", error.headers)
