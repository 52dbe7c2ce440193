"""LoRA adapters for tests, written as PEFT writes them, and what transformers computes with them merged."""

from __future__ import annotations

import copy
import json
import math
import re
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    from pathlib import Path

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
CONFIG = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "r": 4, "lora_alpha": 8}


def write_adapter(
    folder: Path,
    model: torch.nn.Module,
    targets: tuple[str, ...] = ALL,
    *,
    seed: int = 1,
    ranks: dict[str, int] | None = None,
    **config: Any,
) -> Path:
    """A random adapter of the modules of ``model`` that end in one of ``targets``.

    ranks: by these ends, where they are not ``r``.
    """
    values = {**CONFIG, "target_modules": list(targets), **config}
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, module in model.named_modules():
        end = name.rpartition(".")[2]
        if end not in targets:
            continue
        rows, columns = module.weight.shape[::-1] if is_transposed(module) else module.weight.shape
        rank = (ranks or {}).get(end, values["r"])
        prefix = f"base_model.model.{name}"
        tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, columns, generator=random) / columns**0.5
        tensors[f"{prefix}.lora_B.weight"] = torch.randn(rows, rank, generator=random) / rank**0.5
        if values.get("use_dora"):
            tensors[f"{prefix}.lora_magnitude_vector"] = torch.rand(rows, generator=random) + 0.5
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(values))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def is_transposed(module: torch.nn.Module) -> bool:
    """Whether it is one of GPT-2's products, whose matrices have their inputs first."""
    return hasattr(module, "nf")


def merge(model: Any, folder: Path) -> Any:
    """A copy of the model with the adapter in its weights, by the papers' formulas."""
    from safetensors.torch import load_file  # noqa: PLC0415

    values = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    merged = copy.deepcopy(model)
    for name, module in merged.named_modules():
        prefix = f"base_model.model.{name}"
        if f"{prefix}.lora_A.weight" not in tensors:
            continue
        a, b = tensors[f"{prefix}.lora_A.weight"], tensors[f"{prefix}.lora_B.weight"]
        alpha = values["lora_alpha"]
        for pattern, value in values.get("alpha_pattern", {}).items():
            if re.fullmatch(rf"(.*\.)?{pattern}", name):
                alpha = value
        scale = alpha / (math.sqrt(len(a)) if values.get("use_rslora") else len(a))
        weight = module.weight.data + scale * ((b @ a).T if is_transposed(module) else b @ a)
        if values.get("use_dora"):
            magnitude = tensors[f"{prefix}.lora_magnitude_vector"]
            weight *= (magnitude / weight.norm(dim=1))[:, None]
        module.weight.data = weight
    return merged
