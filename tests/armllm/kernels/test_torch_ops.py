"""torch.ops.armllm: what torch.compile sees of the kernels."""

from __future__ import annotations

import copy

import pytest
import torch

from armllm import kernels
from armllm.kernels import reference, torch_ops  # noqa: F401 - the second registers the operators

OPS = torch.ops.armllm
# The bounds of each: fp16 has 11 bits, bf16 8.
DTYPES = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def packed(bits):
    """A packed weight [32, 64] and what the operators take of it."""
    half = 2 ** (bits - 1)
    generator = torch.Generator().manual_seed(bits)
    q = torch.randint(-half, half, (32, 64), dtype=torch.int8, generator=generator)
    weight = kernels.pack_weight(q, torch.rand(32, 2, generator=generator), None, bits=bits)
    return weight, weight.description[1:]


def cases(dtype):
    """(operator, arguments, the function of the reference that computes the same, its arguments)."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    x, weight, bias = draw(2, 3, 64), draw(64), draw(64)
    matrix, short = draw(32, 64), draw(32)
    panels = kernels.pack_panels(matrix)
    yield OPS.rms_norm, (x, weight, 1e-6, 1.0), reference.rms_norm, (weight, 1e-6), {"weight_offset": 1.0}, 64
    yield OPS.layer_norm, (x, weight, bias, 1e-6), reference.layer_norm, (weight, bias, 1e-6), {}, 64
    yield OPS.gelu, (x,), reference.gelu, (), {}, 64
    yield OPS.gelu_tanh, (x,), reference.gelu, ("tanh",), {}, 64
    yield OPS.quick_gelu, (x,), reference.quick_gelu, (), {}, 64
    yield OPS.relu, (x,), reference.relu, (), {}, 64
    yield OPS.silu_and_mul, (x,), reference.silu_and_mul, (), {}, 32
    yield OPS.gelu_and_mul, (x,), reference.gelu_and_mul, (), {}, 32
    yield OPS.gelu_tanh_and_mul, (x,), reference.gelu_and_mul, ("tanh",), {}, 32
    yield OPS.linear, (x, matrix, short), reference.linear, (matrix, short), {}, 32
    yield OPS.panel_linear, (x, panels.data, short, 32, 64), reference.linear, (matrix, short), {}, 32
    for bits, product in ((4, kernels.matmul_w4a8), (8, kernels.matmul_w8a8)):
        integers, description = packed(bits)
        operator = getattr(OPS, f"matmul_w{bits}a8")
        yield operator, (x, integers.data, short, None, *description), product, (integers, short), {}, 32
        arguments = (x, integers.data, None, torch.tensor(0.02), *description)
        yield operator, arguments, product, (integers, None), {"x_scale": 0.02}, 32


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operators_compute_what_the_functions_compute(dtype):
    """It would catch an argument that is handed on in another order, or rows that are cut otherwise."""
    bound = {"rtol": DTYPES[dtype], "atol": DTYPES[dtype]}
    for operator, arguments, function, others, options, features in cases(dtype):
        x = arguments[0]
        expected = torch.empty(6, features, dtype=dtype)
        function(expected, x.reshape(6, 64), *others, **options)
        found = operator(*arguments)
        assert found.shape == (2, 3, features), operator
        torch.testing.assert_close(found.reshape(6, features), expected, msg=str(operator), **bound)


def in_place(dtype):
    """(operator, arguments, the same function of the reference, its arguments)."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    x, residual, weight = draw(6, 64), draw(6, 64), draw(64)
    numbers = (x, residual, weight, 1e-6, 1.0)
    yield OPS.fused_add_rms_norm, numbers, reference.fused_add_rms_norm, numbers[:4], {"weight_offset": 1.0}
    positions = torch.tensor([3, 0, 7, 7, 1, 5])
    heads = (positions, draw(6, 4, 16), draw(6, 2, 16), torch.randn(8, 16, generator=generator))
    for interleaved in (False, True):
        options = {"interleaved": interleaved}
        yield OPS.rotary_embedding, (*heads, interleaved), reference.rotary_embedding, heads, options


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_operators_in_place_change_what_the_functions_change(dtype):
    """It would catch a residual that stays, or an option that is lost."""
    bound = {"rtol": DTYPES[dtype], "atol": DTYPES[dtype]}
    for operator, arguments, function, others, options in in_place(dtype):
        expected, found = copy.deepcopy(others), copy.deepcopy(arguments)
        function(*expected, **options)
        operator(*found)
        torch.testing.assert_close(found[: len(others)], expected, msg=str(operator), **bound)
        assert any(not torch.equal(new, old) for new, old in zip(found[:2], arguments[:2], strict=True))


def test_operators_have_the_shapes_that_they_declare():
    """It would catch a fake implementation that torch.compile would believe wrongly."""
    for operator, arguments, *_ in (*cases(torch.float32), *in_place(torch.float32)):
        torch.library.opcheck(operator.default, arguments, test_utils=("test_schema", "test_faketensor"))


def test_a_compiled_function_has_them_as_they_are():
    weight, description = packed(4)

    def layer(x):
        return OPS.silu_and_mul(OPS.matmul_w4a8(OPS.relu(x), weight.data, None, None, *description))

    x = torch.randn(5, 64)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), layer(x))


def test_an_exported_program_has_them_as_they_are():
    """For any number of rows: it would catch a fake implementation that fixes it."""
    weight, description = packed(4)

    class Layer(torch.nn.Module):
        def forward(self, x, residual, norm):
            OPS.fused_add_rms_norm(x, residual, norm, 1e-6, 0.0)
            return OPS.silu_and_mul(OPS.matmul_w4a8(x, weight.data, None, None, *description))

    def inputs(rows):
        generator = torch.Generator().manual_seed(rows)
        return *torch.randn(2, rows, 64, generator=generator), torch.ones(64)

    rows = {0: torch.export.Dim("rows")}
    program = torch.export.export(Layer(), inputs(5), dynamic_shapes=(rows, rows, None))
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    names = ("fused_add_rms_norm", "matmul_w4a8", "silu_and_mul")
    assert called >= {f"armllm.{name}.default" for name in names}
    found, expected = inputs(9), inputs(9)
    assert torch.equal(program.module()(*found), Layer()(*expected))
    assert torch.equal(found[1], expected[1])


def test_a_wrong_argument_is_named():
    with pytest.raises(ValueError, match="weight"):
        OPS.rms_norm(torch.randn(2, 64), torch.randn(63), 1e-6, 0.0)
