"""Fields that clients of vLLM send: neutral values pass, other values are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from armllm.server.protocol.adapters import LoadAdapterRequest, UnloadAdapterRequest
from armllm.server.protocol.chat import ChatBatchRequest, ChatRequest
from armllm.server.protocol.completions import CompletionRequest
from armllm.server.protocol.responses import ResponsesRequest
from armllm.server.protocol.scoring import ClassifyRequest, PoolingRequest, RerankRequest, ScoreRequest
from armllm.server.protocol.tokens import DetokenizeRequest, EmbeddingRequest, TokenizeRequest

PROMPT = {"mm_processor_kwargs": {}, "media_io_kwargs": {}, "truncation_side": "left", "cache_salt": None}
GENERATED = {
    **PROMPT,
    "watermarking": False,
    "session_id": "one",
    "routed_experts_prompt_start": 0,
    "return_token_offsets": False,
    "return_mm_kwargs": False,
    "mm_payload": "tensors",
    "ec_transfer_params": None,
    "stream_interval": 1,
}
POOLED = {**PROMPT, "padding": "do_not_pad", "request_id": "a", "priority": 0, "chat_template": None}
NUMBERS = {"embed_dtype": "float32", "endianness": "native", "add_generation_prompt": False}
RESPONSES = {
    "min_p": 0.1,
    "stop": ["x"],
    "stop_token_ids": [2],
    "logit_bias": {"1": 1},
    "ignore_eos": False,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "skip_special_tokens": True,
    "include_reasoning": True,
    "structured_outputs": {"choice": ["a"]},
    "chat_template_kwargs": {"a": 1},
    "reasoning": {"effort": "low", "summary": None},
    "enable_response_messages": False,
    "request_id": "a",
    "priority": 0,
}
MESSAGES = [{"role": "user", "content": "Hi"}]
CASES = [
    (ChatRequest, {"messages": MESSAGES}, {**GENERATED, "return_prompt_text": False}, ("stream_interval", 8)),
    (ChatBatchRequest, {"messages": [MESSAGES]}, {**GENERATED, "tool_choice": "none"}, ("stream", True)),
    (CompletionRequest, {"prompt": "a"}, {**GENERATED, "prompt_embeds": None}, ("watermarking", True)),
    (ResponsesRequest, {"input": "a"}, {**PROMPT, **RESPONSES}, ("background", True)),
    (EmbeddingRequest, {"input": "a"}, {**POOLED, **NUMBERS}, ("messages", [])),
    (PoolingRequest, {"input": "a"}, {**POOLED, **NUMBERS}, ("padding", True)),
    (ClassifyRequest, {"input": "a"}, POOLED, ("padding", "max_length")),
    (ScoreRequest, {"text_1": "a", "text_2": "b"}, POOLED, ("truncation_side", "right")),
    (RerankRequest, {"query": "a", "documents": ["b"]}, POOLED, ("cache_salt", "x")),
    (TokenizeRequest, {"messages": MESSAGES}, {"chat_template": None}, ("chat_template", "{{ 1 }}")),
    (
        LoadAdapterRequest,
        {"lora_name": "a", "lora_path": "b"},
        {"is_3d_lora_weight": False},
        ("is_3d_lora_weight", True),
    ),
]


@pytest.mark.parametrize(("request_type", "needed", "neutral", "other"), CASES)
def test_neutral_values_pass_and_others_are_refused_by_name(request_type, needed, neutral, other):
    request_type.model_validate({**needed, **neutral})
    with pytest.raises(ValidationError, match=f"{other[0]} is not supported by this server: "):
        request_type.model_validate({**needed, other[0]: other[1]})


def vllm_fields():
    """(class, field, default) of every field in vLLM's protocol."""
    for line in Path(__file__).with_name("vllm_fields.txt").read_text().splitlines()[1:]:
        classes, name, _, default = line.split(" ", 3)
        yield from ((one, name, json.loads(default)) for one in classes.split(","))


COUNTERPARTS = {
    "ChatCompletionRequest": (ChatRequest, {"messages": MESSAGES}),
    "BatchChatCompletionRequest": (ChatBatchRequest, {"messages": [MESSAGES]}),
    "CompletionRequest": (CompletionRequest, {"prompt": "a"}),
    "ResponsesRequest": (ResponsesRequest, {"input": "a"}),
    "EmbeddingCompletionRequest": (EmbeddingRequest, {"input": "a"}),
    "EmbeddingChatRequest": (EmbeddingRequest, {"input": "a"}),
    "PoolingCompletionRequest": (PoolingRequest, {"input": "a"}),
    "PoolingChatRequest": (PoolingRequest, {"input": "a"}),
    "ClassificationCompletionRequest": (ClassifyRequest, {"input": "a"}),
    "ClassificationChatRequest": (ClassifyRequest, {"input": "a"}),
    "ScoreTextRequest": (ScoreRequest, {"text_1": "a", "text_2": "b"}),
    "ScoreDataRequest": (ScoreRequest, {"data_1": "a", "data_2": "b"}),
    "ScoreQueriesDocumentsRequest": (ScoreRequest, {"queries": "a", "documents": "b"}),
    "ScoreQueriesItemsRequest": (ScoreRequest, {"queries": "a", "items": "b"}),
    "RerankRequest": (RerankRequest, {"query": "a", "documents": ["b"]}),
    "TokenizeCompletionRequest": (TokenizeRequest, {"prompt": "a"}),
    "TokenizeChatRequest": (TokenizeRequest, {"messages": MESSAGES}),
    "DetokenizeRequest": (DetokenizeRequest, {"tokens": [1]}),
    "LoadLoRAAdapterRequest": (LoadAdapterRequest, {"lora_name": "a", "lora_path": "b"}),
    "UnloadLoRAAdapterRequest": (UnloadAdapterRequest, {"lora_name": "a"}),
}


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_every_field_of_vllm_works_or_is_refused_with_its_reason(name):
    """It would catch a field of vLLM that is unknown here, a default that is refused, a missing reason."""
    request_type, needed = COUNTERPARTS[name]
    meant = {field.alias or name for name, field in request_type.model_fields.items()}
    fields = {field: default for one, field, default in vllm_fields() if one == name}
    assert fields.keys() <= meant | request_type.unsupported.keys()
    for field, default in fields.items():
        if field not in needed:
            request_type.model_validate({**needed, field: default})
    for field in request_type.unsupported:
        with pytest.raises(ValidationError, match=f"{field} is not supported by this server: ."):
            request_type.model_validate({**needed, field: {"neither": "of them"}})


def test_all_of_vllms_requests_are_compared():
    assert {one for one, _, _ in vllm_fields()} == COUNTERPARTS.keys()


@pytest.mark.parametrize("request_type", [ChatRequest, CompletionRequest])
def test_best_of_may_be_n(request_type):
    needed = {"messages": MESSAGES} if request_type is ChatRequest else {"prompt": "a"}
    for same in ({"best_of": 1}, {"best_of": 3, "n": 3}, {"best_of": None, "n": 2}):
        request_type.model_validate({**needed, **same})
    for other in ({"best_of": 2}, {"best_of": 1, "n": 2}):
        with pytest.raises(ValidationError, match="best_of is not supported by this server: it can only be"):
            request_type.model_validate({**needed, **other})


def test_forms_of_vllm_pass_where_they_change_nothing():
    """It would catch a client that sends all fields of StructuredOutputsParams, most of them null."""
    neutral = {"whitespace_pattern": None, "structural_tag": None, "disable_any_whitespace": True}
    form = {"regex": "a", "json": None, "disable_fallback": False, **neutral}
    assert CompletionRequest(prompt="a", structured_outputs=form).structured().regex == "a"
    for wrong in ({"structural_tag": "x"}, {"disable_fallback": True}, {"whitespace_pattern": " "}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            CompletionRequest(prompt="a", structured_outputs={**form, **wrong})
    with pytest.raises(ValidationError, match=r"structural_tag is not supported: use structured_outputs\."):
        CompletionRequest(prompt="a", response_format={"type": "structural_tag", "structures": []})


def test_fields_of_a_response_reach_the_engine(served):
    """It would catch a field that is accepted and dropped."""
    body = {"model": "smoke", "input": "Hi", "max_output_tokens": 8, "request_id": "mine"}
    answer = served.post("/v1/responses", {**body, "structured_outputs": {"choice": ["wheel"]}}).json()
    assert answer["output"][0]["content"][0]["text"] == "wheel"
    assert answer["id"] == "resp_mine"
    assert served.post("/v1/responses", {**body, "priority": 1}).json()["error"]["param"] == "priority"
    chosen = {**body, "temperature": 0, "logit_bias": {"65": 100}, "stop_token_ids": [65]}
    assert served.post("/v1/responses", chosen).json()["usage"]["output_tokens"] == 1
    found = served.post("/v1/embeddings", {"model": "smoke", "input": "Hi", "request_id": "mine"}).json()
    assert found["id"] == "embd-mine"
