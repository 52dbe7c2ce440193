"""Whatever a face lets through is computed: each function that takes tensors, its arguments bent a little."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from armllm import kernels

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOKENS, HIDDEN, HEADS, HEAD_DIM, BLOCK_SIZE, BLOCKS = 3, 32, 2, 8, 16, 4
FACES = {
    name: face
    for name, face in ((name, getattr(kernels, name)) for name in kernels.__all__)
    if not inspect.isclass(face)
    and any("Tensor" in str(given.annotation) for given in inspect.signature(face).parameters.values())
}
# Ops of the registry that a face of another name calls.
CALLED_BY = {
    "gelu_tanh": "gelu",
    "gelu_tanh_and_mul": "gelu_and_mul",
    "dense_matmul": "linear",
    "panel_matmul": "linear",
    "decode_fp8": "linear",
    "weighted_sum": "moe_f32",
    "lora_shrink": "add_lora",
    "lora_expand": "add_lora",
    "kv_cache_layout": "write_kv_cache",
    "state_scan": "gated_delta_rule",
    "chunk_maxima": "sample",
    "chunk_weights": "sample",
}


def pack(bits, rows, columns):
    return kernels.pack_weight(
        torch.ones(rows, columns, dtype=torch.int8), torch.ones(rows, 1), None, bits=bits
    )


@functools.cache
def experts(kind):
    """Three experts of so many bits, or of a dtype."""
    shapes = (2 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN)
    gate_up, down = (
        pack(kind, *shape) if isinstance(kind, int) else torch.ones(*shape, dtype=kind) for shape in shapes
    )
    return kernels.join_experts([gate_up] * 3, [down] * 3)


def plain(dtype, columns=HIDDEN, **others):
    x = torch.ones(TOKENS, columns, dtype=dtype)
    return {"out": torch.ones(TOKENS, HIDDEN, dtype=dtype), "x": x, **others}


def product(bits, dtype):
    return plain(dtype, weight=pack(bits, HIDDEN, HIDDEN), bias=torch.ones(HIDDEN, dtype=dtype))


def mixture(kind, dtype):
    ids = torch.tensor([[0, 2], [1, -1], [2, 0]])
    return plain(dtype, expert_ids=ids, expert_weights=torch.ones(TOKENS, 2), experts=experts(kind))


def cache_of(dtype, cache_dtype):
    layout = kernels.kv_cache_layout(
        dtype, num_kv_heads=HEADS, head_dim=HEAD_DIM, block_size=BLOCK_SIZE, cache_dtype=cache_dtype
    )
    cache = kernels.allocate_kv_cache(layout, BLOCKS)
    cache.zero_()
    return {"cache": cache, "layout": layout}


def heads(dtype, number=HEADS):
    return torch.ones(TOKENS, number, HEAD_DIM, dtype=dtype)


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype)


def remembered(states):
    """Two sequences."""
    return kernels.SequenceStates(
        states, torch.tensor([2, 0]), torch.tensor([0, 2, TOKENS], dtype=torch.int32)
    )


def scanned(dtype, *names):
    """What both scans take: queries and keys or reads and writes, values, and two numbers per head."""
    query, key, value, log_decay, strength = names
    width = 5
    return {
        "out": ones(TOKENS, HEADS, width), query: heads(dtype, 1), key: heads(dtype, 1),
        value: ones(TOKENS, HEADS, width, dtype=dtype),
        log_decay: -ones(TOKENS, HEADS), strength: ones(TOKENS, HEADS),
        "sequences": remembered(torch.zeros(3, kernels.state_size(HEADS, HEAD_DIM, width))),
    }  # fmt: skip


# Arguments that fit, of a storage type and a cache's; of a face that takes another form than (out, x).
FITTING = {
    "add_lora": lambda t, _: {
        "y": ones(TOKENS, HIDDEN, dtype=t), "x": ones(TOKENS, HIDDEN, dtype=t),
        "slots": torch.tensor([1, -1, 0]),
        "adapters": kernels.LoraSlots(
            a=ones(2, 2 * 4, HIDDEN, dtype=t), b=ones(2, 4 * HIDDEN, dtype=t),
            ranks=torch.tensor([[4, 0], [1, 3]]), part_ends=torch.tensor([20, HIDDEN]),
            norms=ones(2, HIDDEN), bias=ones(HIDDEN),
        ),
    },
    "causal_conv": lambda t, _: plain(
        t, taps=ones(4, HIDDEN), bias=ones(HIDDEN), sequences=remembered(ones(3, 3, HIDDEN, dtype=t)),
    ),
    "convert": lambda t, _: plain(t) | {"out": torch.ones(TOKENS, HIDDEN)},
    "fused_add_rms_norm": lambda t, _: {
        "x": ones(TOKENS, HIDDEN, dtype=t), "residual": ones(TOKENS, HIDDEN, dtype=t),
        "weight": ones(HIDDEN, dtype=t), "eps": 1e-6,
    },
    "gated_delta_rule": lambda t, _: scanned(t, "query", "key", "value", "log_decay", "strength"),
    "gather_rows": lambda t, _: {
        "out": ones(TOKENS, HIDDEN, dtype=t), "table": ones(5, HIDDEN, dtype=t),
        "rows": torch.tensor([4, 0, 2]),
    },
    "gelu": lambda t, _: plain(t, approximate="tanh"),
    "gelu_and_mul": lambda t, _: plain(t, 2 * HIDDEN, approximate="tanh"),
    "head_linear": lambda t, _: {
        "out": ones(TOKENS, HEADS, HIDDEN, dtype=t), "x": heads(t),
        "weight": kernels.pack_panels(ones(HEADS * HIDDEN, HEAD_DIM, dtype=t)),
    },
    "join_experts": lambda t, _: {
        "gate_up": [ones(2 * HIDDEN, HIDDEN, dtype=t)] * 2, "down": [ones(HIDDEN, HIDDEN, dtype=t)] * 2,
    },
    "layer_norm": lambda t, _: plain(t, weight=ones(HIDDEN, dtype=t), bias=ones(HIDDEN, dtype=t), eps=1e-6),
    "linear": lambda t, c: plain(
        t, bias=ones(HIDDEN, dtype=t),
        weight=kernels.pack_panels(ones(HIDDEN, HIDDEN, dtype=t)) if c else ones(HIDDEN, HIDDEN, dtype=t),
    ),
    "matmul_w4a8": lambda t, _: product(4, t),
    "matmul_w8a8": lambda t, _: product(8, t),
    "moe_bf16": lambda _t, _: mixture(torch.bfloat16, torch.bfloat16),
    "moe_f16": lambda _t, _: mixture(torch.float16, torch.float16),
    "moe_f32": lambda _t, _: mixture(torch.float32, torch.float32),
    "moe_w4a8": lambda t, _: mixture(4, t),
    "moe_w8a8": lambda t, _: mixture(8, t),
    "pack_fp8": lambda t, _: {
        "weight": ones(HIDDEN, HIDDEN).to(torch.float8_e4m3fn), "scales": ones(HIDDEN, 1), "dtype": t,
    },
    "pack_panels": lambda t, _: {"weight": ones(HIDDEN, HIDDEN, dtype=t)},
    "pack_weight": lambda _t, c: {
        "q": ones(HIDDEN, HIDDEN, dtype=torch.int8), "scales": ones(HIDDEN, 1), "bits": 4,
        "zeros": None if c else ones(HIDDEN, 1, dtype=torch.int8), "offsets": ones(HIDDEN, 1) if c else None,
    },
    "paged_attention": lambda t, c: cache_of(t, c) | {
        "out": heads(t, 2 * HEADS), "query": heads(t, 2 * HEADS), "scale": 1.0,
        "block_tables": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
        "query_start_loc": torch.tensor([0, 2, 3], dtype=torch.int32),
        "seq_lens": torch.tensor([17, 30], dtype=torch.int32),
        "alibi_slopes": ones(2 * HEADS), "sinks": ones(2 * HEADS),
    },
    "quantize_rows": lambda t, _: {
        "q": ones(TOKENS, HIDDEN, dtype=torch.int8), "scales": ones(TOKENS),
        "zeros": ones(TOKENS, dtype=torch.int32),
        "x": ones(TOKENS, HIDDEN, dtype=t),
    },
    "rms_norm": lambda t, _: plain(t, weight=ones(HIDDEN, dtype=t), eps=1e-6),
    "rotary_embedding": lambda t, _: {
        "positions": torch.tensor([0, 9, 3]), "query": heads(t, 4), "key": heads(t),
        "cos_sin_cache": ones(10, HEAD_DIM),
    },
    "sample": lambda _t, _: {
        "token_ids": torch.zeros(TOKENS, dtype=torch.int64), "logits": ones(TOKENS, 300),
        "metadata": kernels.SamplingMetadata(
            ones(TOKENS), torch.tensor([0, 3, 2]), *(torch.full((TOKENS,), 0.5).double() for _ in range(3))
        ),
    },
    "selective_scan": lambda t, _: scanned(t, "reads", "writes", "x", "log_decay", "step")
    | {"skip": ones(HEADS)},
    "silu_and_mul": lambda t, _: plain(t, 2 * HIDDEN),
    "varlen_attention": lambda t, _: {
        "out": heads(t, 2 * HEADS), "query": heads(t, 2 * HEADS), "key": heads(t), "value": heads(t),
        "query_start_loc": torch.tensor([0, 2, 3], dtype=torch.int32), "scale": 1.0,
    },
    "write_kv_cache": lambda t, c: cache_of(t, c) | {
        "key": heads(t), "value": heads(t), "slot_mapping": torch.tensor([0, -1, 63]),
    },
}  # fmt: skip


def fitting(name):
    return FITTING.get(name, lambda dtype, _: plain(dtype))


@st.composite
def values(draw, x):
    """The same tensor with other numbers: indices out of their range, no numbers at all."""
    if x.is_floating_point():
        number = draw(st.sampled_from([torch.nan, torch.inf, -1e4, 0.0]))
        return torch.full(x.shape, number).to(x.dtype)
    info = torch.iinfo(x.dtype)
    number = st.one_of(st.integers(max(-3, info.min), 70), st.integers(info.min, info.max))
    few = draw(st.lists(number, min_size=1, max_size=9))
    return torch.tensor((few * x.numel())[: x.numel()], dtype=x.dtype).view(x.shape)


@st.composite
def bent(draw, x):
    """The tensor with other values, dtype, shape or strides."""
    dim = draw(st.integers(0, x.ndim - 1))
    twice = x.repeat_interleave(2, dim)
    dtypes = st.sampled_from([*DTYPES, torch.float64, torch.int32, torch.int64])
    kinds = {
        "values": values(x),
        "dtype": dtypes.map(x.to),
        "longer": st.just(twice.narrow(dim, 0, x.shape[dim] + 1)),
        "shorter": st.integers(0, x.shape[dim] - 1).map(lambda size: x.narrow(dim, 0, size)),
        "flat": st.just(x.flatten()),
        "every other": st.just(twice.movedim(dim, -1)[..., ::2].movedim(-1, dim)),
        "transposed": st.just(x.movedim(-1, 0).contiguous().movedim(0, -1)),
        "one row": st.just(x[:1].expand(x.shape)),
    }
    return draw(kinds[draw(st.sampled_from(sorted(kinds)))])


@pytest.mark.parametrize("name", sorted(FACES))
@settings(deadline=None, max_examples=45)
@given(data=st.data())
def test_whatever_a_face_lets_through_is_computed(name, data):
    """What a face forgot to check shows as another error than ValueError, or as a crash."""
    dtype = data.draw(st.sampled_from(DTYPES))
    arguments = fitting(name)(dtype, data.draw(st.sampled_from([None, torch.int8])))
    tensors = sorted(key for key, value in arguments.items() if isinstance(value, torch.Tensor | list))
    for key in data.draw(st.lists(st.sampled_from(tensors), unique=True, max_size=2)):
        value = arguments[key]
        if isinstance(value, list):
            arguments[key] = [data.draw(bent(value[0])), *value[1:]]
        else:
            arguments[key] = data.draw(bent(value))
    with contextlib.suppress(ValueError):
        FACES[name](**arguments)


@pytest.mark.parametrize("cache_dtype", [None, torch.int8])
@pytest.mark.parametrize("name", sorted(FACES))
def test_the_arguments_fit_before_they_are_bent(name, cache_dtype):
    FACES[name](**fitting(name)(torch.bfloat16, cache_dtype))


def test_every_op_of_the_registry_is_among_them():
    for op in kernels.report():
        name = re.sub(r"(_int8)?_(f32|f16|bf16)(_to_\w+)?$", "", op)
        assert CALLED_BY.get(name, name) in FACES, op
