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
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
where = {"base_url": sys.argv[1], "api_key": "none", "model": "smoke"}
print(repr(OpenAI(**where, temperature=0, max_tokens=4).invoke(sys.argv[2])))
chat = ChatOpenAI(**where, temperature=0, max_tokens=4)
print(len(chat.invoke("Hi").content) > 0, len(list(chat.stream("Hi"))) > 1)
print(len(OpenAIEmbeddings(**where, check_embedding_ctx_length=False).embed_query("Hi")) > 8)
"""
LLAMA_INDEX = """
import sys
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
where = {"api_base": sys.argv[1], "api_key": "none", "model": "smoke", "temperature": 0, "max_tokens": 4}
print(repr(OpenAILike(**where).complete(sys.argv[2]).text))
chat = OpenAILike(**where, is_chat_model=True)
messages = [ChatMessage(role="user", content="Hi")]
print(len(chat.chat(messages).message.content) > 0, len(list(chat.stream_chat(messages))) > 1)
print(True)
"""


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
    ("program", "requirement"),
    [(LANGCHAIN, "langchain-openai"), (LLAMA_INDEX, "llama-index-llms-openai-like")],
    ids=["langchain", "llama-index"],
)
def test_client_libraries_complete_chat_and_stream(served, install, program, requirement):
    environment = install(requirement)
    result = subprocess.run(
        [sys.executable, "-c", program, f"{served.url}/v1", PROMPT],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [repr(ANSWER), "True True", "True"]
