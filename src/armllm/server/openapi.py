"""The endpoints with their request and answer types, as routes and as an OpenAPI 3.1 document."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from starlette.routing import Route

import armllm
from armllm.server import chat, chat_batch, completions, embeddings, responses, scoring, tokens
from armllm.server.errors import ErrorBody
from armllm.server.http import json_response
from armllm.server.protocol.chat import ChatBatchRequest, ChatChunk, ChatCompletion, ChatRequest
from armllm.server.protocol.completions import Completion, CompletionRequest
from armllm.server.protocol.responses import ResponseObject, ResponsesRequest
from armllm.server.protocol.scoring import (
    Classified,
    ClassifyRequest,
    PoolingRequest,
    Poolings,
    Reranked,
    RerankRequest,
    ScoreRequest,
    Scores,
)
from armllm.server.protocol.tokens import (
    Detokenized,
    DetokenizeRequest,
    EmbeddingRequest,
    Embeddings,
    ModelCard,
    ModelList,
    Tokenized,
    TokenizeRequest,
    Version,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.responses import Response

REFERENCE = "#/components/schemas/{model}"


@dataclasses.dataclass(frozen=True)
class Endpoint:
    """A path and what it takes and gives.

    ``event``: the type of a streamed answer's events. ``binary``: whether an answer may be bytes.
    """

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    answer: Any
    body: Any = None
    event: Any = None
    binary: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths that it answers."""
        return (self.path, *self.aliases)


ENDPOINTS = (
    Endpoint("GET", "/v1/models", tokens.list_models, ModelList),
    Endpoint("GET", "/v1/models/{model:path}", tokens.get_model, ModelCard),
    Endpoint(
        "POST", "/v1/completions", completions.create_completion, Completion, CompletionRequest, Completion
    ),
    Endpoint(
        "POST", "/v1/chat/completions", chat.create_chat_completion, ChatCompletion, ChatRequest, ChatChunk
    ),
    Endpoint(
        "POST",
        "/v1/chat/completions/batch",
        chat_batch.create_chat_completion_batch,
        ChatCompletion,
        ChatBatchRequest,
    ),
    Endpoint(
        "POST", "/v1/responses", responses.create_response, ResponseObject, ResponsesRequest, dict[str, Any]
    ),
    Endpoint(
        "POST", "/v1/embeddings", embeddings.create_embeddings, Embeddings, EmbeddingRequest, binary=True
    ),
    Endpoint("POST", "/score", scoring.create_score, Scores, ScoreRequest, aliases=("/v1/score",)),
    Endpoint(
        "POST",
        "/rerank",
        scoring.create_rerank,
        Reranked,
        RerankRequest,
        aliases=("/v1/rerank", "/v2/rerank"),
    ),
    Endpoint("POST", "/pooling", scoring.create_pooling, Poolings, PoolingRequest, binary=True),
    Endpoint("POST", "/classify", scoring.create_classification, Classified, ClassifyRequest),
    Endpoint("POST", "/tokenize", tokens.tokenize, Tokenized, TokenizeRequest),
    Endpoint("POST", "/detokenize", tokens.detokenize, Detokenized, DetokenizeRequest),
    Endpoint("GET", "/version", tokens.version, Version),
)


def routes() -> list[Route]:
    """All endpoints, and the document about them."""
    found = [Route(path, one.handler, methods=[one.method]) for one in ENDPOINTS for path in one.paths]
    return [*found, Route("/openapi.json", describe)]


async def describe(_request: Request) -> Response:
    """The OpenAPI document."""
    return json_response(document())


@functools.cache
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    types = [ErrorBody]
    for one in ENDPOINTS:
        types += [kind for kind in (one.answer, one.body, one.event) if kind is not None]
    inputs = [(TypeAdapter(kind), "validation") for kind in types]
    found, definitions = TypeAdapter.json_schemas(
        [(index, mode, adapter) for index, (adapter, mode) in enumerate(inputs)],  # type: ignore[misc]
        ref_template=REFERENCE,
    )
    schemas = {id(kind): found[index, "validation"] for index, kind in enumerate(types)}
    paths: dict[str, Any] = {}
    for one in ENDPOINTS:
        for number, path in enumerate(one.paths):
            operation = _operation(one, schemas)
            operation["operationId"] += f"_{number}" if number else ""
            paths.setdefault(path.replace(":path", ""), {})[one.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "armllm", "version": armllm.__version__},
        "paths": paths,
        "components": {"schemas": definitions.get("$defs", {})},
    }


def _operation(one: Endpoint, schemas: dict[int, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": schemas[id(one.answer)]}}
    if one.event is not None:
        kind = {"contentMediaType": "application/json", "contentSchema": schemas[id(one.event)]}
        document = {"anyOf": [{"const": "[DONE]"}, {"type": "string", **kind}]}
        fields = {"data": document, "event": {"type": "string"}}
        content["text/event-stream"] = {
            "schema": {"type": "object", "properties": fields, "required": ["data"]}
        }
    if one.binary:
        content["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    error = {"description": "Error", "content": {"application/json": {"schema": schemas[id(ErrorBody)]}}}
    operation: dict[str, Any] = {
        "summary": (one.handler.__doc__ or "").split("\n", 1)[0],
        "operationId": one.handler.__name__,
        "responses": {"200": {"description": "Answer", "content": content}, "4XX": error, "5XX": error},
    }
    if "{" in one.path:
        name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        operation["parameters"] = [name]
    if one.body is not None:
        schema = schemas[id(one.body)]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation
