"""/tokenize, /detokenize, /v1/embeddings, /v1/models and /version."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import NotRequired, TypedDict

from armllm.server.protocol.base import (
    FIRST_ERROR,
    OF_POOLING,
    Body,
    Integers,
    Messages,
    PooledRequest,
    TextOrIds,
)
from armllm.server.protocol.chat import Message, TemplateOptions, Tool


class TokenizeRequest(Body, TemplateOptions):
    """A text or a conversation to tokenize."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {
        "chat_template": (),
        "media_io_kwargs": ({},),
        "mm_processor_kwargs": ({},),
    }

    prompt: str | None = None
    messages: Annotated[list[Message], FIRST_ERROR, Messages] | None = Field(None, min_length=1)
    tools: Annotated[list[Tool], FIRST_ERROR] | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("one_of", "either prompt or messages is required")
        return self


class Tokenized(TypedDict):
    """Token ids and how many there are."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(Body):
    """Token ids to turn into text."""

    tokens: Integers


class Detokenized(TypedDict):
    """The text of some token ids."""

    prompt: str


Vector = list[float] | list[list[float]]  # the latter of each token


class EmbeddingRequest(PooledRequest):
    """Texts or token ids to embed."""

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {**OF_POOLING, "use_activation": (True,)}

    input: TextOrIds
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] | None = None
    embed_dtype: Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] | None = None
    endianness: Literal["native", "little", "big"] | None = None
    dimensions: int | None = Field(None, ge=1)
    add_special_tokens: bool | None = None

    def names_for_errors(self) -> dict[str, str]:
        """What is a prompt elsewhere is an input here."""
        return super().names_for_errors() | {"prompt": "input"}

    @property
    def wants_bytes(self) -> bool:
        """Whether the answer is no JSON."""
        return self.encoding_format in ("bytes", "bytes_only")

    @model_validator(mode="after")
    def _numbers_have_no_bytes(self) -> EmbeddingRequest:
        other = self.embed_dtype not in (None, "float32") or self.endianness == "big"
        if other and self.encoding_format in (None, "float"):
            raise PydanticCustomError(
                "needs_bytes", "embed_dtype and endianness need encoding_format base64, bytes or bytes_only"
            )
        return self


class AboutVectors(TypedDict):
    """What an answer says beside its vectors."""

    id: str
    created: int
    model: str
    usage: EmbeddingUsage


class Embedding(TypedDict):
    """One vector, as numbers or as the base64 of their bytes."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    """Counted tokens."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(TypedDict):
    """The vectors, in the order of the inputs."""

    id: str
    object: Literal["list"]
    created: int
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class ModelCard(TypedDict):
    """A name that the model is served under."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    permission: NotRequired[list[Any]]


class ModelList(TypedDict):
    """All names."""

    object: Literal["list"]
    data: list[ModelCard]


class Version(TypedDict):
    """The version of armllm."""

    version: str
