"""Options of vLLM that have one meaning here: programs and guides written for vLLM bring them along."""

from __future__ import annotations

from typing import Any

ONE_PROCESS = "the engine is one process with as many threads as the CPU has cores"
MEMORY = "there is no GPU; VLLM_CPU_KVCACHE_SPACE says how many GiB the KV cache gets"
BOTH = "every model generates and embeds"
NOTHING_COMPILED = "nothing is compiled here"

# option -> the values that ask for what is done anyway, and why there are no others
FOREGONE: dict[str, tuple[tuple[Any, ...], str]] = {
    "tensor_parallel_size": ((1,), ONE_PROCESS),
    "pipeline_parallel_size": ((1,), ONE_PROCESS),
    "data_parallel_size": ((1,), ONE_PROCESS),
    "distributed_executor_backend": (("mp", "uni", None), ONE_PROCESS),
    "device": (("cpu", "auto"), "this engine runs on CPUs"),
    "load_format": (("auto", "safetensors"), "only safetensors files are read"),
    "tokenizer_mode": (("auto", "hf"), "only tokenizer.json is read"),
    "task": (("auto", "generate", "embed"), BOTH),
    "runner": (("auto", "generate", "pooling"), BOTH),
    "cpu_offload_gb": ((0, None), MEMORY),
    "swap_space": ((0, None), MEMORY),
    "gpu_memory_utilization": ((None,), MEMORY),
    "enable_chunked_prefill": ((True, None), "prompts are always chunked"),
    "enforce_eager": ((True, False), NOTHING_COMPILED),
    "trust_remote_code": ((True, False), "no code of a checkpoint is ever run"),
    "disable_log_stats": ((True, False), "/metrics has them"),
}


def refusal(name: str, value: Any) -> str | None:
    """What to say of a value that can't be honoured; None for one that can."""
    accepted, reason = FOREGONE[name]
    if value in accepted:
        return None
    return f"can only be {' or '.join(map(repr, accepted))} here, not {value!r}: {reason}"
