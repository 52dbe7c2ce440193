"""Matrices as other programs store them, written here from their documentation, each with what it stands for.

A form turns ``matrix[N, K]`` into tensors by the endings of their names, and into the fp32 matrix they mean.
Integers, scales and zero points are drawn at random where the format does not care: all values occur.
"""

from __future__ import annotations

import copy
import json
import shutil
from typing import TYPE_CHECKING, Any

import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import save_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Form = Callable[[torch.Tensor, torch.Generator], tuple[dict[str, torch.Tensor], torch.Tensor]]


def pack_words(values: torch.Tensor, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Unsigned ``[R, C]`` to int32 ``[R, C * bits / 32]``, one value after another, from the lowest bits."""
    per_word = 32 // bits
    order = order or tuple(range(per_word))
    packed_words = torch.zeros(values.shape[0], values.shape[1] // per_word, dtype=torch.int64)
    for place, column in enumerate(order):
        packed_words |= values[:, column::per_word].long() << (bits * place)
    return torch.where(packed_words >= 2**31, packed_words - 2**32, packed_words).to(torch.int32)


def random_integers(matrix, generator, bits, group_size, *, zeros):
    """q ``[N, K]`` from 0 on, scales fp16 ``[N, G]``, zero points ``[N, G]``, all at random."""
    rows, inputs = matrix.shape
    groups = inputs // group_size if group_size else 1
    q = torch.randint(0, 2**bits, (rows, inputs), generator=generator)
    step = 2 * inputs**-0.5 / 2**bits
    scales = (step * (0.5 + torch.rand(rows, groups, generator=generator))).half()
    middle = torch.full((rows, groups), 2 ** (bits - 1))
    drawn = torch.randint(0, 2**bits, (rows, groups), generator=generator)
    return q, scales, drawn if zeros else middle


def meant(q, scales, zeros, group_of):
    """fp32 matrix: the scale and zero point of each input's group."""
    return scales.float()[:, group_of] * (q - zeros[:, group_of]).float()


def gptq(bits, group_size, *, symmetric=True, act_order=False, version=1, g_idx=True) -> Form:
    def form(matrix, generator):
        inputs = matrix.shape[1]
        q, scales, zeros = random_integers(matrix, generator, bits, group_size, zeros=not symmetric)
        group_of = torch.arange(inputs) // (group_size or inputs)
        if act_order:  # the same for all matrices with the same inputs, as in GPTQ
            order = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))
            group_of = group_of[order]
        # the first version stores zero points less one, taken from whole words: a 0 borrows from the next
        ones = sum(1 << place for place in range(0, 32, bits))
        tensors = {
            "qweight": pack_words(q, bits).t(),
            "qzeros": pack_words(zeros.t(), bits) - (ones if version == 1 else 0),
            "scales": scales.t().contiguous(),
        }
        if g_idx:
            tensors["g_idx"] = group_of.to(torch.int32)
        return tensors, meant(q, scales, zeros, group_of)

    return form


def awq(group_size) -> Form:
    def form(matrix, generator):
        q, scales, zeros = random_integers(matrix, generator, 4, group_size, zeros=True)
        group_of = torch.arange(matrix.shape[1]) // (group_size or matrix.shape[1])
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        tensors = {
            "qweight": pack_words(q.t(), 4, order),
            "qzeros": pack_words(zeros.t(), 4, order),
            "scales": scales.t().contiguous(),
        }
        return tensors, meant(q, scales, zeros, group_of)

    return form


def packed(group: dict[str, Any], dtype=torch.bfloat16) -> Form:
    """pack-quantized, by the compressed-tensors package itself."""
    scheme = QuantizationScheme(**group)

    def form(matrix, generator):
        arguments = scheme.weights
        bits, size = arguments.num_bits, arguments.group_size or matrix.shape[1]
        q, scales, zeros = random_integers(
            matrix, generator, bits, arguments.group_size or 0, zeros=not arguments.symmetric
        )
        middle, scales = 2 ** (bits - 1), scales.to(dtype)
        exact = meant(q, scales, zeros, torch.arange(matrix.shape[1]) // size)
        state = {"weight": exact, "weight_scale": scales.float()}
        if not arguments.symmetric:
            state["weight_zero_point"] = (zeros - middle).to(torch.int8)
        tensors = PackedQuantizationCompressor.compress(state, scheme)
        return tensors | {"weight_scale": scales}, exact

    return form


def int_quantized(matrix, generator, group_size=0, *, zeros=False):
    """int8, a scale per row or group."""
    q, scales, zero = random_integers(matrix, generator, 8, group_size, zeros=zeros)
    exact = meant(q, scales, zero, torch.arange(matrix.shape[1]) // (group_size or matrix.shape[1]))
    tensors = {"weight": (q - 128).to(torch.int8), "weight_scale": scales}
    return tensors | ({"weight_zero_point": (zero - 128).to(torch.int8)} if zeros else {}), exact


def fp8_blocks(down: int, across: int) -> Form:
    """Plain fp8 with a scale for so many rows and inputs."""

    def form(matrix, _generator):
        rows, inputs = matrix.shape
        blocks = torch.nn.functional.pad(matrix, (0, -inputs % across, 0, -rows % down))
        blocks = blocks.view(-(-rows // down), down, -(-inputs // across), across)
        scales = blocks.abs().amax((1, 3)) / 448
        each = scales.repeat_interleave(down, 0)[:rows].repeat_interleave(across, 1)[:, :inputs]
        values = (matrix / each).to(torch.float8_e4m3fn)
        return {"weight": values, "weight_scale_inv": scales}, values.float() * each

    return form


def is_linear(name: str) -> bool:
    return name.endswith("_proj.weight")


def write_quantized(
    folder: Path, source: Any, quantization: dict[str, Any], form: Form, selects=is_linear
) -> Any:
    """The checkpoint ``source`` with matrices in ``form``; transformers' model with what they mean."""
    model = copy.deepcopy(source.model)
    generator = torch.Generator().manual_seed(5)
    state: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        if not selects(name):
            state[name] = parameter.data
            continue
        tensors, exact = form(parameter.data, generator)
        stem = name.removesuffix("weight")
        state |= {stem + ending: tensor.contiguous() for ending, tensor in tensors.items()}
        parameter.data = exact
    write(folder, source.folder, quantization, state)
    return model


def write(folder: Path, source: Path, quantization: dict[str, Any], state: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True)
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder)
    save_file(state, folder / "model.safetensors")


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
GROUPED = {"GPTQ": (GPTQ, gptq(4, 32, symmetric=False, act_order=True)), "AWQ": (AWQ, awq(32))}
"""Settings and forms of 4 bits in groups of 32, with zero points."""
