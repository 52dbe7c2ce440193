"""Decoders with classes give the scores of transformers, those without a head its states."""

from __future__ import annotations

import json
import re

import pytest
import tokenizers
import torch
import transformers
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import random_prompts, randomize

from armllm import LLM, PoolingParams, SamplingParams
from armllm.checkpoint.config import ConfigReader
from armllm.engine.inspection import inspect_checkpoint
from armllm.errors import CheckpointError, RequestError
from armllm.models import CLASSIFIERS, EMBEDDERS


def classifier(folder, architecture, num_labels, seed=3):
    stem = architecture.removesuffix("ForSequenceClassification")
    config = random_config(f"{stem.removesuffix('Text')}ForCausalLM", seed)
    config |= {"architectures": [architecture], "id2label": {str(i): f"class {i}" for i in range(num_labels)}}
    config |= {"label2id": {f"class {i}": i for i in range(num_labels)}, "pad_token_id": 0}
    config["tie_word_embeddings"] = False
    settings = transformers.AutoConfig.for_model(**config)
    torch.manual_seed(seed)
    model = getattr(transformers, architecture)(settings).eval()
    randomize(model, config["model_type"])
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("architecture", CLASSIFIERS)
def test_scores_are_those_of_transformers(tmp_path, architecture, num_labels):
    """The last token that is no padding counts, also where a text has several chunks."""
    model = classifier(tmp_path, architecture, num_labels)
    llm = LLM(tmp_path, dtype="float32", skip_tokenizer_init=True, max_num_batched_tokens=20)
    prompts = random_prompts((1, 12, 37), 3)
    prompts += [[5, 6, 0, 7, 0, 0], [*prompts[1], *[0] * 30], [0, 0]]
    params = PoolingParams(task="classify", normalize=False)
    for prompt, output in zip(prompts, llm.encode(prompts, params, use_tqdm=False), strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(torch.as_tensor(output.outputs.data), expected, rtol=0, atol=1e-4)
    with pytest.raises(RequestError, match="generates no text"):
        llm.generate(prompts[0], SamplingParams(), use_tqdm=False)


def bare_decoder(folder, architecture, seed, **options):
    """A decoder without a head, as transformers saves it."""
    stem = architecture.removesuffix("Model").removesuffix("Text").replace("EuroBert", "Llama")
    config = random_config(f"{stem}ForCausalLM", seed) | {"pad_token_id": 0} | options
    settings = transformers.AutoConfig.for_model(**config)
    torch.manual_seed(seed)
    model = transformers.AutoModel.from_config(settings).eval()
    randomize(model, config["model_type"])
    model.save_pretrained(folder)
    return model


def check_states(llm, model, prompts, pooled):
    """Embeddings are what ``pooled`` makes of the last states in transformers."""
    params = PoolingParams(normalize=False)
    for prompt, output in zip(prompts, llm.embed(prompts, params, use_tqdm=False), strict=True):
        with torch.inference_mode():
            expected = pooled(model(torch.tensor([prompt])).last_hidden_state[0])
        torch.testing.assert_close(torch.tensor(output.outputs.embedding), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("architecture", EMBEDDERS)
def test_decoders_without_a_head_make_embeddings_only(tmp_path, architecture):
    """As sentence-transformers saves them, and E5-Mistral."""
    model = bare_decoder(tmp_path, architecture, 3, tie_word_embeddings=False)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [architecture]
    llm = LLM(tmp_path, dtype="float32", skip_tokenizer_init=True, max_num_batched_tokens=20)
    prompts = random_prompts((1, 12, 37), 3)
    check_states(llm, model, prompts, lambda states: states[-1])
    assert "generate" not in llm.llm_engine.get_supported_tasks()
    assert inspect_checkpoint(str(tmp_path))["pooling"] == "last"
    with pytest.raises(RequestError, match="generates no text"):
        llm.generate(prompts[0], SamplingParams(), use_tqdm=False)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("architecture", [*EMBEDDERS, "EuroBertModel"])
def test_decoders_may_see_both_ways(tmp_path, architecture, seed):
    """EmbeddingGemma and GTE-Qwen2. Catches a half window, and keys taken from a cache that is not there."""
    special = {
        "Gemma3TextModel": {"use_bidirectional_attention": True},
        "EuroBertModel": {"model_type": "eurobert"},
    }
    options = special.get(architecture, {"is_causal": False})
    model = bare_decoder(tmp_path, architecture, seed, attn_implementation="eager", **options)
    llm = LLM(tmp_path, dtype="float32", skip_tokenizer_init=True)
    for prompt in random_prompts((1, 12, 37), 3) * 3:  # the second and third time is recorded
        check_states(llm, model, [prompt], lambda states: states.mean(0))


def test_eurobert_is_taken_as_it_is_published(tmp_path):
    """With its head, which is not loaded, and the defaults of its class."""
    config = random_config("LlamaForCausalLM", 4) | {"model_type": "eurobert", "pad_token_id": 0}
    config["tie_word_embeddings"] = False
    del config["rms_norm_eps"]
    settings = transformers.AutoConfig.for_model(**config)
    model = transformers.EuroBertForMaskedLM(settings).eval()
    randomize(model, "eurobert")
    model.save_pretrained(tmp_path)
    config["architectures"] = ["EuroBertForMaskedLM"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    llm = LLM(tmp_path, dtype="float32", skip_tokenizer_init=True)
    check_states(llm, model.model, random_prompts((1, 12), 3), lambda states: states.mean(0))
    with pytest.raises(CheckpointError, match="is_causal True is not supported, only False"):
        LLM(tmp_path, hf_overrides={"is_causal": True})


RERANKER = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "classifier_from_token": ["no", "yes"],
    "is_original_qwen3_reranker": True,
}


def decoder(folder, *, tied):
    """A decoder with a tokenizer that has the two answers, and transformers' model of it."""
    config = random_config("Qwen3ForCausalLM", 3) | {"tie_word_embeddings": tied}
    settings = transformers.AutoConfig.for_model(**config)
    torch.manual_seed(3)
    model = transformers.Qwen3ForCausalLM(settings).eval()
    randomize(model, config["model_type"])
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    words = tokenizers.models.WordLevel({"no": 7, "yes": 11, "maybe": 399, "[UNK]": 0}, "[UNK]")
    tokenizers.Tokenizer(words).save(str(folder / "tokenizer.json"))
    return model


@pytest.mark.parametrize("tied", [True, False])
def test_a_reranker_published_as_a_decoder_scores_by_its_two_answers(tmp_path, tied):
    """As Qwen/Qwen3-Reranker-0.6B with vLLM's documented hf_overrides: the softmax of "no" and "yes"."""
    model = decoder(tmp_path, tied=tied)
    llm = LLM(tmp_path, dtype="float32", hf_overrides=RERANKER)
    prompts = random_prompts((1, 12, 37), 3)
    for prompt, output in zip(prompts, llm.classify(prompts, use_tqdm=False), strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt])).logits[0, -1]
        expected = logits[[7, 11]].softmax(-1)[1:]
        torch.testing.assert_close(torch.as_tensor(output.outputs.probs), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("answers", [{"no": 7, "yes": 11, "maybe": 399}, {"yes": 11}])
def test_answers_may_be_classes(tmp_path, answers):
    """A single one is that of bge-reranker-v2-gemma."""
    model = decoder(tmp_path, tied=False)
    changes = {"classifier_from_token": [*answers], "method": "no_post_processing"}
    llm = LLM(tmp_path, dtype="float32", hf_overrides=RERANKER | changes)
    (prompt,) = random_prompts((12,), 3)
    (output,) = llm.classify([prompt], use_tqdm=False)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt])).logits[0, -1][[*answers.values()]]
    expected = logits.sigmoid() if len(answers) == 1 else logits.softmax(-1)
    torch.testing.assert_close(torch.as_tensor(output.outputs.probs), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classifier_from_token": ["no", "perhaps"]}, "'perhaps' is no token of the vocabulary"),
        ({"classifier_from_token": "yes"}, "must be a list of tokens, not 'yes'"),
        ({"classifier_from_token": ["no", "yes", "maybe"]}, "needs two tokens"),
        ({"is_original_qwen3_reranker": False}, "classifier_from_token needs a method: from_2_way_softmax"),
        ({"method": "other"}, "method 'other' is not supported"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a positive integer"),
    ],
)
def test_overrides_that_cannot_be_honored_are_named(tmp_path, changes, message):
    decoder(tmp_path, tied=True)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        LLM(tmp_path, dtype="float32", hf_overrides=RERANKER | changes)


def test_overrides_reach_into_the_configuration_of_a_part(tmp_path):
    """A text model within a larger one keeps what is not changed."""
    config = {"architectures": ["A"], "text_config": {"hidden_size": 8, "rope_theta": 1.0}, "rope": {"a": 1}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    changes = {"text_config": {"rope_theta": 2.0}, "rope": {"b": 2}, "new": None}
    values = ConfigReader.open(tmp_path, changes).values
    changed = {"text_config": {"hidden_size": 8, "rope_theta": 2.0}, "rope": {"b": 2}, "new": None}
    assert values == config | changed
    with pytest.raises(RequestError, match="hf_overrides must be a dict of values, not 3"):
        LLM(tmp_path, hf_overrides=3)
