"""Matrix products with the checkpoint's weights.

A layer's storage is decided here, where the weights are taken: models ask `load_linear` for a product and
call what comes back. Dense products are `kernels.linear` where that is the faster one (`layers.cpu`).
Otherwise they are torch's. Those bring the weights into their own order again in each call, on AArch64 too
(bf16 with any number of rows, fp32 from 15 on): three times the memory traffic for few rows. On x86-64 that
can be done before.
"""

from __future__ import annotations

import functools
import platform
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from armllm import kernels
from armllm.checkpoint.matrix import PackedMatrix
from armllm.checkpoint.weights import CheckingWeights
from armllm.errors import CheckpointError
from armllm.kernels.dense import PANEL_COLUMNS
from armllm.layers import cpu
from armllm.layers.asymmetric import AsymmetricLinear
from armllm.layers.lora import current_slots
from armllm.layers.ranks import Cut, current_ranks
from armllm.quant.integers import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from armllm.checkpoint.matrix import Fp8Matrix, IntegerWeight
    from armllm.checkpoint.scheme import Scheme
    from armllm.checkpoint.weights import Weights


# On AArch64 oneDNN's own order leads to its portable code, not to that of Arm Compute Library.
PACKING_MACHINES = ("x86_64",)
# Packing a table that is both embedding and head stores it twice, so only a small one is packed.
LARGEST_TIED = 64 << 20  # bytes


class Linear(Protocol):
    """y = x W^T + b."""

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, in_features]`` to ``[T, out_features]``, same dtype."""


class DenseLinear:
    """A product with ``weight[out_features, in_features]`` and maybe ``bias[out_features]``, in x's dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.weight, self.bias)


class KernelLinear:
    """The same by `kernels.linear`, with the weight as it is, in panels, or of E4M3."""

    def __init__(self, weight: Tensor | kernels.PanelWeight | kernels.Fp8Weight, bias: Tensor | None) -> None:
        self.weight = weight
        self.bias = bias
        self.out_features = weight.shape[0] if isinstance(weight, Tensor) else weight.out_features

    def __call__(self, x: Tensor) -> Tensor:
        out = x.new_empty(x.shape[0], self.out_features)
        kernels.linear(out, x, self.weight, self.bias)
        return out


class PackedLinear:
    """The same with a weight that oneDNN has put in order for good; raises RuntimeError where it can't."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight)  # noqa: SLF001 - torch._inductor's way
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")  # noqa: SLF001
        return product


class QuantizedLinear:
    """A product with weights of 8 or 4 bits, whose inputs are rounded to 8 bits, by one scale or one per row.

    The integers' products and sums are exact; see `kernels.matmul_w4a8` for the arithmetic around them.
    """

    def __init__(self, weight: IntegerWeight | PackedMatrix, bias: Tensor | None = None) -> None:
        packed = weight if isinstance(weight, PackedMatrix) else pack(weight)
        self.columns = packed.columns
        self.input_scale = packed.input_scale
        self.unit = packed.input_scale or 1.0  # an input that rounding leaves as it is
        self.bias = bias
        self.weight = packed.weight
        product = kernels.matmul_w8a8 if self.weight.bits == 8 else kernels.matmul_w4a8
        scale = self.input_scale
        self.product = product if scale is None else functools.partial(product, x_scale=scale)

    def __call__(self, x: Tensor) -> Tensor:
        if self.columns is not None:
            x = x.index_select(-1, self.columns)
        out = torch.empty(x.shape[0], self.weight.out_features, dtype=x.dtype)
        self.product(out, x, self.weight, self.bias)
        return out


def quantized(
    weight: IntegerWeight | PackedMatrix, bias: Tensor | None = None
) -> QuantizedLinear | AsymmetricLinear:
    """The product that rounds its inputs as the weight wants it."""
    packed = weight if isinstance(weight, PackedMatrix) else pack(weight)
    if packed.input_zero is None:
        return QuantizedLinear(packed, bias)
    product = kernels.matmul_w8a8 if packed.weight.bits == 8 else kernels.matmul_w4a8
    return AsymmetricLinear(
        product, packed.weight, packed.input_scale, packed.input_zero, packed.columns, bias
    )


class HeadLinear:
    """The products of heads with ``weight[heads, out_features, in_features]``, in x's dtype."""

    def __init__(self, weight: Tensor) -> None:
        self.heads, self.out_features = weight.shape[:2]
        if not weight.is_meta:
            missing = -self.out_features % PANEL_COLUMNS
            rows = torch.nn.functional.pad(weight, (0, 0, 0, missing)).flatten(0, 1)
            self.weight = kernels.pack_panels(rows.contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        """``x[T, heads, in_features]`` to ``[T, heads, out_features]``."""
        out = x.new_empty(x.shape[0], self.heads, self.weight.out_features // self.heads)
        kernels.head_linear(out, x, self.weight)
        return out if out.shape[2] == self.out_features else out[..., : self.out_features].contiguous()


class Watched:
    """A product that shows its inputs to ``watch``, by the name of each of its parts."""

    def __init__(self, product: Linear, names: list[str], watch: Callable[[str, Tensor], None]) -> None:
        self.product = product
        self.names = names
        self.watch = watch

    def __call__(self, x: Tensor) -> Tensor:
        for name in self.names:
            self.watch(name, x)
        return self.product(x)


class Gathered:
    """A product of which each rank computes a part, with the parts of all brought together by ``gather``."""

    def __init__(self, product: Linear, gather: Callable[[Tensor], Tensor]) -> None:
        self.product = product
        self.gather = gather

    def __call__(self, x: Tensor) -> Tensor:
        return self.gather(self.product(x))


class SideBySide:
    """Several products of the same inputs, their results beside one another."""

    def __init__(self, products: list[Linear]) -> None:
        self.products = products

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([product(x) for product in self.products], dim=-1)


def dense(weight: Tensor, bias: Tensor | None = None, *, may_copy: bool = True) -> Linear:
    """The fastest product that there is on this CPU for ``weight[out_features, in_features]``.

    Without ``may_copy`` it takes the weight as it is.
    """
    if weight.device.type != "cpu":
        return DenseLinear(weight, bias)
    if cpu.has_fast_kernel(weight.dtype):
        return KernelLinear(weight, bias)
    if cpu.wants_panels(weight.dtype):
        return KernelLinear(kernels.pack_panels(weight) if may_copy else weight, bias)
    if may_copy and platform.machine() in PACKING_MACHINES and weight.dtype is not torch.float32:
        return PackedLinear(weight, bias)
    return DenseLinear(weight, bias)


def tied_head(table: Tensor, bias: Tensor | None = None) -> Linear:
    """The product with an embedding ``table[vocab_size, hidden_size]`` that is the head too.

    Of several ranks each computes the scores of a range of the vocabulary.
    """
    ranks = current_ranks()
    if ranks is None:
        return dense(table, bias, may_copy=table.nbytes <= LARGEST_TIED)
    cut = Cut(ranks)
    (own,) = cut.rows(len(table))
    part = table[own.start : own.stop]
    bias = None if bias is None else bias[own.start : own.stop]
    product = dense(part, bias, may_copy=part.nbytes <= LARGEST_TIED)
    return Gathered(product, cut.gatherer([len(table)], first_only=True))


def as_float32(x: Tensor) -> Tensor:
    """The matrix in fp32: itself if it is that already."""
    if x.dtype is torch.float32:
        return x
    out = torch.empty(x.shape, dtype=torch.float32)
    kernels.convert(out, x)
    return out


def load_linear(
    weights: Weights,
    parts: Mapping[str, int],
    in_features: int,
    *,
    bias: bool | None,
    gathered: bool = True,
    first_only: bool = False,
    blocks: int = 1,
) -> Linear:
    """One product for all ``parts`` (name to out_features), which lie side by side in its result.

    ``bias`` None: the caller adds one, False: there is none.

    Parts that are stored alike become one matrix; quantized and other ones, for instance, are several.

    Where several ranks compute the model, each loads its rows of every part, or of each of the ``blocks`` in
    a part. The result has the columns of all ranks; those of this one only if it is not ``gathered``.
    ``first_only``: only rank 0 looks at the result, as at that of a head.
    """
    ranks, slots = current_ranks(), current_slots()
    is_cut = ranks is not None and (not gathered or min(parts.values()) >= ranks.size)
    cut = Cut(ranks, blocks) if ranks is not None and is_cut else None
    product = _load(weights if cut is None else weights.cut(cut), parts, in_features, bias=bias)
    if slots is not None:
        names = {weights.prefix + name: rows for name, rows in parts.items()}
        product = slots.join(product, names, in_features, cut, inputs_first=weights.inputs_first)
    if cut is not None and gathered:
        return Gathered(product, cut.gatherer(list(parts.values()), first_only=first_only))
    if cut is not None or slots is not None or weights.watch is None:
        return product
    return Watched(product, [weights.prefix + name for name in parts], weights.watch)


def matrix_of(product: Linear, weights: Weights, out_features: int, in_features: int) -> Tensor:
    """The matrix ``[out_features, in_features]`` of a product, decoded, in the model's dtype.

    It is a copy, whose memory is counted while ``weights`` are checked.
    """
    if isinstance(weights, CheckingWeights):
        weights.inventory.num_bytes += out_features * in_features * weights.dtype.itemsize
        return torch.empty(out_features, in_features, dtype=weights.dtype, device="meta")
    # The product with the identity. Rounding to integers leaves a row's largest number as it is.
    if isinstance(product, QuantizedLinear | AsymmetricLinear):
        rows = torch.eye(in_features).mul_(product.unit)
        return product(rows).div_(product.unit).to(weights.dtype).T
    return product(torch.eye(in_features, dtype=weights.dtype)).T


def _load(weights: Weights, parts: Mapping[str, int], in_features: int, *, bias: bool | None) -> Linear:
    form = weights.quantization
    if form is None:
        return _load_dense(weights, parts, in_features, bias=bias)
    runs: list[tuple[Scheme | None, dict[str, int]]] = []
    for name, rows in parts.items():
        scheme = form.scheme(weights, name, in_features)
        if not runs or runs[-1][0] != scheme:
            runs.append((scheme, {}))
        runs[-1][1][name] = rows
    products: list[Linear] = []
    for scheme, part in runs:
        if scheme is None:
            products.append(_load_dense(weights, part, in_features, bias=bias))
        else:
            products += _load_quantized(weights, part, in_features, scheme, bias=bias)
    return products[0] if len(products) == 1 else SideBySide(products)


def _load_quantized(
    weights: Weights, parts: Mapping[str, int], in_features: int, scheme: Scheme, *, bias: bool | None
) -> list[Linear]:
    products: list[Linear] = []
    for names, weight in weights.matrices(parts, in_features, scheme, bias=bias):
        biases = (
            weights.concatenate([f"{name}.bias" for name in names], [(parts[name],) for name in names])
            if bias
            else None
        )
        products.append(quantized(weight, biases))
    return products


def _load_dense(weights: Weights, parts: Mapping[str, int], in_features: int, *, bias: bool | None) -> Linear:
    """A single part stays where the file is mapped, if its dtype is right and it is not packed.

    Several are copied into one matrix. Panels are made from the files, without a copy in the wanted dtype.
    Weights of E4M3 keep their 8 bits.
    """
    names = list(parts)
    tensors = [f"{name}.weight" for name in names]
    shapes = [(parts[name], in_features) for name in names]
    small = weights.fp8(tensors, shapes) if cpu.wants_fp8(weights.dtype) else None
    found = weights.stored(tensors, shapes) if small is None and cpu.wants_panels(weights.dtype) else None
    matrix: Tensor | kernels.PanelWeight | kernels.Fp8Weight
    if small is not None:
        matrix = _fp8(small, weights.dtype)
    elif found is not None:
        matrix = _panels(*found, in_features, weights.dtype)
    elif len(names) == 1 and weights.own is None:
        matrix = weights.take(tensors[0], *shapes[0])
    else:
        matrix = weights.concatenate(tensors, shapes)
    biases = (
        weights.concatenate([f"{name}.bias" for name in names], [(parts[name],) for name in names])
        if bias
        else None
    )
    return dense(matrix, biases) if isinstance(matrix, Tensor) else KernelLinear(matrix, biases)


def _fp8(parts: Sequence[Fp8Matrix], dtype: torch.dtype) -> kernels.Fp8Weight:
    values, scales = parts[0].values, parts[0].scales
    if len(parts) > 1:
        values = torch.cat([part.values.view(torch.uint8) for part in parts]).view(values.dtype)
        scales = torch.cat([part.scales for part in parts])
    try:
        return kernels.pack_fp8(values, scales, group_size=parts[0].group_size, dtype=dtype)
    except ValueError:
        for part in parts:
            if part.has_nan:
                raise CheckpointError(f"{part.where} has values that are NaN") from None
        raise


def _panels(
    out_features: int, parts: Iterator[Tensor], in_features: int, dtype: torch.dtype
) -> kernels.PanelWeight:
    panels = kernels.PanelWeight.empty(out_features, in_features, dtype)
    first = 0
    for part in parts:
        panels.put(first, part.contiguous())
        first += len(part)
    return panels
