"""The process of the engine: `python -m armllm.server.engine_host DESCRIPTOR`.

It answers what `EngineProcess` sends through the socket with that number. When the socket ends, it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import logging.config
import os
import signal
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from armllm.errors import ArmllmError, EngineError
from armllm.helper_process import give_session_the_priority
from armllm.inputs import PicturePrompt
from armllm.outputs import RequestOutput
from armllm.pooling_params import PoolingParams
from armllm.progress import progress
from armllm.server.engine_messages import (
    BEAT_SECONDS,
    AdapterChange,
    Failure,
    Loaded,
    NotLoaded,
    Question,
    read_message,
    receive,
    send,
    written,
)
from armllm.server.logs import log_config
from armllm.utils.gc_utils import freeze_gc_heap

if TYPE_CHECKING:
    from armllm.api.async_llm import AsyncLLM

STATS_SECONDS = 0.1
PR_SET_PDEATHSIG = 1


class EngineHost:
    """Passes questions to the engine, and its outputs back."""

    def __init__(self, engine: AsyncLLM, writer: asyncio.StreamWriter) -> None:
        self._engine = engine
        self._writer = writer
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._unsent: list[Any] = []

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Answer until there are no more questions."""
        watching = asyncio.ensure_future(self._send_stats())
        try:
            while (message := await read_message(reader)) is not None:
                if isinstance(message, Question):
                    task = asyncio.ensure_future(self._answer(message))
                    self._tasks[message.key] = task
                    task.add_done_callback(functools.partial(self._forget, message.key))
                elif isinstance(message, AdapterChange):
                    task = asyncio.ensure_future(self._change(message))
                    self._tasks[message.key] = task
                    task.add_done_callback(functools.partial(self._forget, message.key))
                elif message in self._tasks:  # the reader of this answer has gone
                    self._tasks[message].cancel()
        finally:
            watching.cancel()

    def _forget(self, key: int, _task: asyncio.Task[None]) -> None:
        del self._tasks[key]

    async def _answer(self, question: Question) -> None:
        key, request_id = question.key, question.request_id
        try:
            if isinstance(question.params, PoolingParams):
                vector = await self._engine.encode(
                    question.prompt, question.params, request_id, **_of(question)
                )
                output = RequestOutput(request_id, None, [], [], True, vector.num_cached_tokens)
                output.embedding = vector.outputs.embedding
                self._send((key, output))
                return
            outputs = self._engine.generate(question.prompt, question.params, request_id, **_of(question))
            first = True
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    if not (first and isinstance(question.prompt, PicturePrompt)):
                        output.prompt_token_ids = []  # who asked knows them
                    if not first:
                        output.prompt_logprobs = None
                    first = False
                    self._send((key, output))
                    await self._writer.drain()  # meanwhile outputs are merged
        except ArmllmError as error:
            self._send((key, error))
        except Exception as error:  # noqa: BLE001 - as if it were in one process, this request fails alone
            line = f"{type(error).__name__}: {error}".split("\n", 1)[0]
            self._send((key, EngineError(f"this request failed: {line:.200}")))

    async def _change(self, change: AdapterChange) -> None:
        try:
            if isinstance(change.adapter, int):
                await self._engine.remove_lora(change.adapter)
            else:
                await self._engine.add_lora(change.adapter)
        except ArmllmError as error:
            self._send((change.key, error))
        except Exception as error:  # noqa: BLE001 - whatever an untrusted file causes
            line = f"{type(error).__name__}: {error}".split("\n", 1)[0]
            self._send((change.key, EngineError(f"the adapter can't be read: {line:.200}")))
        else:
            self._send((change.key, True))

    async def _send_stats(self) -> None:
        """Tell how the engine is whenever that changes and at each beat, and once that it has failed."""
        last, next_beat = None, 0.0
        while True:
            failed = self._engine.dead_error
            stats = self._engine.stats()
            now = time.monotonic()
            if stats != last or now >= next_beat:
                self._send(stats)
                last, next_beat = stats, now + BEAT_SECONDS
            if failed is not None:
                self._send(Failure(failed if isinstance(failed, ArmllmError) else EngineError(str(failed))))
                return
            await asyncio.sleep(STATS_SECONDS)

    def _send(self, message: Any) -> None:
        """Send it with everything else of this turn of the event loop."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(message)

    def _flush(self) -> None:
        messages, self._unsent = self._unsent, []
        self._writer.write(written(messages))


def _of(question: Question) -> dict[str, Any]:
    return {name: getattr(question, name) for name in ("priority", "lora_request", "caller")}


def main(descriptor: int) -> None:
    """Load the engine that the first message names, say what it is, and serve it."""
    # whoever started this process drains at signals, and ends it; it must not outlive them
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    give_session_the_priority()  # of `nice armllm serve`
    connection = socket.socket(fileno=descriptor)
    try:
        model, options, adapters, progress.visible = receive(connection)
        with contextlib.suppress(BlockingIOError):  # it may have gone before prctl
            if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                return
    except (EOFError, ConnectionError):
        return
    logging.config.dictConfig(log_config("info"))
    try:
        with progress.step(f"loading {model}"):
            from armllm.api.async_llm import AsyncLLM  # noqa: PLC0415 - takes seconds
            from armllm.server.greeting import engine_lines  # noqa: PLC0415

            engine = AsyncLLM(model, **options)
            for adapter in adapters:
                engine.llm_engine.add_lora(adapter)
        loaded = Loaded(engine.facts, engine_lines(engine.llm_engine), engine.stats())
    except BaseException as error:  # noqa: BLE001 - raised again where it was asked for
        send(connection, NotLoaded.of(error, traceback.format_exc()))
        return
    send(connection, loaded)
    freeze_gc_heap()

    async def serve() -> None:
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        await EngineHost(engine, writer).serve(reader)

    try:
        asyncio.run(serve())
    finally:
        os._exit(0)  # the engine's thread may be within a step for seconds


if __name__ == "__main__":
    main(int(sys.argv[1]))
