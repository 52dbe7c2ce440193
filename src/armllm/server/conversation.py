"""A conversation, prepared for the engine: prompt, parameters, and the parser of the answer.

/v1/chat/completions and /v1/responses both end up here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from armllm.errors import RequestError
from armllm.pictures import take_pictures
from armllm.sampling_params import StructuredOutputsParams
from armllm.server.errors import ApiError
from armllm.server.events import Parser, PlainParser
from armllm.server.generation import generate
from armllm.server.protocol.chat import ChatRequest, Message, NamedTool, TemplateOptions, Tool
from armllm.server.reasoning import REASONING_PARSERS
from armllm.server.tools import TOOL_PARSERS
from armllm.server.tools.calls import ListParser, NamedParser
from armllm.server.tools.harmony import STOP_TOKENS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from armllm.outputs import RequestOutput
    from armllm.sampling_params import SamplingParams
    from armllm.server.prompts import Prompt
    from armllm.server.service import Service

# A function that is given without parameters has none: so says OpenAI's reference.
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclasses.dataclass(frozen=True)
class Conversation:
    """What the engine is asked; ``parser()`` makes a reader for each answer.

    ``forced`` is the tool that the request names, so that all output is its arguments.
    """

    text: str
    prompt: Prompt
    params: SamplingParams
    tools: str  # "none", "auto", "required" or "named"
    forced: str | None
    names: frozenset[str]
    service: Service

    def outputs(
        self, request_id: str, priority: int | None
    ) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Start the engine on the prompt."""
        return generate(self.service, request_id, [self.prompt], self.params, priority=priority)

    def parser(self) -> Parser:
        """Reads one answer from its beginning."""
        options = self.service.options
        if self.forced is not None:
            return NamedParser(self.forced)
        if self.tools == "required":
            return ListParser()
        parser: Parser = PlainParser()
        if self.tools == "auto" and options.tool_call_parser is not None:
            parser = TOOL_PARSERS[options.tool_call_parser](self.names)
        # an answer whose form is enforced has no place for thoughts
        if options.reasoning_parser is not None and self.params.structured_outputs is None:
            parser = REASONING_PARSERS[options.reasoning_parser](parser, self.text)
        return parser


async def prepare(service: Service, body: ChatRequest) -> Conversation:
    """Check, put into words and tokenize; ApiError or RequestError for what is not supported."""
    service = service.of(body.model)
    mode, forced = _tool_choice(service, body)
    tools = body.tools or []
    text, pictures = await render_prompt(service, body, body.messages, tools if mode != "none" else None)
    prompt = await service.prompts.encode(
        text, add_special_tokens=bool(body.add_special_tokens), truncate_to=body.truncate_prompt_tokens
    )
    if pictures:
        prompt = dataclasses.replace(prompt, pictures=pictures)
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    changes: dict[str, Any] = {}
    harmony = service.options.reads_harmony
    if (mode == "auto" or harmony) and body.skip_special_tokens is None:
        changes["skip_special_tokens"] = False  # the marks of calls are special tokens in some vocabularies
    if harmony and not body.ignore_eos:
        found = [service.tokenizer.token_id(text) for text in STOP_TOKENS]
        stop = [*(body.stop_token_ids or ()), *(token for token in found if token is not None)]
        changes |= {"stop_token_ids": stop} if stop else {}
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError("top_logprobs needs logprobs", param="top_logprobs")
    if body.logprobs:
        changes["logprobs"] = body.top_logprobs or 0
    if body.prompt_logprobs is not None:
        if body.stream:
            raise ApiError("prompt_logprobs can't be streamed", param="prompt_logprobs")
        changes["prompt_logprobs"] = body.prompt_logprobs
    schema = _schema(mode, forced, tools, one_call=body.parallel_tool_calls is False)
    if schema is not None:
        if body.structured() is not None:
            raise ApiError("response_format and a forced tool_choice exclude each other", param="tool_choice")
        changes["structured_outputs"] = StructuredOutputsParams(json=schema)
    params = body.sampling_params(
        service.default_sampling,
        max_tokens=service.prompts.output_tokens(prompt, asked),
        streamed=bool(body.stream),
        **changes,
    )
    names = frozenset(tool.function.name for tool in tools)
    return Conversation(text, prompt, params, mode, forced, names, service)


async def render_prompt(
    service: Service, options: TemplateOptions, messages: list[Message], tools: list[Tool] | None
) -> tuple[str, tuple[bytes, ...]]:
    """A conversation in the words of the chat template, and the pictures in it."""
    going_on = bool(options.continue_final_message)
    begins = not going_on if options.add_generation_prompt is None else options.add_generation_prompt
    variables = dict(options.chat_template_kwargs or {})
    if options.reasoning_effort is not None:
        variables["reasoning_effort"] = options.reasoning_effort
    if options.documents is not None:
        variables["documents"] = options.documents
    taken, pictures = await _take_pictures(
        service, [_message(message.model_dump(exclude_unset=True)) for message in messages]
    )
    text = await service.templates.render(
        taken,
        tools=[tool.model_dump(exclude_unset=True) for tool in tools] if tools else None,
        add_generation_prompt=begins,
        continue_final_message=going_on,
        variables=variables,
    )
    return text, pictures


async def _take_pictures(
    service: Service, messages: list[dict[str, Any]]
) -> tuple[list[Any], tuple[bytes, ...]]:
    """A conversation whose pictures are only marked, and their files, fetched where that is allowed."""
    parts = [part for one in messages if isinstance(one.get("content"), list) for part in one["content"]]
    kinds = [part.get("type") for part in parts if isinstance(part, dict)]
    if "image" in kinds:
        raise ApiError(
            "messages: content of type 'image' is not supported: send an image_url", param="messages"
        )
    count = kinds.count("image_url")
    if not count:
        return messages, ()
    try:
        service.facts.pictures.check(count)
    except RequestError as error:
        raise ApiError(f"messages: image_url: {error}", param="messages") from None
    if "image_pil" in kinds:
        raise ApiError("messages: image_pil is for Python: send an image_url", param="messages")
    fetcher = service.fetcher
    work = functools.partial(take_pictures, messages, fetcher.fetch if fetcher.hosts else None)
    taken, pictures = await asyncio.get_running_loop().run_in_executor(fetcher.executor, work)
    return taken, tuple(pictures)


def _tool_choice(service: Service, body: ChatRequest) -> tuple[str, str | None]:
    """(none, auto, required or named; the name)."""
    choice = body.tool_choice
    names = [tool.function.name for tool in body.tools or []]
    if isinstance(choice, NamedTool):
        if choice.function.name not in names:
            raise ApiError(
                f"tool_choice names {choice.function.name!r:.80}, which is not among the tools",
                param="tool_choice",
            )
        return "named", choice.function.name
    if not names:
        if choice in ("auto", "required"):
            raise ApiError("tool_choice needs tools", param="tool_choice")
        return "none", None
    choice = choice or "auto"
    if choice == "auto" and not (
        service.options.enable_auto_tool_choice and service.options.tool_call_parser
    ):
        raise ApiError(
            "tool_choice auto needs a server with --enable-auto-tool-choice and --tool-call-parser",
            param="tool_choice",
        )
    return choice, None


def _schema(mode: str, forced: str | None, tools: list[Tool], *, one_call: bool) -> dict[str, Any] | None:
    """What the output must look like so that it is a call."""
    if mode == "named":
        tool = next(tool for tool in tools if tool.function.name == forced)
        return tool.function.parameters or NO_PARAMETERS
    if mode != "required":
        return None
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.function.name},
                "parameters": tool.function.parameters or NO_PARAMETERS,
            },
            "required": ["name", "parameters"],
            "additionalProperties": False,
        }
        for tool in tools
    ]
    most = {"maxItems": 1} if one_call else {}
    return {"type": "array", "minItems": 1, **most, "items": {"anyOf": calls}}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Without the empty fields that clients send back with what the model said before."""
    return {name: value for name, value in message.items() if value is not None or name == "content"}
