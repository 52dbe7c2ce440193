"""The engine in a separate thread, for servers: event loops send requests and read outputs as they come."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import itertools
import os
import queue
import sys
import threading
from collections import defaultdict
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from armllm.api.llm_engine import LLMEngine
from armllm.api.missing import OF_LOADING, OF_REQUESTS, WithReasons, only_these
from armllm.engine.caller import Caller
from armllm.engine.facts import EngineFacts
from armllm.engine.generation import read_default_sampling
from armllm.engine.prompts import as_prompt
from armllm.engine.reporting import as_embedding
from armllm.engine.shares import Shares
from armllm.engine.spread import config_of
from armllm.engine.stream import Stream
from armllm.engine.turns import Turns
from armllm.errors import EngineError, RequestError
from armllm.helper_process import LOWEST_PRIORITY
from armllm.inputs import PicturePrompt
from armllm.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from typing_extensions import Self

    from armllm.engine.arg_utils import EngineArgs
    from armllm.engine.config import EngineConfig
    from armllm.engine.prompts import Prompt
    from armllm.engine.sequence import Request
    from armllm.engine.stats import EngineStats
    from armllm.lora.request import LoRARequest
    from armllm.outputs import EmbeddingRequestOutput, RequestOutput
    from armllm.pooling_params import PoolingParams
    from armllm.sampling_params import SamplingParams
    from armllm.tokenizer import Tokenizer

# Shorter prompts are tokenized and checked in less time than it takes to hand them to another thread.
LONG_PROMPT = 2000
LONG_LISTS = 64
GRAMMAR_THREADS = 4
SWITCH_INTERVAL = 0.5e-3  # seconds


class AsyncLLM(WithReasons):
    """A model that is loaded and ready to serve. It takes the options of `EngineConfig`.

    The engine's thread sleeps while there is nothing to do. Any event loop of any thread may call `generate`.
    Any thread may call the other methods.
    """

    def __init__(self, model: str, **options: Any) -> None:
        config = config_of(model, options, "server")
        self._process = os.getpid()
        self.dead_error: Exception | None = None
        # A client that went away may come back with the same id while the engine still has the old request.
        self._keys: dict[str, str] = {}  # request id -> what the engine knows it as
        self._streams: dict[str, Stream] = {}  # by the latter
        self._numbers = itertools.count()
        self._grammars = concurrent.futures.ThreadPoolExecutor(
            GRAMMAR_THREADS, "armllm-grammar", initializer=_lower_priority
        )
        self._pictures = Turns("armllm-pictures")
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        started: concurrent.futures.Future[LLMEngine] = concurrent.futures.Future()
        # OpenMP keeps a team of threads per thread that asks: loading happens where the steps will.
        self._thread = threading.Thread(
            target=self._live,
            args=(config, torch.get_num_threads(), started),
            name="armllm-engine",
            daemon=True,
        )
        self._thread.start()
        self.llm_engine = started.result()
        # Torch's operators let go of the interpreter's lock, and wait up to this long for a busy event loop
        # to hand it back.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL))
        # A daemon thread within torch must not see the interpreter go.
        atexit.register(self.shutdown)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **neutral: Any) -> Self:
        """Load the model that the options name. ``neutral``: vLLM's others, such as ``usage_context``."""
        only_these(neutral, OF_LOADING)
        return cls(**vars(engine_args))

    @classmethod
    def from_vllm_config(cls, vllm_config: EngineConfig, **neutral: Any) -> Self:
        """Load the model of `EngineArgs.create_engine_config`."""
        only_these(neutral, OF_LOADING)
        return cls(**{field.name: getattr(vllm_config, field.name) for field in fields(vllm_config)})

    async def check_health(self) -> None:
        """Raise the error that ended the engine, if one did."""
        if self.dead_error is not None:
            raise self.dead_error

    @property
    def errored(self) -> bool:
        """Whether the engine has failed. Then it serves no request; ``dead_error`` is the reason."""
        return self.dead_error is not None

    @property
    def max_model_len(self) -> int:
        """The largest number of prompt and output tokens of a request."""
        return self.llm_engine.runner.max_model_len

    @property
    def facts(self) -> EngineFacts:
        """What a server has to know of the model; RequestError with ``skip_tokenizer_init``."""
        engine = self.llm_engine
        classes = engine.processor.pooling.classes
        return EngineFacts(
            model=engine.config.model,
            tokenizer=self.get_tokenizer(),
            default_sampling=self.get_default_sampling_params(),
            vocab_size=engine.processor.vocab_size,
            max_model_len=self.max_model_len,
            has_priorities=engine.processor.priorities,
            is_encoder=engine.processor.is_encoder,
            labels=None if classes is None else classes.labels,
            pictures=engine.processor.picture_limit,
            embedding_size=engine.processor.pooling.embedding_size,
        )

    def get_tokenizer(self) -> Tokenizer:
        """Return the checkpoint's tokenizer."""
        return self.llm_engine.get_tokenizer()

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The same, or None where it was not loaded."""
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the checkpoint's generation_config.json over vLLM's defaults."""
        return read_default_sampling(self.llm_engine.config)

    def stats(self) -> EngineStats:
        """Return the engine's load, and its counters since the start."""
        return self.llm_engine.stats()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        *,
        caller: Caller | None = None,
        **neutral: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the outputs of a request, until one is ``finished``. ``output_kind`` decides what they hold.

        A reader that is slower than the engine gets several steps in one output. To stop the request, close
        the iterator or cancel the task that reads it. With scheduling_policy "priority" the lowest
        ``priority`` comes first. ``lora_request``: the adapter. ``caller``: who asks; those who ask for much
        leave others their share. None: each request is one. ``neutral``: vLLM's other arguments, such as
        ``trace_headers=None``.

        Raises RequestError for a bad parameter, ModelError if the model computes logits that give no token
        (NaN), and EngineError if the engine fails.
        """
        only_these(neutral, OF_REQUESTS)
        engine_prompt = as_prompt(prompt)
        make = functools.partial(
            self.llm_engine.processor.make_request,
            prompt=engine_prompt,
            params=sampling_params,
            priority=priority,
            lora_request=lora_request,
        )
        slow = len(engine_prompt) > LONG_PROMPT or sampling_params.num_entries > LONG_LISTS
        # grammars may take seconds: nobody else shall wait for a thread because of them
        executor = self._grammars if sampling_params.structured_outputs is not None else None
        slow = slow or executor is not None or lora_request is not None  # its adapter may have to be read
        slow = slow or isinstance(engine_prompt, PicturePrompt)
        kind = sampling_params.output_kind
        seen = engine_prompt if isinstance(engine_prompt, PicturePrompt) else None
        outputs = self._run(request_id, kind, make, caller=caller, slow=slow, executor=executor, seen=seen)
        async with contextlib.aclosing(outputs):
            async for output in outputs:
                yield output

    async def encode(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: str,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        *,
        caller: Caller | None = None,
        **neutral: Any,
    ) -> EmbeddingRequestOutput:
        """Return the embedding of a prompt. To stop the request, cancel the task that waits.

        Raises as `generate` does.
        """
        only_these(neutral, OF_REQUESTS)
        engine_prompt = as_prompt(prompt)
        make = functools.partial(
            self.llm_engine.processor.make_pooling_request,
            prompt=engine_prompt,
            params=pooling_params,
            priority=priority,
            lora_request=lora_request,
        )
        slow = len(engine_prompt) > LONG_PROMPT or lora_request is not None
        outputs = self._run(request_id, RequestOutputKind.FINAL_ONLY, make, caller=caller, slow=slow)
        async with contextlib.aclosing(outputs):
            return as_embedding(await anext(outputs))

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter now, so that no request waits for it. Raises as `generate` does."""
        return await asyncio.to_thread(self.llm_engine.add_lora, lora_request)

    async def remove_lora(self, lora_id: int) -> bool:
        """Remove an adapter from memory; running requests still use it. Return whether it was there."""
        return self.llm_engine.remove_lora(lora_id)

    async def list_loras(self) -> set[int]:
        """Return the numbers of the adapters in memory."""
        return self.llm_engine.list_loras()

    async def _run(
        self,
        request_id: str,
        kind: RequestOutputKind,
        make: Callable[..., Request],
        *,
        caller: Caller | None,
        slow: bool,
        executor: concurrent.futures.Executor | None = None,
        seen: PicturePrompt | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Queue the request that ``make`` returns for a key, made by ``executor`` if that is ``slow``.

        ``seen``: its prompt, whose pictures have to be read first.
        """
        if os.getpid() != self._process:
            raise EngineError("a forked process has no thread of this engine: make an AsyncLLM there")
        number = next(self._numbers)
        caller = caller or Caller(request=number)
        key = f"{request_id}/{number}"
        if self._keys.setdefault(request_id, key) != key:
            raise RequestError(f"request id {request_id!r} is in use")
        stream = self._streams[key] = Stream(request_id, kind)
        finished = False
        try:
            if seen is not None:
                make = functools.partial(make, prompt=await self._read(seen, caller))
            if slow:
                request = await asyncio.get_running_loop().run_in_executor(executor, make, key)
            else:
                request = make(key)
            for sequence in request.sequences:
                sequence.caller = caller
            if self.dead_error is not None:  # looked at after the stream is known: it is failed here or there
                stream.fail(self.dead_error)
            self._inbox.put(functools.partial(self._add, request))
            while not finished:
                output = await stream.get()
                finished = output.finished
                if output.error is not None:
                    raise output.error
                yield output
        finally:
            del self._streams[key], self._keys[request_id]
            if not finished:
                self._inbox.put(functools.partial(self._drop, key))

    async def _read(self, prompt: PicturePrompt, caller: Caller) -> PicturePrompt:
        """The prompt with its pictures read: one at a time, in turns with those of others."""
        processor = self.llm_engine.processor
        processor.picture_limit.check(len(prompt.pictures))
        assert processor.reader is not None  # noqa: S101 - checked with the others
        reading = processor.reader.read_each(prompt.pictures)
        with self._pictures.of(caller) as do:
            found = [await asyncio.wrap_future(do(functools.partial(next, reading))) for _ in prompt.pictures]
        return prompt._replace(pictures=tuple(found))

    def abort(self, request_id: str) -> None:
        """Stop a request. Its reader gets a last output with finish_reason "abort"."""
        key = self._keys.get(request_id, "")
        stream = self._streams.get(key)
        if stream is not None:
            stream.dropped = True
            self._inbox.put(functools.partial(self._drop, key))

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop the thread after its current step. Every waiting request gets an EngineError.

        ``timeout``: the seconds to wait for that step; default: until it ends.
        """
        atexit.unregister(self.shutdown)
        self._inbox.put(None)
        self._grammars.shutdown(wait=False, cancel_futures=True)
        self._pictures.shutdown()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _live(
        self,
        config: EngineConfig,
        num_threads: int,
        started: concurrent.futures.Future[LLMEngine],
    ) -> None:
        """The thread: load, then take messages and run steps, until it is stopped or a step fails."""
        try:
            torch.set_num_threads(num_threads)
            engine = LLMEngine(config)
            engine.scheduler.shares = Shares()
        except BaseException as error:  # noqa: BLE001 - raised again where AsyncLLM was called
            started.set_exception(error)
            return
        if engine.followers is not None:  # an idle engine hears of a failure, too
            engine.followers.on_failure.append(functools.partial(self._inbox.put, engine.followers.check))
            self._inbox.put(engine.followers.check)  # one may have ended before
        started.set_result(engine)
        try:
            self._serve(engine)
            dead_error = EngineError("the engine was shut down")
        except BaseException as caught:  # noqa: BLE001 - everyone who waits must hear of it
            line = f"{type(caught).__name__}: {caught}".split("\n", 1)[0]
            dead_error = EngineError(f"the engine failed: {line}")
            dead_error.__cause__ = caught
        self.dead_error = dead_error
        for stream in list(self._streams.values()):
            with contextlib.suppress(RuntimeError):  # a loop that is closed waits for nothing
                stream.loop.call_soon_threadsafe(stream.fail, dead_error)

    def _serve(self, engine: LLMEngine) -> None:
        while True:
            try:
                while True:
                    message = self._inbox.get(block=not engine.has_unfinished_requests())
                    if message is None:
                        return
                    message()
            except queue.Empty:
                pass
            self._deliver(engine.step())

    def _add(self, request: Request) -> None:
        self.llm_engine.add(request)
        stream = self._streams.get(request.request_id)
        if stream is None or stream.dropped:  # it was left or aborted while its prompt was tokenized
            self._drop(request.request_id)

    def _drop(self, key: str) -> None:
        self._deliver(self.llm_engine.abort([key]))

    def _deliver(self, outputs: list[RequestOutput]) -> None:
        """Wake each event loop once for all its outputs of a step."""
        by_loop = defaultdict(list)
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                by_loop[stream.loop].append((stream, output))
        for loop, due in by_loop.items():
            try:
                loop.call_soon_threadsafe(_put, due)
            except RuntimeError:  # noqa: PERF203 - the loop is closed, so nobody reads these
                self.llm_engine.abort([output.request_id for _, output in due])


def _lower_priority() -> None:
    """Of this thread, as Linux has it."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)


def _put(due: list[tuple[Stream, RequestOutput]]) -> None:
    for stream, output in due:
        stream.put(output)
