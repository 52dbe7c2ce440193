"""Tool calls in a model's text, in the formats that models are trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from armllm.server.tools.harmony import HarmonyParser
from armllm.server.tools.hermes import HermesParser
from armllm.server.tools.llama3 import Llama3Parser
from armllm.server.tools.mistral import MistralParser

if TYPE_CHECKING:
    from collections.abc import Callable

    from armllm.server.events import Parser

# by vLLM's names; each takes the names of the request's tools
TOOL_PARSERS: dict[str, Callable[[frozenset[str]], Parser]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3Parser,
    "mistral": MistralParser,
    "openai": HarmonyParser,
}
