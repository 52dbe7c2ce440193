"""`AsyncLLM` with the methods of vLLM's, which is its AsyncLLMEngine too."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from armllm.api import async_llm

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from armllm.engine.prompts import Prompt
    from armllm.lora.request import LoRARequest
    from armllm.outputs import EmbeddingRequestOutput
    from armllm.pooling_params import PoolingParams

POLL_SECONDS = 0.02


class AsyncLLMEngine(async_llm.AsyncLLM):
    """`AsyncLLM` for programs that were written for vLLM's: `encode`, `abort` and others are as there."""

    async def encode(  # type: ignore[override]
        self,
        prompt: Prompt,
        pooling_params: PoolingParams,
        request_id: str,
        lora_request: LoRARequest | None = None,
        *,
        priority: int = 0,
        **neutral: Any,
    ) -> AsyncGenerator[EmbeddingRequestOutput, None]:
        """Yield the embedding of a prompt, once."""
        yield await super().encode(prompt, pooling_params, request_id, priority, lora_request, **neutral)

    async def abort(  # type: ignore[override]
        self,
        request_id: str | Iterable[str],
        internal: bool = False,  # noqa: ARG002 - of vLLM's workers
    ) -> None:
        """Stop one request or several."""
        for one in [request_id] if isinstance(request_id, str) else request_id:
            super().abort(one)

    async def reset_prefix_cache(
        self, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        """Forget what prompts began with, between two steps; see `LLMEngine.reset_prefix_cache`."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()

        def forget() -> None:
            result = self.llm_engine.reset_prefix_cache(reset_running_requests, reset_connector)
            loop.call_soon_threadsafe(done.set_result, result)

        await self.check_health()
        self._inbox.put(forget)
        return await done

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300) -> None:
        """Return when no request is left; TimeoutError if some still run after ``drain_timeout`` seconds."""
        deadline = time.monotonic() + drain_timeout
        while self.get_num_unfinished_requests():
            if time.monotonic() > deadline:
                raise TimeoutError(f"requests still run after {drain_timeout} s")
            await asyncio.sleep(POLL_SECONDS)

    def get_num_unfinished_requests(self) -> int:
        """How many requests are queued or run."""
        return len(self._streams)

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """The tasks that requests may name, in vLLM's terms."""
        return self.llm_engine.get_supported_tasks()

    async def do_log_stats(self) -> None:
        """Log the number of requests and the use of the cache."""
        self.llm_engine.do_log_stats()

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


AsyncLLM = AsyncLLMEngine  # the name of the class in vLLM's v1.engine.async_llm
