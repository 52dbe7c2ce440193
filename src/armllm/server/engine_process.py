"""The engine in a separate process, so that no client's request takes the interpreter's lock from it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Any

from armllm import environment
from armllm.engine.reporting import as_embedding
from armllm.engine.stream import Stream
from armllm.errors import ArmllmError, EngineError
from armllm.helper_process import python_module
from armllm.progress import progress
from armllm.sampling_params import RequestOutputKind, SamplingParams
from armllm.server.engine_messages import (
    BEAT_SECONDS,
    AdapterChange,
    Failure,
    NotLoaded,
    Question,
    read_message,
    receive,
    send,
    written,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from armllm.engine.caller import Caller
    from armllm.engine.stats import EngineStats
    from armllm.inputs import PicturePrompt
    from armllm.lora.request import LoRARequest
    from armllm.outputs import EmbeddingRequestOutput, Logprob, RequestOutput
    from armllm.pooling_params import PoolingParams

COMMAND = python_module("armllm.server.engine_host")
LEAST_BEATS = 3  # of silence, before a process counts as one that does not answer


class EngineProcess:
    """What a server needs of `AsyncLLM`, which it starts in another process; `connect` comes first.

    ``adapters`` are read at once. ``facts`` and ``lines`` say what was loaded. Errors of loading are raised
    as `AsyncLLM` raises them.
    """

    def __init__(self, model: str, adapters: Sequence[LoRARequest] = (), **options: Any) -> None:
        self.dead_error: Exception | None = None
        self._streams: dict[int, Stream] = {}
        self._prompt_logprobs: dict[int, list[dict[int, Logprob] | None]] = {}
        self._prompts: dict[int, list[int]] = {}
        self._changes: dict[int, asyncio.Future[None]] = {}
        self._keys = itertools.count()
        self._reading: asyncio.Task[None] | None = None
        self._silence = 0  # beats since the process said anything
        self._seconds = environment.step_seconds()
        sizes = {options.get(f"{way}_parallel_size", 1) for way in ("tensor", "pipeline")}
        self._name = "its process" if sizes == {1} else "rank 0"
        self._connection, far_end = socket.socketpair()
        with far_end:
            self._process = subprocess.Popen(
                [*COMMAND, str(far_end.fileno())],
                pass_fds=[far_end.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the server; and Linux shares the cores by session
            )
        try:
            send(self._connection, (model, options, adapters, progress.visible))
            loaded = receive(self._connection)
        except (EOFError, ConnectionError):
            raise EngineError(f"the engine failed: {self._ended()}") from None
        if isinstance(loaded, NotLoaded):
            self.shutdown()
            raise loaded.error from EngineError(loaded.trace)
        self.facts, self.lines = loaded.facts, loaded.lines
        self._stats: EngineStats = loaded.stats

    @property
    def errored(self) -> bool:
        """Whether the engine has failed."""
        return self.dead_error is not None

    def stats(self) -> EngineStats:
        """What the engine had to do a moment ago, and what it did since its start."""
        return self._stats

    async def connect(self) -> None:
        """Take outputs in this event loop from now on."""
        reader, self._writer = await asyncio.open_unix_connection(sock=self._connection)
        self._reading = asyncio.ensure_future(self._read(reader))
        self._watching = asyncio.ensure_future(self._watch())

    async def generate(
        self,
        prompt: list[int] | PicturePrompt,
        sampling_params: SamplingParams,
        request_id: str,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        *,
        caller: Caller | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As `AsyncLLM.generate`."""
        question = Question(
            next(self._keys), request_id, prompt, sampling_params, priority, lora_request, caller
        )
        outputs = self._ask(question)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                yield output

    async def encode(
        self,
        prompt: list[int],
        pooling_params: PoolingParams,
        request_id: str,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        *,
        caller: Caller | None = None,
    ) -> EmbeddingRequestOutput:
        """As `AsyncLLM.encode`."""
        question = Question(
            next(self._keys), request_id, prompt, pooling_params, priority, lora_request, caller
        )
        async with contextlib.aclosing(self._ask(question)) as outputs:
            return as_embedding(await anext(outputs))

    async def add_lora(self, lora_request: LoRARequest) -> None:
        """As `AsyncLLM.add_lora`."""
        await self._change(lora_request)

    async def remove_lora(self, lora_id: int) -> None:
        """As `AsyncLLM.remove_lora`."""
        await self._change(lora_id)

    async def _change(self, adapter: LoRARequest | int) -> None:
        if self.dead_error is not None:
            raise self.dead_error
        key = next(self._keys)
        change = self._changes[key] = asyncio.get_running_loop().create_future()
        self._tell(AdapterChange(key, adapter))
        try:
            await change
        finally:
            del self._changes[key]

    async def _ask(self, question: Question) -> AsyncGenerator[RequestOutput, None]:
        key, params = question.key, question.params
        prompt = question.prompt if isinstance(question.prompt, list) else []
        kind = params.output_kind if isinstance(params, SamplingParams) else RequestOutputKind.FINAL_ONLY
        stream = self._streams[key] = Stream(question.request_id, kind)
        if self.dead_error is not None:
            stream.fail(self.dead_error)
        self._tell(question)
        finished = False
        try:
            while not finished:
                output = await stream.get()
                finished = output.finished
                output.prompt_token_ids = self._prompts.get(key, prompt)
                yield output
        finally:
            del self._streams[key]
            self._prompt_logprobs.pop(key, None)
            self._prompts.pop(key, None)
            if not finished:
                self._tell(key)

    def _tell(self, message: Question | AdapterChange | int) -> None:
        if not self._writer.is_closing():  # then `_read` says so to whoever waits
            self._writer.write(written(message))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Hand out what the engine says until it says no more."""
        try:
            with contextlib.closing(self._writer):
                await self._hand_out_all(reader)
        except Exception as error:  # noqa: BLE001 - everyone who waits must hear of it
            self.dead_error = EngineError(
                f"the engine's answer can't be read: {type(error).__name__}: {error}"
            )
        finally:
            self._watching.cancel()
        self.dead_error = self.dead_error or EngineError(f"the engine failed: {self._ended()}")
        for stream in self._streams.values():
            stream.fail(self.dead_error)
        for change in self._changes.values():
            if not change.done():
                change.set_exception(self.dead_error)

    async def _watch(self) -> None:
        """End a process that says nothing, such as one that is stopped.

        Beats are counted, not time: while this process is stopped, or has no core, none passes.
        """
        while self._silence * BEAT_SECONDS < max(self._seconds, LEAST_BEATS * BEAT_SECONDS):
            await asyncio.sleep(BEAT_SECONDS)
            self._silence += 1
        self.dead_error = EngineError(
            f"the engine failed: {self._name} did not answer within {self._seconds:g} seconds"
        )
        self._process.kill()

    async def _hand_out_all(self, reader: asyncio.StreamReader) -> None:
        while (messages := await read_message(reader)) is not None:
            self._silence = 0
            for message in messages:
                if isinstance(message, Failure):
                    self.dead_error = message.error
                elif isinstance(message, tuple):
                    self._hand_out(*message)
                else:
                    self._stats = message
            if self.dead_error is not None:
                return

    def _hand_out(self, key: int, result: RequestOutput | ArmllmError | bool) -> None:
        change = self._changes.get(key)
        if change is not None and not change.done():
            if isinstance(result, ArmllmError):
                change.set_exception(result)
            else:
                change.set_result(None)
        if isinstance(result, bool):
            return
        stream = self._streams.get(key)
        if stream is None:  # its reader has gone
            return
        if isinstance(result, ArmllmError):
            stream.fail(result)
            return
        if result.prompt_logprobs is not None:  # they come once
            self._prompt_logprobs[key] = result.prompt_logprobs
        result.prompt_logprobs = self._prompt_logprobs.get(key)
        if result.prompt_token_ids:  # with the tokens of pictures; they come once, too
            self._prompts[key] = result.prompt_token_ids
        stream.put(result)

    def _ended(self) -> str:
        """How the process ended, which it has, or is about to."""
        status = self._process.wait()
        if status == -signal.SIGBUS:  # pages of a mapped file that are no longer there
            reason = "a file of the model became shorter while it was in use"
            return f"{self._name} was ended by signal 7: {reason}"
        if status < 0:
            return f"{self._name} was ended by signal {-status} ({signal.strsignal(-status)})"
        return f"{self._name} ended with status {status}"

    def shutdown(self) -> None:
        """End the process. The event loop that reads from it sees the end of the connection."""
        self._process.kill()
        self._process.wait()
        if self._reading is None:
            self._connection.close()
