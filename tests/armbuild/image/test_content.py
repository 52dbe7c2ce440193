import hashlib
import json

import pytest
from tests.armbuild import wheels
from tests.armbuild.image import small

from armbuild.errors import BuildError, MissingError, UsageError
from armbuild.image import config, content, packages, root, sandbox
from armbuild.image.base import Foundation


def test_the_floor_is_in_linux_names_and_the_lowest_core_in_words():
    found = content.Content(needs=frozenset({"lse", "dotprod"}))
    assert found.floor == {"atomics", "asimddp"}
    assert config.lowest(found, "aarch64") == "armv8.1-a or newer with dotprod", "Neoverse N1 is Armv8.2"
    graviton3 = content.Content(needs=frozenset({"lse", "fp16", "dotprod", "rcpc", "rcpc2", "sve"}))
    assert config.lowest(graviton3, "aarch64") == "armv8.1-a or newer with dotprod, rcpc2, sve", "not Armv9"
    assert config.lowest(content.Content(needs=frozenset({"lse"})), "aarch64") == "armv8.1-a or newer"
    assert config.lowest(content.Content(), "aarch64") == "armv8-a or newer"
    assert config.lowest(content.Content(), "x86_64") == "x86-64", "no Arm core runs it"


def test_layers_together_need_what_each_needs():
    one = content.Content(needs=frozenset({"lse"}), dispatched=frozenset({"bf16"}), elf_files=2)
    two = content.Content(dispatched=frozenset({"lse", "sve"}), kernels=frozenset({"neon"}), elf_files=1)
    both = content.together([one, two])
    assert both.needs == {"lse"}
    assert both.dispatched == {"bf16", "sve"}
    assert both.elf_files == 3
    assert content.Content.from_dict(json.loads(json.dumps(both.as_dict()))) == both


def test_pins_keep_torch_apart_and_leave_the_engine_out():
    text = (
        "armllm @ file:///x.whl \\\n    --hash=sha256:aa\nnumpy==2.4.6 \\\n    --hash=sha256:bb \\\n"
        "    --hash=sha256:cc\ntorch==2.10.0 \\\n    --hash=sha256:dd\n"
    )
    pins = packages._pins(text, "arm64", None)
    numpy = "numpy==2.4.6 --hash=sha256:bb --hash=sha256:cc"
    assert pins == packages.Pins(torch="torch==2.10.0 --hash=sha256:dd", others=(numpy,))
    assert pins.names == {"armllm", "torch", "numpy"}
    assert pins.torch_version == "2.10.0"


def test_only_the_file_with_the_hash_that_was_chosen_is_unpacked(tmp_path):
    wheel = wheels.write(tmp_path, "thing-1.0-py3-none-any.whl", {"thing/__init__.py": b""})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    options = {"python": "3.11", "architecture": "arm64", "index": str(tmp_path), "log": tmp_path / "log"}
    packages.install([f"thing==1.0 --hash=sha256:{digest}"], tmp_path / "site", **options)
    assert (tmp_path / "site/thing/__init__.py").is_file()
    for pin in (f"thing==1.0 --hash=sha256:{'0' * 64}", "thing==1.0"):
        with pytest.raises(MissingError, match=r"unpacking packages for arm64.* failed"):
            packages.install([pin], tmp_path / "other", **options)


@pytest.mark.parametrize("foreign", ["nvidia-cublas-cu12==12.8", "nvidia-nccl==2", "cuda-bindings==13"])
def test_a_cuda_build_of_torch_is_refused_with_the_way_out(foreign):
    with pytest.raises(UsageError, match="--torch-index"):
        packages._pins(f"torch==2.13.0\n{foreign}\n", "amd64", None)


def test_a_record_lists_what_is_left(tmp_path):
    info = tmp_path / "x-1.dist-info"
    info.mkdir()
    (tmp_path / "kept.py").write_text("")
    (info / "INSTALLER").write_text("uv")
    (info / "RECORD").write_text(
        "x-1.dist-info/INSTALLER,sha256=a,2\nbin/tool,sha256=b,3\nkept.py,sha256=c,0\nx-1.dist-info/RECORD,,\n"
    )
    packages._rewrite_record(tmp_path, info / "RECORD")
    assert (info / "RECORD").read_text() == "kept.py,sha256=c,0\nx-1.dist-info/RECORD,,\n"


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (["/usr/bin/tini", "-s", "--", "python3", "-m", "x"], ["python3", "-m", "x"]),
        (["/sbin/tini", "-g", "python3", "-m", "x"], ["python3", "-m", "x"]),
        (["python3", "--", "x"], ["python3", "--", "x"]),
    ],
)
def test_under_emulation_the_init_is_left_out(words, rest):
    assert sandbox.without_init(words) == rest


def test_the_images_user_may_be_a_number_or_a_name(tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nmodel:x:7:8::/:/bin/sh\n")
    assert sandbox._ids(tmp_path, "10001:10002") == (10001, 10002)
    assert sandbox._ids(tmp_path, "model") == (7, 8)
    assert sandbox._ids(tmp_path, "7") == (7, 8)
    assert sandbox._ids(tmp_path, "0:0") == (0, 0)


def test_labels_tell_what_is_known_and_nothing_else():
    known = config.facts(
        content.Content(needs=frozenset({"lse"}), kernels=frozenset({"neon", "bf16"})),
        machine="aarch64", version="0.1.0", python="3.11", torch="2.10.0",
    )  # fmt: skip
    foundation = Foundation(
        layers=(),
        content=content.Content(),
        python="/usr/bin/python3.11",
        site="s",
        environment={},
        suite="bookworm",
    )
    labels = config.labels(
        known,
        foundation,
        tag="manylinux_2_28_aarch64",
        baseline="armv8-a",
        created="x",
        revision=None,
        own={"team": "y"},
    )
    assert labels["armllm.kernels"] == "bf16,neon"
    assert labels["armllm.floor"] == "atomics"
    assert labels["team"] == "y"
    assert "org.opencontainers.image.revision" not in labels
    assert "org.opencontainers.image.base.digest" not in labels


def test_a_folder_of_wheels_decides_the_version_of_torch_where_it_has_one_for_the_target(tmp_path):
    for name in (
        "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.9.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl",
        "torch-2.15.0+cpu-cp312-cp312-manylinux_2_28_x86_64.whl",
        "torch-nonsense.whl",
    ):
        (tmp_path / name).write_text("")
    assert packages.in_folder(tmp_path, "3.11", "amd64") == "2.13.0+cpu"
    assert packages.in_folder(tmp_path, "3.11", "arm64") is None
    assert packages.sources(str(tmp_path))[0] == "--find-links"
    assert packages.sources("https://index.example/simple")[0] == "--index"


def test_the_tests_that_packages_carry_along_stay_outside(tmp_path, monkeypatch):
    kept = {"numpy/testing/__init__.py": "", "sympy/testing/runtests.py": "", "jinja2/tests.py": ""}
    tests = (
        "numpy/tests/a.py",
        "numpy/_core/tests/data/tests/b.py",
        "sympy/utilities/_compilation/tests/c.py",
    )
    site = small.tree(tmp_path / "site", {**kept, **dict.fromkeys(tests, "")})
    monkeypatch.setattr(packages.process, "run", lambda *_, **__: "")
    packages.install([], site, python="3.11", architecture="arm64", index=None, log=tmp_path / "log")
    assert {path.relative_to(site).as_posix() for path in site.rglob("*.py")} == kept.keys()


def test_what_lies_in_uvs_cache_is_not_written_to(tmp_path):
    info, cached = tmp_path / "x-1.dist-info", tmp_path / "cached"
    info.mkdir()
    cached.write_text("gone.py,,\n")
    (info / "RECORD").hardlink_to(cached)
    packages._rewrite_record(tmp_path, info / "RECORD")
    assert cached.read_text() == "gone.py,,\n"


def test_of_torchs_programs_only_the_one_that_it_asks_for_stays(tmp_path, monkeypatch):
    small.tree(
        tmp_path / "site",
        {
            "torch/bin/torch_shm_manager": "", "torch/bin/protoc": "", "torch/bin/upgrader_models/x": "",
            "torch/include/a.h": "", "bin/torchrun": "", "torch/__init__.py": "",
        },
    )  # fmt: skip
    monkeypatch.setattr(packages.process, "run", lambda *_, **__: "")
    options = {"python": "3.11", "architecture": "arm64", "index": None, "log": tmp_path / "log"}
    packages.install(["torch==2.10.0"], tmp_path / "site", **options)
    left = sorted(path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*.*"))
    assert left == ["torch/__init__.py"]
    assert [path.name for path in (tmp_path / "site/torch/bin").iterdir()] == ["torch_shm_manager"]
    (tmp_path / "site/torch/lib").mkdir()
    (tmp_path / "site/torch/lib/libtorch_cuda.so").write_text("")
    with pytest.raises(UsageError, match=r"libtorch_cuda\.so"):
        packages.install(["torch==2.13.0"], tmp_path / "site", **options)


@pytest.mark.parametrize("name", ["/etc/cron.d/x", "../x", "X", "", "a b", "x"])
def test_a_package_whose_name_is_a_path_is_refused(tmp_path, monkeypatch, name):
    fields = {"Package": name, "Version": "1", "Architecture": "arm64"}
    monkeypatch.setattr(root.deb_files, "control", lambda _file: fields)
    with pytest.raises(BuildError, match="not a Debian package's name"):
        root._record(tmp_path / "tree", tmp_path / "x.deb", "bookworm")
    assert not list(tmp_path.iterdir())
