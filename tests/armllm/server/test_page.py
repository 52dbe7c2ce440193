"""The page is plain files that need nothing from elsewhere and ask only what the server answers."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import httpx2
import pytest

from armllm.server.app import PAGE
from armllm.smoke.passages import MODEL

VENDOR = PAGE / "vendor"
VENDORED = json.loads((VENDOR / "vendor.json").read_text())


def test_the_page_and_its_files_are_served(served):
    answer = httpx2.get(f"{served.url}/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for path in re.findall(r'(?:src|href)="(page/[^"]+)"', answer.text):
        part = httpx2.get(f"{served.url}/{path}")
        assert part.status_code == 200
        assert part.headers["content-type"].startswith(("text/css", "text/javascript"))
    assert httpx2.get(f"{served.url}/page/%2e%2e/app.py").status_code == 404


def test_nothing_is_fetched_from_elsewhere():
    for path in filter(Path.is_file, PAGE.iterdir()):
        assert not re.search(r"(?:https?:)?//[\w-]+\.\w", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("vendored", VENDORED, ids=lambda one: one["name"])
def test_a_vendored_file_is_the_one_that_was_published(vendored):
    """It would catch an edit, a new version without its license, and a file that nothing describes."""
    content = (VENDOR / vendored["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == vendored["sha256"]
    assert vendored["version"] in content[:200].decode()
    text = (VENDOR / vendored["license_file"]).read_text()
    assert {"MIT": "Permission is hereby granted", "Apache-2.0": "Apache License"}[
        vendored["license"]
    ] in text
    described = {name for one in VENDORED for name in (one["file"], one["license_file"])}
    assert {path.name for path in VENDOR.iterdir()} == {"vendor.json", *described}


def scripts():
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(PAGE.glob("*.js")))


def test_the_ids_that_the_scripts_ask_for_are_in_the_page():
    ids = set(re.findall(r'id="([\w-]+)"', (PAGE / "index.html").read_text(encoding="utf-8")))
    asked = set(re.findall(r'(?:element|getElementById)\("([\w-]+)"\)', scripts()))
    assert len(asked) > 20
    assert asked <= ids


@pytest.mark.parametrize("path", sorted(PAGE.glob("*.js")), ids=lambda path: path.name)
def test_what_a_script_imports_is_there(path):
    for name in re.findall(r'(?:from|import) "(\./[^"]+)"', path.read_text(encoding="utf-8")):
        assert (PAGE / name).is_file(), name


def test_a_model_without_a_template_has_its_own_error_code(serving):
    """The page asks for it, and falls back to completion."""
    with serving(folder=MODEL) as plain:
        messages = [{"role": "user", "content": "?"}]
        for path in ("/tokenize", "/v1/chat/completions"):
            answer = plain.post(path, {"messages": messages})
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "no_chat_template"


def test_the_metrics_that_the_script_reads_are_there(served):
    served.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
    text = httpx2.get(f"{served.url}/metrics").text
    names = re.findall(r'"(vllm:\w+)"', scripts())
    assert len(names) == 4
    for name in [*names, "vllm:time_to_first_token_seconds_bucket", "vllm:request_success_total"]:
        assert re.search(rf"^{name}\{{", text, re.MULTILINE), name
