"""Every way for a completion to end, with its reason."""

from __future__ import annotations

import itertools
import json
import shutil

import pytest

from armllm import LLM, SamplingParams


@pytest.fixture(scope="module")
def checkpoint(make_checkpoint):
    return make_checkpoint()


@pytest.fixture
def llm(checkpoint):
    return LLM(checkpoint.folder, dtype="float32")


@pytest.fixture(scope="module")
def example(checkpoint):
    """A prompt and its first twenty greedy tokens, all different."""
    for seed in range(100):
        ((prompt, tokens),) = checkpoint.prompts((9,), 20, seed).items()
        if len(set(tokens)) == 20 and 1 not in tokens:
            return list(prompt), tokens
    raise AssertionError("no such prompt")


def complete(llm, prompt, **params):
    params = SamplingParams(temperature=0, **{"max_tokens": 20} | params)
    (output,) = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
    llm.llm_engine.check_integrity()
    return output.outputs[0]


def test_max_tokens(llm, example):
    prompt, tokens = example
    for count in (1, 2, 20):
        completion = complete(llm, prompt, max_tokens=count)
        assert completion.token_ids == tokens[:count]
        assert completion.finish_reason == "length"
        assert completion.stop_reason is None


def test_max_tokens_none_goes_to_the_end_of_the_model(llm, example):
    prompt, tokens = example
    completion = complete(llm, prompt, max_tokens=None, ignore_eos=True)
    assert len(completion.token_ids) == 256 - len(prompt)
    assert completion.token_ids[:20] == tokens
    assert completion.finish_reason == "length"


def test_stop_token_ids_are_kept_in_the_ids_and_cut_from_the_text(llm, example):
    prompt, tokens = example
    completion = complete(llm, prompt, stop_token_ids=[tokens[7], tokens[12]])
    assert completion.token_ids == tokens[:8]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", tokens[7])
    assert completion.text == llm.get_tokenizer().decode(tokens[:7])


def test_stop_strings_cut_the_text(llm, example):
    prompt, tokens = example
    text = llm.get_tokenizer().decode(tokens)
    stop = next(text[i : i + 2] for i in range(6, len(text)) if text.index(text[i : i + 2]) == i)
    for include in (False, True):
        completion = complete(llm, prompt, stop=[stop, "never"], include_stop_str_in_output=include)
        assert completion.text == text[: text.index(stop)] + (stop if include else "")
        assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
        assert completion.token_ids == tokens[: len(completion.token_ids)]


def test_without_detokenize_there_is_no_text(llm, example):
    prompt, tokens = example
    completion = complete(llm, prompt, detokenize=False)
    assert completion.text == ""
    assert completion.token_ids == tokens


@pytest.mark.parametrize(
    ("file_name", "content"),
    [
        ("generation_config.json", {"eos_token_id": "END"}),
        ("generation_config.json", {"eos_token_id": ["OTHER", "END"]}),
        ("config.json", {"eos_token_id": "END"}),
        ("config.json", {"eos_token_id": ["END", "OTHER"]}),
        ("tokenizer_config.json", {"eos_token": "END"}),
    ],
)
def test_end_tokens_come_from_every_file_that_names_them(checkpoint, example, tmp_path, file_name, content):
    prompt, tokens = example
    folder = shutil.copytree(checkpoint.folder, tmp_path / "model")
    tokenizer = LLM(folder, dtype="float32").get_tokenizer()
    end, other = next(
        (token, other)
        for token, other in itertools.pairwise(tokens[3:])
        if tokenizer._tokenizer.token_to_id(tokenizer._tokenizer.id_to_token(token)) == token
    )
    names = {"END": end, "OTHER": other}
    if file_name == "tokenizer_config.json":
        content = {"eos_token": tokenizer._tokenizer.id_to_token(end)}
    else:
        value = content["eos_token_id"]
        content = {"eos_token_id": [names[v] for v in value] if isinstance(value, list) else names[value]}
    path = folder / file_name
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | content))
    llm = LLM(folder, dtype="float32")
    completion = complete(llm, prompt)
    position = tokens.index(end)
    assert completion.token_ids == tokens[: position + 1]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", None)
    assert completion.text == tokenizer.decode(tokens[:position])
    assert complete(llm, prompt, ignore_eos=True).token_ids == tokens
