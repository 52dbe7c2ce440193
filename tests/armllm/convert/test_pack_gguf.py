"""`armllm pack` of GGUF files: what the folder computes is what the file computes."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tests.armllm.checkpoint import gguf_files
from tests.armllm.checkpoint.gguf_files import KINDS
from tests.armllm.models.reference import Spy, random_prompts, save_reference
from tests.armllm.quant import test_gguf, test_gguf_experts, test_gguf_gpt_oss

from armllm import LLM
from armllm.cli import main
from armllm.engine.inspection import inspect_checkpoint
from armllm.errors import CheckpointError
from armllm.tokenizer import Tokenizer

# blocks have 32 numbers
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture
def llama_file(tmp_path):
    arch, model = gguf_files.reference(tmp_path / "hf", "llama", **SIZES)
    return tmp_path / "model.gguf", arch, model


def pack(path, output, *options):
    return main(["pack", str(path), "-o", str(output), *options])


def logits(model):
    # what a file keeps in blocks outside the products becomes bfloat16
    llm = Spy(LLM(model, dtype="bfloat16", skip_tokenizer_init=True))
    return torch.cat([llm.generate(prompt, 4)[1] for prompt in random_prompts((1, 30), 2)])


@pytest.mark.parametrize("case", gguf_files.CASES)
def test_a_packed_file_computes_what_the_file_does(tmp_path, case):
    path = tmp_path / "model.gguf"
    sizes = {} if case == "phi3" else SIZES  # whose rope factors go with its heads
    arch, model = gguf_files.reference(tmp_path / "hf", case, seed=2, **sizes)
    gguf_files.write_gguf(path, arch, model, KINDS.Q8_0)
    assert pack(path, tmp_path / "out") == 0
    assert torch.equal(logits(tmp_path / "out"), logits(path))


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_nothing_but_the_file_is_taken(make_checkpoint, tmp_path, kind):
    """Not what lies beside it; tables in blocks become bfloat16, matrices that are rounded again stay so."""
    source = make_checkpoint(**test_gguf.SIZES)
    source.model.requires_grad_(False)
    test_gguf.write_gguf(tmp_path / "model.gguf", source, kind)
    (tmp_path / "a file beside it").touch()
    assert pack(tmp_path / "model.gguf", tmp_path / "out") == 0
    assert torch.equal(logits(tmp_path / "out"), logits(tmp_path / "model.gguf"))
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["config.json", "model.safetensors", "packed.json"]
    table = load_file(tmp_path / "out" / "model.safetensors")["model.embed_tokens.weight"]
    assert table.dtype is torch.bfloat16


@pytest.mark.parametrize("case", test_gguf_experts.CASES)
def test_experts_are_packed_one_by_one(tmp_path, case):
    config = test_gguf_experts.reference(tmp_path / "hf", case)
    state = load_file(tmp_path / "hf" / "model.safetensors")
    path = tmp_path / "model.gguf"
    test_gguf_experts.write_gguf(path, case.split("-")[0], config, state, KINDS.Q4_0)
    assert pack(path, tmp_path / "out") == 0
    assert torch.equal(logits(tmp_path / "out"), logits(path))
    assert inspect_checkpoint(str(tmp_path / "out"))["architecture"] == test_gguf_experts.CASES[case][0]


def test_gpt_oss_is_packed_with_the_biases_of_its_experts(tmp_path):
    model = save_reference(tmp_path / "hf", test_gguf_gpt_oss.CONFIG, 5)
    path = tmp_path / "model.gguf"
    test_gguf_gpt_oss.write(path, model, KINDS.MXFP4)
    assert pack(path, tmp_path / "out") == 0
    assert torch.equal(logits(tmp_path / "out"), logits(path))


def test_the_tokenizer_becomes_files(llama_file):
    path, arch, model = llama_file
    tokens = ["<s>", "</s>", *"abcdefgh", "ab", "abc"]

    def fill(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
        writer.add_token_merges(["a b", "ab c"])
        writer.add_eos_token_id(1)
        writer.add_chat_template("{{ messages[0]['content'] }}")

    gguf_files.write_gguf(path, arch, model, KINDS.Q8_0, fill)
    output = path.parent / "out"
    assert pack(path, output) == 0
    packed = Tokenizer(output)
    assert packed.encode("abcab</s>") == [tokens.index(token) for token in ("abc", "ab", "</s>")]
    assert packed.eos_token_id == 1
    assert packed.settings == Tokenizer(path).settings


def test_a_file_that_has_changed_is_not_served_from_its_packed_folder(llama_file):
    path, arch, model = llama_file
    gguf_files.write_gguf(path, arch, model, KINDS.Q8_0)
    output = path.parent / "out"
    assert pack(path, output) == 0
    octets = bytearray(path.read_bytes())
    octets[-1] ^= 1
    path.write_bytes(octets)
    with pytest.raises(CheckpointError, match=f"from other weights than {path} has now: pack it again"):
        LLM(output, skip_tokenizer_init=True)


def test_a_file_of_floating_point_numbers_wants_a_scheme(llama_file, capsys):
    path, arch, model = llama_file
    gguf_files.write_gguf(path, arch, model, KINDS.F16)
    assert pack(path, path.parent / "out") != 0
    assert f"{path} is not quantized: add --quantization, one of int8" in capsys.readouterr().err
    assert pack(path, path.parent / "out", "--quantization", "int8") == 0
    assert inspect_checkpoint(str(path.parent / "out"))["quantization"].endswith(
        "rounded to int8 while loading"
    )
