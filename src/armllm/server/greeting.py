"""What the server found and decided, in five lines at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import armllm
from armllm import kernels
from armllm.doctor import describe_placement
from armllm.engine.memory import readable

if TYPE_CHECKING:
    from armllm.server.service import Service

LOOPBACK = ("http://127.", "http://[::1]")


def greeting_lines(service: Service, address: str) -> list[str]:
    """Model, threads, kernels, cache and address."""
    engine = service.engine.llm_engine
    runner = engine.runner
    dtype = str(runner.dtype).removeprefix("torch.")
    blocks = engine.blocks
    tokens = blocks.num_blocks * blocks.block_size
    config = runner.model_config
    cache = f"{readable(runner.cache_bytes)} of {str(runner.cache_dtype).removeprefix('torch.')}"
    targets = sorted({entry["target"] for entry in kernels.report().values()})
    audience = " to this machine only (--host opens it)" if address.startswith(LOOPBACK) else ""
    return [
        f"armllm {armllm.__version__}: {config.architecture} from {engine.config.model}, {dtype}",
        f"  threads: {describe_placement(engine.placement)}, {kernels.thread_backend()}",
        f"  kernels: {', '.join(targets)}",
        f"  KV cache: {cache}, {tokens} tokens; {engine.config.max_num_seqs} requests at a time",
        f"  serving {', '.join(service.options.served_model_names)}{audience} on {address}",
    ]
