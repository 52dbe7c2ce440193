"""Time the kernels beside torch's own operators on this machine, in one run, and print the ratios.

    tools/bench_kernels.py                     all of it, 1 and 2 threads
    tools/bench_kernels.py --threads 1 --only attention

A ratio is torch's time over ours: above 1 the kernel is faster. Both sides work on the same tensors, their
calls alternate, and the fastest of each counts, which other work on the machine changes least: by CPU time
with one thread, else by wall time. Decode sizes are one token and a batch of 16, prefill sizes 512 tokens and
more. torch's attention gets contiguous keys and values, ours a paged cache; torch's products in bf16 and fp16
get weights that it put in order before, where it can.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import time
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from armllm import kernels
from armllm.layers.linear import PackedLinear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
HIDDEN, FEED_FORWARD = 4096, 11008
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 32, 8, 128, 16
Pair = tuple[str, "Callable[[], object]", "Callable[[], object]"]


def elementwise(dtype: torch.dtype, tokens: int) -> Iterator[Pair]:
    """Yield (name, ours, torch's) of norms and activations on [tokens, …]."""
    x, weight, bias = (torch.randn(n, HIDDEN).to(dtype) for n in (tokens, 1, 1))
    weight, bias = weight[0], bias[0]
    out = torch.empty_like(x)
    yield (
        "rms_norm",
        lambda: kernels.rms_norm(out, x, weight, 1e-5),
        lambda: functional.rms_norm(x, (HIDDEN,), weight, 1e-5),
    )
    yield (
        "layer_norm",
        lambda: kernels.layer_norm(out, x, weight, bias, 1e-5),
        lambda: functional.layer_norm(x, (HIDDEN,), weight, bias, 1e-5),
    )
    both = torch.randn(tokens, 2 * FEED_FORWARD).to(dtype)
    gate, up = both.chunk(2, -1)
    half = torch.empty(tokens, FEED_FORWARD, dtype=dtype)
    yield (
        "silu_and_mul",
        lambda: kernels.silu_and_mul(half, both),
        lambda: functional.silu(gate) * up,
    )
    yield (
        "gelu_and_mul",
        lambda: kernels.gelu_and_mul(half, both),
        lambda: functional.gelu(gate) * up,
    )
    yield ("gelu", lambda: kernels.gelu(half, gate), lambda: functional.gelu(gate))
    other = torch.float32 if dtype is not torch.float32 else torch.bfloat16
    converted = torch.empty(tokens, HIDDEN, dtype=other)
    yield ("convert", lambda: kernels.convert(converted, x), lambda: converted.copy_(x))


def attention(dtype: torch.dtype, queries: int, length: int) -> Iterator[Pair]:
    """Yield attention of the last ``queries`` of ``length`` tokens."""
    layout = kernels.kv_cache_layout(dtype, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=BLOCK)
    blocks = -(-length // BLOCK)
    cache = kernels.allocate_kv_cache(layout, blocks)
    key, value = torch.randn(2, length, KV_HEADS, HEAD_DIM).to(dtype)
    kernels.write_kv_cache(key, value, cache, layout, torch.arange(length))
    query = torch.randn(queries, HEADS, HEAD_DIM).to(dtype)
    out = torch.empty_like(query)
    table = torch.arange(blocks, dtype=torch.int32)[None]
    starts, lengths = torch.tensor([0, queries]).int(), torch.tensor([length]).int()
    wide_query = query.transpose(0, 1)[None]
    wide_key, wide_value = (x.transpose(0, 1)[None].contiguous() for x in (key, value))
    causal = queries == length
    yield (
        f"attention, {queries} of {length}",
        lambda: kernels.paged_attention(out, query, cache, layout, table, starts, lengths, HEAD_DIM**-0.5),
        lambda: functional.scaled_dot_product_attention(
            wide_query, wide_key, wide_value, is_causal=causal, enable_gqa=True
        ),
    )


def product(dtype: torch.dtype, tokens: int) -> Iterator[Pair]:
    """Yield products with a matrix that no cache holds, in the order of a checkpoint and in panels."""
    x, weight = torch.randn(tokens, HIDDEN).to(dtype), torch.randn(FEED_FORWARD, HIDDEN).to(dtype)
    out = torch.empty(tokens, FEED_FORWARD, dtype=dtype)
    torchs: Callable[[torch.Tensor], object] = functools.partial(functional.linear, weight=weight)
    if dtype is not torch.float32:
        with contextlib.suppress(
            RuntimeError, AttributeError
        ):  # a CPU without AVX-512, a torch without oneDNN
            torchs = PackedLinear(weight, None)
    panels = kernels.pack_panels(weight)
    yield "linear", lambda: kernels.linear(out, x, weight), lambda: torchs(x)
    yield "linear by panels", lambda: kernels.linear(out, x, panels), lambda: torchs(x)


def quantized(dtype: torch.dtype, tokens: int) -> Iterator[Pair]:
    """Yield products with integers, beside torch's with a matrix of ``dtype`` and the same shape."""
    x, weight = torch.randn(tokens, HIDDEN).to(dtype), torch.randn(FEED_FORWARD, HIDDEN).to(dtype)
    out = torch.empty(tokens, FEED_FORWARD, dtype=dtype)
    q = torch.randint(-8, 8, weight.shape, dtype=torch.int8)
    for name, bits, groups, matmul in (
        ("int8", 8, 1, kernels.matmul_w8a8),
        ("int4 in groups of 128", 4, HIDDEN // 128, kernels.matmul_w4a8),
        ("int4 in groups of 32", 4, HIDDEN // 32, kernels.matmul_w4a8),
    ):
        packed = kernels.pack_weight(q, torch.rand(FEED_FORWARD, groups) + 0.5, None, bits=bits)
        yield (
            f"product with {name}",
            functools.partial(matmul, out, x, packed),
            functools.partial(functional.linear, x, weight),
        )


def best_times(
    ours: Callable[[], object], theirs: Callable[[], object], seconds: float, clock: Callable[[], float]
) -> tuple[float, float]:
    """Return the shortest time of each by ``clock``, their calls taking turns for about ``seconds``."""
    ours(), theirs()
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for call, list_ in zip((ours, theirs), times, strict=True):
            start = clock()
            call()
            list_.append(clock() - start)
    return min(times[0]), min(times[1])


def cases(dtype: torch.dtype) -> Iterator[Pair]:
    """Yield every case of a storage type."""
    for tokens in (1, 16, 512):
        for name, ours, theirs in (
            *elementwise(dtype, tokens),
            *product(dtype, tokens),
            *quantized(dtype, tokens),
        ):
            yield f"{name}, {tokens} tokens", ours, theirs
    for queries, length in ((1, 512), (1, 4096), (512, 512), (2048, 2048)):
        yield from attention(dtype, queries, length)


def main() -> None:
    """Parse the command line, time, print Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, action="append", help="1 and 2 unless given; may be repeated")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="f32 and bf16 unless given")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name begins so")
    parser.add_argument("--seconds", type=float, default=0.3, help="per case and thread count (0.3)")
    options = parser.parse_args()
    threads = options.threads or [1, 2]
    if min(threads) < 1:
        parser.error("--threads must be at least 1")
    torch.manual_seed(0)
    print("| case | " + " | ".join(f"{n} thread{'s' if n > 1 else ''}" for n in threads) + " |")
    print("| --- |" + " --- |" * len(threads))
    with torch.inference_mode():
        for name in options.dtype or ["f32", "bf16"]:
            for case, ours, theirs in cases(DTYPES[name]):
                if not case.startswith(options.only):
                    continue
                cells = []
                for count in threads:
                    torch.set_num_threads(count)
                    kernels.set_num_threads(count)
                    mine, torchs = best_times(
                        ours, theirs, options.seconds, time.thread_time if count == 1 else time.perf_counter
                    )
                    cells.append(f"{torchs / mine:.2f} ({mine * 1e6:.0f} µs)")
                print(f"| {case}, {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
