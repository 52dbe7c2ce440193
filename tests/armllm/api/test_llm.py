"""The offline API: what it takes, what it refuses, and that an error leaves the engine usable."""

from __future__ import annotations

import json
import shutil

import pytest

import armllm
from armllm import LLM, CompletionOutput, RequestOutput, SamplingParams
from armllm.errors import ArmllmError, CheckpointError, MemoryLimitError, RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(make_checkpoint):
    return make_checkpoint().folder


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(folder, dtype="float32")


def test_every_form_of_prompt_gives_the_same(llm):
    text = "The quick brown"
    ids = llm.get_tokenizer().encode(text)
    assert ids[0] == 0, "the tokenizer's begin token comes first"
    forms = [
        text,
        [text],
        {"prompt": text},
        [{"prompt": text}],
        ids,
        tuple(ids),
        [ids],
        {"prompt_token_ids": ids},
        [{"prompt_token_ids": ids}],
        [{"prompt_token_ids": ids, "prompt": text}],
    ]
    outputs = [llm.generate(form, GREEDY, use_tqdm=False) for form in forms]
    assert all(len(output) == 1 for output in outputs)
    assert {tuple(output[0].outputs[0].token_ids) for output in outputs} == {
        tuple(outputs[0][0].outputs[0].token_ids)
    }
    both = {"prompt": "as it was written", "prompt_token_ids": ids}
    mixed = llm.generate([text, {"prompt_token_ids": ids}, ids, both], GREEDY, use_tqdm=False)
    assert [output.outputs[0].text for output in mixed] == [outputs[0][0].outputs[0].text] * 4
    assert [output.prompt for output in mixed] == [text, None, None, "as it was written"]


def test_outputs_are_as_vllm_s_and_in_order(llm):
    prompts = ["one", "two and more words", "three"]
    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (9, 2, 5)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    for prompt, choice, output in zip(prompts, params, outputs, strict=True):
        assert isinstance(output, RequestOutput)
        assert isinstance(output.outputs[0], CompletionOutput)
        assert output.prompt == prompt
        assert output.prompt_token_ids == llm.get_tokenizer().encode(prompt)
        assert output.finished
        assert output.outputs[0].finished()
        assert len(output.outputs[0].token_ids) == choice.max_tokens
        assert output.outputs[0].text == llm.get_tokenizer().decode(output.outputs[0].token_ids)


def test_no_prompts_give_no_outputs(llm):
    assert llm.generate([], GREEDY, use_tqdm=False) == []


@pytest.mark.parametrize(
    ("prompts", "words"),
    [
        ("x" * 1000, "max_model_len 256"),
        (list(range(256)), "256 tokens"),
        ([[]], "empty"),
        ([5, 400], "400 is not in the vocabulary"),
        ([5, -1], "-1 is not in the vocabulary"),
        ({"prompt_token_ids": [1.5]}, "1.5"),
        ({"prompt_token_ids": [True]}, "True"),
        ({"prompt_token_ids": "text"}, "list of ints"),
        ({"prompt": [1, 2]}, "text"),
        ({"prompt": "x", "multi_modal_data": {"image": 1}}, "takes no pictures"),
        ({"prompt": "x", "multi_modal_data": {"audio": 1}}, "'audio' is not supported"),
        ({"prompt": "x", "encoder_prompt": "x"}, "encoder_prompt"),
        ({}, "none"),
        (5, "int"),
        ([["a"]], "'a'"),
        ({"prompt": 5, "prompt_token_ids": [5]}, "text"),
        ("\ud800", "tokenized"),
        (["a good one", "\ud800"], "tokenized"),
        (["a good one", "x" * 1000], "max_model_len 256"),
    ],
)
def test_bad_prompts_are_refused_before_any_work(llm, prompts, words):
    batch = ["a good one", *prompts] if isinstance(prompts, list) and prompts == [[]] else prompts
    with pytest.raises(RequestError, match=words) as caught:
        llm.generate(batch, GREEDY, use_tqdm=False)
    assert len(str(caught.value)) < 250
    assert not llm.llm_engine.has_unfinished_requests()
    llm.llm_engine.check_integrity()


def test_one_bad_prompt_refuses_the_batch_and_leaves_nothing_behind(llm):
    with pytest.raises(RequestError):
        llm.generate(["good", [1, 2], [9999]], GREEDY, use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    assert len(llm.generate("good", GREEDY, use_tqdm=False)) == 1


def test_sampling_params_must_match_the_prompts(llm):
    with pytest.raises(RequestError, match="2 prompts but 1 sampling_params"):
        llm.generate(["a", "b"], [GREEDY], use_tqdm=False)
    for bad, kind in (([{"temperature": 0}], "dict"), ({"temperature": 0}, "dict"), (5, "int")):
        with pytest.raises(RequestError, match=f"must be SamplingParams, not {kind}"):
            llm.generate(["a"], bad, use_tqdm=False)
    with pytest.raises(RequestError, match="pooling_params must be PoolingParams, not str"):
        llm.embed("a", "mean")
    with pytest.raises(RequestError, match="stop_token_ids: 400"):
        llm.generate("a", SamplingParams(stop_token_ids=[400]), use_tqdm=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e39),  # infinite in fp32
        ("temperature", 10**400),
        ("repetition_penalty", 1e-40),
        ("repetition_penalty", 1e39),
        ("seed", 10**60),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", "hot"),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("max_tokens", 0),
        ("seed", 1.5),
        ("stop", [""]),
        ("stop", [1]),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", 5),
        ("stop", 5),
        ("bad_words", "abc"),
        ("allowed_token_ids", 5),
        ("output_kind", "DELTA"),
        ("ignore_eos", 1),
    ],
)
def test_sampling_parameters_out_of_range_are_named(name, value):
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})


def test_without_sampling_params_the_checkpoint_s_own_hold(folder, tmp_path):
    assert LLM(folder, dtype="float32").get_default_sampling_params() == SamplingParams()
    copy = shutil.copytree(folder, tmp_path / "copy")
    given = {"temperature": 0.0, "top_k": 7, "top_p": 0.8, "max_new_tokens": 3, "repetition_penalty": 1.2}
    (copy / "generation_config.json").write_text(json.dumps({"do_sample": True, "min_p": None, **given}))
    llm = LLM(copy, dtype="float32")
    expected = SamplingParams(temperature=0, top_k=7, top_p=0.8, max_tokens=3, repetition_penalty=1.2)
    assert llm.get_default_sampling_params() == expected
    (ours,) = llm.generate("hello", use_tqdm=False)
    (same,) = llm.generate("hello", expected, use_tqdm=False)
    assert ours.outputs[0].token_ids == same.outputs[0].token_ids
    (copy / "generation_config.json").write_text(json.dumps({"top_p": 7}))
    with pytest.raises(CheckpointError, match=r"generation_config\.json: top_p must be"):
        LLM(copy, dtype="float32").generate("hello")


def test_unknown_parameters_are_refused_by_name(folder):
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)
    with pytest.raises(RequestError, match="speculative_config is not supported: tokens are"):
        LLM(folder, speculative_config={"method": "ngram"})


def test_options_of_vllm_that_change_nothing_are_taken_with_those_values_only(folder):
    LLM(folder, dtype="float32", prefill_context_parallel_size=1, trust_remote_code=True, enforce_eager=True)
    with pytest.raises(RequestError, match="prefill_context_parallel_size can only be 1 here, not 2"):
        LLM(folder, prefill_context_parallel_size=2)
    with pytest.raises(RequestError, match="device can only be 'cpu' or 'auto' here, not 'cuda'"):
        LLM(folder, device="cuda")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "float8"}, "float8"),
        ({"dtype": "int8"}, "int8"),
        ({"max_model_len": 257}, "max_model_len 257 is above 256"),
        ({"max_model_len": 0}, "max_model_len must be a positive integer"),
        ({"max_num_seqs": -1}, "max_num_seqs"),
        ({"max_num_batched_tokens": "many"}, "max_num_batched_tokens"),
        ({"block_size": 24}, "block_size"),
        ({"block_size": 0}, "block_size"),
        ({"seed": "x"}, "seed"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching"),
    ],
)
def test_bad_options_are_named(folder, options, words):
    with pytest.raises(RequestError, match=words):
        LLM(folder, **{"dtype": "float32"} | options)


def test_a_cache_too_small_for_one_sequence_is_refused(folder, monkeypatch):
    with pytest.raises(MemoryLimitError, match="num_gpu_blocks_override allows 240 tokens") as caught:
        LLM(folder, dtype="float32", num_gpu_blocks_override=15, max_model_len=256)
    assert "lower max_model_len to at most 240" in str(caught.value)
    LLM(folder, dtype="float32", num_gpu_blocks_override=15, max_model_len=240)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0.0001")
    with pytest.raises(MemoryLimitError, match="VLLM_CPU_KVCACHE_SPACE"):
        LLM(folder, dtype="float32")


def test_few_blocks_limit_the_length_unless_it_is_asked_for(folder):
    llm = LLM(folder, dtype="float32", num_gpu_blocks_override=2)
    with pytest.raises(RequestError, match=r"32 tokens; .* max_model_len 32"):
        llm.generate(list(range(2, 34)), GREEDY, use_tqdm=False)
    params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
    outputs = llm.generate([list(range(2, 22)), [3, 4]], params, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [12, 30]
    llm.llm_engine.check_integrity()


@pytest.mark.parametrize(
    "origin", ["num_gpu_blocks_override", "kv_cache_memory_bytes", "VLLM_CPU_KVCACHE_SPACE"]
)
def test_a_cache_larger_than_memory_is_refused(folder, monkeypatch, origin):
    options = {}
    if origin.startswith("VLLM"):
        monkeypatch.setenv(origin, "1000000")
    else:
        options[origin] = 1 << 50
    with pytest.raises(MemoryLimitError, match=f"{origin} asks for takes .* of memory are left"):
        LLM(folder, dtype="float32", **options)


def test_kv_cache_space_is_honored(folder, monkeypatch):
    block_bytes = (
        LLM(folder, dtype="float32").llm_engine.runner.model.attention_layers[0].layout.block_bytes * 2
    )
    of_option = {"dtype": "float32", "kv_cache_memory_bytes": int(70.5 * block_bytes)}
    assert LLM(folder, **of_option).llm_engine.blocks.num_blocks == 70
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", str(100.5 * block_bytes / 2**30))
    assert LLM(folder, **of_option).llm_engine.blocks.num_blocks == 100
    assert LLM(folder, dtype="float32").llm_engine.blocks.num_blocks == 100
    monkeypatch.setenv("ARMLLM_KVCACHE_SPACE", str(50.5 * block_bytes / 2**30))
    assert LLM(folder, dtype="float32").llm_engine.blocks.num_blocks == 50
    monkeypatch.setenv("ARMLLM_KVCACHE_SPACE", "plenty")
    with pytest.raises(RequestError, match="ARMLLM_KVCACHE_SPACE must be a number of GiB"):
        LLM(folder, dtype="float32")


def test_a_model_larger_than_memory_is_refused_before_loading(folder, monkeypatch):
    monkeypatch.setattr("armllm.engine.runner.available_memory", lambda node, **_: 1000)
    with pytest.raises(MemoryLimitError, match="the weights take"):
        LLM(folder, dtype="float32")


def test_without_a_tokenizer_token_ids_still_work(folder, tmp_path):
    bare = shutil.copytree(folder, tmp_path / "bare")
    (bare / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        LLM(bare, dtype="float32")
    llm = LLM(bare, dtype="float32", skip_tokenizer_init=True)
    (output,) = llm.generate([3, 4, 5], GREEDY, use_tqdm=False)
    assert output.outputs[0].text == ""
    assert len(output.outputs[0].token_ids) == 5
    with pytest.raises(RequestError, match="token ids"):
        llm.generate("text", GREEDY)
    with pytest.raises(RequestError, match="stop needs a tokenizer"):
        llm.generate([3], SamplingParams(stop="x"))
    elsewhere = LLM(bare, dtype="float32", tokenizer=str(folder))
    assert elsewhere.generate("text", GREEDY, use_tqdm=False)[0].outputs[0].text


def test_a_tokenizer_that_does_not_belong_to_the_model_is_refused(folder, make_checkpoint):
    small = make_checkpoint(vocab_size=300).folder
    with pytest.raises(CheckpointError, match="don't belong together"):
        LLM(small, dtype="float32")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_step_leaves_the_engine_usable(folder, error, monkeypatch):
    llm = LLM(folder, dtype="float32")
    expected = llm.generate("hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    real = type(llm.llm_engine.runner).run
    calls = []

    def fail(self, sequences, *arguments):
        calls.append(len(sequences))
        if len(calls) == 3:
            raise error
        return real(self, sequences, *arguments)

    monkeypatch.setattr(type(llm.llm_engine.runner), "run", fail)
    with pytest.raises(error):
        llm.generate(["hello", "hello world", "hello there you"], GREEDY, use_tqdm=False)
    assert not llm.llm_engine.has_unfinished_requests()
    llm.llm_engine.check_integrity()
    assert llm.llm_engine.blocks.num_free_blocks == llm.llm_engine.blocks.num_blocks
    assert llm.generate("hello", GREEDY, use_tqdm=False)[0].outputs[0].token_ids == expected


def test_the_progress_bar_counts_tokens(llm, capsys):
    llm.generate(["one", "two"], GREEDY)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Processed prompts: 100%" in shown.err
    assert "2/2" in shown.err
    assert "est. speed input: " in shown.err
    assert "output: 0.00 toks/s]" not in shown.err.split("\r")[-1]
    llm.generate(["one"], GREEDY, use_tqdm=False)
    assert capsys.readouterr().err == ""


def test_errors_are_value_errors_as_vllm_s_users_expect():
    assert issubclass(ArmllmError, ValueError)


def test_the_package_exports_what_it_says():
    for name in armllm.__all__:
        assert getattr(armllm, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = armllm.nonsense


def test_auto_dtype_follows_the_cpu(folder, monkeypatch):
    for has, expected in ((True, "torch.bfloat16"), (False, "torch.float32")):
        monkeypatch.setattr("armllm.engine.config.cpu_computes_bfloat16", lambda has=has: has)
        assert str(LLM(folder).llm_engine.runner.dtype) == expected


def test_config_json_with_only_a_model_type_is_enough(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    del config["architectures"]
    (copy / "config.json").write_text(json.dumps(config))
    LLM(copy, dtype="float32")
