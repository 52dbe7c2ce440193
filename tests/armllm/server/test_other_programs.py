"""Programs of others that are written for vLLM or OpenAI: a router in front, and client libraries."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import httpx2
import pytest
from tests.armllm.server.conftest import DEADLINE, wait_until

from armbuild.host import isolation

pytestmark = [pytest.mark.slow, pytest.mark.network]
PROMPT = "A wheel left the workshop"
ANSWER = " at 6:40"

LANGCHAIN = """
import sys
from typing import Literal
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field
where = {"base_url": sys.argv[1], "api_key": "none", "model": "smoke"}
print(repr(OpenAI(**where, temperature=0, max_tokens=4).invoke(sys.argv[2])))
chat = ChatOpenAI(**where, temperature=0, max_tokens=4)
print(len(chat.invoke("Hi").content) > 0, len(list(chat.stream("Hi"))) > 1)
print(len(OpenAIEmbeddings(**where, check_embedding_ctx_length=False).embed_query("Hi")) > 8)

class Thing(BaseModel, extra="forbid"):
    size: int = Field(ge=1, le=3)

@tool
def weather(city: Literal["Bonn"]) -> str:
    "The weather of a city."
    return "rain"

chat = ChatOpenAI(**where, temperature=0, max_tokens=90)
for method in ("json_schema", "function_calling"):
    print(chat.with_structured_output(Thing, method=method).invoke("Hi").size in (1, 2, 3))
bound = chat.bind_tools([weather], tool_choice="weather", strict=True)
answer = bound.invoke("Hi")
print([(call["name"], call["args"]) for call in answer.tool_calls])
total = None
for chunk in bound.stream("Hi"):
    total = chunk if total is None else total + chunk
print([(call["name"], call["args"]) for call in total.tool_calls])
messages = [HumanMessage("Hi"), answer, ToolMessage("rain", tool_call_id=answer.tool_calls[0]["id"])]
print(len(chat.bind_tools([weather], parallel_tool_calls=False).invoke(messages).content) > 0)
last = list(ChatOpenAI(**where, max_tokens=4, stream_usage=True).stream("Hi"))
print([chunk.usage_metadata["output_tokens"] for chunk in last if chunk.usage_metadata])
print(len(ChatOpenAI(**where, max_tokens=4, use_responses_api=True).invoke("Hi").content) > 0)
"""
LANGCHAIN_ANSWERS = [
    repr(ANSWER),
    "True True",
    "True",
    "True",
    "True",
    "[('weather', {'city': 'Bonn'})]",
    "[('weather', {'city': 'Bonn'})]",
    "True",
    "[4]",
    "True",
]
LLAMA_INDEX = """
import sys
from typing import Literal
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field
where = {"api_base": sys.argv[1], "api_key": "none", "model": "smoke", "temperature": 0, "max_tokens": 4}
print(repr(OpenAILike(**where).complete(sys.argv[2]).text))
chat = OpenAILike(**where, is_chat_model=True)
messages = [ChatMessage(role="user", content="Hi")]
print(len(chat.chat(messages).message.content) > 0, len(list(chat.stream_chat(messages))) > 1)
embedding = OpenAILikeEmbedding(model_name="smoke", api_base=sys.argv[1], api_key="none")
print([len(one) > 8 for one in embedding.get_text_embedding_batch(["Hi", "Ho"])])

class Thing(BaseModel, extra="forbid"):
    "A thing."
    size: int = Field(ge=1, le=3)

class City(BaseModel, extra="forbid"):
    city: Literal["Bonn"]

def weather(city: str) -> str:
    "The weather of a city."
    return "rain"

chat = OpenAILike(**{**where, "max_tokens": 90}, is_chat_model=True, is_function_calling_model=True)
tools = [FunctionTool.from_defaults(weather, fn_schema=City)]
answer = chat.chat_with_tools(tools, user_msg="Hi", tool_required=True)
print([(call.tool_name, call.tool_kwargs) for call in chat.get_tool_calls_from_response(answer)])
*_, last = chat.stream_chat_with_tools(tools, user_msg="Hi", tool_required=True)
print([call.tool_kwargs for call in chat.get_tool_calls_from_response(last)])
print(chat.as_structured_llm(Thing).complete("Hi").raw.size in (1, 2, 3))
plain = OpenAI(model="gpt-4o-mini", api_base=sys.argv[1], api_key="none", max_tokens=4)
print(len(plain.chat(messages).message.content) > 0, len(list(plain.stream_chat(messages))) > 1)
"""
LLAMA_INDEX_ANSWERS = [
    repr(ANSWER),
    "True True",
    "[True, True]",
    "[('weather', {'city': 'Bonn'})]",
    "[{'city': 'Bonn'}]",
    "True",
    "True True",
]


@pytest.fixture
def install(tmp_path):
    """install(*requirements): the environment of a process that can import them."""

    def run(*requirements):
        target = tmp_path / "packages"
        command = [isolation.uv_program(), "pip", "install", "--quiet", "--python", sys.executable]
        subprocess.run([*command, "--target", target, *requirements], check=True)
        return {**os.environ, "PYTHONPATH": str(target)}

    return run


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def test_vllm_router_spreads_requests_over_two_servers(serving, install):
    """It would catch a field that the router adds and this server refuses."""
    environment = install("vllm-router==0.1.17")
    with serving() as first, serving() as second:
        port, metrics_port = free_port(), free_port()
        line = ["--worker-urls", first.url, second.url, "--policy", "round_robin", "--host", "127.0.0.1"]
        line += ["--port", str(port), "--prometheus-port", str(metrics_port)]
        main = "from vllm_router.launch_router import main; main()"
        router = subprocess.Popen(
            [sys.executable, "-c", main, *line],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_until(lambda: answers(f"{url}/health"))
            chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
            embedded = {"input": "Hi"}
            completed = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0}
            for path, body in (
                ("/v1/completions", completed),
                ("/v1/chat/completions", chat),
                ("/v1/embeddings", embedded),
                ("/v1/responses", {"input": "Hi", "max_output_tokens": 4}),
            ):
                for _ in range(2):
                    answer = httpx2.post(url + path, json={"model": "smoke", **body}, timeout=DEADLINE)
                    assert answer.status_code == 200, (path, answer.text)
            streamed = {"model": "smoke", **completed, "stream": True}
            text = httpx2.post(f"{url}/v1/completions", json=streamed, timeout=DEADLINE).text
            events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
            assert "".join(event["choices"][0]["text"] for event in events) == ANSWER
            for served in (first, second):
                assert served.engine.stats().num_prompt_tokens > 0
        finally:
            router.kill()
            router.wait()


def answers(url):
    try:
        return httpx2.get(url, timeout=5).status_code == 200
    except httpx2.HTTPError:
        return False


@pytest.mark.parametrize(
    ("program", "requirements", "answers"),
    [
        (LANGCHAIN, ["langchain-openai==1.7.3"], LANGCHAIN_ANSWERS),
        (
            LLAMA_INDEX,
            ["llama-index-llms-openai-like==0.8.1", "llama-index-embeddings-openai-like==0.4.0"],
            LLAMA_INDEX_ANSWERS,
        ),
    ],
    ids=["langchain", "llama-index"],
)
def test_client_libraries_chat_stream_call_tools_and_keep_to_a_schema(
    client_server, install, program, requirements, answers
):
    environment = install(*requirements)
    result = subprocess.run(
        [sys.executable, "-c", program, f"{client_server.url}/v1", PROMPT],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == answers


@pytest.fixture(scope="module")
def client_server(serving):
    """One server, under a name that the clients know the limits of."""
    names = ("smoke", "gpt-4o-mini")
    with serving(
        {"max_num_seqs": 16},
        enable_auto_tool_choice=True,
        tool_call_parser="hermes",
        served_model_names=names,
    ) as server:
        yield server
