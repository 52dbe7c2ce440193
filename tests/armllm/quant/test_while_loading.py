"""``quantization=...`` rounds the linear layers of every family, and nothing else."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.armllm.models.random_configs import FAMILIES, random_config
from tests.armllm.models.reference import Spy, check_logits, expected_logits, random_prompts, save_reference

from armllm import LLM
from armllm.checkpoint.scheme import SCHEMES, scheme_for
from armllm.cli import main
from armllm.errors import CheckpointError, RequestError
from armllm.layers.linear import QuantizedLinear, SideBySide
from armllm.quant.rounding import from_float
from armllm.smoke.passages import MODEL

MOE = ["MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "OlmoeForCausalLM"]
LEFT = (
    "embed_tokens",
    "embed_in",
    "embeddings",
    "embed_out",
    "wte",
    "wpe",
    "word_embeddings",
    "embed_positions",
    "lm_head",
    "gate",
    "wg",
    "shared_expert_gate",
    "router",
    "layer",
    "embed_tokens_per_layer",
    "proj",
    "in_proj_ba",
    "in_proj_a",
    "in_proj_b",
    "modality_router",
    "prediction_coefs",
    "correction_coefs",
    "gate_up_proj_bias",
    "down_proj_bias",
)


def rounded_twin(folder, config, scheme):
    """transformers' model of the same checkpoint, each matrix replaced by what its integers mean."""
    state = load_file(folder / "model.safetensors")
    for name, tensor in state.items():
        part = name.removesuffix(".weight").rpartition(".")[2]
        if tensor.ndim == 2 and part not in LEFT and "norm" not in name:
            turned = config.get("model_type") == "gpt2"
            matrix = tensor.T if turned else tensor
            matrix = from_float(matrix, scheme_for(scheme, matrix.shape[1])).dequantize()
            state[name] = matrix.T.contiguous() if turned else matrix
        if tensor.ndim == 3 and part not in ("conv", "conv1d"):
            turned = config["model_type"] in ("gpt_oss", "llama4_text")  # experts are [inputs, outputs]
            experts = [one.T if turned else one for one in tensor]
            rounded = [from_float(one, scheme_for(scheme, one.shape[1])).dequantize() for one in experts]
            state[name] = torch.stack([one.T if turned else one for one in rounded])
    twin = folder / "twin"
    twin.mkdir()
    save_file(state, twin / "model.safetensors", metadata={"format": "pt"})
    (twin / "config.json").write_text((folder / "config.json").read_text())
    return transformers.AutoModelForCausalLM.from_pretrained(twin, dtype=torch.float32).eval()


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_family_computes_with_rounded_weights(tmp_path, architecture, scheme):
    config = random_config(architecture, 11)
    save_reference(tmp_path, config, 11)
    twin = rounded_twin(tmp_path, config, scheme)
    llm = Spy(LLM(tmp_path, dtype="float32", skip_tokenizer_init=True, quantization=scheme))
    check_logits(llm, twin, random_prompts((1, 20), 11), 4)


@pytest.mark.usefixtures("exact_products")
@pytest.mark.parametrize("architecture", MOE)
def test_experts_in_one_tensor_are_rounded_one_by_one(tmp_path, architecture):
    config = random_config(architecture, 3) | {"mlp_only_layers": [], "decoder_sparse_step": 1}
    model = save_reference(tmp_path, config, 3)
    separate = Spy(LLM(tmp_path, dtype="float32", skip_tokenizer_init=True, quantization="int8"))
    (tmp_path / "model.safetensors").unlink()
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if config["tie_word_embeddings"]:
        del state["lm_head.weight"]
    save_file(state, tmp_path / "model.safetensors")
    stacked = Spy(LLM(tmp_path, dtype="float32", skip_tokenizer_init=True, quantization="int8"))
    (prompt,) = random_prompts((30,), 3)
    assert torch.equal(separate.generate(prompt, 4)[1], stacked.generate(prompt, 4)[1])


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_product_is_within_half_a_step_of_each_input(scheme, dtype):
    """Inputs are rounded to steps of max|x| / 127: |y - x W^T - b| <= |W| sums times half a step.

    The step is rounded itself (the ends are off by a little more than half), sums are fp32, the result is
    rounded once to its dtype.
    """
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(24, 256, generator=generator)
    bias = torch.randn(24, generator=generator).to(dtype)
    weight = from_float(matrix, scheme_for(scheme, 256))
    linear = QuantizedLinear(weight, bias)
    exact_weight = weight.dequantize().double()
    for rows in (1, 2, 7):
        x = torch.randn(rows, 256, generator=generator).to(dtype)
        exact = x.double() @ exact_weight.T + bias.double()
        step = x.double().abs().amax(1, keepdim=True) / 127
        rounding = torch.finfo(dtype).eps * exact.abs() + 1e-5 * exact_weight.abs().sum(1) * x.abs().amax()
        bound = 0.5001 * step * exact_weight.abs().sum(1) + rounding
        assert ((linear(x).double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("scheme", ["int8", "int8-g32", "int4-g32", "int4-channelwise"])
def test_a_row_does_not_depend_on_the_rows_beside_it(scheme):
    """Or tokens would depend on what else is in the batch."""
    generator = torch.Generator().manual_seed(1)
    linear = QuantizedLinear(from_float(torch.randn(40, 384, generator=generator), scheme_for(scheme, 384)))
    x = torch.randn(17, 384, generator=generator)
    together = linear(x)
    for size in (1, 2, 3, 5, 8):
        alone = torch.cat([linear(rows) for rows in x.split(size)])
        assert torch.equal(alone, together)


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_logits_with_rounded_inputs_are_as_near_as_their_roundings(make_checkpoint, tmp_path, scheme):
    """Four products per layer round their inputs by up to half a step of max|x| / 127.

    Uniform errors, step / sqrt(12) each; the greatest of 128 to 256 normal inputs is below 4.5 times their
    root mean square; errors of 8 products add up like noise, which weights of norm 2 double per branch.
    """
    config = {"hidden_size": 128, "intermediate_size": 256}
    checkpoint = make_checkpoint(**config)
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model.safetensors", "config.json"):
        (folder / name).write_bytes((checkpoint.folder / name).read_bytes())
    twin = rounded_twin(folder, config, scheme)
    llm = Spy(LLM(checkpoint.folder, dtype="float32", skip_tokenizer_init=True, quantization=scheme))
    for prompt in random_prompts((1, 36), 4):
        tokens, logits = llm.generate(prompt, 4)
        expected = expected_logits(twin, prompt, tokens)
        bound = 4.5 / 127 / 12**0.5 * 2 * 8**0.5
        assert (logits - expected).norm() / expected.norm() < bound


def test_head_and_embeddings_are_left_alone(make_checkpoint):
    llm = LLM(make_checkpoint().folder, dtype="float32", quantization="int8")
    model = llm.llm_engine.runner.model
    assert not isinstance(model.lm_head, QuantizedLinear)
    assert isinstance(model.layers[0].self_attn.qkv_proj, QuantizedLinear)
    assert isinstance(model.layers[1].mlp.down_proj, QuantizedLinear)


def test_parts_of_several_forms_stand_side_by_side():
    first, second = (lambda x: x + 1), (lambda x: x[:, :1])
    x = torch.arange(6.0).view(2, 3)
    assert torch.equal(SideBySide([first, second])(x), torch.cat([x + 1, x[:, :1]], 1))


def test_the_log_says_what_int4_came_to(make_checkpoint, caplog):
    """Groups of 128 for query, key, value, output, gate and up; 96 inputs of down take groups of 32."""
    with caplog.at_level("INFO"):
        LLM(make_checkpoint(hidden_size=128).folder, dtype="float32", quantization="int4")
    assert "rounded to int4 while loading: 12 matrices int4-g128, 2 matrices int4-g32" in caplog.text


def test_memory_is_counted_as_packed(make_checkpoint):
    """What a model takes decides whether it is loaded: not the size of its file."""
    config = {"hidden_size": 256, "intermediate_size": 1024}
    folder = make_checkpoint(**config).folder
    whole, packed = (
        LLM(folder, dtype="float32", quantization=scheme).llm_engine.runner.load_report.weight_bytes
        for scheme in (None, "int4-g128")
    )
    matrices = 2 * (256 * 256 * 3 + 3 * 256 * 1024)  # q and o, k and v of half the size, gate, up, down
    saved = matrices * 4 - (matrices // 2 + matrices // 128 * 4)
    assert whole - packed == saved


@pytest.mark.slow
def test_loading_peaks_at_the_packed_size_and_a_tensor(large_checkpoint):
    """One more copy of them in int8 would take more than this allows."""
    program = (
        "import resource, sys; from armllm import LLM\n"
        "anonymous = lambda: next(int(l.split()[1]) for l in open('/proc/self/status') if 'RssAnon' in l)\n"
        "from armllm.quant.integers import IntegerFormat\n"
        "peak = [0]; real = IntegerFormat.load\n"
        "def spy(*a):\n"
        "    result = real(*a); peak[0] = max(peak[0], anonymous()); return result\n"
        "IntegerFormat.load = spy\n"
        "before = anonymous()\n"
        "LLM(sys.argv[1], dtype='bfloat16', quantization='int4', skip_tokenizer_init=True,"
        " num_gpu_blocks_override=8)\n"
        "print(peak[0] - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(large_checkpoint)], capture_output=True, text=True, check=True
    )
    elements = 4 * (4 * 1024 * 1024 + 3 * 4096 * 1024)
    packed = elements // 2 + elements // 128 * 4
    largest = 2 * 4096 * 1024 * 2  # gate and up in bf16
    rounding = 5 * (1 << 18) * 4  # rows that are rounded at a time, in fp32 and with their intermediates
    assert int(done.stdout) * 1024 < packed + largest + rounding


@pytest.mark.parametrize(
    ("scheme", "error", "words"),
    [
        ("int3", RequestError, "quantization 'int3' is not supported, only int8, int8-g32, int8-g64"),
        ("int4-g128", RequestError, "model.layers.0.mlp.down_proj: groups of 128 don't divide its 96 inputs"),
        ("gptq", RequestError, "quantization 'gptq': the checkpoint is not quantized"),
    ],
)
def test_what_cannot_be_rounded_is_refused(make_checkpoint, scheme, error, words):
    with pytest.raises(error) as caught:
        LLM(make_checkpoint(hidden_size=128).folder, dtype="float32", quantization=scheme)
    assert words in str(caught.value)


def test_a_weight_that_is_no_number_is_named(make_checkpoint, tmp_path):
    source = make_checkpoint()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((source.folder / name).read_bytes())
    state = load_file(source.folder / "model.safetensors")
    state["model.layers.1.self_attn.v_proj.weight"][3, 5] = torch.nan
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.v_proj\.weight can't be rounded"):
        LLM(tmp_path, dtype="float32", quantization="int8")


def test_the_commands_take_the_option(capsys):
    options = ["--quantization", "int4-g64", "--max-tokens", "3", "--temperature", "0", "--dtype", "float32"]
    assert main(["run", str(MODEL), "The", *options]) == 0
    assert main(["run", str(MODEL), "The", "--quantization", "fp6"]) == 2
    assert "quantization 'fp6' is not supported, only int8" in capsys.readouterr().err
