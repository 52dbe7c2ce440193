"""LLM inference for Arm CPUs: `LLM`, `AsyncLLM`, their parameters and what they return.

The names load on first use, so that `import armllm` alone costs nothing and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from armllm.environment import ask_for_huge_pages, limit_spinning
from armllm.module_names import add_module_names

if TYPE_CHECKING:
    from armllm.api.async_llm import AsyncLLM
    from armllm.api.async_llm_engine import AsyncLLMEngine
    from armllm.api.llm import LLM
    from armllm.api.llm_engine import LLMEngine
    from armllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
    from armllm.inputs import PromptType, TextPrompt, TokensPrompt
    from armllm.lora.request import LoRARequest
    from armllm.outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        CompletionOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        RequestOutput,
        RequestStateStats,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from armllm.pooling_params import PoolingParams
    from armllm.sampling_params import (
        BeamSearchParams,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
    )
    from armllm.utils.argparse_utils import FlexibleArgumentParser

__version__ = "0.1.0"
__version_tuple__ = (0, 1, 0)

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EngineArgs",
    "FlexibleArgumentParser",
    "LLMEngine",
    "LoRARequest",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "RequestStateStats",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
    "__version_tuple__",
]

_HOMES = {
    "AsyncEngineArgs": "armllm.engine.arg_utils",
    "AsyncLLM": "armllm.api.async_llm",
    "AsyncLLMEngine": "armllm.api.async_llm_engine",
    "BeamSearchParams": "armllm.sampling_params",
    "ClassificationOutput": "armllm.outputs",
    "ClassificationRequestOutput": "armllm.outputs",
    "CompletionOutput": "armllm.outputs",
    "EmbeddingOutput": "armllm.outputs",
    "EmbeddingRequestOutput": "armllm.outputs",
    "EngineArgs": "armllm.engine.arg_utils",
    "FlexibleArgumentParser": "armllm.utils.argparse_utils",
    "LLM": "armllm.api.llm",
    "LLMEngine": "armllm.api.llm_engine",
    "LoRARequest": "armllm.lora.request",
    "PoolingOutput": "armllm.outputs",
    "PoolingParams": "armllm.pooling_params",
    "PoolingRequestOutput": "armllm.outputs",
    "PromptType": "armllm.inputs",
    "RequestOutput": "armllm.outputs",
    "RequestOutputKind": "armllm.sampling_params",
    "RequestStateStats": "armllm.outputs",
    "SamplingParams": "armllm.sampling_params",
    "ScoringOutput": "armllm.outputs",
    "ScoringRequestOutput": "armllm.outputs",
    "StructuredOutputsParams": "armllm.sampling_params",
    "TextPrompt": "armllm.inputs",
    "TokensPrompt": "armllm.inputs",
}
_ABSENT = {
    "ModelRegistry": "armllm.models has the families of models; a program adds none",
    "initialize_ray_cluster": "the engine computes on one machine",
}
"""What vLLM's module has besides, and why it is not here."""


# before anything here imports torch: it and libgomp look once, when they are loaded
limit_spinning()
ask_for_huge_pages()
add_module_names()


def __getattr__(name: str) -> Any:
    if name in _ABSENT:  # an AttributeError would lose its text in `from armllm import …`
        raise ImportError(f"cannot import name {name!r} from 'armllm': {_ABSENT[name]}", name="armllm")
    if name not in _HOMES:
        raise AttributeError(f"module 'armllm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
