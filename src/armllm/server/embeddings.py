"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import time
from typing import TYPE_CHECKING

import numpy as np

from armllm.sampling_params import PoolingParams
from armllm.server.clients import current_caller
from armllm.server.http import answer
from armllm.server.protocol.tokens import EmbeddingRequest, Embeddings, EmbeddingUsage
from armllm.server.service import MANY_TEXTS, away_if, new_id

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from armllm.server.service import Prompt, Service


async def create_embeddings(request: Request) -> Response:
    """Turn one text or several into vectors of length 1."""
    return await answer(request, EmbeddingRequest, _embed)


async def _embed(service: Service, body: EmbeddingRequest) -> Embeddings:
    vectors, counted = await embed_input(service, body, PoolingParams(dimensions=body.dimensions))
    return {
        "id": new_id("embd-", body.request_id),
        "object": "list",
        "created": int(time.time()),
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "model": service.model,
        "usage": counted,
    }


async def embed_input(
    service: Service, body: EmbeddingRequest, params: PoolingParams
) -> tuple[list[list[float] | str], EmbeddingUsage]:
    """The embeddings of a request's input as its answer has them, numbers or base64, and its tokens."""
    prompts = await service.prompts(
        body.input,
        field="input",
        add_special_tokens=body.add_special_tokens is not False,
        truncate_to=body.truncate_prompt_tokens,
        room=0,
    )
    vectors = await embed(service, prompts, params, body.priority)
    if body.encoding_format == "base64":
        return await away_if(len(vectors) > MANY_TEXTS, lambda: [*map(_as_base64, vectors)]), usage(prompts)
    return [*vectors], usage(prompts)


async def embed(
    service: Service, prompts: list[Prompt], params: PoolingParams, priority: int | None = None
) -> list[list[float]]:
    """What prompts are pooled into, computed together; if one fails, the others are dropped."""
    service.check_priority(priority)
    request_id = new_id("embd-")
    tasks = [
        asyncio.ensure_future(
            service.engine.encode(
                prompt.token_ids,
                dataclasses.replace(params, second_segment=prompt.second_segment),
                f"{request_id}-{index}",
                priority or 0,
                service.adapter,
                caller=current_caller.get(),
            )
        )
        for index, prompt in enumerate(prompts)
    ]
    try:
        return [output.outputs.embedding for output in await asyncio.gather(*tasks)]
    finally:
        for task in tasks:  # if one failed, nobody wants the others
            task.cancel()


def usage(*groups: list[Prompt]) -> EmbeddingUsage:
    """The tokens of all prompts."""
    total = sum(len(prompt.token_ids) for prompts in groups for prompt in prompts)
    return {"prompt_tokens": total, "total_tokens": total}


def _as_base64(vector: list[float]) -> str:
    """The base64 of little-endian fp32."""
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
