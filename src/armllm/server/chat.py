"""POST /v1/chat/completions."""

from __future__ import annotations

import functools
import time
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING

from armllm.server import logprobs
from armllm.server.conversation import Conversation, prepare
from armllm.server.errors import ApiError
from armllm.server.events import CallStart, Event, Parser, Reasoning, Text
from armllm.server.http import DONE, data, event_stream, long_json_response, read_body, unless_disconnected
from armllm.server.limits import away_if
from armllm.server.protocol.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    ChatRequest,
    ToolCall,
)
from armllm.server.service import Service, new_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request
    from starlette.responses import Response

    from armllm.outputs import CompletionOutput, RequestOutput
    from armllm.server.protocol.completions import Usage


async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    body = await read_body(request, ChatRequest)
    if body.stream_options is not None and not body.stream:
        raise ApiError("stream_options needs stream", param="stream_options")
    conversation = await unless_disconnected(request, prepare(service, body))
    run = Run(conversation, body)
    if body.stream:
        return await event_stream(request, run.events(), lambda error: data(error.body()) + DONE)
    return await long_json_response(await unless_disconnected(request, run.completion()))


class Answer:
    """One of the n answers while it is read."""

    def __init__(self, run: Run) -> None:
        self._parser: Parser = run.conversation.parser()
        self._one_call = run.body.parallel_tool_calls is False
        self._reasoning = run.body.include_reasoning is not False
        self._short_ids = run.conversation.service.options.tool_call_parser == "mistral"
        self.started = False
        self.has_calls = False

    def read(self, completion: CompletionOutput) -> list[AssistantMessage]:
        """What is new, as deltas."""
        events = self._parser.feed(completion.text)
        if completion.finish_reason is not None:
            events += self._parser.finish()
        return [delta for event in events if (delta := self._delta(event)) is not None]

    def _delta(self, event: Event) -> AssistantMessage | None:
        if isinstance(event, Text):
            return {"content": event.text}
        if isinstance(event, Reasoning):
            # the name DeepSeek gave it, and vLLM's newer one
            text = event.text
            return {"reasoning": text, "reasoning_content": text} if self._reasoning else None
        if self._one_call and event.index > 0:
            return None
        self.has_calls = True
        if isinstance(event, CallStart):
            call: ToolCall = {
                "index": event.index,
                "id": self._call_id(),
                "type": "function",
                "function": {"name": event.name, "arguments": ""},
            }
        else:
            call = {"index": event.index, "function": {"arguments": event.text}}
        return {"tool_calls": [call]}

    def _call_id(self) -> str:
        """Mistral's templates insist on nine characters."""
        return uuid.uuid4().hex[:9] if self._short_ids else f"call_{uuid.uuid4().hex}"


class Run:
    """One request: what the engine computes, and how its outputs become an answer."""

    def __init__(self, conversation: Conversation, body: ChatRequest) -> None:
        self.conversation = conversation
        self.body = body
        self.id = new_id("chatcmpl-", body.request_id)
        self.created = int(time.time())
        self._answers: defaultdict[int, Answer] = defaultdict(lambda: Answer(self))
        self._completion_tokens = 0
        self._cached = 0
        self._prompt_tokens = len(conversation.prompt.token_ids)

    def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Start the engine on the prompt."""
        return self.conversation.outputs(self.id, self.body.priority)

    async def completion(self) -> ChatCompletion:
        """Everything at once."""
        choices: list[ChatChoice] = []
        answer: ChatCompletion = {
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.conversation.service.model,
            "choices": choices,
            "usage": self._usage(),
            "system_fingerprint": None,
        }
        async for _, output in self.outputs():
            self._count(output)
            make = functools.partial(self._choices, output)
            choices += await away_if(self.conversation.params.wants_logprobs, make)
            if self.body.return_token_ids:
                answer["prompt_token_ids"] = output.prompt_token_ids
            if self.body.prompt_logprobs is not None:
                answer["prompt_logprobs"] = logprobs.prompt_logprobs(output.prompt_logprobs or [])
        answer["usage"] = self._usage()
        return answer

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events: deltas of the answers, the usage if the request wants it, and the end mark."""
        options = self.body.stream_options
        with_usage = bool(options and options.include_usage)
        running = bool(options and options.continuous_usage_stats)
        async for _, output in self.outputs():
            self._count(output)
            for completion in output.outputs:
                for choice in self._chunk_choices(completion):
                    event = self._chunk([choice])
                    if with_usage or running:
                        event["usage"] = self._usage() if running else None
                    if self.body.return_token_ids and "role" in choice["delta"]:
                        event["prompt_token_ids"] = output.prompt_token_ids
                    yield data(event)
        if with_usage:
            yield data({**self._chunk([]), "usage": self._usage()})
        yield DONE

    def _chunk(self, choices: list[ChatChunkChoice]) -> ChatChunk:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.conversation.service.model,
            "choices": choices,
            "system_fingerprint": None,
        }

    def _chunk_choices(self, completion: CompletionOutput) -> list[ChatChunkChoice]:
        """The role first, then a delta per event; the last carries what is said once."""
        answer = self._answers[completion.index]
        deltas: list[AssistantMessage] = []
        if not answer.started:
            answer.started = True
            deltas.append({"role": "assistant", "content": ""})
        new = answer.read(completion)
        last = completion.finish_reason is not None
        found = self._logprobs(completion)
        if last or (found is not None and not new):  # what has no text still has its tokens
            new.append({})
        choices: list[ChatChunkChoice] = [
            {"index": completion.index, "delta": delta, "logprobs": None, "finish_reason": None}
            for delta in [*deltas, *new]
        ]
        if new:
            choices[len(deltas)]["logprobs"] = found
            if self.body.return_token_ids:
                choices[len(deltas)]["token_ids"] = list(completion.token_ids)
        if last:
            choices[-1]["finish_reason"] = self._finish_reason(answer, completion)
            choices[-1]["stop_reason"] = completion.stop_reason
        return choices

    def _choices(self, output: RequestOutput) -> list[ChatChoice]:
        return [self._choice(completion) for completion in output.outputs]

    def _choice(self, completion: CompletionOutput) -> ChatChoice:
        answer = self._answers[completion.index]
        message = _merged(answer.read(completion))
        choice: ChatChoice = {
            "index": completion.index,
            "message": message,
            "logprobs": self._logprobs(completion),
            "finish_reason": self._finish_reason(answer, completion),
            "stop_reason": completion.stop_reason,
        }
        if self.body.return_token_ids:
            choice["token_ids"] = list(completion.token_ids)
        return choice

    def _finish_reason(self, answer: Answer, completion: CompletionOutput) -> str:
        reason = completion.finish_reason or "stop"
        # OpenAI says "stop" after the call of a tool that the request has named
        if reason == "stop" and answer.has_calls and self.conversation.forced is None:
            return "tool_calls"
        return reason

    def _logprobs(self, completion: CompletionOutput) -> ChatLogprobs | None:
        if not self.body.logprobs:
            return None
        tokenizer = self.conversation.service.tokenizer
        return logprobs.chat_logprobs(
            completion.token_ids, completion.logprobs or [], self.body.top_logprobs or 0, tokenizer
        )

    def _count(self, output: RequestOutput) -> None:
        self._completion_tokens += sum(len(completion.token_ids) for completion in output.outputs)
        self._cached = output.num_cached_tokens
        self._prompt_tokens = len(output.prompt_token_ids)  # with those of pictures

    def _usage(self) -> Usage:
        prompt = self._prompt_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._completion_tokens,
            "total_tokens": prompt + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }


def _merged(deltas: list[AssistantMessage]) -> AssistantMessage:
    """A whole message from its deltas."""
    content = "".join(delta.get("content") or "" for delta in deltas)
    reasoning = "".join(delta.get("reasoning") or "" for delta in deltas)
    calls: dict[int, ToolCall] = {}
    for piece in (piece for delta in deltas for piece in delta.get("tool_calls", [])):
        index = piece["index"]
        if index in calls:
            calls[index]["function"]["arguments"] += piece["function"]["arguments"]
        else:
            calls[index] = {
                "id": piece["id"],
                "type": "function",
                "function": {**piece["function"]},
            }
    message: AssistantMessage = {
        "role": "assistant",
        "content": content if content or not (calls or reasoning) else None,
        "refusal": None,
        # programs for vLLM read them of every message
        "reasoning": reasoning or None,
        "reasoning_content": reasoning or None,
    }
    if calls:
        message["tool_calls"] = list(calls.values())
    return message
