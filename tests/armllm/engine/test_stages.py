"""Several stages give the tokens and log-probabilities of one process, with several steps on their way."""

from __future__ import annotations

import pytest
from tests.armllm.engine.test_ranks import GPTQ, answers, in_threads, loaded, short_answers  # noqa: F401
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import random_prompts, save_reference
from tests.armllm.quant.forms import gptq, write_quantized

from armllm import LLM, SamplingParams
from armllm.convert.pack import pack_checkpoint
from armllm.errors import RequestError
from armllm.layers.stages import even_counts
from armllm.sampling_params import StructuredOutputsParams

pytestmark = pytest.mark.usefixtures("in_threads")


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((2, 3), {"dtype": "float32"}),
        ((2,), {"dtype": "bfloat16"}),
        ((3,), {"dtype": "float16", "kv_cache_dtype": "int8"}),
        ((2,), {"dtype": "bfloat16", "quantization": "int8"}),
        ((2,), {"dtype": "bfloat16", "quantization": "int4-g32"}),
    ],
    ids=lambda case: "-".join(case.values()) if isinstance(case, dict) else "",
)
def test_stages_give_one_process_s_bits(make_checkpoint, sizes, options):
    tied = options["dtype"] == "float32"
    folder = make_checkpoint(num_hidden_layers=3, tie_word_embeddings=tied).folder
    expected = answers(folder, 1, **options)
    for size in sizes:
        assert answers(folder, size, "pipeline", **options) == expected


def test_quantized_and_packed_checkpoints(make_checkpoint, tmp_path):
    settings = GPTQ | {"desc_act": True}
    checkpoint = make_checkpoint(hidden_size=128, intermediate_size=256)
    write_quantized(tmp_path / "gptq", checkpoint, settings, gptq(4, 32, act_order=True))
    pack_checkpoint(str(tmp_path / "gptq"), tmp_path / "packed")
    expected = short_answers(tmp_path / "gptq", 1)
    for name in ("gptq", "packed"):
        assert short_answers(tmp_path / name, 2, "pipeline") == expected


FAMILIES = [
    "OPTForCausalLM",  # states without a sum beside them
    "GPT2LMHeadModel",  # positions that the first stage alone knows
    "Gemma4ForCausalLM",  # an embedding for each layer
    "Gemma3nForCausalLM",  # the same, and several streams
    "Qwen3_5ForCausalLM",  # recurrent states
    "GraniteMoeHybridForCausalLM",  # the same, and experts
    "MixtralForCausalLM",
    "DeepseekV3ForCausalLM",
    "Gemma3ForCausalLM",  # two kinds of layers
    "CohereForCausalLM",
    "FalconForCausalLM",
]


@pytest.mark.parametrize("architecture", FAMILIES)
def test_families(tmp_path, architecture):
    seed, config = 0, {"num_hidden_layers": 1}
    while config.get("num_hidden_layers", config.get("n_layer")) < 2 or config.get("num_kv_shared_layers"):
        seed += 1
        config = random_config(architecture, seed)
    save_reference(tmp_path, config, seed)
    for _ in range(2):
        assert short_answers(tmp_path, 2, "pipeline") == short_answers(tmp_path, 1)


def test_as_many_steps_are_on_their_way_as_there_are_stages(make_checkpoint, monkeypatch):
    """Each has its part of the sequences; a step lands when all stages have one."""
    folder = make_checkpoint(num_hidden_layers=3).folder
    with loaded(folder, 3, "pipeline", dtype="bfloat16") as llm:
        runner, seen = llm.llm_engine.runner, []
        land = runner.land

        def spy(flight, alone):
            seen.append((len(llm.llm_engine._flights), len(flight.sequences)))
            return land(flight, alone)

        monkeypatch.setattr(runner, "land", spy)
        params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
        llm.generate(random_prompts((4,) * 6, 0), params, use_tqdm=False)
    assert seen.count((2, 2)) > len(seen) / 2


def test_a_request_that_is_aborted_while_its_step_is_on_its_way_changes_no_other(make_checkpoint):
    folder = make_checkpoint(num_hidden_layers=3).folder
    params = SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)
    prompts = random_prompts((20, 5, 9, 30), 3)
    found = {}
    with loaded(folder, 2, "pipeline", dtype="bfloat16", num_gpu_blocks_override=12, max_model_len=64) as llm:
        engine = llm.llm_engine
        for number, prompt in enumerate(prompts):
            engine.add_request(f"{number}", {"prompt_token_ids": prompt}, params)
        steps = 0
        while engine.has_unfinished_requests():
            for output in engine.step():
                found[output.request_id] = output.outputs[0].token_ids
            steps += 1
            if steps == 3:
                assert engine._flights
                engine.abort(["1"])
                engine.reset_prefix_cache(reset_running_requests=True)
        engine.check_integrity()
    with loaded(folder, 1, dtype="bfloat16") as llm:
        for number, output in enumerate(llm.generate(prompts, params, use_tqdm=False)):
            if number != 1:
                assert found[f"{number}"] == output.outputs[0].token_ids


SHAPES = [
    {"regex": "[a-d]{3}-[0-9]{2}"},
    {"choice": ["yes", "no", "perhaps"]},
    {"json": {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}},
    {"grammar": 'root ::= "a" [0-9]+ "b"'},
]


def choices(folder, size, by):
    """Texts, tokens and log-probabilities of requests with grammars, several answers, seeds and penalties."""
    grammars = [
        SamplingParams(
            n=2, max_tokens=24, seed=seed, logprobs=2, structured_outputs=StructuredOutputsParams(**shape)
        )
        for seed, shape in enumerate(SHAPES)
    ]
    free = [
        SamplingParams(n=3, max_tokens=9, seed=7, temperature=1.3, top_p=0.9, min_p=0.01, logprobs=0),
        SamplingParams(
            n=2, max_tokens=9, seed=8, presence_penalty=0.4, repetition_penalty=1.2, logit_bias={9: 3.0},
        ),
        SamplingParams(max_tokens=9, temperature=0, min_tokens=9, stop=["e"], bad_words=["the"]),
    ]  # fmt: skip
    params = grammars + free
    with loaded(folder, size, by, dtype="bfloat16", seed=5) as llm:
        results = llm.generate(["The quick"] * len(params), params, use_tqdm=False)
        llm.llm_engine.check_integrity()
    for shape, result in zip(SHAPES[:2], results, strict=False):
        for one in result.outputs:
            assert one.text in shape.get("choice", ()) or one.text[3] == "-"
    return [
        (
            one.text,
            one.token_ids,
            one.finish_reason,
            [{token: found.logprob for token, found in step.items()} for step in one.logprobs or ()],
        )
        for result in results
        for one in result.outputs
    ]


def test_grammars_answers_and_seeds_are_those_of_one_process(make_checkpoint):
    """Rank 0 has sampler and grammars, and gets the scores of one process."""
    folder = make_checkpoint(num_hidden_layers=2, num_key_value_heads=4).folder
    expected = choices(folder, 1, "tensor")
    assert len(expected) == 14
    for size, by in ((2, "tensor"), (4, "tensor"), (2, "pipeline")):
        assert choices(folder, size, by) == expected


def test_embeddings_are_those_of_one_process(make_checkpoint):
    folder, vectors = make_checkpoint().folder, []
    for size in (1, 2):
        with loaded(folder, size, "pipeline", dtype="float32") as llm:
            vectors.append(llm.embed([[5, 6, 7]], use_tqdm=False)[0].outputs.embedding)
    assert vectors[0] == vectors[1]


def test_a_stage_has_its_layers_only(make_checkpoint, monkeypatch):
    folder = make_checkpoint(num_hidden_layers=5, tie_word_embeddings=False).folder
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "4,1")
    with loaded(folder, 2, "pipeline", dtype="float32") as llm:
        first = llm.llm_engine.runner
        assert len(first.model.layers) == len(first.model.attention_layers) == 4
        assert hasattr(first.model, "lm_head")
        assert not hasattr(first.model, "norm")
        whole = first.load_report.weight_bytes
    assert even_counts(5, 3) == [1, 2, 2]
    with loaded(folder, 1, dtype="float32") as llm:
        assert llm.llm_engine.runner.load_report.weight_bytes > whole


def test_what_stages_cannot_compute_is_refused(make_checkpoint, tmp_path, monkeypatch):
    folder = make_checkpoint(num_hidden_layers=2).folder
    for options, message in (
        ({"pipeline_parallel_size": 3}, "3 is above the model's 2 layers"),
        ({"pipeline_parallel_size": 0}, "pipeline_parallel_size must be a positive integer"),
        ({"pipeline_parallel_size": 65}, "at most 64"),
        ({"pipeline_parallel_size": 2, "tensor_parallel_size": 2}, "do not go together"),
        (
            {"pipeline_parallel_size": 2, "quantization": "int4-g32", "calibration": "a.txt"},
            "pipeline_parallel_size 2: calibration",
        ),
    ):
        with pytest.raises(RequestError, match=message):
            LLM(folder, **options)
    for text in ("2", "2,0", "1,2", "x,1"):
        monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", text)
        with pytest.raises(RequestError, match="VLLM_PP_LAYER_PARTITION must be"):
            LLM(folder, pipeline_parallel_size=2)


def test_layers_that_share_keys_stay_in_one_stage(tmp_path, monkeypatch):
    seed, config = 0, {}
    while not config.get("num_kv_shared_layers") or config["num_hidden_layers"] < 3:
        seed += 1
        config = random_config("Gemma4ForCausalLM", seed)
    save_reference(tmp_path, config, seed)
    layers = config["num_hidden_layers"]
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", f"{layers - 1},1")
    with pytest.raises(RequestError, match="uses the keys and values of layer"):
        short_answers(tmp_path, 2, "pipeline")


@pytest.mark.parametrize("by", ["tensor", "pipeline"])
def test_states_and_experts_after_preemptions_and_from_the_prefix_cache(tmp_path, by):
    for architecture, changes in (
        ("Qwen3_5ForCausalLM", {"layer_types": ["linear_attention", "full_attention"] * 2}),
        ("MixtralForCausalLM", {}),
    ):
        config = {k: v for k, v in random_config(architecture, 0).items() if k != "full_attention_interval"}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        save_reference(tmp_path, config | {"num_hidden_layers": 4} | heads | changes, 0)
        options = {"dtype": "bfloat16", "skip_tokenizer_init": True}
        assert answers(tmp_path, 2, by, **options) == answers(tmp_path, 1, **options)
