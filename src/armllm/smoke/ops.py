"""Every op beside the same op in plain torch: generated texts may not show an error of one kernel."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from armllm import kernels
from armllm.checkpoint.gguf_blocks import DOUBLED_E2M1
from armllm.kernels import reference

if TYPE_CHECKING:
    from collections.abc import Callable

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
COMPARED_WITH_ATTENTION = ("kv_cache_layout", "write_kv_cache")
ROWS, HIDDEN = 5, 77  # a tail behind every vector length


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpResult:
    """One op's largest error, relative to the largest value, and the rounding that is allowed."""

    op: str
    error: float
    bound: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        return self.error <= self.bound  # false for NaN

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON value; what is no number has no error."""
        error = self.error if math.isfinite(self.error) else None
        return {"ok": self.ok, "error": error, "bound": self.bound}

    def __str__(self) -> str:
        if self.problem:
            return f"{self.op}: {self.problem}"
        return f"{self.op} differs from plain torch by {self.error:.2g} (rounding explains {self.bound:.2g})"


def compare_ops() -> list[OpResult]:
    """Run every op of this build, as dispatched on this CPU, and its reference on the same data."""
    return [compare(op) for op in kernels.report() if not op.startswith(COMPARED_WITH_ATTENTION)]


def compare(op: str) -> OpResult:
    """Compare one op, named as in `kernels.report`; KeyError for an op that nobody compares."""
    run, dtype, bound = _how(op)
    with torch.inference_mode():
        want = run(reference, dtype).double()
        try:
            error = ((run(kernels, dtype).double() - want).abs().max() / want.abs().max()).item()
        except Exception as problem:  # noqa: BLE001 - whatever stops a kernel is the verdict, in one line
            return OpResult(
                op=op, error=math.inf, bound=bound, problem=f"{type(problem).__name__}: {problem}"
            )
    return OpResult(op=op, error=error, bound=bound)


def _how(op: str) -> tuple[Callable[[Any, torch.dtype], Tensor], torch.dtype, float]:
    """What runs the op, its storage type, and the error allowed.

    Both sides compute in fp32 and round once to the storage type, which may fall to either side: one unit in
    the last place. Attention in bf16 also rounds its weights, before they are multiplied and when summed, and
    that on an int8 cache by up to 2^-9 of the largest; experts in bf16 round what their second product
    multiplies.
    """
    if op.startswith("convert_"):
        source, target = op.removeprefix("convert_").split("_to_")
        return _convert(DTYPES[target]), DTYPES[source], 0.0
    name, _, suffix = op.rpartition("_")
    dtype = DTYPES[suffix]
    unit = torch.finfo(dtype).eps
    if name == "paged_attention":
        return _attention, dtype, 4 * unit + 1e-5
    if name == "paged_attention_int8":
        return functools.partial(_attention, cache_dtype=torch.int8), dtype, unit + 2**-9
    if name == "weighted_sum":
        return _moe, dtype, 2 * unit + 1e-5
    function = name.replace("gelu_tanh", "gelu")
    if name not in OTHERS and function in kernels.__all__:
        options = {"approximate": "tanh"} if function != name else {}
        return _activation(function, options, 2 if name.endswith("_and_mul") else 1), dtype, unit + 1e-6
    return OTHERS[name], dtype, unit + 1e-5


@functools.cache
def _normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return _normal(seed + len(shape), *shape).to(dtype, copy=True)


def _convert(target: torch.dtype) -> Callable[[Any, torch.dtype], Tensor]:
    def run(ops: Any, dtype: torch.dtype) -> Tensor:
        out = torch.empty(ROWS, HIDDEN, dtype=target)
        ops.convert(out, _random(ROWS, HIDDEN, dtype=dtype))
        return out

    return run


def _activation(name: str, options: dict[str, Any], inputs: int) -> Callable[[Any, torch.dtype], Tensor]:
    def run(ops: Any, dtype: torch.dtype) -> Tensor:
        out = torch.empty(ROWS, HIDDEN, dtype=dtype)
        getattr(ops, name)(out, _random(ROWS, inputs * HIDDEN, dtype=dtype), **options)
        return out

    return run


def _rms_norm(ops: Any, dtype: torch.dtype) -> Tensor:
    x, weight = _random(ROWS, HIDDEN, dtype=dtype), _random(HIDDEN, dtype=dtype)
    plain, gemma = torch.empty_like(x), torch.empty_like(x)
    ops.rms_norm(plain, x, weight, 0.5)
    ops.rms_norm(gemma, x, weight, 0.5, weight_offset=1.0)
    return torch.cat((plain, gemma))


def _fused_add_rms_norm(ops: Any, dtype: torch.dtype) -> Tensor:
    parts = []
    for offset in (0.0, 1.0):
        x, residual = _random(ROWS, HIDDEN, dtype=dtype), _random(ROWS, HIDDEN, dtype=dtype, seed=9)
        ops.fused_add_rms_norm(x, residual, _random(HIDDEN, dtype=dtype), 0.5, weight_offset=offset)
        parts += [x, residual]
    return torch.cat(parts)


def _layer_norm(ops: Any, dtype: torch.dtype) -> Tensor:
    x = _random(ROWS, HIDDEN, dtype=dtype) + 1
    weight, bias = _random(HIDDEN, dtype=dtype), _random(HIDDEN, dtype=dtype, seed=9)
    with_bias, without = torch.empty_like(x), torch.empty_like(x)
    ops.layer_norm(with_bias, x, weight, bias, 0.5)
    ops.layer_norm(without, x, weight, None, 0.5)
    summed, residual = torch.empty_like(x), _random(ROWS, HIDDEN, dtype=dtype, seed=8)
    ops.layer_norm(summed, x, weight, bias, 0.5, residual=residual)
    return torch.cat((with_bias, without, summed, residual))


def _rotary_embedding(ops: Any, dtype: torch.dtype) -> Tensor:
    positions = torch.tensor([0, 3, 1, 9, 4])
    angles = torch.outer(torch.arange(10.0), 1.0 / torch.arange(1, 12))
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)  # turns 22 of 30 dimensions
    parts = []
    for interleaved in (False, True):
        query, key = _random(5, 3, 30, dtype=dtype), _random(5, 1, 30, dtype=dtype, seed=9)
        ops.rotary_embedding(positions, query, key, cache, interleaved=interleaved)
        parts += [query.flatten(), key.flatten()]
    return torch.cat(parts)


def _quantize_rows(ops: Any, dtype: torch.dtype) -> Tensor:
    x = _random(ROWS, HIDDEN, dtype=dtype)
    parts = []
    for zeros in (None, torch.empty(ROWS, dtype=torch.int32)):
        q, scales = torch.empty(ROWS, HIDDEN, dtype=torch.int8), torch.empty(ROWS)
        ops.quantize_rows(q, scales, x, zeros=zeros)
        parts += [q.flatten(), scales] + ([] if zeros is None else [zeros])
    return torch.cat([part.float() for part in parts])


def _matmul(bits: int) -> Callable[[Any, torch.dtype], Tensor]:
    def run(ops: Any, dtype: torch.dtype) -> Tensor:
        """One token, two, a tile and a rest of rows; per channel, and groups with zero points."""
        generator = torch.Generator().manual_seed(bits)
        parts = []
        for features, groups, with_zeros, values in (
            (77, 1, False, "integers"),
            (128, 4, True, "integers"),
            *([(128, 4, False, "e2m1")] if bits == 8 else []),
        ):
            low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
            q = torch.randint(low, high, (13, features), generator=generator, dtype=torch.int8)
            if values == "e2m1":
                q = torch.tensor(DOUBLED_E2M1, dtype=torch.int8)[q.int() & 15]
            scales = torch.rand(13, groups, generator=generator) + 0.5
            zeros = torch.randint(low, 9, (13, groups), generator=generator, dtype=torch.int8)
            weight = ops.pack_weight(q, scales, zeros if with_zeros else None, bits=bits, values=values)
            for rows in (1, 2, 19):
                out = torch.empty(rows, 13, dtype=dtype)
                x, bias = _random(rows, features, dtype=dtype), _random(13, dtype=dtype)
                (ops.matmul_w4a8 if bits == 4 else ops.matmul_w8a8)(out, x, weight, bias)
                parts.append(out.flatten())
        return torch.cat(parts)

    return run


def _linear(ops: Any, dtype: torch.dtype, *, panels: bool = False) -> Tensor:
    """A single row, and more than any kernel's tile has."""
    weight, bias = _random(90, HIDDEN, dtype=dtype).mul(HIDDEN**-0.5), _random(90, dtype=dtype)
    if panels:
        weight = ops.pack_panels(weight)
    parts = []
    for rows in (1, 3, 19):
        out = torch.empty(rows, 90, dtype=dtype)
        ops.linear(out, _random(rows, HIDDEN, dtype=dtype), weight, bias)
        parts.append(out.flatten())
    if panels:
        parts.append(_head_linear(ops, dtype).flatten())
    return torch.cat(parts)


def _head_linear(ops: Any, dtype: torch.dtype) -> Tensor:
    """Three heads."""
    weight = ops.pack_panels(_random(3 * 32, HIDDEN, dtype=dtype).mul(HIDDEN**-0.5))
    out = torch.empty(ROWS, 3, 32, dtype=dtype)
    ops.head_linear(out, _random(ROWS, 3 * HIDDEN, dtype=dtype).view(ROWS, 3, HIDDEN), weight)
    return out


def _decode_fp8(ops: Any, dtype: torch.dtype) -> Tensor:
    """A scale per row, and groups of which the last one is short."""
    weight = _random(90, HIDDEN, dtype=torch.float32).to(torch.float8_e4m3fn)
    parts = []
    for group_size, groups in ((0, 1), (16, -(-HIDDEN // 16))):
        scales = _random(90, groups, dtype=torch.float32, seed=3) / HIDDEN**0.5
        packed = ops.pack_fp8(weight, scales, group_size=group_size, dtype=dtype)
        for rows in (1, 19):
            out = torch.empty(rows, 90, dtype=dtype)
            ops.linear(out, _random(rows, HIDDEN, dtype=dtype), packed)
            parts.append(out.flatten())
    return torch.cat(parts)


def _moe(ops: Any, dtype: torch.dtype) -> Tensor:
    """One token, and some whose experts have from none to all of them."""
    hidden, width, count = HIDDEN, 45, 4
    gate_up = _random(count, 2 * width, hidden, dtype=dtype).mul(hidden**-0.5)
    down = _random(count, hidden, width, dtype=dtype, seed=9).mul(width**-0.5)
    experts = ops.join_experts(list(gate_up), list(down))
    op = {torch.float32: ops.moe_f32, torch.float16: ops.moe_f16, torch.bfloat16: ops.moe_bf16}[dtype]
    parts = []
    for tokens in (1, 11):
        ids = torch.tensor([[2, 1], [2, -1], [0, 2]]).repeat(4, 1)[:tokens]
        x, out = _random(tokens, hidden, dtype=dtype), torch.empty(tokens, hidden, dtype=dtype)
        op(out, x, ids, _random(tokens, 2, dtype=torch.float32), experts)
        parts.append(out.flatten())
    return torch.cat(parts)


def _add_lora(ops: Any, dtype: torch.dtype) -> Tensor:
    """Three adapters of two parts, one of DoRA's, and a row without any."""
    ends, max_rank = torch.tensor([HIDDEN, 2 * HIDDEN + 5]), 6
    columns = int(ends[-1])
    y, x = _random(ROWS, columns, dtype=dtype), _random(ROWS, HIDDEN, dtype=dtype, seed=1)
    a = _random(3, 2 * max_rank, HIDDEN, dtype=dtype) / HIDDEN**0.5
    b = _random(3, max_rank * columns, dtype=dtype, seed=2)
    norms = _random(3, columns, dtype=torch.float32, seed=3) * torch.tensor([[0.0], [0.5], [0.0]])
    ranks, slots = torch.tensor([[1, 6], [4, 5], [0, 3]]), torch.tensor([2, -1, 1, 0, 1])
    bias = _random(columns, dtype=torch.float32)
    ops.add_lora(y, x, ops.LoraSlots(a, b, ranks, ends, norms, bias), slots)
    return y


SEQUENCES = (torch.tensor([2, 0, 1]), torch.tensor([0, 1, 1, 13], dtype=torch.int32))
"""Slots and places of a decode, of a sequence without tokens, and of a prompt."""


def _causal_conv(ops: Any, dtype: torch.dtype) -> Tensor:
    x, taps = _random(13, HIDDEN, dtype=dtype), _random(4, HIDDEN, dtype=torch.float32)
    states, out = _random(3, 3, HIDDEN, dtype=dtype), torch.empty_like(x)
    ops.causal_conv(
        out, x, taps, _random(HIDDEN, dtype=torch.float32), ops.SequenceStates(states, *SEQUENCES)
    )
    return torch.cat((out.flatten(), states.flatten()))


def _state_scan(ops: Any, dtype: torch.dtype) -> Tensor:
    """Both rules, with columns behind the last whole vector."""
    tokens, heads, keys, width = 13, 4, 20, 37
    query, key = (_random(tokens, 2, keys, dtype=dtype, seed=seed) / keys**0.5 for seed in (1, 2))
    value = _random(tokens, heads, width, dtype=dtype)
    log_decay = -_random(tokens, heads, dtype=torch.float32).abs()
    strength, skip = _random(tokens, heads, dtype=torch.float32, seed=5), _random(heads, dtype=torch.float32)
    parts = []
    for delta in (True, False):
        states = torch.zeros(3, kernels.state_size(heads, keys, width))
        out, sequences = torch.empty(tokens, heads, width), ops.SequenceStates(states, *SEQUENCES)
        if delta:
            strength = strength.sigmoid()
            ops.gated_delta_rule(out, query, key, value, log_decay, strength, sequences)
        else:
            ops.selective_scan(out, value, strength, log_decay, key, query, skip, sequences)
        parts += [out.flatten(), states.flatten()]
    return torch.cat(parts)


def _sample(ops: Any, dtype: torch.dtype) -> Tensor:  # noqa: ARG001 - logits are fp32
    """Tokens of rows with each way to choose, and a tail behind the last whole chunk."""
    rows = 12
    token_ids, unit = torch.empty(rows, dtype=torch.int64), torch.ones(rows, dtype=torch.float64)
    metadata = ops.SamplingMetadata(
        temperatures=torch.linspace(0.3, 2, rows),
        top_k=torch.tensor([0, 7, 300] * 4),
        top_p=torch.where(torch.arange(rows) % 4 < 2, unit, 0.8),
        min_p=torch.where(torch.arange(rows) % 5 < 3, 0 * unit, 0.1),
        uniforms=torch.linspace(0.02, 0.97, rows, dtype=torch.float64),
    )
    ops.sample(token_ids, _random(rows, 777, dtype=torch.float32) * 3, metadata)
    return token_ids


OTHERS: dict[str, Callable[[Any, torch.dtype], Tensor]] = {
    "dense_matmul": _linear,
    "panel_matmul": functools.partial(_linear, panels=True),
    "decode_fp8": _decode_fp8,
    "quantize_rows": _quantize_rows,
    "matmul_w8a8": _matmul(8),
    "matmul_w4a8": _matmul(4),
    "rms_norm": _rms_norm,
    "fused_add_rms_norm": _fused_add_rms_norm,
    "layer_norm": _layer_norm,
    "rotary_embedding": _rotary_embedding,
    "lora_shrink": _add_lora,
    "lora_expand": _add_lora,
    "causal_conv": _causal_conv,
    "state_scan": _state_scan,
    "chunk_maxima": _sample,
    "chunk_weights": _sample,
}


def _attention(ops: Any, dtype: torch.dtype, cache_dtype: torch.dtype | None = None) -> Tensor:
    """A prompt's chunk, a decode over several splits, and one token alone; every option, alone."""
    heads = 6
    options: list[dict[str, Any]] = [
        {},
        {"sliding_window": 11},
        {"chunk_size": 19},
        {"logit_soft_cap": 1.5},
        {"alibi_slopes": torch.linspace(0.05, 0.5, heads)},
        {"sinks": torch.linspace(-1, 3, heads)},
    ]
    return torch.cat(
        [
            _attend(ops, dtype, cache_dtype, head_dim, heads, score_options).flatten()
            for head_dim in (64, 40)
            for score_options in (options if head_dim == 64 else options[:1])
        ]
    )


def _attend(  # noqa: PLR0917 - what attention depends on
    ops: Any,
    dtype: torch.dtype,
    cache_dtype: torch.dtype | None,
    head_dim: int,
    heads: int,
    options: dict[str, Any],
) -> Tensor:
    lengths, queries, block_size = [37, 530, 1], [21, 1, 1], 16
    layout = ops.kv_cache_layout(
        dtype, num_kv_heads=2, head_dim=head_dim, block_size=block_size, cache_dtype=cache_dtype
    )
    tables = torch.zeros(len(lengths), -(-max(lengths) // block_size), dtype=torch.int32)
    free = iter(torch.randperm(64, generator=torch.Generator().manual_seed(1)).tolist())
    slots = []
    for sequence, length in enumerate(lengths):
        blocks = [next(free) for _ in range(-(-length // block_size))]
        tables[sequence, : len(blocks)] = torch.tensor(blocks)
        slots += [blocks[at // block_size] * block_size + at % block_size for at in range(length)]
    cache = ops.allocate_kv_cache(layout, 64)
    cache.zero_()
    tokens = len(slots)
    key, value = _random(tokens, 2, head_dim, dtype=dtype), _random(tokens, 2, head_dim, dtype=dtype, seed=9)
    ops.write_kv_cache(key, value, cache, layout, torch.tensor(slots))
    query = _random(sum(queries), heads, head_dim, dtype=dtype, seed=5)
    out = torch.empty_like(query)
    starts = torch.tensor([0, 21, 22, 23], dtype=torch.int32)
    lens = torch.tensor(lengths, dtype=torch.int32)
    ops.paged_attention(out, query, cache, layout, tables, starts, lens, head_dim**-0.5, **options)
    return out
