"""Packed folders of strangers, whose seals and digests are right: they load, or are refused in a sentence."""

from __future__ import annotations

import json

import pytest
from tests.armllm.checkpoint.test_fuzz import changed, noise, run, safetensors_header
from tests.armllm.checkpoint.test_fuzz_loading import FEW, generate
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import save_reference
from tests.armllm.quant.forms import GROUPED, write_quantized
from tests.armllm.quant.test_floats import SIZES

from armllm.cli import main
from armllm.quant.digest import digest_file
from armllm.quant.packed import MANIFEST, sealed


def resealed(folder, change):
    """What the manifest says after ``change``, with a digest and a seal that are right."""
    path = folder / MANIFEST
    values = json.loads(path.read_text())
    version, _ = values.pop("version"), values.pop("seal")
    for name in values["digests"]:
        values["digests"][name] = digest_file(folder / name)
    values = change(values)
    path.write_text(json.dumps({"version": version, "seal": sealed(values), **values}))


def of_a_stranger(folder, rng):
    """Another manifest, or other weights below the same one."""
    name = "model.safetensors"
    if rng.random() < 0.25:
        safetensors_header(name)(folder, rng)
        resealed(folder, lambda values: values)
    elif rng.random() < 0.2:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:4000] + noise(data[4000:], rng))
        resealed(folder, lambda values: values)
    elif rng.random() < 0.2:
        resealed(folder, lambda values: changed(values, rng))
    else:
        resealed(folder, lambda values: {**values, "matrices": changed(values["matrices"], rng)})


def checked(kind, source, tmp_path, *options):
    assert main(["pack", str(source), "-o", str(tmp_path / "sound"), *options]) == 0
    generate(tmp_path / "sound")
    run(f"packed {kind}", tmp_path / "sound", tmp_path / "changed", of_a_stranger, generate, count=FEW)


@pytest.mark.parametrize("scheme", ["int8", "int4-g32"])
def test_changed_packed_folders(make_checkpoint, tmp_path, scheme):
    checked(scheme, make_checkpoint(**SIZES).folder, tmp_path, "--quantization", scheme)


def test_changed_packed_experts(tmp_path):
    save_reference(tmp_path / "in", random_config("Qwen2MoeForCausalLM", 8), 8)
    checked("experts", tmp_path / "in", tmp_path, "--quantization", "int4-channelwise")


def test_changed_packed_inputs_in_an_order_of_their_own(make_checkpoint, tmp_path):
    write_quantized(tmp_path / "in", make_checkpoint(**SIZES), *GROUPED["GPTQ"])
    checked("act-order", tmp_path / "in", tmp_path)
