"""What families add to config.json is honoured or refused by name."""

from __future__ import annotations

import shutil

import pytest
import transformers

from armllm import LLM, SamplingParams
from armllm.errors import CheckpointError, RequestError
from armllm.models import ARCHITECTURES, MODEL_TYPES, model_class
from armllm.models.config import ConfigReader

MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 32,
    "num_hidden_layers": 2,
    "vocab_size": 400,
}


@pytest.mark.parametrize(
    ("family", "changes", "limit"),
    [
        (MISTRAL, {"sliding_window": 64}, 64),
        (MISTRAL, {"sliding_window": 1000}, 256),
        (MISTRAL, {"sliding_window": None}, 256),
        (MISTRAL, {}, 256),
        (QWEN2, {"use_sliding_window": False, "sliding_window": 64}, 256),
        (QWEN2, {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2}, 256),
        (QWEN2, {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, 64),
        (
            QWEN2,
            {"use_sliding_window": True, "sliding_window": 64, "layer_types": ["full_attention"] * 2},
            256,
        ),
    ],
)
def test_a_sliding_window_limits_the_length(make_checkpoint, family, changes, limit):
    checkpoint = make_checkpoint(**family, **changes)
    llm = LLM(checkpoint.folder, dtype="float32")
    ((prompt, expected),) = checkpoint.prompts((50,), 14).items()
    params = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)
    (output,) = llm.generate(list(prompt), params, use_tqdm=False)
    assert output.outputs[0].token_ids == expected
    assert llm.llm_engine.runner.max_model_len == limit
    with pytest.raises(RequestError, match=f"is above {limit}"):
        LLM(checkpoint.folder, dtype="float32", max_model_len=limit + 1)


def test_unknown_layer_types_are_refused(tmp_path):
    layers = ["full_attention", "linear_attention"]
    config = QWEN2 | SMALL | {"use_sliding_window": True, "layer_types": layers}
    reader = ConfigReader(config, tmp_path)
    with pytest.raises(CheckpointError, match="linear_attention"):
        model_class(reader).read_config(reader)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_defaults_are_those_of_transformers(tmp_path, architecture):
    values = {"architectures": [architecture], **SMALL}
    reader = ConfigReader(values, tmp_path)
    ours = model_class(reader).read_config(reader)
    theirs = getattr(transformers, architecture.replace("ForCausalLM", "Config"))(**SMALL)
    assert ours.architecture == architecture
    assert ours.num_kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == (getattr(theirs, "head_dim", None) or 2)
    assert ours.rms_norm_eps == theirs.rms_norm_eps
    assert ours.max_position_embeddings == theirs.max_position_embeddings
    assert ours.tie_word_embeddings == theirs.tie_word_embeddings
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.eos_token_ids == (frozenset() if theirs.eos_token_id is None else {theirs.eos_token_id})


def test_every_architecture_is_found_by_its_model_type(tmp_path):
    assert set(MODEL_TYPES.values()) == set(ARCHITECTURES)
    for model_type, architecture in MODEL_TYPES.items():
        assert model_class(ConfigReader({"model_type": model_type}, tmp_path)).__name__ == architecture


def test_a_checkpoint_of_another_family_is_refused(make_checkpoint, tmp_path):
    """Qwen3 weights under Llama's name would run and say nonsense."""
    checkpoint = make_checkpoint(architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=32)
    folder = shutil.copytree(checkpoint.folder, tmp_path / "model")
    config = (folder / "config.json").read_text().replace("Qwen3ForCausalLM", "LlamaForCausalLM")
    (folder / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=r"k_norm\.weight is not part of the model"):
        LLM(folder, dtype="float32")
