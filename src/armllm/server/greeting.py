"""What the engine found and decided, in four lines at the server's start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import armllm
from armllm import kernels
from armllm.doctor import describe_placement
from armllm.engine.memory import readable

if TYPE_CHECKING:
    from armllm.api.llm_engine import LLMEngine


def engine_lines(engine: LLMEngine) -> list[str]:
    """Model, threads, kernels and cache."""
    runner = engine.runner
    dtype = str(runner.dtype).removeprefix("torch.")
    blocks = engine.blocks
    tokens = blocks.num_blocks * blocks.block_size
    config = runner.model_config
    cache = f"{readable(runner.cache_bytes)} of {str(runner.cache_dtype).removeprefix('torch.')}"
    held = f"KV cache: {cache}, {tokens} tokens"
    if config.is_encoder:
        held = f"encoder: no KV cache, texts of at most {runner.max_model_len} tokens"
    return [
        f"armllm {armllm.__version__}: {config.architecture} from {engine.config.model}, {dtype}",
        f"  threads: {describe_placement(engine.placement)}, {kernels.thread_backend()}",
        f"  kernels: {runner.computed_by()}",
        f"  {held}; {engine.config.max_num_seqs} requests at a time",
    ]
