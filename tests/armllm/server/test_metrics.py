"""What docs/reference/http.md promises to dashboards is there."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2

DOCS = Path(__file__).parents[3] / "docs/reference/http.md"


def test_the_metrics_that_the_docs_name_are_there(served):
    served.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
    text = httpx2.get(f"{served.url}/metrics").text
    names = set(re.findall(r"`((?:vllm|armllm):\w+)`", DOCS.read_text(encoding="utf-8")))
    assert len(names) > 15
    for name in sorted(names):
        if name.startswith("armllm:router_"):  # a router's own: tests/armllm/server/router
            continue
        assert re.search(rf"^{name}(_bucket)?\{{", text, re.MULTILINE), name
    (loaded,) = re.findall(r"^armllm:weight_bytes\{.*\} (\S+)$", text, re.MULTILINE)
    assert float(loaded) > 0
