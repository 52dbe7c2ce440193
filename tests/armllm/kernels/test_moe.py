"""Mixtures of experts: against the products they are made of, and whoever gets how many tokens."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.testing import assert_close

from armllm import kernels
from armllm.kernels import reference

HIDDEN, WIDTH, EXPERTS = 64, 96, 5
FLOATING = {torch.float32: "moe_f32", torch.float16: "moe_f16", torch.bfloat16: "moe_bf16"}
ACTIVATIONS = ["silu", "gelu", "gelu_tanh"]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(8)


def quantized(ops, bits, *, group=0, zero_points=False, experts=EXPERTS):
    """The same experts however often it is called with these arguments."""
    generator = torch.Generator().manual_seed(bits + group)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)

    def one(n, k):
        groups = 1 if group == 0 else k // group
        q = torch.randint(low, high, (n, k), generator=generator, dtype=torch.int8)
        scales = (torch.rand(n, groups, generator=generator) + 0.5) / high / k**0.5
        if bits == 8 and group:  # a checkpoint's, kept in 16 bits
            scales = scales.bfloat16().float()
        zeros = torch.randint(low, high, (n, groups), generator=generator, dtype=torch.int8)
        return ops.pack_weight(q, scales, zeros if zero_points else None, bits=bits)

    pairs = [(one(2 * WIDTH, HIDDEN), one(HIDDEN, WIDTH)) for _ in range(experts)]
    return ops.join_experts(*map(list, zip(*pairs, strict=True)))


def floating(ops, dtype, *, panels=False):
    generator = torch.Generator().manual_seed(3)
    gate_up = (torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=generator) / HIDDEN**0.5).to(dtype)
    down = (torch.randn(EXPERTS, HIDDEN, WIDTH, generator=generator) / WIDTH**0.5).to(dtype)
    if panels:
        return ops.join_experts(list(map(ops.pack_panels, gate_up)), list(map(ops.pack_panels, down)))
    return ops.join_experts(list(gate_up), list(down))


def route(tokens, per_token=2, *, missing=False):
    ids = torch.stack([torch.randperm(EXPERTS)[:per_token] for _ in range(tokens)]).view(-1, per_token)
    if missing:
        ids[::3, 0] = -1
        ids[1::3] = -1
    return ids, torch.rand(ids.shape)


def mixed(op, x, ids, weights, experts, **options):
    out = torch.full((x.shape[0], HIDDEN + 3), torch.nan, dtype=x.dtype)[:, :HIDDEN]
    op(out, x, ids, weights, experts, **options)
    return out


@pytest.mark.parametrize(
    ("bits", "group", "zero_points"),
    [(4, 32, False), (4, 32, True), (4, 0, False), (8, 32, True), (8, 0, False)],
)
@pytest.mark.parametrize("tokens", [1, 2, 17])
def test_fused_experts_are_the_products_one_after_the_other(bits, group, zero_points, tokens):
    """Bit for bit in float32, with one expert per token that is taken whole."""
    experts = quantized(kernels, bits, group=group, zero_points=zero_points)
    product = kernels.matmul_w4a8 if bits == 4 else kernels.matmul_w8a8
    x = torch.randn(tokens, HIDDEN)
    ids = torch.randint(EXPERTS, (tokens, 1))
    got = mixed(getattr(kernels, f"moe_w{bits}a8"), x, ids, torch.ones(tokens, 1), experts)
    for token, expert in enumerate(ids.flatten().tolist()):
        gate_up, activated = torch.empty(1, 2 * WIDTH), torch.empty(1, WIDTH)
        product(gate_up, x[token : token + 1], experts.gate_up[expert])
        kernels.silu_and_mul(activated, gate_up)
        expected = torch.empty(1, HIDDEN)
        product(expected, activated, experts.down[expert])
        assert torch.equal(got[token], expected[0])


@pytest.mark.parametrize("panels", [False, True], ids=["rows", "panels"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATING)
def test_floating_point_experts_are_those_of_the_reference(dtype, activation, panels):
    x = torch.randn(19, HIDDEN).to(dtype)
    ids, weights = route(19, missing=True)
    experts = floating(kernels, dtype, panels=panels)
    got = mixed(getattr(kernels, FLOATING[dtype]), x, ids, weights, experts, activation=activation)
    expected = mixed(reference.moe_f32, x, ids, weights, floating(reference, dtype), activation=activation)
    step = torch.finfo(dtype).eps
    assert_close(got, expected, rtol=2 * step, atol=2 * step + 1e-6)
    assert (got[1::3] == 0).all()


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize(("bits", "group"), [(4, 0), (8, 0), (8, 32)])
def test_quantized_experts_are_those_of_the_reference(dtype, bits, group):
    x = torch.randn(23, HIDDEN).to(dtype)
    ids, weights = route(23, 3, missing=True)
    op = f"moe_w{bits}a8"
    got = mixed(getattr(kernels, op), x, ids, weights, quantized(kernels, bits, group=group))
    expected = mixed(getattr(reference, op), x, ids, weights, quantized(reference, bits, group=group))
    # What rounds to another integer on one side differs by a step of 1/127 of the row's largest number.
    assert_close(got, expected, rtol=2 * torch.finfo(dtype).eps, atol=0.01)
    assert (got.double() - expected.double()).norm() <= (
        0.001 + torch.finfo(dtype).eps
    ) * expected.double().norm()


@pytest.mark.parametrize("bits", [0, 8])
@pytest.mark.parametrize("limit", [0.3, 7.0])
def test_biases_and_clamped_activations_are_those_of_the_reference(bits, limit):
    """Numbers on both sides of the limit, and tokens without experts, which get no bias."""
    activation = kernels.ClampedSwiGLU(alpha=1.702, limit=limit)
    x = torch.randn(23, HIDDEN)
    ids, weights = route(23, 3, missing=True)
    biases = torch.randn(EXPERTS, 2 * WIDTH), torch.randn(EXPERTS, HIDDEN)
    results = []
    for ops in (kernels, reference):
        plain = floating(ops, torch.float32) if bits == 0 else quantized(ops, bits, group=32)
        experts = ops.join_experts(plain.gate_up, plain.down, *biases)
        op = ops.moe_f32 if bits == 0 else ops.moe_w8a8
        results.append(mixed(op, x, ids, weights, experts, activation=activation))
    assert_close(*results, rtol=1e-5, atol=1e-5 if bits == 0 else 0.02)
    assert (results[0][1::3] == 0).all()


def test_wrong_biases_and_limits_are_named():
    plain, x, out = floating(kernels, torch.float32), torch.ones(1, HIDDEN), torch.ones(1, HIDDEN)
    ids, weights = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1)
    short = kernels.join_experts(plain.gate_up, plain.down, torch.ones(EXPERTS, WIDTH))
    with pytest.raises(ValueError, match="gate_up_bias"):
        kernels.moe_f32(out, x, ids, weights, short)
    for name, values in (("alpha", (0.0, 1.0)), ("limit", (1.0, -1.0))):
        with pytest.raises(ValueError, match=name):
            kernels.moe_f32(out, x, ids, weights, plain, activation=kernels.ClampedSwiGLU(*values))


def all_ops():
    yield kernels.moe_w4a8, quantized(kernels, 4, group=32), torch.float32
    yield kernels.moe_w8a8, quantized(kernels, 8), torch.bfloat16
    for dtype, op in FLOATING.items():
        yield getattr(kernels, op), floating(kernels, dtype), dtype


def test_corners_of_routing():
    for op, experts, dtype in all_ops():
        x = torch.randn(40, HIDDEN).to(dtype)
        none = torch.empty(0, 2)
        assert mixed(op, x[:0], none.long(), none, experts).shape == (0, HIDDEN)
        assert (mixed(op, x, torch.empty(40, 0).long(), torch.empty(40, 0), experts) == 0).all()
        assert (mixed(op, x, torch.full((40, 2), -1), torch.ones(40, 2), experts) == 0).all()
        # All to one expert, in different company: a token's result is its own.
        together = mixed(op, x, torch.full((40, 1), 3), torch.ones(40, 1), experts)
        alone = mixed(op, x[7:8], torch.full((1, 1), 3), torch.ones(1, 1), experts)
        assert torch.equal(together[7:8], alone)
        # A share of nothing is nothing, an expert twice is the sum of its shares.
        ids = torch.tensor([[3, 1], [3, 3]])
        shares = torch.tensor([[1.0, 0.0], [0.25, 0.75]])
        assert_close(mixed(op, x[[7, 7]], ids, shares, experts), alone.expand(2, -1), rtol=1e-2, atol=1e-5)


def test_threads_change_no_bit():
    for op, experts, dtype in all_ops():
        x = torch.randn(70, HIDDEN).to(dtype)
        ids, weights = route(70, 2)
        ids[:50] = torch.tensor([2, 0])  # two busy ones
        threads = kernels.get_num_threads()
        results = []
        try:
            for count in (1, 2, 7):
                kernels.set_num_threads(count)
                results.append(mixed(op, x, ids, weights, experts))
        finally:
            kernels.set_num_threads(threads)
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])


def test_experts_that_take_turns_in_memory_give_the_same():
    """Enough tokens for more than one batch of experts, and fewer of them for one."""
    hidden, width, count = 32, 8192, 4
    generator = torch.Generator().manual_seed(1)
    gate_up = torch.randn(count, 2 * width, hidden, generator=generator) / hidden**0.5
    down = torch.randn(count, hidden, width, generator=generator) / width**0.5
    experts = kernels.join_experts(list(gate_up), list(down))
    x, weights = torch.randn(320, hidden), torch.rand(320, 2)
    ids = torch.stack([torch.randperm(count)[:2] for _ in range(320)])
    parts, whole = torch.empty(320, hidden), torch.empty(320, hidden)
    kernels.moe_f32(whole, x, ids, weights, experts)
    for first in range(0, 320, 40):
        part = slice(first, first + 40)
        kernels.moe_f32(parts[part], x[part], ids[part], weights[part], experts)
    assert torch.equal(whole, parts)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_token_that_is_no_number_spoils_no_other(bits):
    x = torch.randn(6, HIDDEN)
    ids, weights = torch.tensor([[0, 1]] * 6), torch.ones(6, 2)
    op, experts = getattr(kernels, f"moe_w{bits}a8"), quantized(kernels, bits)
    clean = mixed(op, x, ids, weights, experts)
    x[2, 5], x[4] = torch.nan, 0
    got = mixed(op, x, ids, weights, experts)
    assert got[2].isnan().all()
    assert (got[4] == 0).all()
    assert torch.equal(got[[0, 1, 3, 5]], clean[[0, 1, 3, 5]])


@pytest.mark.parametrize("bad", [-2, EXPERTS, 2**40])
def test_an_expert_that_is_not_there_is_refused_before_anything_is_written(bad):
    experts = quantized(kernels, 4)
    ids = torch.tensor([[0, 1], [2, bad]])
    out = torch.full((2, HIDDEN), 7.0)
    with pytest.raises(ValueError, match=rf"expert_ids\[1, 1\] is {bad}, expected an expert below 5"):
        kernels.moe_w4a8(out, torch.randn(2, HIDDEN), ids, torch.ones(2, 2), experts)
    assert (out == 7).all()


def test_arguments_that_do_not_fit_are_refused_by_name():
    experts = quantized(kernels, 4)
    out, x = torch.empty(2, HIDDEN), torch.empty(2, HIDDEN)
    ids, weights = torch.zeros(2, 1, dtype=torch.int64), torch.ones(2, 1)
    for arguments, message in (
        ((out, x[:, 1:], ids, weights, experts), "x has shape"),
        ((out[:1], x, ids, weights, experts), "out has shape"),
        ((out.half(), x, ids, weights, experts), "out has dtype"),
        ((out, x, ids.int(), weights, experts), "expert_ids has dtype"),
        ((out, x, ids[:1], weights, experts), "expert_ids has shape"),
        ((out, x, ids, weights.double(), experts), "expert_weights has dtype"),
        ((out, x, ids, weights[:, :0], experts), "expert_weights has shape"),
        (
            (out, x, ids, weights, floating(kernels, torch.bfloat16)),
            "weights of torch.bfloat16; this op takes 4 bits",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.moe_w4a8(*arguments)
    with pytest.raises(ValueError, match="activation is 'relu', expected one of silu, gelu, gelu_tanh"):
        kernels.moe_w4a8(out, x, ids, weights, experts, activation="relu")
    with pytest.raises(ValueError, match=r"x has dtype torch.float32, expected torch.bfloat16"):
        kernels.moe_bf16(out, x, ids, weights, floating(kernels, torch.bfloat16))
    with pytest.raises(ValueError, match="weights of 4 bits; this op takes 8 bits"):
        kernels.moe_w8a8(out, x, ids, weights, experts)


def test_experts_that_are_not_alike_are_refused_by_name():
    four, grouped, eight = quantized(kernels, 4), quantized(kernels, 4, group=32), quantized(kernels, 8)
    dense, panels = floating(kernels, torch.float32), floating(kernels, torch.float32, panels=True)
    up, down, cut = four.gate_up, four.down, panels.gate_up[0]
    for gate_up, downs, message in (
        ([], [], "gate_up has 0 experts and down 0"),
        (up[:2], down[:1], "gate_up has 2 experts and down 1"),
        ((up[0], grouped.gate_up[1]), down[:2], r"gate_up\[1\] has group_size 32, that of expert 0 has 0"),
        (up[:2], (down[0], up[1]), r"down\[1\] is \[192, 64\], expected \[64, 96\]"),
        (up[:1], eight.down[:1], r"down\[0\] has weights of 8, gate_up\[0\] of 4"),
        (up[:2], (down[0], dense.down[1]), r"down\[1\] is stored otherwise than that of expert 0"),
        (dense.gate_up[:1], (dense.down[0].half(),), r"down\[0\] has weights of torch.float16"),
        (dense.gate_up[:1], (dense.down[0].T.contiguous().T,), r"down\[0\] must be contiguous"),
        ((dense.gate_up[0][1:],), dense.down[:1], "has 191 rows, expected an even number"),
        ((dense.gate_up[0].double(),), dense.down[:1], "has dtype torch.float64"),
        ((dataclasses.replace(up[0], layout="other", target="warp9"),), down[:1], "packed for target warp9"),
        ((dataclasses.replace(up[0], data=up[0].data[1:]),), down[:1], r"gate_up\[0\].data has shape"),
        ((panels.gate_up[0], dense.gate_up[1]), panels.down[:2], r"gate_up\[1\] is stored otherwise"),
        ((dataclasses.replace(cut, data=cut.data[1:]),), panels.down[:1], r"gate_up\[0\] has shape"),
        (panels.gate_up[:1], dense.down[:1], r"down\[0\] is stored otherwise than gate_up\[0\]"),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.join_experts(gate_up, downs)


@pytest.mark.parametrize("name", ["moe_w4a8", "moe_w8a8", "moe_bf16", "moe_f16", "moe_f32"])
def test_each_op_documents_its_shapes(name):
    assert "[tokens, per_token]" in getattr(kernels, name).__doc__
