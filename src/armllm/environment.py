"""The environment variables that the engine reads, all in one place.

Each has a name of our own, which wins, and vLLM's, so that a guide written for vLLM works as it is.
"""

from __future__ import annotations

import math
import os

from armllm.errors import RequestError

GIB = 1 << 30


def kv_cache_bytes() -> int | None:
    """ARMLLM_KVCACHE_SPACE or VLLM_CPU_KVCACHE_SPACE (GiB) in bytes; None: decide by what is free."""
    for name in ("ARMLLM_KVCACHE_SPACE", "VLLM_CPU_KVCACHE_SPACE"):
        text = os.environ.get(name, "").strip()
        if text:
            try:
                space = float(text)
            except ValueError:
                space = math.nan
            if not math.isfinite(space) or space < 0:
                raise RequestError(f"{name} must be a number of GiB, such as 4 or 0.5, not {text!r}")
            return int(space * GIB) or None
    return None
