"""The prompts of one HTTP request on their way through the engine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING

from armllm.sampling_params import SamplingParams
from armllm.server.limits import check_prompt_logprobs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from armllm.outputs import RequestOutput
    from armllm.server.prompts import Prompt
    from armllm.server.service import Service


logger = logging.getLogger("armllm.server")
# What a log must not tell: texts of the user's.
PRIVATE = ("stop", "bad_words", "structured_outputs", "output_kind")


async def generate(
    service: Service,
    request_id: str,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    *,
    priority: int | None = None,
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Yield (index of the prompt, output) as outputs come; closing the iterator drops what still runs."""
    if params.prompt_logprobs is not None:
        check_prompt_logprobs(sum(len(prompt.token_ids) for prompt in prompts), params.prompt_logprobs)
    if service.options.log_requests:
        sizes = ", ".join(str(len(prompt.token_ids)) for prompt in prompts[:8])
        logger.info("%s: prompts of %s tokens, %s", request_id, sizes, _shown(params))
    ids = [request_id] if len(prompts) == 1 else [f"{request_id}-{index}" for index in range(len(prompts))]
    streams = [
        service.metrics.observed(service.start(request_id, prompt, params, priority), params)
        for request_id, prompt in zip(ids, prompts, strict=True)
    ]
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as stream:
            async for output in stream:
                yield 0, output
        return
    queue: asyncio.Queue[tuple[int, RequestOutput] | BaseException | None] = asyncio.Queue()
    tasks = [asyncio.ensure_future(_pump(index, stream, queue)) for index, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _shown(params: SamplingParams) -> str:
    """The parameters that are not as they would be without asking."""
    usual = SamplingParams()
    changed = {
        field.name: getattr(params, field.name)
        for field in dataclasses.fields(params)
        if getattr(params, field.name) != getattr(usual, field.name) and field.name not in PRIVATE
    }
    return ", ".join(f"{name}={value}" for name, value in changed.items()) or "defaults"


async def _pump(
    index: int,
    stream: AsyncGenerator[RequestOutput, None],
    queue: asyncio.Queue[tuple[int, RequestOutput] | BaseException | None],
) -> None:
    try:
        async with contextlib.aclosing(stream):
            async for output in stream:
                queue.put_nowait((index, output))
        queue.put_nowait(None)
    except Exception as error:  # noqa: BLE001 - raised again by the reader of the queue
        queue.put_nowait(error)
