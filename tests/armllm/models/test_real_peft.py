"""Adapters that PEFT itself makes and saves: logits and tokens are those of its merged model."""

from __future__ import annotations

import json

import pytest
import torch
from tests.armllm.environments import python_with, run
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import Spy, random_prompts, save_reference
from tests.armllm.quant.conftest import exact_products  # noqa: F401
from tests.armllm.quant.forms import GROUPED, fp8_blocks, write_quantized

from armllm import LLM, LoRARequest
from armllm.errors import CheckpointError

pytestmark = [pytest.mark.slow, pytest.mark.network]
PEFT = "peft==0.21.2"
SEED = 300
NUM_TOKENS = 6
# Of each folder with model/ and lora.json: adapter/, as PEFT saves it, and what its merged model generates.
PROGRAM = """
import json, sys
from pathlib import Path
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

prompts, count = json.loads(sys.argv[1]), int(sys.argv[2])
for folder in map(Path, sys.argv[3:]):
    torch.manual_seed(7)
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    options = json.loads((folder / "lora.json").read_text())
    config = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **options)
    model = get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.mul_(0.5 + torch.rand(parameter.shape))  # DoRA starts with the weight's own norms
    model.save_pretrained(folder / "adapter")
    merged, found = model.merge_and_unload(), []
    with torch.inference_mode():
        for prompt in prompts:
            ids, rows = torch.tensor([prompt]), []
            for _ in range(count):
                rows.append(merged(ids, use_cache=False).logits[0, -1])
                ids = torch.cat((ids, rows[-1].argmax().view(1, 1)), 1)
            found.append((ids[0, len(prompt):].tolist(), torch.stack(rows)))
    torch.save(found, folder / "expected.pt")
"""
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
ALL = [*ATTENTION, *MLP]
CASES = {
    "Llama, rank 1": ("LlamaForCausalLM", {"r": 1, "lora_alpha": 3, "target_modules": ["q_proj", "v_proj"]}),
    "Llama, rank-stabilized": (
        "LlamaForCausalLM",
        {"r": 7, "lora_alpha": 16, "use_rslora": True, "target_modules": ALL},
    ),
    "Llama, one layer": (
        "LlamaForCausalLM",
        {"r": 4, "target_modules": ALL, "layers_to_transform": [0], "layers_pattern": "layers"},
    ),
    "Llama, DoRA": ("LlamaForCausalLM", {"r": 4, "use_dora": True, "target_modules": ALL}),
    "Qwen 3, patterns": (
        "Qwen3ForCausalLM",
        {
            "r": 16,
            "target_modules": "all-linear",
            "exclude_modules": ["o_proj"],
            "rank_pattern": {"q_proj": 2, "mlp.down_proj": 6},
            "alpha_pattern": {r"layers.0.self_attn.v_proj": 32, "up_proj": 1},
        },
    ),
    "Qwen 2, a regular expression": (
        "Qwen2ForCausalLM",
        {"r": 8, "lora_alpha": 16, "target_modules": r".*\.self_attn\.[qkvo]_proj"},
    ),
    "Qwen 3 MoE, its router": (
        "Qwen3MoeForCausalLM",
        {"r": 4, "target_modules": ATTENTION, "target_parameters": ["mlp.gate.weight"]},
    ),
    "Granite 4": ("GraniteMoeHybridForCausalLM", {"r": 8, "target_modules": "all-linear"}),
    "Qwen 2 MoE, its shared expert": ("Qwen2MoeForCausalLM", {"r": 8, "target_modules": ALL}),
    # PEFT makes changes of experts of all patterns that match gate_proj, so the shared one has parameters
    "DeepSeek V3, its shared experts": (
        "DeepseekV3ForCausalLM",
        {
            "r": 8,
            "target_modules": ["o_proj"],
            "target_parameters": [f"shared_experts.{name}.weight" for name in MLP],
        },
    ),
    "Qwen3-Next": (
        "Qwen3NextForCausalLM",
        {
            "r": 8,
            "target_modules": [*ATTENTION, "in_proj_qkvz", "in_proj_ba", "out_proj"],
            "target_parameters": [f"shared_expert.{name}.weight" for name in MLP],
        },
    ),
}
QUANTIZED = {
    "FP8": ({"quant_method": "fp8", "weight_block_size": [32, 32]}, fp8_blocks(32, 32)),
} | GROUPED
REFUSED = {
    "the head as a whole": (
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        "modules_to_save",
    ),
    "the head": ({"target_modules": ["q_proj", "lm_head"]}, "lm_head"),
    "experts": ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "mlp.experts.gate_up_proj.*MoE experts"),
    "all matrices beside experts": (
        {"target_modules": ALL},
        "(gate_up|down)_proj.*MoE experts",
    ),
    "PiSSA": ({"target_modules": ["q_proj"], "init_lora_weights": "pissa"}, "init_lora_weights 'pissa'"),
}
CHANGES = {
    # each of them has a sparse layer
    "Qwen2MoeForCausalLM": {"decoder_sparse_step": 1, "mlp_only_layers": []},
    "Qwen3MoeForCausalLM": {"decoder_sparse_step": 1, "mlp_only_layers": []},
    "Qwen3NextForCausalLM": {"decoder_sparse_step": 1, "mlp_only_layers": []},
}
PROMPTS = random_prompts((1, 30, 62), SEED)


def config_of(architecture):
    return random_config(architecture, SEED) | CHANGES.get(architecture, {})


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    return python_with(tmp_path_factory.mktemp("peft") / "venv", PEFT)


@pytest.fixture(scope="module")
def made(python, tmp_path_factory, make_checkpoint):
    """By case, a folder of the model and what PEFT makes of it."""
    root, folders = tmp_path_factory.mktemp("cases"), {}
    for number, (name, (architecture, options)) in enumerate(CASES.items()):
        folders[name] = root / str(number)
        save_reference(folders[name] / "model", config_of(architecture), SEED)
        (folders[name] / "lora.json").write_text(json.dumps(options))
    source = make_checkpoint(hidden_size=128, intermediate_size=256)
    for name, (settings, form) in QUANTIZED.items():
        folders[name] = root / name
        twin = write_quantized(folders[name] / "stored", source, settings, form)
        twin.save_pretrained(folders[name] / "model")
        (folders[name] / "lora.json").write_text(json.dumps({"r": 8, "target_modules": ALL}))
    run([python, "-c", PROGRAM, json.dumps(PROMPTS), str(NUM_TOKENS), *folders.values()])
    return folders


def check(base, folder):
    """In chunks, too: the longest prompt is above the tokens of a step."""
    options = {"skip_tokenizer_init": True, "max_num_batched_tokens": 50, "enable_lora": True}
    llm = Spy(LLM(base, dtype="float32", **options))
    request = LoRARequest("one", 1, str(folder / "adapter"))
    for prompt, (tokens, logits) in zip(PROMPTS, torch.load(folder / "expected.pt"), strict=True):
        found, ours = llm.generate(prompt, NUM_TOKENS, lora_request=request)
        assert found == tokens
        torch.testing.assert_close(ours, logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_peft(made, name):
    check(made[name] / "model", made[name])


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.usefixtures("exact_products")
def test_logits_on_quantized_bases_are_those_of_peft(made, name):
    """The base as it is stored; PEFT has the same numbers in fp32."""
    check(made[name] / "stored", made[name])


def test_what_peft_makes_and_is_not_supported_is_refused_by_name(python, tmp_path):
    config = config_of("Qwen3MoeForCausalLM") | {"tie_word_embeddings": False}
    save_reference(tmp_path / "model", config, SEED)
    folders = []
    for name, (options, _) in REFUSED.items():
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        (folders[-1] / "model").symlink_to(tmp_path / "model")
        (folders[-1] / "lora.json").write_text(json.dumps(options))
    program = PROGRAM.replace("init_lora_weights=False, **options", "**options")
    run([python, "-c", program, "[]", "0", *folders])
    llm = LLM(tmp_path / "model", dtype="float32", skip_tokenizer_init=True, enable_lora=True)
    for number, (folder, (_, message)) in enumerate(zip(folders, REFUSED.values(), strict=True), 1):
        with pytest.raises(CheckpointError, match=message):
            llm.generate([5], lora_request=LoRARequest(folder.name, number, str(folder / "adapter")))
