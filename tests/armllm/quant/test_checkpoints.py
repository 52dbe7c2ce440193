"""Quantized checkpoints mean what transformers computes with the same weights dequantized.

With exact products, logits differ by the order of fp32 sums alone: the bound is that of unquantized models.
"""

from __future__ import annotations

import copy
import functools
import json
import re

import pytest
import torch
from compressed_tensors.compressors.pack_quantized import unpack_from_int32
from safetensors.torch import load_file, save_file
from tests.armllm.models.reference import Spy, expected_logits, random_prompts
from tests.armllm.quant.forms import awq, gptq, int_quantized, packed, write_quantized

from armllm import LLM
from armllm.engine.inspection import inspect_checkpoint
from armllm.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("exact_products")

SIZES = {"hidden_size": 128, "intermediate_size": 256}
TOKENS = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}


def weights(bits, group_size=None, *, symmetric=True):
    strategy = "group" if group_size else "channel"
    return {
        "num_bits": bits,
        "type": "int",
        "strategy": strategy,
        "group_size": group_size,
        "symmetric": symmetric,
    }


def compressed(form, *, inputs=None, ignore=("lm_head",), **arguments):
    group = {"targets": ["Linear"], "weights": weights(**arguments), "input_activations": inputs}
    settings = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": list(ignore),
    }
    return settings, group


def agrees(folder, model, *, atol=1e-4):
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True))
    for prompt in random_prompts((1, 36), 4):
        tokens, logits = llm.generate(prompt, 6)
        torch.testing.assert_close(logits, expected_logits(model, prompt, tokens), rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("arguments", "inputs"),
    [
        ({"bits": 4, "group_size": 32}, None),
        ({"bits": 4, "group_size": 64}, TOKENS),
        ({"bits": 4, "group_size": 128}, None),
        ({"bits": 4, "group_size": 32, "symmetric": False}, None),
        ({"bits": 4, "group_size": 128, "symmetric": False}, TOKENS),
        ({"bits": 4}, TOKENS),
        ({"bits": 4, "symmetric": False}, None),
        ({"bits": 8}, None),
        ({"bits": 8, "group_size": 32}, TOKENS),
        ({"bits": 8, "group_size": 128, "symmetric": False}, None),
    ],
    ids=str,
)
def test_pack_quantized(make_checkpoint, tmp_path, arguments, inputs):
    settings, group = compressed("pack-quantized", inputs=inputs, **arguments)
    folder = tmp_path / "model"
    agrees(folder, write_quantized(folder, make_checkpoint(**SIZES), settings, packed(group)))


def test_zero_points_of_eight_rows_are_one_word(make_checkpoint, tmp_path):
    """Catches the strides of a matrix of one column, of which torch makes no view of bytes."""
    settings, group = compressed("pack-quantized", bits=4, group_size=32, symmetric=False)
    folder = tmp_path / "model"
    source = make_checkpoint(num_attention_heads=4, num_key_value_heads=1, head_dim=8)
    agrees(folder, write_quantized(folder, source, settings, packed(group)))


def test_experts_in_one_tensor_stay_in_floating_point(make_checkpoint, tmp_path):
    """Catches their rounding: no Linear in transformers 5, so that nobody quantizes or ignores them."""
    settings, group = compressed("pack-quantized", bits=4, group_size=32)
    moe = {"num_local_experts": 3, "num_experts_per_tok": 2}
    source = make_checkpoint(architectures=["MixtralForCausalLM"], model_type="mixtral", **moe)
    folder = tmp_path / "model"
    agrees(folder, write_quantized(folder, source, settings, packed(group)))


def test_zero_points_of_old_versions_are_not_packed(make_checkpoint, tmp_path):
    settings, group = compressed("pack-quantized", bits=4, group_size=32, symmetric=False)

    def form(matrix, generator):
        tensors, exact = packed(group)(matrix, generator)
        words = tensors["weight_zero_point"]
        tensors["weight_zero_point"] = unpack_from_int32(
            words, 4, tensors["weight_scale"].shape, packed_dim=0
        )
        return tensors, exact

    folder = tmp_path / "model"
    agrees(folder, write_quantized(folder, make_checkpoint(), settings, form))


def test_columns_in_the_order_of_their_groups(make_checkpoint, tmp_path):
    """actorder "group", which compressed-tensors itself does not know any more."""
    settings, group = compressed("pack-quantized", bits=4, group_size=32)

    def form(matrix, generator):
        tensors, _ = packed(group)(matrix, generator)
        scales, inputs = tensors["weight_scale"], matrix.shape[1]
        g_idx = torch.arange(inputs)[torch.randperm(inputs, generator=generator)] // 32
        q = unpack_from_int32(tensors["weight_packed"], 4, matrix.shape)
        return tensors | {"weight_g_idx": g_idx.to(torch.int32)}, q * scales.float()[:, g_idx]

    folder = tmp_path / "model"
    source = make_checkpoint()
    model = write_quantized(folder, source, settings, form)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    (folder / "config.json").write_text(json.dumps(config))
    agrees(folder, model)


@pytest.mark.parametrize("arguments", [{"bits": 4, "group_size": 32}, {"bits": 8}], ids=str)
def test_a_strategy_that_is_left_out_follows_from_the_group_size(make_checkpoint, tmp_path, arguments):
    settings, group = compressed("pack-quantized", **arguments)
    stated = copy.deepcopy(group)
    del group["weights"]["strategy"]
    group["weights"]["group_size"] = arguments.get("group_size", -1)
    folder = tmp_path / "model"
    agrees(folder, write_quantized(folder, make_checkpoint(), settings, packed(stated)))


def test_int_quantized(make_checkpoint, tmp_path):
    settings, _ = compressed("int-quantized", inputs=TOKENS, bits=8)
    folder = tmp_path / "model"
    agrees(folder, write_quantized(folder, make_checkpoint(), settings, int_quantized))
    assert inspect_checkpoint(str(folder))["quantization"] == (
        "compressed-tensors (W8A8 int-quantized, channelwise)"
    )


def test_int_quantized_with_zero_points(make_checkpoint, tmp_path):
    settings, _ = compressed("int-quantized", inputs=TOKENS, bits=8, group_size=32, symmetric=False)
    form = functools.partial(int_quantized, group_size=32, zeros=True)
    folder = tmp_path / "model"
    agrees(folder, write_quantized(folder, make_checkpoint(**SIZES), settings, form))


def test_one_scale_for_a_matrix_holds_for_all_rows(make_checkpoint, tmp_path):
    def form(matrix, generator):
        tensors, _ = int_quantized(matrix, generator)
        scale = tensors["weight_scale"][:1, 0].clone()
        return tensors | {"weight_scale": scale}, tensors["weight"] * scale.float()

    settings, group = compressed("int-quantized", inputs=TOKENS, bits=8)
    group["weights"]["strategy"] = "tensor"
    folder = tmp_path / "model"
    agrees(folder, write_quantized(folder, make_checkpoint(), settings, form))


@pytest.mark.parametrize(
    "ignored",
    [
        "re:.*self_attn.k_proj",  # in the middle of a fused product
        "model.layers.1.mlp.down_proj",
        "re:.*layers\\.0\\..*",
    ],
)
def test_ignored_layers_stay_floating_point(make_checkpoint, tmp_path, ignored):
    def chosen(name):
        stem = name.removesuffix(".weight")
        found = re.match(ignored[3:], stem) if ignored.startswith("re:") else stem == ignored
        return name.endswith("_proj.weight") and not found

    settings, group = compressed("pack-quantized", bits=4, group_size=32, ignore=("lm_head", ignored))
    folder = tmp_path / "model"
    model = write_quantized(folder, make_checkpoint(), settings, packed(group), chosen)
    agrees(folder, model)


def test_groups_name_their_layers(make_checkpoint, tmp_path):
    """The most exact target wins, whatever the order of the groups."""
    settings, wide = compressed("pack-quantized", bits=4, group_size=32)
    _, narrow = compressed("pack-quantized", bits=4)
    narrow["targets"] = ["re:.*v_proj", "model.layers.0.mlp.up_proj"]
    settings["config_groups"] = {"group_0": wide, "group_1": narrow}

    folder = tmp_path / "model"
    source = make_checkpoint()
    first = write_quantized(folder, source, settings, packed(wide), lambda name: "_proj" in name)

    def named(name):
        return "v_proj" in name or name == "model.layers.0.mlp.up_proj.weight"

    second = write_quantized(tmp_path / "other", source, settings, packed(narrow), named)
    state, other = (load_file(one / "model.safetensors") for one in (folder, tmp_path / "other"))
    stems = {name.removesuffix("weight") for name, _ in source.model.named_parameters() if named(name)}
    state |= {name: value for name, value in other.items() if name.rpartition("weight")[0] in stems}
    save_file(state, folder / "model.safetensors")
    for (name, parameter), (_, exact) in zip(
        first.named_parameters(), second.named_parameters(), strict=True
    ):
        if named(name):
            parameter.data = exact.data
    agrees(folder, first)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"group_size": 32}, {}),
        ({"group_size": 128}, {"group_size": 128}),
        ({"group_size": 0}, {"group_size": -1}),
        ({"group_size": 32, "symmetric": False}, {"sym": False}),
        ({"group_size": 32, "act_order": True}, {"desc_act": True}),
        (
            {"group_size": 64, "act_order": True, "symmetric": False},
            {"group_size": 64, "desc_act": True, "sym": False},
        ),
        ({"group_size": 0, "g_idx": False}, {"group_size": -1}),
    ],
    ids=str,
)
def test_gptq_of_4_bits(make_checkpoint, tmp_path, version, options, settings):
    form = gptq(4, version=version, **options)
    checkpoint_format = {1: "gptq", 2: "gptq_v2"}[version]
    folder = tmp_path / "model"
    settings = GPTQ | settings | {"checkpoint_format": checkpoint_format}
    agrees(folder, write_quantized(folder, make_checkpoint(**SIZES), settings, form))


def test_gptq_large_groups_are_cut_into_smaller_ones(make_checkpoint, tmp_path):
    folder = tmp_path / "model"
    sizes = {"hidden_size": 512, "intermediate_size": 512}
    model = write_quantized(
        folder,
        make_checkpoint(**sizes),
        GPTQ | {"group_size": 256, "sym": False},
        gptq(4, 256, symmetric=False),
    )
    agrees(folder, model, atol=3e-4)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({"group_size": 0}, {"group_size": -1}),
        ({"group_size": 32}, {}),
        ({"group_size": 32, "symmetric": False}, {"sym": False}),
        ({"group_size": 64, "act_order": True}, {"group_size": 64, "desc_act": True}),
        (
            {"group_size": 128, "symmetric": False, "act_order": True, "version": 2},
            {"group_size": 128, "sym": False, "desc_act": True, "checkpoint_format": "gptq_v2"},
        ),
    ],
    ids=str,
)
def test_gptq_of_8_bits(make_checkpoint, tmp_path, options, settings):
    folder = tmp_path / "model"
    settings = GPTQ | {"bits": 8} | settings
    model = write_quantized(folder, make_checkpoint(**SIZES), settings, gptq(8, **options))
    agrees(folder, model)


def test_gptq_settings_of_single_layers(make_checkpoint, tmp_path):
    """GPTQModel's "dynamic": the first pattern that matches, from a name's beginning, holds."""
    rules = {
        r"-:model\.layers\.1\.mlp\.down": {},
        r"+:.*\.mlp\.down": {"bits": 8, "group_size": 128, "sym": False},
        r".*\.(mlp|self_attn)\.[kvd]": {"group_size": -1},
    }
    source = make_checkpoint(**SIZES)
    few = (source.model.config.num_key_value_heads * source.model.config.head_dim, 128)
    forms = {few: gptq(4, 0), (128, 256): gptq(8, 128, symmetric=False)}

    def form(matrix, generator):
        return forms.get(tuple(matrix.shape), gptq(4, 32))(matrix, generator)

    def chosen(name):
        return name.endswith("_proj.weight") and "layers.1.mlp.down" not in name

    folder = tmp_path / "model"
    agrees(folder, write_quantized(folder, source, GPTQ | {"dynamic": rules}, form, chosen))
    assert (
        inspect_checkpoint(str(folder))["quantization"]
        == "gptq (4 bits, groups of 32, single layers otherwise)"
    )


def test_gptq_settings_in_a_file_of_their_own(make_checkpoint, tmp_path):
    folder = tmp_path / "model"
    model = write_quantized(folder, make_checkpoint(), {}, gptq(4, 32))
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 32, "desc_act": False}))
    agrees(folder, model)


def test_biases_of_zeros_are_passed_over_and_others_refused(make_checkpoint, tmp_path):
    """AutoGPTQ once gave every layer a bias."""
    folder = tmp_path / "model"
    model = write_quantized(folder, make_checkpoint(), GPTQ, gptq(4, 32))
    path = folder / "model.safetensors"
    state = load_file(path)
    state["model.layers.0.self_attn.k_proj.bias"] = torch.zeros(32, dtype=torch.float16)
    path.unlink()
    save_file(state, path)
    agrees(folder, model)
    state["model.layers.0.self_attn.k_proj.bias"][3] = 1
    path.unlink()
    save_file(state, path)
    with pytest.raises(CheckpointError, match=r"k_proj\.bias is not zero"):
        LLM(folder, dtype="float32")


AWQ = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}


@pytest.mark.parametrize("group_size", [32, 64, 128, 0])
def test_awq(make_checkpoint, tmp_path, group_size):
    folder = tmp_path / "model"
    settings = AWQ | {"group_size": group_size or -1}
    agrees(folder, write_quantized(folder, make_checkpoint(**SIZES), settings, awq(group_size)))


def test_awq_settings_in_a_file_of_their_own(make_checkpoint, tmp_path):
    """As AutoAWQ first wrote them; there, and in config.json, the group size had another name."""
    folder = tmp_path / "model"
    model = write_quantized(folder, make_checkpoint(), {}, awq(32))
    settings = {"w_bit": 4, "q_group_size": 32, "version": "GEMM", "zero_point": True}
    (folder / "quant_config.json").write_text(json.dumps(settings))
    agrees(folder, model)


def test_biases_are_added(make_checkpoint, tmp_path):
    folder = tmp_path / "model"
    source = make_checkpoint(attention_bias=True, mlp_bias=True)
    agrees(folder, write_quantized(folder, source, GPTQ | {"desc_act": True}, gptq(4, 32, act_order=True)))
