"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

import numpy as np

from armllm.sampling_params import PoolingParams
from armllm.server.errors import ApiError
from armllm.server.generation import Prompt
from armllm.server.http import json_response, read_body, unless_disconnected
from armllm.server.protocol.base import MAX_PROMPTS
from armllm.server.protocol.tokens import Embedding, EmbeddingRequest, Embeddings
from armllm.server.service import Service, check_vocabulary, new_id

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


async def create_embeddings(request: Request) -> Response:
    """Turn one text or several into vectors of length 1."""
    service: Service = request.app.state.service
    body = await read_body(request, EmbeddingRequest)
    service.check_model(body.model)
    return json_response(await unless_disconnected(request, _embed(service, body)))


async def _embed(service: Service, body: EmbeddingRequest) -> Embeddings:
    prompts = [await _prompt(service, body, given) for given in _inputs(body)]
    for prompt in prompts:
        service.check_prompt(prompt)
    params = PoolingParams(dimensions=body.dimensions)
    request_id = new_id("embd-")
    tasks = [
        asyncio.ensure_future(service.engine.encode(prompt.token_ids, params, f"{request_id}-{index}"))
        for index, prompt in enumerate(prompts)
    ]
    try:
        vectors = await asyncio.gather(*tasks)
    finally:
        for task in tasks:  # if one failed, nobody wants the others
            task.cancel()
    total = sum(len(prompt.token_ids) for prompt in prompts)
    found: list[Embedding] = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _written(vector.outputs.embedding, as_base64=body.encoding_format == "base64"),
        }
        for index, vector in enumerate(vectors)
    ]
    return {
        "object": "list",
        "data": found,
        "model": service.model,
        "usage": {"prompt_tokens": total, "total_tokens": total},
    }


async def _prompt(service: Service, body: EmbeddingRequest, given: str | list[int]) -> Prompt:
    if isinstance(given, str):
        special = body.add_special_tokens is not False
        return await service.encode(
            given, add_special_tokens=special, truncate_to=body.truncate_prompt_tokens
        )
    check_vocabulary(given, service.vocab_size, "input")
    return service.truncated(Prompt(given), body.truncate_prompt_tokens)


def _inputs(body: EmbeddingRequest) -> list[str | list[int]]:
    given = body.input
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError("input must not be an empty list", param="input", code="invalid_value")
    if isinstance(given[0], int):
        return [given]
    if len(given) > MAX_PROMPTS:
        raise ApiError(f"input has {len(given)} entries, at most {MAX_PROMPTS} are taken", param="input")
    return list(given)


def _written(vector: list[float], *, as_base64: bool) -> list[float] | str:
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode() if as_base64 else vector
