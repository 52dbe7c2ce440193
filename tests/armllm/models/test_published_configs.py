"""config.json with the keys of published checkpoints, sizes cut down: logits are transformers'."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tests.armllm.models.reference import Spy, check_logits, random_prompts, save_reference

from armllm import LLM

# by the model's name; each has the keys below, too
PUBLISHED = json.loads(Path(__file__).with_name("published_configs.json").read_text())
COMMON = {"attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True, "torch_dtype": "bfloat16"}
TOKENS = {"vocab_size": 400, "bos_token_id": 0, "eos_token_id": 1, "max_position_embeddings": 128}
SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
# with what is published, 1e-6 or 1e-5, transformers' own chunks and steps are 1e-3 apart
LARGER_EPSILON = {"Granite-4.0-H-Tiny", "Qwen3-Next-80B-A3B", "Qwen3.5-2B", "Qwen3.5-35B-A3B"}


def put_below(folder, config):
    """Make the text model of this folder the text part of ``config``."""
    llama4 = config["model_type"] == "llama4"
    old, new = ("", "language_model.") if llama4 else ("model.", "model.language_model.")
    tensors = {
        new + name.removeprefix(old) if name.startswith(old) else name: tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", PUBLISHED)
def test_logits_are_those_of_transformers(tmp_path, name):
    """Catches a key of a published file that is refused, or taken for something else."""
    published = PUBLISHED[name]
    config = COMMON | TOKENS | SIZES | published.get("text_config", published)
    if name in LARGER_EPSILON:
        config["rms_norm_eps"] = 1e-2
    model = save_reference(tmp_path, config, 0)
    if "text_config" in published:
        put_below(tmp_path, published | {"text_config": config})
    llm = Spy(LLM(tmp_path, dtype="float32", skip_tokenizer_init=True, max_num_batched_tokens=50))
    check_logits(llm, model, random_prompts((1, 30, 70), 0), 6, config)
