"""A server is ready soon: what only some requests need is imported when the first of them comes."""

from __future__ import annotations

import subprocess
import sys

from tests.armllm.server.conftest import DEADLINE

LATER = {
    "huggingface_hub",  # for names of the hub
    "llguidance",  # for structured output
    "matplotlib",  # for plots
    "httpx2",  # for the load generator
    "transformers",  # never
    "pandas",
    "scipy",
    "sympy",
    "triton",
    "torch._dynamo",
    "torch._inductor",
}
# all that `armllm serve` does until it listens
SERVER = """
import sys
import uvicorn
from armllm.cli import app
from armllm.server import run
def listen(service, *arguments, **options):
    from armllm.server import draining
    from armllm.server.app import create_app
    create_app(service)
    print(*sys.modules, sep="\\n")
    return 0
run._run = listen
app(["serve", sys.argv[1], "--host", "127.0.0.1", "--port", "0"])
"""
# and what its engine does in its own process
ENGINE = """
import sys
from armllm.server import engine_host, engine_messages
engine_host.receive = lambda connection: (sys.argv[1], {}, (), False)
engine_host.send = lambda connection, loaded: print(*sys.modules, sep="\\n") or sys.exit(loaded.lines == [])
import socket
ours, theirs = socket.socketpair()
engine_host.main(theirs.detach())
"""
# and an engine that has answered
ANSWER = """
import sys
from armllm import LLM, SamplingParams
llm = LLM(sys.argv[1])
llm.generate("A wheel", SamplingParams(max_tokens=3, seed=1), use_tqdm=False)
assert llm.llm_engine.runner.decode.recordings
print(*sys.modules, sep="\\n")
"""


# what `armllm serve --data-parallel-size` imports, and `--distributed-executor-backend ray`
ROUTER = """
import sys
from armllm.cli import app
from armllm.server.router import local
from armllm.server.cluster import run
local.serve_replicas = lambda *_: print(*sys.modules, sep="\\n") or 0
app(["serve", sys.argv[1], "--host", "127.0.0.1", "--port", "0", "--data-parallel-size", "2"])
"""


def imported(program, folder):
    """What a program has imported when it is ready."""
    command = [sys.executable, "-c", program, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True)
    return set(done.stdout.split())


def test_the_server_imports_nothing_before_it_is_needed(folder):
    modules = imported(SERVER, folder)
    assert {"tokenizers", "starlette", "armllm.server.engine_process"} <= modules
    # the process that strangers talk to needs no torch: it starts soon and takes little memory
    assert not modules & {*LATER, "torch"}


def test_the_engine_imports_nothing_before_it_is_needed(folder):
    modules = imported(ENGINE, folder)
    assert {"torch", "tokenizers", "armllm.api.async_llm"} <= modules
    assert not modules & {*LATER, "starlette", "uvicorn"}


def test_the_first_answer_does_not_import_a_compiler(folder):
    """It takes seconds, and the request would wait for it."""
    modules = imported(ANSWER, folder)
    assert {"torch", "armllm.engine.recording"} <= modules
    assert not modules & LATER


def test_a_router_of_replicas_needs_no_torch(folder):
    modules = imported(ROUTER, folder)
    assert {"starlette", "armllm.server.router.forward"} <= modules
    assert not modules & {*LATER, "torch"}
