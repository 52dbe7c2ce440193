"""The kernels of armllm on torch tensors.

Each function checks dtype, shape, strides, device and index ranges. It raises ValueError that names the wrong
argument. Then it calls the best kernel for this CPU. ``report()`` shows the choice, and the environment
variable ``ARMLLM_ISA`` limits it. Tensors lie on the CPU and are contiguous in their last dimension. Other
dimensions may have any strides. ``armllm.kernels.reference`` has the same functions in plain torch.
"""

from __future__ import annotations

from armllm.kernels._extension import extension
from armllm.kernels.activation import convert, gelu, gelu_and_mul, quick_gelu, relu, silu_and_mul
from armllm.kernels.attention import (
    KVCacheLayout,
    allocate_kv_cache,
    kv_cache_layout,
    paged_attention,
    varlen_attention,
    write_kv_cache,
)
from armllm.kernels.dense import Fp8Weight, PanelWeight, head_linear, linear, pack_fp8, pack_panels
from armllm.kernels.elementwise import fused_add_rms_norm, gather_rows, layer_norm, rms_norm, rotary_embedding
from armllm.kernels.lora import LoraSlots, add_lora
from armllm.kernels.matmul import (
    PackedWeight,
    Values,
    check_packed,
    matmul_w4a8,
    matmul_w8a8,
    pack_weight,
    quantize_rows,
    weight_layouts,
    weight_target,
)
from armllm.kernels.moe import (
    ClampedSwiGLU,
    Experts,
    join_experts,
    moe_bf16,
    moe_f16,
    moe_f32,
    moe_w4a8,
    moe_w8a8,
)
from armllm.kernels.recurrence import (
    SequenceStates,
    causal_conv,
    gated_delta_rule,
    selective_scan,
    state_size,
)
from armllm.kernels.sampling import SamplingMetadata, sample

__all__ = [
    "ClampedSwiGLU",
    "Experts",
    "Fp8Weight",
    "KVCacheLayout",
    "LoraSlots",
    "PackedWeight",
    "PanelWeight",
    "SamplingMetadata",
    "SequenceStates",
    "Values",
    "add_lora",
    "allocate_kv_cache",
    "causal_conv",
    "check_packed",
    "convert",
    "fused_add_rms_norm",
    "gated_delta_rule",
    "gather_rows",
    "gelu",
    "gelu_and_mul",
    "get_num_threads",
    "head_linear",
    "join_experts",
    "kv_cache_layout",
    "layer_norm",
    "linear",
    "matmul_w4a8",
    "matmul_w8a8",
    "moe_bf16",
    "moe_f16",
    "moe_f32",
    "moe_w4a8",
    "moe_w8a8",
    "pack_fp8",
    "pack_panels",
    "pack_weight",
    "paged_attention",
    "quantize_rows",
    "quick_gelu",
    "relu",
    "report",
    "rms_norm",
    "rotary_embedding",
    "sample",
    "selective_scan",
    "set_num_threads",
    "silu_and_mul",
    "state_size",
    "targets",
    "thread_backend",
    "use_own_threads",
    "varlen_attention",
    "weight_layouts",
    "weight_target",
    "write_kv_cache",
]


def report() -> dict[str, dict[str, str]]:
    """Return for each op the target whose kernel runs here, and the reason why a better one does not."""
    return extension.report()


def targets() -> tuple[str, ...]:
    """Return the kernel targets that are compiled into this build, the least preferred first."""
    return tuple(extension.targets())


def get_num_threads() -> int:
    """Return how many threads a kernel may use."""
    return extension.get_num_threads()


def set_num_threads(threads: int) -> None:
    """Set how many threads a kernel may use; 0 restores the default, which is torch's.

    Raises ValueError if ``threads`` is negative.
    """
    if threads < 0:
        raise ValueError(f"threads is {threads}, expected 0 (the default) or more")
    extension.set_num_threads(threads)


def use_own_threads(own: bool = True) -> None:
    """Run the kernels on separate threads if ``own``, else on torch's OpenMP team.

    Separate threads are right where torch has almost nothing to compute. They wait longer while the machine
    is idle, and shorter while it is busy. Two teams that take turns on the same cores are slower than one.
    """
    extension.use_own_threads(own)


def thread_backend() -> str:
    """Return ``"libgomp"`` if the kernels share torch's OpenMP team, ``"pool"`` if they do not."""
    return extension.thread_backend()
