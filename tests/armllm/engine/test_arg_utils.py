"""A program written for vLLM: its options as an object, and as flags of its own parser."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

import armllm
from armllm import (
    AsyncEngineArgs,
    AsyncLLMEngine,
    EngineArgs,
    FlexibleArgumentParser,
    PoolingParams,
    SamplingParams,
    TextPrompt,
    TokensPrompt,
)
from armllm.errors import RequestError
from armllm.smoke.passages import MODEL
from armllm.utils.programs import UsageContext


def test_options_become_a_config_with_the_defaults_of_their_use():
    arguments = EngineArgs(model=str(MODEL), tensor_parallel_size=1, max_model_len=64, block_size=None)
    assert arguments.tensor_parallel_size == 1
    assert arguments.max_model_len == 64
    config = arguments.create_engine_config(UsageContext.LLM_CLASS)
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.block_size) == (256, 4096, 16)
    for usage in (None, UsageContext.ENGINE_CONTEXT, UsageContext.OPENAI_API_SERVER):
        config = arguments.create_engine_config(usage)
        assert (config.max_num_seqs, config.max_num_batched_tokens) == (128, 2048)
    for sizes in ((1, 2), (2, 1)):  # each process has its part, as in vLLM
        arguments.tensor_parallel_size, arguments.pipeline_parallel_size = sizes
        config = arguments.create_engine_config(UsageContext.OPENAI_API_SERVER)
        assert (config.max_num_seqs, config.max_num_batched_tokens) == (256, 4096)
    arguments.max_num_batched_tokens = 64
    assert arguments.create_engine_config().max_num_seqs == 64
    assert dataclasses.asdict(arguments)["max_model_len"] == 64


def test_wrong_options_are_refused_when_they_are_set():
    with pytest.raises(RequestError, match="LoRA adapters change"):
        EngineArgs(model="m", enable_lora_bias=True)
    arguments = EngineArgs(model="m")
    with pytest.raises(RequestError, match="a model is computed by the processes"):
        arguments.prefill_context_parallel_size = 2
    with pytest.raises(TypeError, match="does not take 'max_len'"):
        arguments.max_len = 2
    with pytest.raises(AttributeError, match="max_len"):
        arguments.max_len  # noqa: B018
    arguments.max_model_len = 0
    with pytest.raises(RequestError, match="max_model_len must be a positive integer"):
        arguments.create_engine_config()


def test_a_programs_own_parser_takes_the_options(tmp_path):
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.set_defaults(model=str(MODEL), seed=3)
    parser.add_argument("--temperature", type=float)
    line = ["--max_model_len", "1k", "--no-enable-prefix-caching", "--temperature=0.5", "-O2"]
    assert parser.parse_known_args([*line[:-1]])[0].max_model_len == 1000
    arguments = parser.parse_args([*line[:-1], "--enforce-eager", "--compilation-config.mode", "3"])
    assert arguments.temperature == 0.5
    assert arguments.compilation_config == {"mode": 3}
    parsed = EngineArgs.from_cli_args(arguments)
    assert (parsed.seed, parsed.enable_prefix_caching, parsed.model) == (3, False, str(MODEL))
    with pytest.raises(RequestError, match="a model is computed by the processes"):
        EngineArgs.from_cli_args(parser.parse_args(["--prefill-context-parallel-size", "2"]))
    file = tmp_path / "options.yaml"
    file.write_text("max_model_len: 32\nseed: 5\nenable-prefix-caching: false\n")
    arguments = parser.parse_args(["--config", str(file), "--seed", "6"])
    assert (arguments.max_model_len, arguments.seed, arguments.enable_prefix_caching) == (32, 6, False)
    del arguments.temperature
    llm = armllm.LLM(**vars(arguments))
    assert llm.llm_engine.config.max_model_len == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "No such file"), ("- 1\n", "expected lines"), ("a: [", "is not YAML"), ("\xff", "is not YAML")],
)
def test_a_wrong_file_of_options_is_one_line(tmp_path, text, message):
    file = tmp_path / "options.yaml"
    if text is not None:
        file.write_bytes(text.encode("latin-1"))
    with pytest.raises(RequestError) as caught:
        FlexibleArgumentParser().parse_args(["--config", str(file)])
    assert message in str(caught.value) or "decode" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(RequestError, match="--config needs a file"):
        FlexibleArgumentParser().parse_args(["--config"])


def test_the_asynchronous_engine_has_the_methods_of_vllms():
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=str(MODEL), max_model_len=64))
    params = SamplingParams(temperature=0, max_tokens=4)

    async def work():
        await engine.check_health()
        texts = []
        prompts = [TextPrompt(prompt="A wheel"), TokensPrompt(prompt_token_ids=[1, 2])]
        for number, prompt in enumerate(prompts):
            async for output in engine.generate(prompt, params, str(number)):
                last = output
            texts.append(last.outputs[0].text)
        async for output in engine.encode("A wheel", PoolingParams(), "e"):
            assert output.finished
        await engine.abort("nobody")
        await engine.abort(["nobody", "else"])
        return texts

    try:
        assert len(asyncio.run(work())) == 2
        assert engine.is_running
        assert engine.llm_engine.config.max_num_seqs == 128
    finally:
        engine.shutdown()
    assert engine.is_stopped
    with pytest.raises(RequestError, match="start_engine_loop can only be True"):
        AsyncLLMEngine.from_engine_args(AsyncEngineArgs(model=str(MODEL)), start_engine_loop=False)
