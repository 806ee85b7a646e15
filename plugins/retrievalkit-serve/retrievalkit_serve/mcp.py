"""The Model Context Protocol server: search, read a document and explain, as tools for language model agents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from mcp import types
from mcp.server import Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import BeforeValidator, Field, ValidationError
from starlette.routing import BaseRoute

import retrievalkit as rk
from retrievalkit.errors import RetrievalkitError, UnknownNameError, shortlist
from retrievalkit_serve import forms
from retrievalkit_serve.failures import invalid_request, message_of
from retrievalkit_serve.service import Service

_ABOUT = (
    "Search over a collection of documents, {}. Call search with a question or keywords, read_document with the id of "
    "a hit for its full text, and explain for the reasons why documents rank high, low or not at all."
)


def _parsed(value: Any) -> Any:
    """Parse a list that a language model wrote as a string, as some models do."""
    try:
        return json.loads(value) if isinstance(value, str) and value.startswith("[") else value
    except (ValueError, RecursionError):
        return value


_Names = Annotated[list[str], BeforeValidator(_parsed)]


class QueryForm(forms.Form):
    """A query and the indexes to search."""

    query: str = Field(description="A question or keywords.")
    indexes: _Names | None = Field(None, description="Names of indexes to search; by default all, fused.")
    fusion: str | None = Field(None, description="Fusion of several indexes: rrf, sum or linear.")


class Search(QueryForm):
    """Search the documents. Returns the best hits: id, title, heading, page, snippet, score and explanation."""

    k: forms.WrittenCount = Field(10, description="Number of hits to return.")
    filter: str | None = Field(None, description=forms.FILTER)
    by: Literal["document", "passage"] | None = Field(
        None, description="Return documents, each with its matching passages (the default), or single passages."
    )


class ReadDocument(forms.Form):
    """Read the full text of a document or passage. Returns its id, title and text."""

    id: str = Field(description="The id of a hit.")


class Explain(QueryForm):
    """Explain the ranks and scores of documents for a query, including documents that a search does not return."""

    ids: _Names = Field(description="Ids of documents or passages.")


class AgentServer:
    """An MCP server whose tools are the operations of a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._tools: dict[str, tuple[type[forms.Form], Callable[[Any], Awaitable[dict[str, Any]]]]] = {
            "search": (Search, lambda form: service.search(forms.SearchForm(**form.model_dump()))),
            "read_document": (ReadDocument, self._read_document),
            "explain": (Explain, lambda form: service.explain(forms.ExplainForm(**form.model_dump()))),
        }
        self._server: Server[Any] = Server(
            "retrievalkit", version=rk.__version__, on_list_tools=self._list, on_call_tool=self._call
        )
        self._describe()
        service.on_reload.append(self._describe)

    def _describe(self) -> None:
        """Describe the collection to agents."""
        indexes = self._service.collection.descriptions()
        names = ", ".join(index["name"] for index in indexes)
        own = (field for index in indexes for field in index["fields"])
        fields = shortlist(dict.fromkeys(("id", "title", "document", *own)), 100)
        about = f"{_ABOUT.format(self._service.collection.name)} Indexes: {names}."
        self._server.instructions = f"{about} Fields to filter by: {fields}."

    async def _list(self, *_: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(
                name=name,
                title=name.replace("_", " ").capitalize(),
                description=form.__doc__,
                input_schema=form.model_json_schema(),
                output_schema={"type": "object"},
                annotations=types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
            )
            for name, (form, _) in self._tools.items()
        ]
        return types.ListToolsResult(tools=tools)

    async def _call(self, _: ServerRequestContext[Any], call: types.CallToolRequestParams) -> types.CallToolResult:
        """Call a tool; returns errors as an answer, so that the language model can read them."""
        try:
            if call.name not in self._tools:
                raise UnknownNameError("tool", call.name, self._tools)
            form, answer = self._tools[call.name]
            try:
                arguments = form.model_validate(call.arguments or {})
            except ValidationError as error:
                first = error.errors()[0]
                raise invalid_request(first, first["loc"], form, call.name) from error
            result = await answer(arguments)
        except RetrievalkitError as error:
            return types.CallToolResult(content=[types.TextContent(text=message_of(error))], is_error=True)
        text = json.dumps(result, ensure_ascii=False)
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=result)

    async def _read_document(self, form: ReadDocument) -> dict[str, Any]:
        document = await self._service.document(forms.DocumentLine(id=form.id, query=""))
        return {name: document[name] for name in ("id", "title", "text")}

    def routes(self) -> list[BaseRoute]:
        """Return the routes of /mcp; `Guards` checks hosts and tokens."""
        app = self._server.streamable_http_app(
            stateless_http=True,
            json_response=True,
            max_request_body_size=self._service.options.max_body,
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        return list(app.routes)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer at /mcp inside the block."""
        async with self._server.session_manager.run():
            yield

    async def run_on_pipes(self) -> None:
        """Answer on standard input and output until the input ends."""
        async with stdio_server() as (received, sent):
            following = asyncio.create_task(self._service.follow())
            await self._server.run(received, sent, self._server.create_initialization_options())
            following.cancel()
