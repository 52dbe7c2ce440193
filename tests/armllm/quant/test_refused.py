"""Schemes that are not here and checkpoints that are broken are named in a line, before weights are read."""

from __future__ import annotations

import copy
import functools
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.armllm.quant.forms import AWQ, GPTQ, awq, gptq, int_quantized, packed, write_quantized

from armllm import LLM
from armllm.checkpoint.config import ConfigReader
from armllm.errors import CheckpointError, RequestError
from armllm.quant.formats import read_format

WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": False}
TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
STATIC = TOKENS | {"strategy": "tensor", "dynamic": False}


def compressed(weights=(), inputs=None, **changes):
    group = {"targets": ["Linear"], "weights": WEIGHTS | dict(weights), "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    } | changes


FLOAT = compressed({"type": "float", "num_bits": 8, "strategy": "channel", "symmetric": True})
FLOAT["format"] = "float-quantized"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "fp_quant"}, "quantization_config (fp_quant) is not supported, only awq"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size must be two numbers"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, "quant_algo 'NVFP4_AWQ' is not supported"),
        ({"quant_method": "modelopt"}, "quant_algo 'NONE' is not supported, only FP8"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers"),
        (
            {
                "quant_method": "modelopt",
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "W4A8_AWQ"}},
            },
            "quant_algo 'W4A8_AWQ' is not supported",
        ),
        ({"quant_method": "torchao"}, "quantization_config (torchao) is not supported"),
        ({"quant_method": "bitsandbytes"}, "quantization_config (bitsandbytes)"),
        ({"quant_method": "hqq"}, "--quantization rounds while loading"),
        ({"quant_method": "mxfp4", "modules_to_not_convert": "lm_head"}, "must be a list of names"),
        ({"bits": 4}, "quantization_config (?)"),
        ("fp8", "quantization_config must be an object"),
        (GPTQ | {"bits": 3}, "GPTQ with 3 bits is not supported"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not supported"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format True"),
        (GPTQ | {"dynamic": {"+:.*q_proj": {"bits": 2}}}, "dynamic.+:.*q_proj.GPTQ with 2 bits"),
        (GPTQ | {"dynamic": {"-:(": {}}}, "dynamic.'-:(' is no regular expression"),
        (GPTQ | {"dynamic": [1]}, "dynamic must be an object"),
        (GPTQ | {"group_size": 16}, "group_size 16 is not supported"),
        (AWQ | {"bits": 8}, "AWQ with 8 bits"),
        (AWQ | {"version": "gemv"}, "AWQ's version 'gemv'"),
        (AWQ | {"version": "marlin"}, "AWQ's version 'marlin'"),
        (compressed({"type": "float", "num_bits": 8}), "format 'pack-quantized' of type float is not"),
        (compressed({"type": "float"}, format="mxfp6-pack-quantized"), "format 'mxfp6-pack-quantized' of"),
        (compressed({"type": "float", "symmetric": False}, format="float-quantized"), "symmetric False"),
        (compressed(format="marlin-24"), "format 'marlin-24' (W4A16)"),
        (compressed(format="nvfp4-pack-quantized"), "format 'nvfp4-pack-quantized'"),
        (compressed({"num_bits": 2}), "W2A16: weights of 2 bits"),
        (compressed({"group_size": 16}), "groups of 16 are not supported"),
        (compressed({"strategy": "block"}), "strategy 'block' is not supported"),
        (compressed(inputs=TOKENS | {"dynamic": False}), "strategy 'token' is not supported for activations"),
        (compressed(inputs=TOKENS | {"strategy": "tensor"}), "strategy 'tensor' is not supported for activ"),
        (compressed(inputs=TOKENS | {"dynamic": "local"}), "dynamic 'local' is not supported"),
        (compressed(inputs=TOKENS | {"num_bits": 4}), "activations of type int with 4 bits"),
        (compressed(inputs=TOKENS | {"type": "float"}), "activations of type float with 8 bits"),
        (compressed(inputs=TOKENS | {"strategy": "group"}), "strategy 'group' is not supported for activ"),
        (compressed({"actorder": "alphabetical"}), "actorder 'alphabetical' is not supported"),
        (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "'sparse-24-bitmask'"),
        (
            compressed(config_groups={"group_0": {"targets": ["Embedding"], "weights": WEIGHTS}}),
            "layers of class 'Embedding' are not supported",
        ),
        (
            compressed(
                format="mxfp4-pack-quantized",
                config_groups={"group_0": {"targets": ["Linear", "Embedding"], "weights": {"type": "float"}}},
            ),
            "group_0.targets: layers of class 'Embedding' are not supported",
        ),
        (compressed(config_groups={}), "there is no group"),
        (compressed(ignore="lm_head"), "ignore must be a list of names"),
        (compressed(ignore=["re:("]), "is no regular expression"),
    ],
    ids=str,
)
def test_a_scheme_that_is_not_here_is_named(make_checkpoint, tmp_path, settings, words):
    """Before any tensor is looked at: there are none."""
    config = json.loads((make_checkpoint().folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    refused(tmp_path, words)


ODD = [None, True, 0, -1, 7, 1e400, "", "x", "re:(", [], [1], [[]], {}, {"a": 1}, 2**70]


def inner(settings, place=()):
    """The places of all values in nested objects."""
    for key, value in settings.items():
        yield (*place, key)
        if isinstance(value, dict):
            yield from inner(value, (*place, key))


@pytest.mark.parametrize(
    "settings", [GPTQ, AWQ, compressed(inputs=TOKENS), FP8, FLOAT], ids=lambda one: one["quant_method"]
)
def test_odd_values_are_read_or_named(tmp_path, settings):
    """Whatever stands in config.json: an error that names the file, or a format; never another exception."""
    path = tmp_path / "config.json"
    for place in inner(settings):
        for value in ODD:
            changed = copy.deepcopy(settings)
            scope = changed
            for key in place[:-1]:
                scope = scope[key]
            scope[place[-1]] = value
            try:
                read_format(ConfigReader({"quantization_config": changed}, path))
            except CheckpointError as error:
                assert str(path) in str(error)  # noqa: PT017 - either is fine


def refused(folder, words, error=CheckpointError, **options):
    with pytest.raises(error) as caught:
        LLM(folder, dtype="float32", skip_tokenizer_init=True, **options)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert len(message) < 400


def change(folder, name, change):
    path = folder / "model.safetensors"
    state = load_file(path)
    if change is None:
        del state[name]
    else:
        state[name] = change(state[name])
    path.unlink()
    save_file(state, path)


def poke(position, value):
    def change(tensor):
        tensor[position] = value
        return tensor

    return change


STEM = "model.layers.1.mlp.up_proj."


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [
        ("scales", None, "up_proj.scales is missing"),
        ("qzeros", None, "up_proj.qzeros is missing"),
        (
            "scales",
            lambda scales: scales.to(torch.int32),
            "up_proj.scales in model.safetensors has dtype I32",
        ),
        (
            "scales",
            lambda scales: scales[:1].clone(),
            "up_proj.scales in model.safetensors has shape [1, 96]",
        ),
        ("qweight", lambda words: words.long(), "up_proj.qweight in model.safetensors has dtype I64"),
        ("qweight", lambda words: words[1:].clone(), "has shape [7, 96], config.json wants [8, 96]"),
        ("scales", poke((1, 4), torch.nan), "up_proj.scales has scales that are NaN or infinite"),
        ("scales", poke((1, 4), torch.inf), "up_proj.scales has scales that are NaN or infinite"),
        ("g_idx", poke(7, 2), "up_proj.g_idx has groups outside of 0 to 1"),
        ("g_idx", poke(7, -1), "up_proj.g_idx has groups outside of 0 to 1"),
        ("g_idx", lambda g_idx: g_idx * 0, "up_proj.g_idx has groups of other sizes than 32"),
        ("g_idx", lambda g_idx: g_idx[1:].clone(), "up_proj.g_idx in model.safetensors has shape [63]"),
    ],
)
def test_broken_gptq_tensors_are_named(make_checkpoint, tmp_path, name, how, words):
    form = gptq(4, 32, symmetric=False, act_order=True)
    folder = tmp_path / "model"
    write_quantized(folder, make_checkpoint(), GPTQ, form)
    change(folder, STEM + name, how)
    refused(folder, words)


def test_zero_points_where_config_json_says_there_are_none(make_checkpoint, tmp_path):
    folder = tmp_path / "model"
    write_quantized(folder, make_checkpoint(), GPTQ | {"sym": True}, gptq(4, 32, symmetric=False))
    refused(folder, "zero points that are not in the middle, but config.json says sym")


@pytest.mark.parametrize("format_", ["awq", "pack-quantized", "int-quantized", "inputs"])
def test_zero_points_of_other_formats_where_config_json_says_there_are_none(
    make_checkpoint, tmp_path, format_
):
    symmetric = {"symmetric": True}
    settings, form, words = {
        "awq": (AWQ | {"zero_point": False}, awq(32), "qzeros has zero points that are not in the middle"),
        "pack-quantized": (
            compressed(symmetric),
            packed(compressed()["config_groups"]["group_0"]),
            "weight_zero_point is not zero, but config.json says symmetric",
        ),
        "int-quantized": (
            compressed(symmetric | {"num_bits": 8}, format="int-quantized"),
            functools.partial(int_quantized, group_size=32, zeros=True),
            "weight_zero_point is not zero, but config.json says symmetric",
        ),
        "inputs": (
            compressed(symmetric | {"num_bits": 8}, STATIC, format="int-quantized"),
            with_zero_points_of_inputs,
            "input_zero_point is not zero, but config.json says symmetric",
        ),
    }[format_]
    folder = tmp_path / "model"
    write_quantized(folder, make_checkpoint(), settings, form)
    refused(folder, words)


def with_zero_points_of_inputs(matrix, generator):
    tensors, exact = int_quantized(matrix, generator, 32)
    point = torch.tensor([3], dtype=torch.int8)
    return tensors | {"input_scale": torch.tensor([0.02]), "input_zero_point": point}, exact


def test_groups_that_do_not_divide_the_inputs(make_checkpoint, tmp_path):
    folder = tmp_path / "model"
    write_quantized(folder, make_checkpoint(), GPTQ, gptq(4, 32, symmetric=False))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["group_size"] = 64
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, "groups of 64 don't divide its 96 inputs")


@pytest.mark.parametrize(
    ("name", "how", "words"),
    [
        ("weight_scale", None, "up_proj.weight_scale is missing"),
        ("weight_zero_point", None, "up_proj.weight_zero_point is missing"),
        ("weight_shape", poke(1, 63), "up_proj.weight_shape says [96, 63], the model wants [96, 64]"),
        ("weight_scale", poke((3, 0), torch.nan), "up_proj.weight_scale has scales that are NaN"),
        (
            "weight_packed",
            lambda words: words.long(),
            "up_proj.weight_packed in model.safetensors has dtype I64",
        ),
    ],
)
def test_broken_compressed_tensors_are_named(make_checkpoint, tmp_path, name, how, words):
    settings = compressed()
    folder = tmp_path / "model"
    write_quantized(folder, make_checkpoint(), settings, packed(settings["config_groups"]["group_0"]))
    change(folder, STEM + name, how)
    refused(folder, words)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (None, "up_proj.input_scale is missing"),
        (poke(0, torch.nan), "up_proj.input_scale is nan, not a positive number"),
        (poke(0, -1), "up_proj.input_scale is -1.0, not a positive number"),
        (lambda scale: scale.to(torch.int8), "up_proj.input_scale in model.safetensors has dtype I8"),
        (lambda scale: scale.repeat(2), "up_proj.input_scale in model.safetensors has shape [2]"),
    ],
)
def test_broken_scales_of_inputs_are_named(make_checkpoint, tmp_path, how, words):
    settings = compressed(
        {"num_bits": 8, "strategy": "channel", "symmetric": True}, STATIC, format="int-quantized"
    )
    del settings["config_groups"]["group_0"]["weights"]["group_size"]
    folder = tmp_path / "model"

    def form(matrix, generator):
        tensors, exact = int_quantized(matrix, generator)
        return tensors | {"input_scale": torch.tensor([0.02])}, exact

    write_quantized(folder, make_checkpoint(), settings, form)
    change(folder, f"{STEM}input_scale", how)
    refused(folder, words)


def test_an_awq_matrix_with_odd_outputs(make_checkpoint, tmp_path):
    folder = tmp_path / "model"
    write_quantized(folder, make_checkpoint(), AWQ, awq(32))
    config = json.loads((folder / "config.json").read_text()) | {"intermediate_size": 92}
    (folder / "config.json").write_text(json.dumps(config))
    refused(folder, "AWQ packs multiples of 8 outputs, not 92")


def test_a_quantized_checkpoint_is_not_rounded_once_more(make_checkpoint, tmp_path):
    folder = tmp_path / "model"
    write_quantized(folder, make_checkpoint(), AWQ, awq(32))
    refused(
        folder,
        "the checkpoint is awq (4 bits, groups of 32, zero points) already",
        RequestError,
        quantization="int8",
    )
    refused(folder, "quantization 'gptq': the checkpoint is awq", RequestError, quantization="gptq")
    LLM(folder, dtype="float32", quantization="awq")
