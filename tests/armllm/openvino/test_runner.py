"""The engine over a graph of OpenVINO.

``llama`` was made from a random Llama by ``optimum-cli export openvino --task text-generation-with-past``
(optimum-intel 2.2), and ``expected.json`` by `transformers` from the same weights.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import openvino
import pytest
import torch

from armllm import LLM, SamplingParams
from armllm.engine.placement import decide
from armllm.errors import CheckpointError, RequestError
from armllm.openvino import graph
from armllm.openvino.graph import TYPES
from armllm.openvino.runner import check_cpu, read_config

IR = Path(__file__).parent / "llama"
CASES = json.loads((Path(__file__).parent / "expected.json").read_text())
OPTIONS = {"backend": "openvino", "dtype": "float32", "skip_tokenizer_init": True}
GREEDY = {"temperature": 0, "ignore_eos": True, "detokenize": False}


def prompts(*cases):
    return [{"prompt_token_ids": case["prompt"]} for case in cases]


def prompt_logprobs(llm):
    """Of the tokens of the third prompt."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, **GREEDY)
    [answer] = llm.generate(prompts(CASES[2]), params, use_tqdm=False)
    tokens = CASES[2]["prompt"][1:]
    return [entry[token].logprob for entry, token in zip(answer.prompt_logprobs[1:], tokens, strict=True)]


@pytest.fixture(scope="module")
def llm():
    return LLM(str(IR), max_num_batched_tokens=32, num_gpu_blocks_override=32, **OPTIONS)


def test_tokens_are_those_of_transformers(llm):
    """Chunks of prompts beside decodes: it would catch a block or a position that is another sequence's."""
    answers = llm.generate(prompts(*CASES), SamplingParams(max_tokens=24, **GREEDY), use_tqdm=False)
    assert [list(answer.outputs[0].token_ids) for answer in answers] == [case["tokens"] for case in CASES]


def test_steps_that_keep_inputs_of_the_last_one_change_no_token(llm, monkeypatch):
    """Over borders of blocks, while sequences end and others begin, and after a step that failed."""
    runner = llm.llm_engine.runner
    lengths = (70, 5, 33, 1, 40, 12)
    params = [SamplingParams(max_tokens=length, **GREEDY) for length in lengths]
    asked = prompts(*(CASES * 3)[: len(lengths)])
    plain = runner._next_tokens
    taken = []

    def counted(sequences):
        taken.append(plain(sequences))
        return taken[-1]

    def answers():
        found = llm.generate(asked, params, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in found]

    monkeypatch.setattr(runner, "_next_tokens", lambda _: None)
    expected = answers()
    monkeypatch.setattr(runner, "_next_tokens", counted)
    assert answers() == expected
    assert len(taken) - taken.count(None) > 30
    assert taken.count(None) > 5
    monkeypatch.setattr(runner._graph, "infer_next", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        answers()
    monkeypatch.undo()
    assert answers() == expected


def test_a_cache_that_is_too_small_for_all_changes_no_token():
    """Sequences give their blocks back and are computed again."""
    llm = LLM(str(IR), max_model_len=64, num_gpu_blocks_override=4, enable_prefix_caching=False, **OPTIONS)
    answers = llm.generate(prompts(*CASES[:1] * 3), SamplingParams(max_tokens=40, **GREEDY), use_tqdm=False)
    assert all(list(answer.outputs[0].token_ids)[:24] == CASES[0]["tokens"] for answer in answers)
    assert llm.llm_engine.stats().num_preemptions


def test_a_prompt_that_came_before_is_taken_from_the_cache(llm):
    params = SamplingParams(max_tokens=24, **GREEDY)
    answers = [llm.generate(prompts(CASES[-1]), params, use_tqdm=False)[0] for _ in range(2)]
    assert answers[1].num_cached_tokens == 64
    assert all(list(answer.outputs[0].token_ids) == CASES[-1]["tokens"] for answer in answers)


def test_log_probabilities_of_a_prompt_are_those_of_transformers(llm):
    torch.testing.assert_close(prompt_logprobs(llm), CASES[2]["prompt_logprobs"], rtol=0, atol=1e-4)


def test_log_probabilities_of_an_answer_are_those_of_transformers(llm):
    """Of all tokens that may follow, in a batch: it would catch those of another sequence or another row."""
    prompt, expected = CASES[2]["prompt"], CASES[2]["prompt_logprobs"]
    params = SamplingParams(max_tokens=1, logprobs=-1, **GREEDY)
    asked = [{"prompt_token_ids": prompt[:length]} for length in range(1, len(prompt))]
    answers = llm.generate(asked, params, use_tqdm=False)
    followed = [answer.outputs[0].logprobs[0] for answer in answers]
    found = [entry[token].logprob for entry, token in zip(followed, prompt[1:], strict=True)]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    for answer, entry in zip(answers, followed, strict=True):
        assert entry[answer.outputs[0].token_ids[0]].rank == 1
        assert sum(math.exp(one.logprob) for one in entry.values()) == pytest.approx(1, abs=1e-4)


def test_several_choices_and_seeds(llm):
    params = SamplingParams(n=3, temperature=1, seed=7, max_tokens=40, ignore_eos=True, detokenize=False)
    first, second = (llm.generate(prompts(CASES[1]), params, use_tqdm=False)[0] for _ in range(2))
    tokens = [choice.token_ids for choice in first.outputs]
    assert len(set(map(tuple, tokens))) == 3
    assert [choice.token_ids for choice in second.outputs] == tokens


def test_embeddings_come_from_the_graph_s_states(llm):
    [answer] = llm.embed(prompts(CASES[0]), use_tqdm=False)
    assert len(answer.outputs.embedding) == 64


@pytest.fixture
def two_threads():
    """More than one, which OpenVINO needs with AMX."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_one_core_with_amx_computes_in_float32(monkeypatch, caplog):
    """In bf16 OpenVINO divides by zero, before anything is computed: status 136 and no word."""
    cpu = SimpleNamespace(features={"amx_bf16"})
    monkeypatch.setattr("armisa.detect", lambda: cpu)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    monkeypatch.setattr(graph.openvino.Core, "get_property", lambda *_: openvino.Type.bf16)
    with pytest.raises(RequestError, match=r"cannot compute in bfloat16 with one thread .* --dtype float32"):
        LLM(str(IR), **OPTIONS | {"dtype": "bfloat16"})
    assert not caplog.records
    for cache, held in (("auto", torch.float32), ("int8", torch.uint8)):
        auto = OPTIONS | {"dtype": "auto", "kv_cache_dtype": cache}
        runner = LLM(str(IR), num_gpu_blocks_override=8, **auto).llm_engine.runner
        assert (runner.dtype, runner.cache_dtype) == (torch.float32, held)
        assert "computing in float32" in caplog.text
        caplog.clear()
    assert LLM(str(IR), num_gpu_blocks_override=8, **OPTIONS) is not None
    assert not caplog.records
    cpu.features = {"avx512_bf16"}
    assert not graph.ends_the_process(1, "bf16")


@pytest.mark.usefixtures("two_threads")
def test_states_in_fewer_bits_are_those_of_fp32(llm):
    """It would catch bits of bf16 read as those of f16: 0.16 away at most, wrong ones beyond 2."""
    usual = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    if usual == "f32":  # OpenVINO has no other on this CPU
        with pytest.raises(RequestError, match="OpenVINO computes in float32 on this CPU"):
            LLM(str(IR), **OPTIONS | {"dtype": "bfloat16"})
        return
    allowed = frozenset(os.sched_getaffinity(0))
    if graph.ends_the_process(decide(allowed, torch.get_num_threads()).num_threads, usual):
        pytest.skip("OpenVINO has one core here, and needs two for this type")
    half = LLM(str(IR), num_gpu_blocks_override=32, **OPTIONS | {"dtype": TYPES[usual]})
    [answer] = half.embed(prompts(CASES[0]), use_tqdm=False)
    [expected] = llm.embed(prompts(CASES[0]), use_tqdm=False)
    similar = torch.tensor(answer.outputs.embedding) @ torch.tensor(expected.outputs.embedding)
    assert similar.item() == pytest.approx(1, abs=1e-3)
    torch.testing.assert_close(prompt_logprobs(half), CASES[2]["prompt_logprobs"], rtol=0, atol=0.5)


def test_a_cache_of_8_bits(llm):
    """It would catch scales of another block: measured 0.22 at most, where a wrong one is beyond 2."""
    small = LLM(str(IR), kv_cache_dtype="int8", num_gpu_blocks_override=32, **OPTIONS)
    assert small.llm_engine.runner.cache_dtype is torch.uint8
    assert small.llm_engine.runner.cache_bytes < llm.llm_engine.runner.cache_bytes / 3
    torch.testing.assert_close(prompt_logprobs(small), CASES[2]["prompt_logprobs"], rtol=0, atol=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_parallel_size": 2}, "does not take tensor_parallel_size"),
        ({"pipeline_parallel_size": 2}, "does not take pipeline_parallel_size"),
        ({"enable_lora": True}, "does not take enable_lora"),
        ({"load_format": "dummy"}, "no load_format dummy"),
        ({"block_size": 16}, "block_size 16: OpenVINO's attention has blocks of 32"),
        ({"quantization": "gptq"}, "takes int8, int4"),
        ({"quantization": "int8"}, "has its weights already"),
        ({"backend": "tensorrt"}, "backend must be 'armllm' or 'openvino'"),
        ({"max_model_len": 1000}, "max_model_len 1000 is above 256"),
    ],
)
def test_what_this_back_end_does_not_do_is_named(options, message):
    with pytest.raises(RequestError, match=message):
        LLM(str(IR), **(OPTIONS | options))


@pytest.mark.parametrize(
    "names",
    [
        {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
        {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"},
        {"hidden_size": "d_model", "num_hidden_layers": "n_layers", "max_position_embeddings": "max_seq_len"},
        {"vocab_size": "padded_vocab_size", "max_position_embeddings": "seq_length"},
        {"hidden_size": "word_embed_proj_dim"},
    ],
    ids=["GPT-2", "GPT-Neo", "MPT", "ChatGLM", "OPT"],
)
def test_a_config_with_the_names_of_another_family_is_read(tmp_path, names):
    folder = shutil.copytree(IR, tmp_path / "ir")
    config = json.loads((folder / "config.json").read_text())
    changed = {names.get(key, key): value for key, value in config.items()}
    if "word_embed_proj_dim" in changed:  # the layers are wider than what the head reads
        changed["hidden_size"] = 2 * config["hidden_size"]
    (folder / "config.json").write_text(json.dumps(changed))
    assert read_config(folder) == read_config(IR)


def test_a_model_of_openvino_asks_for_its_back_end(tmp_path):
    """Beside a graph lie .bin files, which are no pickles."""
    (tmp_path / "openvino_model.bin").write_bytes(b"")
    shutil.copytree(IR, tmp_path, dirs_exist_ok=True)
    with pytest.raises(CheckpointError, match=r"has a model of OpenVINO .*: add --backend openvino"):
        LLM(str(tmp_path), skip_tokenizer_init=True)
    with pytest.raises(CheckpointError, match="is a file; give its folder, and --backend openvino"):
        LLM(str(tmp_path / "openvino_model.xml"), **OPTIONS)


def test_another_config_than_the_graph_s_is_refused(tmp_path):
    folder = shutil.copytree(IR, tmp_path / "ir")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 256}))
    with pytest.raises(CheckpointError, match=r"vocab_size 256, and openvino_model.xml has 128"):
        LLM(str(folder), **OPTIONS)


def test_a_broken_graph_is_one_line(tmp_path):
    folder = shutil.copytree(IR, tmp_path / "ir")
    text = (folder / "openvino_model.xml").read_text()
    (folder / "openvino_model.xml").write_text(text[: len(text) // 2])
    with pytest.raises(CheckpointError, match="OpenVINO does not take it") as caught:
        LLM(str(folder), **OPTIONS)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_without_the_converter_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text((IR / "config.json").read_text())
    monkeypatch.setitem(__import__("sys").modules, "optimum", None)
    with pytest.raises(RequestError, match=r"optimum-intel is not here .*armllm\[openvino\]"):
        LLM(str(tmp_path), **OPTIONS)


def test_a_core_without_sve_is_refused(monkeypatch):
    """OpenVINO would fail inside of a step: AttentionExecutor creation fails."""
    features = {"asimd"}
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("armisa.detect", lambda: SimpleNamespace(features=features))
    with pytest.raises(RequestError, match="only for Arm cores with SVE, and this one has none; leave out"):
        check_cpu()
    features.add("sve")
    check_cpu()
