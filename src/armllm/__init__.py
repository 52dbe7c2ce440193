"""LLM inference for Arm CPUs: `LLM`, `AsyncLLM`, their parameters and what they return.

The names load on first use, so that `import armllm` alone costs nothing and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from armllm.environment import ask_for_huge_pages, limit_spinning

if TYPE_CHECKING:
    from armllm.engine.async_llm import AsyncLLM
    from armllm.engine.llm import LLM
    from armllm.outputs import (
        CompletionOutput,
        EmbeddingRequestOutput,
        RequestOutput,
        ScoringRequestOutput,
    )
    from armllm.sampling_params import (
        PoolingParams,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
    )

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "PoolingParams",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "__version__",
]

_HOMES = {
    "LLM": "armllm.engine.llm",
    "AsyncLLM": "armllm.engine.async_llm",
    "CompletionOutput": "armllm.outputs",
    "EmbeddingRequestOutput": "armllm.outputs",
    "PoolingParams": "armllm.sampling_params",
    "RequestOutput": "armllm.outputs",
    "RequestOutputKind": "armllm.sampling_params",
    "SamplingParams": "armllm.sampling_params",
    "ScoringRequestOutput": "armllm.outputs",
    "StructuredOutputsParams": "armllm.sampling_params",
}


# before anything here imports torch: it and libgomp look once, when they are loaded
limit_spinning()
ask_for_huge_pages()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'armllm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
