#!/usr/bin/env python3
"""vLLM's and armllm's products with int4 weights, which take turns on one thread: prints Markdown.

    VENV/bin/python tools/bench_vllm_int4.py

``VENV`` has a CPU build of vLLM for x86-64, on a CPU with AMX, and armllm. vLLM's product is
``int4_scaled_mm_cpu``, which it takes there for GPTQ, AWQ and compressed-tensors. Both round each row of
inputs to 8 bits. Weights have groups of 128, inputs are bf16. Each call meets another weight, so that none is
in a cache. A figure is the lower quartile of ``--repeats`` calls, in microseconds.
"""

from __future__ import annotations

import argparse
import functools
import time
from typing import TYPE_CHECKING, Any

import torch
from vllm import _custom_ops as ops

from armllm import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = 128
SHAPES = ((2304, 768), (4096, 4096), (11008, 4096))
ROWS = (1, 2, 4, 8, 16, 32, 128, 384)
CACHE_BYTES = 64 << 20
EIGHTS = -0x77777778  # eight zero points of 8 in an int32


def weights(out_features: int, in_features: int) -> list[tuple[Any, Any]]:
    """Pairs of armllm's and vLLM's packed weights, more than caches hold."""
    groups, pairs = in_features // GROUP, []
    for _ in range(1 + CACHE_BYTES // (out_features * in_features // 2)):
        q = torch.randint(-8, 8, (out_features, in_features), dtype=torch.int8)
        ours = kernels.pack_weight(q, torch.rand(out_features, groups) / 100, None, bits=4)
        packed = torch.randint(0, 2**31 - 1, (in_features, out_features // 8), dtype=torch.int32)
        zeros = torch.full((groups, out_features // 8), EIGHTS, dtype=torch.int32)
        scales = (torch.rand(groups, out_features) / 100).bfloat16()
        pairs.append((ours, ops.convert_weight_packed_scale_zp(packed, zeros, scales, ops.CPUQuantAlgo.AWQ)))
    return pairs


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(pairs: list[tuple[Any, Any]], rows: int, in_features: int, repeats: int) -> tuple[float, float]:
    """Microseconds of a product of armllm, and of one of vLLM."""
    x = torch.randn(rows, in_features).bfloat16()
    out = torch.empty(rows, pairs[0][0].out_features, dtype=torch.bfloat16)
    times: tuple[list[float], list[float]] = [], []
    for index in range(repeats):
        ours, (packed, zeros, scales) = pairs[index % len(pairs)]
        times[0].append(seconds(functools.partial(kernels.matmul_w4a8, out, x, ours)))
        times[1].append(seconds(functools.partial(ops.int4_scaled_mm_cpu, x, packed, zeros, scales, None)))
    return sorted(times[0])[repeats // 4] * 1e6, sorted(times[1])[repeats // 4] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=40, help="calls of each")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kernels.set_num_threads(1)
    print(f"target: {kernels.weight_target(4)}\n")
    print("| out x in | rows | vLLM | armllm | times as fast |\n| --- | ---: | ---: | ---: | ---: |")
    for out_features, in_features in SHAPES:
        pairs = weights(out_features, in_features)
        for rows in ROWS:
            ours, theirs = measure(pairs, rows, in_features, arguments.repeats)
            times = f"{theirs:.0f} | {ours:.0f} | {theirs / ours:.2f}"
            print(f"| {out_features} x {in_features} | {rows} | {times} |", flush=True)


if __name__ == "__main__":
    main()
