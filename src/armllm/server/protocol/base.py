"""What the requests of all endpoints share: strict types, no unknown field, nothing ignored."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, model_validator
from pydantic_core import PydanticCustomError

from armllm.server.protocol.reasons import REASONS

MAX_CHOICES = 128  # OpenAI's limit of n; every choice costs memory from the start
MAX_PROMPTS = 2048  # OpenAI's limit of inputs per request
MAX_ENTRIES = 1024  # of lists and objects whose entries cost time at every token
MAX_TOKEN_IDS = 1 << 16
MAX_CHARACTERS = 1 << 14  # of all stop strings, or bad words: each takes about 300 bytes
REQUEST_ID = r"^[A-Za-z0-9_.:-]{1,256}$"
MAX_FIELDS = 128  # more than any object has that is not free in form
MAX_MESSAGES = 4096  # each becomes several objects


class FirstError(FailFast):
    """Lists are checked up to the first wrong item; unlike its base it can stand within a union."""

    __hash__ = object.__hash__


FIRST_ERROR = FirstError()
Strings = Annotated[list[str], FIRST_ERROR]
Integers = Annotated[list[int], FIRST_ERROR]
FewStrings = Annotated[Strings, Field(max_length=MAX_ENTRIES)]
Objects = Annotated[list[dict[str, Any]], FIRST_ERROR]


def check_size(entries: Any, most: int = MAX_ENTRIES) -> Any:
    """Refuse an object or a list of too many entries before they are looked at."""
    if isinstance(entries, dict | list) and len(entries) > most:
        raise PydanticCustomError(
            "too_long",
            "{kind} of at most {most} entries is expected, not of {count}",
            {
                "kind": "an object" if isinstance(entries, dict) else "a list",
                "most": most,
                "count": len(entries),
            },
        )
    return entries


def check_messages(messages: Any) -> Any:
    """Refuse a conversation of too many messages before they are looked at."""
    return check_size(messages, MAX_MESSAGES)


def check_conversations(conversations: Any) -> Any:
    """Refuse too many conversations, or too many messages of all of them, before they are looked at."""
    check_size(conversations, MAX_PROMPTS)
    if isinstance(conversations, list):
        sizes = [len(messages) for messages in conversations if isinstance(messages, list)]
        if sum(sizes) > MAX_MESSAGES:
            raise PydanticCustomError(
                "too_long",
                "conversations of at most {most} messages together are expected, not of {count}",
                {"most": MAX_MESSAGES, "count": sum(sizes)},
            )
    return conversations


def check_prompts(prompts: Any) -> Any:
    """Refuse too many prompts before they are looked at; token ids of a single one are no prompts."""
    if isinstance(prompts, list) and prompts and isinstance(prompts[0], str | list):
        return check_size(prompts, MAX_PROMPTS)
    return prompts


Messages = BeforeValidator(check_messages)
Conversations = BeforeValidator(check_conversations)
TextOrIds = Annotated[
    str | Strings | Integers | Annotated[list[Integers], FIRST_ERROR], BeforeValidator(check_prompts)
]
"""One prompt or several, as texts or token ids."""


class Strict(BaseModel):
    """Types as JSON has them (no "1" for 1), and an unknown field is an error that names it."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_size(cls, data: Any) -> Any:
        return check_size(data, MAX_FIELDS)


def unsupported(name: str) -> PydanticCustomError:
    """The error that refuses a field, with the reason."""
    message = "{param} is not supported by this server: {reason}"
    return PydanticCustomError("unsupported_parameter", message, {"param": name, "reason": REASONS[name]})


class Body(Strict):
    """The JSON body of a request.

    Fields that other servers know and this one does not support are in ``unsupported``, with the values that
    would change nothing; every other value is refused by name, as an unknown field is.
    """

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {}

    model: str | None = None

    def names_for_errors(self) -> dict[str, str]:
        """The body's fields, by the names that the engine's messages use."""
        return {name: name for name in type(self).model_fields}

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name, harmless in cls.unsupported.items():
            if name in data and data[name] is not None and data[name] not in harmless:
                raise unsupported(name)
        return {name: value for name, value in data.items() if name not in cls.unsupported}


# what vLLM's newest protocol has in every request, and in every request that is pooled
OF_VLLM: dict[str, tuple[Any, ...]] = {
    "cache_salt": (),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "truncation_side": ("left",),
}
OF_POOLING: dict[str, tuple[Any, ...]] = {
    **OF_VLLM,
    "padding": (False, "do_not_pad"),
    "messages": (),
    "add_generation_prompt": (False,),
    "continue_final_message": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
}


class WithoutEffect(Body):
    """Fields that have no effect on the answer; they are accepted from every client."""

    user: Any = None
    session_id: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


class PooledRequest(WithoutEffect):
    """What requests have that are pooled, not continued. ``request_id`` is part of the answer's id."""

    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    request_id: str | None = Field(None, pattern=REQUEST_ID)
