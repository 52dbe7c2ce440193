"""vocab.json with merges.txt gives the tokens that transformers' GPT-2 tokenizer gives."""

from __future__ import annotations

import json
import shutil

import pytest
import transformers

from armllm.errors import CheckpointError
from armllm.tokenizer import Tokenizer

TEXTS = ["Hello world", "  two  spaces\n\n", "Grüße 東京 😀", "it's 12345 a</s>b", "", "<s>x"]
SETTINGS = {
    "tokenizer_class": "GPT2Tokenizer",
    "bos_token": {"content": "</s>", "__type": "AddedToken"},
    "eos_token": "</s>",
    "unk_token": "</s>",
    "pad_token": "<s>",
    "add_prefix_space": False,
    "add_bos_token": True,
    "errors": "replace",
}


@pytest.fixture
def folder(tokenizer_folder, tmp_path):
    """The tests' tokenizer in the older form."""
    model = json.loads((tokenizer_folder / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(SETTINGS))
    return tmp_path


def change(folder, **settings):
    (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS | settings))


def reference(folder):
    return transformers.GPT2Tokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("spaced", [False, True])
def test_tokens_are_those_of_transformers(folder, text, spaced):
    change(folder, add_prefix_space=spaced)
    ours = Tokenizer(folder)
    theirs = reference(folder)
    expected = theirs.encode(text, add_special_tokens=False)
    assert ours.encode(text, add_special_tokens=False) == expected
    begin = theirs.convert_tokens_to_ids("</s>")
    assert ours.encode(text) == [begin, *expected]
    assert ours.decode(expected, skip_special_tokens=False) == theirs.decode(expected)
    assert (ours.bos_token_id, ours.eos_token_id) == (begin, begin)


def test_no_begin_token_unless_it_is_asked_for(folder):
    change(folder, add_bos_token=False)
    ours = Tokenizer(folder)
    assert ours.encode("Hello") == ours.encode("Hello", add_special_tokens=False)


def test_added_tokens_follow_the_vocabulary(folder):
    size = len(json.loads((folder / "vocab.json").read_text()))
    (folder / "added_tokens.json").write_text(json.dumps({"<two>": size + 1, "<one>": size}))
    assert Tokenizer(folder).encode("<one><two>", add_special_tokens=False) == [size, size + 1]
    (folder / "added_tokens.json").write_text(json.dumps({"<one>": size + 5}))
    with pytest.raises(CheckpointError, match=f"must be {size}"):
        Tokenizer(folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("vocab.json", "[]", "must hold a JSON object"),
        ("vocab.json", '{"a": -1}', "different id of at least 0"),
        ("vocab.json", '{"a": 1, "b": 1}', "different id"),
        ("vocab.json", '{"a": "x"}', "tokens and their ids"),
        ("vocab.json", '{"a": 0}', "does not fit vocab.json"),
        ("merges.txt", "a b c\n", "line 1: two tokens are expected"),
        ("merges.txt", "#version: 0.2\na\n", "line 2: two tokens are expected"),
        ("merges.txt", "zz qq\n", "does not fit vocab.json"),
        ("tokenizer_config.json", '{"tokenizer_class": "Qwen2Tokenizer"}', "not for 'Qwen2Tokenizer'"),
        ("tokenizer_config.json", '{"add_bos_token": true}', "add_bos_token needs a bos_token"),
        ("tokenizer_config.json", '{"bos_token": "<none>"}', "'<none>' is not in vocab.json"),
        ("added_tokens.json", '{"a": "b"}', "tokens and their ids"),
    ],
)
def test_what_is_wrong_is_said(folder, name, text, message):
    (folder / name).write_text(text)
    with pytest.raises(CheckpointError, match=message):
        Tokenizer(folder)


def test_an_engine_runs_with_it(make_checkpoint, folder, tmp_path):
    from armllm import LLM, SamplingParams  # noqa: PLC0415 - the other tests need no engine

    source = make_checkpoint().folder
    model = shutil.copytree(source, tmp_path / "model", ignore=shutil.ignore_patterns("token*"))
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        shutil.copy(folder / name, model / name)
    (output,) = LLM(model, dtype="float32").generate("Hello", SamplingParams(max_tokens=2), use_tqdm=False)
    assert output.prompt_token_ids == Tokenizer(folder).encode("Hello")
