"""Checkpoints of llm-compressor: int-quantized and pack-quantized matrices.

Source of names and packing: the compressed-tensors package, quantization/quant_config.py, utils/match.py and
compressors/pack_quantized.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import torch

from armllm.checkpoint.config import LARGEST_NUMBER, SMALLEST_NUMBER
from armllm.checkpoint.matrix import IntegerWeight
from armllm.checkpoint.patterns import matches
from armllm.checkpoint.scheme import Scheme
from armllm.quant.bit_packing import unpack_signed
from armllm.quant.checks import checked_columns, checked_scales
from armllm.quant.integers import IntegerFormat

if TYPE_CHECKING:
    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import CheckingWeights, LoadingWeights, Weights

FORMATS = ("int-quantized", "pack-quantized")
# actorder: columns belong to groups as g_idx says; or they were only calibrated in another order
GROUP_ORDERS = (True, "group", "dynamic")
WEIGHT_ORDERS = ("weight", "static")
FLOATS = ("F16", "BF16", "F32")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """Layers that are stored alike. per_tensor: one scale for all rows. ordered: columns sorted (g_idx).

    static: the scale of inputs is in the checkpoint. shifted: inputs have zero points.
    """

    targets: tuple[str, ...]
    form: str
    bits: int
    group_size: int
    symmetric: bool
    per_tensor: bool
    ordered: bool
    activations: int
    static: bool
    shifted: bool

    def __str__(self) -> str:
        size = f"groups of {self.group_size}" if self.group_size else "channelwise"
        zeros = "" if self.symmetric else ", zero points"
        static = " (static)" if self.static else ""
        shifted = ", zero points of inputs" if self.shifted else ""
        return f"W{self.bits}A{self.activations}{static} {self.form}, {size}{zeros}{shifted}"


class CompressedTensors(IntegerFormat):
    """quant_method "compressed-tensors"."""

    method = "compressed-tensors"

    def __init__(self, groups: tuple[Group, ...], ignore: tuple[str, ...]) -> None:
        self.groups = groups
        self.ignore = ignore

    @classmethod
    def of(cls, reader: ConfigReader) -> CompressedTensors:
        """Read config.json's object, or refuse by name what it asks for."""
        if reader.get("transform_config", None):
            raise reader.error("transform_config is not supported")
        sparsity = reader.get("sparsity_config", {})
        if isinstance(sparsity, dict) and sparsity.get("format", "dense") != "dense":
            raise reader.error(f"sparsity_config.format {sparsity['format']!r} is not supported")
        section = reader.section("config_groups")
        groups = tuple(
            _group(section.section(name), str(reader.get("format", "int-quantized")))
            for name in section.values
        )
        if not groups:
            raise section.error("there is no group")
        return cls(groups, _names(reader, "ignore", []))

    def __str__(self) -> str:
        return f"{self.method} ({'; '.join(dict.fromkeys(map(str, self.groups)))})"

    def scheme(self, weights: Weights, name: str, in_features: int) -> Scheme | None:
        """The matrix's, exactly as stored.

        Routers, and all experts in one tensor, are no Linear in transformers 5: "ignore" need not name them.
        """
        group = self._group_of(weights.prefix + name)
        if group is None or {weights.stored_type(name), weights.stored_type(f"{name}.weight")} & {*FLOATS}:
            return None
        return Scheme(
            bits=group.bits,
            group_size=0 if group.group_size >= in_features else group.group_size,
            symmetric=group.symmetric,
        )

    def claim(self, weights: CheckingWeights, name: str, shape: tuple[int, int], scheme: Scheme) -> None:
        """Weights, scales, shape, zero points and order must be there."""
        rows, inputs = shape
        group = self._found(weights, name)
        num_groups = _num_groups(weights, name, group, inputs)
        size = scheme.num_bytes(rows, inputs)
        if group.form == "int-quantized":
            weights.claim(f"{name}.weight", shape, dtypes=("I8",), num_bytes=size)
        else:
            num_packed = -(-inputs * group.bits // 32)
            weights.claim(f"{name}.weight_packed", (rows, num_packed), dtypes=("I32",), num_bytes=size)
            weights.claim(f"{name}.weight_shape", (2,), dtypes=("I64", "I32"), num_bytes=0)
        scale_shapes: list[tuple[int, ...]] = (
            [(1,), (), (1, 1)] if group.per_tensor else [(rows, num_groups), *([(rows,)] * (num_groups == 1))]
        )
        weights.claim(f"{name}.weight_scale", *scale_shapes, dtypes=FLOATS, num_bytes=0)
        if not group.symmetric:
            zeros = [(-(-rows * group.bits // 32), num_groups), (rows, num_groups)]
            weights.claim(f"{name}.weight_zero_point", *zeros, dtypes=("I32", "I8"), num_bytes=0)
        elif weights.has(f"{name}.weight_zero_point"):  # old versions store zeros
            weights.ignore(f"{name}.weight_zero_point")
        if group.static:
            weights.claim(f"{name}.input_scale", (1,), (), dtypes=FLOATS, num_bytes=0)
            if group.shifted:
                weights.claim(f"{name}.input_zero_point", (1,), (), dtypes=("I8",), num_bytes=0)
            elif weights.has(f"{name}.input_zero_point"):  # zeros
                weights.ignore(f"{name}.input_zero_point")
        if group.ordered:
            weights.claim(f"{name}.weight_g_idx", (inputs,), dtypes=("I32", "I64"), num_bytes=0)

    def read(
        self, weights: LoadingWeights, name: str, shape: tuple[int, int], scheme: Scheme
    ) -> IntegerWeight:
        """The matrix as stored."""
        del scheme
        rows, inputs = shape
        group = self._found(weights, name)
        num_groups = _num_groups(weights, name, group, inputs)
        scales = checked_scales(weights, f"{name}.weight_scale")
        if group.form == "int-quantized":
            q = weights.read(f"{name}.weight")
        else:
            stated = weights.read(f"{name}.weight_shape").tolist()
            if stated != [rows, inputs]:
                raise weights.error(
                    f"{name}.weight_shape", f"says {stated}, the model wants {[rows, inputs]}"
                )
            q = unpack_signed(weights.read(f"{name}.weight_packed"), group.bits)[:, :inputs].contiguous()
        if group.bits == 4 and group.form == "int-quantized" and (q.amin() < -8 or q.amax() > 7):
            raise weights.error(f"{name}.weight", "has values that 4 bits don't hold")
        if group.symmetric:
            _check_zeros(weights, f"{name}.weight_zero_point", group.bits)
        columns = None
        if group.ordered:
            columns = checked_columns(weights, f"{name}.weight_g_idx", num_groups)
            q = q if columns is None else q[:, columns]
        return IntegerWeight(
            q=q,
            scales=scales.reshape(-1, num_groups).expand(rows, num_groups).contiguous(),
            zeros=None if group.symmetric else _zeros(weights, name, group, rows),
            bits=group.bits,
            columns=columns,
            input_scale=_input_scale(weights, name, group) if group.static else None,
            input_zero=_input_zero(weights, name, group),
        )

    def _group_of(self, full_name: str) -> Group | None:
        if any(_matches(full_name, pattern) for pattern in self.ignore):
            return None
        for how in (_is_named, _is_matched, _is_linear):  # the most exact wins
            for group in self.groups:
                if any(how(full_name, target) for target in group.targets):
                    return group
        return None

    def _found(self, weights: Weights, name: str) -> Group:
        group = self._group_of(weights.prefix + name)
        if group is None:
            raise KeyError(name)
        return group


def _input_zero(weights: LoadingWeights, name: str, group: Group) -> int | None:
    """0 where each token has its own."""
    if not group.shifted:
        return None
    return int(weights.read(f"{name}.input_zero_point")) if group.static else 0


def _input_scale(weights: LoadingWeights, name: str, group: Group) -> float:
    if not group.shifted:
        _check_zeros(weights, f"{name}.input_zero_point", 8)
    scale = float(weights.read(f"{name}.input_scale").float())
    if not SMALLEST_NUMBER <= scale <= LARGEST_NUMBER:
        raise weights.error(f"{name}.input_scale", f"is {scale}, not a positive number from 1e-29 to 1e29")
    return scale


def _check_zeros(weights: LoadingWeights, name: str, bits: int) -> None:
    """Refuse zero points where config.json says symmetric; zeros may be stored, packed or not."""
    if not weights.has(name):
        return
    stored = weights.read(name)
    if stored.any() and (stored.dtype is not torch.int32 or unpack_signed(stored, bits).any()):
        raise weights.error(name, "is not zero, but config.json says symmetric")


def _zeros(weights: LoadingWeights, name: str, group: Group, rows: int) -> Tensor:
    stored = weights.read(f"{name}.weight_zero_point")
    if stored.dtype is torch.int8:
        return stored
    return unpack_signed(stored.t(), group.bits)[:, :rows].t().contiguous()


def _num_groups(weights: Weights, name: str, group: Group, inputs: int) -> int:
    if not group.group_size or group.group_size >= inputs:
        return 1
    if inputs % group.group_size:
        raise weights.error(
            f"{name}.weight_scale",
            f"can't be read: groups of {group.group_size} don't divide its {inputs} inputs",
        )
    return inputs // group.group_size


def _is_named(name: str, target: str) -> bool:
    return name == target


def _is_matched(name: str, target: str) -> bool:
    return target.startswith("re:") and matches(target[3:], name)


def _is_linear(_name: str, target: str) -> bool:
    return target == "Linear"


def _matches(name: str, pattern: str) -> bool:
    return _is_named(name, pattern) or _is_matched(name, pattern) or _is_linear(name, pattern)


def _names(reader: ConfigReader, key: str, default: list[str]) -> tuple[str, ...]:
    names = reader.get(key, default)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise reader.error(f"{key} must be a list of names, not {names!r}")
    for name in names:
        if name.startswith("re:"):
            try:
                re.compile(name[3:])
            except re.error as error:
                raise reader.error(f"{key}: {name!r} is no regular expression: {error}") from None
    return tuple(names)


def read_targets(reader: ConfigReader) -> tuple[str, ...]:
    """Names, patterns and "Linear": the matrices of one of config_groups."""
    targets = _names(reader, "targets", ["Linear"])
    for target in targets:
        if target[:1].isupper() and target != "Linear":
            raise reader.error(f"targets: layers of class {target!r} are not supported, only 'Linear'")
    return targets


def _group(reader: ConfigReader, form: str) -> Group:
    """One of config_groups, or CheckpointError naming the scheme that is not supported."""
    form = str(reader.get("format", form)).replace("naive-", "int-")
    weights = reader.section("weights")
    bits = weights.integer("num_bits", 8)
    activations, static, shifted = _activations(reader)
    kind = str(weights.get("type", "int"))
    scheme = f"W{bits}A{activations}"
    if kind != "int":
        raise reader.error(f"weights of type {kind} ({bits} bits, {form}) are not supported, only int")
    if form not in FORMATS:
        raise reader.error(f"format {form!r} ({scheme}) is not supported, only {', '.join(FORMATS)}")
    if bits not in (4, 8):
        raise reader.error(f"{scheme}: weights of {bits} bits are not supported, only 4 and 8")
    if weights.get("dynamic", False):
        raise weights.error("dynamic scales of weights are not supported")
    if reader.get("output_activations", None):
        raise reader.error("output_activations are not supported")
    strategy = weights.choice("strategy", _implied_strategy(weights), ("channel", "group", "tensor"))
    order = weights.get("actorder", False)
    if order not in (False, *GROUP_ORDERS, *WEIGHT_ORDERS):
        raise weights.error(f"actorder {order!r} is not supported")
    return Group(
        targets=read_targets(reader),
        form=form,
        bits=bits,
        group_size=_group_size(weights, strategy),
        symmetric=weights.boolean("symmetric", default=True),
        per_tensor=strategy == "tensor",
        ordered=order in GROUP_ORDERS,
        activations=activations,
        static=static,
        shifted=shifted,
    )


def _implied_strategy(weights: ConfigReader) -> str:
    """What compressed-tensors takes where there is only a group_size, or none."""
    size = weights.get("group_size", None)
    return "tensor" if size is None else "channel" if size == -1 else "group"


def _group_size(weights: ConfigReader, strategy: str) -> int:
    """0 for one scale per row or matrix."""
    size = weights.get("group_size", None)
    if strategy != "group":
        if size not in (None, -1):
            raise weights.error(f"group_size {size!r} with strategy {strategy!r} is not supported")
        return 0
    size = weights.integer("group_size")
    if size % 32:
        raise weights.error(f"groups of {size} are not supported, only multiples of 32")
    return size


def _activations(reader: ConfigReader) -> tuple[int, bool, bool]:
    """Bits of the inputs, 16 or 8, whether they have one scale for all tokens, and whether zero points."""
    if not reader.get("input_activations", None):
        return 16, False, False
    inputs = reader.section("input_activations")
    bits = inputs.integer("num_bits", 8)
    kind: Any = inputs.get("type", "int")
    if kind != "int" or bits != 8:
        raise inputs.error(f"activations of type {kind} with {bits} bits are not supported, only int with 8")
    dynamic = inputs.get("dynamic", False)
    if dynamic not in (True, False):
        raise inputs.error(f"dynamic {dynamic!r} is not supported for activations, only true and false")
    shifted = not inputs.boolean("symmetric", default=True)
    wanted = "token" if dynamic else "tensor"
    strategy = inputs.get("strategy", wanted)
    if strategy != wanted:
        raise inputs.error(
            f"strategy {strategy!r} is not supported for activations with dynamic {str(dynamic).lower()},"
            f" only {wanted!r}"
        )
    return bits, not dynamic, shifted
