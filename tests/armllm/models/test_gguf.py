"""GGUF files, written under llama.cpp's conventions, give the logits and tokens of the original."""

from __future__ import annotations

import json
import os
import random

import gguf
import numpy as np
import pytest
import tokenizers
import torch
from tests.armllm.models.random_configs import random_config
from tests.armllm.models.reference import Spy, expected_logits, random_prompts, save_reference

from armllm import LLM, SamplingParams
from armllm.errors import CheckpointError
from armllm.models.inspect import inspect
from armllm.tokenizer import Tokenizer

KINDS = gguf.GGMLQuantizationType
TEXTS = [
    "The quick  brown fox's 12345 jumps.\n\nOver",
    "Grüße aus Köln 東京は 😀 naïve\t1 2  3",
    "",
    " leading and trailing ",
]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CASES = {
    "llama": {"rope_theta": 5e5, "rope_scaling": LLAMA3, "attention_bias": False, "mlp_bias": False},
    "llama-linear": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}, "tie_word_embeddings": True},
    "llama-yarn": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    },
    "qwen2": {"use_sliding_window": False},
    "qwen3": {"use_sliding_window": False, "attention_bias": False},
    "phi3": {},
    "gemma2": {},
    "gemma3": {"sliding_window_pattern": 6, "num_hidden_layers": 7},
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def permuted(weight, heads):
    """What convert_hf_to_gguf.py does to Llama's queries and keys."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def gguf_name(name, arch):
    names = NAMES | (GEMMA if arch.startswith("gemma") else {})
    if name.startswith("model.layers."):
        _, _, index, rest = name.split(".", 3)
        part, _, ending = rest.rpartition(".")
        return f"blk.{index}.{names[part]}.{ending}"
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, ending = name.rpartition(".")
    return f"{outside[stem]}.{ending}"


def write_gguf(path, arch, model, kind, fill=lambda writer: None):
    """The checkpoint as llama.cpp's converter writes it."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    if arch == "gemma3":
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    add_rope(writer, model, rope, head_dim)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(config, name, None):
            getattr(writer, f"add_{name}")(getattr(config, name))
    fill(writer)
    add_tensors(writer, arch, model, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensors(writer, arch, model, kind):
    config = model.config
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        if arch == "llama" and "q_proj" in name:
            array = permuted(array, config.num_attention_heads)
        if arch == "llama" and "k_proj" in name:
            array = permuted(array, config.num_key_value_heads)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            array = array + 1
        stored = KINDS.F32 if array.ndim == 1 else kind
        writer.add_tensor(gguf_name(name, arch), gguf.quantize(array, stored), raw_dtype=stored)


def add_rope(writer, model, rope, head_dim):
    kind = rope["rope_type"]
    rotary_dim = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(rotary_dim)
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "llama3":
        plain = rope["rope_theta"] ** -(torch.arange(0, rotary_dim, 2) / rotary_dim)
        factors = plain / model.model.rotary_emb.inv_freq
        writer.add_tensor("rope_freqs.weight", factors.float().numpy())
    if kind == "longrope":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(model.model.rotary_emb.attention_scaling)
        for name in ("long", "short"):
            factors = np.array(rope[f"{name}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{name}.weight", factors)


def reference(folder, case, seed=4):
    arch = case.split("-")[0]
    config = random_config(ARCHITECTURES[arch], seed)
    for name in ("rope_scaling", "rope_parameters", "layer_types", "sliding_window_pattern"):
        if arch != "phi3":
            config.pop(name, None)
    config |= CASES[case] | {"hidden_act": "silu", "attention_bias": CASES[case].get("attention_bias", False)}
    if arch.startswith("gemma"):
        config["hidden_activation"] = "gelu_pytorch_tanh"
        config["query_pre_attn_scalar"] = config["head_dim"]
    if arch == "gemma3":
        config |= {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
        }
    if arch != "phi3":
        config.setdefault("rope_theta", 1e4)
    folder.mkdir()
    return arch, save_reference(folder, config, seed)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [KINDS.F32, KINDS.F16, KINDS.BF16])
def test_gguf_files_have_the_logits_of_the_original(tmp_path, case, kind):
    arch, model = reference(tmp_path / "hf", case)
    rounded = {KINDS.F32: torch.float32, KINDS.F16: torch.float16, KINDS.BF16: torch.bfloat16}[kind]
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data = parameter.data.to(rounded).float()
    write_gguf(tmp_path / "model.gguf", arch, model, kind)
    llm = Spy(LLM(tmp_path / "model.gguf", dtype="float32", skip_tokenizer_init=True))
    for prompt in random_prompts((1, 36), 4):
        tokens, logits = llm.generate(prompt, 6)
        torch.testing.assert_close(logits, expected_logits(model, prompt, tokens), rtol=0, atol=1e-4)


@pytest.fixture
def llama_file(tmp_path):
    arch, model = reference(tmp_path / "hf", "llama")
    return tmp_path / "model.gguf", arch, model


def refused(path, *words, **options):
    with pytest.raises(CheckpointError) as caught:
        LLM(path, dtype="float32", **options)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    for word in words:
        assert word in message


def test_weights_of_the_right_dtype_stay_mapped(llama_file):
    path, arch, model = llama_file
    write_gguf(path, arch, model, KINDS.F32)
    llm = LLM(path, dtype="float32", skip_tokenizer_init=True)
    with open("/proc/self/maps") as lines:  # noqa: PTH123
        spans = [line.split()[0].split("-") for line in lines if line.rstrip().endswith(str(path))]
    address = llm.llm_engine.runner.model.embed_tokens.weight.data_ptr()
    assert any(int(start, 16) <= address < int(end, 16) for start, end in spans)


@pytest.mark.parametrize("kind", [KINDS.Q5_0, KINDS.Q5_1])
def test_quantised_tensors_are_refused_by_their_type(llama_file, kind):
    path, arch, _ = llama_file
    writer = gguf.GGUFWriter(path, arch)
    writer.add_tensor("token_embd.weight", gguf.quantize(np.ones((8, 64), np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(
        path, f"tensors of type {kind.name} are not supported, only F32, F16, BF16, Q4_0, Q8_0, Q4_K, Q6_K"
    )


def test_an_architecture_that_is_not_here_is_named(llama_file):
    path, _, model = llama_file
    write_gguf(path, "falcon", model, KINDS.F32)
    refused(path, "'falcon' is not supported, only gemma2")


@pytest.mark.parametrize("keep", [0, 3, 100, 2000, -1])
def test_a_truncated_file_is_refused(llama_file, keep):
    path, arch, model = llama_file
    write_gguf(path, arch, model, KINDS.F32)
    os.truncate(path, path.stat().st_size // 2 if keep == -1 else keep)
    refused(path, "can't be read as GGUF", "truncated", skip_tokenizer_init=True)


def test_damaged_headers_end_in_one_line(llama_file):
    """Bytes of the header changed at random: what still reads must be refused later, or be harmless."""
    path, arch, model = llama_file

    def fill(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_list(["a", "b", "ab"])
        writer.add_token_types([1, 1, 1])
        writer.add_token_merges(["a b"])

    write_gguf(path, arch, model, KINDS.F32, fill)
    whole = path.read_bytes()
    rng = random.Random(0)  # noqa: S311 - test data
    for number in range(300):
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 1, 3])):
            damaged[rng.randrange(2500)] = rng.choice([0, 1, 255, rng.randrange(256)])
        path = path.with_name(f"{number}.gguf")
        path.write_bytes(damaged)
        try:
            Tokenizer(path)
            inspect(str(path))
        except CheckpointError as error:
            assert "\n" not in str(error)  # noqa: PT017 - most are refused, not all
        path.unlink()


def test_experts_are_refused(llama_file):
    path, arch, model = llama_file
    write_gguf(path, arch, model, KINDS.F32, lambda writer: writer.add_expert_count(4))
    refused(path, "experts are not supported")


def test_a_missing_tensor_is_named(llama_file):
    path, arch, model = llama_file
    write_gguf(path, arch, model, KINDS.F32, lambda writer: writer.add_tensor("odd.weight", np.ones(3)))
    refused(path, "tensors of type F64")


def train(split, special):
    """A byte-level tokenizer whose text is split by an expression."""
    pre = tokenizers.pre_tokenizers
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    steps = [pre.ByteLevel(add_prefix_space=False, use_regex=split is None)]
    if split is not None:
        steps.insert(0, pre.Split(tokenizers.Regex(split), behavior="isolated"))
    tokenizer.pre_tokenizer = pre.Sequence(steps)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=390, special_tokens=special, show_progress=False, initial_alphabet=pre.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = QWEN_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


@pytest.mark.parametrize(
    ("pre", "split", "begins"),
    [("gpt-2", None, False), ("qwen2", QWEN_SPLIT, False), ("llama-bpe", LLAMA3_SPLIT, True)],
)
def test_a_byte_level_tokenizer_gives_the_tokens_of_the_original(llama_file, pre, split, begins):
    path, arch, model = llama_file
    original = train(split, ["<s>", "</s>", "<|im_start|>"])
    vocabulary = sorted(original.get_vocab().items(), key=lambda pair: pair[1])
    merges = [" ".join(merge) for merge in json.loads(original.to_str())["model"]["merges"]]

    def fill(writer):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list([token for token, _ in vocabulary])
        writer.add_token_types([3 if index < 3 else 1 for index in range(len(vocabulary))])
        writer.add_token_merges(merges)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_chat_template("{{ messages[0]['content'] }}<|im_start|>")

    write_gguf(path, arch, model, KINDS.F32, fill)
    tokenizer = Tokenizer(path)
    for text in [*TEXTS, "a<|im_start|>b"]:
        expected = original.encode(text).ids
        assert tokenizer.encode(text) == [0] * begins + expected
        assert tokenizer.decode(expected, skip_special_tokens=False) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    llm = LLM(path, dtype="float32")
    params = SamplingParams(temperature=0, max_tokens=4)
    (output,) = llm.chat([{"role": "user", "content": "The fox"}], params, use_tqdm=False)
    assert output.prompt == "The fox<|im_start|>"
    assert output.prompt_token_ids == original.encode("The fox<|im_start|>").ids


def test_a_sentence_piece_tokenizer_merges_by_score(llama_file):
    path, arch, model = llama_file
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += [
        "\u2581",
        "t",
        "h",
        "e",
        "o",
        "th",
        "\u2581t",
        "he",
        "\u2581th",
        "\u2581the",
        "ot",
        "oth",
        "er",
    ]
    scores = [0.0] * 259 + [-100.0 - index for index in range(5)] + [float(-index) for index in range(8)]

    def fill(writer):
        writer.add_tokenizer_model("llama")
        writer.add_token_list(pieces)
        writer.add_token_scores(scores)
        writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (len(pieces) - 259))
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)

    write_gguf(path, arch, model, KINDS.F32, fill)
    tokenizer = Tokenizer(path)
    ids = tokenizer.encode("the oth\u00e9")
    named = [pieces[index] for index in ids]
    assert named == ["<s>", "\u2581the", "\u2581", "oth", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(ids) == "the oth\u00e9"


@pytest.mark.parametrize(
    ("kind", "pre", "words"),
    [("t5", "default", "tokenizer.ggml.model 't5'"), ("gpt2", "jais", "tokenizer.ggml.pre 'jais'")],
)
def test_a_tokenizer_that_is_not_known_is_refused_by_name(llama_file, kind, pre, words):
    path, arch, model = llama_file

    def fill(writer):
        writer.add_tokenizer_model(kind)
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(["a", "b"])

    write_gguf(path, arch, model, KINDS.F32, fill)
    refused(path, words, "as tokenizer")


def test_no_tokenizer_is_said(llama_file):
    path, arch, model = llama_file
    write_gguf(path, arch, model, KINDS.F32)
    refused(path, "has no tokenizer")
