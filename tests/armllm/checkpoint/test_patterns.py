"""Patterns of a checkpoint match as `re` has it, and a hostile one is refused soon."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tokenizers

from armllm.checkpoint import patterns
from armllm.checkpoint.gguf_tokenizer import SPLITS
from armllm.checkpoint.tokenizer_limits import check_tokenizer
from armllm.errors import CheckpointError

NAME = "model.layers.17.self_attn.q_proj"
USUAL = [
    r".*self_attn.*",
    r".*\.(?:1[0-9]|2[0-7])\..*",
    r"model\.layers\.\d+\.(mlp|self_attn)\.[a-z]+_proj$",
    r"^(?!.*experts).*q_proj$",
    r".*gate.*|lm_head",
    r"(.*)\.(.*)\.(.*)\.(.*)_proj",
]
SPLIT_PATTERNS = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t|'d)?|\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u309f]+|[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+",
    r"\((?:ab)+\)|(?<x>a)+",
    *[split for split in SPLITS.values() if split is not None],
]


@pytest.mark.parametrize("pattern", USUAL)
def test_usual_patterns_match_as_python_does(pattern):
    for name in (NAME, "lm_head", "model.layers.3.mlp.gate"):
        assert patterns.matches(pattern, name) is (re.match(pattern, name) is not None)


@pytest.mark.slow  # a second of CPU time
def test_a_pattern_that_takes_for_ever_is_refused():
    with pytest.raises(CheckpointError, match="takes too long"):
        patterns.matches(r"(([a-z._0-9])+)+!", NAME * 3)
    assert patterns.matches(USUAL[-1], NAME)


@pytest.mark.parametrize("pattern", SPLIT_PATTERNS)
def test_usual_splits_repeat_no_group_that_varies(pattern):
    assert not patterns.repeats_groups(pattern)


@pytest.mark.parametrize(
    "pattern", [r"(a+)+b", r"(?:a|a)*c", r"x(?:(a?)b)+", r"((a*))*", r"(a{1,3}){2,}", r"[(](a+)+", r"(\)+)*"]
)
def test_repeats_within_repeats_are_found(pattern):
    assert patterns.repeats_groups(pattern)


def test_a_tokenizer_with_such_a_split_is_refused():
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex("(a+)+b"), "isolated")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split])
    with pytest.raises(CheckpointError, match="repeats a group"):
        check_tokenizer(tokenizer, Path("tokenizer.json"))
