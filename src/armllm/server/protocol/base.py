"""What the requests of all endpoints share: strict types, no unknown field, nothing ignored."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

MAX_CHOICES = 128  # OpenAI's limit of n; every choice costs memory from the start
MAX_PROMPTS = 2048  # OpenAI's limit of inputs per request
MAX_LOGPROBS = 20  # vLLM's --max-logprobs


class Strict(BaseModel):
    """Types as JSON has them (no "1" for 1), and an unknown field is an error that names it."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Body(Strict):
    """The JSON body of a request.

    Fields that other servers know and this one can't honour are in ``unsupported``, with the values that
    would change nothing; every other value is refused by name, as an unknown field is.
    """

    unsupported: ClassVar[dict[str, tuple[Any, ...]]] = {}

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
                raise PydanticCustomError(
                    "unsupported_parameter", "{param} is not supported by this server", {"param": name}
                )
        return {name: value for name, value in data.items() if name not in cls.unsupported}


class WithoutEffect(Body):
    """Fields that have no effect on the answer; they are accepted from every client."""

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
