"""Calls with plain tensors do what the faces do otherwise, and leave alone what is not plain."""

from __future__ import annotations

import pytest
import torch

from armllm import kernels
from armllm.kernels import _check
from armllm.kernels._extension import extension

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ROWS, COLUMNS, OUT = 3, 37, 19
MAY_BE_NONE = {"matmul_w4a8": {4, 5}, "matmul_w8a8": {4, 5}, "paged_attention": {8, 9, 10, 11}}
"""Which arguments may be None; of the others the fourth, a bias, if there is one."""
ANY_SIZE = {("paged_attention", 4), ("rotary_embedding", 3)}
"""A block table and a table of angles, which may be larger or smaller, their rows anywhere."""
TOKENS, KV_HEADS, GROUP, HEAD_DIM, BLOCK, BLOCKS = 5, 2, 3, 16, 16, 4


def arguments(name, dtype):
    """The arguments of a call whose tensors are plain, the output first but for those with heads."""
    if name in HEADS:
        return heads(name, dtype)
    if name.startswith("matmul"):
        return quantised(name, dtype)
    x = torch.randn(ROWS, COLUMNS, dtype=dtype)
    if name.endswith("linear"):
        return product(name, x)
    if name.endswith("norm"):
        return norm(name, x)
    if name == "convert":
        other = torch.float32 if dtype is not torch.float32 else torch.bfloat16
        return [torch.zeros_like(x, dtype=other), x]
    gates = 2 if name.endswith("_and_mul") else 1
    return [torch.zeros_like(x), torch.randn(ROWS, gates * COLUMNS, dtype=dtype)]


def norm(name, x):
    """The arguments of one."""
    weight, bias = torch.randn(2, COLUMNS, dtype=x.dtype)
    if name == "fused_add_rms_norm":
        return [x, torch.randn_like(x), weight, 1e-5, 0.0]
    return [torch.zeros_like(x), x, weight, *([bias, 1e-5] if name == "layer_norm" else [1e-5, 1.0])]


def product(name, x):
    """The arguments of one with a weight as it is, or in panels."""
    out, bias = torch.zeros(ROWS, OUT, dtype=x.dtype), torch.randn(OUT, dtype=x.dtype)
    weight = torch.randn(OUT, COLUMNS, dtype=x.dtype)
    if name == "linear":
        return [out, x, weight, bias]
    return [out, x, kernels.pack_panels(weight).data, bias, OUT, COLUMNS]


def quantised(name, dtype):
    """The arguments of a product with a packed weight."""
    bits = int(name[len("matmul_w")])
    q, scales = torch.randint(-8, 8, (OUT, 64), dtype=torch.int8), torch.rand(OUT, 2) + 0.5
    weight = kernels.pack_weight(q, scales, None, bits=bits)
    out, x, bias = torch.zeros(ROWS, OUT, dtype=dtype), torch.randn(ROWS, 64, dtype=dtype), torch.randn(OUT)
    return [out, x, weight.data, weight.description, bias.to(dtype), 0.02]


def heads(name, dtype):
    """The arguments of a call whose tensors have heads: query, key and value are parts of one result."""
    sizes = [GROUP * KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
    parts = torch.randn(TOKENS, sum(sizes), dtype=dtype).split(sizes, -1)
    query, key, value = (part.view(TOKENS, -1, HEAD_DIM) for part in parts)
    if name == "rotary_embedding":
        return [torch.arange(TOKENS) + 3, query, key, torch.rand(9, HEAD_DIM), True]
    layout = kernels.kv_cache_layout(dtype, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=BLOCK)
    cache = kernels.allocate_kv_cache(layout, BLOCKS).zero_()
    if name == "write_kv_cache":
        return [key, value, cache, layout.description, torch.arange(TOKENS) * 3 + BLOCK]
    kernels.write_kv_cache(key, value, cache, layout, torch.arange(TOKENS) + BLOCK)
    tables = torch.tensor([[1, 0, 0], [1, 9, 9]], dtype=torch.int32)[:, :2]
    starts, lengths = torch.tensor([0, 2, TOKENS]), torch.tensor([2, TOKENS])
    out = torch.zeros(TOKENS, GROUP * KV_HEADS, HEAD_DIM, dtype=dtype)
    per_head = torch.rand(2, GROUP * KV_HEADS)
    return [
        out, query, cache, layout.description, tables, starts.int(), lengths.int(), 0.3, 4, 9.0, *per_head
    ]  # fmt: skip


HEADS = {"rotary_embedding", "write_kv_cache", "paged_attention"}
NAMES = sorted(
    name.removeprefix("plain_")
    for name in dir(extension)
    if name.startswith("plain_") and name != "plain_types"
)


def face(name, given):
    """Call the op's face."""
    if name in HEADS:
        layout = kernels.kv_cache_layout(
            given[1].dtype, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=BLOCK
        )
        given = [layout if value == layout.description else value for value in given]
        names = {
            "rotary_embedding": ["interleaved"],
            "paged_attention": ["sliding_window", "logit_soft_cap", "alibi_slopes", "sinks"],
        }.get(name, [])
        split = len(given) - len(names)
        kernels.__dict__[name](*given[:split], **dict(zip(names, given[split:], strict=True)))
    elif name.startswith("matmul"):
        out, x, data, (bits, out_features, in_features, group_size, zeros, layout), bias, x_scale = given
        weight = kernels.PackedWeight(
            data=data, out_features=out_features, in_features=in_features, bits=bits, group_size=group_size,
            zero_points=bool(zeros), layout=layout, target="",
        )  # fmt: skip
        kernels.__dict__[name](out, x, weight, bias, x_scale=x_scale)
    elif name.endswith("rms_norm"):
        kernels.__dict__[name](*given[:4], weight_offset=given[4])
    elif name == "panel_linear":
        out, x, data, bias, out_features, in_features = given
        weight = kernels.PanelWeight(data=data, out_features=out_features, in_features=in_features)
        kernels.linear(out, x, weight, bias)
    elif "gelu_tanh" in name:
        kernels.__dict__[name.replace("_tanh", "")](*given, approximate="tanh")
    else:
        kernels.__dict__[name](*given)


def apart(tensor):
    """The same numbers laid out as a plain call does not take them."""
    if tensor.dtype is torch.uint8:  # a cache or a weight, which no face takes otherwise
        return tensor
    if tensor.dim() == 3:
        return tensor.transpose(0, 1).contiguous().transpose(0, 1)
    if tensor.dim() == 1:
        return tensor
    wide = torch.zeros(tensor.shape[0], tensor.shape[1] + 3, dtype=tensor.dtype)
    wide[:, : tensor.shape[1]] = tensor
    return wide[:, : tensor.shape[1]]


def copies(given):
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in given]


def told(name, given):
    """What a call has done: the tensors that it may write to."""
    written = {"rotary_embedding": given[1:3], "write_kv_cache": given[2:3], "fused_add_rms_norm": given[:2]}
    return written.get(name, given[:1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_plain_call_gives_the_bits_of_a_strided_one(name, dtype):
    given = arguments(name, dtype)
    before = copies(told(name, given))
    strided = copies(given)
    strided[:2] = map(apart, strided[:2])
    if name == "write_kv_cache":  # whose inputs may lie in any order
        strided[0] = strided[0].as_subclass(Derived)
    assert extension.__dict__[f"plain_{name}"](*strided) is False
    assert all(map(torch.equal, told(name, strided), before)), "nothing has happened"
    assert extension.__dict__[f"plain_{name}"](*given) is True
    assert not any(map(torch.equal, told(name, given), before))
    face(name, strided)
    assert all(map(torch.equal, told(name, given), told(name, strided)))


def test_a_view_that_starts_within_its_memory_and_a_parameter_are_plain():
    for name in NAMES:
        given = arguments(name, torch.float32)
        moved = [
            torch.cat([v[:1], v])[1:] if isinstance(v, torch.Tensor) and v.dtype is not torch.uint8 else v
            for v in copies(given)
        ]
        moved[1:] = [
            torch.nn.Parameter(v) if isinstance(v, torch.Tensor) and v.is_floating_point() else v
            for v in moved[1:]
        ]
        assert any(v.storage_offset() > 0 for v in moved if isinstance(v, torch.Tensor))
        assert extension.__dict__[f"plain_{name}"](*given) is True
        assert extension.__dict__[f"plain_{name}"](*moved) is True
        assert all(map(torch.equal, told(name, given), told(name, moved)))


class Derived(torch.Tensor):
    """A tensor whose author may read its numbers in another way."""


def spoiled(tensor, *, any_size):
    """An argument of a call in every way that is not plain."""
    yield tensor.to(torch.float64)
    yield tensor.to(torch.int16)
    yield tensor.to("meta")
    yield tensor[None]
    yield tensor.sum()
    yield tensor.as_subclass(Derived)
    yield tensor.to_sparse()
    yield tensor.repeat(*[1] * (tensor.dim() - 1), 2)[..., ::2]
    yield None
    yield 7
    yield tensor.tolist()
    if tensor.dim() == 2:
        yield tensor.t().contiguous().t()
    if any_size:
        return
    yield tensor[..., :-1].contiguous()
    if tensor.dim() > 1 and tensor.dtype is not torch.uint8:
        yield tensor[:-1]
    if tensor.dim() == 2:
        yield tensor[:1].expand(tensor.shape[0], -1)


def described_otherwise(known):
    """A layout's or a weight's tuple with anything else in it."""
    yield list(known)
    yield known[:-1]
    yield (*known, 1)
    yield (*known[:-1], b"neon")
    yield (*known[:-1], "warp9")
    for at in range(len(known) - 1):
        for value in (-1, 3, known[at] + 8, 1 << 70, None, "1"):
            yield (*known[:at], value, *known[at + 1 :])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_plain_is_left_alone(name):
    call = extension.__dict__[f"plain_{name}"]
    given = arguments(name, torch.float32)
    before = copies(given)
    optional = MAY_BE_NONE.get(name, {3})
    for i, argument in enumerate(given):
        values = []
        if isinstance(argument, torch.Tensor):
            values = list(spoiled(argument, any_size=(name, i) in ANY_SIZE))
        elif isinstance(argument, tuple):
            values = list(described_otherwise(argument))
        for value in values:
            if value is None and i in optional:
                continue
            assert call(*given[:i], value, *given[i + 1 :]) is False, (i, value)
        if isinstance(argument, torch.Tensor) and argument.is_floating_point():
            other = torch.float16 if name != "convert" else given[1 - i].dtype
            assert call(*given[:i], argument.to(other), *given[i + 1 :]) is False
    assert call(*given[:-1]) is False
    assert call(*given, 1) is False
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True) if isinstance(a, torch.Tensor))


@pytest.mark.parametrize(
    ("name", "at", "values"),
    [
        ("matmul_w4a8", 5, [0.0, -1.0, float("inf"), float("nan"), "1"]),
        ("matmul_w8a8", 5, [0.0, -1.0, float("inf"), float("nan"), "1"]),
        ("paged_attention", 7, [None, "1"]),
        ("paged_attention", 8, [0, -3, 1.5, 1 << 70]),
        ("paged_attention", 9, [0.0, -1.0, float("inf"), float("nan"), "1"]),
        ("rotary_embedding", 4, [1, None]),
    ],
)
def test_numbers_out_of_their_range_are_the_faces_to_name(name, at, values):
    given = arguments(name, torch.float32)
    for value in values:
        assert extension.__dict__[f"plain_{name}"](*given[:at], value, *given[at + 1 :]) is False, value


@pytest.mark.parametrize("name", ["rotary_embedding", "paged_attention"])
def test_an_output_whose_heads_share_memory_is_not_plain(name):
    given = arguments(name, torch.float32)
    at = 0 if name == "paged_attention" else 1
    shape = given[at].shape
    for shared in (
        torch.zeros(1, *shape[1:]).expand(shape),
        torch.zeros(shape[0], 1, shape[2]).expand(shape),
        torch.zeros(shape.numel()).as_strided(shape, (shape[1] * shape[2] - 1, shape[2], 1)),
        torch.zeros(shape.numel()).as_strided(shape, (shape[1] * shape[2], shape[2] - 1, 1)),
    ):
        assert extension.__dict__[f"plain_{name}"](*given[:at], shared, *given[at + 1 :]) is False


@pytest.mark.parametrize(
    ("name", "at", "value", "reason"),
    [
        ("rotary_embedding", 0, torch.arange(TOKENS) + 7, r"positions\[2\] is 9"),
        ("write_kv_cache", 4, torch.arange(TOKENS) + BLOCK * BLOCKS, r"slot_mapping\[0\] is 64"),
        ("paged_attention", 6, torch.tensor([2, 99], dtype=torch.int32), r"seq_lens\[1\] is 99"),
    ],
)
def test_an_index_outside_is_named_as_by_the_face(name, at, value, reason):
    given = arguments(name, torch.float32)
    given[at] = value
    before = copies(given)
    with pytest.raises(ValueError, match=reason):
        extension.__dict__[f"plain_{name}"](*given)
    assert all(map(torch.equal, told(name, given), told(name, before)))


def test_torch_lets_its_tensors_be_read_from_c():
    for wrong in [(torch.nn.Parameter,), (torch.Tensor, 7)]:
        with pytest.raises(TypeError, match="two types"):
            extension.plain_types(*wrong)
    x = torch.ones(2, 8)
    try:
        assert extension.plain_types(int, float) is False
        assert extension.plain_relu(x, x) is False
    finally:
        assert extension.plain_types(torch.Tensor, torch.nn.Parameter) is True
    assert extension.plain_relu(x, x) is True


def test_a_number_that_is_none_is_named_by_the_face():
    x = torch.ones(2, 8)
    with pytest.raises(TypeError):
        kernels.rms_norm(x, x, x[0], "small")
    assert _check.STORAGE.keys() == set(DTYPES)
