"""A floating-point checkpoint, rounded to nearest and written as compressed-tensors has it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from armllm.checkpoint.folder import INDEX, SINGLE, Checkpoint
from armllm.checkpoint.hub import resolve_model
from armllm.checkpoint.scheme import check_scheme
from armllm.checkpoint.weights import LoadingWeights
from armllm.convert.calibration import calibrated
from armllm.convert.derived import check_free, derived_folder
from armllm.errors import CheckpointError, RequestError
from armllm.layers.cpu import cpu_computes_bfloat16
from armllm.layers.moe import STACKED
from armllm.models import check_model, read_model_config
from armllm.progress import progress
from armllm.quant.bit_packing import pack_signed
from armllm.quant.round_to_nearest import LEFT_ALONE, RoundToNearest, rounded
from armllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from armllm.checkpoint.scheme import Scheme
    from armllm.checkpoint.tensors import Tensors
    from armllm.checkpoint.weights import Inventory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Written:
    """matrices: how many were rounded, by scheme. num_bytes: of all tensors, before and now."""

    folder: Path
    matrices: dict[str, int]
    bytes_before: int
    bytes_now: int


def quantize_checkpoint(
    model: str,
    output: Path,
    scheme: str,
    calibrate: Path | None = None,
) -> Written:
    """Write ``model`` to the new folder ``output`` with its linear layers rounded as ``scheme`` says.

    Files keep their names; the folder appears when all is written. int8 becomes "int-quantized" W8A8 with
    dynamic activations; int8 in groups and int4 "pack-quantized" W8A16 and W4A16, int4 with the largest
    groups that all layers have.
    ``calibrate``: a text by which inputs of products are scaled first (`armllm.convert.calibration`).
    RequestError and CheckpointError say what is wrong.
    """
    check_scheme("--scheme", scheme)
    check_free(output)
    folder = resolve_model(model)
    if folder.is_file():
        raise RequestError(f"{folder} is a GGUF file; give the folder of the model it was made from")
    inventory, checkpoint = find_matrices(folder, scheme)
    sizes = {used.group_size for used in inventory.schemes.values()}
    if len(sizes) > 1:  # of int4; transformers 5 reads a dense model by one scheme only
        common = f"g{min(sizes)}" if min(sizes) else "channelwise"
        scheme = f"int4-{common}"
        inventory, checkpoint = find_matrices(folder, scheme)
    source: Tensors = checkpoint
    if calibrate is not None:
        dtype = torch.bfloat16 if cpu_computes_bfloat16() else torch.float32
        source, report = calibrated(folder, scheme, calibrate, Tokenizer(folder), dtype)
        progress.line(str(report))
    with derived_folder(folder, output) as work, progress.step("quantizing"):
        before, now = _write_files(source, inventory, work)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["quantization_config"] = describe(next(iter(inventory.schemes.values())), checkpoint)
        (work / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    counts = Counter(map(str, inventory.schemes.values()))
    return Written(folder=output, matrices=dict(counts), bytes_before=before, bytes_now=now)


def find_matrices(folder: Path, scheme: str) -> tuple[Inventory, Checkpoint]:
    """The matrices to round, from the model built without data."""
    architecture, config = read_model_config(folder)
    if config.quantization is not None:
        raise CheckpointError(f"{folder} is quantized already: {config.quantization}")
    checkpoint = Checkpoint(folder)
    _, inventory = check_model(architecture, config, checkpoint, torch.float32, RoundToNearest(scheme))
    ends = tuple(end for pair in STACKED for end in pair)
    stacked = [name for name in checkpoint.names() if name.endswith(ends)]
    if stacked:
        raise CheckpointError(
            f"{folder}: {min(stacked)} holds all experts in one tensor, which can't be written quantized;"
            " --quantization rounds it while loading"
        )
    return inventory, checkpoint


def describe(scheme: Scheme, checkpoint: Checkpoint) -> dict[str, Any]:
    """quantization_config: one group for all linear layers but those left alone."""
    layers = {name.removesuffix(".weight") for name in checkpoint.names() if name.endswith(".weight")}
    alone = {name for name in layers if name.rpartition(".")[2] in LEFT_ALONE}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if _is_w8a8(scheme) else "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], **_arguments(scheme)}},
        "ignore": sorted(alone | {"lm_head"}),
        "kv_cache_scheme": None,
    }


def _is_w8a8(scheme: Scheme) -> bool:
    """Whether it is written so: vLLM's W8A8 has no groups of weights, its W8A16 has."""
    return scheme.bits == 8 and not scheme.group_size


def _arguments(scheme: Scheme) -> dict[str, Any]:
    weights = {
        "num_bits": scheme.bits,
        "type": "int",
        "symmetric": True,
        "strategy": "group" if scheme.group_size else "channel",
        "group_size": scheme.group_size or None,
        "dynamic": False,
    }
    inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
    return {
        "weights": weights,
        "input_activations": inputs if _is_w8a8(scheme) else None,
        "output_activations": None,
    }


def _write_files(checkpoint: Tensors, inventory: Inventory, work: Path) -> tuple[int, int]:
    """One file for each that was there, maybe an index; the bytes of all tensors before and now."""
    before = now = 0
    homes: dict[str, list[str]] = {}
    for name in sorted(checkpoint.names()):
        homes.setdefault(checkpoint.where(name).name, []).append(name)
    weight_map: dict[str, str] = {}
    for number, (file_name, names) in enumerate(sorted(homes.items()), 1):
        tensors: dict[str, Tensor] = {}
        for name in names:
            progress.update(f"file {number} of {len(homes)}: {name}")
            stored = checkpoint.read(name)
            before += stored.nbytes
            matrix = name.removesuffix(".weight") if name.endswith(".weight") else ""
            scheme = inventory.schemes.get(matrix)
            if scheme is not None and name in inventory.transposed:
                stored = stored.T.contiguous()  # as other programs have quantized ones
            tensors |= {name: stored} if scheme is None else _rounded(checkpoint, name, stored, scheme)
        save_file(tensors, work / file_name, metadata={"format": "pt"})
        (work / file_name).chmod(0o644)  # it was made for the owner alone
        now += sum(tensor.nbytes for tensor in tensors.values())
        weight_map |= dict.fromkeys(tensors, file_name)
    if list(homes) != [SINGLE]:
        index = {"metadata": {"total_size": now}, "weight_map": weight_map}
        (work / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return before, now


def _rounded(checkpoint: Tensors, name: str, stored: Tensor, scheme: Scheme) -> dict[str, Tensor]:
    """The tensors that take a matrix's place; scales keep its dtype."""
    weight = rounded(LoadingWeights(checkpoint, torch.float32), name, stored, scheme)
    scale = {f"{name}_scale": weight.scales.to(stored.dtype)}
    if _is_w8a8(scheme):
        return {name: weight.q, **scale}
    return {
        f"{name}_packed": pack_signed(weight.q, scheme.bits),
        f"{name}_shape": torch.tensor(stored.shape),
        **scale,
    }
