"""The serving commands of vLLM's CPU guide, with armllm for vllm, on its own names.

Its `docker build` and `docker run` lines are in tests/docker/test_files.py, its benchmark suite in
tests/armllm/bench/test_suite.py.
"""

from __future__ import annotations

import os

import httpx2
import pytest
from tests.armllm.hub import put_into_cache

from armllm.smoke.passages import MODEL


@pytest.fixture
def cache(tmp_path):
    put_into_cache(tmp_path, "facebook/opt-125m", [path for path in MODEL.iterdir() if path.is_file()])
    return {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "binding", [{"VLLM_CPU_OMP_THREADS_BIND": "0"}, {"VLLM_CPU_NUM_OF_RESERVED_CPU": "1"}]
)
def test_the_guides_server_answers_under_the_guides_variables(start, cache, binding):
    variables = {**cache, "VLLM_CPU_KVCACHE_SPACE": "1", **binding}
    server = start("facebook/opt-125m", "--dtype=bfloat16", **variables)
    url = server.wait_ready()
    body = {"model": "facebook/opt-125m", "prompt": "A wheel left the workshop", "max_tokens": 4}
    answer = httpx2.post(f"{url}/v1/completions", json=body | {"temperature": 0}, timeout=60).json()
    assert answer["choices"][0]["text"] == " at 6:40"
    assert "LlamaForCausalLM from facebook/opt-125m, bfloat16" in server.stderr
    assert "KV cache: 1024 MiB" in server.stderr
    bound = "VLLM_CPU_OMP_THREADS_BIND" in binding
    assert f"threads: {1 if bound else len(os.sched_getaffinity(0)) - 1} on CPUs" in server.stderr


@pytest.mark.slow
def test_more_cache_than_memory_is_refused_before_loading(start, cache):
    """The guide's 40 GiB are for its machine."""
    server = start("facebook/opt-125m", "--dtype=bfloat16", VLLM_CPU_KVCACHE_SPACE="400000", **cache)
    assert server.wait() != 0
    assert "VLLM_CPU_KVCACHE_SPACE" in server.stderr
    assert "Traceback" not in server.stderr
