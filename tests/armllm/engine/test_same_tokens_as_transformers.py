"""Greedy fp32 tokens are those of transformers, on many shapes, and however the work is cut up."""

from __future__ import annotations

import pytest
import torch

from armllm import LLM, SamplingParams

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
SHAPES = {
    "multi-head": {"num_key_value_heads": 4},
    "kv heads not given": {"drop": ("num_key_value_heads",)},
    "grouped-query": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "one KV head": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "attention biases": {"attention_bias": True},
    "mlp biases": {"mlp_bias": True},
    "head_dim 32, not hidden/heads": {"head_dim": 32},
    "head_dim 64": {"head_dim": 64, "num_key_value_heads": 1},
    "head_dim 80": {"head_dim": 80},
    "head_dim 96": {"head_dim": 96, "num_attention_heads": 2, "num_key_value_heads": 1},
    "head_dim 128": {"head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 2},
    "llama3 scaling, old form": {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "llama3 scaling, new form": {
        "drop": ("rope_theta", "torch_dtype"),
        "dtype": "float32",
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3},
    },
    "default rope, new form": {
        "drop": ("rope_theta", "torch_dtype"),
        "dtype": "float32",
        "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
    },
    "other theta, three shards": {"rope_theta": 1e6, "shards": 3, "num_hidden_layers": 3},
    "one layer, odd sizes": {
        "num_hidden_layers": 1,
        "intermediate_size": 90,
        "hidden_size": 36,
        "head_dim": 32,
    },
    "Mistral": {**MISTRAL, "sliding_window": None},
    "Mistral, head_dim 32": {**MISTRAL, "sliding_window": None, "head_dim": 32, "num_key_value_heads": 1},
    "Mistral, defaults": {**MISTRAL, "drop": ("num_key_value_heads",), "num_attention_heads": 8},
    "Qwen2": QWEN2,
    "Qwen2, tied, one KV head": {**QWEN2, "tie_word_embeddings": True, "num_key_value_heads": 1},
    "Qwen3": {**QWEN3, "head_dim": 32},
    "Qwen3, biases, default head_dim": {**QWEN3, "attention_bias": True, "num_attention_heads": 2},
}
PROMPT_LENGTHS = (1, 5, 17, 33, 64, 120)
NUM_TOKENS = 24


def greedy(num_tokens=NUM_TOKENS):
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)


def tokens(llm, prompts, params=None):
    outputs = llm.generate(
        [{"prompt_token_ids": list(p)} for p in prompts], params or greedy(), use_tqdm=False
    )
    llm.llm_engine.check_integrity()
    assert llm.llm_engine.blocks.num_free_blocks == llm.llm_engine.blocks.num_blocks
    assert all(output.outputs[0].finish_reason == "length" for output in outputs)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.fixture(params=SHAPES)
def checkpoint(request, make_checkpoint):
    return make_checkpoint(**SHAPES[request.param])


def test_every_shape_alone_batched_and_chunked(checkpoint):
    expected = checkpoint.prompts(PROMPT_LENGTHS, NUM_TOKENS)
    llm = LLM(checkpoint.folder, dtype="float32", enable_prefix_caching=False)
    assert [tokens(llm, [prompt])[0] for prompt in expected] == [*expected.values()]
    assert tokens(llm, expected) == [*expected.values()]
    chunked = LLM(checkpoint.folder, dtype="float32", max_num_batched_tokens=13)
    assert tokens(chunked, expected) == [*expected.values()]


def test_every_shape_has_the_same_logits(checkpoint):
    llm = LLM(checkpoint.folder, dtype="float32")
    logits = spy_on_logits(llm)
    for prompt in checkpoint.prompts(PROMPT_LENGTHS, 1):
        tokens(llm, [prompt], greedy(1))
        torch.testing.assert_close(logits.pop()[0], checkpoint.logits(prompt), rtol=0, atol=1e-4)


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize("budget", [1, 5, 64, 2048])
def test_block_size_and_budget_change_nothing(make_checkpoint, block_size, budget):
    checkpoint = make_checkpoint()
    expected = checkpoint.prompts(PROMPT_LENGTHS, NUM_TOKENS)
    llm = LLM(checkpoint.folder, dtype="float32", block_size=block_size, max_num_batched_tokens=budget)
    assert tokens(llm, expected) == [*expected.values()]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("budget", [9, 2048])
def test_preempted_sequences_are_computed_again(make_checkpoint, caching, budget):
    checkpoint = make_checkpoint()
    expected = checkpoint.prompts((30, 20, 25, 40, 3, 1), 40)
    llm = LLM(
        checkpoint.folder,
        dtype="float32",
        num_gpu_blocks_override=7,
        max_model_len=96,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
    )
    assert tokens(llm, expected, greedy(40)) == [*expected.values()]
    assert llm.llm_engine.scheduler.num_preemptions > 0


def test_a_hot_prefix_cache_changes_nothing_and_is_used(make_checkpoint):
    checkpoint = make_checkpoint()
    (first,) = checkpoint.prompts((80,), NUM_TOKENS)
    prompts = [
        prompt
        for prompt in (first[:50], first[:51], first[:57], (*first[:50], *first[10:20]), first[:32], first)
        if checkpoint.greedy(prompt, NUM_TOKENS)
    ]
    expected = [checkpoint.greedy(prompt, NUM_TOKENS) for prompt in prompts]
    assert len(prompts) > 3
    llm = LLM(checkpoint.folder, dtype="float32")
    assert tokens(llm, prompts) == expected
    assert tokens(llm, prompts) == expected
    outputs = llm.generate([{"prompt_token_ids": list(p)} for p in prompts], greedy(), use_tqdm=False)
    # whole blocks of the prompt, and never its last token
    assert [output.num_cached_tokens for output in outputs] == [(len(p) - 1) // 16 * 16 for p in prompts]


def test_sequences_of_one_step_share_a_prefix(make_checkpoint):
    checkpoint = make_checkpoint()
    ((prompt, expected),) = checkpoint.prompts((40,), NUM_TOKENS).items()
    llm = LLM(checkpoint.folder, dtype="float32")
    scheduled = []
    run = llm.llm_engine.runner.run

    def spy(sequences, *others):
        scheduled.append([sequence.num_scheduled_tokens for sequence in sequences])
        return run(sequences, *others)

    llm.llm_engine.runner.run = spy
    assert tokens(llm, [prompt] * 3) == [expected] * 3
    assert scheduled[0] == [40, 8, 8]


def test_few_sequences_at_a_time_change_nothing(make_checkpoint):
    checkpoint = make_checkpoint()
    expected = checkpoint.prompts((3, 9, 2, 30, 12), NUM_TOKENS)
    llm = LLM(checkpoint.folder, dtype="float32", max_num_seqs=2)
    assert tokens(llm, expected) == [*expected.values()]


def test_the_model_can_be_filled_to_its_last_token(make_checkpoint):
    checkpoint = make_checkpoint()
    ((prompt, expected),) = checkpoint.prompts((60,), 4).items()
    llm = LLM(checkpoint.folder, dtype="float32", max_model_len=64, num_gpu_blocks_override=4)
    assert tokens(llm, [prompt], greedy(1000)) == [expected]


def test_plain_torch_kernels_give_the_same_tokens(make_checkpoint, reference_kernels):
    checkpoint = make_checkpoint()
    expected = checkpoint.prompts(PROMPT_LENGTHS, NUM_TOKENS)
    llm = LLM(checkpoint.folder, dtype="float32", max_num_batched_tokens=50)
    assert tokens(llm, expected) == [*expected.values()]


def test_bfloat16_logits_are_near(make_checkpoint):
    checkpoint = make_checkpoint()
    llm = LLM(checkpoint.folder, dtype="bfloat16")
    logits = spy_on_logits(llm)
    for prompt in checkpoint.prompts(PROMPT_LENGTHS, 1):
        tokens(llm, [prompt], greedy(1))
        expected = checkpoint.logits(prompt)
        # 2^-8 per rounding, a dozen roundings per layer that add up like noise
        assert (logits.pop()[0] - expected).norm() / expected.norm() < 12 * 2**-8


def spy_on_logits(llm):
    """A list to which every step appends its logits."""
    seen = []
    run = llm.llm_engine.runner.run

    def spy(sequences, *others):
        seen.append(run(sequences, *others))
        return seen[-1]

    llm.llm_engine.runner.run = spy
    return seen
