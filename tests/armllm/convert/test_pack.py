"""`armllm pack`: what a packed folder computes is what its source computes, and nothing else is loaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.armllm.conftest import CORPUS
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import Spy, random_prompts, save_reference
from tests.armllm.quant.forms import awq, gptq, packed, write_quantized
from tests.armllm.quant.test_checkpoints import AWQ, GPTQ, TOKENS, compressed
from tests.armllm.quant.test_moe import write_gpt_oss_by_experts

from armllm import LLM, kernels
from armllm.cli import main
from armllm.convert import pack as pack_module
from armllm.engine.inspection import inspect_checkpoint
from armllm.errors import CheckpointError
from armllm.quant.digest import PIECE, digest_file

SIZES = {"hidden_size": 128, "intermediate_size": 256}


def pack(source, output, *options):
    assert main(["pack", str(source), "-o", str(output), *options]) == 0


def logits(folder, **options):
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True, **options))
    return torch.cat([llm.generate(prompt, 4)[1] for prompt in random_prompts((1, 30), 2)])


@pytest.mark.parametrize("scheme", ["int8", "int8-g64", "int4", "int4-g32", "int4-channelwise"])
def test_a_packed_folder_computes_what_rounding_while_loading_gives(make_checkpoint, tmp_path, scheme):
    source = make_checkpoint(**SIZES, attention_bias=True, mlp_bias=True).folder
    pack(source, tmp_path / "out", "--quantization", scheme)
    assert torch.equal(logits(source, quantization=scheme), logits(tmp_path / "out"))
    assert inspect_checkpoint(str(tmp_path / "out"))["quantization"].endswith(
        f"rounded to {scheme} while loading"
    )


@pytest.mark.parametrize(
    ("settings", "form"),
    [
        (GPTQ | {"desc_act": True, "sym": False}, gptq(4, 32, symmetric=False, act_order=True)),
        (AWQ | {"group_size": 64}, awq(64)),
        (GPTQ | {"bits": 8, "sym": False}, gptq(8, 32, symmetric=False, act_order=True)),
        compressed("pack-quantized", bits=4, group_size=32, inputs=TOKENS, ignore=("re:.*k_proj", "lm_head")),
    ],
    ids=["gptq with act-order", "awq", "gptq of 8 bits", "an ignored part"],
)
def test_quantized_checkpoints_are_packed_as_they_are(make_checkpoint, tmp_path, settings, form):
    form = packed(form) if isinstance(form, dict) else form
    folder = tmp_path / "model"
    write_quantized(
        folder,
        make_checkpoint(**SIZES),
        settings,
        form,
        lambda name: (
            "_proj" in name
            and (
                "k_proj" not in name
                or "quant_method" not in settings
                or settings["quant_method"] != "compressed-tensors"
            )
        ),
    )
    pack(folder, tmp_path / "out")
    assert torch.equal(logits(folder), logits(tmp_path / "out"))


def test_biases_that_the_experts_add_themselves_are_no_error(tmp_path):
    """Those of gpt-oss by experts were refused as biases that no layer takes."""
    write_gpt_oss_by_experts(tmp_path / "model")
    pack(tmp_path / "model", tmp_path / "out")
    assert torch.equal(logits(tmp_path / "model"), logits(tmp_path / "out"))


@pytest.mark.parametrize("architecture", ["Phi3ForCausalLM", "Qwen2MoeForCausalLM", "Gemma3ForCausalLM"])
def test_fused_matrices_experts_and_tied_heads(tmp_path, architecture):
    config = random_config(architecture, 8)
    save_reference(tmp_path / "in", config, 8)
    pack(tmp_path / "in", tmp_path / "out", "--quantization", "int4-channelwise")
    assert torch.equal(logits(tmp_path / "in", quantization="int4-channelwise"), logits(tmp_path / "out"))


def test_calibration_comes_before_packing(make_checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(pack_module, "cpu_computes_bfloat16", lambda: False)
    source = make_checkpoint(**SIZES).folder
    text = tmp_path / "text"
    text.write_text("\n".join(CORPUS * 8), encoding="utf-8")
    pack(source, tmp_path / "out", "--quantization", "int4", "--calibrate", str(text))
    scaled = logits(source, quantization="int4", calibration=str(text))
    assert torch.equal(scaled, logits(tmp_path / "out"))


def test_weights_stay_in_the_mapped_file(make_checkpoint, tmp_path):
    pack(make_checkpoint(**SIZES).folder, tmp_path / "out", "--quantization", "int8")
    llm = LLM(tmp_path / "out", dtype="float32", skip_tokenizer_init=True)
    layer = llm.llm_engine.runner.model.layers[1]
    for product in (layer.self_attn.qkv_proj, layer.self_attn.o_proj, layer.mlp.down_proj):
        address = product.weight.data.data_ptr()
        assert address % 64 == 0
        with Path("/proc/self/maps").open() as maps:
            for line in maps:
                first, last = (int(end, 16) for end in line.split()[0].split("-"))
                if first <= address < last:
                    assert line.split()[-1] == str(tmp_path / "out" / "model.safetensors")
                    break
            else:
                pytest.fail("no such mapping")


@pytest.fixture
def one(make_checkpoint, tmp_path):
    """A source of its own and its packed folder."""
    source, folder = tmp_path / "source", tmp_path / "packed"
    shutil.copytree(make_checkpoint(**SIZES).folder, source)
    pack(source, folder, "--quantization", "int4")
    return source, folder


def refused(folder, words):
    with pytest.raises(CheckpointError) as caught:
        LLM(folder, dtype="float32", skip_tokenizer_init=True)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_for_another_target_is_refused_where_it_cannot_run(make_checkpoint, tmp_path):
    """Packing for it works here; its layout is what tests/armllm/kernels/test_matmul.py checks."""
    here = kernels.weight_layouts()[kernels.weight_target(4)]
    for target, layout in (
        ("neoverse-v1", "columnpairs4x8"),
        ("neoverse-n1", "columnpairs4x4"),
        ("cortex-a72", "columns4x8"),
        ("a64fx", "columns16x4"),
    ):
        folder = tmp_path / target
        pack(make_checkpoint(**SIZES).folder, folder, "--quantization", "int4", "--target", target)
        if layout != here:
            refused(folder, f"is packed for {target} (layout {layout}), and the kernels of this machine")


def test_a_source_that_changed_is_refused_and_one_that_is_gone_or_copied_is_not(one):
    source, folder = one
    weights = source / "model.safetensors"
    copy = weights.with_suffix(".copy")
    shutil.copy(weights, copy)
    copy.replace(weights)  # the same content, changed just now
    before = logits(folder)
    state = load_file(weights)
    state["model.norm.weight"][3] += 1
    weights.unlink()
    save_file(state, weights)
    refused(folder, f"was packed from other weights than {source} has now: pack it again")
    weights.rename(source / "model-00001-of-00001.safetensors")  # other files, as another download may have
    refused(folder, f"was packed from other weights than {source} has now: pack it again")
    weights.with_stem("model-00001-of-00001").rename(weights)
    shutil.rmtree(source)
    assert torch.equal(logits(folder), before)


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_damage_is_found_before_anything_is_computed(one):
    _, folder = one
    weights, manifest = folder / "model.safetensors", folder / "packed.json"
    size = weights.stat().st_size
    for position in (size // 2, size - 1):
        flip(weights, position)
        refused(folder, f"{weights} is damaged")
        flip(weights, position)
    content = weights.read_bytes()
    weights.write_bytes(content[:-64])
    refused(folder, str(weights))
    weights.write_bytes(content)
    logits(folder)
    stored = manifest.read_text()
    for broken in ("", "{}", stored[:-9], "[1]"):
        manifest.write_text(broken)
        refused(folder, "damaged: pack the model again")
    manifest.write_text(stored.replace('"version": 4', '"version": 3'))
    refused(folder, f"{manifest} was written by another version of armllm")
    manifest.unlink()
    refused(folder, f"{manifest} is missing or damaged")


@pytest.mark.parametrize(
    "edit",
    [
        lambda values: values["matrices"]["model.layers.0.mlp.down_proj"].update(in_features=128),
        lambda values: values["matrices"]["model.layers.0.mlp.down_proj"].update(num_bytes=-1),
        lambda values: values["matrices"].clear(),
        lambda values: values.update(digests={}),
        lambda values: values.update(layouts=[]),
        lambda values: values["source"].update(files={}),
        lambda values: values.pop("seal"),
        lambda values: values.update(seal=7),
    ],
)
def test_a_manifest_that_was_changed_by_hand_is_refused(one, edit):
    _, folder = one
    manifest = folder / "packed.json"
    values = json.loads(manifest.read_text())
    edit(values)
    manifest.write_text(json.dumps(values))
    refused(folder, f"{manifest} was changed after it was written: pack the model again")


def test_what_cannot_be_packed_is_refused(one, make_checkpoint, tmp_path, capsys):
    source, folder = one
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    cases = [
        ([str(source), "-o", str(folder)], "exists already"),
        ([str(source), "-o", str(tmp_path / "x")], "is not quantized: add --quantization, one of int8"),
        ([str(folder), "-o", str(tmp_path / "x")], f"already; pack {source}"),
        ([str(source), "-o", str(tmp_path / "x"), "--quantization", "int5"], "--quantization 'int5'"),
        ([str(source), "-o", str(tmp_path / "x"), "--target", "pentium"], "--target: "),
        ([str(gguf), "-o", str(tmp_path / "x")], f"{gguf} can't be read as GGUF"),
    ]
    for arguments, words in cases:
        assert main(["pack", *arguments]) != 0
        message = capsys.readouterr().err
        assert words in message
        assert len(message.splitlines()) == 1


def test_a_failure_leaves_nothing(make_checkpoint, tmp_path, capsys):
    source = tmp_path / "in"
    shutil.copytree(make_checkpoint(**SIZES).folder, source)
    state = load_file(source / "model.safetensors")
    state["model.layers.1.mlp.down_proj.weight"][0, 0] = torch.nan
    (source / "model.safetensors").unlink()
    save_file(state, source / "model.safetensors")
    assert main(["pack", str(source), "-o", str(tmp_path / "out"), "--quantization", "int8"]) == 1
    assert "down_proj.weight can't be rounded: a weight is NaN" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_digests_cover_every_piece(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2 * PIECE + 5)
    before = digest_file(path)
    for position in (0, PIECE, 2 * PIECE + 4):
        with path.open("r+b") as file:
            file.seek(position)
            file.write(b"x")
        assert digest_file(path) != before
        before = digest_file(path)


@pytest.mark.slow
def test_packing_peaks_at_a_matrix_and_loading_at_less(large_checkpoint, tmp_path):
    """Packing holds no second matrix, and a packed model is not copied."""
    watch = (
        "import sys, threading, time\n"
        "anonymous = lambda: next(int(l.split()[1]) for l in open('/proc/self/status') if 'RssAnon' in l)\n"
        "peak = [0]\n"
        "def look():\n"
        "    while True: peak[0] = max(peak[0], anonymous()); time.sleep(0.002)\n"
        "import torch; torch.set_num_threads(1)\n"
        "import armllm.convert.pack; from pathlib import Path; from armllm import LLM\n"
        "before = anonymous()\n"
        "threading.Thread(target=look, daemon=True).start()\n"
    )
    packing = "armllm.convert.pack.pack_checkpoint(sys.argv[1], Path(sys.argv[2]), quantization='int4')\n"
    loading = "LLM(sys.argv[2], dtype='bfloat16', skip_tokenizer_init=True, num_gpu_blocks_override=8)\n"
    gate_up = 2 * 4096 * 1024
    # both parts of a product as integers, and as many bytes again: to join them, or packed
    for program, bound in ((packing, gate_up * 2 + (4 << 20)), (loading, 4 << 20)):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                f"{watch}{program}print(peak[0] - before)",
                large_checkpoint,
                tmp_path / "out",
            ],
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},  # what is freed goes at once
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(done.stdout.splitlines()[-1]) * 1024 < bound, program
