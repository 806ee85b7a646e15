"""The service's web pages. They load nothing from elsewhere, and run only their own script."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from starlette.responses import HTMLResponse, Response

from retrievalkit.contracts.commands import render_page

_FOLDER = Path(__file__).with_name("page")


def search_page() -> Response:
    """Return the search page."""
    html, policy = _search_page()
    return HTMLResponse(html, headers={"Content-Security-Policy": policy, "Cache-Control": "no-cache"})


@cache
def _search_page() -> tuple[str, str]:
    """Return the page and its content security policy, which allows its script, and requests to its service."""
    script, style = (_FOLDER / "search.js").read_text("utf-8"), (_FOLDER / "search.css").read_text("utf-8")
    html = (_FOLDER / "search.html").read_text("utf-8").replace("/*style*/", style).replace("/*script*/", script)
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html, policy


def reference_page(schema: dict[str, Any]) -> Response:
    """Return the API reference, generated from the OpenAPI document."""
    html = render_page(
        _FOLDER / "interface.html.j2", title="API reference", subtitle="", operations=_operations(schema)
    )
    return HTMLResponse(html, headers={"Cache-Control": "no-cache"})


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _operations(schema: dict[str, Any]) -> list[dict[str, Any]]:
    bodies = schema.get("components", {}).get("schemas", {})
    operations = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            sent = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            answer = operation["responses"].get("200", {}).get("content", {}).get("application/json", {})
            parameters = [
                (parameter["name"], _type(parameter["schema"]), parameter.get("description", ""))
                for parameter in operation.get("parameters", [])
            ]
            operations.append(
                {
                    "name": f"{method.upper()} {path}",
                    "text": operation.get("description") or operation.get("summary", ""),
                    "request": parameters + _fields(sent, bodies),
                    "response": _fields(answer.get("schema", {}), bodies),
                }
            )
    return operations


def _fields(schema: dict[str, Any], bodies: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the name, type and description of each field of a body."""
    body = bodies.get(schema.get("$ref", "").rpartition("/")[2], {})
    required = body.get("required", [])
    return [
        (name, _type(field) + (", required" if name in required else ""), field.get("description", ""))
        for name, field in body.get("properties", {}).items()
    ]


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_type, schema["anyOf"])))
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("const") or schema.get("type", "any")) if "enum" not in schema else " | ".join(schema["enum"])
