"""What llama.cpp's converter does to tensors, undone: rows in another order, shapes, and numbers.

Source: llama.cpp's conversion/llama.py, qwen.py, lfm2.py, mamba.py, nemotron.py, gpt2.py and gpt_neox.py.
Rows are moved as they are stored, so that quantized ones keep their numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from armllm.checkpoint.gguf_header import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from armllm.checkpoint.gguf_file import GGUFFile

# whose queries and keys the converter permutes
PERMUTED = ("granite", "llama", "nemotron_h", "nemotron_h_moe")
# Value heads of gated delta nets: the first one of every key head, then the second ones.
TILED = ("qwen35", "qwen35moe")


def joined_part(file: GGUFFile, index: int, count: int) -> Callable[[Tensor], Tensor]:
    """What takes the rows of one of ``count`` modules: of all heads, or in Qwen3-Next of each key head."""

    def take(tensor: Tensor) -> Tensor:
        heads = file.own("ssm.group_count") if file.architecture == "qwen3next" else 1
        grouped = tensor.unflatten(0, (heads, count, -1))  # type: ignore[no-untyped-call]
        return grouped[:, index].flatten(0, 1)  # type: ignore[no-any-return]

    return take


def reshaped(file: GGUFFile, stored: str, name: str) -> Callable[[Tensor], Tensor] | None:
    """What gives a tensor the shape that it has under Hugging Face's ``name``; None: it has it."""
    module, _, ending = name.rpartition(".")
    dimensions = len(file.shape(stored))
    if module.endswith("shared_expert_gate") and dimensions == 1:  # the converter has squeezed it
        return lambda tensor: tensor.unsqueeze(0)
    if module.endswith((".conv1d", "conv.conv")) and dimensions == 2 and ending == "weight":
        return lambda tensor: tensor.unsqueeze(1)
    if dimensions == 2 and (ending in ("A_log", "D") or module.endswith(("mamba.norm", "mixer.norm"))):
        return torch.Tensor.flatten  # by heads, or by groups of them
    # a quantized matrix is taken as it is
    transposed = file.architecture == "gpt2" and module.endswith((".c_attn", ".c_proj", ".c_fc"))
    if transposed and dimensions == 2 and file.tensors[stored].type in DTYPES:
        return lambda tensor: tensor.t()
    return None


def reordered(file: GGUFFile, name: str, tensor: Tensor) -> Tensor:
    """The tensor with its rows as Hugging Face has them under ``name``."""
    parts, own = name.split("."), file.own
    module = parts[-1] if parts[-1] in ("A_log", "dt_bias") else parts[-2]
    if file.architecture in PERMUTED and module in ("q_proj", "k_proj"):
        heads = own("attention.head_count")
        if module == "k_proj":
            heads = own("attention.head_count_kv", heads)
        return _unpermute(tensor, heads[int(parts[2])] if isinstance(heads, list) else heads)
    if file.architecture == "gptneox" and module == "query_key_value":
        by_kind = tensor.unflatten(0, (3, own("attention.head_count"), -1))  # type: ignore[no-untyped-call]
        return by_kind.transpose(0, 1).flatten(0, 2)  # type: ignore[no-any-return]
    if file.architecture in TILED:
        if module in ("in_proj_qkv", "conv1d"):
            first = 2 * own("ssm.group_count") * own("ssm.state_size")  # rows of queries and keys
            return torch.cat((tensor[:first], _untile(file, tensor[first:])))
        if module in ("in_proj_z", "in_proj_b", "in_proj_a", "A_log", "dt_bias"):
            return _untile(file, tensor)
    return tensor


def numbers(name: str, tensor: Tensor) -> Tensor:
    """A floating-point tensor with the numbers it has under ``name``: decays are stored as -exp(A_log)."""
    return tensor.float().neg().log() if name.endswith(".A_log") else tensor


def input_order(file: GGUFFile, name: str) -> Tensor | None:
    """The input that each stored column of the matrix belongs to; None: they are in order."""
    if file.architecture not in TILED or not name.endswith("linear_attn.out_proj.weight"):
        return None
    keys, values = file.own("ssm.group_count"), file.own("ssm.time_step_rank")
    if keys == values:
        return None
    inputs = torch.arange(file.own("ssm.inner_size"))
    heads = inputs.unflatten(0, (keys, values // keys, -1))  # type: ignore[no-untyped-call]
    return heads.transpose(0, 1).flatten()  # type: ignore[no-any-return]


def _untile(file: GGUFFile, tensor: Tensor) -> Tensor:
    """Rows of value heads by key heads."""
    keys, values = file.own("ssm.group_count"), file.own("ssm.time_step_rank")
    tiles = tensor.unflatten(0, (values // keys, keys, -1))  # type: ignore[no-untyped-call]
    return tiles.transpose(0, 1).flatten(0, 2)  # type: ignore[no-any-return]


def _unpermute(tensor: Tensor, heads: int) -> Tensor:
    """Rows of each head as halves again: llama.cpp turns Llama's neighbors (2i, 2i + 1) together."""
    return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)  # type: ignore[no-untyped-call, no-any-return]
