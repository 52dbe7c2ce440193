"""FP8, NVFP4 and MXFP4 mean what the compressed-tensors package and the formats' papers say, exactly."""

from __future__ import annotations

import json

import pytest
import torch
from compressed_tensors.compressors import (
    MXFP4PackedCompressor,
    MXFP8QuantizationCompressor,
    NVFP4PackedCompressor,
)
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationScheme
from safetensors.torch import load_file, save_file
from tests.armllm.models.reference import Spy, check_logits, random_prompts
from tests.armllm.quant.forms import is_linear, write_quantized

from armllm import LLM, kernels
from armllm.engine.inspection import inspect_checkpoint
from armllm.errors import CheckpointError
from armllm.layers import cpu

SIZES = {"hidden_size": 64, "intermediate_size": 96}
BLOCK = (32, 48)  # divides neither all rows nor all inputs
MX_SCALE = "model.layers.1.mlp.down_proj.weight_scale"
SCALE = f"{MX_SCALE}_inv"
VALUES = MX_SCALE.removesuffix("_scale")


def fp8(shape_of, ending, dtype=torch.float32, kind=torch.float8_e4m3fn):
    """Scales of the shape that ``shape_of(rows, inputs)`` says, each shared by its part of the matrix."""

    def form(matrix, generator):
        rows, inputs = matrix.shape
        values = (matrix * 100).to(kind)
        shape = shape_of(rows, inputs)
        scales = (0.005 + 0.01 * torch.rand(shape, generator=generator)).to(dtype)
        if len(shape) == 2 and shape[1] > 1 and shape[0] != rows:
            down, across = BLOCK
        else:
            flat = scales.reshape(-1, shape[1] if len(shape) == 2 else 1)
            down, across = rows // len(flat), inputs // flat.shape[1]
        table = scales.float().reshape(-1, shape[1] if len(shape) == 2 else 1)
        meant = values.float()
        for row in range(rows):
            for column in range(inputs):
                meant[row, column] *= table[row // down, column // across]
        extra = {"input_scale": torch.ones(1)} if ending == "weight_scale" else {}
        return {"weight": values, ending: scales, **extra}, meant

    return form


def blocks(rows, inputs):
    return -(-rows // BLOCK[0]), -(-inputs // BLOCK[1])


def compressed(form, **weights):
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "symmetric": True, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


PLAIN = {"quant_method": "fp8", "activation_scheme": "dynamic"}
CASES = {
    "one scale": (compressed("float-quantized", strategy="tensor"), fp8(lambda *_: (1,), "weight_scale")),
    "a number": (PLAIN, fp8(lambda *_: (), "weight_scale")),
    "a matrix, as transformers saves Gemma 4": (PLAIN, fp8(lambda *_: (1, 1), "scale")),
    "per row": (
        compressed("float-quantized", strategy="channel"),
        fp8(lambda rows, _: (rows, 1), "weight_scale", torch.bfloat16),
    ),
    "rows in a vector, E5M2": (
        PLAIN,
        fp8(lambda rows, _: (rows,), "weight_scale", kind=torch.float8_e5m2),
    ),
    "fbgemm_fp8": ({"quant_method": "fbgemm_fp8"}, fp8(lambda rows, _: (rows, 1), "weight_scale")),
    "ModelOpt": (
        {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
        fp8(lambda *_: (), "weight_scale"),
    ),
    "groups": (
        compressed("float-quantized", strategy="group", group_size=32),
        fp8(lambda rows, inputs: (rows, inputs // 32), "weight_scale"),
    ),
    "blocks": (PLAIN | {"weight_block_size": list(BLOCK)}, fp8(blocks, "weight_scale_inv")),
    "blocks of compressed-tensors": (
        compressed("float-quantized", strategy="block", block_structure=list(BLOCK)),
        fp8(blocks, "weight_scale"),
    ),
}


def by_package(compressor, group, scale_of, overall=None):
    """A form that the package itself packs and unpacks."""
    scheme = QuantizationScheme(targets=["Linear"], weights=group)

    def form(matrix, generator):
        shape = (matrix.shape[0], matrix.shape[1] // group["group_size"])
        state = {"weight": matrix, "weight_scale": scale_of(shape, generator)}
        if overall is not None:
            state["weight_global_scale"] = torch.tensor([overall])
        packed = compressor.compress(state, scheme)
        if overall is None:
            meant = compressor.decompress(packed, scheme)["weight"].float()
        else:  # the package rounds to bf16
            scale = (packed["weight_scale"].float() / overall).repeat_interleave(group["group_size"], 1)
            meant = unpack_fp4_from_uint8(packed["weight_packed"], *matrix.shape).float() * scale
        return {name: tensor.detach() for name, tensor in packed.items()}, meant

    return form


FP4 = {"num_bits": 4, "type": "float", "symmetric": True}
NV = {**FP4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
MX = {**FP4, "strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
CASES["NVFP4"] = (
    compressed("nvfp4-pack-quantized", **NV),
    by_package(
        NVFP4PackedCompressor,
        NV,
        lambda shape, g: (20 * (0.5 + torch.rand(shape, generator=g))).to(torch.float8_e4m3fn).float(),
        overall=300.0,
    ),
)
CASES["MXFP8"] = (
    compressed("mxfp8-quantized", **MX | {"num_bits": 8}),
    by_package(
        MXFP8QuantizationCompressor,
        MX | {"num_bits": 8},
        lambda shape, g: torch.randint(-9, -5, shape, generator=g).float().exp2(),
    ),
)


def by_modelopt(matrix, generator):
    """NVFP4 under the names of ModelOpt, which multiplies by the scale of a tensor."""
    packed, _ = CASES["NVFP4"][1](matrix, generator)
    values, scales, factor = packed["weight_packed"], packed["weight_scale"], torch.tensor(1 / 300)
    meant = unpack_fp4_from_uint8(values, *matrix.shape).float()
    meant *= (scales.float() * factor).repeat_interleave(16, 1)
    inputs = {"input_scale": torch.tensor(1.0)}
    return {"weight": values, "weight_scale": scales, "weight_scale_2": factor, **inputs}, meant


MODELOPT = {"quant_algo": "NVFP4", "group_size": 16}
CASES["NVFP4 of ModelOpt"] = ({"quant_method": "modelopt", **MODELOPT}, by_modelopt)
MXFP4 = (
    compressed("mxfp4-pack-quantized", **MX),
    by_package(
        MXFP4PackedCompressor,
        MX,
        lambda shape, g: torch.randint(-6, -2, shape, generator=g).float().exp2(),
    ),
)


DECODED = ("rows in a vector, E5M2", "NVFP4", "NVFP4 of ModelOpt")


def multiplied(product, inputs):
    """The matrix of a product, exactly."""
    return product(torch.eye(inputs)).t()


@pytest.mark.usefixtures("weights_as_stored")
@pytest.mark.parametrize("name", CASES)
def test_values_and_scales_are_read_exactly(make_checkpoint, tmp_path, name, monkeypatch):
    monkeypatch.setattr(cpu, "wants_fp8", lambda _dtype: True)
    settings, form = CASES[name]
    folder = tmp_path / "model"
    model = write_quantized(folder, make_checkpoint(**SIZES), settings, form)
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True))
    taken = llm.llm.llm_engine.runner.model.layers[0].mlp.down_proj
    assert isinstance(taken.weight, kernels.Fp8Weight) is (name not in DECODED)
    assert torch.equal(multiplied(taken, 96), model.model.layers[0].mlp.down_proj.weight)
    check_logits(llm, model, random_prompts((1, 30), 4), 4)
    words = "decoded while loading" if "FP4" in name else "as stored"
    assert words in inspect_checkpoint(str(folder))["quantization"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["per row", "blocks"])
def test_a_model_of_8_bits_has_the_bits_of_the_decoded_one_in_less_memory(
    make_checkpoint, tmp_path, monkeypatch, name, dtype
):
    monkeypatch.setattr(cpu, "wants_panels", lambda _dtype: True)
    settings, form = CASES[name]
    write_quantized(tmp_path / "model", make_checkpoint(**SIZES), settings, form)
    (prompt,) = random_prompts((30,), 4)
    found, sizes = [], []
    for is_kept in (True, False):
        monkeypatch.setattr(cpu, "wants_fp8", lambda _dtype, is_kept=is_kept: is_kept)
        llm = Spy(LLM(tmp_path / "model", dtype=dtype, skip_tokenizer_init=True))
        found.append(llm.generate(prompt, 5)[1])
        product = llm.llm.llm_engine.runner.model.layers[0].mlp.down_proj
        sizes.append((llm.llm.llm_engine.stats().load.weight_bytes, product.weight.nbytes))
    assert torch.equal(*found)
    assert sizes[0][0] < sizes[1][0]
    assert sizes[0][1] < 0.6 * sizes[1][1]


def test_the_own_file_of_modelopt_is_read(make_checkpoint, tmp_path):
    """Catches its checkpoints without a word in config.json, taken for plain ones."""
    folder = tmp_path / "model"
    write_quantized(folder, make_checkpoint(**SIZES), *CASES["NVFP4 of ModelOpt"])
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    own = folder / "hf_quant_config.json"
    own.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": MODELOPT}))
    assert inspect_checkpoint(str(folder))["quantization"] == "modelopt (NVFP4), decoded while loading"
    LLM(folder, dtype="float32", skip_tokenizer_init=True)


@pytest.mark.parametrize(
    ("case", "cache"),
    [
        ("NVFP4 of ModelOpt", ("kv_cache_quant_algo", "FP8", "k_proj.k_scale")),
        ("per row", ("kv_cache_scheme", {"num_bits": 8, "type": "float"}, "k_scale")),
        ("a number", ("kv_cache_scheme", "static", "k_proj.output_scale")),
    ],
)
def test_a_cache_that_the_checkpoint_rounds_is_stored_as_the_user_says(
    make_checkpoint, tmp_path, caplog, case, cache
):
    """Catches the published FP8 models that have scales for their cache, refused or read wrongly."""
    source, settings, (key, value, name) = make_checkpoint(**SIZES), CASES[case][0], cache
    (prompt,) = random_prompts((30,), 4)
    found = []
    for number, extra in enumerate(({}, {key: value})):
        folder = tmp_path / str(number)
        write_quantized(folder, source, {**settings, **extra}, CASES[case][1])
        if extra:
            scales = {f"model.layers.{layer}.self_attn.{name}": torch.tensor(0.5) for layer in range(2)}
            file = folder / "model.safetensors"
            save_file(load_file(file) | scales, file, metadata={"format": "pt"})
        found.append(Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True)).generate(prompt, 4)[1])
    assert torch.equal(*found)
    assert caplog.text.count(f"{key} is not used: see --kv-cache-dtype") == 1


def test_parts_with_and_without_fp8_are_decoded(make_checkpoint, tmp_path):
    """A key that the checkpoint left in floating point."""
    settings, form = CASES["per row"]
    source, folder = make_checkpoint(**SIZES), tmp_path / "model"
    model = write_quantized(
        folder, source, settings, form, lambda name: is_linear(name) and "k_proj" not in name
    )
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((30,), 4), 4)


@pytest.mark.usefixtures("exact_products")
def test_products_take_mxfp4_as_it_is_stored(make_checkpoint, tmp_path):
    settings, form = MXFP4
    folder = tmp_path / "model"
    model = write_quantized(folder, make_checkpoint(**SIZES), settings, form)
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True))
    taken = llm.llm.llm_engine.runner.model.layers[0].mlp.down_proj.weight
    assert taken.values == "e2m1"
    assert torch.equal(taken.matrix, model.model.layers[0].mlp.down_proj.weight)
    check_logits(llm, model, random_prompts((1, 30), 4), 4)
    assert inspect_checkpoint(str(folder))["quantization"] == "compressed-tensors (mxfp4-pack-quantized)"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t[MX_SCALE].fill_(255), "which stands for NaN"),
        (lambda t: t.pop(MX_SCALE), "down_proj.weight_scale is missing"),
        (lambda t: t.update({MX_SCALE: torch.ones(64, 2, dtype=torch.uint8)}), "config.json wants [64, 3]"),
    ],
)
def test_damaged_scales_of_mxfp4_are_named(make_checkpoint, tmp_path, change, words):
    settings, form = MXFP4
    write_quantized(tmp_path / "model", make_checkpoint(**SIZES), settings, form)
    refused(tmp_path / "model", change, words)


def test_a_packed_embedding_is_named(make_checkpoint, tmp_path):
    """Catches "missing" of a tensor that a target such as re:.* let the quantizer pack."""
    settings, form = MXFP4
    folder, source = tmp_path / "model", make_checkpoint(**SIZES)
    write_quantized(folder, source, settings, form, lambda name: is_linear(name) or "embed_tokens" in name)
    refused(folder, lambda _: None, "model.embed_tokens.weight is there only packed")


def test_they_can_be_rounded_to_integers(make_checkpoint, tmp_path):
    settings, form = CASES["blocks"]
    folder = tmp_path / "model"
    write_quantized(folder, make_checkpoint(**SIZES), settings, form)
    llm = LLM(folder, dtype="float32", skip_tokenizer_init=True, quantization="int8")
    assert llm.llm_engine.runner.model.layers[0].mlp.down_proj.weight.bits == 8


def write_stacked(folder, source):
    """Experts in FP8, in one tensor as their scales are. Returns the model."""

    def form(stack, generator):
        parts = [fp8(blocks, "s")(matrix, generator) for matrix in stack]
        tensors = {"": torch.stack([part["weight"] for part, _ in parts])}
        tensors["_scale_inv"] = torch.stack([part["s"] for part, _ in parts])
        tensors["_activation_scale"] = torch.ones(len(stack))
        return tensors, torch.stack([meant for _, meant in parts])

    settings = PLAIN | {"weight_block_size": list(BLOCK)}
    return write_quantized(folder, source, settings, form, lambda name: ".experts." in name)


MOE = SIZES | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "intermediate_size": 80,  # a block of scales reaches over gates and ups
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
}


@pytest.mark.parametrize("apart", [False, True])
def test_experts_with_scales_in_one_tensor_are_read(tmp_path, make_checkpoint, monkeypatch, apart):
    """As transformers holds them, and as it saves them: matrices apart, unused scales beside fp32."""
    monkeypatch.setattr(cpu, "wants_fp8", lambda _dtype: apart)
    folder = tmp_path / "model"
    model = write_stacked(folder, make_checkpoint(**MOE))
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if apart and name.endswith("_proj") and ".experts." in name]:
        scope, kind = name.rsplit(".", 1)
        for expert, matrix in enumerate(tensors.pop(name)):
            parts = dict(zip(("w1", "w3"), matrix.chunk(2), strict=True)) if "up" in kind else {"w2": matrix}
            for part, own in parts.items():
                tensors[f"{scope}.{expert}.{part}.weight"] = own.contiguous()
    tensors["model.layers.0.self_attn.q_proj.weight_scale_inv"] = torch.full((2, 2), float("nan"))
    save_file(tensors, folder / "model.safetensors")
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((30,), 4), 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop(SCALE), f"{SCALE.removesuffix('_inv')} is missing, the scale of"),
        (lambda t: t[SCALE].fill_(float("nan")), "has scales that are NaN or infinite"),
        (lambda t: t[SCALE].fill_(-200), "scales beyond 127: add --quantization int8, which reads them"),
        (lambda t: t[VALUES].view(torch.uint8).fill_(255), f"{VALUES} has values that are NaN"),
        (lambda t: t.update({SCALE: torch.ones(5, 5)}), "has shape [5, 5], which does not fit [64, 96]"),
        (lambda t: t.update({SCALE: torch.ones(2, 2).int()}), "has dtype I32, not one of F32"),
    ],
)
def test_damaged_values_and_scales_are_named(make_checkpoint, tmp_path, monkeypatch, change, words):
    monkeypatch.setattr(cpu, "wants_fp8", lambda _dtype: True)
    settings, form = CASES["blocks"]
    write_quantized(tmp_path / "model", make_checkpoint(**SIZES), settings, form)
    refused(tmp_path / "model", change, words)


def refused(folder, change, words):
    """The weights, changed, are an error that says so."""
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        LLM(folder, dtype="float32", skip_tokenizer_init=True)
    assert words in str(caught.value)
