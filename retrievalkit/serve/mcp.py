"""The service to language models' agents, by the Model Context Protocol: to search, to read a document, to explain."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import Field, ValidationError
from starlette.routing import BaseRoute

from retrievalkit import __version__
from retrievalkit.errors import RetrievalkitError
from retrievalkit.serve import forms
from retrievalkit.serve.checks import words_for
from retrievalkit.serve.failures import words_of
from retrievalkit.serve.service import Service

_ABOUT = (
    "Searches a collection of documents. Call search with a question or keywords, read_document with the id of a hit "
    "to read it whole, and explain to see why documents were or were not found."
)
_Query = Annotated[str, Field(description="A question or keywords.")]
_Indexes = Annotated[list[str] | None, Field(description="Names of indexes to search; by default all, fused.")]
_Fusion = Annotated[str | None, Field(description="How several indexes are fused: rrf, sum or linear.")]


class AgentServer:
    """The tools of a service.

    Args:
        service: What answers.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        names = ", ".join(one["name"] for one in service.collection.described())
        self._server: MCPServer[Any] = MCPServer(
            "retrievalkit",
            version=__version__,
            instructions=f"{_ABOUT} Indexes: {names}.",
            log_level="WARNING",
        )
        for tool in (self.search, self.read_document, self.explain):
            self._server.add_tool(tool)

    async def search(
        self,
        query: _Query,
        k: Annotated[int, Field(description="How many hits.")] = 10,
        indexes: _Indexes = None,
        fusion: _Fusion = None,
    ) -> dict[str, Any]:
        """Search the collection: ids, titles, the fitting part of each text, scores, and the reasons for them."""
        values = {"query": query, "k": k, "indexes": indexes, "fusion": fusion}
        return await _answered(self._service.search(_form(forms.SearchForm, values, "search")))

    async def read_document(
        self,
        id: Annotated[str, Field(description="The id of a hit.")],  # noqa: A002 - it is called so
    ) -> dict[str, Any]:
        """Read a whole document of the collection."""
        found = await _answered(self._service.document(id))
        return {name: found[name] for name in ("id", "title", "text")}

    async def explain(
        self,
        query: _Query,
        ids: Annotated[list[str], Field(description="Ids of documents.")],
        indexes: _Indexes = None,
        fusion: _Fusion = None,
    ) -> dict[str, Any]:
        """Explain why documents have their ranks and scores for a query, whether a search finds them or not."""
        values = {"query": query, "ids": ids, "indexes": indexes, "fusion": fusion}
        return await _answered(self._service.explain(_form(forms.ExplainForm, values, "explain")))

    def routes(self) -> list[BaseRoute]:
        """What answers at /mcp; hosts and tokens are checked before, for all addresses alike."""
        app = self._server.streamable_http_app(
            stateless_http=True,
            json_response=True,
            max_request_body_size=self._service.settings.limits.body,
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        return list(app.routes)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer at /mcp inside of the block."""
        async with self._server.session_manager.run():
            yield

    async def run_on_pipes(self) -> None:
        """Answer on standard input and output, until the input ends."""
        await self._server.run_stdio_async()


def _form(kind: type[Any], values: dict[str, Any], operation: str) -> Any:
    try:
        return kind(**values)
    except ValidationError as error:
        raise ToolError(words_of(words_for(error.errors(), kind, operation))) from error


async def _answered(answer: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """An answer; an error is one that the model reads, with the words of the command line."""
    try:
        return await answer
    except RetrievalkitError as error:
        raise ToolError(words_of(error)) from error
