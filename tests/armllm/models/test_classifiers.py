"""Decoders with classes give the scores of transformers."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import random_prompts, randomise

from armllm import LLM, PoolingParams, SamplingParams
from armllm.errors import RequestError
from armllm.models import CLASSIFIERS


def classifier(folder, architecture, num_labels, seed=3):
    stem = architecture.removesuffix("ForSequenceClassification")
    config = random_config(f"{stem.removesuffix('Text')}ForCausalLM", seed)
    config |= {"architectures": [architecture], "id2label": {str(i): f"class {i}" for i in range(num_labels)}}
    config |= {"label2id": {f"class {i}": i for i in range(num_labels)}, "pad_token_id": 0}
    config["tie_word_embeddings"] = False
    settings = transformers.AutoConfig.for_model(**config)
    torch.manual_seed(seed)
    model = getattr(transformers, architecture)(settings).eval()
    randomise(model, config["model_type"])
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return model


@pytest.mark.parametrize("num_labels", [1, 3])
@pytest.mark.parametrize("architecture", CLASSIFIERS)
def test_scores_are_those_of_transformers(tmp_path, architecture, num_labels):
    model = classifier(tmp_path, architecture, num_labels)
    llm = LLM(tmp_path, dtype="float32", skip_tokenizer_init=True, max_num_batched_tokens=20)
    prompts = random_prompts((1, 12, 37), 3)
    params = PoolingParams(task="classify", normalize=False)
    for prompt, output in zip(prompts, llm.encode(prompts, params, use_tqdm=False), strict=True):
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0]
        torch.testing.assert_close(torch.as_tensor(output.outputs.data), expected, rtol=0, atol=1e-4)
    with pytest.raises(RequestError, match="generates no text"):
        llm.generate(prompts[0], SamplingParams(), use_tqdm=False)
