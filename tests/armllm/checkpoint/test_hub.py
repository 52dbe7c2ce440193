"""A model's name becomes a place on this disk, or one line that says why not."""

from __future__ import annotations

import os
import subprocess
import sys

import huggingface_hub
import pytest

from armllm import LLM
from armllm.checkpoint import hub
from armllm.checkpoint.hub import resolve_model
from armllm.errors import CheckpointError

PROGRAM = """
import sys
from armllm.errors import CheckpointError
from armllm.checkpoint.hub import resolve_model
for name in sys.argv[1:]:
    try:
        print(resolve_model(name))
    except CheckpointError as error:
        print("refused:", error)
"""


@pytest.fixture(autouse=True)
def forget():
    hub._download.cache_clear()


def put_into_cache(cache, name, files):
    """What huggingface_hub leaves behind after a download."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    for path in files:
        (snapshot / path.name).write_bytes(path.read_bytes())
    return snapshot


def test_a_name_in_the_cache_works_offline(make_checkpoint, tmp_path, monkeypatch):
    files = [path for path in make_checkpoint().folder.iterdir() if path.is_file()]
    snapshot = put_into_cache(tmp_path, "someone/tiny-llama", files)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert resolve_model("someone/tiny-llama") == snapshot
    llm = LLM("someone/tiny-llama", dtype="float32")
    assert llm.llm_engine.config.model_folder == snapshot


def test_a_hub_that_does_not_answer_costs_one_line_and_not_the_cache(make_checkpoint, tmp_path):
    """Nothing listens on port 9; what is in the cache is found all the same."""
    config = make_checkpoint().folder / "config.json"
    snapshot = put_into_cache(tmp_path, "someone/cached", [config])
    environment = os.environ | {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_CACHE": str(tmp_path)}
    environment.pop("HF_HUB_OFFLINE", None)
    command = [sys.executable, "-c", PROGRAM, "someone/cached", "someone/else"]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=120)
    first, second = result.stdout.splitlines()
    assert first == str(snapshot)
    assert second.startswith(
        "refused: model 'someone/else' is not a folder here, and the hub did not give it"
    )


@pytest.mark.parametrize("name", ["/no/where", "not a name", "a/b/c", "plain", ""])
def test_what_is_neither_a_place_nor_a_name_is_not_looked_up(name, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("looked up"))
    with pytest.raises(CheckpointError, match=r"not a folder|no config\.json"):
        LLM(name)


def test_a_file_of_another_kind_is_named(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"neither a folder nor a \.gguf file"):
        LLM(path)


@pytest.mark.parametrize("shut", ["", "config.json", "model.safetensors"])
def test_a_model_that_this_user_may_not_read_is_told_so(tmp_path, monkeypatch, shut):
    """A container's user is often not the one who downloaded the model."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "gone.json").symlink_to("nowhere")
    assert resolve_model(str(tmp_path)) == tmp_path
    monkeypatch.setattr(os, "access", lambda path, _mode: path != tmp_path / shut)
    with pytest.raises(CheckpointError, match="may not read") as refused:
        resolve_model(str(tmp_path))
    assert f"may not read {tmp_path / shut}; `chmod" in str(refused.value)
