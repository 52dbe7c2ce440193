"""What an engine is asked to run for `armbuild smoke IMAGE --engine`; test_image.py asks real ones."""

import json
import os
import socket
import sys

import pytest
from tests.armbuild.image import small

from armbuild.cli import main
from armbuild.errors import ArmbuildError, MissingError, UsageError
from armbuild.image import contained, reference
from armbuild.wheel.lanes import container


@pytest.fixture
def podman(tmp_path, monkeypatch):
    """A podman that notes what it is asked, and has one container left; ``podman()`` returns the notes."""
    log, program = tmp_path / "asked.jsonl", tmp_path / "bin/podman"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"open({str(log)!r}, 'a').write(json.dumps(sys.argv[1:]) + '\\n')\n"
        "if sys.argv[1] == 'ps': print('c0ffee')\n"
        "if sys.argv[1:3] == ['container', 'inspect']: print('true')\n"
        "if sys.argv[1] == 'exec': os.execv(sys.executable, [sys.executable, *sys.argv[5:]])\n"
        "if sys.argv[-1].endswith('refused.tar'): sys.exit('Error: no space for it')\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return lambda: [json.loads(line) for line in log.read_text().splitlines()]


def loaded(tmp_path, path, name="localhost/x:1", *, several=False):
    log = tmp_path / "log"
    return contained.loaded(
        "podman", path, name, tmp_path, user="7:8", python="python3", several=several, log=log
    )


def test_of_several_platforms_podman_gets_the_one_that_is_meant(tmp_path, podman):
    path = small.write(tmp_path, {"a": ""})
    with loaded(tmp_path, path, several=True):
        pass
    assert podman()[0] == ["pull", "--quiet", "--platform=linux/arm64", f"oci-archive:{path}"]


def test_a_container_is_read_only_has_the_images_user_and_goes_in_the_end(tmp_path, podman, monkeypatch):
    monkeypatch.setenv("ARMBUILD_ENGINE_OPTIONS", "--memory 3g")
    path = small.write(tmp_path, {"a": ""})
    with loaded(tmp_path, path) as box:
        words, outer = box.command(["/usr/bin/tini", "--", "x"], {"A": "b,c"}, "neoverse-n1")
    assert words[:3] == ["podman", "run", "--rm"]
    assert {"--read-only", "--user=7:8", "--env=A=b,c", "--env=QEMU_CPU=neoverse-n1"} <= set(words)
    assert words[-7:-2] == ["--memory", "3g", "--entrypoint=/usr/bin/tini", "--", "localhost/x:1"]
    assert words[-2:] == ["--", "x"]
    assert outer["PATH"] == os.environ["PATH"], "the engine itself finds its programs"
    load, ask, remove = podman()
    assert {"--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges"} <= set(words)
    assert {"--pids-limit=4096", "--log-driver=none", "--no-healthcheck"} <= set(words)
    memory = next(word for word in words if word.startswith("--memory="))
    assert 0 < int(memory[9:-1]) <= contained.MOST_MEMORY
    assert f"--memory-swap={memory[9:]}" in words, "else it could take the machine's swap, too"
    assert load == ["load", "--input", str(path)]
    assert ask[-1] == "label=" + box.label
    assert f"--label={box.label}" in words
    assert remove == ["rm", "--force", "--volumes", "c0ffee"]


def test_the_network_is_the_containers_own_and_its_python_passes_requests_on(tmp_path, podman):
    with (
        loaded(tmp_path, small.write(tmp_path, {"a": ""})) as box,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        server.settimeout(60)
        first, _ = box.command(["a"], {}, "max")
        second, _ = box.command(["b"], {}, "max")
        other, _ = box.command(["c"], {}, None)
        assert f"--network=container:{box.name}-max" in second, "the health check reaches the server"
        assert not [word for word in second if word.startswith("--name")]
        assert {"--network=none", f"--name={box.name}-max"} <= set(first)
        assert {"--network=none", f"--name={box.name}-native"} <= set(other)
        with box.connect(server.getsockname()[1]) as connection:
            connection.settimeout(60)
            connection.sendall(b"question")
            served, _ = server.accept()
            with served:
                assert served.recv(8, socket.MSG_WAITALL) == b"question"
                served.sendall(b"answer")
            assert connection.recv(6, socket.MSG_WAITALL) == b"answer"
            assert connection.recv(1) == b"", "the container's end of the connection is the engine's"
        server.close()
        with box.connect(server_port := closed_port()) as connection:
            connection.settimeout(60)
            assert connection.recv(1) == b"", f"nobody listens on {server_port}"
        left = box.connect(closed_port())
    assert left.recv(1) == b"", "a connection ends with the test"
    left.close()
    relay = next(words for words in podman() if words[0] == "exec")
    assert relay[1:7] == ["--interactive", f"{box.name}-native", "python3", "-I", "-S", "-c"]


def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def test_what_cannot_be_loaded_is_refused_with_the_engines_reason(tmp_path, podman):
    with pytest.raises(MissingError, match="podman load failed: Error: no space for it"):
        loaded(tmp_path, small.write(tmp_path, {"a": ""}, path="refused.tar")).__enter__()
    for path, name in ((tmp_path, "x"), (small.write(tmp_path, {"a": ""}), None)):
        with pytest.raises(UsageError, match="an archive that has a name"):
            loaded(tmp_path, path, name).__enter__()
    assert len(podman()) == 1, "the other two were not asked for"


@pytest.mark.parametrize(
    "name", ["--volume=/:/host", "-v", "", "a b", "x:1 --privileged", "x\n", "../x", "A/../b"]
)
def test_an_archive_whose_image_has_no_image_name_never_reaches_an_engine(tmp_path, podman, name):
    with pytest.raises(UsageError, match="not an image's name"):
        loaded(tmp_path, small.write(tmp_path, {"a": ""}), name).__enter__()
    assert not (tmp_path / "asked.jsonl").exists()


@pytest.mark.parametrize(
    "name", ["x", "localhost/x:1", "registry.example:5000/a/b_c:v1.0", "a/b@sha256:" + "0" * 64]
)
def test_the_names_that_engines_give_are_image_names(name):
    assert reference.is_name(name)


@pytest.mark.parametrize(
    ("engine", "handler", "reason"),
    [
        ("kaniko", True, "there are docker, podman"),
        ("docker", True, "docker is not installed"),
        ("podman", False, "qemu-user-static"),
    ],
)
def test_an_engine_that_cannot_be_had_is_one_line(tmp_path, monkeypatch, engine, handler, reason):
    (tmp_path / "podman").write_text("#!/bin/sh\n")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(container, "registered", lambda: handler)
    with pytest.raises(ArmbuildError, match=reason) as caught:
        contained.check(engine, emulated=True)
    assert "\n" not in str(caught.value)
    contained.check("podman", emulated=False)


def test_an_engine_is_for_images(tmp_path, capsys):
    assert main(["smoke", str(tmp_path / "x.whl"), "--engine", "podman"]) == 2
    assert "--engine is for images" in capsys.readouterr().err
