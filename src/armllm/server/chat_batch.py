"""POST /v1/chat/completions/batch: several conversations with the same parameters, as vLLM has them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from armllm.errors import ArmllmError
from armllm.server.chat import Run
from armllm.server.conversation import prepare
from armllm.server.errors import ApiError, as_api_error
from armllm.server.http import answer
from armllm.server.protocol.chat import ChatBatchRequest, ChatCompletion
from armllm.server.service import new_id

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from armllm.server.protocol.chat import ChatRequest
    from armllm.server.protocol.completions import Usage
    from armllm.server.service import Service


async def create_chat_completion_batch(request: Request) -> Response:
    """Answer several conversations, with a choice for each in their order."""
    return await answer(request, ChatBatchRequest, _complete)


async def _complete(service: Service, body: ChatBatchRequest) -> ChatCompletion:
    runs = [await _run(service, index, one) for index, one in enumerate(body.conversations())]
    tasks = [asyncio.ensure_future(run.completion()) for run in runs]
    try:
        answers = await asyncio.gather(*tasks)
    finally:
        for task in tasks:  # if one failed, nobody wants the others
            task.cancel()
    return {
        "id": new_id("chatcmpl-", body.request_id),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": service.model,
        "choices": [
            {**choice, "index": index} for index, one in enumerate(answers) for choice in one["choices"]
        ],
        "usage": _sum([one["usage"] for one in answers]),
        "system_fingerprint": None,
    }


async def _run(service: Service, index: int, body: ChatRequest) -> Run:
    """What answers one conversation, or an error that says which one is wrong."""
    try:
        return Run(await prepare(service, body), body)
    except (ApiError, ArmllmError) as error:
        failure = as_api_error(error, body.names_for_errors())
        if failure.param == "messages":
            failure.param = f"messages[{index}]"
        raise failure from None


def _sum(usages: list[Usage]) -> Usage:
    details = [one["prompt_tokens_details"] for one in usages if "prompt_tokens_details" in one]
    return {
        "prompt_tokens": sum(one["prompt_tokens"] for one in usages),
        "completion_tokens": sum(one["completion_tokens"] for one in usages),
        "total_tokens": sum(one["total_tokens"] for one in usages),
        "prompt_tokens_details": {"cached_tokens": sum(one["cached_tokens"] for one in details)},
    }
