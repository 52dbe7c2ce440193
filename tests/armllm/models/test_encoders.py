"""Encoders have the states and the classes of transformers, for random configurations and mixed batches."""

from __future__ import annotations

import json
import random

import pytest
import torch
from tests.armllm.models.encoder_configs import (
    DYNAMIC,
    ENCODERS,
    POSITIONS,
    VOCAB_SIZE,
    load,
    prompts,
    random_config,
    save_reference,
)
from tests.armllm.models.random_configs import random_config as random_decoder
from tests.armllm.models.reference import MOST_OF_ROUNDINGS, rounded_modules

from armllm import PoolingParams, SamplingParams
from armllm.errors import CheckpointError, RequestError
from armllm.models import read_model_config


def pooled(states):
    """What each pooling makes of ``states[L, hidden_size]``, by its formula."""
    count = len(states)
    weights = torch.arange(1, count + 1)[:, None].float()
    return {
        "last": states[-1],
        "cls": states[0],
        "mean": states.mean(0),
        "max": states.max(0).values,
        "mean_sqrt_len": states.sum(0) / count**0.5,
        "weightedmean": (states * weights).sum(0) / weights.sum(),
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("architecture", [name for name in ENCODERS if "Sequence" not in name])
def test_states_are_those_of_transformers(tmp_path, architecture, seed):
    """In one batch of mixed lengths, and in steps that hold less than a prompt; padding stands in a text."""
    config = random_config(architecture, seed)
    model = save_reference(tmp_path, config)
    model = getattr(model, model.base_model_prefix, model)
    padding = config["pad_token_id"]
    inputs = [*prompts(seed), [padding, 9, padding, padding, 7, 8], [6, 7, padding]]
    with torch.inference_mode():
        expected = [pooled(model(torch.tensor([ids])).last_hidden_state[0]) for ids in inputs]
    pooling = random.Random(seed).choice(sorted(expected[0]))  # noqa: S311 - test data
    for options in ({}, {"max_num_batched_tokens": 8, "max_num_seqs": 2}):
        llm = load(tmp_path, **options)
        for mode in {"cls", "mean", pooling}:
            outputs = llm.embed(inputs, PoolingParams(pooling=mode, normalize=False), use_tqdm=False)
            for output, want in zip(outputs, expected, strict=True):
                ours = torch.tensor(output.outputs.embedding)
                torch.testing.assert_close(ours, want[mode], rtol=0, atol=1e-4, msg=f"{config} {mode}")
        llm.llm_engine.check_integrity()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("architecture", [name for name in ENCODERS if "Sequence" in name])
def test_classes_are_those_of_transformers(tmp_path, architecture, seed):
    config = random_config(architecture, seed)
    model = save_reference(tmp_path, config)
    inputs = prompts(seed)
    with torch.inference_mode():
        expected = [model(torch.tensor([ids])).logits[0] for ids in inputs]
    llm = load(tmp_path)
    raw = llm.classify(inputs, pooling_params=PoolingParams(use_activation=False), use_tqdm=False)
    probabilities = llm.classify(inputs, use_tqdm=False)
    for output, scores, logits in zip(probabilities, raw, expected, strict=True):
        torch.testing.assert_close(torch.tensor(scores.outputs.probs), logits, rtol=0, atol=1e-4)
        wanted = logits.sigmoid() if len(logits) == 1 else logits.softmax(-1)
        torch.testing.assert_close(torch.tensor(output.outputs.probs), wanted, rtol=0, atol=1e-4)
        assert output.outputs.num_classes == len(config["id2label"])
    with pytest.raises(RequestError, match="makes no embeddings"):
        llm.embed(inputs, use_tqdm=False)


def test_heads_of_one_element_have_the_same_states(tmp_path):
    """Catches a product that is given every eighth element of the padded heads."""
    config = random_config("BertModel", 0) | {"hidden_size": 12, "num_attention_heads": 12}
    model = save_reference(tmp_path, config)
    params = PoolingParams(pooling="mean", normalize=False)
    outputs = load(tmp_path).embed(prompts(0), params, use_tqdm=False)
    for ids, output in zip(prompts(0), outputs, strict=True):
        with torch.inference_mode():
            wanted = model(torch.tensor([ids])).last_hidden_state[0].mean(0)
        torch.testing.assert_close(torch.tensor(output.outputs.embedding), wanted, rtol=0, atol=1e-4)


def test_the_second_text_of_a_pair_has_its_own_segment(tmp_path):
    config = random_config("BertForSequenceClassification", 0) | {"id2label": {"0": "score"}}
    model = save_reference(tmp_path, config)
    inputs, seconds = prompts(3), [1, 3, 12, 6, 63, 1, None]
    params = [PoolingParams(use_activation=False, second_segment=second) for second in seconds]
    outputs = load(tmp_path).classify(inputs, pooling_params=params, use_tqdm=False)
    for ids, second, output in zip(inputs, seconds, outputs, strict=True):
        types = torch.zeros(1, len(ids), dtype=torch.long)
        types[:, second if second is not None else len(ids) :] = 1
        with torch.inference_mode():
            wanted = model(torch.tensor([ids]), token_type_ids=types).logits[0]
        torch.testing.assert_close(torch.tensor(output.outputs.probs), wanted, rtol=0, atol=1e-4)


NARROW = ("BertModel", "ModernBertModel", "NomicBertModel", "XLMRobertaModel", "Qwen3Model")


def reference_of(folder, architecture):
    """An encoder, or a decoder whose files ask for the last token's state, as Qwen3-Embedding's do."""
    if architecture != "Qwen3Model":
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
        return save_reference(folder, random_config(architecture, 1) | sizes)
    config = random_decoder("Qwen3ForCausalLM", 1) | {"hidden_size": 64, "intermediate_size": 96}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "lasttoken"}))
    return save_reference(folder, config | {"architectures": [architecture]})


def embeddings(folder, **options):
    outputs = load(folder, **options).embed(prompts(0), use_tqdm=False)
    return torch.tensor([output.outputs.embedding for output in outputs])


@pytest.mark.parametrize("architecture", NARROW)
def test_weights_of_8_bits_stay_near(tmp_path, architecture):
    reference_of(tmp_path, architecture)
    whole, rounded = (embeddings(tmp_path, **options) for options in ({}, {"quantization": "int8"}))
    cosines = (whole * rounded).sum(-1)
    assert not torch.equal(whole, rounded)
    assert cosines.min() > 0.99


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", NARROW)
def test_half_precision_is_as_near_as_its_roundings(tmp_path, architecture, dtype):
    """Against fp32 arithmetic on the same rounded weights, whose modules' results are rounded at random."""
    model = reference_of(tmp_path, architecture).to(dtype).float()

    def expected():
        states = [model(torch.tensor([ids])).last_hidden_state[0] for ids in prompts(0)]
        vectors = [each[-1] if architecture == "Qwen3Model" else each.mean(0) for each in states]
        return torch.nn.functional.normalize(torch.stack(vectors), dim=-1)

    with torch.inference_mode():
        exact = expected()
        with rounded_modules(model, dtype):
            noise = torch.stack([expected() for _ in range(4)]) - exact
    found = embeddings(tmp_path, dtype=dtype)
    assert not torch.equal(found, exact)
    assert (found - exact).square().mean().sqrt() < MOST_OF_ROUNDINGS * noise.square().mean().sqrt()


def test_bert_s_first_checkpoints_call_norms_otherwise(tmp_path):
    """As google-bert/bert-base-uncased has them: gamma and beta, and a table of positions' numbers."""
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - here only

    save_reference(tmp_path, random_config("BertForMaskedLM", 0))
    (before,) = load(tmp_path).embed(prompts(0)[2], use_tqdm=False)
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    renamed["bert.embeddings.position_ids"] = torch.arange(POSITIONS)[None]
    save_file(renamed, tmp_path / "model.safetensors")
    (after,) = load(tmp_path).embed(prompts(0)[2], use_tqdm=False)
    assert after.outputs.embedding == before.outputs.embedding


def rewritten(folder, config, prefix=None):
    """The checkpoint with another config.json, maybe with the encoder's tensors under another prefix."""
    from safetensors.torch import load_file, save_file  # noqa: PLC0415 - here only

    (folder / "config.json").write_text(json.dumps(config))
    if prefix:
        tensors = load_file(folder / "model.safetensors")
        save_file({prefix + name: tensor for name, tensor in tensors.items()}, folder / "model.safetensors")


NOMIC = {
    "prenorm": False,
    "use_rms_norm": None,
    "causal": False,
    "rotary_emb_fraction": 1.0,
    "rotary_scaling_factor": None,
    "activation_function": "swiglu",
    "qkv_proj_bias": False,
}
NEW = {
    "pack_qkv": True,
    "position_embedding_type": "rope",
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "unpad_inputs": True,
    "use_memory_efficient_attention": True,
}


def test_the_first_form_of_nomic_s_configuration_means_the_same(tmp_path):
    """As nomic-ai/nomic-embed-text-v1.5 had it: GPT-2's names, and a length beyond that of training."""
    config = random_config("NomicBertModel", 0) | {"hidden_act": "silu", "rope_theta": 500.0}
    config.pop("rope_parameters", None)
    save_reference(tmp_path, config)
    (before,) = load(tmp_path).embed(prompts(0)[2], use_tqdm=False)
    first = NOMIC | {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "n_embd": config["hidden_size"],
        "n_head": config["num_attention_heads"],
        "n_layer": config["num_hidden_layers"],
        "n_inner": config["intermediate_size"],
        "n_positions": 4 * POSITIONS,
        "max_trained_positions": POSITIONS,
        "layer_norm_epsilon": config["layer_norm_eps"],
        "rotary_emb_base": 500,
        "type_vocab_size": config["type_vocab_size"],
        "vocab_size": VOCAB_SIZE,
    }
    rewritten(tmp_path, first)
    llm = load(tmp_path)
    (after,) = llm.embed(prompts(0)[2], use_tqdm=False)
    assert after.outputs.embedding == before.outputs.embedding
    assert llm.llm_engine.runner.max_model_len == POSITIONS


@pytest.mark.parametrize(("architecture", "prefix"), [("NewModel", "new."), ("GteModel", None)])
def test_the_first_form_of_gte_s_configuration_means_the_same(tmp_path, architecture, prefix):
    """As Alibaba-NLP/gte-multilingual-base has it: the base times 8, and positions divided a little."""
    head_dim = 16
    sizes = {"hidden_size": 48, "num_attention_heads": 3, "hidden_act": "gelu", "type_vocab_size": 1}
    config = random_config("GteModel", 0) | sizes
    scaled = {"rope_type": "linear", "factor": 8 ** (2 / head_dim), "rope_theta": 20000.0 * 8}
    config.pop("rope_theta", None)
    save_reference(tmp_path, config | {"rope_parameters": scaled})
    (before,) = load(tmp_path).embed(prompts(0)[2], use_tqdm=False)
    first = {key: value for key, value in config.items() if key != "rope_parameters"} | NEW
    first |= {"architectures": [architecture], "model_type": "new", "rope_theta": 20000}
    rewritten(tmp_path, first | {"rope_scaling": {"type": "ntk", "factor": 8.0}}, prefix)
    (after,) = load(tmp_path).embed(prompts(0)[2], use_tqdm=False)
    torch.testing.assert_close(
        torch.tensor(after.outputs.embedding), torch.tensor(before.outputs.embedding), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    ("architecture", "values", "message"),
    [
        ("NomicBertModel", NOMIC | {"n_embd": 48, "moe_every_n_layers": 2}, "moe_every_n_layers 2 is not"),
        (
            "NomicBertModel",
            NOMIC | {"n_embd": 48, "num_experts": 8, "qkv_proj_bias": True},
            "num_experts 8 is not supported",
        ),
        ("NomicBertModel", NOMIC | {"n_embd": 48, "qkv_proj_bias": True}, "qkv_proj_bias True is not"),
        ("NomicBertModel", {"rope_parameters": DYNAMIC}, "'dynamic' is not supported"),
        (
            "GteModel",
            NEW | {"rope_scaling": {"type": "ntk", "factor": 2, "mixed_b": 1}},
            "only ntk with a factor",
        ),
        ("GteModel", NEW | {"logn_attention_scale": True}, "logn_attention_scale True is not"),
        ("BertModel", {"is_decoder": True}, "is_decoder True is not supported"),
        ("BertModel", {"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ("BertModel", {"hidden_act": "mish"}, "hidden_act 'mish'"),
        ("BertModel", {"hidden_size": 50, "num_attention_heads": 4}, "hidden_size is not"),
        ("BertModel", {"attn_scaling": 2}, "attn_scaling 2 is not known"),
        ("RobertaModel", {"pad_token_id": 79}, "pad_token_id must be"),
        ("RobertaModel", {"pad_token_id": -1}, "pad_token_id must be"),
        ("ModernBertModel", {"layer_types": ["full_attention"]}, "layer_types must be a list"),
        ("ModernBertModel", {"rope_parameters": {"rope_theta": 3}}, "rope_parameters must hold"),
        ("ModernBertModel", {"rope_parameters": {"full_attention": DYNAMIC}}, "'dynamic' is not supported"),
        ("BertForSequenceClassification", {"id2label": {"1": "x"}}, "id2label must hold"),
        ("BertForSequenceClassification", {"problem_type": "other"}, "problem_type 'other'"),
        (
            "BertForSequenceClassification",
            {"sbert_ce_default_activation_function": "torch.nn.Tanh"},
            "activation 'torch.nn.Tanh'",
        ),
    ],
)
def test_what_an_encoder_cannot_honor_is_named(tmp_path, architecture, values, message):
    config = random_config(architecture, 0) | values
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        read_model_config(tmp_path)
    assert message in str(caught.value)


def test_an_encoder_says_what_it_does_not_do(tmp_path):
    save_reference(tmp_path, random_config("BertModel", 0))
    llm = load(tmp_path)
    with pytest.raises(RequestError, match="generates no text"):
        llm.generate([5, 6], SamplingParams(max_tokens=1), use_tqdm=False)
    with pytest.raises(RequestError, match="needs a model with a classification head"):
        llm.classify([5, 6], use_tqdm=False)
    with pytest.raises(RequestError, match="81 tokens"):
        llm.embed([5] * 81, use_tqdm=False)
    assert len(llm.embed([5] * 80, use_tqdm=False)) == 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        with pytest.raises(RequestError, match=f"{name} 2: BertModel is an encoder and needs one process"):
            load(tmp_path, **{name: 2})
    with pytest.raises(RequestError, match="enable_lora is not supported for encoders"):
        load(tmp_path, enable_lora=True)
