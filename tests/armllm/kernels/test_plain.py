"""Calls with plain tensors do what the faces do otherwise, and leave alone what is not plain."""

from __future__ import annotations

import pytest
import torch

from armllm import kernels
from armllm.kernels import _check
from armllm.kernels._extension import extension

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ROWS, COLUMNS, OUT = 3, 37, 19
BIAS = 3
"""Which argument of a norm or a product may be None."""


def arguments(name, dtype):
    """The arguments of a call whose tensors are plain, the output first."""
    x = torch.randn(ROWS, COLUMNS, dtype=dtype)
    weight, bias = torch.randn(2, COLUMNS, dtype=dtype)
    if name == "rms_norm":
        return [torch.zeros_like(x), x, weight, 1e-5, 1.0]
    if name == "fused_add_rms_norm":
        return [x, torch.randn_like(x), weight, 1e-5, 0.0]
    if name == "layer_norm":
        return [torch.zeros_like(x), x, weight, bias, 1e-5]
    if name == "convert":
        other = torch.float32 if dtype is not torch.float32 else torch.bfloat16
        return [torch.zeros_like(x, dtype=other), x]
    if name.endswith("linear"):
        return product(name, x)
    gates = 2 if name.endswith("_and_mul") else 1
    return [torch.zeros_like(x), torch.randn(ROWS, gates * COLUMNS, dtype=dtype)]


def product(name, x):
    """The arguments of one with a weight as it is, or in panels."""
    out, bias = torch.zeros(ROWS, OUT, dtype=x.dtype), torch.randn(OUT, dtype=x.dtype)
    weight = torch.randn(OUT, COLUMNS, dtype=x.dtype)
    if name == "linear":
        return [out, x, weight, bias]
    return [out, x, kernels.pack_panels(weight).data, bias, OUT, COLUMNS]


NAMES = sorted(
    name.removeprefix("plain_")
    for name in dir(extension)
    if name.startswith("plain_") and name != "plain_types"
)


def face(name, given):
    """Call the op's face."""
    if name.endswith("rms_norm"):
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
    """The same numbers with rows further apart."""
    wide = torch.zeros(tensor.shape[0], tensor.shape[1] + 3, dtype=tensor.dtype)
    wide[:, : tensor.shape[1]] = tensor
    return wide[:, : tensor.shape[1]]


def copies(given):
    return [value.clone() if isinstance(value, torch.Tensor) else value for value in given]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_a_plain_call_gives_the_bits_of_a_strided_one(name, dtype):
    given = arguments(name, dtype)
    strided = copies(given)
    strided[:2] = map(apart, strided[:2])
    assert extension.__dict__[f"plain_{name}"](*given) is True
    assert extension.__dict__[f"plain_{name}"](*strided) is False
    face(name, strided)
    assert torch.equal(given[0], strided[0])
    assert given[0].any()


def test_a_view_that_starts_within_its_memory_and_a_parameter_are_plain():
    for name in NAMES:
        given = arguments(name, torch.float32)
        moved = [torch.cat([v[:1], v])[1:] if isinstance(v, torch.Tensor) else v for v in copies(given)]
        moved[1:] = [torch.nn.Parameter(v) if isinstance(v, torch.Tensor) else v for v in moved[1:]]
        assert moved[0].storage_offset() > 0
        assert extension.__dict__[f"plain_{name}"](*given) is True
        assert extension.__dict__[f"plain_{name}"](*moved) is True
        assert torch.equal(given[0], moved[0])


class Derived(torch.Tensor):
    """A tensor whose author may read its numbers in another way."""


def spoiled(given, i):
    """Tensor i of a call's arguments in every way that is not plain."""
    tensor = given[i]
    yield tensor.to(torch.float64)
    yield tensor.to(torch.int16)
    yield tensor.to("meta")
    yield tensor[..., :-1].contiguous()
    yield tensor[None]
    yield tensor.sum()
    yield tensor.as_subclass(Derived)
    yield tensor.to_sparse()
    yield tensor.repeat(*[1] * (tensor.dim() - 1), 2)[..., ::2]
    yield None
    yield 7
    yield tensor.tolist()
    if tensor.dim() == 2:
        yield tensor[:-1]
        yield tensor[:1].expand(tensor.shape[0], -1)
        yield tensor.t().contiguous().t()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_plain_is_left_alone(name):
    call = extension.__dict__[f"plain_{name}"]
    given = arguments(name, torch.float32)
    before = copies(given)
    for i in [i for i, value in enumerate(given) if isinstance(value, torch.Tensor)]:
        for value in spoiled(given, i):
            if value is None and i == BIAS:
                continue
            assert call(*given[:i], value, *given[i + 1 :]) is False, (i, value)
        other = torch.float16 if name != "convert" else given[1 - i].dtype
        assert call(*given[:i], given[i].to(other), *given[i + 1 :]) is False
    assert call(*given[:-1]) is False
    assert call(*given, 1) is False
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True) if isinstance(a, torch.Tensor))


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
