"""Requests in, outputs out, one step at a time; the offline API and a server drive the same engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.engine import logprobs
from armllm.engine.block_manager import BlockManager
from armllm.engine.logits import adjust
from armllm.engine.model_runner import ModelRunner
from armllm.engine.processor import Processor
from armllm.engine.reporting import report
from armllm.engine.sampler import sample
from armllm.engine.scheduler import Scheduler
from armllm.errors import CheckpointError, RequestError
from armllm.models import read_model_config
from armllm.models.generation import read_end_token_ids
from armllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from armllm.engine.config import EngineConfig
    from armllm.engine.sequence import Request, Sequence
    from armllm.outputs import RequestOutput
    from armllm.sampling_params import SamplingParams


class LLMEngine:
    """Scheduler, model runner and sampler around one checkpoint."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        architecture, model_config = read_model_config(config.model_folder)
        self.tokenizer = None if config.skip_tokenizer_init else Tokenizer(config.tokenizer_folder)
        if self.tokenizer is not None and self.tokenizer.vocab_size > model_config.vocab_size:
            raise CheckpointError(
                f"the tokenizer in {config.tokenizer_folder} has {self.tokenizer.vocab_size} tokens, the"
                f" model only {model_config.vocab_size}: they don't belong together"
            )
        self.runner = ModelRunner(config, architecture, model_config)
        self.processor = Processor(
            self.tokenizer,
            vocab_size=model_config.vocab_size,
            max_model_len=self.runner.max_model_len,
            end_token_ids=read_end_token_ids(config.model_folder, model_config, self.tokenizer),
            seed=config.seed,
        )
        self.blocks = BlockManager(
            self.runner.num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching
        )
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        self.requests: dict[str, Request] = {}

    def add_request(self, request_id: str, prompt: str | list[int], params: SamplingParams) -> None:
        """Check and queue a request; RequestError says what can't be honoured."""
        self.add(self.processor.make_request(request_id, prompt, params))

    def add(self, request: Request) -> None:
        """Queue a request that the processor made."""
        if request.request_id in self.requests:
            raise RequestError(f"request id {request.request_id!r} is in use")
        self.requests[request.request_id] = request
        for sequence in request.sequences:
            self.scheduler.add(sequence)

    def get_tokenizer(self) -> Tokenizer:
        """The checkpoint's tokenizer, or RequestError where it was not loaded."""
        if self.tokenizer is None:
            raise RequestError("skip_tokenizer_init=True: there is no tokenizer")
        return self.tokenizer

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self.requests)

    def abort(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """Drop requests, wherever they are, and return what they had to say; unknown ids are fine."""
        dropped = [self.requests.pop(request_id) for request_id in request_ids if request_id in self.requests]
        unfinished = [
            sequence for request in dropped for sequence in request.sequences if not sequence.finished
        ]
        self.scheduler.finish(unfinished)
        for sequence in unfinished:
            sequence.abort()
        return [output for request in dropped if (output := report(request)) is not None]

    def step(self) -> list[RequestOutput]:
        """Run one step; return the outputs of the requests that advanced, each by its ``output_kind``.

        If it fails or is interrupted, all requests are dropped and the prefix cache is emptied, since nobody
        knows which blocks were written; the engine can then be used again.
        """
        try:
            return self._step()
        except BaseException:
            self.abort(list(self.requests))
            self.blocks.forget()
            raise

    def _step(self) -> list[RequestOutput]:
        scheduled = self.scheduler.schedule()
        logits = self.runner.run(scheduled)
        sampling = [sequence for sequence in scheduled if sequence.samples_next]
        for sequence in scheduled:
            sequence.num_computed_tokens += sequence.num_scheduled_tokens
            sequence.num_scheduled_tokens = 0
        if not sampling:
            return []
        self._sample(logits, sampling)
        self.scheduler.finish([sequence for sequence in sampling if sequence.finish_reason is not None])
        outputs = []
        for request_id in dict.fromkeys(sequence.request_id for sequence in sampling):
            request = self.requests[request_id]
            if request.finished:
                del self.requests[request_id]
            output = report(request)
            if output is not None:
                outputs.append(output)
        return outputs

    def _sample(self, logits: Tensor, sequences: list[Sequence]) -> None:
        """Choose and append a token per row."""
        raw = logprobs.raw_logprobs(logits, sequences)
        adjust(logits, sequences)
        uniforms = [0.0 if sequence.params.greedy else sequence.random.random() for sequence in sequences]
        token_ids = sample(logits, [sequence.params for sequence in sequences], uniforms)
        for row, values in raw.items():
            count = sequences[row].params.logprobs or 0
            described = logprobs.describe(values, token_ids[row], count, self.tokenizer)
            sequences[row].logprobs.append(described)
            sequences[row].cumulative_logprob += described[token_ids[row]].logprob
        for sequence, token_id in zip(sequences, token_ids, strict=True):
            sequence.append(token_id)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is accounted for and dropped requests left nothing."""
        active = [sequence for request in self.requests.values() for sequence in request.sequences]
        known = {*self.scheduler.running, *self.scheduler.waiting}
        if known != {sequence for sequence in active if not sequence.finished}:
            raise AssertionError("the scheduler's sequences are not those of the requests")
        self.blocks.check_integrity(self.scheduler.running)
