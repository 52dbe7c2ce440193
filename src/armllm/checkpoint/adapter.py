"""LoRA adapters (Hu et al. 2021) as PEFT stores them: adapter_config.json and adapter_model.safetensors.

The whole adapter is checked against the model before any of its data is read.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import TYPE_CHECKING, NamedTuple

import torch

from armllm.checkpoint.adapter_config import CONFIG, AdapterConfig
from armllm.checkpoint.safetensors_file import SafetensorsFile
from armllm.checkpoint.weights import FLOATING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

TENSORS, PICKLE = "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."
# What families put before ".layers", in any order.
OUTER = re.compile(r"(?:(?:model|backbone|language_model|decoder)\.)*")
# Mixtral's router: as the hub has it, and as transformers 5 and so PEFT call it.
STORED_ROUTER, ROUTER = "block_sparse_moe.gate", "mlp.gate"
# The gates of LFM3's heads: as the hub has them, and as PEFT calls them. Both have AFMoE's by the first name.
STORED_GATES, GATES = "self_attn.gate_proj", "self_attn.g_proj"
LONGEST_NAME = 1000  # characters of a tensor's
TENSOR = re.compile(r"(.+)\.(lora_A\.weight|lora_B\.weight|lora_magnitude_vector(?:\.weight)?)")
_numbers = itertools.count(1)


class MatrixShape(NamedTuple):
    """Of a matrix that adapters may change. inputs_first: the checkpoint has it transposed (GPT-2)."""

    rows: int
    columns: int
    inputs_first: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class LowRank:
    """The change of one matrix ``W[out, in]``: ``scaling * b @ a``, of ``a[rank, in]`` and ``b[out, rank]``.

    magnitude ``[out]``: the norms that the changed rows get (DoRA, Liu et al. 2024); None: their own.
    """

    a: Tensor
    b: Tensor
    scaling: float
    magnitude: Tensor | None


@dataclasses.dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter in memory. matrices: by `plain_name`. number: no other adapter of this process has it."""

    name: str
    rank: int
    matrices: dict[str, LowRank]
    number: int = dataclasses.field(default_factory=lambda: next(_numbers))


def plain_name(name: str) -> str:
    """A module's name without what classes of models put around their layers: ``layers.0.mlp.up_proj``."""
    return OUTER.sub("", name, count=1).replace(STORED_ROUTER, ROUTER).replace(GATES, STORED_GATES)


def read_adapter(
    name: str,
    folder: Path,
    shapes: Mapping[str, MatrixShape],
    *,
    max_rank: int,
    dtype: torch.dtype = torch.float32,
) -> Adapter:
    """Read the adapter ``name`` for a model whose matrices have these ``shapes``, by `plain_name`.

    ``dtype``: of the computation, which must be able to hold what the adapter changes.

    CheckpointError says in one line what is wrong or is not supported.
    """
    config = AdapterConfig(folder)
    if (folder / PICKLE).is_file() and not (folder / TENSORS).is_file():
        raise config.error(
            f"{PICKLE} is a pickle, which may run code; save the adapter with PEFT's save_pretrained and"
            f" safe_serialization=True as {TENSORS}"
        )
    try:
        file = SafetensorsFile(folder / TENSORS)
    except FileNotFoundError:
        raise config.error(f"there is no {TENSORS} beside {CONFIG}") from None
    found = _modules(config, file, shapes)
    ranks = config.ranks(found, max_rank)
    scalings = config.scalings(ranks)
    for module, rank in ranks.items():
        shape = shapes[plain_name(module)]
        if shape.inputs_first and config.is_parameter(module):
            raise config.error(f"target_parameters: {module} is stored transposed, which is not supported")
        _check_shapes(config, file, module, found[module], (rank, shape))
    _check_complete(config, found, shapes)
    matrices = {
        plain_name(module): LowRank(
            a=_read_finite(config, file, parts["lora_A"]),
            b=_read_finite(config, file, parts["lora_B"]),
            scaling=scalings[module],
            magnitude=_read_finite(config, file, parts["lora_magnitude_vector"]) if config.use_dora else None,
        )
        for module, parts in found.items()
    }
    for module, change in matrices.items():
        if _bound(change) > torch.finfo(dtype).max:
            raise config.error(f"its change of {module} may be too large for {dtype}")
    return Adapter(name, max(ranks.values()), matrices)


def _bound(change: LowRank) -> float:
    """No value of a factor, of the whole change or of a norm is larger."""
    a, b = (float(factor.abs().max()) for factor in (change.a, change.b))
    norm = 0.0 if change.magnitude is None else float(change.magnitude.abs().max())
    b *= abs(change.scaling)
    return max(a, b, len(change.a) * a * b, norm)


def _read_finite(config: AdapterConfig, file: SafetensorsFile, tensor: str) -> Tensor:
    """A copy of a tensor; with NaN or infinity in it, every answer would fail."""
    values = file.read(tensor).clone()
    if not values.isfinite().all():
        raise config.error(f"tensor {tensor} has values that are NaN or infinite")
    return values


def _modules(
    config: AdapterConfig, file: SafetensorsFile, shapes: Mapping[str, MatrixShape]
) -> dict[str, dict[str, str]]:
    """By module as PEFT names it: its tensors by what they are."""
    found: dict[str, dict[str, str]] = {}
    for tensor in sorted(file.names()):
        if len(tensor) > LONGEST_NAME:
            raise config.error(f"tensor {tensor:.100}… has a name of {len(tensor)} characters")
        match = TENSOR.fullmatch(tensor.removeprefix(PREFIX))
        module, kind = match.groups() if match is not None else ("", "")
        if plain_name(module) not in shapes:
            raise config.error(f"tensor {tensor} {_why_not(tensor)}")
        kind = kind.removesuffix(".weight")
        if kind == "lora_magnitude_vector" and not config.use_dora:
            raise config.error(f"tensor {tensor} is DoRA's, and use_dora in {CONFIG} is false")
        if kind in found.setdefault(module, {}):
            raise config.error(f"{module} has {kind} twice")
        found[module][kind] = tensor
    if not found:
        raise config.error(f"{TENSORS} holds no tensors")
    if len({plain_name(module) for module in found}) < len(found):
        raise config.error("a module occurs under two names")
    return found


def _why_not(tensor: str) -> str:
    """What to say of a tensor that is not a change of one of the model's matrices."""
    name = plain_name(tensor.removeprefix(PREFIX))
    if "lora_embedding" in name or name.startswith("embed_"):
        return "changes the embedding, which is not supported"
    if name.startswith("lm_head."):
        return "changes the head (lm_head), which is not supported"
    if name.startswith("visual."):
        return "changes the encoder of pictures, which is not supported"
    if ".experts." in name:
        return "changes experts of a mixture, which is not supported"
    if TENSOR.fullmatch(name) is None:
        return "is not supported, only lora_A, lora_B and DoRA's magnitudes"
    return "is of a module that this model does not have, or not as a matrix"


def _check_shapes(
    config: AdapterConfig,
    file: SafetensorsFile,
    module: str,
    tensors: dict[str, str],
    sizes: tuple[int, MatrixShape],
) -> None:
    rank, (rows, columns, _) = sizes
    wanted: dict[str, tuple[int, ...]] = {"lora_A": (rank, columns), "lora_B": (rows, rank)}
    if config.use_dora:
        wanted["lora_magnitude_vector"] = (rows,)
    for kind, shape in wanted.items():
        if kind not in tensors:
            raise config.error(f"{module} has no {kind}")
        dtype, stored = file.describe(tensors[kind])
        if stored != shape:
            raise config.error(f"tensor {tensors[kind]} has shape {list(stored)}, not {list(shape)}")
        if dtype not in FLOATING:
            raise config.error(f"tensor {tensors[kind]} has dtype {dtype}, not one of {', '.join(FLOATING)}")


def _check_complete(
    config: AdapterConfig, found: dict[str, dict[str, str]], shapes: Mapping[str, MatrixShape]
) -> None:
    """Refuse a file that lacks a matrix which the configuration names."""
    if isinstance(config.targets, str) and config.targets.lower() == "all-linear":
        return  # what PEFT takes for a linear layer depends on its version
    first = next(iter(found))
    outer = OUTER.match(first)[0]  # type: ignore[index]  # it matches nothing, too
    known = {plain_name(module) for module in found}
    for name in shapes:
        spellings = {outer + name, outer + name.replace(STORED_GATES, GATES)}
        if name not in known and any(map(config.is_target, spellings)):
            raise config.error(f"target_modules names {outer + name}, and {TENSORS} has no change of it")
