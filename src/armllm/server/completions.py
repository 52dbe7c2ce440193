"""POST /v1/completions."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from armllm.server import logprobs
from armllm.server.errors import ApiError
from armllm.server.generation import generate
from armllm.server.http import DONE, data, event_stream, long_json_response, read_body, unless_disconnected
from armllm.server.limits import away_if
from armllm.server.protocol.completions import Completion, CompletionChoice, CompletionRequest, Usage
from armllm.server.service import Service, new_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from armllm.outputs import CompletionOutput, Logprob, RequestOutput
    from armllm.sampling_params import SamplingParams
    from armllm.server.prompts import Prompt


async def create_completion(request: Request) -> Response:
    """Complete one prompt or several."""
    service: Service = request.app.state.service
    body = await read_body(request, CompletionRequest)
    run = await unless_disconnected(request, Run.prepare(service, body))
    if body.stream:
        return await event_stream(request, run.events(), lambda error: data(error.body()) + DONE)
    return await long_json_response(await unless_disconnected(request, run.completion()))


class Run:
    """One request: its prompts, what the engine computes, and how its outputs become an answer."""

    def __init__(
        self, service: Service, body: CompletionRequest, prompts: list[Prompt], params: SamplingParams
    ) -> None:
        self.service = service
        self.body = body
        self.prompts = prompts
        self.params = params
        self.id = new_id("cmpl-", body.request_id)
        self.created = int(time.time())
        self.usage: Usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        self._cached = 0
        self._seen: set[int] = set()
        self._offsets: dict[int, int] = {}

    @classmethod
    async def prepare(cls, service: Service, body: CompletionRequest) -> Run:
        """Check and tokenize; ApiError or RequestError for what is not supported."""
        service = service.of(body.model)
        if body.stream and body.echo and body.max_tokens == 0:
            raise ApiError("max_tokens 0 with echo can't be streamed", param="stream")
        if body.max_tokens == 0 and not body.echo:
            raise ApiError("max_tokens 0 needs echo: there would be no answer", param="max_tokens")
        if body.stream_options is not None and not body.stream:
            raise ApiError("stream_options needs stream", param="stream_options")
        prompts = await service.prompts.read(
            body.prompt,
            field="prompt",
            add_special_tokens=body.add_special_tokens is not False,
            truncate_to=body.truncate_prompt_tokens,
            copies=body.n or 1,
        )
        lengths = {service.prompts.output_tokens(prompt, body.max_tokens) for prompt in prompts}
        wanted: dict[str, Any] = {}
        if body.logprobs is not None:
            wanted["logprobs"] = body.logprobs
        if body.prompt_logprobs is not None or (body.echo and body.logprobs is not None):
            wanted["prompt_logprobs"] = max(body.prompt_logprobs or 0, body.logprobs or 0)
        # None: each prompt as far as it goes, which the engine works out
        max_tokens = None if body.max_tokens is None else max(1, min(lengths))
        params = body.sampling_params(
            service.default_sampling, max_tokens=max_tokens, streamed=bool(body.stream), **wanted
        )
        return cls(service, body, prompts, params)

    def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Start the engine on the prompts."""
        return generate(self.service, self.id, self.prompts, self.params, priority=self.body.priority)

    async def completion(self) -> Completion:
        """Everything at once."""
        choices: list[CompletionChoice] = []
        async for index, output in self.outputs():
            self._count(index, output)
            make = functools.partial(self._choices, index, output)
            choices += await away_if(self.params.wants_logprobs, make)
        choices.sort(key=lambda choice: choice["index"])
        return {**self._envelope(choices), "usage": self._whole_usage()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events: a piece of text each, the usage if the request wants it, and the end mark."""
        options = self.body.stream_options
        with_usage = bool(options and options.include_usage)
        running = bool(options and options.continuous_usage_stats)
        async for index, output in self.outputs():
            self._count(index, output)
            for completion in output.outputs:
                event = self._envelope([self._choice(index, output, completion)])
                if with_usage or running:
                    event["usage"] = self._whole_usage() if running else None
                yield data(event)
        if with_usage:
            yield data({**self._envelope([]), "usage": self._whole_usage()})
        yield DONE

    def _envelope(self, choices: list[CompletionChoice]) -> Completion:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.service.model,
            "choices": choices,
            "system_fingerprint": None,
        }

    def _count(self, index: int, output: RequestOutput) -> None:
        if index not in self._seen:
            self._seen.add(index)
            self.usage["prompt_tokens"] += len(output.prompt_token_ids)
            self._cached += output.num_cached_tokens
        if self.body.max_tokens != 0:
            self.usage["completion_tokens"] += sum(len(one.token_ids) for one in output.outputs)

    def _whole_usage(self) -> Usage:
        prompt, answer = self.usage["prompt_tokens"], self.usage["completion_tokens"]
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }

    def _choices(self, index: int, output: RequestOutput) -> list[CompletionChoice]:
        return [self._choice(index, output, completion) for completion in output.outputs]

    def _choice(
        self, prompt_index: int, output: RequestOutput, completion: CompletionOutput
    ) -> CompletionChoice:
        body, prompt = self.body, self.prompts[prompt_index]
        index = prompt_index * self.params.n + completion.index
        first = index not in self._offsets
        text, token_ids, steps = completion.text, completion.token_ids, list(completion.logprobs or [])
        reason = completion.finish_reason
        if body.max_tokens == 0:  # one token was generated because the engine can't do none
            text, token_ids, steps, reason = "", [], [], "length"
        all_ids = list(token_ids)
        all_steps: list[dict[int, Logprob] | None] = [*steps]
        if body.echo and first:
            text = self._prompt_text(prompt) + text
            if body.logprobs is not None:
                all_ids = [*output.prompt_token_ids, *token_ids]
                all_steps = [*(output.prompt_logprobs or []), *steps]
        choice: CompletionChoice = {
            "index": index,
            "text": text,
            "logprobs": None
            if body.logprobs is None
            else logprobs.completion_logprobs(
                all_ids, all_steps, body.logprobs, self._offsets.get(index, 0), self.service.tokenizer
            ),
            "finish_reason": reason,
            "stop_reason": completion.stop_reason,
        }
        self._offsets[index] = self._offsets.get(index, 0) + len(text)
        if body.return_token_ids:
            choice["token_ids"] = list(token_ids)
            if first:
                choice["prompt_token_ids"] = output.prompt_token_ids
        if body.prompt_logprobs is not None and first:
            choice["prompt_logprobs"] = logprobs.prompt_logprobs(output.prompt_logprobs or [])
        return choice

    def _prompt_text(self, prompt: Prompt) -> str:
        if prompt.text is not None:
            return prompt.text
        return self.service.tokenizer.decode(prompt.token_ids)
