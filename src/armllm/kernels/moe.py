"""Mixtures of experts: one call computes the MLPs to which a router sent each token."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from armllm.kernels._extension import extension
from armllm.kernels.dense import PANEL_COLUMNS, PanelWeight
from armllm.kernels.matmul import PackedWeight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from armllm._kernels import Gatherer

Weight = PackedWeight | PanelWeight | Tensor
GatedActivation = Literal["silu", "gelu", "gelu_tanh"]


class ClampedSwiGLU(NamedTuple):
    """h * sigmoid(alpha * h) * (u + 1), where h = min(gate, limit) and u = clamp(up, -limit, limit).

    Both numbers are positive. Source: gpt-oss's model card (OpenAI 2025, arXiv:2508.10925).
    """

    alpha: float
    limit: float


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Experts:
    """The weights of a layer's experts. `join_experts` makes it.

    Each expert has ``gate_up`` [2 part, hidden], the gate first, and ``down`` [columns, width]. ``bits`` is 0
    for floating-point weights. They have the dtype ``dtype``. Without a ``gatherer``, ``part`` is ``width``
    and ``columns`` is ``hidden``.
    """

    gate_up: tuple[Weight, ...]
    down: tuple[Weight, ...]
    hidden: int
    part: int
    width: int
    columns: int
    bits: int
    dtype: torch.dtype | None
    addresses: Tensor  # int64 [2, experts]
    gate_up_bias: Tensor | None = None  # float32 [experts, 2 part]
    down_bias: Tensor | None = None  # float32 [experts, columns]
    gatherer: Gatherer | None = None

    @property
    def num_experts(self) -> int:
        """The number of experts."""
        return len(self.gate_up)

    @functools.cached_property
    def description(self) -> tuple[int | str, ...]:
        """All fields except the weights, as the extension takes them."""
        weights = str(self.dtype or f"{self.bits} bits")
        groups = [
            (weight.group_size, int(weight.zero_points), weight.scales, weight.values)
            if isinstance(weight, PackedWeight)
            else (0, 0, "torch.float32", "integers")
            for weight in (self.gate_up[0], self.down[0])
        ]
        in_panels = int(isinstance(self.gate_up[0], PanelWeight))
        sizes = (self.hidden, self.part, self.width, self.columns)
        return (weights, *sizes, self.num_experts, *groups[0], *groups[1], in_panels)


def join_experts(
    gate_up: Sequence[Weight],
    down: Sequence[Weight],
    gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    gatherer: Gatherer | None = None,
) -> Experts:
    """Check the weights of all experts and join them without a copy.

    ``gate_up`` and ``down`` have one weight per expert, of the shapes [2 width, hidden] and [hidden, width]:

    - packed weights of `pack_weight`, all with the same bits. The weights of one list have the same groups,
      the same dtype of scales and the same values, and all or none have zero points.
    - or contiguous tensors, all float32, all float16 or all bfloat16; or all of these in panels of
      `pack_panels`.

    The biases are contiguous float32 tensors [experts, 2 width] and [experts, hidden].

    Where several ranks compute the experts, the weights and biases have this rank's rows: some gates, as many
    ups, and some of ``down``. ``gatherer`` makes all ``width`` columns between the products from these.

    Raises ValueError that names the wrong weight.
    """
    if len(gate_up) != len(down) or not gate_up:
        raise ValueError(
            f"gate_up has {len(gate_up)} experts and down {len(down)}, expected as many, at least one"
        )
    first = gate_up[0]
    rows, hidden = _shape("gate_up[0]", first)
    if rows % 2 != 0:
        raise ValueError(f"gate_up[0] has {rows} rows, expected an even number: gate, then up")
    width, columns = (
        (rows // 2, hidden) if gatherer is None else (gatherer.whole, _shape("down[0]", down[0])[0])
    )
    kind, other = _kind(first), _kind(down[0])
    if other != kind:
        raise ValueError(f"down[0] has weights of {other}, gate_up[0] of {kind} (a number: of bits)")
    if type(down[0]) is not type(first):
        raise ValueError("down[0] is stored otherwise than gate_up[0]: one in panels, the other not")
    addresses = [
        [_address(f"{name}[{i}]", weight, weights[0], shape) for i, weight in enumerate(weights)]
        for name, weights, shape in (("gate_up", gate_up, (rows, hidden)), ("down", down, (columns, width)))
    ]
    return Experts(
        gate_up=tuple(gate_up),
        down=tuple(down),
        hidden=hidden,
        part=rows // 2,
        width=width,
        columns=columns,
        bits=kind if isinstance(kind, int) else 0,
        dtype=None if isinstance(kind, int) else kind,
        addresses=torch.tensor(addresses),
        gate_up_bias=gate_up_bias,
        down_bias=down_bias,
        gatherer=gatherer,
    )


def _shape(name: str, weight: Weight) -> tuple[int, int]:
    if not isinstance(weight, Tensor):
        return weight.out_features, weight.in_features
    extension.check_matrix(name, weight, None, None, None, True)
    rows, columns = weight.shape
    return rows, columns


def _kind(weight: Weight) -> int | torch.dtype:
    """The bits of a packed weight, the dtype of another."""
    if isinstance(weight, PackedWeight):
        return weight.bits
    return weight.data.dtype if isinstance(weight, PanelWeight) else weight.dtype


def _address(name: str, weight: Weight, first: Weight, shape: tuple[int, int]) -> int:
    if type(weight) is not type(first):
        raise ValueError(f"{name} is stored otherwise than that of expert 0")
    if isinstance(weight, Tensor):
        extension.check_matrix(name, weight, str(_kind(first)), *shape, True)
        return weight.data_ptr()
    actual = (weight.out_features, weight.in_features)
    if actual != shape:
        raise ValueError(f"{name} is {list(actual)}, expected {list(shape)}")
    if isinstance(weight, PanelWeight):
        panels = (-(-shape[0] // PANEL_COLUMNS), -(-shape[1] // 4) * 4 * PANEL_COLUMNS)
        extension.check_matrix(name, weight.data, str(_kind(first)), *panels, True)
        return weight.data.data_ptr()
    for field in ("bits", "group_size", "zero_points", "scales", "values", "layout"):
        value, expected = getattr(weight, field), getattr(first, field)
        if value != expected:
            raise ValueError(f"{name} has {field} {value}, that of expert 0 has {expected}")
    extension.check_packed(name, weight.data, weight.description)
    return weight.data.data_ptr()


def _moe(  # noqa: PLR0917 - one is bound below
    weights: str,
    /,
    out: Tensor,
    x: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    experts: Experts,
    *,
    activation: GatedActivation | ClampedSwiGLU = "silu",
) -> None:
    """Write the weighted sum of each token's experts to ``out``.

    out[t] is the sum over j of expert_weights[t, j] * mlp(x[t]), where mlp is that of expert expert_ids[t,
    j]: mlp(x) = down(activation(gate(x)) * up(x)) (Shazeer et al. 2017, arXiv:1701.06538). The biases
    of the experts are added to both products.

    - ``x``, ``out``: [tokens, hidden] of one dtype: float32, float16 or bfloat16. If the experts are not
      packed, it is their dtype. ``out`` must not overlap ``x``. It has the rows of ``down`` as its columns
      where that is only a part (see `join_experts`).
    - ``expert_ids``: int64 [tokens, per_token]; -1 means none. A token without experts gets zeros.
    - ``expert_weights``: float32 in the same shape.

    With packed weights, the inputs of both products are rounded to int8 as by `matmul_w4a8`, those of the
    first once per token. Between the products, and in the sum, all is float32. One exception: the down
    product of bfloat16 experts may get its inputs in bfloat16.

    Raises ValueError that names the wrong argument, also for an expert that does not exist; then nothing is
    written.
    """
    clamped = activation if isinstance(activation, ClampedSwiGLU) else None
    extension.moe(
        weights,
        out,
        x,
        expert_ids.contiguous(),  # small copies at most: what a router gives is contiguous
        expert_weights.contiguous(),
        experts.addresses,
        experts.description,
        "silu" if isinstance(activation, ClampedSwiGLU) else activation,
        None if clamped is None else clamped.alpha,
        None if clamped is None else clamped.limit,
        experts.gate_up_bias,
        experts.down_bias,
        experts.gatherer,
    )


# One op per kind of weights, which refuses experts stored otherwise.
moe_w4a8 = functools.partial(_moe, "4 bits")
moe_w8a8 = functools.partial(_moe, "8 bits")
moe_bf16 = functools.partial(_moe, "torch.bfloat16")
moe_f16 = functools.partial(_moe, "torch.float16")
moe_f32 = functools.partial(_moe, "torch.float32")
for _op in (moe_w4a8, moe_w8a8, moe_bf16, moe_f16, moe_f32):
    _op.__doc__ = _moe.__doc__
