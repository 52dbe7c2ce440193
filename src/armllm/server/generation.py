"""The prompts of one HTTP request on their way through the engine."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from armllm.outputs import RequestOutput
    from armllm.sampling_params import SamplingParams
    from armllm.server.service import Service


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is given, and the text it came from."""

    token_ids: list[int]
    text: str | None = None


async def generate(
    service: Service,
    request_id: str,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    *,
    priority: int | None = None,
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """Yield (index of the prompt, output) as outputs come; closing the iterator drops what still runs."""
    ids = [request_id] if len(prompts) == 1 else [f"{request_id}-{index}" for index in range(len(prompts))]
    streams = [
        service.metrics.observed(service.start(request_id, prompt.token_ids, params, priority), params)
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
