"""A server is ready soon: what only some requests need is imported when the first of them comes."""

from __future__ import annotations

import subprocess
import sys

import pytest
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
PROGRAM = """
import sys
import uvicorn
from armllm.cli import app
from armllm.server import greeting, run
def listen(service, *arguments, **options):
    from armllm.server.app import create_app
    create_app(service)
    greeting.greeting_lines(service, "")
    print(*sys.modules, sep="\\n")
    return 0
run._run = listen
app(["serve", sys.argv[1], "--host", "127.0.0.1", "--port", "0"])
"""


@pytest.fixture(scope="module")
def imported(folder):
    """What `armllm serve` has imported when it is ready."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, timeout=DEADLINE, check=True
    )
    return set(done.stdout.split())


def test_nothing_is_imported_before_it_is_needed(imported):
    assert {"torch", "tokenizers", "starlette", "armllm.engine.async_llm"} <= imported
    assert not imported & LATER
