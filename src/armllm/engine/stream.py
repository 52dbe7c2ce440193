"""One request's outputs on their way from the engine's thread to whoever reads them in an event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from armllm.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from armllm.outputs import RequestOutput


class Stream:
    """Holds at most one output: what a slow reader has not fetched is merged with what comes after.

    Made and used in the reader's event loop; the engine's thread comes in by ``loop.call_soon_threadsafe``.
    """

    def __init__(self, request_id: str, kind: RequestOutputKind) -> None:
        self.loop = asyncio.get_running_loop()
        self.dropped = False
        self._request_id = request_id
        self._kind = kind
        self._output: RequestOutput | None = None
        self._error: Exception | None = None
        self._ready = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        """Hand over the next output."""
        output.request_id = self._request_id
        if self._output is not None and self._kind is RequestOutputKind.DELTA:
            output = join(self._output, output)
        self._output = output
        self._ready.set()

    def fail(self, error: Exception) -> None:
        """Let the reader see an error, after what was handed over before."""
        self._error = error
        self._ready.set()

    async def get(self) -> RequestOutput:
        """Wait for the next output, or raise what the request failed with."""
        if self._output is None and self._error is None:
            self._ready.clear()
            await self._ready.wait()
        if self._output is None and self._error is not None:
            raise type(self._error)(str(self._error)) from self._error  # each reader's has its own traceback
        output, self._output = self._output, None
        assert output is not None  # noqa: S101 - one of both woke us
        return output


def join(earlier: RequestOutput, later: RequestOutput) -> RequestOutput:
    """Two deltas of a request as one, in place of the later."""
    before = {completion.index: completion for completion in earlier.outputs}
    for completion in later.outputs:
        old = before.pop(completion.index, None)
        if old is not None:
            completion.text = old.text + completion.text
            completion.token_ids = old.token_ids + completion.token_ids
            if old.logprobs is not None and completion.logprobs is not None:
                completion.logprobs = old.logprobs + completion.logprobs
    later.outputs = sorted([*before.values(), *later.outputs], key=lambda completion: completion.index)
    return later
