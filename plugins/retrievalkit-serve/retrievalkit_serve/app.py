"""The HTTP application: one JSON endpoint per operation; `/` is the search page, `/docs` the reference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, get_type_hints

from fastapi import APIRouter, Body, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse, Response
from starlette.routing import Route

import retrievalkit as rk
from retrievalkit.contracts.commands import names, printable
from retrievalkit.errors import RetrievalkitError
from retrievalkit_serve import forms, page
from retrievalkit_serve.failures import Json, RefusedError, failure, invalid_request
from retrievalkit_serve.guards import RELOAD, Guards
from retrievalkit_serve.mcp import AgentServer
from retrievalkit_serve.metrics import MEDIA_TYPE
from retrievalkit_serve.serve import TOKEN
from retrievalkit_serve.service import Service

_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": forms.ErrorBody}, "5XX": {"model": forms.ErrorBody}}

routes = APIRouter(responses=_ERRORS)


def create_app(service: Service) -> FastAPI:
    """Create the application of a service."""
    agents = AgentServer(service)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with agents.running():
            following = asyncio.create_task(service.follow())
            yield
            following.cancel()
        service.batcher.close()

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
    app.add_exception_handler(RetrievalkitError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    schema = app.openapi()
    limits = {
        **{name: {"maximum": service.options.max_k} for name in ("k", "rerank", "top_n")},
        **{name: {"maxItems": service.options.max_k} for name in ("ids", "documents", "input")},
        "query": {"maxLength": service.options.max_query},
        "depth": {"maximum": service.collection.deepest},
        "fusion": {"enum": [*names("fusion"), None]},
    }
    for title, body in schema["components"]["schemas"].items():
        for name, field in body.get("properties", {}).items() if title.endswith("Form") else ():
            field.update(limits.get(name, {}))
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=service.options.hosts, www_redirect=False)
    paths = frozenset({"/", "/docs", "/openapi.json", "/mcp", *schema["paths"]})
    app.add_middleware(Guards, service=service, paths=paths)
    return app


@routes.get("/search", response_model=forms.SearchBody)
async def search_by_address(request: Request, form: Annotated[forms.SearchLine, Query()]) -> Response:
    """Search for a text, with parameters in the URL."""
    return Json(await request.app.state.service.search(form))


@routes.post("/search", response_model=forms.SearchBody)
async def search(request: Request, form: Annotated[forms.SearchForm, Body()]) -> Response:
    """Search for a text: the best hits, with their texts and explanations of their scores."""
    return Json(await request.app.state.service.search(form))


@routes.post("/explain", response_model=forms.ExplainBody)
async def explain(request: Request, form: Annotated[forms.ExplainForm, Body()]) -> Response:
    """Explain the scores and ranks of documents for a query, even if a search does not return them."""
    return Json(await request.app.state.service.explain(form))


@routes.get("/document", response_model=forms.DocumentBody)
async def document(request: Request, form: Annotated[forms.DocumentLine, Query()]) -> Response:
    """Return a whole document."""
    return Json(await request.app.state.service.document(form))


@routes.get("/file", response_class=FileResponse, responses={200: {"content": {"application/pdf": {}}}})
async def file(request: Request, form: Annotated[forms.FileLine, Query()]) -> Response:
    """Return the PDF file of a document."""
    path = await request.app.state.service.file(form)
    return FileResponse(path, media_type="application/pdf", filename=path.name, content_disposition_type="inline")


@routes.post("/v1/embeddings", response_model=forms.EmbeddingBody)
async def embeddings(request: Request, form: Annotated[forms.EmbeddingForm, Body()]) -> Response:
    """Embed texts with a model of one of the indexes, in OpenAI's format."""
    return Json(await request.app.state.service.embed(form))


@routes.get("/v1/models")
async def models(request: Request) -> forms.ModelsBody:
    """List the models of /v1/embeddings, in OpenAI's format."""
    return forms.ModelsBody(
        object="list", data=[forms.Model(id=name) for name in request.app.state.service.collection.models]
    )


@routes.get("/v1/models/{model:path}")
async def model(request: Request, model: str) -> forms.Model:
    """Describe a model of /v1/embeddings."""
    return forms.Model(id=request.app.state.service.model(model))


@routes.post("/rerank", response_model=forms.RerankBody)
async def rerank(request: Request, form: Annotated[forms.RerankForm, Body()]) -> Response:
    """Order documents by the re-ranker's scores."""
    return Json(await request.app.state.service.rerank(form))


@routes.get("/indexes")
async def indexes(request: Request) -> Response:
    """Describe the service: indexes, models, re-ranker, limits."""
    return Json(request.app.state.service.description())


@routes.get("/health")
async def health(request: Request) -> Response:
    """Report whether the service answers (200) or is stopping (503). Needs no token."""
    service: Service = request.app.state.service
    status = "stopping" if service.stopping else "ok"
    body = {"status": status, "version": rk.__version__, "generation": service.collection.generation}
    return Json(body, status_code=503 if service.stopping else 200)


@routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Return the metrics for Prometheus."""
    return Response(request.app.state.service.metrics.text(), media_type=MEDIA_TYPE)


@routes.post(RELOAD)
async def reload(request: Request) -> Response:
    """Reload the indexes; the old indexes answer until the new ones are open. Needs a token."""
    if request.app.state.service.options.token is None:
        msg = f"reloading the indexes needs a token, and the service has none. Set {TOKEN}, or send SIGHUP."
        raise RefusedError(403, msg)
    return Json(await request.app.state.service.reload())


@routes.get("/", include_in_schema=False)
async def home() -> Response:
    """Return the search page."""
    return page.search_page()


@routes.get("/docs", include_in_schema=False)
async def reference(request: Request) -> Response:
    """Return the API reference."""
    return page.reference_page(request.app.openapi())


@routes.get("/favicon.ico", include_in_schema=False)
async def icon() -> Response:
    """Return no icon; browsers request an icon of every page."""
    return Response(status_code=204)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RetrievalkitError)
    return failure(error, request.url.path)


async def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first, path = error.errors()[0], request.url.path
    form = get_type_hints(request.scope["endpoint"]).get("form")
    return failure(invalid_request(first, first["loc"][1:], form, path.rpartition("/")[2]), path)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Answer requests that the framework refuses: unknown addresses, wrong methods, unreadable bodies."""
    assert isinstance(error, HTTPException)
    path = printable(request.url.path[:200])
    message, headers = f"{error.detail}. See /docs.", error.headers
    if error.status_code == 404:
        known = "/search, /explain, /document, /file, /indexes, /v1/embeddings, /v1/models, /rerank, /health, /metrics"
        message = f"there is nothing at '{path}'. Known: {known}, /mcp; /docs describes them."
    elif error.status_code == 405:
        # The framework names the methods of a single route, but an address may have several routes.
        methods = request.app.openapi()["paths"].get(request.url.path, {})
        allowed = ", ".join(methods).upper() or (headers or {}).get("Allow", "")
        message, headers = f"'{path}' does not support {request.method}. Send {allowed}.", {"Allow": allowed}
    return failure(RefusedError(error.status_code, message, headers), path)
