import contextlib
import json
import os
import re
import struct
import zipfile
from pathlib import Path

import pytest
from tests.armbuild import wheels

from armbuild.cli import docker
from armbuild.cli.progress import Progress
from armbuild.errors import ArmbuildError, CheckFailed, MissingError, UsageError
from armbuild.image import engines, model, plan, reference, smoke
from armbuild.wheel import cpus, provenance

NAME = "armllm-0.1.0-cp311-cp311-manylinux_2_28_aarch64.whl"
ENTRY = {plan.ENTRY_POINT: b"", "armllm/build_info.json": b"{}"}
AMD64 = "armllm-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl"


def a_wheel(folder, name=NAME, files=None):
    suffix = "thing/_core.cpython-311-aarch64-linux-gnu.so"
    own = {suffix: None, "armllm/_kernels.so": wheels.elf("x86_64")} if "x86_64" in name else {}
    return wheels.write(folder, name, {**ENTRY, **own, **(files or {})})


def a_model(folder, **changes):
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    files = {
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": b"{}",
        "model.safetensors": struct.pack("<Q", len(header)) + header + bytes(8),
        **changes,
    }
    folder.mkdir()
    for name, content in files.items():
        if content is not None:
            (folder / name).write_bytes(content)
    return folder


def planned(folder, **settings):
    return plan.plan_image(folder, plan.ImageSettings(**settings))


def test_a_wheel_decides_version_python_names_and_layers(tmp_path):
    made = planned(
        tmp_path,
        wheels=[a_wheel(tmp_path)],
        output=tmp_path / "x.tar",
        with_model=a_model(tmp_path / "m"),
        labels=["a.b=c=d"],
    )
    assert (made.version, made.python, made.tag) == ("0.1.0", "3.11", "localhost/armllm:0.1.0")
    assert made.labels == {"a.b": "c=d"}
    facts = json.loads(json.dumps(made.as_dict()))
    assert facts["layers"] == ["root", "torch", "dependencies", "engine", "model"]
    assert facts["base"] == "Debian bookworm packages"


def test_a_given_wheels_commit_is_the_one_that_its_provenance_file_says(tmp_path, monkeypatch):
    wheel = a_wheel(tmp_path)
    assert planned(tmp_path, wheels=[wheel], output=tmp_path / "x.tar").revision is None
    monkeypatch.setattr(provenance, "revision", lambda path: "a" * 40 if path == wheel else None)
    assert planned(tmp_path, wheels=[wheel], output=tmp_path / "x.tar").revision == "a" * 40


def test_the_image_is_dated_by_what_is_in_the_wheel_or_as_the_variable_says(tmp_path, monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    path = a_wheel(tmp_path)
    with zipfile.ZipFile(path) as archive:
        newest = max(item.date_time for item in archive.infolist())
    made = planned(tmp_path, wheels=[path], output=tmp_path / "x.tar")
    assert made.epoch > 315532800 - 1
    assert newest[0] >= 1980
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert planned(tmp_path, wheels=[path], output=tmp_path / "x.tar").epoch == 1700000000
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH=yesterday"):
        planned(tmp_path, wheels=[path], output=tmp_path / "x.tar")


def test_two_platforms_take_a_wheel_each(tmp_path):
    both = [a_wheel(tmp_path), a_wheel(tmp_path, AMD64)]
    made = planned(tmp_path, platform="linux/arm64,linux/amd64", wheels=both, output=tmp_path / "x.tar")
    assert {name: path.name for name, path in made.wheels.items()} == {"arm64": NAME, "amd64": AMD64}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"platform": "linux/riscv64"}, "linux/riscv64"),
        ({"platform": ""}, "there are linux/arm64 and linux/amd64"),
        ({"platform": "windows/arm64"}, "windows/arm64"),
        ({"tag": "Armllm:1"}, "write armllm:1"),
        ({"tag": "r.example/Armllm:RC1"}, "write r.example/armllm:RC1"),
        ({"tag": "a b"}, "--tag a b"),
        ({"tag": "x:"}, "--tag x:"),
        ({"tag": ""}, "--tag : not an image's name"),
        ({"labels": ["novalue"]}, "KEY=VALUE"),
        ({"labels": ["=x"]}, "KEY=VALUE"),
        ({"labels": ["armllm.floor=none"]}, "comes from the audit"),
        ({"torch": "nonsense"}, "--torch nonsense: not a version"),
        ({"torch": ">=2.10"}, "not a version"),
        ({"torch": ""}, "not a version"),
        ({"builder": "kaniko"}, "oci, docker, podman, buildah"),
        ({"builder": "podman"}, "goes with --builder oci"),
        ({"python": "3.13"}, "is for Python 3.11"),
        ({"wheel_settings": {"bf16": False}}, "--no-bf16 says how to build the wheel"),
        ({"wheel_settings": {"baseline": "neoverse-v1"}}, "--baseline says how to build"),
        ({"platform": "linux/amd64"}, "is for linux/arm64, which --platform linux/amd64 does not name"),
        ({"platform": "linux/arm64,linux/amd64"}, "needs a --wheel for x86-64"),
        ({"push": True}, "--push needs --tag"),
        ({"cpus": ["max"], "require_proof": False}, "--no-require-proof that it is not run"),
        ({"index": "no-such-folder"}, "neither an address"),
        ({"index": ""}, "neither an address"),
        ({"index": "ftp://x.example/simple"}, "neither an address"),
        ({"index": "."}, "no wheel of torch for linux/arm64 and Python 3.11"),
        ({"with_model": "no-such-folder"}, "no such folder"),
        ({"base": "gone.tar"}, "--base gone.tar: no such file"),
        ({"base": ""}, "--base '': no such file"),
    ],
)
def test_a_choice_that_cannot_be_honored_is_refused_before_anything_is_built(
    tmp_path, monkeypatch, options, reason
):
    monkeypatch.chdir(tmp_path)
    options = {key: tmp_path / value if key == "with_model" else value for key, value in options.items()}
    with pytest.raises(UsageError) as caught:
        planned(tmp_path, wheels=[a_wheel(tmp_path)], output=tmp_path / "x.tar", **options)
    assert reason in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "in_ci", "elsewhere"),
    [
        ({}, cpus.default_cpus(), ()),
        ({"require_proof": True}, cpus.default_cpus(), cpus.default_cpus()),
        ({"require_proof": False}, (), ()),
        ({"cpus": ["max", "neoverse-n1", "max"]}, ("max", "neoverse-n1"), ("max", "neoverse-n1")),
    ],
)
def test_an_image_is_served_from_in_ci_or_where_somebody_asks_for_it(
    tmp_path, monkeypatch, settings, in_ci, elsewhere
):
    for value, cores in (("true", in_ci), ("false", elsewhere)):
        monkeypatch.setenv("CI", value)
        made = planned(tmp_path, wheels=[a_wheel(tmp_path)], output=tmp_path / "x.tar", **settings)
        assert made.cpus == cores
    with pytest.raises(UsageError, match="only linux/arm64 can be tested"):
        plan._cores(plan.ImageSettings(platform="linux/amd64", require_proof=True), ("amd64",))


@pytest.mark.parametrize(
    ("report", "error", "said"),
    [
        (MissingError("no bubblewrap\nget it so"), MissingError, "not proven: no bubblewrap (--no-require"),
        (False, CheckFailed, "smoke: max: it crashed"),
        (True, None, ""),
    ],
)
def test_only_an_image_that_served_reaches_its_place(tmp_path, monkeypatch, report, error, said):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    output = tmp_path / "out/x.tar"
    made = planned(tmp_path, wheels=[a_wheel(tmp_path)], output=output, cpus=["max"])

    def serve(path, names, _work, **_options):
        assert (path.read_text(), names, output.exists()) == ("image", ("max",), False)
        if isinstance(report, Exception):
            raise report
        result = smoke.Result(
            cpu="max", passed=report, reason="it crashed" * (not report), surroundings="", seconds=1.0
        )
        return smoke.Report(image=str(path), digest="", labels={}, results=(result,))

    def write(image, _work, **_options):
        image.output.parent.mkdir()
        image.output.write_text("image")
        image.output.with_name(f"{image.output.name}.provenance.json").write_text("{}")
        return object()

    monkeypatch.setattr(smoke, "smoke_test", serve)
    monkeypatch.setattr("armbuild.image.build.build_image", write)
    monkeypatch.setattr(docker, "_report", lambda *_arguments, **_options: {"ok": True})
    (work := tmp_path / "work").mkdir()
    with pytest.raises(error, match=re.escape(said)) if error else contextlib.nullcontext():
        assert docker._build(made, work, Progress(), None)["smoke"][0]["cpu"] == "max"
    there = sorted(path.name for path in output.parent.iterdir()) if output.parent.exists() else []
    assert there == ([] if error else ["x.tar", "x.tar.provenance.json"])


MODULE = "thing/_core.cpython-311-aarch64-linux-gnu.so"


@pytest.mark.parametrize(
    ("tags", "files", "reason"),
    [
        ("cp311-cp311-linux_x86_64", {}, "for linux/amd64"),
        ("cp311-cp311-linux_x86_64", {"armllm/_kernels.so": wheels.elf("aarch64")}, "misnamed"),
        ("cp312-cp312-linux_aarch64", {MODULE: None, "x.so": wheels.elf()}, "no Debian release carries"),
        ("cp311-cp311-linux_aarch64", {plan.ENTRY_POINT: None}, "too old for an image"),
        ("cp311-cp311-linux_armv7l", {MODULE: wheels.elf("arm", bits=32)}, "holds armv7l (32-bit) code"),
        ("cp311-cp311-linux_aarch64", {"y.so": wheels.elf("x86_64")}, "aarch64, x86_64 code"),
    ],
)
def test_a_wheel_that_cannot_go_into_the_image_is_refused_in_a_line(tmp_path, tags, files, reason):
    with pytest.raises(UsageError) as caught:
        planned(
            tmp_path, wheels=[a_wheel(tmp_path, f"armllm-0.1.0-{tags}.whl", files)], output=tmp_path / "x.tar"
        )
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["pipe", "link to a device"])
def test_a_device_is_not_replaced_by_the_archive(tmp_path, kind):
    place = tmp_path / "x.tar"
    os.mkfifo(place) if kind == "pipe" else place.symlink_to("/dev/null")
    with pytest.raises(UsageError, match=r"--output .*x\.tar: there is something that is no file"):
        planned(tmp_path, wheels=[a_wheel(tmp_path)], output=place)


def test_an_output_that_cannot_be_written_is_found_before_the_build(tmp_path):
    path = a_wheel(tmp_path)
    with pytest.raises(UsageError, match="a folder"):
        planned(tmp_path, wheels=[path], output=tmp_path)
    with pytest.raises(UsageError, match=re.escape(f"--output {path}/x.tar: {path} is not a folder")):
        planned(tmp_path, wheels=[path], output=path / "x.tar")
    with pytest.raises(UsageError, match=r"--output /proc/x\.tar: /proc cannot be written to"):
        planned(tmp_path, wheels=[path], output=Path("/proc/x.tar"))


def test_an_engine_that_is_absent_or_silent_is_named(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(MissingError, match="podman is not installed"):
        plan._check_builder(plan.ImageSettings(builder="podman"), ("arm64",))
    podman = tmp_path / "bin/podman"
    podman.write_text("#!/bin/sh\nexit 125\n")
    podman.chmod(0o755)
    made = planned(
        tmp_path, wheels=[a_wheel(tmp_path)], output=tmp_path / "x.tar", tag="r.example/x", push=True
    )
    with pytest.raises(MissingError, match="skopeo"):
        engines.check(made)
    with pytest.raises(MissingError, match="does not answer"):
        engines.check(plan.ImagePlan(**{**made.__dict__, "builder": "podman", "push": False}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config.json": None}, "config.json is missing"),
        ({"config.json": b"{}"}, "describes no model"),
        ({"config.json": b"no"}, "not valid JSON"),
        ({"tokenizer.json": None}, "tokenizer.json is missing"),
        ({"model.safetensors": None}, "no .safetensors files"),
        ({"model.safetensors": b"short"}, "not a safetensors file"),
        ({"model.safetensors": struct.pack("<Q", 4) + b"nono"}, "not a safetensors file"),
        (
            {"model.safetensors.index.json": b'{"weight_map": {"a": "gone.safetensors"}}'},
            "gone.safetensors is",
        ),
        ({"model.safetensors.index.json": b'{"weight_map": {"a": "../x"}}'}, "no list of weights"),
    ],
)
def test_a_folder_that_is_no_whole_model_is_refused_in_a_line(tmp_path, changes, reason):
    with pytest.raises(UsageError) as caught:
        model.check(a_model(tmp_path / "m", **changes))
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_download_of_weights_is_noticed(tmp_path):
    folder = a_model(tmp_path / "m")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UsageError, match="download it again"):
        model.check(folder)


def test_a_model_s_links_lead_to_the_hub_s_cache_and_nowhere_else(tmp_path):
    """A stranger's checkpoint would put a file of this machine into the image."""
    snapshot = tmp_path / "models--a--b" / "snapshots" / "1"
    snapshot.parent.mkdir(parents=True)
    a_model(snapshot)
    blob = tmp_path / "models--a--b" / "blobs" / "2"
    blob.parent.mkdir()
    (snapshot / "tokenizer.json").rename(blob)
    (snapshot / "tokenizer.json").symlink_to("../../blobs/2")
    assert model.check(snapshot) == snapshot
    (snapshot / "more").mkdir()
    (snapshot / "more/notes.txt").symlink_to("../tokenizer.json")
    assert model.check(snapshot) == snapshot
    for target in (tmp_path / "key", tmp_path / "models--a--b" / "key", snapshot.parent / "2"):
        target.write_text("secret")
        (snapshot / "more/notes.txt").unlink()
        (snapshot / "more/notes.txt").symlink_to(target)
        with pytest.raises(UsageError, match=r"more/notes\.txt is a link to .*, outside of the model"):
            model.check(snapshot)


def test_blobs_of_a_hub_s_cache_are_no_link_to_another_folder(tmp_path):
    (tmp_path / "snapshots").mkdir()
    snapshot = a_model(tmp_path / "snapshots" / "1")
    (tmp_path / "blobs").symlink_to("/etc")
    (snapshot / "notes.txt").symlink_to("../../blobs/passwd")
    with pytest.raises(UsageError, match="is a link to /etc/passwd, outside of the model"):
        model.check(snapshot)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "more/x"])
@pytest.mark.parametrize("kind", ["a link", "a pipe", "a folder"])
def test_what_would_be_read_for_ever_is_refused_before_it_is_read(tmp_path, name, kind):
    folder = a_model(tmp_path / "m")
    path = folder / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    if kind == "a link":
        path.symlink_to("/dev/zero")
    elif kind == "a pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
        if name == "more/x":
            assert model.check(folder) == folder
            return
    with pytest.raises(UsageError, match=r"is a link to /dev/zero|is neither a file nor a folder|is missing"):
        model.check(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_document_of_a_model_is_read_up_to_its_limit(tmp_path, name):
    folder = a_model(tmp_path / "m")
    with (folder / name).open("ab") as file:
        file.truncate(1 << 40)  # holes take no place
    with pytest.raises(UsageError, match=rf"{name}: it has more than 100 MiB"):
        model.check(folder)
    (folder / name).write_text("[" * 1_000_000)
    with pytest.raises(UsageError, match="not valid JSON"):
        model.check(folder)


def test_a_file_is_not_taken_for_a_missing_folder(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match=r"m\.gguf: not a folder: .* safetensors"):
        model.check(tmp_path / "m.gguf")


def test_a_folder_of_wheels_must_have_torch_for_one_of_the_platforms(tmp_path):
    wheel = a_wheel(tmp_path)
    (tmp_path / "torch-2.13.0-cp312-cp312-manylinux_2_28_aarch64.whl").touch()
    with pytest.raises(UsageError, match="no wheel of torch"):
        planned(tmp_path, wheels=[wheel], output=tmp_path / "x.tar", index=str(tmp_path))
    (tmp_path / "torch-2.13.0-cp311-cp311-manylinux_2_28_aarch64.whl").touch()
    made = planned(tmp_path, wheels=[wheel], output=tmp_path / "x.tar", index=str(tmp_path))
    assert made.index == str(tmp_path)


def test_a_downloads_caches_stay_outside(tmp_path):
    folder = a_model(tmp_path / "m")
    (folder / ".cache").mkdir()
    (folder / ".cache/x").write_text("")
    assert sorted(path.name for path in model.files(folder)) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("armllm", "localhost/armllm:latest"),
        ("team/armllm:1.0", "localhost/team/armllm:1.0"),
        ("registry.example:5000/team/a_b.c:v1", "registry.example:5000/team/a_b.c:v1"),
        ("localhost/x", "localhost/x:latest"),
        ("Registry/x", "Registry/x:latest"),
    ],
)
def test_names_are_filed_as_engines_file_them(name, full):
    assert reference.full_name(reference.check_tag(name)) == full


def test_platforms_may_be_spelled_as_machines():
    assert reference.check_platforms("linux/aarch64, linux/x86_64,linux/arm64/v8") == ("arm64", "amd64")
    with pytest.raises(ArmbuildError):
        reference.check_platforms("linux")
