"""Several ranks give the tokens and log-probabilities of one process; a rank that fails is named.

Most tests have the followers in threads of this process, which start in no time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import socket
import threading
from pathlib import Path

import pytest
import torch
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import random_prompts, save_reference
from tests.armllm.models.test_classifiers import classifier
from tests.armllm.quant.forms import awq, fp8_blocks, gptq, write_quantized
from tests.armllm.quant.test_floats import CASES, MXFP4
from tests.armllm.quant.test_mxfp4 import checkpoint as mxfp4_stacks  # noqa: F401

from armllm import LLM, SamplingParams
from armllm.api import llm_engine
from armllm.convert.pack import pack_checkpoint
from armllm.engine import followers, placement
from armllm.engine.config import EngineConfig
from armllm.engine.followers import NO_FILE
from armllm.engine.messages import Link
from armllm.engine.model_runner import Part
from armllm.engine.ranks import FollowingStage, follow, load_follower
from armllm.errors import CheckpointError, EngineError, RequestError
from armllm.kernels._extension import extension
from armllm.layers import cpu
from armllm.layers.stages import Stage

SECONDS = 20.0
MODEL = Path(llm_engine.__file__).parents[1] / "smoke/model"


class ThreadFollowers:
    """As `Followers`, in threads."""

    def __init__(self, group, file=NO_FILE, nodes=()):
        assert not nodes
        self.group = group
        self.on_failure = []
        self.loaded = threading.Barrier(group.size)
        self.errors = []
        self.threads = []
        self._file = os.dup(file) if file != NO_FILE else file
        self._far_ends = []
        if file == NO_FILE:
            pairs = [socket.socketpair() for _ in range(1, group.size)]
            group.links = [Link(near) for near, _ in pairs]
            self._far_ends = [Link(far) for _, far in pairs]
            for rank, link in enumerate(group.links, 1):
                self._start(self._pass_on, rank, link)

    def _start(self, target, *arguments):
        self.threads.append(threading.Thread(target=target, args=arguments))
        self.threads[-1].start()

    def _pass_on(self, rank, link):
        with contextlib.suppress(EOFError, OSError, ValueError):
            while True:
                self.group.received(rank, link.receive())

    def load(self, config, num_states):
        self.num_states = num_states
        config = json.loads(json.dumps(dataclasses.asdict(config)))  # as a process gets it
        for rank in range(1, self.group.size):
            self._start(self._follow, rank, EngineConfig(**config))

    def _follow(self, rank, config):
        torch.set_num_threads(1)
        size = self.group.size
        try:
            if self._file == NO_FILE:
                link, inbox = self._far_ends[rank - 1], queue.SimpleQueue()
                self._start(receive, link, inbox)
                end = FollowingStage(Stage(rank, size, self.group.stage.counts), link, inbox)
                runner = load_follower(config, Part(end=end), rank, size)
                self.loaded.wait(SECONDS)
                end.follow(runner)
            ranks = extension.Ranks(self._file, rank, size, SECONDS)
            runner = load_follower(config, Part(ranks=ranks, num_states=self.num_states), rank, size)
            self.loaded.wait(SECONDS)
            follow(runner, ranks)
        except Exception as error:  # noqa: BLE001 - looked at by `close`
            self.errors.append(error)
            self.group.fail(rank + 1)

    def wait(self):
        self.loaded.wait(SECONDS)

    def check(self):
        if self.group.failure:
            for error in self.errors:
                if isinstance(error, RequestError | CheckpointError):
                    raise error
            raise EngineError(f"failure {self.group.failure}: {self.errors}")

    def close(self):
        self.group.fail(1)
        for link in [*self._far_ends, *getattr(self.group, "links", [])]:
            link.close()
        for thread in self.threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        if self._file != NO_FILE:
            os.close(self._file)


def receive(link, inbox):
    """As a follower's thread; the last message is none."""
    with contextlib.suppress(EOFError, OSError, ValueError):
        while True:
            inbox.put(link.receive())
    inbox.put({})


@pytest.fixture
def in_threads(monkeypatch):
    monkeypatch.setattr(followers, "Followers", ThreadFollowers)
    monkeypatch.setattr(placement.os, "sched_setaffinity", lambda *_: None)


@contextlib.contextmanager
def loaded(folder, size, by="tensor", **options):
    llm = LLM(folder, **{f"{by}_parallel_size": size}, **options)
    try:
        yield llm
    finally:
        if size > 1:
            llm.llm_engine.followers.close()
            errors = getattr(llm.llm_engine.followers, "errors", [])
            stopped = "ranks were stopped" if by == "tensor" else "'tokens'"  # of a message that is none
            assert all(stopped in str(error) for error in errors), errors


def answers(folder, size, by="tensor", **options):
    """Tokens and log-probabilities of prompts that share a prefix, are chunked and are preempted."""
    prompts = [[7, 8, 9] * 12 + prompt for prompt in random_prompts((40, 3, 17, 1), 0)]
    params = [
        SamplingParams(
            max_tokens=8,
            temperature=0.9 * (seed % 2),
            seed=seed,
            logprobs=3,
            prompt_logprobs=2 if seed == 2 else None,
            ignore_eos=True,
        )
        for seed in range(len(prompts))
    ]
    options = {"max_num_batched_tokens": 32, "block_size": 16, "num_gpu_blocks_override": 10} | options
    with loaded(folder, size, by, max_model_len=128, **options) as llm:
        results = llm.generate(prompts, params, use_tqdm=False)
        results += llm.generate(prompts, params, use_tqdm=False)
        engine = llm.llm_engine
        assert engine.stats().num_prefix_hits
        assert engine.stats().num_preemptions
        decode = engine.runner.decode
        assert bool(decode.recordings) == (not decode.refused)
        engine.check_integrity()
    return [
        (
            result.outputs[0].token_ids,
            [{token: one.logprob for token, one in step.items()} for step in result.outputs[0].logprobs],
            [
                step and {token: one.logprob for token, one in step.items()}
                for step in result.prompt_logprobs or []
            ],
        )
        for result in results
    ]


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((2, 4), {"dtype": "float32"}),
        ((2, 4), {"dtype": "bfloat16"}),
        ((2,), {"dtype": "float16", "kv_cache_dtype": "int8"}),
        ((2, 4), {"dtype": "bfloat16", "quantization": "int8"}),
        ((2, 4), {"dtype": "bfloat16", "quantization": "int4-g32"}),
    ],
    ids=lambda case: "-".join(case.values()) if isinstance(case, dict) else "",
)
def test_ranks_give_one_process_s_bits(in_threads, make_checkpoint, sizes, options):
    tied = options["dtype"] == "float32"
    folder = make_checkpoint(num_key_value_heads=4, tie_word_embeddings=tied).folder
    expected = answers(folder, 1, **options)
    for size in sizes:
        assert answers(folder, size, **options) == expected


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}


@pytest.fixture
def fp8_stays(monkeypatch):
    """As on AArch64."""
    monkeypatch.setattr(cpu, "wants_fp8", lambda _dtype: True)


@pytest.mark.usefixtures("fp8_stays")
@pytest.mark.parametrize(
    ("settings", "form"),
    [
        (GPTQ | {"desc_act": True}, gptq(4, 32, act_order=True)),
        (GPTQ | {"sym": False}, gptq(4, 32, symmetric=False)),
        (
            {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True, "group_size": 32},
            awq(32),
        ),
        ({"quant_method": "fp8", "weight_block_size": [48, 32]}, fp8_blocks(48, 32)),
        CASES["one scale"],
        CASES["per row"],
        CASES["NVFP4"],
        MXFP4,
    ],
    ids=["gptq-act-order", "gptq-zeros", "awq", "fp8", "fp8-one-scale", "fp8-rows", "nvfp4", "mxfp4"],
)
def test_quantized_checkpoints_are_cut_by_rows(in_threads, make_checkpoint, tmp_path, settings, form):
    folder = tmp_path / "model"
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 4}
    write_quantized(folder, make_checkpoint(**sizes), settings, form)
    expected = short_answers(folder, 1)
    for size in (2, 4):
        assert short_answers(folder, size) == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stacks_of_mxfp4_are_cut_by_rows(in_threads, mxfp4_stacks, dtype):  # noqa: F811
    """Values of 4 bits and scales of 32 of them, of which gates and ups alternate."""
    folder, _ = mxfp4_stacks
    expected = short_answers(folder, 1, dtype=dtype)
    for by in ("tensor", "pipeline"):
        assert short_answers(folder, 2, by, dtype=dtype) == expected


def short_answers(folder, size, by="tensor", **options):
    params = SamplingParams(max_tokens=8, temperature=0, logprobs=1, ignore_eos=True)
    options = {"dtype": "bfloat16", "skip_tokenizer_init": True, "max_model_len": 64} | options
    with loaded(folder, size, by, **options) as llm:
        outputs = llm.generate(random_prompts((9, 20), 1), params, use_tqdm=False)
    return [(one.outputs[0].token_ids, one.outputs[0].cumulative_logprob) for one in outputs]


@pytest.mark.parametrize(
    ("architecture", "seed"),
    [
        ("Gemma2ForCausalLM", 1), ("Gemma3ForCausalLM", 1), ("MistralForCausalLM", 1), ("OPTForCausalLM", 1),
        ("Phi3ForCausalLM", 1), ("Qwen2ForCausalLM", 1), ("Qwen3ForCausalLM", 1), ("SmolLM3ForCausalLM", 1),
        ("Ernie4_5ForCausalLM", 1), ("Glm4ForCausalLM", 1), ("GraniteForCausalLM", 1),
        ("Olmo2ForCausalLM", 1), ("CohereForCausalLM", 2), ("FalconForCausalLM", 1),
        ("StableLmForCausalLM", 1), ("Qwen3_5ForCausalLM", 1), ("Qwen3NextForCausalLM", 1),
        ("GraniteMoeHybridForCausalLM", 1), ("ApertusForCausalLM", 1), ("NemotronForCausalLM", 1),
        ("HunYuanDenseV1ForCausalLM", 1), ("GraniteSWAForCausalLM", 1),
        ("GPT2LMHeadModel", 1), ("GPTJForCausalLM", 1), ("GPTNeoXForCausalLM", 1), ("PhiForCausalLM", 1),
        ("Lfm2ForCausalLM", 1), ("Cohere2MoeForCausalLM", 1), ("ExaoneMoeForCausalLM", 1),
        ("GraniteMoeSWAForCausalLM", 1), ("Lfm2MoeForCausalLM", 1), ("Lfm3ForCausalLM", 1),
        ("YoutuForCausalLM", 1), ("VaultGemmaForCausalLM", 1), ("SolarOpenForCausalLM", 1),
        ("FalconH1ForCausalLM", 1), ("NemotronHForCausalLM", 1), ("OlmoForCausalLM", 1),
        ("AfmoeForCausalLM", 1), ("Jais2ForCausalLM", 1), ("HyperCLOVAXForCausalLM", 1),
        ("NanoChatForCausalLM", 1),
    ],
)  # fmt: skip
def test_families_know_nothing_of_ranks(in_threads, tmp_path, architecture, seed):
    config = random_config(architecture, seed)
    while config.get("num_key_value_heads", 2) % 2:  # without the key there are as many as heads: 2, 4 or 6
        seed += 1
        config = random_config(architecture, seed)
    save_reference(tmp_path, config, seed)
    assert short_answers(tmp_path, 2) == short_answers(tmp_path, 1)


@pytest.mark.parametrize("options", [{}, {"kv_cache_dtype": "int8"}])
def test_heads_of_a_rank_have_their_slopes(in_threads, tmp_path, options):
    """ALiBi in Falcon. Catches the slopes of the first heads on every rank."""
    save_reference(tmp_path, random_config("FalconForCausalLM", 0) | {"alibi": True}, 0)
    assert short_answers(tmp_path, 2, **options) == short_answers(tmp_path, 1, **options)


def test_embeddings_are_those_of_one_process(in_threads, make_checkpoint):
    folder, vectors = make_checkpoint().folder, []
    for size in (1, 2):
        with loaded(folder, size, dtype="float32") as llm:
            vectors.append(llm.embed([[5, 6, 7]], use_tqdm=False)[0].outputs.embedding)
    assert vectors[0] == vectors[1]


def test_classes_are_those_of_one_process(in_threads, tmp_path):
    """Rank 0 alone has the head: a gather there would take another exchange's bytes for scores."""
    classifier(tmp_path, "Qwen3ForSequenceClassification", 3)
    found = []
    for size, by in ((1, "tensor"), (2, "pipeline"), (2, "tensor")):
        with loaded(tmp_path, size, by, dtype="float32", skip_tokenizer_init=True) as llm:
            outputs = llm.classify([[5, 6, 7], [8, 9]], use_tqdm=False)
            found.append([one.outputs.probs for one in outputs])
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_a_forked_process_leaves_the_ranks_of_its_parent_alone(in_threads, make_checkpoint, monkeypatch):
    with loaded(make_checkpoint().folder, 2, dtype="float32") as llm:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(EngineError, match="may not use the ranks of its parent"):
            llm.generate("x", SamplingParams(max_tokens=2), use_tqdm=False)


def test_what_ranks_cannot_compute_is_refused(make_checkpoint, tmp_path):
    folder = make_checkpoint(num_attention_heads=12, num_key_value_heads=12, hidden_size=96).folder
    with pytest.raises(
        RequestError, match=r"5 does not divide .* 12 key and value heads; .* 1, 2, 3, 4, 6, 12"
    ):
        LLM(folder, tensor_parallel_size=5)
    save_reference(tmp_path, random_config("Gemma4ForCausalLM", 1), 1)
    with pytest.raises(RequestError, match=r"Gemma4ForCausalLM have different heads .* pipeline"):
        LLM(tmp_path, tensor_parallel_size=2, skip_tokenizer_init=True)
    with pytest.raises(RequestError, match="calibration"):
        LLM(folder, tensor_parallel_size=2, quantization="int4-g32", calibration="a.txt")
    for bad in (0, -1, True, "2"):
        with pytest.raises(RequestError, match="tensor_parallel_size must be a positive integer"):
            LLM(folder, tensor_parallel_size=bad)
    with pytest.raises(RequestError, match="at most 64"):
        LLM(folder, tensor_parallel_size=65)


MIXTURES = [
    ("MixtralForCausalLM", {}),
    ("MixtralForCausalLM", {"dtype": "float16"}),
    ("MixtralForCausalLM", {"quantization": "int8"}),
    ("GptOssForCausalLM", {}),  # biases, gates and ups alternate
    ("GptOssForCausalLM", {"quantization": "int4"}),
    ("DeepseekV3ForCausalLM", {"quantization": "int4"}),  # an expert for all tokens beside
    ("GraniteMoeForCausalLM", {}),
    ("HunYuanMoEV1ForCausalLM", {"quantization": "int4"}),
    ("Llama4ForCausalLM", {}),
    ("MiniMaxM2ForCausalLM", {}),
    ("PhimoeForCausalLM", {}),
    ("Qwen3MoeForCausalLM", {"quantization": "int4-g32"}),
]


@pytest.mark.parametrize(("architecture", "options"), MIXTURES)
def test_experts_are_cut_by_rows(in_threads, tmp_path, architecture, options):
    heads = 4 if architecture.startswith("Deepseek") else 2
    config = random_config(architecture, 1) | {"num_attention_heads": 4, "num_key_value_heads": heads}
    save_reference(tmp_path, config, 1)
    expected = short_answers(tmp_path, 1, **options)
    assert short_answers(tmp_path, 2, **options) == expected
    if heads == 4:
        assert short_answers(tmp_path, 4, **options) == expected


def test_experts_in_float32_are_cut_by_rows(in_threads, tmp_path):
    """Torch's products have the same bits at these sizes, with all rows and with some."""
    config = random_config("MixtralForCausalLM", 1) | {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "hidden_size": 128,
        "intermediate_size": 96,
        "num_local_experts": 8,
    }
    save_reference(tmp_path, config, 1)
    expected = short_answers(tmp_path, 1, dtype="float32")
    for size in (2, 4):
        assert short_answers(tmp_path, size, dtype="float32") == expected


def test_a_packed_folder_is_cut_by_rows(in_threads, tmp_path):
    config = random_config("Qwen3MoeForCausalLM", 1) | {"num_attention_heads": 4, "num_key_value_heads": 4}
    config |= {"hidden_size": 64, "moe_intermediate_size": 64, "rope_parameters": None}
    config["num_hidden_layers"] = 2
    save_reference(tmp_path / "model", config, 1)
    pack_checkpoint(str(tmp_path / "model"), tmp_path / "packed", quantization="int4-g32")
    expected = short_answers(tmp_path / "packed", 1)
    for size, by in ((2, "tensor"), (4, "tensor"), (2, "pipeline")):
        assert short_answers(tmp_path / "packed", size, by) == expected


def test_a_part_of_a_panel_is_refused(in_threads, make_checkpoint, tmp_path):
    folder = make_checkpoint(intermediate_size=90).folder
    pack_checkpoint(str(folder), tmp_path / "packed", quantization="int8")
    with pytest.raises(
        CheckpointError, match=r"mlp\.gate_proj can't be cut for this number of ranks: .* panels"
    ):
        short_answers(tmp_path / "packed", 2)
