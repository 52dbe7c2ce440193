"""Options of vLLM: neutral values pass, others are refused with a reason of their own, none goes unseen."""

from __future__ import annotations

import logging

import pytest

from armllm import LLM, SamplingParams
from armllm.cli import main
from armllm.engine.config import EngineConfig
from armllm.errors import RequestError
from armllm.foregone import _warn_once, foregone_options
from armllm.smoke.passages import MODEL


def test_every_option_has_one_meaning_and_says_why():
    """It would catch an option in two groups, or one that the engine has by now."""
    options = foregone_options()
    assert len(options) > 280
    assert not options.keys() & set(EngineConfig.__dataclass_fields__)
    for option in options.values():
        assert len(option.reason) > 10
        for value in (*option.accepted, None, {}):
            assert option.refusal(value) is None, (option.name, value)
        if not option.without_effect:
            if option.is_switch and len(option.accepted) == 2:
                continue
            value = not option.accepted[0] if option.is_switch else "something else"
            assert option.reason in (option.refusal(value) or ""), option.name


def test_the_value_false_is_not_zero():
    """It would catch ``in``, for which False is 0 and True is 1."""
    assert foregone_options()["fully_sharded_loras"].refusal(0) is not None
    assert foregone_options()["prefill_context_parallel_size"].refusal(True) is not None


def test_options_without_effect_are_warned_about_once(caplog):
    _warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "armllm"):
        for _ in range(3):
            EngineConfig.of(MODEL, {"gpu_memory_utilization": 0.9, "swap_space": 4, "enforce_eager": True})
    assert sorted(record.getMessage().split()[0] for record in caplog.records) == [
        "gpu_memory_utilization",
        "swap_space",
    ]
    assert "VLLM_CPU_KVCACHE_SPACE" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fully-sharded-loras"], "--fully-sharded-loras can only be False here, not True: LoRA adapters"),
        (["--no-enable-chunked-prefill"], "--enable-chunked-prefill can only be True here"),
        (["--speculative_config", '{"method": "ngram"}'], "--speculative-config is not supported: tokens"),
        (["-sc.method", "ngram"], "--speculative-config is not supported"),
        (["-dpl", "2"], "--data-parallel-size-local can only be 1 here, not 2"),
        (["--prompt-adapters", "a=b"], "--prompt-adapters is not supported: there are no prompt adapters"),
        (["--api-server-count=4"], "--api-server-count can only be 1 here, not 4"),
        (["--kv-transfer-config"], "--kv-transfer-config is not supported"),
        (["--load-format", "pt"], "load_format must be 'auto' or 'safetensors' or 'hf' or 'dummy', not 'pt'"),
    ],
)
def test_flags_of_the_server_are_refused_with_their_own_reason(capsys, arguments, message):
    assert main(["serve", str(MODEL), *arguments]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "ossible" not in shown
    assert shown.count("\n") == 1


def test_flags_of_guides_are_accepted(capsys):
    guide = ["--gpu-memory-utilization", "0.9", "-O3", "--enforce_eager", "--swap-space=4", "-tp", "1"]
    guide += ["--no-enable-lora", "--compilation-config", '{"mode": 3}', "-cc.mode", "3", "--device", "cpu"]
    assert main(["run", str(MODEL), *guide, "A wheel", "--max-tokens", "2", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.strip()
    assert main(["run", str(MODEL), "x", "--lora-modules", "a=b"]) == 2  # only the server has it
    assert "No such option" in capsys.readouterr().err


def test_programs_get_the_same_answers():
    with pytest.raises(RequestError, match="prefill_context_parallel_size can only be 1 here, not 2: a"):
        LLM(MODEL, prefill_context_parallel_size=2)
    with pytest.raises(TypeError, match="does not take 'tensor_paralel_size'"):
        LLM(MODEL, tensor_paralel_size=1)
    with pytest.raises(TypeError, match="does not take 'lora_modules'"):
        LLM(MODEL, lora_modules=None)


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        (
            "serve",
            ["--temperature", "0.7"],
            "--temperature can only be 0 or 0.0 here, not 0.7: every",
        ),
        ("serve", ["--goodput", "ttft:100"], "--goodput is not supported: the result has mean"),
        ("serve", ["--ramp_up_strategy=linear"], "--ramp-up-strategy is not supported: requests come at"),
        ("throughput", ["--hf-split", "train"], "--hf-split is not supported: the data sets are random"),
        ("throughput", ["--num-warmups", "3"], "--num-warmups can only be 0 here, not 3: this engine"),
        ("latency", ["--n", "4"], "--n can only be 1 here, not 4: every request is one greedy answer"),
        ("latency", ["--profile"], "--profile can only be False here, not True: there are no profiles"),
    ],
)
def test_flags_of_vllms_benchmarks_are_refused_with_their_own_reason(capsys, command, arguments, message):
    model = [] if command == "serve" else ["--model", str(MODEL)]
    assert main(["bench", command, *model, *arguments]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "ossible" not in shown


def test_flags_of_benchmarks_belong_to_no_other_command(capsys):
    assert main(["run", str(MODEL), "x", "--goodput", "ttft:1"]) == 2
    assert "No such option" in capsys.readouterr().err
    with pytest.raises(TypeError, match="does not take 'goodput'"):
        LLM(MODEL, goodput=None)
    neutral = ["--temperature", "0", "--n", "1", "--top-p", "1.0", "--disable-tqdm", "--port", "1"]
    assert main(["bench", "serve", *neutral]) == 2
    assert "no server with OpenAI's API" in capsys.readouterr().err  # nobody listens there


def test_defaults_of_sampling_may_come_from_the_options():
    """It would catch options that are taken and not looked at."""
    changed = LLM(MODEL, override_generation_config={"temperature": 0.5, "max_new_tokens": 3})
    params = changed.get_default_sampling_params()
    assert (params.temperature, params.max_tokens) == (0.5, 3)
    neutral = LLM(MODEL, generation_config="vllm").get_default_sampling_params()
    assert neutral == SamplingParams()
    with pytest.raises(RequestError, match="override_generation_config has 'temprature'; it can have"):
        LLM(MODEL, override_generation_config={"temprature": 1}).get_default_sampling_params()
    with pytest.raises(RequestError, match="generation_config must be 'auto' or 'vllm', not 'other'"):
        LLM(MODEL, generation_config="other")
