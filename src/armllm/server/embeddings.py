"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import TYPE_CHECKING, Any

from armllm.pooling_params import PoolingParams
from armllm.server.clients import current_caller
from armllm.server.http import answer
from armllm.server.protocol.tokens import AboutVectors, EmbeddingRequest, Embeddings, EmbeddingUsage
from armllm.server.service import new_id
from armllm.server.vectors import as_json, as_response, check_count, check_size

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from armllm.server.prompts import Prompt
    from armllm.server.service import Service


async def create_embeddings(request: Request) -> Response:
    """Turn one text or several into vectors of length 1."""
    return await answer(request, EmbeddingRequest, _embed)


async def _embed(service: Service, body: EmbeddingRequest) -> Embeddings | Response:
    vectors, counted = await embed_input(service, body, PoolingParams(dimensions=body.dimensions))
    about = new_answer(service, new_id("embd-", body.request_id), counted)
    if body.wants_bytes:
        return await as_response(body, vectors, about)
    data = await as_json(body, vectors)
    return {
        **about,
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(data)
        ],
    }


def new_answer(service: Service, answer_id: str, counted: EmbeddingUsage) -> AboutVectors:
    """What every answer says beside its vectors."""
    return {"id": answer_id, "created": int(time.time()), "model": service.model, "usage": counted}


async def embed_input(
    service: Service, body: EmbeddingRequest, params: PoolingParams
) -> tuple[list[Any], EmbeddingUsage]:
    """The embeddings of a request's input and its tokens."""
    prompts = await service.prompts.read(
        body.input,
        field="input",
        add_special_tokens=body.add_special_tokens is not False,
        truncate_to=body.truncate_prompt_tokens,
        room=0,
    )
    check_count(body, len(prompts))
    if params.task == "token_embed":
        check_size(usage(prompts)["total_tokens"], service.facts.embedding_size)
    return await embed(service, prompts, params, body.priority), usage(prompts)


async def embed(
    service: Service, prompts: list[Prompt], params: PoolingParams, priority: int | None = None
) -> list[Any]:
    """What prompts are pooled into (`Vector`), computed together; if one fails, the others are dropped."""
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
