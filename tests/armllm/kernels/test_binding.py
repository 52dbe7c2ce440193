"""The extension's ops check their arguments: strides are honored, what does not fit is refused by name."""

from __future__ import annotations

import ast
import inspect
import os
import re
from pathlib import Path

import pytest
import torch

import armllm
from armllm import kernels
from armllm.kernels._extension import extension

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ROWS, COLUMNS, OUT = 3, 37, 19
TOKENS, KV_HEADS, GROUP, HEAD_DIM, BLOCK, BLOCKS = 5, 2, 3, 16, 16, 4
HEADS = {"rotary_embedding", "write_kv_cache", "paged_attention", "varlen_attention"}
ANY_SIZE = {
    ("causal_conv", "states"),
    ("state_scan", "states"),
    ("gather_rows", "table"),
    ("paged_attention", "block_tables"),
    ("rotary_embedding", "cos_sin_cache"),
}
"""Tensors which may be larger or smaller, their rows anywhere."""


def parameters(name):
    """The names of a function's parameters, as the module says them."""
    function = getattr(extension, name)
    if function.__text_signature__:
        return list(inspect.signature(function).parameters)
    return re.findall(r"(\w+):", function.__doc__.splitlines()[0])  # pybind11's


NO_KERNELS = {"use_torch", "check_matrix", "check_packed", "check_quantized", "pack_weight"}
FUNCTIONS = [
    name
    for name in dir(extension)
    if not name.startswith("_") and not inspect.isclass(getattr(extension, name))
]
NAMES = [
    name for name in FUNCTIONS if name not in NO_KERNELS and {"out", "q", "x", "key"} & set(parameters(name))
]
MEMORY = []


def gatherer_of_one():
    """A rank that is alone: the whole is its part."""
    file = os.memfd_create("ranks")
    try:
        os.ftruncate(file, extension.Ranks.bytes(1))
        return extension.Gatherer(extension.Ranks(file, 0, 1, 1.0), [[(0, 0, COLUMNS)]])
    finally:
        os.close(file)


def arguments(name, dtype):
    """The arguments of a call, the output first but for those with heads."""
    if name in HEADS:
        return heads(name, dtype)
    x = torch.randn(ROWS, COLUMNS, dtype=dtype)
    makers = {
        "matmul": quantized, "moe": mixture, "linear": product, "norm": norm, "lora": adapters,
        "causal": convolved, "scan": scanned,
    }  # fmt: skip
    for part, make in makers.items():
        if part in name:
            return make(name, x)
    if name == "quantize_rows":
        zeros = torch.zeros(ROWS, dtype=torch.int32)
        return [torch.zeros_like(x, dtype=torch.int8), torch.zeros(ROWS), x, zeros]
    if name == "convert":
        other = torch.float32 if dtype is not torch.float32 else torch.bfloat16
        return [torch.zeros_like(x, dtype=other), x]
    if name.startswith("gather"):
        how = gatherer_of_one() if name == "gather_parts" else torch.arange(ROWS).flip(0)
        return [torch.zeros_like(x), x, how]
    gates = 2 if name.endswith("_and_mul") else 1
    return [torch.zeros_like(x), x.repeat(1, gates)]


def norm(name, x):
    """The arguments of one."""
    weight, bias = torch.randn(2, COLUMNS, dtype=x.dtype)
    if name == "fused_add_rms_norm":
        return [x, torch.randn_like(x), weight, 1e-5, 0.0]
    rest = [bias, 1e-5, torch.randn_like(x)] if name == "layer_norm" else [1e-5, 1.0]
    return [torch.zeros_like(x), x, weight, *rest]


def product(name, x):
    """The arguments of one with a weight as it is, or in panels."""
    out, bias = torch.zeros(ROWS, OUT, dtype=x.dtype), torch.randn(OUT, dtype=x.dtype)
    weight = torch.randn(OUT, COLUMNS, dtype=x.dtype)
    if name == "linear":
        return [out, x, weight, bias]
    if name == "head_linear":
        packed = kernels.pack_panels(weight.repeat(2 * 16, 1))
        out = torch.zeros(ROWS, 2, 16 * OUT, dtype=x.dtype)
        return [out, x.unsqueeze(1).repeat(1, 2, 1), packed.data, 2 * 16 * OUT, COLUMNS]
    if name == "fp8_linear":
        scales, small = torch.rand(OUT, 4), weight.to(torch.float8_e4m3fn)
        packed = kernels.pack_fp8(small, scales, group_size=12, dtype=x.dtype)
        return [out, x, packed.data, scales, bias, OUT, COLUMNS, 12]
    return [out, x, kernels.pack_panels(weight).data, bias, OUT, COLUMNS]


def quantized(name, x):
    """The arguments of a product with a packed weight."""
    bits = int(name[len("matmul_w")])
    q, scales = torch.randint(-8, 8, (OUT, 64), dtype=torch.int8), torch.rand(OUT, 2) + 0.5
    weight = kernels.pack_weight(q, scales, None, bits=bits)
    out, x, bias = (
        torch.zeros(ROWS, OUT, dtype=x.dtype),
        torch.randn(ROWS, 64, dtype=x.dtype),
        torch.randn(OUT),
    )
    return [out, x, weight.data, weight.description, bias.to(x.dtype), 0.02]


def mixture(name, x):
    """The arguments of a mixture of three experts."""
    dtype, ids = x.dtype, torch.tensor([[0, 2], [1, -1], [2, 0]])
    gate_up, down = torch.randn(3, 8, COLUMNS, dtype=dtype), torch.randn(3, COLUMNS, 4, dtype=dtype)
    experts = kernels.join_experts(list(gate_up), list(down))
    MEMORY.append(experts)  # its tensors, which are passed as addresses
    weights = torch.rand(ROWS, 2)
    return [
        str(dtype), torch.zeros_like(x), x, ids, weights, experts.addresses, experts.description, "silu",
        1.7, 2.0, torch.randn(3, 8), torch.randn(3, COLUMNS), None,
    ]  # fmt: skip


def adapters(_name, x):
    """The arguments of a call with four slots, and two parts of a matrix."""
    y, a = torch.randn(ROWS, OUT, dtype=x.dtype), torch.randn(4, 2 * 3, COLUMNS, dtype=x.dtype)
    b, ranks = torch.randn(4, 3 * OUT, dtype=x.dtype), torch.tensor([[3, 1], [2, 0], [1, 3], [3, 3]])
    ends, slots = torch.tensor([OUT // 2, OUT]), torch.arange(ROWS) % 4
    return [y, x, a, b, ranks, ends, slots, torch.randn(4, OUT), torch.randn(OUT)]


SEQUENCES = [torch.tensor([2, 0]), torch.tensor([0, 1, ROWS], dtype=torch.int32)]


def convolved(_name, x):
    """The arguments of a convolution of two sequences."""
    states = torch.randn(4, 3, COLUMNS, dtype=x.dtype)
    return [torch.zeros_like(x), x, torch.randn(4, COLUMNS), torch.randn(COLUMNS), states, *SEQUENCES, True]


def scanned(_name, x):
    """The arguments of the gated delta rule for two sequences."""
    dtype = x.dtype
    query, key = torch.randn(2, ROWS, 2, 20, dtype=dtype)
    numbers = [-torch.rand(ROWS, 4), torch.rand(ROWS, 4), torch.randn(4)]
    states = torch.zeros(5, kernels.state_size(4, 20, OUT))
    value = torch.randn(ROWS, 4, OUT, dtype=dtype)
    return [torch.zeros(ROWS, 4, OUT), query, key, value, *numbers, states, *SEQUENCES, True]


def heads(name, dtype):
    """The arguments of a call whose tensors have heads: query, key and value are parts of one result."""
    sizes = [GROUP * KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
    parts = torch.randn(TOKENS, sum(sizes), dtype=dtype).split(sizes, -1)
    query, key, value = (part.view(TOKENS, -1, HEAD_DIM) for part in parts)
    if name == "rotary_embedding":
        return [torch.arange(TOKENS) + 3, query, key, torch.rand(9, HEAD_DIM), True]
    starts, out = torch.tensor([0, 2, TOKENS], dtype=torch.int32), torch.zeros(query.shape, dtype=dtype)
    if name == "varlen_attention":
        return [out, query, key, value, starts, 0.3, 4, True, 9.0]
    layout = kernels.kv_cache_layout(dtype, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=BLOCK)
    cache = kernels.allocate_kv_cache(layout, BLOCKS).zero_()
    if name == "write_kv_cache":
        return [key, value, cache, layout.description, torch.arange(TOKENS) * 3 + BLOCK]
    kernels.write_kv_cache(key, value, cache, layout, torch.arange(TOKENS) + BLOCK)
    tables = torch.tensor([[1, 0, 0], [1, 9, 9]], dtype=torch.int32)[:, :2]
    per_head = torch.rand(2, GROUP * KV_HEADS)
    sequences = [tables, starts, torch.tensor([2, TOKENS], dtype=torch.int32)]
    return [out, query, cache, layout.description, *sequences, 0.3, 4, None, False, 9.0, *per_head]


def copies(values):
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in values]


def written(name, values):
    """The tensors that a call writes to."""
    others = {
        "rotary_embedding": (1, 2), "write_kv_cache": (2,), "fused_add_rms_norm": (0, 1),
        "quantize_rows": (0, 1), "moe": (1,), "causal_conv": (0, 4), "state_scan": (0, 7),
    }  # fmt: skip
    return [values[at] for at in others.get(name, (0,))]


def apart(tensor):
    """The same numbers with gaps between the rows, or heads that lie before one another."""
    if tensor.dim() == 3:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    if tensor.dim() == 1 or tensor.dtype in {torch.uint8, torch.int64}:
        return tensor
    wide = torch.zeros(tensor.shape[0], tensor.shape[1] + 3, dtype=tensor.dtype)
    wide[:, : tensor.shape[1]] = tensor
    return wide[:, : tensor.shape[1]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_strided_call_gives_the_bits_of_a_contiguous_one(name, dtype):
    values = arguments(name, dtype)
    before = copies(written(name, values))
    strided = copies(values)
    for i, parameter in enumerate(parameters(name)):
        if parameter in {"x", "q", "residual", "query", "key", "value", "cos_sin_cache"} or (
            parameter == "out" and name != "state_scan"
        ):
            strided[i] = apart(strided[i])
    getattr(extension, name)(*values)
    assert not any(map(torch.equal, written(name, values), before))
    getattr(extension, name)(*strided)
    assert all(map(torch.equal, written(name, values), written(name, strided)))


class Derived(torch.Tensor):
    """A tensor of a class of its own."""


@pytest.mark.parametrize("name", NAMES)
def test_a_view_within_its_memory_a_parameter_and_a_derived_class_are_tensors(name):
    values = arguments(name, torch.float32)
    moved = [
        torch.cat([v[:1], v])[1:]
        if isinstance(v, torch.Tensor) and v.dtype is not torch.uint8 and v.shape[0] != 2
        else v
        for v in copies(values)
    ]
    moved = [
        torch.nn.Parameter(v) if isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in moved
    ]
    moved = [
        v.as_subclass(Derived) if isinstance(v, torch.Tensor) and not v.is_floating_point() else v
        for v in moved
    ]
    getattr(extension, name)(*values)
    getattr(extension, name)(*moved)
    assert all(map(torch.equal, written(name, values), written(name, moved)))


def spoiled(tensor, *, any_size):
    """An argument of a call in every way that is refused."""
    yield tensor.to(torch.float64)
    yield tensor.to(torch.int16)
    yield tensor.to("meta")
    yield tensor[None]
    yield tensor.sum()
    yield tensor.to_sparse()
    yield tensor.repeat(*[1] * (tensor.dim() - 1), 2)[..., ::2]
    yield torch._neg_view(tensor)
    yield 7
    yield tensor.tolist()
    if tensor.dim() == 2:
        yield tensor.t().contiguous().t()
    if any_size:
        return
    yield tensor[..., :-1].contiguous()
    if tensor.dim() > 1 and tensor.dtype is not torch.uint8:
        yield tensor[:-1]


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_that_does_not_fit_is_refused_by_name_and_nothing_is_written(name):
    """Some other argument may be named where its size is the one that no longer fits."""
    values = arguments(name, torch.float32)
    before = copies(values)
    names = parameters(name)
    for i, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            continue
        for wrong in spoiled(value, any_size=(name, names[i]) in ANY_SIZE):
            with pytest.raises((ValueError, TypeError), match=rf"^({'|'.join(names)})\b"):
                getattr(extension, name)(*values[:i], wrong, *values[i + 1 :])
    with pytest.raises(TypeError, match=f"expected {len(values)} arguments, got {len(values) + 1}"):
        getattr(extension, name)(*values, 1)
    assert all(torch.equal(a, b) for a, b in zip(values, before, strict=True) if isinstance(a, torch.Tensor))


def described_otherwise(known):
    """A layout's or a weight's tuple with anything else in it."""
    yield list(known)
    yield known[:-1]
    yield (*known, 1)
    yield (*known[:-1], b"neon")
    for at, value in enumerate(known):
        if isinstance(value, int):
            for other in {-1, 5, value + 8, 1 << 70, None, "1"} - {value}:
                yield (*known[:at], other, *known[at + 1 :])


@pytest.mark.parametrize("name", ["write_kv_cache", "paged_attention", "matmul_w4a8", "matmul_w8a8", "moe"])
def test_a_description_of_something_else_is_refused(name):
    values = arguments(name, torch.float32)
    at = next(i for i, value in enumerate(values) if isinstance(value, tuple))
    for wrong in described_otherwise(values[at]):
        if name == "moe" and isinstance(wrong, tuple) and wrong[2] != values[at][2]:
            continue  # the width, which only the memory at `addresses` has
        if name == "moe" and isinstance(wrong, tuple) and wrong[4:] != values[at][4:]:
            continue  # groups, which the weights of a storage type have none of
        with pytest.raises((ValueError, TypeError)):
            getattr(extension, name)(*values[:at], wrong, *values[at + 1 :])


NOT_NUMBERS = [1e-50, 1e-40, 3.4e38, 1e39, 10**400, float("inf"), float("nan"), "1"]
NUMBERS = [
    *((name, "eps", -1e-6) for name in ("rms_norm", "fused_add_rms_norm", "layer_norm")),
    ("rms_norm", "eps", None),
    *((name, "weight_offset", -1e39) for name in ("rms_norm", "fused_add_rms_norm")),
    ("paged_attention", "scale", None),
    *(("paged_attention", name, [0, -3, 1.5, -(1 << 70)]) for name in ("sliding_window", "chunk_size")),
    ("paged_attention", "bidirectional", [1, None]),
    ("varlen_attention", "scale", None),
    ("varlen_attention", "sliding_window", [0, -3, 1.5, -(1 << 70)]),
    ("varlen_attention", "bidirectional", [1, None]),
    ("rotary_embedding", "interleaved", [1, None]),
    *(
        (name, parameter, wrong)
        for name, parameter in (
            ("matmul_w4a8", "x_scale"),
            ("matmul_w8a8", "x_scale"),
            ("paged_attention", "logit_soft_cap"),
            ("varlen_attention", "logit_soft_cap"),
            ("moe", "alpha"),
            ("moe", "limit"),
        )
        for wrong in ([0.0, -0.0, -1.0], NOT_NUMBERS)
    ),
    *(
        (name, parameter, NOT_NUMBERS)
        for name, parameter in (
            ("rms_norm", "eps"),
            ("rms_norm", "weight_offset"),
            ("fused_add_rms_norm", "eps"),
            ("fused_add_rms_norm", "weight_offset"),
            ("layer_norm", "eps"),
            ("paged_attention", "scale"),
            ("varlen_attention", "scale"),
        )
    ),
]


@pytest.mark.parametrize(("name", "parameter", "wrong"), NUMBERS)
def test_a_number_is_checked_as_the_float32_that_is_used(name, parameter, wrong):
    values = arguments(name, torch.float32)
    at = parameters(name).index(parameter)
    for value in wrong if isinstance(wrong, list) else [wrong]:
        with pytest.raises(
            (ValueError, TypeError), match=rf"^{parameter} is {re.escape(repr(value))}, expected "
        ):
            getattr(extension, name)(*values[:at], value, *values[at + 1 :])


def test_a_window_longer_than_any_sequence_is_no_window():
    values = arguments("paged_attention", torch.float32)
    others = copies(values)
    values[8], others[8] = None, 1 << 70
    extension.paged_attention(*values)
    extension.paged_attention(*others)
    assert torch.equal(values[0], others[0])


@pytest.mark.parametrize("name", ["rotary_embedding", "paged_attention", "varlen_attention"])
def test_an_output_whose_heads_share_memory_is_refused(name):
    values = arguments(name, torch.float32)
    at = 1 if name == "rotary_embedding" else 0
    shape = values[at].shape
    for shared in (
        torch.zeros(1, *shape[1:]).expand(shape),
        torch.zeros(shape[0], 1, shape[2]).expand(shape),
        torch.zeros(shape.numel()).as_strided(shape, (shape[1] * shape[2] - 1, shape[2], 1)),
        torch.zeros(shape.numel()).as_strided(shape, (shape[1] * shape[2], shape[2] - 1, 1)),
    ):
        with pytest.raises(ValueError, match="overlaps itself in memory"):
            getattr(extension, name)(*values[:at], shared, *values[at + 1 :])


@pytest.fixture(params=["found", "not found"])
def negative_bit(request):
    """Where torch keeps its negative bit was found in its tensors, or was not."""
    x = torch.zeros(1, 1)
    if request.param == "not found":
        extension.use_torch(torch.Tensor, x, x)
    yield
    extension.use_torch(torch.Tensor, x, torch._neg_view(x))


@pytest.mark.usefixtures("negative_bit")
def test_a_tensor_that_stands_for_the_negatives_of_its_memory_is_refused():
    out, x = torch.zeros(4, 1), torch.ones(4, 1)
    imaginary = torch.complex(x, x).conj().imag
    assert imaginary.is_neg()
    for negative in (
        imaginary,
        torch._neg_view(x),
        torch._neg_view(x)[1:],
        torch._neg_view(x).as_subclass(Derived),
    ):
        with pytest.raises(ValueError, match="x has torch's negative bit"):
            kernels.relu(out[: len(negative)], negative)
    kernels.relu(out, imaginary.resolve_neg())
    kernels.relu(out, torch._neg_view(torch._neg_view(x)))
    assert torch.equal(out, x)


def test_a_torch_whose_tensors_cannot_be_read_is_refused():
    x = torch.ones(2, 8)
    with pytest.raises(ValueError, match="this torch lets no other code read its tensors"):
        extension.use_torch(int, x, x)
    kernels.relu(x, x)  # what was learnt before holds


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_call_does_again_what_it_did(name):
    """A call that is not recorded would be missing in every replay."""
    values = arguments(name, torch.float32)
    before = copies(values)
    extension.start_recording()
    getattr(extension, name)(*values)
    program = extension.take_recording()
    extension.stop_recording()
    assert program is not None
    done = copies(values)
    for value, old in zip(values, before, strict=True):
        if isinstance(value, torch.Tensor):
            value.copy_(old)
    program.run()
    for tensor, expected in zip(written(name, values), written(name, done), strict=True):
        assert torch.equal(tensor, expected)


def test_the_stub_says_what_the_module_has():
    stub = ast.parse(Path(armllm.__file__).with_name("_kernels.pyi").read_text(encoding="utf-8"))
    said = {
        node.name: [argument.arg for argument in node.args.posonlyargs + node.args.args]
        for node in stub.body
        if isinstance(node, ast.FunctionDef)
    }
    there = {name: parameters(name) for name in FUNCTIONS}
    assert said == there
