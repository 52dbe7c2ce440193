"""One real image: built from the sources, compared, audited, served from on emulated cores."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import openai
import pytest
from tests.armbuild.image import containers

from armbuild import audit
from armbuild.audit.elf import read_elf
from armbuild.host import bubblewrap, cache
from armbuild.image import claims, reader, unpack
from armbuild.image.client import Client, free_port
from armbuild.target import qemu

ROOT = Path(__file__).parents[3]
TAG = "registry.example/armllm:test"
pytestmark = [pytest.mark.slow, pytest.mark.network, pytest.mark.emulated]


def armbuild(*arguments, before=(), **options):
    return subprocess.run(
        [*before, sys.executable, "-m", "armbuild", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def build(wheel, path, *words, **options):
    done = armbuild(
        "docker", "--wheel", wheel, "--tag", TAG, "--label", "team=arm",
        "--with-model", ROOT / "src/armllm/smoke/model", "--output", path, "--json", *words, **options,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this tree, built here or by nox; test_real_base.py builds an image from the sources."""
    if (built_by_nox := os.environ.get("TEST_WHEEL")) is not None:
        return Path(built_by_nox)
    folder = tmp_path_factory.mktemp("wheel")
    done = armbuild("wheel", ROOT, "--python", "3.11", "--no-smoke", "--output", folder, "--json")
    assert done.returncode == 0, done.stderr
    return Path(json.loads(done.stdout)["wheels"][0]["path"])


@pytest.fixture(scope="module")
def built(wheel, tmp_path_factory):
    """The image of this tree with the smoke model in it: (archive, what --json said)."""
    folder = tmp_path_factory.mktemp("image")
    proof = ("--require-proof", "--cpu", "neoverse-n1")
    yield folder / "armllm.tar", build(wheel, folder / "armllm.tar", *proof)
    shutil.rmtree(folder)


def test_layers_made_anew_are_the_same_and_nothing_of_the_target_runs(built, wheel, tmp_path):
    """Built again with no layer kept, each program that is started noted down (execve(2))."""
    path, said = built
    (folder := tmp_path / "cache").mkdir()
    for kept in cache.root().iterdir():
        if kept.name not in {"layers", "work"}:
            (folder / kept.name).symlink_to(kept)
    trace = tmp_path / "trace"
    strace = [
        "strace",
        "-f",
        "-s",
        "4096",
        "--seccomp-bpf",
        "-qq",
        "-e",
        "trace=execve",
        "-e",
        "signal=none",
        "-o",
        trace,
    ]
    environment = {**os.environ, "ARMBUILD_CACHE_DIR": str(folder)}
    again = build(wheel, tmp_path / "again.tar", before=strace, env=environment)
    assert again["digest"] == said["digest"]
    assert (tmp_path / "again.tar").read_bytes() == path.read_bytes()
    (tmp_path / "again.tar").unlink()
    calls = re.findall(r'execve\("([^"]+)", \[(.*?)\]', trace.read_text())
    programs = {Path(program) for program, _ in calls}
    assert {"uv", "dpkg-deb"} <= {program.name for program in programs}, "or it saw nothing"
    emulated = [words for program, words in calls if "qemu" in program]
    question = re.compile(r'"-cpu", "help"|"-cpu", "[a-z0-9-]+", "[^"]*/\.armbuild-[^"/]*"$')
    assert all(question.search(words) for words in emulated), (
        "its cores and their features are asked, no more"
    )
    started = [program for program in programs if program.is_file()]
    elves = [program for program in started if program.read_bytes()[:4] == b"\x7fELF"]
    assert {read_elf(program).machine for program in elves} == {platform.machine()}


def test_what_the_labels_say_is_what_an_audit_of_the_archive_finds(built):
    path, said = built
    labels = said["platforms"]["linux/arm64"]["labels"]
    report = audit.audit_path(path, keep=claims.keep)
    assert report.ok, report.errors
    assert {file.machine for file in report.files} == {"aarch64"}
    assert labels["armllm.kernels"].split(",") == sorted(report.kernel_targets)
    assert labels["armllm.floor"] == "atomics", "torch 2.10's own floor"
    assert report.needs_everywhere == {"lse"}
    claimed = claims.read(report)
    assert claimed.errors == (), "kernels, floor, every package and every layer"
    assert claimed.labels == claimed.annotations == labels
    licensed = [part for part in claimed.as_dict()["sbom"]["components"] if part["licenses"]]
    assert {part["name"] for part in licensed} >= {"libc6", "python3.11-minimal", "torch", "armllm"}
    assert labels["team"] == "arm"
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])


def test_the_image_holds_what_serves_and_nothing_that_compiles(built):
    path, said = built
    names = set()
    with reader.open_image(path) as image:
        for layer in image.manifest("arm64").layers:
            with image.content(layer) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
                entries = {entry.name: entry for entry in tar}
            names |= entries.keys()
            assert not any(entry.mode & 0o6000 for entry in entries.values()), "set-user-id programs"
    site = "usr/local/lib/python3.11/dist-packages"
    wanted = f"""
        usr/bin/python3 usr/bin/tini etc/ssl/certs/ca-certificates.crt usr/share/zoneinfo/Europe/Zurich
        usr/local/bin/armllm {site}/armllm/__init__.py {site}/torch/lib/libtorch_cpu.so
        {site}/armllm/__pycache__/__init__.cpython-311.pyc models/model/config.json
        usr/local/share/armllm/sbom.cdx.json usr/share/doc/libc6/copyright var/lib/dpkg/status.d/libc6
    """.split()
    assert set(wanted) <= names
    unwanted = "usr/bin/gcc usr/bin/sh usr/bin/dash usr/bin/dpkg {site}/torch/include {site}/pip"
    assert not set(unwanted.format(site=site).split()) & names
    assert said["platforms"]["linux/arm64"]["compressed"] < 236e6, "torch's own wheel and 90 MB"


def test_the_image_serves_as_its_user_and_refuses_a_core_below_its_floor(built):
    path, said = built
    (good,) = said["smoke"]
    assert good["cpu"] == "neoverse-n1"
    assert good["passed"]
    done = armbuild("smoke", path, "--cpu", "cortex-a72", "--json")
    (old,) = json.loads(done.stdout)["results"]
    assert any("user 10001:10001, root file system read-only, tcmalloc" in line for line in good["said"])
    assert not old["passed"]
    assert "Cortex-A72 lacks atomics" in old["reason"]
    assert done.returncode == 1


def test_a_tampered_layer_is_refused(built, tmp_path):
    path, _ = built
    copy = tmp_path / "tampered.tar"
    shutil.copyfile(path, copy)
    with tarfile.open(copy) as tar:
        layer = max(tar.getmembers(), key=lambda member: member.size)
    with copy.open("r+b") as file:
        file.seek(layer.offset_data + layer.size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    done = armbuild("smoke", copy, "--cpu", "neoverse-n1")
    assert done.returncode == 1
    assert "tampered with or damaged" in done.stderr
    assert len(done.stderr.splitlines()) <= 3


def test_docker_loads_the_archive_and_serves_within_its_limits_as_another_user(built, tmp_path):
    path, _ = built
    port, model = free_port(), "org/smoke"
    hub = made_up_hub(tmp_path / "huggingface")
    limits = [
        f"--volume={hub}:/root/.cache/huggingface:ro",
        "--env=HF_HUB_OFFLINE=1",
        "--cpus=1.5",
        "--memory=3g",
        "--read-only",
        "--tmpfs=/tmp",
        "--user=12345:23456",
    ]
    with containers.engine("docker") as engine:
        assert TAG in engine.run("load", "--input", path)
        said = json.loads(engine.run("image", "inspect", TAG))[0]
        assert (said["Architecture"], said["Config"]["User"]) == ("arm64", "10001:10001")
        with containers.running(
            engine, *limits, "--env=QEMU_CPU=neoverse-n1", TAG, model, f"--port={port}", "--host=127.0.0.1"
        ) as container:
            _healthy(engine, container, Client(port, model))
            passage = json.loads((ROOT / "src/armllm/smoke/model/passages.json").read_text())[0]
            with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
                (listed,) = client.models.list().data
                assert listed.id == model
                asked = {"model": model, "prompt": passage["prompt"], "max_tokens": 32, "temperature": 0}
                whole = client.completions.create(**asked).choices[0].text
                pieces = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
            assert len(whole) > 40
            assert passage["text"].startswith(whole)
            assert "".join(pieces) == whole
            lines = engine.logs(container)
            assert re.search(r"CPUs: .*, 1\.5 CPUs' worth of time by cgroup v[12]", lines), lines
            assert re.search(r"memory: 3 of .* by cgroup v[12]", lines), lines
            assert "user 12345:23456, root file system read-only, tcmalloc" in lines
            engine.run("kill", "--signal=TERM", container)
            assert engine.run("wait", container) == "0", engine.logs(container)


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_armbuild_smokes_an_archive_that_an_engine_loaded(built, name):
    path, _ = built
    with containers.engine(name) as engine:
        assert TAG in engine.run("load", "--input", path)
        options = {**engine.environment, "ARMBUILD_ENGINE_OPTIONS": " ".join(containers.LIMITS)}
        done = armbuild("smoke", path, "--cpu=neoverse-n1", f"--engine={name}", "--json", env=options)
        assert done.returncode == 0, done.stdout + done.stderr
        (result,) = json.loads(done.stdout)["results"]
        assert result["surroundings"] == f"as user 10001:10001, read-only, without a network, by {name}"
        assert engine.run("ps", "--all", "--quiet") == ""


def made_up_hub(folder):
    """A cache of the hub as it lies in a user's ~/.cache/huggingface, with one model: org/smoke."""
    commit, home = "0" * 40, folder / "hub/models--org--smoke"
    shutil.copytree(ROOT / "src/armllm/smoke/model", home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs/main").write_text(commit)
    return folder


def _healthy(engine, container, client):
    """Wait until the server answers; fail with what it said when it ends before, or takes ten minutes."""
    deadline = time.monotonic() + 600
    while not client.healthy():
        running = engine.run("inspect", "--format={{.State.Running}}", container)
        assert running == "true", engine.logs(container)
        assert time.monotonic() < deadline, engine.logs(container)
        time.sleep(1)


TOKENS_BY_OPENVINO = """
import json
from armllm import LLM, SamplingParams

options = {"backend": "openvino", "dtype": "float32", "skip_tokenizer_init": True}
llm = LLM("/run/ir/llama", num_gpu_blocks_override=32, **options)
params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, detokenize=False)
cases = json.load(open("/run/ir/expected.json"))
answers = llm.generate([{"prompt_token_ids": case["prompt"]} for case in cases], params, use_tqdm=False)
print(json.dumps([list(answer.outputs[0].token_ids) for answer in answers]))
"""


def test_openvino_in_an_image_computes_on_a_core_with_sve_what_transformers_does(wheel, tmp_path):
    """It would catch a library that OpenVINO needs and the image has not, and a graph that fails on Arm."""
    said = build(wheel, tmp_path / "openvino.tar", "--with-openvino")
    labels = said["platforms"]["linux/arm64"]["labels"]
    assert re.fullmatch(r"[\d.]+", labels["armllm.openvino"])
    report = audit.audit_path(tmp_path / "openvino.tar", keep=claims.keep)
    assert report.ok, report.errors
    claimed = claims.read(report)
    assert claimed.errors == ()
    parts = {part["name"]: part["version"] for part in claimed.as_dict()["sbom"]["components"]}
    assert parts["openvino"] == labels["armllm.openvino"]
    assert {"optimum-intel", "nncf"} <= parts.keys()
    root, ir = tmp_path / "root", ROOT / "tests/armllm/openvino"
    root.mkdir()
    with reader.open_image(tmp_path / "openvino.tar") as image:
        unpack.into_folder(image, image.manifest("arm64"), root)
    libraries = [file for file in report.files if "/openvino/libs/" in file.name]
    assert any("libopenvino_arm_cpu_plugin" in file.name for file in libraries)
    present = {path.name for path in root.rglob("*.so*")}
    assert {name for file in libraries for name in file.needed} <= present
    places = {root: "/", Path("/sys"): "/sys", ir: "/run/ir", qemu.find(("neoverse-v1",)): "/run/qemu"}
    mounts = [("--ro-bind", str(source), place) for source, place in places.items()]
    mounts[1:1] = [("--proc", "/proc"), ("--dev", "/dev"), ("--tmpfs", "/run"), ("--tmpfs", "/tmp")]  # noqa: S108
    done = subprocess.run(
        [
            *bubblewrap.find(instead=""),
            *(word for mount in mounts for word in mount),
            *("/run/qemu", "-cpu", "neoverse-v1", "/usr/bin/python3", "-c", TOKENS_BY_OPENVINO),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    cases = json.loads((ir / "expected.json").read_text())
    assert json.loads(done.stdout.splitlines()[-1]) == [case["tokens"] for case in cases]
