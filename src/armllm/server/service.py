"""What the endpoints share: the engine, the names of its model, its templates and its limits."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import functools
import time
import uuid
from typing import TYPE_CHECKING, Any, TypeVar, cast

from armllm.chat import find_template
from armllm.errors import RequestError
from armllm.inputs import PicturePrompt
from armllm.pictures import take_pictures
from armllm.rendering import Renderer
from armllm.server.adapters import ServedAdapters
from armllm.server.clients import current_caller
from armllm.server.errors import ApiError
from armllm.server.limits import HEAVY_BYTES, HEAVY_TEXT, Limits, weight
from armllm.server.media import Fetcher
from armllm.server.metrics import Metrics
from armllm.server.origins import check_root_path
from armllm.server.protocol.base import MAX_PROMPTS
from armllm.server.reasoning import REASONING_PARSERS
from armllm.server.tools import TOOL_PARSERS
from armllm.tokenizer import CUT_TOKENS

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from armllm.api.async_llm import AsyncLLM
    from armllm.lora.request import LoRARequest
    from armllm.outputs import RequestOutput
    from armllm.sampling_params import SamplingParams
    from armllm.server.engine_process import EngineProcess
    from armllm.tokenizer import Tokenizer

T = TypeVar("T")

# Shorter texts are tokenized in less time than it takes to hand them to another thread.
LONG_TEXT = 2000
MANY_TEXTS = 4
CHARACTERS_PER_TOKEN = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine is given, and the text it came from."""

    token_ids: list[int]
    text: str | None = None
    second_segment: int | None = None  # where the second text of a pair begins
    pictures: tuple[bytes, ...] = ()

    @property
    def for_engine(self) -> list[int] | PicturePrompt:
        """What the engine takes."""
        return PicturePrompt(self.token_ids, self.pictures) if self.pictures else self.token_ids


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The options of the server beside those of the engine.

    served_model_names: names of the model, the first is the one answers bear. api_keys: any of them opens
    /v1; empty: no key is required. chat_template: source of a template instead of the checkpoint's.
    tool_call_parser, reasoning_parser: names in `TOOL_PARSERS` and `REASONING_PARSERS`.
    enable_auto_tool_choice: whether the model may decide to call tools. log_requests: a line per
    request, without its text. log_stats: a line every ten seconds while the engine works.
    allowed_origins: web pages that may use the server. allowed_hosts: public host names that it may be asked
    under where it needs no key. allowed_media_domains: hosts whose pictures are fetched.
    root_path: the prefix under which a proxy offers it. tls: what `tls_context` returns, for HTTPS.
    adapters: served by their names. may_change_adapters: clients may load and unload others.

    Raises RequestError for a parser that does not exist.
    """

    served_model_names: tuple[str, ...]
    api_keys: tuple[str, ...] = ()
    chat_template: str | None = None
    enable_auto_tool_choice: bool = False
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    log_requests: bool = False
    log_stats: bool = True
    allowed_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    allowed_media_domains: tuple[str, ...] = ()
    root_path: str = ""
    tls: ssl.SSLContext | None = None
    adapters: tuple[LoRARequest, ...] = ()
    may_change_adapters: bool = False

    def __post_init__(self) -> None:
        for flag, name, known in (
            ("--tool-call-parser", self.tool_call_parser, TOOL_PARSERS),
            ("--reasoning-parser", self.reasoning_parser, REASONING_PARSERS),
        ):
            if name is not None and name not in known:
                raise RequestError(f"{flag} must be one of {', '.join(known)}, not {name!r}")
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            raise RequestError("--enable-auto-tool-choice needs --tool-call-parser")
        for adapter in self.adapters:
            if adapter.lora_name in self.served_model_names:
                raise RequestError(f"--lora-modules: {adapter.lora_name!r} is the name of the model, too")
        check_root_path(self.root_path)

    @property
    def reads_harmony(self) -> bool:
        """Whether answers have gpt-oss's marks, all of which are special tokens."""
        return self.tool_call_parser == "openai" or self.reasoning_parser == "openai_gptoss"


class Service:
    """One served model."""

    def __init__(self, engine: AsyncLLM | EngineProcess, options: ServerOptions) -> None:
        self.engine = engine
        self.options = options
        self.facts = engine.facts
        self.tokenizer = self.facts.tokenizer
        self.default_sampling = self.facts.default_sampling
        self.max_model_len = self.facts.max_model_len
        self.limits = Limits(self.max_model_len, takes_pictures=self.facts.pictures.takes_any)
        self.fetcher = Fetcher(options.allowed_media_domains)
        self.num_requests = 0  # that are being answered
        self.longest_text = self.max_model_len * self.tokenizer.longest_token
        self.vocab_size = self.facts.vocab_size
        self.model = options.served_model_names[0]
        self.adapter: LoRARequest | None = None
        self.adapters = ServedAdapters(engine, options.adapters, options.served_model_names)
        self.created = int(time.time())
        self.metrics = Metrics(engine, self.model)
        self._templates: dict[tuple[bool, bool], Renderer] = {}
        if options.chat_template is not None:
            self.template(tools=False)  # say now if it can't be compiled

    def of(self, name: str | None) -> Service:
        """Return this service as requests for a model or an adapter see it; ApiError if there is none."""
        if name is None or name in self.options.served_model_names:
            return self
        if name not in self.adapters.loaded:
            raise ApiError(
                f"the model {name!r:.80} does not exist; this server has {self.model!r}",
                status=404,
                param="model",
                code="model_not_found",
            )
        found = copy.copy(self)
        found.model, found.adapter = name, self.adapters.loaded[name]
        return found

    def check_priority(self, priority: int | None) -> None:
        """Refuse a priority where the engine knows none."""
        if priority and not self.facts.has_priorities:
            raise ApiError("priority needs a server with --scheduling-policy priority", param="priority")

    def start(
        self, request_id: str, prompt: Prompt, params: SamplingParams, priority: int | None
    ) -> AsyncIterator[RequestOutput]:
        """The engine's outputs for one prompt."""
        self.check_priority(priority)
        caller = current_caller.get()
        return self.engine.generate(
            prompt.for_engine, params, request_id, priority or 0, self.adapter, caller=caller
        )

    def template(self, *, tools: bool, heavy: bool = False) -> Renderer:
        """The chat template for conversations with or without tools; RequestError if there is none."""
        if (tools, heavy) not in self._templates:  # short conversations don't wait for long ones
            source = self.options.chat_template or find_template(
                self.tokenizer.folder, self.tokenizer.settings, tools=tools
            )
            most = max(self.longest_text, self.limits.body_bytes)
            self._templates[tools, heavy] = Renderer(source, self.tokenizer.special_texts(), most)
        return self._templates[tools, heavy]

    async def encode(self, text: str, *, add_special_tokens: bool, truncate_to: int | None = None) -> Prompt:
        """Tokenize a prompt; the last ``truncate_to`` tokens stay."""
        (prompt,) = await self._encode_all([text], add_special_tokens, truncate_to, keep_end=True)
        return prompt

    async def _encode_all(
        self, texts: Sequence[str], add_special_tokens: bool, truncate_to: int | None, *, keep_end: bool
    ) -> list[Prompt]:
        """Tokenize texts; the last ``truncate_to`` tokens of each stay, or the first ones."""
        for text in texts:
            self._check_characters(text, truncate_to)
        found: list[Prompt] = []
        for some in _parts(texts):
            work = functools.partial(self._encode_some, some, add_special_tokens, truncate_to, keep_end)
            token_ids = await self._away(sum(map(len, some)), len(some), work)
            prompts = map(Prompt, token_ids, some)
            found += [truncated(prompt, truncate_to, keep_end=keep_end) for prompt in prompts]
        return found

    def _check_characters(self, text: str, truncate_to: int | None) -> None:
        if len(text) > self.longest_text and truncate_to is None:
            raise ApiError(
                f"the prompt has {len(text)} characters, more than the model's max_model_len"
                f" {self.max_model_len} tokens can hold",
                param="prompt",
                code="context_length_exceeded",
            )

    async def _away(self, characters: int, texts: int, work: Callable[[], T]) -> T:
        """The result of ``work`` on texts: of many or long ones away from the event loop."""
        if characters > HEAVY_TEXT:
            return await self.limits.offload.run(work)
        return await away_if(characters > LONG_TEXT or texts > MANY_TEXTS, work)

    def _encode_some(
        self, texts: Sequence[str], add_special_tokens: bool, truncate_to: int | None, keep_end: bool
    ) -> list[list[int]]:
        if truncate_to is None and len(texts) > 1:
            return list(self.tokenizer.encode_each(texts, add_special_tokens=add_special_tokens))
        return [self._encode(text, add_special_tokens, truncate_to, keep_end) for text in texts]

    def _encode(
        self, text: str, add_special_tokens: bool, truncate_to: int | None, keep_end: bool
    ) -> list[int]:
        """Token ids of a text, of which only ``truncate_to`` need to be right.

        Of the last ones a part at the end is enough, if it has more tokens than that: where it was cut, some
        may differ.
        """
        if truncate_to is not None and not keep_end:
            return self.tokenizer.encode_beginning(text, truncate_to, add_special_tokens=add_special_tokens)
        if truncate_to is not None:
            enough = truncate_to + CUT_TOKENS
            size = CHARACTERS_PER_TOKEN * enough
            while size < len(text):
                token_ids = self.tokenizer.encode(text[-size:], add_special_tokens=add_special_tokens)
                if len(token_ids) >= enough:
                    return token_ids
                size *= 2
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    async def prompts(
        self,
        inputs: str | Sequence[str] | Sequence[int] | Sequence[list[int]],
        *,
        field: str,
        add_special_tokens: bool,
        truncate_to: int | None,
        copies: int = 1,
        room: int = 1,
    ) -> list[Prompt]:
        """Prompts from a text, token ids, or a list of either; ``copies`` of each will be answered.

        Each leaves ``room`` for a token of output, or 0. A text without output loses its end if it is cut, as
        in sentence-transformers.
        """
        truncate_to = self._most(truncate_to)
        if isinstance(inputs, str):
            inputs = [inputs]
        if not inputs:
            raise ApiError(f"{field} must not be an empty list", param=field, code="invalid_value")
        several = cast("list[str | list[int]]", [inputs] if isinstance(inputs[0], int) else inputs)
        if len(several) * copies > MAX_PROMPTS:
            raise ApiError(f"{field} asks for more than {MAX_PROMPTS} answers", param=field)
        texts = [one for one in several if isinstance(one, str)]
        keep_end = room > 0
        encoded = iter(await self._encode_all(texts, add_special_tokens, truncate_to, keep_end=keep_end))
        found = []
        for one in several:
            known = None if isinstance(one, str) else truncated(Prompt(one), truncate_to, keep_end=keep_end)
            prompt = known or next(encoded)
            self.check_prompt(prompt, room)
            check_vocabulary(prompt.token_ids, self.vocab_size, field)
            found.append(prompt)
        return found

    async def pairs(
        self, first: Sequence[Any], second: Sequence[Any], *, truncate_to: int | None
    ) -> list[Prompt]:
        """Prompts of pairs of texts, which a cross-encoder reads together."""
        truncate_to = self._most(truncate_to)
        if not all(isinstance(text, str) for text in (*first, *second)):
            raise ApiError("this model scores pairs of texts; token ids can't be paired")
        texts = (*first, *second)
        for text in texts:
            self._check_characters(text, truncate_to)
        work = functools.partial(self._encode_pairs, first, second, truncate_to)
        prompts = await self._away(sum(map(len, texts)), len(second), work)
        for prompt in prompts:
            self.check_prompt(prompt, 0)
        return prompts

    def _encode_pairs(
        self, first: Sequence[str], second: Sequence[str], truncate_to: int | None
    ) -> list[Prompt]:
        pairs = list(zip(first, second, strict=True))
        encoded = self.tokenizer.encode_pairs(pairs, truncate_to=truncate_to)
        return [Prompt(token_ids, None, segment) for token_ids, segment in encoded]

    async def take_pictures(self, messages: list[dict[str, Any]]) -> tuple[list[Any], tuple[bytes, ...]]:
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
            self.facts.pictures.check(count)
        except RequestError as error:
            raise ApiError(f"messages: image_url: {error}", param="messages") from None
        if "image_pil" in kinds:
            raise ApiError("messages: image_pil is for Python: send an image_url", param="messages")
        work = functools.partial(take_pictures, messages, self.fetcher.fetch if self.fetcher.hosts else None)
        taken, pictures = await asyncio.get_running_loop().run_in_executor(self.fetcher.executor, work)
        return taken, tuple(pictures)

    async def render(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """Put a conversation into the model's words."""
        heavy = weight([messages, options], HEAVY_BYTES) > HEAVY_BYTES

        def work() -> str:
            return self.template(tools=bool(options.get("tools")), heavy=heavy).render(messages, **options)

        return await (self.limits.offload.run(work) if heavy else asyncio.to_thread(work))

    def _most(self, truncate_to: int | None) -> int | None:
        """Of -1, as many tokens as the model takes."""
        return self.max_model_len if truncate_to == -1 else truncate_to

    def check_prompt(self, prompt: Prompt, room: int = 1) -> None:
        """Refuse a prompt that is empty or leaves no ``room`` for a token."""
        if room:
            self.output_tokens(prompt, None)
            return
        size = len(prompt.token_ids)
        if size == 0:
            raise ApiError("the prompt is empty: it has no tokens", param="prompt", code="invalid_value")
        if size > self.max_model_len:
            raise ApiError(
                f"the prompt has {size} tokens, more than the model's max_model_len {self.max_model_len};"
                " truncate_prompt_tokens cuts it",
                param="prompt",
                code="context_length_exceeded",
            )

    def output_tokens(self, prompt: Prompt, max_tokens: int | None) -> int:
        """How many tokens may follow the prompt: as the request says, or all that fit; ApiError if none."""
        size = len(prompt.token_ids)
        room = self.max_model_len - size
        if size == 0:
            raise ApiError("the prompt is empty: it has no tokens", param="prompt", code="invalid_value")
        if room < max(max_tokens or 1, 1):
            asked = f"max_tokens is {max_tokens}" if max_tokens else "at least one must follow"
            raise ApiError(
                f"the prompt has {size} tokens and {asked}: together that is more than the model's"
                f" max_model_len {self.max_model_len}",
                param="prompt" if room < 1 else "max_tokens",
                code="context_length_exceeded",
            )
        return room if max_tokens is None else max_tokens


def truncated(prompt: Prompt, length: int | None, *, keep_end: bool) -> Prompt:
    """The last ``length`` tokens of a prompt, or the first ones."""
    if length is None or len(prompt.token_ids) <= length:
        return prompt
    return Prompt(prompt.token_ids[-length:] if keep_end else prompt.token_ids[:length])


def new_id(prefix: str, request_id: str | None = None) -> str:
    """An id for an answer; clients may bring their own."""
    return prefix + (request_id or uuid.uuid4().hex)


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """How the vocabulary spells a token; empty for an id that it leaves out."""
    text: str | None = tokenizer._tokenizer.id_to_token(token_id)  # noqa: SLF001 - one call is no reason for an API
    return text or ""


def check_vocabulary(token_ids: Sequence[int], vocab_size: int, field: str) -> None:
    """Refuse token ids that the model does not have."""
    wrong = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
    if wrong is not None:
        raise RequestError(f"{field}: token id {wrong} is not in the vocabulary of {vocab_size}")


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    """Texts one after the other, as many as are not heavy together."""
    part: list[str] = []
    size = 0
    for text in texts:
        if part and size + len(text) > HEAVY_TEXT:
            yield part
            part, size = [], 0
        part.append(text)
        size += len(text)
    if part:
        yield part


async def away_if(slow: bool, work: Callable[[], T]) -> T:
    """The result of ``work``, done in another thread if it would hold up everybody else in this one."""
    return await asyncio.to_thread(work) if slow else work()
