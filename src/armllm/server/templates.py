"""Chat templates that a server renders, away from its event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from armllm.chat import find_template
from armllm.rendering import Renderer
from armllm.server.limits import HEAVY_BYTES, Offload, weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from armllm.tokenizer import Tokenizer


class Templates:
    """The templates of a checkpoint, or ``source`` instead of them. ``longest``: characters of a prompt.

    CheckpointError if ``source`` can't be compiled.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None, offload: Offload, longest: int) -> None:
        self._tokenizer = tokenizer
        self._source = source
        self._offload = offload
        self._longest = longest
        self._compiled: dict[tuple[bool, bool], Renderer] = {}
        if source is not None:
            self._of(tools=False)

    async def render(self, messages: Sequence[dict[str, Any]], **options: Any) -> str:
        """Put a conversation into the model's words."""
        heavy = weight([messages, options], HEAVY_BYTES) > HEAVY_BYTES

        def work() -> str:
            return self._of(tools=bool(options.get("tools")), heavy=heavy).render(messages, **options)

        return await (self._offload.run(work) if heavy else asyncio.to_thread(work))

    def _of(self, *, tools: bool, heavy: bool = False) -> Renderer:
        """The chat template for conversations with or without tools; RequestError if there is none."""
        if (tools, heavy) not in self._compiled:  # short conversations don't wait for long ones
            source = self._source or find_template(
                self._tokenizer.folder, self._tokenizer.settings, tools=tools
            )
            self._compiled[tools, heavy] = Renderer(source, self._tokenizer.special_texts(), self._longest)
        return self._compiled[tools, heavy]
