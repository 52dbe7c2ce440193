"""/v1/completions."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from armllm.server.protocol.base import OF_VLLM, Strict, TextOrIds
from armllm.server.protocol.sampling import Sampling

UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **OF_VLLM,
    "suffix": ("",),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "spaces_between_special_tokens": (True,),
    "logits_processors": ([],),
    "return_tokens_as_token_ids": (False,),
    "no_stop_trim": (False,),
    "return_hidden_states": (False,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "session_params": (),
    "lora_path": (),
    "logprob_token_ids": ([],),
    "thinking_token_budget": (),
    "repetition_detection": (),
    "kv_transfer_params": (),
    "ec_transfer_params": (),
    "vllm_xargs": ({},),
    "watermarking": (False,),
    "routed_experts_prompt_start": (0,),
    "return_token_offsets": (False,),
    "return_prompt_text": (False,),
    "return_mm_kwargs": (False,),
    "mm_payload": ("tensors",),
    "stream_interval": (1,),
    "return_weight_versions": (False,),
}


class StreamOptions(Strict):
    """What a stream has beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # there is none to leave out


class CompletionRequest(Sampling):
    """What /v1/completions takes: OpenAI's fields, and vLLM's additions."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {**UNSUPPORTED, "prompt_embeds": ([],)}

    prompt: TextOrIds
    max_tokens: int | None = Field(16, ge=0)
    logprobs: int | None = Field(None, ge=0)
    prompt_logprobs: int | None = Field(None, ge=0)
    echo: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None


class PromptTokensDetails(TypedDict):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class Usage(TypedDict):
    """Counted tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[PromptTokensDetails]


class CompletionLogprobs(TypedDict):
    """Per token: its text, log-probability, the likeliest ones, and where its text begins."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One completion, or a piece of one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: NotRequired[int | str | None]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[list[dict[str, Any] | None]]


class Completion(TypedDict):
    """The answer, and with the same shape each event of a streamed one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str | None
    usage: NotRequired[Usage | None]
