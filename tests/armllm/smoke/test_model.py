"""The folder in the package, judged without our engine: by transformers, and by its own files."""

from __future__ import annotations

import json
import zlib

import pytest
import safetensors.torch
import torch
import transformers

from armllm.smoke.passages import MIXTURE, MODEL
from armllm.tokenizer import Tokenizer


def test_folder_stays_small_enough_for_the_wheel():
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 1_450_000


@pytest.mark.parametrize("folder", [MODEL, MIXTURE])
def test_weights_are_multiples_of_a_step_so_that_the_wheel_is_small(folder):
    """A model that was trained without the last step would add nearly a megabyte to every wheel."""
    data = (folder / "model.safetensors").read_bytes()
    for name, weight in safetensors.torch.load(data).items():
        if weight.dim() == 2:
            sizes = weight.float().abs()
            assert not (sizes / sizes[sizes > 0].min() % 1).any(), name
    assert len(zlib.compress(data)) < 0.5 * len(data)


def test_texts_and_token_ids_are_of_the_same_words(passages):
    """An edited passage whose model was not trained again would fail everywhere; here it says why."""
    tokenizer = Tokenizer(MODEL)
    for passage in passages:
        assert tuple(tokenizer.encode(passage.prompt)) == passage.prompt_token_ids
        whole = tuple(tokenizer.encode(passage.prompt + passage.text))
        assert (*whole, 1) == passage.prompt_token_ids + passage.token_ids
        assert tokenizer.decode(passage.token_ids) == passage.text


def test_longest_text_spans_many_blocks_of_the_cache(passages):
    longest = passages[0]
    assert len(longest.prompt_token_ids) + len(longest.token_ids) > 300
    assert 200 <= len((longest.prompt + longest.text).split()) <= 260


def test_every_input_of_a_linear_layer_is_a_multiple_of_128():
    """Groups of 128 of int4 must fit."""
    config = json.loads((MODEL / "config.json").read_text())
    sizes = (
        config["hidden_size"],
        config["intermediate_size"],
        config["num_attention_heads"] * config["head_dim"],
    )
    assert all(size % 128 == 0 for size in sizes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_transformers_recites_the_same_words(passages, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=dtype)
    for passage in passages:
        given = torch.tensor([passage.prompt_token_ids])
        said = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=500, do_sample=False, pad_token_id=1
        )
        assert tuple(said[0, given.shape[1] :].tolist()) == passage.token_ids


def test_transformers_reads_the_tokenizer(passages):
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    assert tuple(tokenizer(passages[0].prompt).input_ids) == passages[0].prompt_token_ids
    assert tokenizer.eos_token_id == 1
