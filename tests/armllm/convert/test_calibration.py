"""Scales that a text asks for: folded without changing the model, and worth it."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.armllm.conftest import CORPUS
from tests.armllm.models.random_configs import FAMILIES, random_config
from tests.armllm.models.reference import Spy, random_prompts, save_reference

from armllm import LLM
from armllm.checkpoint.folder import Checkpoint
from armllm.cli import main
from armllm.convert import write
from armllm.convert.folding import ScaledCheckpoint, find_folds
from armllm.errors import CheckpointError, RequestError
from armllm.models import read_model_config

SIZES = {"hidden_size": 128, "intermediate_size": 256}
# matrices of a layer whose inputs are scaled: all, but for those that a test below names
LEFT = {
    "gate",
    "shared_expert_gate",
    "project_in",
    "project_out",
    "lm_head",
    "embed_tokens",
    "embed_positions",
}


def fold_at_random(folder):
    """A copy of the checkpoint with random scales in all its folds, and the folds."""
    checkpoint = Checkpoint(folder)
    _, config = read_model_config(folder)
    scaled, folds = ScaledCheckpoint(checkpoint), find_folds(checkpoint.names(), config)
    generator = torch.Generator().manual_seed(3)
    for fold in folds.found:
        inputs = checkpoint.describe(f"{fold.matrices[0]}.weight")[1][1]
        scales = (2 * torch.rand(inputs, generator=generator) - 1).exp2()
        scaled.fold(fold, fold.shared(scales))
    copy = folder / "folded"
    copy.mkdir()
    shutil.copy(folder / "config.json", copy)
    state = {name: scaled.read(name).contiguous() for name in checkpoint.names()}
    save_file(state, copy / "model.safetensors", metadata={"format": "pt"})
    return copy, folds


def logits_of(folder, lengths=(3, 25), seed=7):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [
            model(torch.tensor([prompt]), use_cache=False).logits for prompt in random_prompts(lengths, seed)
        ]


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_folded_scales_change_no_family(tmp_path, architecture, seed):
    """By transformers' own reading of norms, heads and experts: only roundings of fp32 differ."""
    save_reference(tmp_path, random_config(architecture, seed), seed)
    before = logits_of(tmp_path)
    copy, folds = fold_at_random(tmp_path)
    for ours, theirs in zip(logits_of(copy), before, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))
    # nothing is forgotten: each matrix is scaled, or skipped for a reason
    names = {name.removesuffix(".weight") for name in Checkpoint(tmp_path).names() if ".layers." in name}
    matrices = {name for name in names if name.endswith(("proj", "w1", "w2", "w3", "fc1", "fc2"))}
    known = {name for fold in folds.found for name in fold.matrices} | set(folds.skipped)
    assert matrices <= known
    changed, stored = load_file(copy / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    for name in matrices - set(folds.skipped):
        assert not torch.equal(changed[f"{name}.weight"], stored[f"{name}.weight"]), name


OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "vocab_size": 400,
    "hidden_size": 64,
    "word_embed_proj_dim": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "tie_word_embeddings": True,
}


@pytest.mark.parametrize(
    ("changes", "skipped"),
    [
        ({}, {}),
        ({"activation_function": "gelu"}, {"fc2": "gelu lies before it"}),
        (
            {"do_layer_norm_before": False},
            dict.fromkeys(
                ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "fc1"),
                "its norm comes after the sum (do_layer_norm_before is false)",
            ),
        ),
        (
            {"layer_norm_elementwise_affine": False},
            {"fc1": "final_layer_norm has no weight"}
            | dict.fromkeys(
                ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
                "self_attn_layer_norm has no weight",
            ),
        ),
    ],
    ids=str,
)
def test_what_cannot_be_folded_is_named(tmp_path, changes, skipped):
    save_reference(tmp_path, OPT | changes, 1)
    before = logits_of(tmp_path)
    copy, folds = fold_at_random(tmp_path)
    assert {name.partition("layers.0.")[2]: reason for name, reason in folds.skipped.items()} == skipped
    for ours, theirs in zip(logits_of(copy), before, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


@pytest.fixture
def outliers(make_checkpoint, tmp_path):
    """A model with a few input channels twenty times as large as the others, in bf16, and a text."""
    source = make_checkpoint(**SIZES).folder
    folder = tmp_path / "outliers"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder)
    state = load_file(source / "model.safetensors")
    for index in range(2):
        stem = f"model.layers.{index}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            state[f"{stem}.{norm}.weight"][5::40] *= 20
        state[f"{stem}.mlp.up_proj.weight"][7::60] *= 20
        for name in (
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "mlp.up_proj",
            "mlp.gate_proj",
        ):
            state[f"{stem}.{name}.weight"] *= 0.3
    state = {name: tensor.bfloat16() for name, tensor in state.items()}
    save_file(state, folder / "model.safetensors")
    text = tmp_path / "text"
    text.write_text("\n".join(CORPUS * 8), encoding="utf-8")
    return folder, text


def logits(folder, **options):
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True, **options))
    return torch.cat([llm.generate(prompt, 1)[1] for prompt in random_prompts((1, 9, 30, 40), 2)])


@pytest.mark.parametrize("scheme", ["int8", "int4-g32", "int4-g128", "int4-channelwise"])
def test_outlier_channels_cost_less(outliers, scheme):
    folder, text = outliers
    exact = logits(folder)
    plain = logits(folder, quantization=scheme)
    scaled = logits(folder, quantization=scheme, calibration=str(text))
    assert (scaled - exact).norm() < 0.85 * (plain - exact).norm()


def test_the_command_writes_what_loading_computes(outliers, tmp_path, capsys, monkeypatch):
    """An ordinary compressed-tensors checkpoint: norms and matrices before carry the scales."""
    monkeypatch.setattr(write, "cpu_computes_bfloat16", lambda: False)
    folder, text = outliers
    arguments = ["quantize", str(folder), "-o", str(tmp_path / "out"), "--scheme", "int4"]
    assert main([*arguments, "--calibrate", str(text)]) == 0
    assert "calibrated 8 products on" in capsys.readouterr().err
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
    loaded = logits(folder, quantization="int4-g128", calibration=str(text))
    assert torch.equal(logits(tmp_path / "out"), loaded)


def test_transformers_gains_by_it_too(outliers, tmp_path):
    """Read through the compressed-tensors package, and computed with unrounded inputs."""
    folder, text = outliers
    theirs = []
    for name, options in (("plain", []), ("scaled", ["--calibrate", str(text)])):
        out = tmp_path / name
        assert main(["quantize", str(folder), "-o", str(out), "--scheme", "int4-channelwise", *options]) == 0
        settings = transformers.CompressedTensorsConfig(dequantize=True)
        with pytest.warns(UserWarning, match="quantization_config"):
            model = transformers.AutoModelForCausalLM.from_pretrained(
                out, dtype=torch.float32, quantization_config=settings
            )
        with torch.inference_mode():
            theirs.append(torch.cat([model(torch.tensor([p])).logits[0] for p in random_prompts((9, 30), 2)]))
    exact = torch.cat([one[0] for one in logits_of(folder, (9, 30), 2)])
    plain, scaled = ((one - exact).norm() for one in theirs)
    assert scaled < 0.85 * plain


def test_a_text_that_does_not_matter_changes_nothing(outliers):
    """Where no scale is better than none, weights are rounded as without."""
    folder, text = outliers
    state = load_file(folder / "model.safetensors")
    for name, tensor in state.items():
        if "proj" in name:
            tensor.zero_()
    save_file(state, folder / "model.safetensors")
    assert torch.equal(
        logits(folder, quantization="int8", calibration=str(text)), logits(folder, quantization="int8")
    )


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (None, {}, "text can't be read: No such file"),
        (b"\xff\xfe", {}, "text can't be read: it is not UTF-8"),
        (b"Too short.", {}, "tokens; give at least 64"),
        (b"", {"quantization": None}, "calibration needs a quantization"),
        (b"", {"quantization": "gptq"}, "calibration needs a quantization"),
    ],
    ids=str,
)
def test_bad_texts_are_named(outliers, content, options, words):
    folder, text = outliers
    text.unlink() if content is None else text.write_bytes(content)
    with pytest.raises(RequestError) as caught:
        LLM(folder, dtype="float32", **{"quantization": "int8", "calibration": str(text)} | options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("mlp.up_proj", "layers.0.mlp.up_proj.weight has a NaN"),
        ("mlp.down_proj", "layers.0.mlp.down_proj.weight has a NaN"),
        ("input_layernorm", "inputs of model.layers.0.self_attn.q_proj are NaN"),
    ],
)
def test_a_weight_that_is_no_number_is_named(outliers, broken, words):
    folder, text = outliers
    state = load_file(folder / "model.safetensors")
    state[f"model.layers.0.{broken}.weight"].fill_(torch.nan)
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=words):
        LLM(folder, dtype="float32", quantization="int8", calibration=str(text))
