"""Servers around the smoke model, which knows texts by heart, so that every answer can be checked."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import openai
import pytest
import uvicorn

from armllm import AsyncLLM
from armllm.server import arrivals, connection
from armllm.server.app import create_app
from armllm.server.service import ServerOptions, Service
from armllm.smoke.passages import MODEL

TEMPLATE = """{% for message in messages %}{{ message.role }}: {{ message.content }}
{% if message.tool_calls %}{% for call in message.tool_calls %}calls {{ call.function.name }} with
{%- for name, value in call.function.arguments.items() %} {{ name }}={{ value }}{% endfor %}
{% endfor %}{% endif %}{% endfor %}{% if tools %}tools: {{ tools | tojson }}
{% endif %}{% if add_generation_prompt %}assistant: {% endif %}"""
DEADLINE = 60.0  # seconds; nothing here takes that long unless it hangs


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The smoke model with a chat template."""
    target = shutil.copytree(MODEL, tmp_path_factory.mktemp("served") / "model")
    (target / "chat_template.jinja").write_text(TEMPLATE)
    return target


class Served:
    """A server in a thread of this process."""

    def __init__(self, folder, engine_options, **options):
        self.engine = AsyncLLM(folder, dtype="float32", **engine_options)
        names = options.pop("served_model_names", ("smoke", "alias"))
        self.service = Service(self.engine, ServerOptions(served_model_names=names, **options))
        config = uvicorn.Config(
            create_app(self.service),
            lifespan="off",
            log_level="warning",
            http=connection.protocol(self.service.limits, self.service.options.tls),
            ws="none",
            loop="asyncio",
        )
        self.server = arrivals.ArrivalsServer(config, self.service.limits)
        # asyncio sends small pieces at once only if the protocol is named
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()
        wait_until(lambda: self.server.started)

    def post(self, path, body, **options):
        return httpx2.post(self.url + path, json=body, timeout=DEADLINE, **options)

    def openai(self, **options):
        key = options.pop("api_key", "none")
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=DEADLINE, **options
        )

    def assert_idle(self):
        """Wait until no request is left, then look for blocks that nobody gave back."""
        wait_until(lambda: self.engine.stats().num_running + self.engine.stats().num_waiting == 0)
        wait_until(lambda: self.engine.stats().num_used_blocks == 0)
        wait_until(lambda: not self.engine._streams)
        self.engine.llm_engine.check_integrity()

    def stop(self):
        self.server.should_exit = True
        self.thread.join(DEADLINE)
        self.engine.shutdown()
        assert not self.thread.is_alive()


def wait_until(condition):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def serving(folder):
    """serving(engine options, **server options): a context with a server in this process."""

    @contextlib.contextmanager
    def serve(engine_options=None, **options):
        served = Served(options.pop("folder", folder), engine_options or {}, **options)
        try:
            yield served
        finally:
            served.stop()

    return serve


@pytest.fixture(scope="module")
def served(serving):
    """One server for tests that leave nothing behind, which is checked at the end."""
    with serving({"max_num_seqs": 16}, enable_auto_tool_choice=True, tool_call_parser="hermes") as server:
        yield server
        server.assert_idle()


class Process:
    """``armllm serve``, or another command, as a process of its own. ``within``: what runs the command.

    ``code``, or the file with it, is run in place of `armllm`.
    """

    def __init__(self, arguments, code=None, command="serve", within=(), **environment):
        program = ["-m", "armllm"] if code is None else [code] if isinstance(code, Path) else ["-c", code]
        self.lines = []
        self.environment = environment
        self.popen = subprocess.Popen(
            [*within, sys.executable, *program, command, *map(str, arguments)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.popen.stderr:
            self.lines.append(line)

    @property
    def url(self):
        return next(
            (found.group(1) for line in self.lines if (found := re.search(r"on (https?://\S+)$", line))), None
        )

    def wait_ready(self):
        wait_until(lambda: self.url is not None or self.popen.poll() is not None)
        assert self.url is not None, self.stderr
        return self.url

    @property
    def stderr(self):
        return "".join(self.lines)

    def wait(self):
        status = self.popen.wait(DEADLINE)
        self.reader.join(DEADLINE)
        return status

    def close(self):
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGKILL)
        self.popen.wait(DEADLINE)
        self.reader.join(DEADLINE)
        assert not self.reader.is_alive(), "a process that it started has outlived it"
        self.popen.stderr.close()  # this would wait for a reader


@pytest.fixture
def start():
    """start(*arguments, command="serve"): `armllm` in a process, which is gone after the test."""
    processes = []

    def start(*arguments, **options):
        processes.append(Process(["--host", "127.0.0.1", "--port", "0", *arguments], **options))
        return processes[-1]

    yield start
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.callback(process.close)
