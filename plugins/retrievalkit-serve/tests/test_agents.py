"""Language model agents search over pipes and over HTTP, with the client of the package mcp."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest
from mcp import Client, StdioServerParameters, stdio_client

QUERY = "what is the capital of Peru"


async def use(client):
    """List the tools, search, read, explain, and make mistakes."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {"search", "read_document", "explain"}
    assert tools["search"].input_schema["required"] == ["query"]
    assert all(tool.title and tool.description and tool.annotations.read_only_hint for tool in tools.values())
    answer = (await client.call_tool("search", {"query": QUERY, "k": 3})).structured_content
    assert len(answer["hits"]) == 3
    assert answer["hits"][0]["snippet"]
    identifier = answer["hits"][0]["id"]
    read = (await client.call_tool("read_document", {"id": identifier})).structured_content
    assert (read["id"], set(read)) == (identifier, {"id", "title", "text"})
    why = (await client.call_tool("explain", {"query": QUERY, "ids": [identifier]})).structured_content
    assert why["hits"][0]["rank"] == 1
    # Some models write numbers and lists as strings.
    arguments = {"query": QUERY, "k": "1", "indexes": '["dense"]', "by": "passage"}
    assert len((await client.call_tool("search", arguments)).structured_content["hits"]) == 1
    filtered = (await client.call_tool("search", {"query": QUERY, "filter": "number < 4"})).structured_content
    assert sorted(hit["fields"]["number"] for hit in filtered["hits"]) == [0, 1, 2, 3]
    assert "number" in client.instructions
    for name, arguments, message in (
        ("search", {"query": QUERY, "k": 0}, "k is 0"),
        ("search", {"query": QUERY, "k": 10**6}, "returns at most"),
        ("search", {"query": QUERY, "index": ["late"]}, "did you mean 'indexes'?"),
        ("explain", {"query": QUERY, "ids": "c1"}, "should be a list."),
        ("serach", {"query": QUERY}, "did you mean 'search'?"),
        ("read_document", {"id": "nowhere"}, "'nowhere'"),
    ):
        answer = await client.call_tool(name, arguments)
        assert answer.is_error
        assert message in answer.content[0].text


def test_an_agent_searches_over_http(served):
    async def scenario():
        async with Client(f"{served.address}/mcp") as client:
            await use(client)

    asyncio.run(scenario())


def test_an_agent_can_search_again_after_a_timeout(served):
    async def scenario():
        async with Client(f"{served.address}/mcp") as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.call_tool("search", {"query": QUERY}), 0.001)
            assert not (await client.call_tool("search", {"query": QUERY})).is_error

    asyncio.run(scenario())


def test_an_agent_starts_the_service_and_searches_over_pipes(folders):
    """Standard output has only messages of the protocol."""
    arguments = ["-m", "retrievalkit", "serve", str(folders / "dense"), "--mcp"]
    server = StdioServerParameters(command=sys.executable, args=arguments, env=dict(os.environ))

    async def scenario():
        with open(os.devnull, "w") as nowhere:
            async with Client(stdio_client(server, errlog=nowhere)) as client:
                await use(client)

    asyncio.run(scenario())
