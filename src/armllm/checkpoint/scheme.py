"""Names of quantization schemes: bits, and how many weights of a row share a scale."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from armllm.errors import RequestError

if TYPE_CHECKING:
    from armllm.kernels import Values

# Sizes of groups that the kernels have.
GROUP_SIZES = (128, 64, 32)
SCHEMES = (
    *("int8", "int8-g32", "int8-g64", "int8-g128"),
    *("int4", "int4-g32", "int4-g64", "int4-g128", "int4-channelwise"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scheme:
    """bits: 8 or 4. group_size: inputs that share a scale; 0: all of a row. symmetric: no zero points.

    values: of 8 bits, what 4 bits stand for in memory (`armllm.kernels.pack_weight`).
    """

    bits: int
    group_size: int = 0
    symmetric: bool = True
    values: Values = "integers"

    def __str__(self) -> str:
        if self.values != "integers":
            return f"{self.values}-g{self.group_size}"
        group = f"-g{self.group_size}" if self.group_size else "-channelwise" if self.bits == 4 else ""
        return f"int{self.bits}{group}{'' if self.symmetric else ' with zero points'}"

    def num_groups(self, in_features: int) -> int:
        """Scales per row."""
        return in_features // self.group_size if self.group_size else 1

    def num_bytes(self, out_features: int, in_features: int) -> int:
        """Memory of a packed matrix: values, scales, and their products with zero points, all in fp32.

        Groups whose scales fit 16 bits take less, which is known only after reading them.
        """
        per_group = 4 if self.symmetric else 8
        groups = out_features * self.num_groups(in_features)
        bits = self.bits if self.values == "integers" else 4
        return -(-out_features * in_features * bits // 8) + groups * per_group


def check_scheme(option: str, name: str) -> str:
    """The name, or RequestError naming the option and what there is."""
    if name not in SCHEMES:
        raise RequestError(f"{option} {name!r} is not supported, only {', '.join(SCHEMES)}")
    return name


def scheme_for(name: str, in_features: int) -> Scheme:
    """What a scheme's name means for a matrix with this many inputs.

    ``int4`` takes groups of 128, else of 64 or 32, else one per row, whichever divides first. ValueError
    where a group size that was asked for does not divide.
    """
    bits = 8 if name.startswith("int8") else 4
    if name in {"int8", "int4-channelwise"}:
        return Scheme(bits=bits)
    if name == "int4":
        return Scheme(bits=4, group_size=largest_group(in_features))
    size = int(name.rpartition("-g")[2])
    if in_features % size:
        other = "int4 takes what does" if bits == 4 else "int8 has one scale per row"
        raise ValueError(f"groups of {size} don't divide its {in_features} inputs; {other}")
    return Scheme(bits=bits, group_size=size)


def largest_group(inputs: int) -> int:
    """The largest group that the kernels have and that divides so many inputs, 0 if none does."""
    return next((size for size in GROUP_SIZES if inputs % size == 0), 0)
