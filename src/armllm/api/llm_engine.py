"""Requests in, outputs out, one step at a time; the offline API and a server drive the same engine."""

from __future__ import annotations

import logging
import math
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

from armllm.api.back_ends import back_end
from armllm.api.missing import OF_LOADING, OF_REQUESTS, WithReasons, only_these
from armllm.engine import logprobs
from armllm.engine.adapters import AdapterCache
from armllm.engine.block_manager import BlockManager
from armllm.engine.failures import Alone, of_request, unusable
from armllm.engine.followers import start_followers
from armllm.engine.generation import read_end_token_ids
from armllm.engine.metrics import read_metrics
from armllm.engine.placement import place, unconfine
from armllm.engine.pooling import Pooling, pooled_values
from armllm.engine.processor import Processor
from armllm.engine.prompts import as_prompt
from armllm.engine.ranks import check_processes
from armllm.engine.reporting import report
from armllm.engine.sampler import Sampler
from armllm.engine.scheduler import Scheduler
from armllm.engine.states import StateSlots
from armllm.engine.stats import EngineStats, Stopwatch
from armllm.errors import ArmllmError, CheckpointError, EngineError, RequestError
from armllm.pooling_params import PoolingParams
from armllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from armllm.engine.arg_utils import EngineArgs
    from armllm.engine.config import EngineConfig
    from armllm.engine.metrics import Metric
    from armllm.engine.prompts import Prompt
    from armllm.engine.runner import Flight
    from armllm.engine.sampler import Choice
    from armllm.engine.sequence import Request, Sequence
    from armllm.lora.request import LoRARequest
    from armllm.outputs import RequestOutput
    from armllm.sampling_params import SamplingParams


logger = logging.getLogger(__name__)


class LLMEngine(WithReasons):
    """Scheduler, model runner and sampler around one checkpoint."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        load, model_config = back_end(config)
        self.tokenizer = None if config.skip_tokenizer_init else Tokenizer(config.tokenizer_folder)
        if self.tokenizer is not None and self.tokenizer.vocab_size > model_config.vocab_size:
            raise CheckpointError(
                f"the tokenizer in {config.tokenizer_folder} has {self.tokenizer.vocab_size} tokens, the"
                f" model only {model_config.vocab_size}: they don't belong together"
            )
        counts = check_processes(config, model_config)
        if config.enable_lora and model_config.is_encoder:
            raise RequestError(
                f"enable_lora is not supported for encoders, and {model_config.architecture} is one:"
                " merge the adapter into its weights"
            )
        self._process = os.getpid()
        unconfine()
        self.followers = start_followers(config, counts)
        try:
            self.placement = place(0, config.num_local)
            self.runner = load(self.placement, self.followers)
        except BaseException:
            if self.followers is not None:
                self.followers.close()
            raise
        slots = self.runner.slots
        if slots is not None:
            logger.info("LoRA is on: decode steps with an adapter are not recorded")
        self.adapters = AdapterCache(config, self.runner.adapter_shapes)
        self.processor = Processor(
            self.tokenizer,
            model_config=model_config,
            max_model_len=self.runner.max_model_len,
            pooling=Pooling.of(config.model_folder, model_config, self.runner.model, self.runner.dtype),
            end_token_ids=read_end_token_ids(config.model_folder, model_config, self.tokenizer),
            config=config,
            adapters=self.adapters,
        )
        self.blocks = BlockManager(
            self.runner.num_blocks,
            self.runner.block_size,
            enable_prefix_caching=config.enable_prefix_caching and not model_config.is_encoder,
            switch_length=model_config.rope_switch_length,
            states=StateSlots(self.runner.num_states) if self.runner.num_states else None,
        )
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_adapters=config.max_loras,
            num_steps=self.runner.num_steps,
            whole=model_config.is_encoder,
        )
        self.sampler = Sampler(self.runner, self._alone)
        self.requests: dict[str, Request] = {}
        self._flights: deque[Flight] = deque()  # steps that several stages compute
        self._stopwatch = Stopwatch()
        self._num_prompt_tokens = self._num_generation_tokens = self._num_steps = 0

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **neutral: Any) -> LLMEngine:
        """Load the model that the options name. ``neutral``: vLLM's others, such as ``usage_context``."""
        return cls.from_vllm_config(engine_args.create_engine_config(neutral.get("usage_context")), **neutral)

    @classmethod
    def from_vllm_config(cls, vllm_config: EngineConfig, **neutral: Any) -> LLMEngine:
        """Load the model of `EngineArgs.create_engine_config`."""
        only_these(neutral, OF_LOADING)
        return cls(vllm_config)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | PoolingParams,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
        *,
        priority: int = 0,
        **neutral: Any,
    ) -> str:
        """Check and queue a request; return its id. Raises RequestError for what is not supported.

        ``arrival_time``: the wall-clock time in ``RequestOutput.metrics``; default: now. ``neutral``: vLLM's
        others, such as ``trace_headers=None``.
        """
        only_these(neutral, OF_REQUESTS)
        engine_prompt = as_prompt(prompt)
        if isinstance(params, PoolingParams):
            request = self.processor.make_pooling_request(
                request_id, engine_prompt, params, priority, lora_request
            )
        else:
            request = self.processor.make_request(request_id, engine_prompt, params, priority, lora_request)
        if arrival_time is not None:
            request.arrival_time = arrival_time
        self.add(request)
        return request_id

    def add(self, request: Request) -> None:
        """Queue a request that the processor made."""
        if request.request_id in self.requests:
            raise RequestError(f"request id {request.request_id!r} is in use")
        self.requests[request.request_id] = request
        self._num_prompt_tokens += len(request.prompt_token_ids)
        for sequence in request.sequences:
            self.scheduler.add(sequence)

    def get_tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer, or RequestError where it was not loaded."""
        if self.tokenizer is None:
            raise RequestError("skip_tokenizer_init=True: there is no tokenizer")
        return self.tokenizer

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Read an adapter now, so that no request waits for it; may be called from any thread.

        RequestError or CheckpointError says why it is refused.
        """
        return self.adapters.get(lora_request) is not None

    def remove_lora(self, lora_id: int) -> bool:
        """Remove an adapter from memory; running requests still use it. Return whether it was there."""
        return self.adapters.forget(lora_id)

    def list_loras(self) -> set[int]:
        """The numbers of the adapters in memory."""
        return self.adapters.numbers()

    def get_num_unfinished_requests(self) -> int:
        """How many requests are queued or run."""
        return len(self.requests)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self.requests)

    def abort(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """Drop requests and return their last outputs; unknown ids are ignored."""
        dropped = [self.requests.pop(request_id) for request_id in request_ids if request_id in self.requests]
        unfinished = [
            sequence for request in dropped for sequence in request.sequences if not sequence.finished
        ]
        self.scheduler.finish(unfinished)
        for sequence in unfinished:
            sequence.cut("abort")
        return [output for request in dropped if (output := report(request)) is not None]

    @torch.inference_mode()
    def step(self, *, several: bool = False) -> list[RequestOutput]:
        """Run one step; return the outputs of the requests that advanced, each by its ``output_kind``.

        ``several``: nobody wants to add or abort a request before there is an output. Then decodes go on in
        the same call until one ends or a step has to be scheduled, which saves most of the work between two.

        If it fails or is interrupted, all requests are dropped and the prefix cache is emptied, since nobody
        knows which blocks were written; the engine can then be used again. Not so where several ranks compute
        the model: they no longer agree, and every later step is an EngineError.
        """
        if self.followers is not None and os.getpid() != self._process:  # whose steps would find other blocks
            raise EngineError("a forked process may not use the ranks of its parent: load the model there")
        started = time.monotonic()
        try:
            outputs = self._step(several=several)
        except BaseException as error:
            self.abort(list(self.requests))
            self.blocks.forget()
            if self.followers is not None and isinstance(error, RuntimeError | EngineError):
                self.followers.check()
            raise
        finally:
            self._stopwatch.begin(None)
        self.scheduler.ran(time.monotonic() - started)
        return outputs

    def _step(self, *, several: bool) -> list[RequestOutput]:
        self._num_steps += 1
        scheduled, logits = self._compute()
        failed: list[Sequence] = []
        ready: list[Sequence] = []
        for sequence in scheduled:
            if sequence.finished:
                failed.append(sequence)
                continue
            if sequence.reaches_end:
                ready.append(sequence)
            sequence.num_computed_tokens += sequence.num_scheduled_tokens
            sequence.num_scheduled_tokens = 0
        sampling = [sequence for sequence in ready if sequence.pooler is None]
        if sampling:
            self._sample(logits, sampling)
            if several:
                self._decode_on(sampling)
        self._stopwatch.begin("detokenize")
        for sequence in sampling:
            if sequence.shows_text and not sequence.finished:  # it may have failed
                with self._alone(sequence):
                    sequence.detokenize()
        self.scheduler.finish(s for s in ready if s.finish_reason is not None or s.pooler is not None)
        return self._report([*failed, *ready])

    def _decode_on(self, sequences: list[Sequence]) -> None:
        """Decode more of sequences that have sampled, while none ends and nobody looks at what comes.

        Steps of a small model take a ms and empty the caches, so a call of Python is a thousandth of that.
        """
        if any(one.params.streams or one.params.stop or one.reader is not None for one in sequences):
            return
        for _ in range(self.scheduler.room(sequences)):
            for one in sequences:
                if one.finish_reason is not None or not one.decodes:
                    return
            self._num_steps += 1
            self.scheduler.schedule_again(sequences)
            self._stopwatch.begin("model")
            logits = self.runner.run(sequences, self._alone)
            for one in sequences:
                one.num_computed_tokens += 1
                one.num_scheduled_tokens = 0
            self._sample(logits, sequences)

    def _compute(self) -> tuple[list[Sequence], Tensor]:
        """The sequences of the next step, and its logits; with several stages others are started first."""
        if self.runner.num_steps == 1:
            scheduled = self._schedule()
            self._stopwatch.begin("model")
            return scheduled, self.runner.run(scheduled, self._alone)
        while len(self._flights) < self.runner.num_steps and (scheduled := self._schedule()):
            self._stopwatch.begin("model")
            self._flights.append(self.runner.start(scheduled))
        flight = self._flights.popleft()
        scheduled = flight.live()
        self._stopwatch.begin("model")
        return scheduled, self.runner.land(flight, self._alone)

    def _schedule(self) -> list[Sequence]:
        self._stopwatch.begin("schedule")
        scheduled = self.scheduler.schedule()
        if self.blocks.states is not None:
            self.runner.copy_states(self.blocks.states.take_copies())
        return scheduled

    def _sample(self, logits: Tensor, sequences: list[Sequence]) -> None:
        """Choose and append a token per row."""
        self._stopwatch.begin("sample")
        for sequence, choice in zip(sequences, self.sampler.choose(logits, sequences), strict=True):
            if sequence.finished:  # it, or another one of its request, may have failed
                continue
            try:
                self._take(sequence, choice)
            except Exception as error:  # noqa: BLE001 - as within `_alone`, which is slower
                self._fail(sequence.request_id, of_request(error))

    def _take(self, sequence: Sequence, choice: Choice) -> None:
        """Append what was sampled."""
        token_id = choice.token_id
        if not math.isfinite(choice.logit):
            raise unusable(choice.logit, sequence.adapter.name if sequence.adapter is not None else None)
        if choice.raw is not None:
            count = sequence.params.logprobs or 0
            described = logprobs.describe(choice.raw, token_id, count, self.tokenizer)
            sequence.logprobs.append(described)
            sequence.cumulative_logprob += described[token_id].logprob
        sequence.append(token_id)
        self._num_generation_tokens += 1
        switch_length = self.blocks.switch_length
        if switch_length is not None and sequence.num_tokens - 1 == switch_length:  # its keys no longer hold
            self.scheduler.restart(sequence)

    def _alone(self, sequence: Sequence) -> Alone:
        """An error within ends the request of this sequence and no other."""
        return Alone(self._fail, sequence.request_id)

    def _fail(self, request_id: str, error: ArmllmError) -> None:
        """End all sequences of a request."""
        request = self.requests[request_id]
        request.error = error
        unfinished = [sequence for sequence in request.sequences if not sequence.finished]
        for sequence in unfinished:
            sequence.cut("error")
        self.scheduler.finish(unfinished)

    def _report(self, advanced: list[Sequence]) -> list[RequestOutput]:
        outputs, pooled = [], self._pool(advanced)
        for request_id in dict.fromkeys(sequence.request_id for sequence in advanced):
            request, output = self.requests[request_id], None
            with self._alone(request.sequences[0]):
                output = report(request, pooled.get(request_id))
            if output is None and request.error is not None:
                output = report(request)
            if request.finished:
                del self.requests[request_id]
            if output is not None:
                outputs.append(output)
        return outputs

    def _pool(self, advanced: list[Sequence]) -> dict[str, Any]:
        """What the states of prompts are pooled into, by request, where all of them are there."""
        ready = [one for one in advanced if one.pooler is not None and one.finish_reason is None]
        if not ready:
            return {}
        poolers = [one.pooler for one in ready if one.pooler is not None]
        try:
            return dict(zip([one.request_id for one in ready], pooled_values(poolers), strict=True))
        except Exception:  # noqa: BLE001 - of one request: what each gets does not depend on the others
            found: dict[str, Any] = {}
            for one, pooler in zip(ready, poolers, strict=True):
                with self._alone(one):
                    found[one.request_id] = pooled_values([pooler])[0]
            return found

    def abort_request(
        self,
        request_ids: str | Iterable[str],
        internal: bool = False,  # noqa: ARG002 - of vLLM's workers
    ) -> None:
        """Drop one request or several, without an output; `abort` returns the last outputs."""
        self.abort([request_ids] if isinstance(request_ids, str) else request_ids)

    def reset_prefix_cache(
        self,
        reset_running_requests: bool = False,
        reset_connector: bool = False,  # noqa: ARG002 - there is none
    ) -> bool:
        """Empty the prefix cache; return True.

        reset_running_requests: running requests are computed again from their first token.
        """
        if reset_running_requests:
            for sequence in self.scheduler.running:
                self.scheduler.restart(sequence)
        self.blocks.forget()
        return True

    def get_supported_tasks(self) -> tuple[str, ...]:
        """The tasks that requests may name, in vLLM's terms."""
        generates = ("generate",) if self.processor.generates else ()
        return (*generates, *self.processor.pooling.tasks)

    def do_log_stats(self) -> None:
        """Log the number of requests and the use of the cache."""
        stats = self.stats()
        hits = stats.num_prefix_hits / max(stats.num_prefix_queries, 1)
        logger.info(
            "Running: %d reqs, Waiting: %d reqs, KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%",
            stats.num_running,
            stats.num_waiting,
            100 * stats.num_used_blocks / stats.num_blocks,
            100 * hits,
        )

    def get_metrics(self) -> list[Metric]:
        """The figures of `stats` under the names of vLLM's metrics."""
        return read_metrics(self.stats(), self.config.model)

    def stats(self) -> EngineStats:
        """The engine's load, and its counters since the start; may be called from any thread."""
        scheduler, blocks = self.scheduler, self.blocks
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_preemptions=scheduler.num_preemptions,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generation_tokens=self._num_generation_tokens,
            num_prefix_queries=scheduler.num_prefix_queries,
            num_prefix_hits=scheduler.num_prefix_hits,
            num_blocks=blocks.num_blocks,
            num_used_blocks=blocks.num_blocks - blocks.num_free_blocks,
            block_size=blocks.block_size,
            cache_dtype=str(self.runner.cache_dtype).removeprefix("torch."),
            num_steps=self._num_steps,
            seconds=dict(self._stopwatch.seconds),
            load=self.runner.load_report,
        )

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is accounted for and dropped requests left nothing."""
        active = [sequence for request in self.requests.values() for sequence in request.sequences]
        known = {*self.scheduler.running, *self.scheduler.waiting}
        if known != {sequence for sequence in active if not sequence.finished}:
            raise AssertionError("the scheduler's sequences are not those of the requests")
        self.blocks.check_integrity(self.scheduler.running)
