"""Rounding must not change a word: weights as int8 and int4 kernels would hold them, in the whole engine."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from armllm.models.llama import LlamaForCausalLM
from armllm.smoke.cases import alone, batch, recitations
from armllm.smoke.passages import MODEL
from armllm.smoke.recite import run


def rounded(weight, bits, group_size, *, asymmetric=False):
    grouped = weight.float() if group_size == 0 else weight.float().unflatten(-1, (-1, group_size))
    levels = 2**bits
    if asymmetric:
        low = grouped.amin(-1, keepdim=True).clamp(max=0)
        scale = (grouped.amax(-1, keepdim=True).clamp(min=0) - low) / (levels - 1)
        zero = (-low / scale).round()
        values = ((grouped / scale + zero).round().clamp(0, levels - 1) - zero) * scale
    else:
        scale = grouped.abs().amax(-1, keepdim=True) / (levels / 2 - 1)
        values = (grouped / scale).round().clamp(-levels / 2, levels / 2 - 1) * scale
    return values.reshape(weight.shape)


@pytest.fixture
def folder_of(tmp_path):
    def make(bits, group_size, *, embeddings=False, asymmetric=False):
        folder = tmp_path / "model"
        shutil.copytree(MODEL, folder)
        weights = load_file(folder / "model.safetensors")
        for name, weight in weights.items():
            if weight.dim() == 2 and (embeddings or "embed" not in name):
                weights[name] = rounded(weight, bits, group_size, asymmetric=asymmetric)
        save_file({name: weight.float() for name, weight in weights.items()}, folder / "model.safetensors")
        return folder

    return make


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_unrounded_weights_recite(passages, dtype):
    for case in (alone(passages[0], {}), batch("batch", recitations(passages, 9), {})):
        assert run(case, dtype, MODEL).first_difference is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("bits", "group_size"), [(8, 0), (4, 32), (4, 64), (4, 128), (4, 0)], ids=str)
def test_rounded_weights_recite(passages, folder_of, bits, group_size, dtype):
    folder = folder_of(bits, group_size)
    result = run(batch("batch", recitations(passages, 4), {}), dtype, folder)
    assert result.first_difference is None
    assert result.ok


@pytest.mark.parametrize("group_size", [32, 128, 0])
def test_weights_rounded_with_zero_points_recite(passages, folder_of, group_size):
    folder = folder_of(4, group_size, asymmetric=True)
    assert run(batch("batch", recitations(passages, 4), {}), "float32", folder).first_difference is None


def test_rounded_embeddings_recite(passages, folder_of):
    folder = folder_of(4, 32, embeddings=True)
    assert run(batch("batch", recitations(passages, 4), {}), "float32", folder).first_difference is None


def test_two_bits_are_too_few(passages, folder_of):
    """What rounding the model can't bear must be noticed: the comparison is no formality."""
    result = run(alone(passages[0], {}), "float32", folder_of(2, 128))
    assert result.first_difference is not None


def test_noise_of_one_tenth_of_a_logit_changes_nothing(passages, monkeypatch):
    exact = LlamaForCausalLM.logits
    generator = torch.Generator().manual_seed(0)

    def noisy(self, hidden):
        logits = exact(self, hidden)
        return logits + 0.1 * torch.randn(logits.shape, generator=generator)

    monkeypatch.setattr(LlamaForCausalLM, "logits", noisy)
    assert run(alone(passages[0], {}), "float32", MODEL).first_difference is None
