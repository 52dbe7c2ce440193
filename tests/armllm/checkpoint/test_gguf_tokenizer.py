"""GGUF files give the tokens of the original."""

from __future__ import annotations

import json

import pytest
import tokenizers
from tests.armllm.checkpoint.gguf_files import (
    KINDS,
    refused,
    write_gguf,
)

from armllm import LLM, SamplingParams
from armllm.tokenizer import Tokenizer

TEXTS = [
    "The quick  brown fox's 12345 jumps.\n\nOver",
    "Grüße aus Köln 東京は 😀 naïve\t1 2  3",
    "",
    " leading and trailing ",
    "हिन्दी में लिखा, नमस्ते",
]


DIGITS = r"\p{N}"


def train(split, special):
    """A byte-level tokenizer whose text is split by an expression."""
    pre = tokenizers.pre_tokenizers
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    steps = [pre.ByteLevel(add_prefix_space=False, use_regex=split in (None, DIGITS))]
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
# as the tokenizer.json of Qwen3.5 has it: marks belong to words
QWEN35_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = QWEN_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
# as the tokenizer.json of gpt-oss has it
O200K_SPLIT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(
    ("pre", "split", "begins"),
    [
        ("gpt-2", None, False),
        ("gpt-4o", O200K_SPLIT, False),
        ("qwen2", QWEN_SPLIT, False),
        ("qwen35", QWEN35_SPLIT, False),
        ("phi-2", None, False),
        ("lfm2", LLAMA3_SPLIT, True),
        ("pixtral", LLAMA3_SPLIT, True),
        ("refact", DIGITS, False),
        ("smollm", DIGITS, False),
        ("llama-bpe", LLAMA3_SPLIT, True),
    ],
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
