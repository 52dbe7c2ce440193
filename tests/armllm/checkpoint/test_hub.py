"""A model's name becomes a place on this disk, or one line that says why not."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from tests.armllm.hub import fake_hub_of, put_into_cache, variables_for

from armllm import LLM
from armllm.checkpoint import hub
from armllm.checkpoint.hub import HubOptions, resolve_model
from armllm.engine.config import EngineConfig
from armllm.errors import CheckpointError

PROGRAM = """
import sys
from armllm.errors import CheckpointError
from armllm.checkpoint.hub import resolve_model
for name in sys.argv[1:]:
    try:
        print(resolve_model(name))
    except CheckpointError as error:
        print(f"refused ({error.status}): {error}")
"""


@pytest.fixture(autouse=True)
def forget():
    hub._download.cache_clear()


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
        "refused (3): model 'someone/else' is not a folder here, and the hub did not give it:"
        " no answer from 127.0.0.1:9: Connection refused; without a network, run `hf download someone/else`"
    )


@pytest.mark.parametrize("name", ["/no/where", "not a name", "a/b/c", "plain", ""])
def test_what_is_neither_a_place_nor_a_name_is_not_looked_up(name, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("looked up"))
    with pytest.raises(CheckpointError, match=r"not a folder|no config\.json"):
        LLM(name)


@pytest.mark.parametrize(
    ("place", "reason"), [("a" * 3000, "File name too long"), ("~nobody-of-this-name/x", "home")]
)
def test_a_place_that_cannot_be_looked_up_is_one_short_line(place, reason):
    """It would catch the OSError of a name that is too long, which a server answers with a 500."""
    with pytest.raises(CheckpointError, match=f"can't be looked up: .*{reason}") as caught:
        resolve_model(place)
    assert len(str(caught.value)) < 300


def test_a_file_of_another_kind_is_named(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"neither a folder nor a \.gguf file"):
        LLM(path)


@pytest.mark.parametrize("shut", ["", "config.json", "model.safetensors"])
def test_a_model_that_this_user_may_not_read_is_refused_with_that_reason(tmp_path, monkeypatch, shut):
    """A container's user is often not the one who downloaded the model."""
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "gone.json").symlink_to("nowhere")
    assert resolve_model(str(tmp_path)) == tmp_path
    monkeypatch.setattr(os, "access", lambda path, _mode: path != tmp_path / shut)
    with pytest.raises(CheckpointError, match="may not read") as refused:
        resolve_model(str(tmp_path))
    assert f"may not read {tmp_path / shut}; `chmod" in str(refused.value)


@pytest.fixture
def fake_hub(make_checkpoint):
    with fake_hub_of(make_checkpoint().folder) as server:
        yield server


LOOK_UP = """
import json, sys
from armllm.checkpoint.hub import HubOptions, resolve_model
from armllm.errors import CheckpointError
try:
    print(resolve_model("someone/tiny", options=HubOptions(**json.loads(sys.argv[1]))))
except CheckpointError as error:
    print(f"refused: {error}")
"""


BOUND = ("setpriv", "--inh-caps=-dac_override", "--bounding-set=-dac_override")
"""What root, too, is started with to be held by the permissions of files."""


def look_up(hub, cache, options=None, *, before=(), **environment):
    """In a process of its own: the hub's library reads its variables once."""
    variables = variables_for(hub, cache)
    command = [*before, sys.executable, "-c", LOOK_UP, json.dumps(options or {})]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**variables, **environment}, check=True, timeout=120
    )
    (line,) = result.stdout.splitlines()
    return line


def test_a_model_is_downloaded_once_and_then_found_offline(fake_hub, tmp_path):
    folder = Path(look_up(fake_hub, tmp_path / "home"))
    assert folder.is_relative_to(tmp_path / "home/hub")
    assert {"config.json", "model.safetensors"} <= {path.name for path in folder.iterdir()}
    assert not [path for path in fake_hub.paths if path.endswith("extra.bin")]
    count = len(fake_hub.paths)
    assert look_up(fake_hub, tmp_path / "home", HF_HUB_OFFLINE="1") == str(folder)
    assert len(fake_hub.paths) == count
    downloads = shutil.copytree(tmp_path / "home/hub", tmp_path / "downloads", symlinks=True)
    found = look_up(fake_hub, tmp_path / "none", {"cache_dir": str(downloads)}, HF_HUB_OFFLINE="1")
    assert Path(found).is_relative_to(downloads)


def test_a_revision_is_the_one_that_is_loaded(fake_hub, tmp_path):
    folder = Path(look_up(fake_hub, tmp_path, {"revision": "old"}))
    assert [path.name for path in folder.iterdir()] == ["config.json"]


def test_what_the_hub_refuses_is_named_with_what_to_do(fake_hub, tmp_path):
    line = look_up(fake_hub, tmp_path, {"revision": "new"})
    assert line.startswith("refused: model 'someone/tiny' is not a folder here")
    assert "it has no revision 'new'" in line
    line = look_up(fake_hub, tmp_path, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in line
    assert "`hf download someone/tiny` downloads it there" in line
    right, wrong = "hf_right", "hf_wrong"
    fake_hub.token = right
    line = look_up(fake_hub, tmp_path, HF_TOKEN=wrong)
    assert "set HF_TOKEN" in line
    assert wrong not in line
    assert "refused" not in look_up(fake_hub, tmp_path / "a", HF_TOKEN=right)
    assert "refused" not in look_up(fake_hub, tmp_path / "b", {"token": right})


def test_the_engine_looks_up_with_its_options(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "armllm.engine.config.resolve_model", lambda *arguments, **named: asked.append((arguments, named))
    )
    options = {"revision": "r", "tokenizer": "some/tokenizer", "tokenizer_revision": "t"}
    secret = "hf-secret"  # noqa: S105 - of nobody
    config = EngineConfig.of("some/model", {**options, "download_dir": "/downloads", "hf_token": secret})
    config.model_folder, config.tokenizer_folder  # noqa: B018
    model = HubOptions(revision="r", cache_dir="/downloads", token=secret)
    assert asked[0] == (("some/model",), {"options": model})
    assert asked[1] == (("some/tokenizer", "tokenizer", dataclasses.replace(model, revision="t")), {})
    assert secret not in repr(config) + repr(model)


def test_a_cache_that_cannot_be_written_is_read(fake_hub, tmp_path):
    before = BOUND if os.getuid() == 0 else ()
    folder = look_up(fake_hub, tmp_path)
    paths = [tmp_path, *tmp_path.rglob("*")]
    for path in paths:
        path.chmod(0o555)
    try:
        assert look_up(fake_hub, tmp_path, before=before) == folder
        for options in ({"revision": "old"}, {"cache_dir": str(tmp_path / "downloads")}):
            line = look_up(fake_hub, tmp_path, options, before=before)
            assert f"Permission denied: {tmp_path}" in line
            assert "set HF_HOME or --download-dir" in line
        assert "No such file or directory: /proc/nowhere; mount" in look_up(
            fake_hub, tmp_path, {"cache_dir": "/proc/nowhere"}
        )
    finally:
        for path in paths:
            path.chmod(0o755)


def test_a_download_that_broke_off_is_no_model_and_goes_on(fake_hub, tmp_path):
    """Catches half a model that is loaded, offline too, and files that are fetched twice."""
    fake_hub.broken = "model.safetensors"
    line = look_up(fake_hub, tmp_path)
    assert "the download from 127.0.0.1" in line
    assert "broke off" in line
    assert "the same command goes on with it" in line
    assert "HF_HUB_OFFLINE is set" in look_up(fake_hub, tmp_path, HF_HUB_OFFLINE="1")
    fake_hub.broken = ""
    fake_hub.paths.clear()
    folder = Path(look_up(fake_hub, tmp_path))
    assert {path.rpartition("/")[2] for path in fake_hub.paths if "/resolve/" in path} == {
        "model.safetensors"
    }
    assert (folder / "model.safetensors").read_bytes() == fake_hub.revisions["main"]["model.safetensors"]


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (403, "GatedRepo", "it needs a token that may read it: set HF_TOKEN"),
        (403, "", "it needs a token that may read it: set HF_TOKEN"),
        (404, "RepoNotFound", "there is no such model"),
        (503, "", "status 503"),
    ],
)
def test_what_a_hub_refuses_or_cannot_do_is_one_line(fake_hub, tmp_path, status, code, said):
    fake_hub.refusal = (status, code)
    line = look_up(fake_hub, tmp_path)
    assert line.startswith("refused: model 'someone/tiny' is not a folder here")
    assert said in line


def test_a_full_disk_is_said_although_half_of_the_model_is_there(monkeypatch, tmp_path):
    """It would catch a model that is loaded from the files that came before the disk was full."""

    def fetch(*_arguments, local_files_only, **_options):
        if local_files_only:
            return str(tmp_path)
        raise OSError(errno.ENOSPC, "No space left on device", "/cache/blob")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    with pytest.raises(CheckpointError, match="No space left on device: /cache/blob"):
        resolve_model("some/full-disk")
