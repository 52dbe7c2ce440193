"""A step that is replayed has the bits of one that is computed, whatever the model; what can't be is not."""

from __future__ import annotations

import functools

import pytest
import torch
from tests.armllm.conftest import BASE
from tests.armllm.models.random_configs import FAMILIES, RECURRENT, random_config
from tests.armllm.models.reference import random_prompts, save_reference

from armllm import LLM, SamplingParams, kernels
from armllm.checkpoint.matrix import IntegerWeight
from armllm.engine import recording
from armllm.engine.recording import Buffers, Recorder
from armllm.kernels._extension import extension
from armllm.layers import rotary
from armllm.layers.linear import DenseLinear, SideBySide, quantized

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
NUM_TOKENS = 9
PROMPTS = (40, 3, 17, 64, 1)


class Twice:
    """Computes each step of decodes three times: as the engine does, replayed, and without a recording."""

    def __init__(self, llm: LLM) -> None:
        self.runner = llm.llm_engine.runner
        self.run, self.runner.run = self.runner.run, self
        self.sizes = []

    def __call__(self, sequences, alone):
        decode = self.runner.decode
        if not decode.takes(sequences):
            return self.run(sequences, alone)
        first, second = (self.run(sequences).clone() for _ in range(2))
        decode.most_sequences = 0
        computed = self.run(sequences)
        decode.most_sequences = recording.MOST_SEQUENCES
        assert torch.equal(first, computed)
        assert torch.equal(second, computed)
        self.sizes.append(len(sequences))
        return computed


def generate(llm):
    """Prompts of several lengths that end one after the other."""
    twice = Twice(llm)
    params = [
        SamplingParams(temperature=0, max_tokens=NUM_TOKENS - 2 * i, ignore_eos=True)
        for i in range(len(PROMPTS) - 1)
    ]
    llm.generate(random_prompts(PROMPTS[1:], 0), params, use_tqdm=False)
    decode = llm.llm_engine.runner.decode
    assert decode.refused is None
    assert {1, 2, 3, 4} <= set(twice.sizes)
    assert decode.recordings
    return decode


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("architecture", sorted(set(FAMILIES) - RECURRENT))
def test_every_family_is_replayed_to_the_bit(tmp_path, monkeypatch, architecture, dtype):
    monkeypatch.setattr(rotary, "ROWS_AT_FIRST", 8)  # the table grows while its old address is recorded
    for seed in (300, 301):
        config = random_config(architecture, seed)
        if any(name in config for name in EXPERTS):
            name = "hidden_activation" if "hidden_activation" in config else "hidden_act"
            config[name] = "silu"  # experts with relu are called one by one, see below
        save_reference(tmp_path, config, seed)
        generate(LLM(tmp_path, dtype=dtype, skip_tokenizer_init=True))


@pytest.mark.parametrize("quantization", ["int8", "int4-g32"])
@pytest.mark.parametrize("cache", ["auto", "int8"])
def test_quantized_models_are_replayed_to_the_bit(tmp_path, quantization, cache):
    save_reference(tmp_path, BASE | {"hidden_size": 128, "intermediate_size": 256}, 0)
    options = {"quantization": quantization, "kv_cache_dtype": cache}
    generate(LLM(tmp_path, dtype="float32", skip_tokenizer_init=True, **options))


def test_kernels_that_follow_each_other_are_one_call(tmp_path, monkeypatch):
    """Where all products are the kernels' own, a step is one program."""
    monkeypatch.setattr("armllm.layers.cpu.has_torch_product", lambda _: False)
    monkeypatch.setattr("armllm.layers.cpu.has_fast_kernel", lambda _: False)
    save_reference(tmp_path, BASE, 0)
    decode = generate(LLM(tmp_path, dtype="float32", skip_tokenizer_init=True))
    assert [len(one.ops) for one in decode.recordings.values()] == [1] * len(decode.recordings)


def test_a_token_takes_few_regions_and_updates(tmp_path):
    """Five a layer, and the head's if it is ours. Catches an op that leaves the region of its neighbor."""
    layers, counts = 3, []
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": layers}
    save_reference(tmp_path, BASE | sizes, 0)
    llm = LLM(tmp_path, dtype="float32", quantization="int8", skip_tokenizer_init=True)
    runner = llm.llm_engine.runner
    run = runner.run

    def counted(sequences, alone):
        extension.count_threads(True)
        logits = run(sequences, alone)
        counts.append(extension.thread_counts())
        extension.count_threads(False)
        return logits

    runner.run = counted
    kernels.set_num_threads(2)  # on a machine with one core, too
    try:
        llm.generate(random_prompts((200,), 0), SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
    finally:
        kernels.set_num_threads(0)
    assert runner.decode.recordings
    regions, _, updates = counts[-1]
    assert regions == 5 * layers + runner.own_products, counts
    assert 0 < updates <= 40 * layers, counts  # 30 for each, where no thread is late


def linears():
    """Products around whose kernels torch has something to do."""
    generator = torch.Generator().manual_seed(3)
    q = torch.randint(-128, 128, (21, 96), generator=generator, dtype=torch.int8)
    weight = functools.partial(IntegerWeight, q=q, scales=torch.ones(21, 1), zeros=None, bits=8)
    columns = torch.randperm(96, generator=generator)
    return {
        "static zero point": quantized(weight(input_scale=0.1, input_zero=9), torch.arange(21.0)),
        "zero points": quantized(weight(input_zero=0)),
        "columns in another order": quantized(weight(columns=columns)),
        "side by side": SideBySide([quantized(weight()), DenseLinear(torch.rand(7, 96))]),
    }


@torch.inference_mode()
@pytest.mark.parametrize("name", linears())
def test_products_are_replayed_to_the_bit(name):
    linear, x = linears()[name], torch.randn(2, 3, 96)
    given, recorder = x[0].clone(), Recorder(Buffers(1), 1)
    with recorder.record():
        out = linear(given)
    assert recorder.refused is None
    given.copy_(x[1])
    for op in recorder.ops:
        op()
    assert torch.equal(out, linear(x[1]))


def test_an_op_that_is_not_known_leaves_the_model_without_recordings(tmp_path, caplog):
    """Numbers that are read in Python, as those of tokens sorted by expert are: a replay would not look."""
    save_reference(tmp_path, BASE, 0)
    llm = LLM(tmp_path, dtype="float32", skip_tokenizer_init=True)
    layer = llm.llm_engine.runner.model.layers[0]
    product = layer.mlp.down_proj
    layer.mlp.down_proj = lambda x: product(x) * (1 + int(x.sum().item() > 0))
    with caplog.at_level("INFO"):
        llm.generate(random_prompts((5, 9), 0), SamplingParams(max_tokens=3), use_tqdm=False)
    decode = llm.llm_engine.runner.decode
    assert decode.refused is not None
    assert not decode.recordings
    assert f"decode steps are not recorded: the model calls {decode.refused}" in caplog.text


@torch.inference_mode()
def test_a_buffer_is_used_again_when_its_tensor_is_gone():
    buffers, x = Buffers(6), torch.ones(3, 5)
    first = buffers.like(x, 3)
    view, alias = first[1], buffers.alias(first)
    second = buffers.like(x, 3)
    assert second.data_ptr() != first.data_ptr()
    del first
    assert buffers.like(x, 3).data_ptr() not in {alias.data_ptr(), second.data_ptr()}, "the view is left"
    del view
    assert buffers.like(x[:1], 1).data_ptr() == alias.data_ptr(), "steps of other sizes have the same buffers"
    assert buffers.nbytes == 3 * 6 * 64
    assert buffers.alias(x) is x


@torch.inference_mode()
def test_ops_are_replayed_in_order_with_the_numbers_of_then():
    x, table = torch.zeros(2, dtype=torch.int64), torch.arange(12.0).view(4, 3)
    recorder = Recorder(Buffers(1), 1)
    with recorder.record():
        rows = torch.empty(2, 3)
        kernels.gather_rows(rows, table, x)
        rows.mul_(torch.tensor(2.0))
        total = rows.sum(-1)
        out = torch.empty(2, 3)
        kernels.relu(out, rows)
    assert recorder.refused is None
    x[:] = torch.tensor([3, 1])
    for op in recorder.ops:
        op()
    assert total.tolist() == [60.0, 24.0]
    assert out.tolist() == [[18.0, 20.0, 22.0], [6.0, 8.0, 10.0]]
    assert len(recorder.ops) == 4, "a kernel, two ops of torch, a kernel"


def test_what_an_op_refuses_is_refused_in_a_replay_too():
    table, rows, out = torch.ones(3, 4), torch.zeros(2, dtype=torch.int64), torch.empty(2, 4)
    extension.start_recording()
    kernels.gather_rows(out, table, rows)
    program = extension.take_recording()
    assert extension.take_recording() is None
    extension.stop_recording()
    kernels.gather_rows(out, table, rows)
    assert extension.take_recording() is None, "nothing is recorded after the end"
    rows[1] = 3
    with pytest.raises(ValueError, match=r"rows\[1\] is 3, but table has 3 rows"):
        program.run()
