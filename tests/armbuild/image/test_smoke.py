"""What `armbuild smoke IMAGE` says before it starts anything; test_image.py serves from a real one."""

from pathlib import Path

import pytest
from tests.armbuild.image import small

from armbuild.cli import main
from armbuild.errors import CheckFailed
from armbuild.image import sandbox, smoke
from armbuild.wheel.cpus import check_names

MODEL = {"usr/lib/armllm/smoke/model/config.json": "{}", "usr/bin/tini": ""}


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (None, "the image has no entry point"),
        (["/usr/bin/tini", "--", "/usr/bin/none"], "the image's entry point /usr/bin/none is not in it"),
        (["/sbin/none", "--", "/usr/bin/tini"], "the image's entry point /sbin/none is not in it"),
    ],
)
def test_an_entry_point_that_is_not_there_is_named(tmp_path, capsys, monkeypatch, entry, reason):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("armbuild.image.smoke.qemu.find", lambda *_, **__: None)
    monkeypatch.setattr("armbuild.image.smoke.sandbox.make", lambda root, *_, **__: Box(root))
    path = small.write(tmp_path, MODEL, Entrypoint=entry)
    assert main(["smoke", str(path), "--cpu", "neoverse-n1"]) == 1
    assert reason in capsys.readouterr().out


class Box:
    def __init__(self, root):
        self.root = root

    def describe(self):
        return "in a box"

    def place(self, path):
        return f"/{path}"

    def connect(self, port):
        raise ConnectionRefusedError(port)


@pytest.mark.parametrize("volumes", [{"/data": {}}, {"": {}}, ["/data"]])
def test_an_image_with_volumes_goes_to_no_engine(tmp_path, monkeypatch, volumes):
    monkeypatch.setattr("armbuild.image.smoke.contained.check", lambda *_, **__: None)
    path = small.write(tmp_path, MODEL, Volumes=volumes)
    (work := tmp_path / "work").mkdir()
    with pytest.raises(CheckFailed, match="declares volumes, which podman would let it fill"):
        smoke.smoke_test(path, ["neoverse-n1"], work, engine="podman")


@pytest.mark.parametrize(
    "text",
    [
        "5",
        "[]",
        "[5]",
        "[" * 100_000,
        '[{"prompt": 5, "text": null}]',
        '[{"prompt": "a"}]',
        ("->", "/etc/passwd"),
    ],
)
def test_what_a_model_recites_must_be_a_text(tmp_path, text):
    root = small.tree(tmp_path / "root", {"model/passages.json": text})
    run = smoke._Run(check_names(["neoverse-n1"])[0], Box(root), {}, Path("model"), tmp_path)
    with pytest.raises(CheckFailed, match=r"passages\.json of the image's model makes no sense"):
        run._passage()


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_an_entry_point_that_no_file_can_be_is_not_there(tmp_path, name):
    assert sandbox.find(tmp_path, f"/bin/{name}", {}) is None
