"""`armllm quantize`: what is written is what is computed while loading, and what other programs read."""

from __future__ import annotations

import json
import stat

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import Spy, random_prompts, save_reference

from armllm import LLM
from armllm.checkpoint.folder import Checkpoint
from armllm.checkpoint.scheme import SCHEMES, scheme_for
from armllm.cli import main
from armllm.quant.rounding import from_float

MOE = ["MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "OlmoeForCausalLM"]
SIZES = {"hidden_size": 128, "intermediate_size": 256}


def quantize(source, output, scheme):
    assert main(["quantize", str(source), "-o", str(output), "--scheme", scheme]) == 0


def logits(folder, **options):
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True, **options))
    return [llm.generate(prompt, 4)[1] for prompt in random_prompts((1, 30), 2)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_written_checkpoint_gives_what_rounding_while_loading_gives(make_checkpoint, tmp_path, scheme):
    source = make_checkpoint(**SIZES).folder
    quantize(source, tmp_path / "out", scheme)
    for ours, written in zip(logits(source, quantization=scheme), logits(tmp_path / "out"), strict=True):
        assert torch.equal(ours, written)


@pytest.mark.parametrize("scheme", ["int8", "int8-g32", "int4", "int4-g32", "int4-channelwise"])
def test_transformers_reads_the_same_weights(make_checkpoint, tmp_path, scheme):
    """By its own way through the compressed-tensors package, in fp32: equal to the last bit.

    int4 makes groups of 32: they divide 128 and 96.
    """
    source = make_checkpoint(hidden_size=128)
    quantize(source.folder, tmp_path / "out", scheme)
    settings = transformers.CompressedTensorsConfig(dequantize=True)
    with pytest.warns(UserWarning, match="quantization_config"):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / "out", dtype=torch.float32, quantization_config=settings
        )
    theirs = model.state_dict()
    for name, weight in source.model.state_dict().items():
        expected = weight
        if "_proj" in name:
            used = "int4-g32" if scheme == "int4" else scheme
            expected = from_float(weight, scheme_for(used, weight.shape[1])).dequantize()
        assert torch.equal(theirs[name], expected), name


@pytest.mark.parametrize("architecture", MOE)
def test_experts_are_written_and_routers_are_not_rounded(tmp_path, architecture):
    config = random_config(architecture, 8) | {"mlp_only_layers": [], "decoder_sparse_step": 1}
    save_reference(tmp_path / "in", config, 8)
    quantize(tmp_path / "in", tmp_path / "out", "int4-channelwise")
    for ours, written in zip(
        logits(tmp_path / "in", quantization="int4-channelwise"), logits(tmp_path / "out"), strict=True
    ):
        assert torch.equal(ours, written)
    ignored = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["ignore"]
    assert any(name.endswith(".gate") for name in ignored)


def test_shards_keep_their_names_and_get_an_index(make_checkpoint, tmp_path):
    source = make_checkpoint(shards=3).folder
    quantize(source, tmp_path / "out", "int4")
    out = Checkpoint(tmp_path / "out")
    assert {out.where(name).name for name in out.names()} == {
        path.name for path in source.glob("*.safetensors")
    }
    before, after = logits(source, quantization="int4-g32"), logits(tmp_path / "out")
    assert all(map(torch.equal, before, after))


def test_bf16_keeps_its_dtype_and_other_files_are_copied(make_checkpoint, tmp_path):
    source = make_checkpoint(**SIZES).folder
    folder = tmp_path / "in"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    (folder / ".cache").mkdir()
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "pytorch_model.bin").write_bytes(b"never copied")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    state = {name: tensor.bfloat16() for name, tensor in load_file(source / "model.safetensors").items()}
    save_file(state, folder / "model.safetensors")
    quantize(folder, tmp_path / "out", "int4-g64")
    written = load_file(tmp_path / "out" / "model.safetensors")
    stem = "model.layers.0.mlp.down_proj.weight"
    assert written[f"{stem}_scale"].dtype is torch.bfloat16
    assert written[f"{stem}_packed"].shape == (128, 256 // 8)
    assert written[f"{stem}_shape"].tolist() == [128, 256]
    assert torch.equal(written["model.norm.weight"], state["model.norm.weight"])
    names = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*")}
    assert names == {
        "1_Pooling", "1_Pooling/config.json", "chat_template.jinja", "config.json", "model.safetensors",
        "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").glob("*.safetensors")}
    assert modes == {0o644}
    assert all(map(torch.equal, logits(folder, quantization="int4-g64"), logits(tmp_path / "out")))


@pytest.mark.parametrize("scheme", ["int8", "int4-g32"])
def test_transposed_matrices_are_written_as_all_others(tmp_path, scheme):
    """GPT-2 stores inputs first, which no format of quantized matrices does."""
    config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 400}
    config |= {"n_embd": 64, "n_inner": 96, "n_head": 4, "n_layer": 2, "n_positions": 64, "eos_token_id": 1}
    folder = tmp_path / "in"
    save_reference(folder, config, 0)
    quantize(folder, tmp_path / "out", scheme)
    expected = logits(folder, quantization=scheme)
    assert all(map(torch.equal, expected, logits(tmp_path / "out")))


def test_the_command_tells_what_it_did(make_checkpoint, tmp_path, capsys):
    source = str(make_checkpoint(**SIZES).folder)
    assert main(["quantize", source, "-o", str(tmp_path / "a"), "--scheme", "int8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["matrices"] == {"int8": 14}
    assert told["bytes_now"] < told["bytes_before"] / 2
    quantize(source, tmp_path / "b", "int4")
    assert "14 matrices as int4-g128" in capsys.readouterr().out


def test_a_failure_leaves_nothing(make_checkpoint, tmp_path, capsys):
    source = make_checkpoint().folder
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    state = load_file(source / "model.safetensors")
    state["model.layers.1.mlp.up_proj.weight"][0, 0] = torch.nan
    save_file(state, folder / "model.safetensors")
    assert main(["quantize", str(folder), "-o", str(tmp_path / "out"), "--scheme", "int8"]) == 1
    assert "up_proj.weight can't be rounded: a weight is NaN" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_what_cannot_be_written_is_refused(make_checkpoint, tmp_path, capsys):
    source = str(make_checkpoint(**SIZES).folder)
    out = str(tmp_path / "out")
    quantize(source, out, "int8")
    cases = [
        (source, out, "int8", "exists already"),
        (out, str(tmp_path / "again"), "int8", "is quantized already: compressed-tensors (W8A8"),
        (source, str(tmp_path / "x"), "fp8", "--scheme 'fp8' is not supported, only int8, int8-g32"),
    ]
    for model, output, scheme, words in cases:
        assert main(["quantize", model, "-o", output, "--scheme", scheme]) != 0
        assert words in capsys.readouterr().err
