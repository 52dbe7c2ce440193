"""Methods and fields that programs for vLLM use, beside generating text."""

from __future__ import annotations

import time

import pytest
import torch

from armllm import (
    LLM,
    EmbeddingRequestOutput,
    EngineArgs,
    LLMEngine,
    PoolingParams,
    PoolingRequestOutput,
    SamplingParams,
    ScoringRequestOutput,
    TextPrompt,
)
from armllm.engine.metrics import Counter, Gauge
from armllm.errors import RequestError


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
    with pytest.raises(RequestError, match="can only be 'embed'"):
        PoolingParams(task="token_embed")
    with pytest.raises(RequestError, match="lora_request must be a LoRARequest"):
        llm.generate("Hello", lora_request=object())
    with pytest.raises(RequestError, match="prompt dict"):
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
