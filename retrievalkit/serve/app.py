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

from retrievalkit import __version__
from retrievalkit.errors import RetrievalkitError
from retrievalkit.report.terminal import printable
from retrievalkit.serve import forms, page
from retrievalkit.serve.checks import words_for
from retrievalkit.serve.failures import Json, failure, told
from retrievalkit.serve.guards import RELOAD, Guards
from retrievalkit.serve.mcp import AgentServer
from retrievalkit.serve.metrics import MEDIA_TYPE
from retrievalkit.serve.service import Service

_FORMS: dict[str, type[BaseModel]] = {
    "/search": forms.SearchForm,
    "/explain": forms.ExplainForm,
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
        version=__version__,
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
    paths = frozenset(path for path in (getattr(route, "path", "") for route in app.routes) if path) | frozenset(
        {
            "/",
            "/docs",
            "/openapi.json",
            "/health",
            "/indexes",
            "/metrics",
            "/document",
            "/v1/models",
            RELOAD,
            "/mcp",
            *_FORMS,
        }
    )
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=service.settings.names, www_redirect=False)
    app.add_middleware(
        Guards,
        settings=service.settings,
        metrics=service.metrics,
        paths=paths,
        stopping=lambda: service.stopping,
    )
    return app


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
async def document(
    request: Request,
    id: Annotated[str, Query(description="The document's id.")],  # noqa: A002 - it is called so
    query: Annotated[str, Query(description="Words to mark.")] = "",
) -> Response:
    """A whole document."""
    return Json(await _service(request).document(id, query))


@routes.post("/v1/embeddings", response_model=forms.EmbeddingBody)
async def embeddings(request: Request, asked: Annotated[forms.EmbeddingForm, Body()]) -> Response:
    """Vectors of texts, in OpenAI's form, by a model that made one of the indexes."""
    return Json(await _service(request).embed(asked))


@routes.get("/v1/models")
async def models(request: Request) -> Response:
    """The models of /v1/embeddings, in OpenAI's form."""
    known = _service(request).collection.models
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "retrievalkit"} for name in known]
    return Json({"object": "list", "data": data})


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
    body = {"status": status, "version": __version__, "generation": service.collection.generation}
    return Json(body, status_code=503 if service.stopping else 200)


@routes.get("/metrics")
async def metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    return Response(_service(request).metrics.text(), media_type=MEDIA_TYPE)


@routes.post(RELOAD)
async def reload(request: Request) -> Response:
    """Open the indexes anew; the old ones answer until the new ones are open. Needs a token."""
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


async def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, RetrievalkitError)
    return failure(error)


async def _misread(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    path = request.url.path
    return failure(words_for(error.errors(), _FORMS.get(path), path.rpartition("/")[2], framed=True))


async def _refused(request: Request, error: Exception) -> Response:
    """What the framework refuses: unknown addresses, other methods, bodies that cannot be read."""
    assert isinstance(error, HTTPException)
    path = printable(request.url.path[:200])
    if error.status_code == 404:
        known = "/search, /explain, /document, /indexes, /v1/embeddings, /v1/models, /rerank, /health, /metrics, /mcp"
        return told(404, f"there is nothing at '{path}'. Known: {known}; /docs describes them.", "NotFoundError")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        message = f"'{path}' does not take {request.method}. Send {allowed}."
        return told(405, message, "InputError", error.headers)
    return told(error.status_code, f"{error.detail}. See /docs.", "InputError", error.headers)
