"""Methods and fields that programs for vLLM use, beside generating text."""

from __future__ import annotations

import asyncio
import importlib
import time

import pytest
import torch

import armllm
from armllm import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    AsyncLLMEngine,
    BeamSearchParams,
    EmbeddingRequestOutput,
    EngineArgs,
    LLMEngine,
    LoRARequest,
    PoolingParams,
    PoolingRequestOutput,
    SamplingParams,
    ScoringRequestOutput,
    StructuredOutputsParams,
    TextPrompt,
)
from armllm.engine.metrics import Counter, Gauge
from armllm.errors import RequestError
from armllm.module_names import NAMES


@pytest.fixture(scope="module")
def folder(make_checkpoint):
    return str(make_checkpoint().folder)


@pytest.fixture(scope="module")
def llm(folder):
    return LLM.from_engine_args(EngineArgs(folder, dtype="float32", max_model_len=64))


def test_encode_returns_the_embedding_as_a_tensor(llm):
    (output,) = llm.encode("Hello", pooling_task="embed", use_tqdm=False)
    (embedded,) = llm.embed("Hello", use_tqdm=False)
    assert type(output) is PoolingRequestOutput
    assert isinstance(embedded, EmbeddingRequestOutput)
    assert isinstance(embedded, PoolingRequestOutput)
    torch.testing.assert_close(output.outputs.data, torch.tensor(embedded.outputs.embedding))
    assert embedded.outputs.hidden_size == len(output.outputs.data)
    (raw,) = llm.encode("Hello", PoolingParams(use_activation=False), use_tqdm=False)
    assert raw.outputs.data.norm() != pytest.approx(1, abs=1e-3)
    (score,) = llm.score("Hello", "Hello", use_tqdm=False)
    assert isinstance(score, ScoringRequestOutput)
    assert score.outputs.score == pytest.approx(1, abs=1e-5)


def test_what_a_model_cannot_do_is_said(llm):
    with pytest.raises(RequestError, match="classification head"):
        llm.classify("Hello")
    with pytest.raises(RequestError, match="classification head"):
        llm.encode("Hello", pooling_task="classify")
    with pytest.raises(RequestError, match="can only be one of embed"):
        PoolingParams(task="plugin")
    with pytest.raises(RequestError, match="lora_request must be a LoRARequest"):
        llm.generate("Hello", lora_request=object())
    with pytest.raises(RequestError, match="takes no pictures"):
        llm.generate({"prompt": "x", "multi_modal_data": {"image": 1}})


def test_parameters_can_be_copied_and_have_vllms_neutral_ones():
    params = SamplingParams(stop=["a"], logit_bias={1: 2.0}, flat_logprobs=False, extra_args={})
    copied = params.clone()
    assert copied == params
    copied.stop.append("b")
    copied.logit_bias[3] = 1.0
    assert (params.stop, params.logit_bias) == (["a"], {1: 2.0})
    for wrong in (
        {"flat_logprobs": True},
        {"spaces_between_special_tokens": False},
        {"extra_args": {"a": 1}},
    ):
        with pytest.raises(RequestError, match=next(iter(wrong))):
            SamplingParams(**wrong)
    assert PoolingParams(dimensions=8).clone() == PoolingParams(dimensions=8)


def test_modules_have_vllms_names_too():
    """It would catch an example for vLLM that does not get past its imports."""
    for name in NAMES:
        module = importlib.import_module(f"armllm.{name}")
        assert not NAMES[name] or len(vars(module)) > 8, name
    assert issubclass(importlib.import_module("armllm.v1.engine.async_llm").AsyncLLM, AsyncLLM)
    assert importlib.import_module("armllm.usage.usage_lib").UsageContext("LLM_CLASS")
    parser = importlib.import_module("armllm.utils.argparse_utils").FlexibleArgumentParser
    assert parser is armllm.FlexibleArgumentParser
    with pytest.raises(ModuleNotFoundError, match=r"armllm\.v1\.worker"):
        importlib.import_module("armllm.v1.worker")


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("config", "take each option by its name"),
        ("v1.sample.logits_processor", "logit_bias, bad_words"),
        ("model_executor.models", "armllm.models"),
        ("distributed.kv_transfer", "stays in this process"),
        ("platforms", "on CPUs only"),
        ("utils.serial_utils", "numpy.frombuffer reads"),
    ],
)
def test_modules_that_are_missing_say_why(module, reason):
    with pytest.raises(ModuleNotFoundError, match=rf"No module named 'armllm\.\w+(\.\w+)?': .*{reason}"):
        importlib.import_module(f"armllm.{module}")


def test_names_that_are_missing_say_why():
    with pytest.raises(ImportError, match=r"'ModelRegistry' from 'armllm': armllm\.models has"):
        from armllm import ModelRegistry  # noqa: F401, PLC0415
    with pytest.raises(ImportError, match="'initialize_ray_cluster' from 'armllm': the"):
        from armllm import initialize_ray_cluster  # noqa: F401, PLC0415
    assert not hasattr(armllm, "Nothing")


def test_methods_that_are_missing_say_why(llm):
    for engine in (llm, llm.llm_engine):
        assert not hasattr(engine, "sleep")
        with pytest.raises(AttributeError, match="no attribute 'start_profile': there are no profiles"):
            engine.start_profile()
        with pytest.raises(AttributeError, match="no attribute 'reward': encode and classify"):
            engine.reward("Hi")
        with pytest.raises(AttributeError, match=r"no attribute 'flie'$"):
            engine.flie  # noqa: B018


def test_arguments_of_newer_releases_pass_with_the_value_that_changes_nothing(llm):
    messages = [{"role": "user", "content": "Hi"}]
    neutral = {"mm_processor_kwargs": None, "tokenization_kwargs": None}
    chat = {"chat_template": "{{ messages[0].content }}", "chat_template_content_format": "auto"}
    params = SamplingParams(max_tokens=2, watermarking=None, prompt_logprob_start=0)
    assert llm.chat(messages, params, use_tqdm=False, **neutral, **chat)[0].finished
    assert llm.score("a", "b", use_tqdm=False, chat_template=None, **neutral)
    form = StructuredOutputsParams(regex="a", disable_any_whitespace=True, whitespace_pattern=None)
    assert form == StructuredOutputsParams(regex="a")
    for wrong in ({"whitespace_pattern": " "}, {"structural_tag": "x"}, {"disable_fallback": True}):
        with pytest.raises(RequestError, match=next(iter(wrong))):
            StructuredOutputsParams(regex="a", **wrong)
    with pytest.raises(RequestError, match="chat_template_content_format can only be 'auto' or 'string'"):
        llm.chat(messages, params, chat_template_content_format="x")
    with pytest.raises(TypeError, match="chat_tmplate"):
        llm.chat(messages, params, chat_tmplate="x")
    with pytest.raises(RequestError, match="load_inplace"):
        LoRARequest("a", 1, "b", load_inplace=True)


def test_the_prefix_cache_can_be_emptied_while_requests_run(llm):
    """It would catch blocks that are given to two sequences, and tokens that change."""
    engine, params = llm.llm_engine, SamplingParams(max_tokens=12, temperature=0)
    prompt = list(range(3, 30))
    expected = llm.generate([prompt], params, use_tqdm=False)[0].outputs[0].token_ids
    for name in ("one", "two"):
        engine.add_request(name, prompt, params)
    engine.step()
    engine.step()
    assert engine.reset_prefix_cache(reset_running_requests=True)
    engine.check_integrity()
    engine.abort_request("two")
    done = []
    while engine.has_unfinished_requests():
        done += [output for output in engine.step() if output.finished]
    assert [output.outputs[0].token_ids for output in done] == [expected]
    engine.check_integrity()


def test_outputs_tell_when_they_were_computed(llm):
    before, wall = time.monotonic(), time.time()
    (output,) = llm.generate("Hello", SamplingParams(n=2, max_tokens=3, ignore_eos=True), use_tqdm=False)
    metrics = output.metrics
    assert wall <= metrics.arrival_time <= time.time()
    assert before <= metrics.queued_ts <= metrics.scheduled_ts <= metrics.first_token_ts
    assert metrics.first_token_ts <= metrics.last_token_ts <= time.monotonic()
    assert metrics.first_token_latency == metrics.first_token_ts - metrics.queued_ts
    assert (metrics.num_generation_tokens, metrics.num_preemptions) == (6, 0)


def test_preemptions_are_counted_for_each_request(folder):
    llm = LLM(folder, dtype="float32", block_size=16, num_gpu_blocks_override=5, max_model_len=64)
    prompts = [[7] * 17, [8] * 17]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=40, ignore_eos=True), use_tqdm=False)
    assert sum(output.metrics.num_preemptions for output in outputs) == llm.stats().num_preemptions > 0


def test_metrics_have_vllms_names_and_count(llm):
    def read():
        return {metric.name: metric for metric in llm.get_metrics()}

    before = read()["vllm:generation_tokens"].value
    llm.generate("Hello", SamplingParams(max_tokens=3, ignore_eos=True), use_tqdm=False)
    metrics = read()
    assert isinstance(metrics["vllm:generation_tokens"], Counter)
    assert isinstance(metrics["vllm:num_requests_running"], Gauge)
    assert metrics["vllm:generation_tokens"].value == before + 3
    assert metrics["vllm:num_requests_running"].value == 0
    assert llm.reset_prefix_cache() is True


def test_the_engine_can_be_driven_step_by_step(folder):
    engine = LLMEngine.from_engine_args(EngineArgs(folder, dtype="float32", max_model_len=64))
    engine.add_request("a", TextPrompt(prompt="Hello"), SamplingParams(max_tokens=2, ignore_eos=True))
    assert engine.get_num_unfinished_requests() == 1
    finished = []
    while engine.has_unfinished_requests():
        finished += [output for output in engine.step() if output.finished]
    assert [output.request_id for output in finished] == ["a"]


def test_a_template_of_the_program_is_used(folder, tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text("{% for message in messages %}<{{ message.content }}>{% endfor %}")
    llm = LLM(folder, dtype="float32", max_model_len=64, chat_template=str(file))
    messages = [{"role": "user", "content": "Hi"}]
    params = SamplingParams(max_tokens=1)
    assert llm.chat(messages, params, use_tqdm=False)[0].prompt == "<Hi>"
    (output,) = llm.chat(messages, params, False, chat_template="[{{ messages[0].content }}]")
    assert output.prompt == "[Hi]"
    with pytest.raises(RequestError, match="nowhere"):
        LLM(folder, dtype="float32", chat_template="/nowhere").chat(messages)


def test_arguments_and_fields_of_newer_releases_are_there(llm):
    """It would catch a program of vLLM 0.33 that stops at an argument or a field, or gets another order."""
    params = SamplingParams.from_optional(max_tokens=2, temperature=None, output_text_buffer_length=0)
    assert params == SamplingParams(max_tokens=2)
    assert PoolingParams(requires_token_ids=False, extra_kwargs=None) == PoolingParams()
    with pytest.raises(RequestError, match="step_tag_id can only be None here, not 3"):
        PoolingParams(step_tag_id=3)
    with pytest.raises(RequestError, match="allowed_token_ids can only be None here"):
        BeamSearchParams(2, 4, allowed_token_ids=[1])
    engine = llm.llm_engine
    assert engine.add_request("a", "Hello", params, 12.5, None, priority=0, trace_headers=None) == "a"
    with pytest.raises(RequestError, match=r"trace_headers can only be None or \{\} here"):
        engine.add_request("b", "Hello", params, trace_headers={"a": "b"})
    with pytest.raises(TypeError, match="trace_header"):
        engine.add_request("b", "Hello", params, trace_header=None)
    outputs = []
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert outputs[0].metrics.arrival_time == 12.5
    assert outputs[0].lora_request is outputs[0].outputs[0].lora_request is None
    assert outputs[0].kv_transfer_params is outputs[0].outputs[0].routed_experts is None
    assert engine.get_supported_tasks() == ("generate", "embed", "token_embed")
    with pytest.raises(AttributeError, match="max_cpu_loras says how many adapters"):
        engine.pin_lora(1)


def test_an_engine_may_be_made_of_a_config(folder):
    arguments = AsyncEngineArgs(folder, dtype="float32", max_model_len=64)
    usage = importlib.import_module("armllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
    config = arguments.create_engine_config(usage)
    assert LLMEngine.from_vllm_config(config, usage_context=usage).config == config

    async def use():
        engine = AsyncLLMEngine.from_vllm_config(config, stat_loggers=None, disable_log_stats=True)
        try:
            params = SamplingParams(max_tokens=3, ignore_eos=True)
            async for output in engine.generate("Hi", params, "1", data_parallel_rank=None):
                last = output
            await engine.do_log_stats()
            await engine.wait_for_requests_to_drain(5)
            assert engine.get_num_unfinished_requests() == 0
            assert await engine.reset_prefix_cache()
            assert "generate" in await engine.get_supported_tasks()
            assert len(last.outputs[0].token_ids) == 3
        finally:
            engine.shutdown(timeout=60)

    asyncio.run(use())


def test_the_length_may_be_what_the_cache_holds(folder):
    """It would catch an "auto" that is refused, or that promises more than there is room for."""
    for auto in ("auto", -1):
        small = LLM(folder, dtype="float32", block_size=16, num_gpu_blocks_override=2, max_model_len=auto)
        assert small.llm_engine.runner.max_model_len == 32
    longest = LLM(folder, dtype="float32").llm_engine.runner.max_model_len
    assert LLM(folder, dtype="float32", max_model_len="auto").llm_engine.runner.max_model_len == longest
