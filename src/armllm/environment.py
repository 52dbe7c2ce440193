"""The environment variables that the engine reads, all in one place.

Each has a name of our own, which wins, and vLLM's, so that a guide written for vLLM works as it is.
"""

from __future__ import annotations

import math
import os
import platform

from armllm.errors import RequestError

GIB = 1 << 30

# About 20 microseconds of waiting at a barrier before a thread sleeps; x86's pause is far longer than Arm's
# yield. libgomp's own default is milliseconds: on a machine that does other work too, a thread then spins
# while the one that it waits for has no core, and tokens per second fall to a tenth.
SPIN_COUNTS = {"x86_64": "1000", "aarch64": "20000"}


def limit_spinning() -> None:
    """Set GOMP_SPINCOUNT for the libgomp that torch will load, unless the user said how threads wait."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNTS.get(platform.machine(), "10000"))


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
