"""What the endpoints share: the engine, the names of its model, its templates and its limits."""

from __future__ import annotations

import copy
import dataclasses
import time
import uuid
from typing import TYPE_CHECKING

from armllm.errors import RequestError
from armllm.server.adapters import ServedAdapters
from armllm.server.clients import current_caller
from armllm.server.errors import ApiError
from armllm.server.limits import Limits
from armllm.server.media import Fetcher
from armllm.server.metrics import Metrics
from armllm.server.origins import check_root_path
from armllm.server.prompts import PromptReader
from armllm.server.reasoning import REASONING_PARSERS
from armllm.server.templates import Templates
from armllm.server.tools import TOOL_PARSERS

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from armllm.api.async_llm import AsyncLLM
    from armllm.lora.request import LoRARequest
    from armllm.outputs import RequestOutput
    from armllm.sampling_params import SamplingParams
    from armllm.server.engine_process import EngineProcess
    from armllm.server.prompts import Prompt
    from armllm.tokenizer import Tokenizer


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
        self.prompts = PromptReader(self.facts, self.limits.offload)
        self.templates = Templates(
            self.tokenizer,
            options.chat_template,
            self.limits.offload,
            max(self.prompts.longest_text, self.limits.body_bytes),
        )
        self.vocab_size = self.facts.vocab_size
        self.model = options.served_model_names[0]
        self.adapter: LoRARequest | None = None
        self.adapters = ServedAdapters(engine, options.adapters, options.served_model_names)
        self.created = int(time.time())
        self.metrics = Metrics(engine, self.model)

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


def new_id(prefix: str, request_id: str | None = None) -> str:
    """An id for an answer; clients may bring their own."""
    return prefix + (request_id or uuid.uuid4().hex)


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """How the vocabulary spells a token; empty for an id that it leaves out."""
    text: str | None = tokenizer._tokenizer.id_to_token(token_id)  # noqa: SLF001 - one call is no reason for an API
    return text or ""
