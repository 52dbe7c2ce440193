"""Mixtures of experts: the MLPs that each token was sent to, in one call."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from armllm.kernels import _check
from armllm.kernels._extension import extension
from armllm.kernels.matmul import ALIGNMENT, PackedWeight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from armllm._kernels import Function

GatedActivation = Literal["silu", "gelu", "gelu_tanh"]
FUNCTIONS: dict[str, Function] = {
    "silu": extension.Function.silu_and_mul,
    "gelu": extension.Function.gelu_and_mul,
    "gelu_tanh": extension.Function.gelu_tanh_and_mul,
}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Experts:
    """The weights of a layer's experts; made by ``join_experts``.

    ``gate_up`` [2 width, hidden], the gate first, and ``down`` [hidden, width] of each expert. ``bits`` is 0
    for floating-point weights, which then are of ``dtype``.
    """

    gate_up: tuple[PackedWeight | Tensor, ...]
    down: tuple[PackedWeight | Tensor, ...]
    hidden: int
    width: int
    bits: int
    dtype: torch.dtype | None
    layout: str
    addresses: Tensor  # int64 [2, experts]

    @property
    def num_experts(self) -> int:
        """How many there are."""
        return len(self.gate_up)


def join_experts(gate_up: Sequence[PackedWeight | Tensor], down: Sequence[PackedWeight | Tensor]) -> Experts:
    """Check the weights of all experts and put them together; they are not copied.

    ``gate_up`` and ``down`` hold a weight per expert: packed ones of ``pack_weight``, [2 width, hidden] and
    [hidden, width], all of the same bits, those of one list with the same groups, all with zero points or
    none; or contiguous tensors of these shapes, all float32, float16 or bfloat16. Raises ValueError naming
    the weight that doesn't fit.
    """
    if len(gate_up) != len(down) or not gate_up:
        raise ValueError(
            f"gate_up has {len(gate_up)} experts and down {len(down)}, expected as many, at least one"
        )
    first = gate_up[0]
    if isinstance(first, PackedWeight):
        bits, dtype, layout = first.bits, None, first.layout
        rows, hidden = first.out_features, first.in_features
        wanted, target = extension.weight_layout(bits)
        if layout != wanted:
            raise ValueError(
                f"gate_up[0] was packed for target {first.target} (layout {layout}); this process uses "
                f"{target} (layout {wanted}): pack it again"
            )
    else:
        bits, dtype, layout = 0, first.dtype, "rows"
        _check.storage("gate_up[0]", first.dtype)
        _check.tensor("gate_up[0]", first, first.dtype, ("2 width", "hidden"))
        rows, hidden = first.shape
    if rows % 2 != 0:
        raise ValueError(f"gate_up[0] has {rows} rows, expected an even number: gate, then up")
    width = rows // 2
    kind = down[0].bits if isinstance(down[0], PackedWeight) else down[0].dtype
    if kind != (bits or dtype):
        raise ValueError(f"down[0] has weights of {kind}, gate_up[0] of {bits or dtype} (a number: of bits)")
    addresses = torch.tensor(
        [
            [_address(f"{name}[{i}]", weight, weights[0], shape) for i, weight in enumerate(weights)]
            for name, weights, shape in (
                ("gate_up", gate_up, (rows, hidden)),
                ("down", down, (hidden, width)),
            )
        ]
    )
    return Experts(
        gate_up=tuple(gate_up),
        down=tuple(down),
        hidden=hidden,
        width=width,
        bits=bits,
        dtype=dtype,
        layout=layout,
        addresses=addresses,
    )


def _address(
    name: str, weight: PackedWeight | Tensor, first: PackedWeight | Tensor, shape: tuple[int, int]
) -> int:
    if isinstance(weight, Tensor) and isinstance(first, Tensor):
        _check.tensor(name, weight, first.dtype, shape)
        if not weight.is_contiguous():
            raise ValueError(f"{name} must be contiguous, its strides are {list(weight.stride())}")
        return weight.data_ptr()
    if isinstance(weight, Tensor) or isinstance(first, Tensor):
        raise ValueError(f"{name} is stored otherwise than that of expert 0")  # noqa: TRY004 - as all of these
    actual = (weight.out_features, weight.in_features)
    if actual != shape:
        raise ValueError(f"{name} is {list(actual)}, expected {list(shape)}")
    for field in ("bits", "group_size", "zero_points", "layout"):
        value, expected = getattr(weight, field), getattr(first, field)
        if value != expected:
            raise ValueError(f"{name} has {field} {value}, that of expert 0 has {expected}")
    size = extension.packed_bytes(weight.target, weight.bits, *shape, weight.group_size, weight.zero_points)
    _check.tensor(f"{name}.data", weight.data, torch.uint8, (size,))
    if weight.data.data_ptr() % ALIGNMENT != 0:
        raise ValueError(f"{name}.data must start at a multiple of {ALIGNMENT} bytes")
    return weight.data.data_ptr()


def _moe(  # noqa: PLR0917 - two are bound below
    bits: int,
    dtype: torch.dtype | None,
    /,
    out: Tensor,
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    experts: Experts,
    *,
    activation: GatedActivation = "silu",
) -> None:
    """Write the weighted sum of each token's experts to ``out``.

    out[t] = sum over j of expert_weights[t, j] * mlp(x[t]) of expert expert_ids[t, j], where mlp(x) =
    down(activation(gate(x)) * up(x)) (Shazeer et al. 2017, arXiv:1701.06538). ``x`` and ``out`` are [tokens,
    hidden] of one dtype, float32, float16 or bfloat16, that of the experts if theirs are not packed;
    ``expert_ids`` int64 [tokens, per_token], -1 for none; ``expert_weights`` float32 of that shape. A token
    without experts gets zeros.

    With packed weights the inputs of both products are rounded to int8 as by ``matmul_w4a8``, those of the
    first once per token; between the products, and in the sum, all is float32, but the down product of
    bfloat16 experts may see its inputs in bfloat16. ``out`` must not overlap ``x``. Raises ValueError naming
    the argument that doesn't fit, an expert that is not there too; nothing has been written then.
    """
    if experts.bits != bits or experts.dtype is not dtype:
        stored = experts.dtype or f"{experts.bits} bits"
        raise ValueError(f"experts have weights of {stored}; this op takes {dtype or f'{bits} bits'}")
    function = FUNCTIONS.get(activation)
    if function is None:
        raise ValueError(f"activation is {activation!r}, expected one of {', '.join(FUNCTIONS)}")
    kind = _check.storage("x", x.dtype)
    _check.tensor("x", x, dtype or x.dtype, ("tokens", experts.hidden))
    tokens = x.shape[0]
    _check.tensor("out", out, x.dtype, (tokens, experts.hidden))
    _check.output("out", out)
    _check.tensor("expert_ids", expert_ids, torch.int64, (tokens, "per_token"))
    per_token = expert_ids.shape[1]
    _check.tensor("expert_weights", expert_weights, torch.float32, (tokens, per_token))
    gate_up, down = experts.gate_up[0], experts.down[0]
    groups = [
        (weight.group_size, weight.zero_points) if isinstance(weight, PackedWeight) else (0, False)
        for weight in (gate_up, down)
    ]
    # Small copies at most: what a router gives is contiguous.
    expert_ids, expert_weights = expert_ids.contiguous(), expert_weights.contiguous()
    extension.moe(
        bits,
        kind,
        function,
        out.data_ptr(),
        x.data_ptr(),
        expert_ids.data_ptr(),
        expert_weights.data_ptr(),
        experts.addresses[0].data_ptr(),
        experts.addresses[1].data_ptr(),
        tokens,
        per_token,
        experts.num_experts,
        experts.hidden,
        experts.width,
        *groups[0],
        *groups[1],
        out.stride(0),
        x.stride(0),
    )


# One op per kind of weights, which refuses experts stored otherwise.
moe_w4a8 = functools.partial(_moe, 4, None)
moe_w8a8 = functools.partial(_moe, 8, None)
moe_bf16 = functools.partial(_moe, 0, torch.bfloat16)
moe_f16 = functools.partial(_moe, 0, torch.float16)
moe_f32 = functools.partial(_moe, 0, torch.float32)
for _op in (moe_w4a8, moe_w8a8, moe_bf16, moe_f16, moe_f32):
    _op.__doc__ = _moe.__doc__
