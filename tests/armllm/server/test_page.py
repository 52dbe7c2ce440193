"""The page is plain files that need nothing from elsewhere and ask only what the server answers."""

from __future__ import annotations

import re

import httpx2

from armllm.server.app import PAGE


def test_the_page_and_its_files_are_served(served):
    answer = httpx2.get(f"{served.url}/")
    assert answer.status_code == 200
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    for path in re.findall(r'(?:src|href)="(page/[^"]+)"', answer.text):
        part = httpx2.get(f"{served.url}/{path}")
        assert part.status_code == 200
        assert part.headers["content-type"].startswith(("text/css", "text/javascript"))
    assert httpx2.get(f"{served.url}/page/%2e%2e/app.py").status_code == 404


def test_nothing_is_fetched_from_elsewhere():
    for path in PAGE.iterdir():
        assert not re.search(r"(?:https?:)?//[\w-]+\.\w", path.read_text(encoding="utf-8")), path


def test_the_ids_that_the_script_asks_for_are_in_the_page():
    page, script = ((PAGE / name).read_text(encoding="utf-8") for name in ("index.html", "page.js"))
    ids = set(re.findall(r'id="([\w-]+)"', page))
    assert set(re.findall(r'element\("([\w-]+)"\)', script)) <= ids


def test_the_metrics_that_the_script_reads_are_there(served):
    served.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
    text = httpx2.get(f"{served.url}/metrics").text
    script = (PAGE / "page.js").read_text(encoding="utf-8")
    names = re.findall(r'"(vllm:\w+)"', script)
    assert len(names) == 4
    for name in [*names, "vllm:time_to_first_token_seconds_bucket", "vllm:request_success_total"]:
        assert re.search(rf"^{name}\{{", text, re.MULTILINE), name
