"""A model may be stored bare, stacked, or as part of a larger one: all give the same logits."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import (
    Spy,
    check_logits,
    random_prompts,
    randomize,
    save_reference,
)

from armllm import LLM
from armllm.checkpoint.folder import Checkpoint
from armllm.errors import CheckpointError
from armllm.layers.activation import gated
from armllm.layers.moe import SeparateExperts

MOE = ["MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "OlmoeForCausalLM"]


def check(folder, model):
    llm = Spy(LLM(folder, dtype="float32", skip_tokenizer_init=True))
    check_logits(llm, model, random_prompts((1, 40), 0), 4)
    return llm.llm.llm_engine.runner.model


def rename(folder, change):
    """Rewrite the names of all tensors."""
    path = folder / "model.safetensors"
    tensors = {change(name): tensor for name, tensor in load_file(path).items()}
    path.unlink()
    save_file(tensors, path)


@pytest.mark.usefixtures("weights_as_stored")
@pytest.mark.parametrize("architecture", MOE)
def test_experts_stacked_in_one_tensor_stay_in_the_mapping(tmp_path, architecture):
    """As transformers 5 holds them in memory, and as a plain dump of its state dict stores them."""
    config = random_config(architecture, 3) | {
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "hidden_act": "silu",
    }
    model = save_reference(tmp_path, config, 3)
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if config["tie_word_embeddings"]:
        del state["lm_head.weight"]
    (tmp_path / "model.safetensors").unlink()
    save_file(state, tmp_path / "model.safetensors")
    layer = check(tmp_path, model).layers[0]
    experts = getattr(layer.mlp, "moe", layer.mlp).experts
    addresses = {weight.untyped_storage().data_ptr() for weight in experts.experts.down}
    assert len(addresses) == 1


def test_a_bare_decoder_without_prefix_is_read(tmp_path):
    """Qwen3-Embedding is stored so."""
    config = random_config("Qwen3ForCausalLM", 1) | {"tie_word_embeddings": True}
    model = save_reference(tmp_path, config, 1)
    rename(tmp_path, lambda name: name.removeprefix("model."))
    check(tmp_path, model)


def test_a_bare_opt_decoder_is_read(tmp_path):
    config = random_config("OPTForCausalLM", 1) | {"tie_word_embeddings": True}
    model = save_reference(tmp_path, config, 1)
    rename(tmp_path, lambda name: name.removeprefix("model."))
    check(tmp_path, model)


@pytest.fixture
def seeing_gemma(tmp_path):
    """A Gemma 3 with its vision tower."""
    text = random_config("Gemma3ForCausalLM", 2) | {"tie_word_embeddings": True, "eos_token_id": None}
    text["final_logit_softcapping"] = None
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": vision | {"image_size": 28, "patch_size": 14, "model_type": "siglip_vision_model"},
        "mm_tokens_per_image": 4,
        "image_token_index": 399,
        "boi_token_index": 398,
        "eoi_token_index": 397,
        "eos_token_id": [1, 7],
    }
    torch.manual_seed(2)
    model = transformers.Gemma3ForConditionalGeneration(transformers.Gemma3Config(**config)).eval()
    randomize(model, "gemma3")
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path, model


def test_the_text_part_of_gemma_3_runs_without_its_tower(seeing_gemma):
    folder, model = seeing_gemma
    (name,) = {name.split(".")[0] for name in load_file(folder / "model.safetensors") if "language" in name}
    assert name == "language_model"  # what the hub has
    check(folder, model)
    rename(
        folder,
        lambda name: (
            name.replace("language_model.model.", "model.language_model.")
            if name.startswith("language_model.")
            else f"model.{name}"
        ),
    )
    check(folder, model)


QWEN_TOWER = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 16}
SMALL_TOWERS = {
    "Qwen3_5": QWEN_TOWER,
    "Qwen3_5Moe": QWEN_TOWER,
    "Gemma3": {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
        "model_type": "siglip_vision_model",
    },
    "Gemma4": {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "model_type": "gemma4_vision",
    },
    "Llama4": {
        "hidden_size": 16,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
        "vision_output_dim": 16,
        "projector_input_dim": 16,
        "projector_output_dim": 16,
    },
}


SEEING = ["Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Gemma4ForCausalLM", "Llama4ForCausalLM"]


@pytest.mark.parametrize("architecture", SEEING)
def test_the_text_part_runs_without_its_tower(tmp_path, architecture):
    tied = architecture.startswith("Gemma")
    check_seeing(tmp_path, architecture, tied=tied, text_tied=tied)


@pytest.mark.parametrize("text_tied", [False, True])
def test_the_head_of_llama_4_is_its_text_parts(tmp_path, text_tied):
    """Catches what the whole model says of heads, and a head that is compared with no table."""
    check_seeing(tmp_path, "Llama4ForCausalLM", tied=not text_tied, text_tied=text_tied)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("stem", ["Gemma3", "Gemma4"])
def test_the_head_of_gemma_is_the_whole_models(tmp_path, stem, tied):
    """Catches what the text part says of heads, and one that is not found below the old prefix."""
    for text_tied in (False, True):
        folder = tmp_path / str(text_tied)
        check_seeing(folder, f"{stem}ForCausalLM", tied=tied, text_tied=text_tied)
        stored = {name.removeprefix("language_model.") for name in load_file(folder / "model.safetensors")}
        assert ("lm_head.weight" in stored) != tied


def check_seeing(folder, architecture, *, tied, text_tied):
    text = random_config(architecture, 3) | {"tie_word_embeddings": text_tied}
    stem = architecture.removesuffix("ForCausalLM")
    if stem == "Gemma3":
        text["final_logit_softcapping"] = None
    config = {
        "architectures": [f"{stem}ForConditionalGeneration"],
        "model_type": text["model_type"].removesuffix("_text"),
        "text_config": {name: text[name] for name in text if name != "architectures"},
        "vision_config": SMALL_TOWERS[stem],
        "audio_config": None,
        "tie_word_embeddings": tied,
        "eos_token_id": [1, 7],
        **({"mm_tokens_per_image": 4} if stem == "Gemma3" else {}),
    }
    settings = transformers.AutoConfig.for_model(**config)
    torch.manual_seed(2)
    model = getattr(transformers, config["architectures"][0])(settings).eval()
    randomize(model, config["model_type"])
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    if stem == "Llama4":  # the whole of transformers 5.24's asks the text part for image_outputs, and fails
        model = model.language_model
    assert check(folder, model).config.eos_token_ids == {1, 7}


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "OPTForCausalLM"])
@pytest.mark.parametrize("differs", [False, True])
def test_a_head_beside_a_tied_one_is_used_where_it_differs(tmp_path, monkeypatch, architecture, differs):
    """As transformers 5 has it. Catches other tokens without a word, and a comparison made twice."""
    save_reference(tmp_path, random_config(architecture, 1) | {"tie_word_embeddings": True}, 1)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    (table,) = (tensor for name, tensor in tensors.items() if "embed_tokens" in name)
    tensors["lm_head.weight"] = table.flip(0).contiguous() if differs else table.clone()
    save_file(tensors, path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert torch.equal(model.lm_head.weight, tensors["lm_head.weight"])
    read, names = Checkpoint.read, []
    monkeypatch.setattr(Checkpoint, "read", lambda self, name: names.append(name) or read(self, name))
    check(tmp_path, model)
    assert names.count("lm_head.weight") == 1 + differs  # and once more to be loaded


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["MistralForCausalLM", "Ministral3ForCausalLM"])
def test_the_text_part_of_mistral_3_is_either_family(tmp_path, architecture, tied):
    """Catches a head looked for beside the text part, and the other family's defaults."""
    text = random_config(architecture, 3) | {"tie_word_embeddings": tied}
    del text["architectures"]
    tower = {"image_size": 28, "patch_size": 14, "hidden_size": 16, "intermediate_size": 16}
    config = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": "mistral3",
        "text_config": text,
        "vision_config": tower | {"num_hidden_layers": 1, "num_attention_heads": 2, "model_type": "pixtral"},
        "tie_word_embeddings": tied,
        "eos_token_id": [1, 7],
    }
    torch.manual_seed(2)
    model = transformers.Mistral3ForConditionalGeneration(transformers.Mistral3Config(**config)).eval()
    randomize(model, text["model_type"])
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert check(tmp_path, model).config.eos_token_ids == {1, 7}


def test_the_text_part_of_gemma_3n_is_found_below_its_name(tmp_path):
    """Its vision tower is of another package, so the whole model is not built here."""
    text = random_config("Gemma3nForCausalLM", 3) | {"tie_word_embeddings": True}
    model = save_reference(tmp_path, text, 3)
    rename(tmp_path, lambda name: name.replace("model.", "model.language_model."))
    config = {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "text_config": text,
        "eos_token_id": [1, 7],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert check(tmp_path, model).config.eos_token_ids == {1, 7}


def test_what_is_neither_text_nor_tower_is_refused(seeing_gemma):
    folder, _ = seeing_gemma
    rename(folder, lambda name: name.replace("vision_tower", "audio_tower"))
    with pytest.raises(CheckpointError, match="audio_tower"):
        LLM(folder, skip_tokenizer_init=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text_config": None}, "text_config is missing"),
        ({"text_config": 3}, "text_config must be an object"),
        ({"text_config": {"model_type": "llama"}}, "text_config.model_type 'llama'"),
        ({"text_config": {"hidden_size": "x"}}, "text_config.hidden_size must be"),
        ({"text_config": {"logit_scale": 2}}, "text_config.logit_scale 2 is not known"),
        ({"tie_word_embeddings": False}, "tensor lm_head.weight is missing"),
    ],
)
def test_errors_in_the_text_config_name_it(seeing_gemma, changes, words):
    folder, _ = seeing_gemma
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError) as caught:
        LLM(folder, skip_tokenizer_init=True)
    assert words in str(caught.value)


def test_no_token_all_to_one_expert_and_one_to_all():
    """Corners of sorting tokens by expert."""
    torch.manual_seed(0)
    hidden_size, size, num_experts = 8, 4, 3
    up = [torch.randn(2 * size, hidden_size) for _ in range(num_experts)]
    down = [torch.randn(hidden_size, size) for _ in range(num_experts)]
    experts = SeparateExperts(
        [w.T.__rmatmul__ for w in up], [w.T.__rmatmul__ for w in down], activation=gated("silu")
    )

    def one(x, expert):
        gate, value = (x @ up[expert].T).chunk(2, -1)
        return (torch.nn.functional.silu(gate) * value) @ down[expert].T

    for ids in ([], [[2]], [[1]] * 5, [[0, 1, 2], [2, 0, 1]]):
        expert_ids = torch.tensor(ids, dtype=torch.int64).view(len(ids), -1 if ids else 2)
        x, weights = torch.randn(len(ids), hidden_size), torch.rand(expert_ids.shape)
        expected = torch.zeros_like(x)
        for token, row in enumerate(ids):
            for place, expert in enumerate(row):
                expected[token] += weights[token, place] * one(x[token], expert)
        torch.testing.assert_close(experts(x, expert_ids, weights), expected)
