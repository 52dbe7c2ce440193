"""Checkpoints whose matrices are small floating-point numbers with scales: FP8, NVFP4 and MXFP4.

They are decoded while they are read, and are floating-point matrices for everybody else. Products take E4M3
as it is stored (`DecodedTensors.read_fp8`), so that a weight has 8 bits in memory. Stored are:

- FP8: ``weight`` of 8 bits, with ``weight_scale``, or ``weight_scale_inv`` or ``scale`` in plain ``fp8``: one
  scale for all, per row, per group of inputs or per block of rows and inputs. Experts may be in one tensor,
  or their scales alone (`STACKS`).
- FP4: ``weight_packed`` uint8 ``[N, K / 2]`` (E2M1, the first value in the low bits) with ``weight_scale``
  per group: E4M3, divided by ``weight_global_scale`` (NVFP4), or exponents of two with a bias of 127 (MXFP4).
  NVIDIA's ModelOpt calls the bytes ``weight`` and multiplies the scales of NVFP4 by ``weight_scale_2``.

Source of names: the compressed-tensors package, compressors/ and entrypoints/convert/; transformers,
integrations/finegrained_fp8.py; nvidia-modelopt, torch/export/.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import TYPE_CHECKING, NoReturn

import torch

from armllm.checkpoint.matrix import Fp8Matrix
from armllm.errors import CheckpointError
from armllm.kernels.dense import FP8_LARGEST_SCALE
from armllm.quant.mxfp4 import NOT_A_NUMBER, doubled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from armllm.checkpoint.config import ConfigReader
    from armllm.checkpoint.folder import Checkpoint
    from armllm.checkpoint.mapping import Span
    from armllm.checkpoint.scheme import Scheme
    from armllm.checkpoint.weights import Weights

FP8 = ("F8_E4M3", "F8_E5M2")
SCALES = ("F32", "BF16", "F16", "F8_E8M0", "U8")
PACKED, SCALE, INVERSE, GLOBAL = "weight_packed", "_scale", "_scale_inv", "weight_global_scale"
FACTOR = "weight_scale_2"
INPUTS = ("input_scale", "input_global_scale", "activation_scale")  # inputs stay in the model's dtype
EXPERT = re.compile(r"(.*\bexperts\.)(\d+)\.(\w+)\.weight")
STACKS = {
    **dict.fromkeys(("gate_proj", "w1"), ("gate_up_proj", 0)),
    **dict.fromkeys(("up_proj", "w3"), ("gate_up_proj", 1)),
    **dict.fromkeys(("down_proj", "w2"), ("down_proj", None)),
}
"""Where transformers puts the scales of experts, which it stores one by one: tensor and half of its rows."""
COMPRESSED = (
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
)
ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MXFP8", "NVFP4", "W4A16_NVFP4")  # of ModelOpt
Block = tuple[int, int]


class FloatFormat:
    """How the matrices are stored. ``block``: rows and inputs that share a scale, where blocks do."""

    def __init__(self, method: str, description: str, block: Block | None = None) -> None:
        self.method = method
        self.block = block
        self._description = description

    @classmethod
    def of_fp8(cls, reader: ConfigReader) -> FloatFormat:
        """quant_method "fp8" or "fbgemm_fp8"; modules_to_not_convert only repeats what the tensors are."""
        block = _block(reader, "weight_block_size")
        size = f", blocks of {block[0]} x {block[1]}" if block else ""
        method = str(reader.get("quant_method", "fp8"))
        return cls(method, f"{method}{size}; E4M3 stays as stored, E5M2 is decoded while loading", block)

    @classmethod
    def of_modelopt(cls, reader: ConfigReader) -> FloatFormat:
        """quant_method "modelopt"; names of layers only repeat what the tensors are."""
        found = {str(reader.get("quant_algo", None)).upper()}
        if found == {"MIXED_PRECISION"}:
            layers = reader.section("quantized_layers")
            found = {str(layers.section(name).get("quant_algo", None)).upper() for name in layers.values}
        if unknown := sorted(found - {*ALGORITHMS}):
            listed = ", ".join(ALGORITHMS)
            raise reader.error(f"quant_algo {unknown[0]!r:.80} is not supported, only {listed}")
        how = "decoded while loading" if any("FP4" in name for name in found) else "as stored"
        return cls("modelopt", f"modelopt ({', '.join(sorted(found))}), {how}")

    @classmethod
    def of_compressed(cls, reader: ConfigReader) -> FloatFormat:
        """quant_method "compressed-tensors" with groups of floating-point weights only."""
        _refuse(reader, "transform_config")
        sparsity = reader.get("sparsity_config", {})
        if isinstance(sparsity, dict) and sparsity.get("format", "dense") != "dense":
            raise reader.error(f"sparsity_config.format {sparsity['format']!r} is not supported")
        section = reader.section("config_groups")
        forms, blocks = set(), set()
        for name in section.values:
            group = section.section(name)
            _refuse(group, "output_activations")
            form = str(group.get("format", reader.get("format", COMPRESSED[0])))
            if form not in COMPRESSED:
                raise group.error(
                    f"format {form!r} of type float is not supported, only {', '.join(COMPRESSED)}"
                )
            weights = group.section("weights")
            weights.only("type", "float")
            weights.only("symmetric", True)
            weights.only("dynamic", False)
            forms.add(form)
            blocks.add(_block(weights, "block_structure"))
        if len(blocks - {None}) > 1:
            raise section.error("groups with blocks of different sizes are not supported")
        block = next(iter(blocks - {None}), None)
        how = "decoded while loading" if any("fp4" in form for form in forms) else "as stored"
        return cls("compressed-tensors", f"compressed-tensors ({', '.join(sorted(forms))}), {how}", block)

    def __str__(self) -> str:
        return self._description

    def scheme(self, weights: Weights, name: str, in_features: int) -> Scheme | None:  # noqa: ARG002
        """All matrices are floating-point ones."""
        return None

    def claim(self, *_: object) -> NoReturn:
        """No matrix has a scheme, so nobody has one to claim or to load."""
        raise AssertionError(self._description)

    load = claim

    def decoded(self, checkpoint: Checkpoint) -> DecodedTensors:
        """The tensors as the model takes them; CheckpointError if scales are missing or have wrong shapes."""
        return DecodedTensors(checkpoint, self.block)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Matrix:
    """Names of what a decoded tensor comes from. packed: a byte holds two values.

    stacked: ``scale`` is for all experts, and this is the matrix's own one and half of its rows (None: all).
    """

    values: str
    scale: str
    overall: str | None
    shape: tuple[int, ...]
    packed: bool
    stacked: tuple[int, int | None] | None = None

    def sharing(self, scale: tuple[int, ...], block: Block | None) -> Block | None:
        """Rows and inputs that share one of so many scales, or None."""
        if self.stacked is None:
            return _counts(scale, self.shape, block) if len(self.shape) > 1 else None
        (expert, half), (rows, inputs) = self.stacked, self.shape
        if len(scale) != 3 or expert >= scale[0]:
            return None
        return _counts(scale[1:], (rows if half is None else 2 * rows, inputs), block)


class DecodedTensors:
    """A checkpoint whose matrices are decoded when they are read, to fp32; stands in for it."""

    def __init__(self, checkpoint: Checkpoint, block: Block | None) -> None:
        self.checkpoint = checkpoint
        self.folder = checkpoint.folder
        self._block = block
        stored = checkpoint.names()
        self._matrices: dict[str, _Matrix] = {}
        hidden: set[str] = set()
        for name in sorted(stored):
            found = self._matrix(name)
            stack, _ = _stack(name)
            if found is None:  # transformers also writes scales, of no meaning, for what it has not rounded
                hidden |= {name + INVERSE, stack + INVERSE}
                continue
            stem = name.removesuffix("weight_packed").removesuffix("weight")
            stems = (stem, f"{name}_", f"{stack}_")
            hidden |= {found.values, found.scale, *(one + ending for one in stems for ending in INPUTS)}
            hidden |= set() if found.overall is None else {found.overall}
            self._matrices[f"{stem}weight" if name.endswith(PACKED) else name] = found
        self._names = (stored - hidden) | set(self._matrices)

    def _matrix(self, name: str) -> _Matrix | None:
        """What a tensor of small numbers belongs to."""
        stored = self.checkpoint.names()
        kind, shape = self.checkpoint.describe(name)
        stem = name.removesuffix("_packed").removesuffix("weight")
        if kind == "U8" and (name.endswith(PACKED) or f"{stem}{FACTOR}" in stored):
            overall = (f"{stem}{ending}" for ending in (GLOBAL, FACTOR))
            matrix = _Matrix(
                values=name,
                scale=f"{stem}weight{SCALE}",
                overall=next((one for one in overall if one in stored), None),
                shape=(*shape[:-1], 2 * shape[-1]),
                packed=True,
            )
        elif kind in FP8 and not name.endswith(SCALE):
            scales = (name + INVERSE, name + SCALE, f"{stem}scale")
            scale = next((one for one in scales if one in stored), scales[1])
            stack, stacked = _stack(name)
            if scale not in stored and stack + INVERSE in stored:
                scale = stack + INVERSE
            else:
                stacked = None
            matrix = _Matrix(
                values=name, scale=scale, overall=None, shape=shape, packed=False, stacked=stacked
            )
        else:
            return None
        if matrix.scale not in stored:
            raise CheckpointError(
                f"{self.where_stored(name)}: tensor {matrix.scale} is missing, the scale of {name}"
            )
        self._check_scale(matrix)
        return matrix

    def _check_scale(self, matrix: _Matrix) -> None:
        kind, shape = self.checkpoint.describe(matrix.scale)
        kinds = (("F8_E4M3",) if matrix.overall else ("U8",)) if matrix.packed else SCALES
        where = f"{self.where_stored(matrix.scale)}: tensor {matrix.scale}"
        if kind not in kinds:
            raise CheckpointError(f"{where} has dtype {kind}, not one of {', '.join(kinds)}")
        if matrix.sharing(shape, self._block) is None:
            raise CheckpointError(f"{where} has shape {list(shape)}, which does not fit {list(matrix.shape)}")

    def names(self) -> set[str]:
        """All tensors, without those that decoding takes."""
        return self._names

    def describe(self, name: str) -> tuple[str, tuple[int, ...]]:
        """A tensor's dtype, as safetensors writes it, and shape; decoded ones are called BF16."""
        matrix = self._matrices.get(name)
        return self.checkpoint.describe(name) if matrix is None else ("BF16", matrix.shape)

    def where(self, name: str) -> Path:
        """The file that holds a tensor."""
        matrix = self._matrices.get(name)
        return self.checkpoint.where(name if matrix is None else matrix.values)

    def where_stored(self, name: str) -> Path:
        """The file of a stored tensor."""
        return self.checkpoint.where(name)

    def spans(self) -> list[Span]:
        """Where the files are mapped."""
        return self.checkpoint.spans()

    def read(self, name: str) -> Tensor:
        """A tensor: mapped, or decoded to fp32. CheckpointError if a scale is no finite number."""
        matrix = self._matrices.get(name)
        if matrix is None:
            return self.checkpoint.read(name)
        values = self.checkpoint.read(matrix.values).clone()
        if matrix.packed:
            decoded = doubled(values.flatten(0, -2)).view(matrix.shape).float() * 0.5
        else:
            decoded = values.float()
        return _scaled(decoded, *self._scale(matrix))

    def fp8_group(self, name: str) -> int | None:
        """How many inputs share a scale, 0: all; None: the tensor comes only decoded."""
        matrix = self._matrices.get(name)
        if matrix is None or len(matrix.shape) != 2 or matrix.packed:
            return None
        if self.checkpoint.describe(matrix.values)[0] != "F8_E4M3":
            return None
        counts = matrix.sharing(self.checkpoint.describe(matrix.scale)[1], self._block)
        if counts is None or (counts[1] < matrix.shape[1] and counts[1] % 4):
            return None
        return 0 if counts[1] >= matrix.shape[1] else counts[1]

    def read_fp8(self, name: str) -> Fp8Matrix:
        """A matrix with a scale for each row, or each row and group; CheckpointError for a scale of NaN."""
        matrix = self._matrices[name]
        values = self.checkpoint.read(matrix.values)
        scale, rows, inputs = self._scale(matrix)
        if (scale.abs() > FP8_LARGEST_SCALE).any():
            where = f"{self.where_stored(matrix.scale)}: tensor {matrix.scale}"
            raise CheckpointError(
                f"{where} has scales beyond {FP8_LARGEST_SCALE:g}: add --quantization int8, which reads them"
            )
        return Fp8Matrix(
            where=f"{self.where_stored(matrix.values)}: tensor {matrix.values}",
            values=values,
            scales=_per_row(scale, matrix.shape, rows).contiguous(),
            group_size=0 if inputs >= matrix.shape[1] else inputs,
        )

    def _scale(self, matrix: _Matrix) -> tuple[Tensor, int, int]:
        """The scales in fp32, and the rows and inputs that share one; CheckpointError if any is infinite."""
        scale = self.checkpoint.read(matrix.scale)
        counts = matrix.sharing(tuple(scale.shape), self._block)
        if counts is None:  # the file was changed since it was checked
            raise CheckpointError(
                f"{self.where_stored(matrix.scale)}: tensor {matrix.scale} has another shape now"
            )
        rows, inputs = counts
        scale = scale.clone() if matrix.stacked is None else scale[matrix.stacked[0]].clone()
        if scale.dtype is torch.uint8:
            scale = torch.where(scale == NOT_A_NUMBER, math.nan, (scale.float() - 127).exp2())
        scale = scale.float()
        if matrix.overall is not None:
            overall = self.checkpoint.read(matrix.overall).float()
            scale = scale * overall if matrix.overall.endswith(FACTOR) else scale / overall
        if not scale.isfinite().all():
            where = f"{self.where_stored(matrix.scale)}: tensor {matrix.scale}"
            raise CheckpointError(f"{where} has scales that are NaN or infinite")
        if matrix.stacked is None or matrix.stacked[1] is None:
            return scale, rows, inputs
        half, height = matrix.stacked[1], matrix.shape[0]
        whole = _per_row(scale, (2 * height, matrix.shape[1]), rows)  # a block may reach over both halves
        return whole[half * height : (half + 1) * height], 1, inputs


def _counts(scale: tuple[int, ...], shape: tuple[int, ...], block: Block | None) -> Block | None:
    """Rows and inputs that share a scale, where a matrix ``[..., N, K]`` has so many scales; or None."""
    *outer, rows, inputs = shape
    if math.prod(scale) == 1:
        return rows, inputs
    if len(scale) == 1 and not outer:
        scale = (*scale, 1)
    if len(scale) != len(shape) or list(scale[:-2]) != outer:
        return None
    down, across = scale[-2:]
    if block is not None and (down, across) == (-(-rows // block[0]), -(-inputs // block[1])):
        return block
    if down not in (1, rows) or not across or inputs % across:
        return None
    return rows // down, inputs // across


def _stack(name: str) -> tuple[str, tuple[int, int | None] | None]:
    """The tensor that may have this expert's scales, without its ending, and where in it; or the name."""
    found = EXPERT.fullmatch(name)
    if found is None or found[3] not in STACKS:
        return name, None
    stack, half = STACKS[found[3]]
    return found[1] + stack, (int(found[2]), half)


def _scaled(matrix: Tensor, scale: Tensor, rows: int, inputs: int) -> Tensor:
    """``matrix[..., N, K]`` times scales that so many rows and inputs share, in place."""
    if scale.numel() == 1:
        return matrix.mul_(scale.flatten())
    per_row = _per_row(scale, matrix.shape, rows)
    for index, part in enumerate(torch.split(matrix, inputs, -1)):
        part.mul_(per_row[..., index : index + 1])
    return matrix


def _per_row(scale: Tensor, shape: Sequence[int], rows: int) -> Tensor:
    """Scales that so many rows of ``[..., N, K]`` share, for each row: ``[..., N, groups]``."""
    groups = scale.shape[-1] if scale.ndim > 1 else 1
    return scale.view(*shape[:-2], -1, groups).repeat_interleave(rows, -2)[..., : shape[-2], :]


def is_float(reader: ConfigReader) -> bool:
    """Whether all groups of a "compressed-tensors" object have floating-point weights."""
    groups = reader.values.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        return False
    weights = [group.get("weights") if isinstance(group, dict) else None for group in groups.values()]
    return all(isinstance(one, dict) and one.get("type") == "float" for one in weights)


def _refuse(reader: ConfigReader, name: str) -> None:
    if reader.get(name, None):
        raise reader.error(f"{name} is not supported")


def _block(reader: ConfigReader, name: str) -> Block | None:
    sizes = reader.get(name, None)
    if sizes is None:
        return None
    if (
        not isinstance(sizes, list)
        or len(sizes) != 2
        or not all(
            isinstance(size, int) and not isinstance(size, bool) and 0 < size < 1 << 20 for size in sizes
        )
    ):
        raise reader.error(f"{name} must be two numbers of rows and inputs, not {sizes!r}")
    return sizes[0], sizes[1]
