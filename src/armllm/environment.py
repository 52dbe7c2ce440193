"""The environment variables that the engine reads, all in one place.

Each has a name of our own, which wins, and vLLM's, so that a guide written for vLLM works as it is.
"""

from __future__ import annotations

import math
import os
import platform

from armllm.errors import RequestError

GIB = 1 << 30
STEP_SECONDS = 60.0
LEAST_KEY = 16

# About 100 microseconds of waiting at a barrier before a thread sleeps; x86's pause is far longer than Arm's
# yield. That covers what lies between a decode's parallel parts. libgomp's own default is milliseconds: on a
# machine that does other work too, a thread then spins while the one that it waits for has no core, and
# tokens per second fall to a tenth.
SPIN_COUNTS = {"x86_64": "5000", "aarch64": "100000"}


def limit_spinning() -> None:
    """Set GOMP_SPINCOUNT for the libgomp that torch will load, unless the user said how threads wait."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNTS.get(platform.machine(), "50000"))


def tokenize_on_one_core() -> None:
    """Let `tokenizers` use one core for the texts of a request, unless the user said how many.

    The engine computes on the others, and no client's texts should take them away.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def ask_for_huge_pages() -> None:
    """Let torch put its large tensors into huge pages, unless the user said whether.

    A decode reads all weights once per token; in pages of 4 KiB each costs a walk through the page table.
    Where pages are larger, huge ones are up to 512 MiB, too much to take for a little.
    """
    if os.sysconf("SC_PAGE_SIZE") == 4096:
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def uses_huge_pages() -> bool:
    """Whether tensors and mapped files ask for them."""
    return os.environ.get("THP_MEM_ALLOC_ENABLE") == "1" and os.sysconf("SC_PAGE_SIZE") == 4096


def kv_cache_bytes() -> int | None:
    """ARMLLM_KVCACHE_SPACE or VLLM_CPU_KVCACHE_SPACE (GiB) in bytes; None: decide by what is free."""
    name, text = _read("KVCACHE_SPACE", "VLLM_CPU_KVCACHE_SPACE")
    if not text:
        return None
    try:
        space = float(text)
    except ValueError:
        space = math.nan
    if not math.isfinite(space) or space < 0:
        raise RequestError(f"{name} must be a number of GiB, such as 4 or 0.5, not {text!r:.100}")
    return int(space * GIB) or None


def threads_binding() -> str:
    """ARMLLM_OMP_THREADS_BIND or VLLM_CPU_OMP_THREADS_BIND: auto, nobind, or lists of CPUs."""
    return _read("OMP_THREADS_BIND", "VLLM_CPU_OMP_THREADS_BIND")[1].lower() or "auto"


def step_seconds() -> float:
    """ARMLLM_ or VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: how long a rank or an engine may be silent."""
    name, text = _read("EXECUTE_MODEL_TIMEOUT_SECONDS", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS")
    try:
        seconds = float(text or STEP_SECONDS)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 1e6:
        raise RequestError(f"{name} must be a number of seconds, such as 300, not {text!r:.100}")
    return seconds


def layer_partition() -> list[int]:
    """ARMLLM_ or VLLM_PP_LAYER_PARTITION: how many layers each stage has; empty: as many as the others."""
    name, text = _read("PP_LAYER_PARTITION", "VLLM_PP_LAYER_PARTITION")
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        raise RequestError(f"{name} must be a list of numbers of layers such as 12,20, not {text!r:.100}")
    return [int(part) for part in parts]


def nodes_key() -> bytes:
    """ARMLLM_NODES_KEY: what the machines that compute a model have in common, and nobody else has."""
    key = os.environ.get("ARMLLM_NODES_KEY", "").strip()
    if len(key) < LEAST_KEY:
        raise RequestError(
            f"ARMLLM_NODES_KEY must have {LEAST_KEY} characters or more, the same on all machines:"
            " `openssl rand -hex 32` makes one"
        )
    return key.encode()


def may_change_adapters() -> bool:
    """ARMLLM_ or VLLM_ALLOW_RUNTIME_LORA_UPDATING: whether a server loads adapters that clients name."""
    name, text = _read("ALLOW_RUNTIME_LORA_UPDATING", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")
    if text.lower() not in {"", "0", "1", "false", "true"}:
        raise RequestError(f"{name} must be 1 or 0, true or false, not {text!r:.100}")
    return text.lower() in {"1", "true"}


def reserved_cpus() -> int:
    """ARMLLM_NUM_OF_RESERVED_CPU or VLLM_CPU_NUM_OF_RESERVED_CPU: cores that auto leaves to others."""
    name, text = _read("NUM_OF_RESERVED_CPU", "VLLM_CPU_NUM_OF_RESERVED_CPU")
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal()):
        raise RequestError(f"{name} must be a number of CPUs, not {text!r:.100}")
    return int(text)


def replicas() -> tuple[int, int]:
    """ARMLLM_REPLICAS, which `armllm serve` sets: replicas that load here, and on this one's node."""
    machine, _, node = os.environ.get("ARMLLM_REPLICAS", "1,1").partition(",")
    return int(machine), int(node)


def visible_memory_nodes() -> frozenset[int] | None:
    """ARMLLM_VISIBLE_MEMORY_NODES or CPU_VISIBLE_MEMORY_NODES: NUMA nodes that auto may choose from."""
    name, text = _read("VISIBLE_MEMORY_NODES", "CPU_VISIBLE_MEMORY_NODES")
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise RequestError(f"{name} must be a list of NUMA nodes such as 0,1, not {text!r:.100}")
    return frozenset(map(int, parts))


def _read(ours: str, theirs: str) -> tuple[str, str]:
    """The variable that is set, ours first, and its value; an empty value is as good as none."""
    for name in (f"ARMLLM_{ours}", theirs):
        text = os.environ.get(name, "").strip()
        if text:
            return name, text
    return theirs, ""
