"""Adapters beside the base's matrices give the tokens of a model with them merged into its weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.armllm.adapters import ALL, ATTENTION, merge, write_adapter
from tests.armllm.engine.test_ranks import in_threads, loaded  # noqa: F401

from armllm import LLM, LoRARequest, SamplingParams
from armllm.errors import ModelError, RequestError

NUM_TOKENS = 16
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False}
PHI3 = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0}
OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "ffn_dim": 96,
    "word_embed_proj_dim": 64,
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "drop": ("rope_theta", "num_key_value_heads"),
}
HYBRID = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "head_dim": 16,
    "rms_norm_eps": 1e-2,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)

CASES = {
    "all matrices": ({}, ALL, {}),
    "q and v only, rank 1": ({}, ("q_proj", "v_proj"), {"r": 1, "lora_alpha": 3}),
    "rank-stabilized": ({}, ALL, {"use_rslora": True, "r": 7}),
    "DoRA": ({}, ALL, {"use_dora": True}),
    "DoRA of some parts, with biases": (QWEN2, ("k_proj", "o_proj", "up_proj"), {"use_dora": True}),
    "alpha and rank by module": (
        {},
        ALL,
        {
            "ranks": {"q_proj": 2, "down_proj": 6},
            "rank_pattern": {"q_proj": 2, "mlp.down_proj": 6},
            "alpha_pattern": {r"layers.1.self_attn.v_proj": 32, "up_proj": 1},
        },
    ),
    "a regular expression": ({}, ATTENTION, {"target_modules": r".*\.self_attn\.[qkvo]_proj"}),
    "all-linear": ({}, ALL, {"target_modules": "all-linear"}),
    "fused matrices": (PHI3, ("qkv_proj", "gate_up_proj"), {}),
    "OPT": (OPT, ("q_proj", "out_proj", "fc1", "fc2"), {}),
    "gated delta nets": (HYBRID, ("q_proj", "v_proj", "in_proj_qkv", "in_proj_b", "out_proj", "up_proj"), {}),
    "tied head": ({"tie_word_embeddings": True}, ALL, {}),
}


@dataclasses.dataclass
class Merged:
    """A checkpoint whose model has an adapter merged into it."""

    base: object
    folder: object

    def prompts(self, lengths, seed=0):
        twin = dataclasses.replace(self.base, model=merge(self.base.model, self.folder))
        return twin.prompts(lengths, NUM_TOKENS, seed)


def generate(llm, prompts, requests, params=GREEDY):
    outputs = llm.generate(
        [list(prompt) for prompt in prompts], params, lora_request=requests, use_tqdm=False
    )
    return [[list(one.token_ids) for one in output.outputs] for output in outputs]


@pytest.mark.parametrize("name", CASES)
def test_tokens_are_those_of_merged_weights(make_checkpoint, tmp_path, name):
    """Catches a wrong scaling, a part of a fused matrix in another's place, DoRA's norm of another weight."""
    changes, targets, config = CASES[name]
    checkpoint = make_checkpoint(**changes)
    folder = write_adapter(tmp_path / "adapter", checkpoint.model, targets, **config)
    expected = Merged(checkpoint, folder).prompts((1, 5, 33))
    llm = LLM(str(checkpoint.folder), dtype="float32", enable_lora=True, max_lora_rank=8)
    found = generate(llm, expected, LoRARequest("one", 1, str(folder)))
    assert found == [[tokens] for tokens in expected.values()]


def test_logits_that_overflow_name_the_adapter(make_checkpoint, tmp_path):
    """Each factor is small enough; what the layers make of their product is not."""
    checkpoint = make_checkpoint()
    folder = write_adapter(tmp_path, checkpoint.model)
    path = folder / "adapter_model.safetensors"
    save_file({name: tensor.fill_(1e18) for name, tensor in load_file(path).items()}, path)
    llm = LLM(str(checkpoint.folder), dtype="float32", enable_lora=True)
    with pytest.raises(ModelError, match="with the adapter 'large' are nan: its values are too large"):
        generate(llm, [[5, 6, 7]], LoRARequest("large", 1, str(folder)))
    assert generate(llm, [[5, 6, 7]], None)
    llm.llm_engine.check_integrity()


@pytest.fixture(scope="module")
def three(make_checkpoint, tmp_path_factory):
    """A checkpoint, and for the base (None) and three adapters: prompts with their tokens."""
    checkpoint = make_checkpoint()
    root = tmp_path_factory.mktemp("adapters")
    expected = {None: checkpoint.prompts((3, 20), NUM_TOKENS)}
    options = {1: {}, 2: {"targets": ("q_proj", "v_proj"), "r": 8}, 3: {"use_dora": True, "r": 2}}
    for number, config in options.items():
        folder = write_adapter(root / str(number), checkpoint.model, seed=number, **config)
        request = LoRARequest(f"adapter-{number}", number, str(folder))
        expected[request] = Merged(checkpoint, folder).prompts((3, 20))
    return checkpoint, expected


def mixed(expected):
    """Prompts, adapters and tokens of all, in turns."""
    rows = [
        (prompt, request, tokens) for request, found in expected.items() for prompt, tokens in found.items()
    ]
    rows = rows[::2] + rows[1::2]
    return [[row[index] for row in rows] for index in range(3)]


LIMITS = {
    "one batch": {"max_loras": 3},
    "two adapters at once": {"max_loras": 2, "max_cpu_loras": 3},
    "one adapter at once": {"max_loras": 1},
    "prompts in chunks": {"max_loras": 3, "max_num_batched_tokens": 7},
    "preemption": {"max_loras": 3, "num_gpu_blocks_override": 5, "max_model_len": 48},
    "no recorded base steps either": {"max_loras": 4, "max_num_seqs": 3},
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_batch_of_several_adapters(three, name):
    """Each sequence has the tokens of its own adapter, and those without one those of the base."""
    checkpoint, expected = three
    prompts, requests, tokens = mixed(expected)
    llm = LLM(str(checkpoint.folder), dtype="float32", enable_lora=True, **LIMITS[name])
    assert generate(llm, prompts, requests) == [[one] for one in tokens]
    assert generate(llm, prompts[::-1], requests[::-1]) == [[one] for one in tokens[::-1]]
    llm.llm_engine.check_integrity()
    if name == "preemption":
        assert llm.stats().num_preemptions


def test_the_prefix_cache_keeps_adapters_apart(three):
    """The same prompt with another adapter has other keys: none of its blocks may be shared."""
    checkpoint, expected = three
    llm = LLM(str(checkpoint.folder), dtype="float32", enable_lora=True, max_loras=3)
    alone = LLM(str(checkpoint.folder), dtype="float32", enable_lora=True, enable_prefix_caching=False)
    prompt = list(next(iter(expected[None]))) * 12  # 36 tokens: two full blocks
    for request in [*expected, *expected]:
        assert generate(llm, [prompt], request) == generate(alone, [prompt], request)
    assert llm.stats().num_prefix_hits == len(expected) * 32


def test_several_choices_and_log_probabilities(three):
    """n > 1 takes the adapter for each choice, and prompt_logprobs sees its states."""
    checkpoint, expected = three
    request = list(expected)[1]
    (prompt, tokens), *_ = expected[request].items()
    llm = LLM(str(checkpoint.folder), dtype="float32", enable_lora=True)
    params = SamplingParams(
        n=3, temperature=1, seed=1, top_k=1, max_tokens=NUM_TOKENS, ignore_eos=True, prompt_logprobs=0
    )
    (output,) = llm.generate(list(prompt), params, lora_request=request, use_tqdm=False)
    assert [list(choice.token_ids) for choice in output.outputs] == [tokens] * 3
    merged = merge(checkpoint.model, Path(request.lora_path))
    with torch.inference_mode():
        reference = merged(torch.tensor([list(prompt)])).logits.log_softmax(-1)[0]
    for position, token in enumerate(prompt[1:]):
        found = output.prompt_logprobs[position + 1][token].logprob
        assert found == pytest.approx(float(reference[position, token]), abs=1e-3)


@pytest.mark.parametrize("scheme", ["int8", "int4-g32"])
@pytest.mark.parametrize("use_dora", [False, True])
def test_on_a_quantized_base(make_checkpoint, tmp_path, scheme, use_dora):
    """The adapter adds to the rounded weight, and DoRA's norm is that of the rounded weight."""
    checkpoint = make_checkpoint(hidden_size=64, intermediate_size=128)
    folder = write_adapter(tmp_path / "adapter", checkpoint.model, use_dora=use_dora)
    options = {"dtype": "float32", "quantization": scheme, "enable_lora": True}
    llm = LLM(str(checkpoint.folder), **options)
    engine = llm.llm_engine
    adapter = engine.adapters.get(LoRARequest("a", 1, str(folder)))
    slots = engine.runner.slots
    generator = torch.Generator().manual_seed(0)
    for product in slots.products:
        x = torch.randn(5, product.in_features, generator=generator)
        base = product(x)
        eye = torch.eye(product.in_features)
        weight = product(eye).T  # no biases in this model
        with slots.applied([None, adapter], [2, 3], [1, 1]):
            changed = product(x)
        assert torch.equal(changed[:2], base[:2])
        for name, columns in product.parts.items():
            change = adapter.matrices[name]
            moved = base[2:, columns] + x[2:] @ (change.scaling * change.b @ change.a).T
            if use_dora:
                norm = (weight[columns] + change.scaling * change.b @ change.a).norm(dim=1)
                moved *= change.magnitude / norm
            torch.testing.assert_close(changed[2:, columns], moved, rtol=1e-4, atol=1e-4)


def test_base_requests_have_the_bits_of_an_engine_without_adapters(three):
    """A step without adapters, recorded or not, is the same arithmetic."""
    checkpoint, expected = three
    prompts = [list(prompt) for prompt in expected[None]]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
    found = []
    for enable_lora in (False, True):
        llm = LLM(str(checkpoint.folder), dtype="float32", enable_lora=enable_lora)
        outputs = llm.generate(prompts, params, use_tqdm=False)
        found.append(
            [[next(iter(one.values())).logprob for one in output.outputs[0].logprobs] for output in outputs]
        )
        assert llm.llm_engine.runner.decode.recordings
    assert found[0] == found[1]


def log_probabilities(llm, prompts, requests):
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
    outputs = llm.generate(prompts, params, lora_request=requests, use_tqdm=False)
    return [[next(iter(one.values())).logprob for one in output.outputs[0].logprobs] for output in outputs]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recorded_steps_with_adapters_have_the_bits_of_computed_ones(three, dtype):
    """Catches slots that are those of the recorded step, and factors that a replay reads elsewhere."""
    checkpoint, expected = three
    prompts, requests, _ = mixed(expected)
    prompts = [list(prompt) for prompt in prompts]
    options = {"dtype": dtype, "enable_lora": True, "max_loras": 3, "enable_prefix_caching": False}
    recorded, computed = LLM(str(checkpoint.folder), **options), LLM(str(checkpoint.folder), **options)
    computed.llm_engine.runner.decode.most_sequences = 0
    for turn in range(3):
        others = requests[turn:] + requests[:turn]
        assert log_probabilities(recorded, prompts, others) == log_probabilities(computed, prompts, others)
    assert not computed.llm_engine.runner.decode.with_adapters
    assert list(recorded.llm_engine.runner.decode.with_adapters) == [len(prompts)]


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize(
    ("dtype", "quantization", "most"),
    [("float32", None, 1), ("bfloat16", None, 3), ("float16", None, 2), ("bfloat16", "int8", 2)],
)
def test_ranks_and_stages_give_one_process_s_bits(three, dtype, quantization, most):
    """Catches rows of another rank, an adapter that a follower lacks, and slots of another step."""
    checkpoint, expected = three
    prompts, requests, _ = mixed(expected)
    prompts = [list(prompt) for prompt in prompts]
    options = {"dtype": dtype, "quantization": quantization, "enable_lora": True, "max_loras": most}
    found = []
    for size, by in ((1, "tensor"), (2, "tensor"), (2, "pipeline")):
        with loaded(str(checkpoint.folder), size, by, max_cpu_loras=3, **options) as llm:
            turns = (requests, requests[1:] + requests[:1])
            found.append([log_probabilities(llm, prompts, turn) for turn in turns])
    assert found[0] == found[1]
    assert found[0] == found[2]


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("name", ["DoRA of some parts, with biases", "fused matrices", "OPT", "tied head"])
def test_ranks_cut_adapters_of_all_kinds_of_matrices(make_checkpoint, tmp_path, name):
    changes, targets, config = CASES[name]
    checkpoint = make_checkpoint(**changes)
    folder = write_adapter(tmp_path / "adapter", checkpoint.model, targets, **config)
    expected = Merged(checkpoint, folder).prompts((1, 33))
    options = {"dtype": "float32", "enable_lora": True, "max_lora_rank": 8}
    with loaded(str(checkpoint.folder), 2, **options) as llm:
        found = generate(llm, expected, LoRARequest("one", 1, str(folder)))
    assert found == [[tokens] for tokens in expected.values()]


@pytest.mark.usefixtures("in_threads")
def test_an_adapter_goes_through_a_stage_to_the_next(make_checkpoint, tmp_path):
    """One slot for two adapters, whose steps are on their way at the same time."""
    checkpoint = make_checkpoint(num_hidden_layers=3)
    expected = {}
    for number in (1, 2):
        folder = write_adapter(tmp_path / str(number), checkpoint.model, seed=number)
        request = LoRARequest(f"adapter-{number}", number, str(folder))
        expected[request] = Merged(checkpoint, folder).prompts((3, 20))
    prompts, requests, tokens = mixed(expected)
    options = {"dtype": "float32", "enable_lora": True, "max_loras": 1, "max_cpu_loras": 2}
    with loaded(str(checkpoint.folder), 3, "pipeline", **options) as llm:
        for _ in range(2):
            assert generate(llm, prompts, requests) == [[one] for one in tokens]


def test_other_adapters_in_the_slots_need_no_other_recording(three):
    """Once every matrix has been changed, recordings stay, whatever the slots hold later."""
    checkpoint, expected = three
    prompts = [list(prompt) for prompt in expected[None]]
    first, second, dora = list(expected)[1:]
    llm = LLM(str(checkpoint.folder), dtype="float32", enable_lora=True, max_loras=1)
    recordings = llm.llm_engine.runner.decode.with_adapters
    for request in (first, dora):
        generate(llm, prompts, request)
    found = recordings[len(prompts)]
    for request in (second, dora, first, dora):
        assert generate(llm, prompts, request) == [[one] for one in expected[request].values()]
        assert recordings[len(prompts)] is found


def test_requests_that_are_refused(three):
    checkpoint, expected = three
    request = list(expected)[1]
    llm = LLM(str(checkpoint.folder), dtype="float32")
    with pytest.raises(RequestError, match="enable_lora"):
        generate(llm, [[5]], request)
    llm = LLM(str(checkpoint.folder), dtype="float32", enable_lora=True)
    generate(llm, [[5]], request)
    with pytest.raises(RequestError, match="lora_int_id 1 is that of adapter 'adapter-1'"):
        generate(llm, [[5]], LoRARequest("other", 1, request.lora_path))
    with pytest.raises(RequestError, match="2 prompts but 1 lora_requests"):
        generate(llm, [[5], [6]], [request])
    for values in (("", 1, "x"), ("a", 0, "x"), ("a", 1, ""), ("a", True, "x")):
        with pytest.raises(RequestError, match="must be"):
            LoRARequest(*values)
    for options in (
        {"max_loras": 0},
        {"max_lora_rank": 0},
        {"max_loras": 3, "max_cpu_loras": 2},
        {"quantization": "int8", "calibration": "some text"},
    ):
        with pytest.raises(RequestError, match=r"max_lora|max_cpu_loras|enable_lora"):
            LLM(str(checkpoint.folder), enable_lora=True, **options)
