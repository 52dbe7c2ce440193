"""Models with recurrent layers: states are carried over chunks, shared at borders, and never mixed up."""

from __future__ import annotations

import pytest
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import random_prompts, save_reference

from armllm import LLM, SamplingParams
from armllm.engine.states import StateSlots
from armllm.errors import MemoryLimitError

ARCHITECTURE = "Qwen3_5ForCausalLM"
HYBRID = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPTS = random_prompts((70, 3, 33, 1, 48), 5)
PROMPTS += [PROMPTS[0][:40] + tail for tail in random_prompts((9, 20), 6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid")
    config = {k: v for k, v in random_config(ARCHITECTURE, 0).items() if k != "full_attention_interval"}
    save_reference(folder, config | HYBRID, 0)
    return folder


def engine(folder, **options):
    return LLM(folder, dtype="float32", skip_tokenizer_init=True, max_model_len=96, **options)


def tokens(llm, prompts, params=GREEDY):
    outputs = llm.generate([list(prompt) for prompt in prompts], params, use_tqdm=False)
    llm.llm_engine.check_integrity()
    return [[one.token_ids for one in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def alone(folder):
    """Each prompt in an engine that has seen nothing else."""
    llm = engine(folder, enable_prefix_caching=False)
    return [tokens(llm, [prompt])[0] for prompt in PROMPTS]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"enable_prefix_caching": False, "max_num_batched_tokens": 13},
        {"max_num_batched_tokens": 13, "max_num_seqs": 3},
        {"max_num_batched_tokens": 1},
        {"num_gpu_blocks_override": 7},
        {"num_gpu_blocks_override": 6, "max_num_batched_tokens": 20, "block_size": 32},
    ],
)
def test_tokens_do_not_depend_on_how_prompts_are_cut_and_who_else_runs(folder, alone, options):
    llm = engine(folder, **options)
    assert tokens(llm, PROMPTS) == alone
    assert tokens(llm, PROMPTS[::-1]) == alone[::-1]
    if options.get("num_gpu_blocks_override") == 7:
        assert llm.llm_engine.scheduler.num_preemptions


@pytest.mark.parametrize("num_slots", [1, 2, 4])
def test_sequences_wait_for_slots_and_snapshots_give_theirs_up(folder, alone, num_slots):
    llm = engine(folder, max_num_batched_tokens=30)
    llm.llm_engine.blocks.states = StateSlots(num_slots)
    for _ in range(2):
        assert tokens(llm, PROMPTS) == alone


def hits(llm):
    return llm.llm_engine.scheduler.num_prefix_hits


def test_a_prompt_is_shared_up_to_its_last_border(folder, alone):
    llm = engine(folder)
    assert tokens(llm, PROMPTS[:1]) == alone[:1]
    assert not hits(llm)
    assert tokens(llm, PROMPTS[:1]) == alone[:1]
    assert hits(llm) == 64
    llm.llm_engine.reset_prefix_cache()
    assert tokens(llm, PROMPTS[:1]) == alone[:1]
    assert hits(llm) == 64


def test_the_state_is_kept_where_prompts_part(folder, alone):
    llm = engine(folder)
    first, second, third = PROMPTS[0], *PROMPTS[-2:]
    tokens(llm, [first])
    tokens(llm, [second])  # has the first 32 tokens of the first one, whose state nobody kept
    assert not hits(llm)
    assert tokens(llm, [third]) == alone[-1:]
    assert hits(llm) == 32


def test_choices_of_one_prompt_compute_it_once(folder):
    llm = engine(folder)
    params = SamplingParams(n=4, temperature=1.0, seed=3, max_tokens=6, ignore_eos=True)
    together = tokens(llm, PROMPTS[:1], params)
    assert hits(llm) == 3 * 64
    assert together == tokens(engine(folder, enable_prefix_caching=False), PROMPTS[:1], params)


def test_states_count_in_the_memory(folder, monkeypatch):
    runner = engine(folder, max_num_seqs=5).llm_engine.runner
    assert runner.num_states == 10
    bound = [state for layer in runner.model.recurrent_layers for state in layer.states]
    assert {len(state) for state in bound} == {10}
    assert engine(folder, max_num_seqs=5, enable_prefix_caching=False).llm_engine.runner.num_states == 5
    monkeypatch.setattr("armllm.environment.kv_cache_bytes", lambda: 1000)
    with pytest.raises(MemoryLimitError, match="the states of the recurrent layers take"):
        engine(folder)


def test_decode_steps_are_not_recorded(folder):
    llm = engine(folder)
    assert llm.llm_engine.runner.decode.refused == "the states of recurrent layers"
