"""The server's own OpenAPI document is true: what it allows and what it forbids never ends in a 5xx."""

from __future__ import annotations

import httpx2
import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from armllm.server.openapi import ENDPOINTS, document


@pytest.fixture(scope="module")
def server(serving):
    with serving({"max_model_len": 64, "max_num_seqs": 16}) as server:
        yield server
        server.assert_idle()


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method} {one.path}")
@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
def test_no_request_fails_within_the_server(server, endpoint, mode):
    api = schemathesis.openapi.from_dict(document())
    operation = api[endpoint.path.replace(":path", "")][endpoint.method]
    if mode is schemathesis.GenerationMode.NEGATIVE and endpoint.body is None:
        return  # nothing to get wrong

    @hypothesis.settings(
        max_examples=25, deadline=None, suppress_health_check=list(hypothesis.HealthCheck), derandomize=True
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        answer = case.call(base_url=server.url, timeout=60)
        checks = [not_a_server_error, response_schema_conformance, status_code_conformance]
        case.validate_response(answer, checks=checks)

    check()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "x", "max_tokens": 3}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 3}),
    ],
)
def test_streams_are_as_described(server, path, body):
    case = schemathesis.openapi.from_dict(document())[path]["POST"].Case(body=body | {"stream": True})
    answer = case.call(base_url=server.url, timeout=60)
    assert answer.headers["content-type"][0].startswith("text/event-stream")
    case.validate_response(answer, checks=[response_schema_conformance, status_code_conformance])


def test_every_endpoint_is_described(served):
    told = httpx2.get(f"{served.url}/openapi.json").json()
    assert told == document()
    for one in ENDPOINTS:
        assert one.method.lower() in told["paths"][one.path.replace(":path", "")]
    completion = told["components"]["schemas"]["CompletionRequest"]
    assert completion["additionalProperties"] is False
    assert "prompt" in completion["required"]
