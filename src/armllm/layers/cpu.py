"""Which products this CPU is good at.

`kernels.linear` is faster than torch's with AMX, on AArch64, in 16 bits on a CPU for which torch's oneDNN has
no instructions, and in fp32 on a CPU with AVX2.
"""

from __future__ import annotations

import functools
import platform

import torch

import armisa
from armllm import kernels

# Kernels that are faster than torch's products for any number of rows, with the weights as they are.
FAST_TARGETS = ("amx",)
# And those with the weights in panels.
FAST_PANEL_TARGETS = ("bf16", "avx512_bf16")


def cpu_computes_bfloat16() -> bool:
    """Whether this CPU has bf16 dot products (Arm FEAT_BF16, x86 AVX512-BF16 or AMX)."""
    return _cpu_has({"bf16", "avx512_bf16", "amx_bf16"})


def cpu_computes_float16() -> bool:
    """Whether torch's products in fp16 are as fast as in bf16 here (x86 AVX512-FP16 or AMX-FP16).

    On Arm nobody has such products: torch has none, and the kernels widen fp16 to fp32.
    """
    return _cpu_has({"avx512_fp16", "amx_fp16"})


def _cpu_has(features: set[str]) -> bool:
    return not features.isdisjoint(armisa.detect().features)


@functools.cache
def has_fast_kernel(dtype: torch.dtype) -> bool:
    """Whether `kernels.linear` beats torch's products in this dtype with weights as they are."""
    return dtype is torch.bfloat16 and _target("dense_matmul_bf16") in FAST_TARGETS


@functools.cache
def has_fast_panels(dtype: torch.dtype) -> bool:
    """Whether `kernels.linear` beats torch's products in this dtype with weights in panels."""
    if dtype is torch.float32:
        return platform.machine() == "aarch64" or _target("panel_matmul_f32") in {"avx2", "avx512"}
    if dtype is not torch.bfloat16:
        return False
    target = _target("panel_matmul_bf16")
    # Without AVX512-BF16 oneDNN makes each dot product of several instructions, and panels win at any rows.
    return target in FAST_PANEL_TARGETS or (target == "avx512" and not cpu_computes_bfloat16())


def _target(op: str) -> str | None:
    entry = kernels.report().get(op)  # plain torch has no op of this name
    return None if entry is None else entry["target"]


@functools.cache
def has_torch_product(dtype: torch.dtype) -> bool:
    """Whether torch has more for products in this dtype on this CPU than portable loops."""
    if dtype is torch.float32:
        return True
    name = "_is_mkldnn_bf16_supported" if dtype is torch.bfloat16 else "_is_mkldnn_fp16_supported"
    supported = getattr(torch.ops.mkldnn, name, None)  # a torch without oneDNN has none
    return supported is not None and bool(supported())


def wants_panels(dtype: torch.dtype) -> bool:
    """Whether weights of this dtype are put into panels."""
    return not has_fast_kernel(dtype) and (has_fast_panels(dtype) or not has_torch_product(dtype))


def wants_fp8(dtype: torch.dtype) -> bool:
    """Whether weights of E4M3 stay so for products in this dtype, which decode them.

    Reading fp32 takes longer than decoding. So does reading bf16 by all cores of an Arm server, but on x86
    and where no instruction rounds to bf16 it takes less.
    """
    if dtype is torch.bfloat16:
        return wants_panels(dtype) and platform.machine() == "aarch64" and cpu_computes_bfloat16()
    return wants_panels(dtype) and dtype is torch.float32


def has_own_products(dtype: torch.dtype) -> bool:
    """Whether all dense products in this dtype are the kernels' own."""
    return has_fast_kernel(dtype) or wants_panels(dtype)
