"""`AsyncLLM` with the methods of vLLM's AsyncLLMEngine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from armllm.api.async_llm import AsyncLLM

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from armllm.engine.arg_utils import EngineArgs
    from armllm.engine.prompts import Prompt
    from armllm.outputs import EmbeddingRequestOutput
    from armllm.sampling_params import PoolingParams


class AsyncLLMEngine(AsyncLLM):
    """`AsyncLLM` for programs that were written for vLLM's engine: `encode` and `abort` are as there."""

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **options: Any) -> AsyncLLMEngine:
        """Load the model. ``options``: vLLM's ``usage_context`` and ``start_engine_loop=True``."""
        unknown = options.keys() - {"usage_context", "start_engine_loop"}
        if unknown or options.get("start_engine_loop") is False:
            names = ", ".join(unknown) or "start_engine_loop=False"
            raise TypeError(f"from_engine_args does not take {names}")
        return cls(**vars(engine_args))

    async def encode(  # type: ignore[override]
        self, prompt: Prompt, pooling_params: PoolingParams, request_id: str, *, priority: int = 0
    ) -> AsyncGenerator[EmbeddingRequestOutput, None]:
        """Yield the embedding of a prompt, once."""
        yield await super().encode(prompt, pooling_params, request_id, priority)

    async def abort(self, request_id: str | Iterable[str]) -> None:  # type: ignore[override]
        """Stop one request or several."""
        for one in [request_id] if isinstance(request_id, str) else request_id:
            super().abort(one)

    async def check_health(self) -> None:
        """Raise the error that ended the engine, if one did."""
        if self.dead_error is not None:
            raise self.dead_error

    async def is_tracing_enabled(self) -> bool:
        """Return False: there are no traces."""
        return False

    @property
    def is_running(self) -> bool:
        """Whether requests are served."""
        return not self.errored

    @property
    def is_stopped(self) -> bool:
        """Whether the engine has failed or was shut down."""
        return self.errored
