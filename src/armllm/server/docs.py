"""GET /docs: the OpenAPI document as one small page, without a script."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from starlette.responses import HTMLResponse

from armllm.server.openapi import document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request
    from starlette.responses import Response

HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.1rem 1rem .1rem 0;vertical-align:top}"
    "h2{font-size:1.1rem;margin-top:2rem}code{white-space:pre-wrap}"
)


async def show_docs(_request: Request) -> Response:
    """The page."""
    return HTMLResponse("".join(_page(document())), headers=HEADERS)


def _page(described: dict[str, Any]) -> Iterator[str]:
    title = f"{described['info']['title']} {described['info']['version']}"
    yield f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
    yield f"<style>{STYLE}</style><h1>{html.escape(title)}</h1>"
    yield "<p>All types are in <a href=openapi.json>openapi.json</a>.</p>"
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            yield f"<h2><code>{method.upper()} {html.escape(path)}</code></h2>"
            yield f"<p>{html.escape(operation['summary'])}</p>"
            yield from _fields(operation, described["components"]["schemas"])


def _fields(operation: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    """A table of what the body may have."""
    if "requestBody" not in operation:
        return
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = schemas[reference.rpartition("/")[2]]
    yield "<table><tr><th>field<th>type<th>"
    for name, field in schema.get("properties", {}).items():
        required = "required" if name in schema.get("required", ()) else ""
        yield f"<tr><td><code>{html.escape(name)}</code><td>{html.escape(_type(field))}<td>{required}"
    yield "</table>"


def _type(field: dict[str, Any]) -> str:
    variants = field.get("anyOf") or field.get("oneOf")
    if variants:
        kinds = [_type(one) for one in variants]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "enum" in field:
        return " or ".join(map(str, field["enum"]))
    if "const" in field:
        return str(field["const"])
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return str(field.get("type", "anything"))
