"""A vocab.txt gives the tokens of transformers' BertTokenizer, for single texts and for pairs."""

from __future__ import annotations

import json

import pytest
from tokenizers import normalizers
from transformers import AutoTokenizer, BertTokenizer

from armllm.errors import CheckpointError
from armllm.tokenizer import Tokenizer

PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "the",
    "quick",
    "##er",
    "fox",
    "über",
    "uber",
    "東",
    "京",
]
PIECES += [
    *"abcdefghijklmnopqrstuvwxyzABCDETQ.,!?",
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
]
TEXTS = ["The quicker fox", "Über 東京, über?", "a  b\tc\u0000d", "[MASK] of the 😀", "x" * 150, ""]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "settings", [None, {"do_lower_case": False}, {"strip_accents": False, "tokenize_chinese_chars": False}]
)
def test_tokens_are_those_of_transformers(folder, settings):
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "BertTokenizer", **settings})
        )
    ours, theirs = Tokenizer(folder), BertTokenizer(str(folder / "vocab.txt"), **(settings or {}))
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]
        if not text:  # which is no pair for transformers
            continue
        expected = theirs(TEXTS[0], text)
        token_ids, segment = ours.encode_pair(TEXTS[0], text)
        assert token_ids == expected["input_ids"]
        assert segment == expected["token_type_ids"].index(1)


@pytest.mark.parametrize("model_type", [None, "bert", "distilbert", "nomic_bert", "modernbert"])
@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
        {"tokenizer_class": "BertTokenizerFast", "do_lower_case": True, "strip_accents": False},
        {"tokenizer_class": "DistilBertTokenizer"},
        {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False},
        {},
    ],
)
def test_tokenizer_config_decides_on_lower_case_as_in_transformers(folder, model_type, settings):
    """Catches what sentence-transformers saves for ``do_lower_case``: a Lowercase that nobody reads again."""
    written = BertTokenizer(str(folder / "vocab.txt"), do_lower_case=False)
    backend = written.backend_tokenizer
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), backend.normalizer])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if model_type is not None:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    elif not settings:
        return  # transformers does not know the class
    ours, theirs = Tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text)["input_ids"]


def test_a_cut_text_keeps_its_special_tokens(folder):
    ours, theirs = Tokenizer(folder), BertTokenizer(str(folder / "vocab.txt"))
    text = "the fox, the quicker fox"
    for most in (2, 3, 5, 100):
        expected = theirs(text, truncation=True, max_length=most)["input_ids"]
        assert ours.encode_beginning(text, most) == expected
    for other in ("the fox", "the fox " * 20):
        for most in (4, 9, 30):
            token_ids, _ = ours.encode_pair(text, other, truncate_to=most)
            whole, _ = ours.encode_pair(text, other)
            assert len(token_ids) == min(most, len(whole))
            assert token_ids.count(3) == 2


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("vocab.txt", "[UNK]\n[CLS]\na\n", "which is the sep_token"),
        ("vocab.txt", "[UNK]\n[UNK]\n", "a token twice"),
        ("tokenizer_config.json", '{"tokenizer_class": "BertJapaneseTokenizer"}', "'BertJapaneseTokenizer'"),
        ("tokenizer_config.json", '{"do_lower_case": 3}', "do_lower_case must be true or false"),
        ("added_tokens.json", '{"x": 100}', "added_tokens.json beside vocab.txt"),
    ],
)
def test_what_is_strange_is_named(folder, file, content, message):
    (folder / file).write_text(content)
    with pytest.raises(CheckpointError) as caught:
        Tokenizer(folder)
    assert message in str(caught.value)
