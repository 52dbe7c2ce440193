"""Scores and ranks are cosines of what /v1/embeddings returns; what a model cannot do is said."""

from __future__ import annotations

import asyncio
import json
import threading

import httpx2
import pytest
import torch
from tests.armllm.models.test_classifiers import RERANKER, decoder
from tests.armllm.server.conftest import DEADLINE

from armllm.server.batch import PATHS

TEXTS = ["A wheel left the workshop", "Bread needs flour", "at 6:40 one grey Thursday"]


def embeddings(served, texts):
    answer = served.post("/v1/embeddings", {"input": texts}).json()
    return [one["embedding"] for one in answer["data"]]


def cosine(first, second):
    return sum(x * y for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")])
def test_scores_are_cosines(served, names):
    answer = served.post("/score", {names[0]: TEXTS[0], names[1]: TEXTS, "model": "smoke"}).json()
    vectors = embeddings(served, TEXTS)
    expected = [cosine(vectors[0], vector) for vector in vectors]
    assert [one["score"] for one in answer["data"]] == pytest.approx(expected, abs=1e-4)
    assert answer["usage"]["total_tokens"] > 0
    pairwise = served.post("/v1/score", {names[0]: TEXTS, names[1]: TEXTS}).json()
    assert [one["score"] for one in pairwise["data"]] == pytest.approx([1, 1, 1], abs=1e-4)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_come_in_the_order_of_their_scores(served, path):
    body = {"query": TEXTS[0], "documents": TEXTS, "top_n": 2}
    results = served.post(path, body).json()["results"]
    vectors = embeddings(served, TEXTS)
    order = sorted(range(3), key=lambda index: -cosine(vectors[0], vectors[index]))
    assert [one["index"] for one in results] == order[:2]
    assert results[0]["document"] == {"text": TEXTS[order[0]]}
    routed = {"query": TEXTS[0], "documents": TEXTS, "top_k": 2, "rid": None, "user": None}
    assert served.post(path, routed).json()["results"] == results
    assert results[0]["relevance_score"] == pytest.approx(1, abs=1e-4)
    objects = {**body, "documents": [{"text": text} for text in TEXTS], "top_n": 0, "return_documents": False}
    results = served.post(path, objects).json()["results"]
    assert [one["index"] for one in results] == order
    assert results[0]["document"] is None


def test_a_text_that_is_pooled_loses_its_end(served):
    """As in sentence-transformers and vLLM; a prompt that is continued loses its beginning."""
    token_ids = served.post("/tokenize", {"prompt": TEXTS[0]}).json()["tokens"][:4]
    for text in (TEXTS[0], [*token_ids, 9]):
        body = {"input": text, "truncate_prompt_tokens": 4}
        (cut,) = served.post("/v1/embeddings", body).json()["data"]
        assert cut["embedding"] == pytest.approx(embeddings(served, [token_ids])[0], abs=1e-5)


def test_pooling_returns_the_embedding(served):
    (one,) = served.post("/pooling", {"input": TEXTS[0], "task": "embed"}).json()["data"]
    assert one["data"] == pytest.approx(embeddings(served, TEXTS[:1])[0], abs=1e-5)
    (raw,) = served.post("/pooling", {"input": TEXTS[0], "use_activation": False}).json()["data"]
    assert cosine(raw["data"], raw["data"]) != pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/score", {"text_1": "x"}, "needs one of these pairs"),
        ("/score", {"text_1": "x", "documents": "y"}, "needs one of these pairs"),
        ("/score", {"text_1": ["x", "y"], "text_2": ["x"]}, "have 2 and 1 texts"),
        ("/score", {"text_1": [], "text_2": ["x"]}, "text_1 must not be an empty list"),
        ("/score", {"text_1": "x", "text_2": "y", "instruction": "z"}, "instruction is not supported"),
        ("/rerank", {"query": "x", "documents": []}, "documents"),
        ("/rerank", {"query": "x", "documents": ["y"], "top_n": -1}, "top_n"),
        ("/rerank", {"query": "x", "documents": ["y"], "priority": 1}, "--scheduling-policy priority"),
        ("/pooling", {"input": "x", "task": "classify"}, "classification head"),
        ("/pooling", {"input": "x", "task": "token_classify"}, "classification head"),
        ("/pooling", {"input": "x", "task": "plugin"}, "task can only be one of embed"),
        ("/classify", {"input": "x"}, "classification head"),
    ],
)
def test_what_is_wrong_is_said(served, path, body, message):
    answer = served.post(path, body)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]


def test_neutral_fields_of_routers_are_accepted_and_others_refused(served):
    neutral = {
        "no_stop_trim": False,
        "return_hidden_states": False,
        "separate_reasoning": True,
        "stream_reasoning": True,
        "reasoning_effort": "medium",
    }
    messages = [{"role": "user", "content": "Hi"}]
    body = {"messages": messages, "max_tokens": 2, **neutral}
    assert served.post("/v1/chat/completions", body).status_code == 200
    for name, value in {"no_stop_trim": True, "return_hidden_states": True, "reasoning_effort": "x"}.items():
        answer = served.post("/v1/chat/completions", {**body, name: value})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == name


def test_reasoning_effort_reaches_the_template(serving):
    with serving({}, chat_template="{{ reasoning_effort }}") as server:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "return_token_ids": True}
        answer = server.post("/v1/chat/completions", {**body, "reasoning_effort": "high"}).json()
        assert server.service.tokenizer.decode(answer["prompt_token_ids"]) == "high"


def test_a_limit_of_none_leaves_the_chosen_token(serving):
    with serving({"max_logprobs": 0}) as server:
        body = {"prompt": "x", "max_tokens": 1}
        answer = server.post("/v1/completions", {**body, "logprobs": 0}).json()
        assert len(answer["choices"][0]["logprobs"]["token_logprobs"]) == 1
        answer = server.post("/v1/completions", {**body, "logprobs": 1})
        assert "max_logprobs 0" in answer.json()["error"]["message"]


def test_log_probabilities_have_a_limit_of_the_server(serving):
    with serving({"max_logprobs": 3}) as server:
        body = {"prompt": "x", "max_tokens": 1}
        assert server.post("/v1/completions", {**body, "logprobs": 3}).status_code == 200
        answer = server.post("/v1/completions", {**body, "logprobs": 4})
        assert "max_logprobs 3" in answer.json()["error"]["message"]
        chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 4}
        assert server.post("/v1/chat/completions", chat).json()["error"]["param"] == "top_logprobs"


def test_ping_load_and_docs(served):
    assert httpx2.get(f"{served.url}/ping").status_code == 200
    assert httpx2.post(f"{served.url}/ping").status_code == 200
    assert httpx2.get(f"{served.url}/load").json() == {"server_load": 0}
    page = httpx2.get(f"{served.url}/docs")
    assert page.headers["content-type"].startswith("text/html")
    for path in PATHS:
        assert f"POST {path}</code>" in page.text
    assert "<td>max_completion_tokens" not in page.text  # names are code
    assert "<code>max_completion_tokens</code>" in page.text
    assert "<script" not in page.text


def test_the_load_counts_a_request_until_its_answer_is_sent(served):
    loads = []

    async def follow():
        async with httpx2.AsyncClient(base_url=served.url, timeout=60) as client:
            body = {"prompt": "x", "max_tokens": 40, "ignore_eos": True, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                async for _ in answer.aiter_lines():
                    if not loads:
                        loads.append((await client.get("/load")).json()["server_load"])

    thread = threading.Thread(target=lambda: asyncio.run(follow()))
    thread.start()
    thread.join()
    assert loads == [1]
    assert httpx2.get(f"{served.url}/load").json() == {"server_load": 0}


def test_paths_are_there_with_the_prefix_of_a_proxy_and_without_it(serving):
    """It would catch a server that only answers behind proxies that remove the prefix."""
    with serving({}, root_path="/llm") as server:
        for prefix in ("", "/llm"):
            for path in ("/v1/models", "/health", "/openapi.json", "/docs", "/", "/page/page.js"):
                assert httpx2.get(server.url + prefix + path).status_code == 200, prefix + path
            answer = server.post(f"{prefix}/v1/completions", {"prompt": "x", "max_tokens": 1})
            assert answer.json()["usage"]["completion_tokens"] == 1
        for path in ("/llm/llm/v1/models", "/llmv1/models", "/other/v1/models"):
            assert httpx2.get(server.url + path).status_code == 404, path
        bare = httpx2.get(f"{server.url}/llm")
        assert (bare.status_code, bare.headers["location"]) == (307, "/llm/")


def test_a_key_guards_every_endpoint_that_uses_the_model(serving):
    with serving({}, api_keys=("one", "two"), root_path="/llm") as server:
        for path in (*PATHS, *(f"/llm{path}" for path in PATHS)):
            assert server.post(path, {}).status_code == 401, path
        for key in ("one", "two"):
            headers = {"Authorization": f"Bearer {key}"}
            assert httpx2.get(f"{server.url}/v1/models", headers=headers).status_code == 200
        assert httpx2.get(f"{server.url}/v1/models").status_code == 401
        assert httpx2.get(f"{server.url}/ping").status_code == 200


def test_overrides_make_classes_of_a_decoder(start, tmp_path):
    """--hf-overrides reaches the process of the engine. The probability of "yes" beside "no" is the score."""
    model = decoder(tmp_path, tied=False)
    server = start(tmp_path, "--dtype", "float32", "--hf-overrides", json.dumps(RERANKER))
    url = server.wait_ready()
    asked = {"input": ["maybe", "yes"]}
    answers = httpx2.post(f"{url}/classify", json=asked, timeout=DEADLINE).json()["data"]
    for token_id, answer in zip((399, 11), answers, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([[token_id]])).logits[0, -1]
        assert answer["probs"] == pytest.approx(logits[[7, 11]].softmax(-1)[1:].tolist(), abs=1e-4)
    ranked = {"query": "maybe", "documents": ["yes", "no"]}
    results = httpx2.post(f"{url}/rerank", json=ranked, timeout=DEADLINE).json()["results"]
    assert {result["index"] for result in results} == {0, 1}
    answer = httpx2.post(f"{url}/v1/embeddings", json={"input": "yes"}, timeout=DEADLINE)
    assert answer.status_code == 400
