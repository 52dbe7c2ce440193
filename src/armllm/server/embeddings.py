"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING

import numpy as np

from armllm.sampling_params import PoolingParams
from armllm.server.http import json_response, read_body, unless_disconnected
from armllm.server.protocol.tokens import Embedding, EmbeddingRequest, Embeddings
from armllm.server.service import Service, new_id

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
    prompts = await service.prompts(
        body.input,
        field="input",
        add_special_tokens=body.add_special_tokens is not False,
        truncate_to=body.truncate_prompt_tokens,
    )
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


def _written(vector: list[float], *, as_base64: bool) -> list[float] | str:
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode() if as_base64 else vector
