"""The texts of one request are tokenized together, and each has what it has alone."""

from __future__ import annotations

import pytest

from armllm.server import prompts
from armllm.server.limits import HEAVY_TEXT

TEXTS = ["Hello", "a " * 30, "Bread needs flour", "x", "A wheel left the workshop", "y z"]


@pytest.mark.parametrize("cut", [None, 3])
@pytest.mark.parametrize("most", [HEAVY_TEXT, 20])
def test_many_texts_have_the_ids_of_each(served, monkeypatch, cut, most):
    """In parts that are small or large; completions keep a prompt's end, and embeddings its beginning."""
    monkeypatch.setattr(prompts, "HEAVY_TEXT", most)
    for path, field in (("/v1/embeddings", "input"), ("/v1/completions", "prompt")):
        form = {"truncate_prompt_tokens": cut, "max_tokens": 1, "temperature": 0}
        form = form if field == "prompt" else {"truncate_prompt_tokens": cut}
        together = served.post(path, {field: TEXTS, **form}).json()
        alone = [served.post(path, {field: text, **form}).json() for text in TEXTS]
        counts = [one["usage"]["prompt_tokens"] for one in alone]
        assert together["usage"]["prompt_tokens"] == sum(counts)
        if field == "prompt":
            found = [choice["text"] for choice in together["choices"]]
            assert found == [one["choices"][0]["text"] for one in alone]


def test_parts_are_not_heavy_and_leave_nothing_out():
    texts = ["a" * 10, "b" * (HEAVY_TEXT - 10), "c", "d" * (HEAVY_TEXT + 1), "e", "f"]
    parts = list(prompts._parts(texts))
    assert [text for part in parts for text in part] == texts
    assert [len(part) for part in parts] == [2, 1, 1, 2]


def test_one_text_that_is_too_long_is_refused_with_all(served):
    answer = served.post("/v1/embeddings", {"input": ["Hello", "word " * 5000]})
    assert answer.status_code == 400
    assert "max_model_len" in answer.json()["error"]["message"]


def test_a_text_that_is_too_long_is_not_tokenized_for_a_limit_above_the_model_s(served, monkeypatch):
    """Catches a megabyte that is tokenized for the sake of a limit that nothing reaches."""
    body = {"input": "x " * served.service.prompts.longest_text, "truncate_prompt_tokens": 10**9}
    monkeypatch.setattr(type(served.service.tokenizer), "encode_beginning", None)
    answer = served.post("/v1/embeddings", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
