"""A fault that one request causes ends that request, and no other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from armllm.errors import ArmllmError, EngineError, ModelError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable


class Alone:
    """A context whose error fails one request."""

    __slots__ = ("_fail", "_request_id")

    def __init__(self, fail: Callable[[str, ArmllmError], None], request_id: str) -> None:
        self._fail, self._request_id = fail, request_id

    def __enter__(self) -> None:
        """Nothing is needed before."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, Exception):  # there is none, or whoever runs the engine stops it
            return False
        self._fail(self._request_id, of_request(error))
        return True


def of_request(error: Exception) -> ArmllmError:
    """What to report of an error that one request caused."""
    if isinstance(error, ArmllmError):
        return error
    line = f"{type(error).__name__}: {error}".split("\n", 1)[0]
    failure = EngineError(f"this request failed: {line:.200}")
    failure.__cause__ = error
    return failure


def unusable(logit: float, adapter: str | None) -> ArmllmError:
    """What to say where the greatest logit is not finite. ``adapter``: the name of what changed the model."""
    if logit == -math.inf:
        return RequestError("no token is left that allowed_token_ids, bad_words and min_tokens allow")
    if adapter is not None:
        return ModelError(
            f"the logits with the adapter {adapter!r:.80} are {logit}: its values are too large for this"
            " dtype, or the model's weights are broken (try float32)"
        )
    return ModelError(
        f"the model's logits are {logit}: its weights are broken, or too large for this dtype (try float32)"
    )
