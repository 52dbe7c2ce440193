"""Products whose inputs have zero points: x is about scale * (q - zero).

The kernels round inputs symmetrically, to integers from -127 to 127. Inputs are therefore rounded here and
handed over as the integers they became, and zero times the weights' sums is taken off what comes back, which
leaves sum (q - zero) w.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.kernels import PackedWeight

MOST = 127


class Product(Protocol):
    """`kernels.matmul_w8a8` or `kernels.matmul_w4a8`."""

    def __call__(
        self,
        out: Tensor,
        x: Tensor,
        weight: PackedWeight,
        bias: Tensor | None = None,
        *,
        x_scale: float | None,
    ) -> None: ...


class AsymmetricLinear:
    """A product with a packed ``weight``, of inputs with one ``scale`` and ``zero`` or each row with its own.

    With a given scale q is round(x / scale) + zero, held in -128 to 126: a checkpoint's 127, its largest
    input, becomes 126, and the kernels take all of them one higher. Without, a row has 254 steps from its
    least to its greatest number, 0 included.
    """

    def __init__(  # noqa: PLR0917 - what a packed matrix holds
        self,
        product: Product,
        weight: PackedWeight,
        scale: float | None,
        zero: int,
        columns: Tensor | None,
        bias: Tensor | None,
    ) -> None:
        self.product, self.weight, self.columns, self.bias = product, weight, columns, bias
        self.scale, self.zero = scale, zero
        # an input that rounding leaves as it is
        self.unit = 1.0 if scale is None else -scale if zero > 0 else scale
        self.sums = torch.empty(1, weight.out_features)  # of each row of weights
        product(self.sums, torch.ones(1, weight.in_features), weight, x_scale=1.0)

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, in_features]`` to ``[T, out_features]``, same dtype. NaN for a row that is not finite."""
        if self.columns is not None:
            x = x.index_select(-1, self.columns)
        wide = x.float()
        scale, zero = self._range(wide)
        q = ((wide / scale).round() + zero).clamp(-MOST, MOST) + wide * 0
        total = torch.empty(len(x), self.weight.out_features)
        self.product(total, q, self.weight, x_scale=1.0)
        total = (total - zero * self.sums) * scale
        return (total if self.bias is None else total + self.bias.float()).to(x.dtype)

    def _range(self, wide: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and zero point of each row, ``[T, 1]``, or of all."""
        if self.scale is not None:
            return torch.tensor(self.scale), torch.tensor(float(self.zero + 1))
        low, high = wide.amin(-1, keepdim=True).clamp_max(0), wide.amax(-1, keepdim=True).clamp_min(0)
        scale = (high / 2 - low / 2) / MOST
        zeros = scale == 0
        scale = scale.masked_fill(zeros, 1)
        return scale, (-MOST - low / scale).round().masked_fill(zeros, 0)
