"""`AsyncLLM` with the methods of vLLM's AsyncLLMEngine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.api.async_llm import AsyncLLM

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from armllm.engine.prompts import Prompt
    from armllm.outputs import EmbeddingRequestOutput
    from armllm.sampling_params import PoolingParams


class AsyncLLMEngine(AsyncLLM):
    """`AsyncLLM` for programs that were written for vLLM's engine: `encode` and `abort` are as there."""

    async def encode(  # type: ignore[override]
        self, prompt: Prompt, pooling_params: PoolingParams, request_id: str, *, priority: int = 0
    ) -> AsyncGenerator[EmbeddingRequestOutput, None]:
        """Yield the embedding of a prompt, once."""
        yield await super().encode(prompt, pooling_params, request_id, priority)

    async def abort(self, request_id: str | Iterable[str]) -> None:  # type: ignore[override]
        """Stop one request or several."""
        for one in [request_id] if isinstance(request_id, str) else request_id:
            super().abort(one)

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
