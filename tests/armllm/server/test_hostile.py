"""While strangers try to wear the server out, everybody else is served, and afterwards nothing is left."""

from __future__ import annotations

import gc
import json
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import psutil
import pytest
from tests.armllm.server.conftest import wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
HEADERS = {"Content-Type": "application/json"}
FIGURES = re.compile(r"(\w+) +[\d.]+ tokens/s.*\n.* engine ([\d.]+) ms of CPU per token; (\d+) MiB")


def completion(**fields):
    return json.dumps({"prompt": "Hello", "max_tokens": 1, **fields}).encode()


def test_hostile_clients_of_every_kind_do_not_make_tokens_costly(folder):
    """The tool ends with an error if the server does, or if /health answers something else than 200.

    The rate is what is left of the cores, so it is printed; a step's CPU time is the engine's own.
    """
    command = [sys.executable, "tools/attack_server.py", folder, "--tokens", "900"]
    run = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=600)
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    found = {name: (float(cpu), int(mebibytes)) for name, cpu, mebibytes in FIGURES.findall(run.stdout)}
    assert found.keys() == {"idle", "attacked", "after"}
    for cpu, mebibytes in found.values():
        assert cpu < 4 * found["idle"][0]
        assert mebibytes < 1024


def test_thousands_of_requests_leave_no_memory_behind(serving):
    with serving({"max_model_len": 64}) as server:
        rss = psutil.Process().memory_info
        sizes = []
        with httpx2.Client(base_url=server.url, headers=HEADERS, timeout=60) as client:
            for index in range(10_000):
                good = completion(prompt=f"Hello {index}", max_tokens=2, stop=[str(index)])
                bad = completion(prompt=f"Hello {index}", temperature=1e39, user=str(index))
                client.post("/v1/completions", content=good if index % 2 else bad)
                if index % 1000 == 999:
                    gc.collect()
                    sizes.append(rss().rss)
        wait_until(lambda: server.engine.stats().num_running == 0)
        server.assert_idle()
    # the first two thousand fill caches
    assert sizes[-1] - sizes[1] < 16 << 20, [size >> 20 for size in sizes]
