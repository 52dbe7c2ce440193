"""Text comes out as whole characters, equal to decoding everything at once, and ends at stop strings."""

from __future__ import annotations

import itertools
import random

import pytest

from armllm.engine.detokenizer import Detokenizer
from armllm.engine.stop_strings import StopStrings
from armllm.tokenizer import Tokenizer

TEXT = "Grüße 東京 😀👩‍👩‍👧‍👦, naïve ∑ and plain words."


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder):
    return Tokenizer(tokenizer_folder)


def stream(detokenizer, prompt, output, **how):
    """Feed token by token; return the texts seen and the stop string met, if any."""
    texts = []
    for count in range(1, len(output) + 1):
        stop = detokenizer.catch_up(prompt + output[:count], final=count == len(output), **how)
        texts.append(detokenizer.text)
        if stop is not None:
            return texts, stop
    return texts, None


def test_text_grows_by_whole_characters(tokenizer):
    prompt = tokenizer.encode("The ")
    output = tokenizer.encode(TEXT, add_special_tokens=False)
    assert len(output) > len(TEXT) / 2, "the tokenizer must split characters for this test to mean anything"
    texts, _ = stream(Detokenizer(tokenizer, prompt), prompt, output)
    assert texts[-1] == TEXT
    assert all(TEXT.startswith(text) for text in texts)


@pytest.mark.parametrize("seed", range(30))
def test_any_tokens_give_what_decoding_all_of_them_gives(tokenizer, seed):
    rng = random.Random(seed)  # noqa: S311 - test data
    prompt = tokenizer.encode("A prompt: ")
    output = [rng.randrange(2, tokenizer.vocab_size) for _ in range(rng.randrange(1, 60))]
    texts, _ = stream(Detokenizer(tokenizer, prompt), prompt, output)
    assert texts[-1] == tokenizer.decode(output)
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    at_once = Detokenizer(tokenizer, prompt)
    at_once.catch_up(prompt + output, final=True)
    assert at_once.text == texts[-1]


def test_a_character_that_the_prompt_began_is_completed(tokenizer):
    tokens = tokenizer.encode("x 京", add_special_tokens=False)
    assert len(tokens) > 3
    prompt, output = tokens[:-1], tokens[-1:]
    texts, _ = stream(Detokenizer(tokenizer, prompt), prompt, output)
    assert texts == ["京"]


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (["naïve"], "naïve"),
        (["京 😀"], "京 😀"),
        (["words", "plain"], "plain"),
        (["plain words", "pla"], "pla"),
        (["in w"], "in w"),
        (["never", "."], "."),
    ],
)
def test_stop_strings_are_found_across_tokens(tokenizer, stops, expected, include):
    prompt = tokenizer.encode("The ")
    output = tokenizer.encode(TEXT, add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer, prompt, stop=StopStrings(stops), include_stop=include)
    _, stop = stream(detokenizer, prompt, output)
    assert stop == expected
    assert detokenizer.text == TEXT[: TEXT.index(expected)] + (expected if include else "")


def test_a_stop_string_in_the_prompt_does_not_count(tokenizer):
    prompt = tokenizer.encode("stop")
    output = tokenizer.encode(" and go", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer, prompt, stop=StopStrings(["stop", "p a"]))
    assert stream(detokenizer, prompt, output)[1] is None
    assert detokenizer.text == " and go"


def test_special_tokens_are_left_out_or_kept(tokenizer):
    prompt = tokenizer.encode("a")
    output = [*tokenizer.encode("bc", add_special_tokens=False), 1]
    for skip, text in ((True, "bc"), (False, "bc</s>")):
        detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=skip)
        detokenizer.catch_up(prompt + output, final=True)
        assert detokenizer.text == text
