"""Requests in, outputs out, one step at a time; the offline API and a server drive the same engine."""

from __future__ import annotations

import array
import random
from typing import TYPE_CHECKING

from armllm.engine.block_manager import BlockManager
from armllm.engine.detokenizer import Detokenizer
from armllm.engine.model_runner import ModelRunner
from armllm.engine.sampler import sample
from armllm.engine.scheduler import Scheduler
from armllm.engine.sequence import Request, Sequence
from armllm.errors import CheckpointError, RequestError
from armllm.models.generation import read_end_token_ids
from armllm.outputs import CompletionOutput, RequestOutput
from armllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from armllm.engine.config import EngineConfig
    from armllm.sampling_params import SamplingParams


class LLMEngine:
    """Scheduler, model runner and sampler around one checkpoint."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.tokenizer = None if config.skip_tokenizer_init else Tokenizer(config.tokenizer_folder)
        self.runner = ModelRunner(config)
        self.vocab_size = self.runner.model_config.vocab_size
        self.max_model_len = self.runner.max_model_len
        if self.tokenizer is not None and self.tokenizer.vocab_size > self.vocab_size:
            raise CheckpointError(
                f"the tokenizer in {config.tokenizer_folder} has {self.tokenizer.vocab_size} tokens, the"
                f" model only {self.vocab_size}: they don't belong together"
            )
        self.end_token_ids = read_end_token_ids(config.model_folder, self.runner.model_config, self.tokenizer)
        self.blocks = BlockManager(
            self.runner.num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching
        )
        self.scheduler = Scheduler(
            self.blocks,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        )
        self.requests: dict[str, Request] = {}
        self._seeds = random.Random(config.seed)  # noqa: S311 - sampling, not secrecy

    def check_prompt(self, prompt: str | list[int], params: SamplingParams) -> list[int]:
        """The prompt's token ids; RequestError if the model can't take it."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError("skip_tokenizer_init=True: prompts must be token ids")
            token_ids = self.tokenizer.encode(prompt)
        else:
            token_ids = list(prompt)
            for token_id in token_ids:
                if (
                    not isinstance(token_id, int)
                    or isinstance(token_id, bool)
                    or not 0 <= token_id < self.vocab_size
                ):
                    raise RequestError(
                        f"prompt token id {token_id!r} is not in the vocabulary of {self.vocab_size}"
                    )
        if not token_ids:
            raise RequestError("the prompt is empty: it has no tokens")
        if len(token_ids) >= self.max_model_len:
            raise RequestError(
                f"the prompt has {len(token_ids)} tokens; with at least one of output that is more than the"
                f" model's max_model_len {self.max_model_len}"
            )
        for token_id in params.stop_token_ids or ():
            if token_id >= self.vocab_size:
                raise RequestError(
                    f"stop_token_ids: {token_id} is not in the vocabulary of {self.vocab_size}"
                )
        if params.stop and self.tokenizer is None:
            raise RequestError("skip_tokenizer_init=True: stop strings need a tokenizer")
        return token_ids

    def add_request(self, request_id: str, prompt: str | list[int], params: SamplingParams) -> None:
        """Check and queue a request."""
        if request_id in self.requests:
            raise RequestError(f"request id {request_id!r} is in use")
        token_ids = self.check_prompt(prompt, params)
        seed = self._seeds.getrandbits(64) if params.seed is None else params.seed
        room = self.max_model_len - len(token_ids)
        detokenizer = None
        if params.detokenize and self.tokenizer is not None:
            detokenizer = Detokenizer(
                self.tokenizer,
                token_ids,
                stop=params.stop or (),
                include_stop=params.include_stop_str_in_output,
                skip_special_tokens=params.skip_special_tokens,
            )
        sequence = Sequence(
            index=0,
            token_ids=array.array("i", token_ids),
            num_prompt_tokens=len(token_ids),
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            params=params,
            end_token_ids=frozenset() if params.ignore_eos else self.end_token_ids,
            # a string seed is hashed: neighbouring seeds give unrelated streams
            random=random.Random(f"{seed}/0"),  # noqa: S311 - sampling, not secrecy
            detokenizer=detokenizer,
        )
        text = prompt if isinstance(prompt, str) else None
        self.requests[request_id] = Request(request_id, text, token_ids, [sequence])
        self.scheduler.add(sequence)

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self.requests)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests, wherever they are; unknown ids are fine."""
        dropped = [self.requests.pop(request_id) for request_id in request_ids if request_id in self.requests]
        self.scheduler.finish(sequence for request in dropped for sequence in request.sequences)

    def step(self) -> list[RequestOutput]:
        """Run one step and return the requests that it finished.

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
        uniforms = [0.0 if sequence.params.greedy else sequence.random.random() for sequence in sampling]
        token_ids = sample(logits, [sequence.params for sequence in sampling], uniforms) if sampling else []
        for sequence in scheduled:
            sequence.num_computed_tokens += sequence.num_scheduled_tokens
            sequence.num_scheduled_tokens = 0
        for sequence, token_id in zip(sampling, token_ids, strict=True):
            sequence.append(token_id)
        self.scheduler.finish([sequence for sequence in sampling if sequence.finish_reason is not None])
        finished = [request for request in self.requests.values() if request.finished]
        for request in finished:
            del self.requests[request.request_id]
        return [_output(request) for request in finished]

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is accounted for and dropped requests left nothing."""
        active = [sequence for request in self.requests.values() for sequence in request.sequences]
        known = {*self.scheduler.running, *self.scheduler.waiting}
        if known != {sequence for sequence in active if not sequence.finished}:
            raise AssertionError("the scheduler's sequences are not those of the requests")
        self.blocks.check_integrity(self.scheduler.running)


def _output(request: Request) -> RequestOutput:
    return RequestOutput(
        request_id=request.request_id,
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        outputs=[
            CompletionOutput(
                index=sequence.index,
                text=sequence.detokenizer.text if sequence.detokenizer is not None else "",
                token_ids=sequence.output_token_ids,
                finish_reason=sequence.finish_reason,
                stop_reason=sequence.stop_reason,
            )
            for sequence in request.sequences
        ],
        finished=request.finished,
        num_cached_tokens=request.sequences[0].num_cached_tokens or 0,
    )
