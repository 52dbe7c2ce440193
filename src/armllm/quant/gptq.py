"""Checkpoints of AutoGPTQ and GPTQModel: 4 and 8 bits, with and without act-order.

Source: GPTQModel's nn_modules/qlinear, utils/model.py (the two forms of zero points), quantization/config.py
(``dynamic``, settings of single layers). ``qweight`` int32 ``[K * bits / 32, N]`` holds values of a column
one after another, ``qzeros`` ``[G, N * bits / 32]`` zero points of a group, ``scales`` is ``[G, N]``,
``g_idx[K]`` the group of an input. In the first form `ONES` has been subtracted from each word of ``qzeros``,
with borrows: adding it again gives zero points of 0 as well.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from armllm.checkpoint.matrix import IntegerWeight
from armllm.checkpoint.patterns import matches
from armllm.checkpoint.scheme import Scheme
from armllm.quant.bit_packing import unpack_signed
from armllm.quant.checks import checked_columns, checked_scales
from armllm.quant.integers import IntegerFormat

if TYPE_CHECKING:
    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.weights import CheckingWeights, LoadingWeights, Weights

FORMATS = ("gptq", "gptq_v2")
FLOATS = ("F16", "BF16", "F32")
# by bits: a one for each zero point in a word
ONES = {4: 0x11111111, 8: 0x01010101}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GPTQ(IntegerFormat):
    """quant_method "gptq". zero_offset: what is added to words of zero points; group_size 0: one per row.

    rules: patterns of names, each with the settings of those layers, None: not quantized; the first that
    matches holds.
    """

    bits: int
    group_size: int
    symmetric: bool
    zero_offset: int
    rules: tuple[tuple[str, GPTQ | None], ...] = ()
    method = "gptq"

    @classmethod
    def of(cls, reader: ConfigReader) -> GPTQ:
        """Read config.json's object, or refuse by name what it asks for."""
        form = reader.choice("checkpoint_format", str(reader.get("format", "gptq")), FORMATS)
        reader.only("is_marlin_format", False)
        settings = _settings(reader, form)
        if not reader.get("dynamic", None):
            return settings
        section = reader.section("dynamic")
        rules = tuple(_rule(reader, section, pattern, form) for pattern in section.values)
        return dataclasses.replace(settings, rules=rules)

    def __str__(self) -> str:
        size = f"groups of {self.group_size}" if self.group_size else "channelwise"
        zeros, rules = (
            "" if self.symmetric else ", zero points",
            ", single layers otherwise" if self.rules else "",
        )
        return f"{self.method} ({self.bits} bits, {size}{zeros}{rules})"

    def scheme(self, weights: Weights, name: str, in_features: int) -> Scheme | None:
        """None where the checkpoint has no packed matrix of this name."""
        own = self._settings_of(weights, name)
        if own is None or not weights.has(f"{name}.qweight"):
            return None
        size = grouping(own.group_size, in_features)
        return Scheme(bits=own.bits, group_size=size, symmetric=own.symmetric)

    def claim(self, weights: CheckingWeights, name: str, shape: tuple[int, int], scheme: Scheme) -> None:
        """Values, scales, zero points and maybe groups of inputs."""
        rows, inputs = shape
        own = self._settings_of(weights, name) or self
        per_word = 32 // own.bits
        groups = count_groups(weights, name, own.group_size, inputs)
        weights.claim(
            f"{name}.qweight",
            (-(-inputs // per_word), rows),
            dtypes=("I32",),
            num_bytes=scheme.num_bytes(rows, inputs),
        )
        weights.claim(f"{name}.qzeros", (groups, -(-rows // per_word)), dtypes=("I32",), num_bytes=0)
        weights.claim(f"{name}.scales", (groups, rows), dtypes=FLOATS, num_bytes=0)
        if weights.has(f"{name}.g_idx"):
            weights.claim(f"{name}.g_idx", (inputs,), dtypes=("I32", "I64"), num_bytes=0)

    def read(
        self, weights: LoadingWeights, name: str, shape: tuple[int, int], scheme: Scheme
    ) -> IntegerWeight:
        """The matrix as stored, its columns in the order of their groups."""
        del scheme
        rows, inputs = shape
        own = self._settings_of(weights, name) or self
        groups = count_groups(weights, name, own.group_size, inputs)
        q = unpack_signed(weights.read(f"{name}.qweight").t(), own.bits)[:, :inputs].contiguous()
        columns = None
        if weights.has(f"{name}.g_idx"):
            columns = checked_columns(weights, f"{name}.g_idx", groups)
            q = q if columns is None else q[:, columns]
        packed_zeros = weights.read(f"{name}.qzeros") + own.zero_offset
        zeros = unpack_signed(packed_zeros, own.bits)[:, :rows].t().contiguous()
        if own.symmetric and zeros.any():
            raise weights.error(
                f"{name}.qzeros", "has zero points that are not in the middle, but config.json says sym"
            )
        return IntegerWeight(
            q=q,
            scales=checked_scales(weights, f"{name}.scales").t().contiguous(),
            zeros=None if own.symmetric else zeros,
            bits=own.bits,
            columns=columns,
        )

    def _settings_of(self, weights: Weights, name: str) -> GPTQ | None:
        full_name = weights.prefix + name
        return next((own for pattern, own in self.rules if matches(pattern, full_name)), self)


def _settings(reader: ConfigReader, form: str) -> GPTQ:
    """What an object says of bits, groups and zero points."""
    bits = reader.integer("bits")
    if bits not in ONES:
        raise reader.error(f"GPTQ with {bits} bits is not supported, only 4 and 8")
    reader.only("pack_dtype", "int32")
    reader.boolean("desc_act", default=False)
    return GPTQ(
        bits=bits,
        group_size=read_group_size(reader),
        symmetric=reader.boolean("sym", default=True),
        zero_offset=ONES[bits] if form == "gptq" else 0,
    )


def _rule(reader: ConfigReader, rules: ConfigReader, pattern: str, form: str) -> tuple[str, GPTQ | None]:
    """A pattern of ``dynamic``, with "-:" before it for layers that are left alone, and what it changes."""
    sign = pattern[:2] if pattern[:2] in {"+:", "-:"} else ""
    expression = pattern.removeprefix(sign)
    try:
        re.compile(expression)
    except re.error as error:
        raise rules.error(f"{pattern!r} is no regular expression: {error}") from None
    if sign == "-:":
        return expression, None
    own = rules.section(pattern)
    return expression, _settings(type(reader)(reader.values | own.values, reader.path, own.prefix), form)


def read_group_size(reader: ConfigReader, key: str = "group_size") -> int:
    """The number at ``key``, 0 for -1: one group per row."""
    if reader.get(key, 128) == -1:
        return 0
    size = reader.integer(key, 128)
    if size % 32:
        raise reader.error(f"{key} {size} is not supported, only -1 and multiples of 32")
    return size


def grouping(group_size: int, in_features: int) -> int:
    """A group size as `Scheme` has it: 0 for one group per row."""
    return 0 if group_size >= in_features else group_size


def count_groups(weights: Weights, name: str, group_size: int, inputs: int) -> int:
    """Groups per row; CheckpointError where they don't divide the inputs."""
    if not grouping(group_size, inputs):
        return 1
    if inputs % group_size:
        raise weights.error(
            f"{name}.scales", f"can't be read: groups of {group_size} don't divide its {inputs} inputs"
        )
    return inputs // group_size
