"""The whole of a build with small packages in place of Debian's and the index's: no network."""

import json
import os
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.armbuild import wheels
from tests.armbuild.image import small

from armbuild import audit
from armbuild.audit import AuditReport
from armbuild.errors import BuildError, CheckFailed, MissingError, UsageError
from armbuild.image import build, packages, plan, reader, root, side_by_side, unpack
from armbuild.target import debian

NAME = "armllm-0.1.0-cp311-cp311-manylinux_2_28_aarch64.whl"
RESOLVE = packages.resolve
BASE = {
    "usr/bin/python3.11": "",
    "etc/debian_version": "12",
    "etc/os-release": "ID=debian\nVERSION_CODENAME=bookworm\n",
    "usr/lib/python3.11/asyncio/__init__.py": "",
    "usr/lib/aarch64-linux-gnu/libc.so.6": "GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.",
    "usr/lib/aarch64-linux-gnu/libstdc++.so.6": "",
    "var/lib/dpkg/status": "Package: libc6\nStatus: install ok installed\nVersion: 2.36\n\n",
}


@pytest.fixture
def world(tmp_path, monkeypatch):
    """An index and a Debian archive of a few files; ``world.needs`` is what the wheel's code needs."""
    world = SimpleNamespace(installed=[], needs=frozenset(), ok=True)
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    real = audit.audit_path

    def audited(path, **options):
        if Path(path).suffix != ".whl":
            return real(path, **options)
        return AuditReport(
            path=path, kind="wheel", size=1, tag="cp311-cp311-manylinux_2_28_aarch64",
            errors=() if world.ok else ("a broken RECORD",), files=(SimpleNamespace(machine="aarch64"),),
            kernel_targets=("neon",), needs_everywhere=world.needs,
        )  # fmt: skip

    def install(wanted, site, **_options):
        for item in wanted:
            name = Path(item).name.partition("==")[0].partition("-")[0]
            world.installed.append(name)
            small.tree(
                site,
                {f"{name}/__init__.py": f"x = {Path(item).stat().st_size if Path(item).exists() else 0}\n"},
            )

    def make(tree, *, python, only, **_options):
        small.tree(tree, BASE if python else {f"usr/share/doc/{name}/copyright": "" for name in only})
        return (
            root.Package(
                name="libc6", version="2.36", architecture="arm64", source="glibc", suite="bookworm"
            ),
        )

    monkeypatch.setattr(build.audit, "audit_path", audited)
    monkeypatch.setattr(
        packages, "resolve", lambda *_, **__: packages.Pins(torch="torch==2.10.0", others=("numpy==2",))
    )
    monkeypatch.setattr(packages, "install", install)
    monkeypatch.setattr(root, "make", make)
    monkeypatch.setattr(debian, "archive", lambda mirror: debian.Archive(uri=mirror or "http://a.example"))
    monkeypatch.setattr(debian, "state", lambda **_: "state")
    monkeypatch.setattr(side_by_side, "run", one_after_another)  # processes of their own know no such world
    return world


def one_after_another(jobs, **_options):
    for job in jobs.values():
        job()


def a_wheel(folder, *, name=NAME, **files):
    folder.mkdir(exist_ok=True)
    info = b'{"version": "0.1.0", "baseline": "armv8-a"}'
    return wheels.write(folder, name, {plan.ENTRY_POINT: b"", "armllm/build_info.json": info, **files})


def a_build(tmp_path, wheel, name="x.tar", **options):
    work = tmp_path / f"work-{Path(name).stem}"
    work.mkdir()
    return build.build_image(
        plan.plan_image(tmp_path, plan.ImageSettings(wheels=[wheel], output=tmp_path / name, **options)), work
    )


def layers_of(built):
    return [layer.digest for layer in built.platforms["arm64"].image.layers]


def test_a_changed_wheel_makes_only_the_engines_layer_anew(tmp_path, world):
    first = a_build(tmp_path, a_wheel(tmp_path / "1"))
    assert world.installed == ["torch", "numpy", "armllm"]
    world.installed.clear()
    second = a_build(tmp_path, a_wheel(tmp_path / "2", **{"armllm/new.py": b"y = 1\n"}), "y.tar")
    assert world.installed == ["armllm"]
    before, after = layers_of(first), layers_of(second)
    assert before[:3] == after[:3]
    assert before[3] != after[3]


def test_a_wheel_built_anew_in_the_folder_of_an_index_is_taken(tmp_path, world):
    torch = tmp_path / "torch-2.10.0-cp311-cp311-manylinux_2_28_aarch64.whl"
    wheel = a_wheel(tmp_path / "1")
    for name, content in (("x.tar", "one"), ("y.tar", "other")):
        torch.write_text(content)
        world.installed.clear()
        a_build(tmp_path, wheel, name, index=str(tmp_path))
        assert "torch" in world.installed


def test_equal_inputs_are_equal_archives_also_when_nothing_was_kept(tmp_path, world, monkeypatch):
    wheel = a_wheel(tmp_path / "1")
    a_build(tmp_path, wheel)
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "another"))
    a_build(tmp_path, wheel, "y.tar")
    assert (tmp_path / "x.tar").read_bytes() == (tmp_path / "y.tar").read_bytes()


def test_the_entry_point_gets_the_floor_that_the_audit_found(tmp_path, world):
    world.needs = frozenset({"lse"})
    built = a_build(tmp_path, a_wheel(tmp_path / "1"))
    with reader.open_image(built.archive.path) as image:
        manifest = image.manifest("arm64")
        with image.content(manifest.layers[3]) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            files = {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}
    facts = json.loads(files["usr/local/share/armllm/image.json"])
    assert facts["floor"] == {"features": ["atomics"], "lowest_core": "armv8.1-a or newer"}
    assert facts["kernels"] == ["neon"]
    config = manifest.config["config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"][:2] == ["/usr/bin/tini", "--"], "emulators know no subreaper"
    assert config["Labels"]["armllm.floor"] == "atomics"
    assert manifest.config["created"] == "2023-11-14T22:13:20Z"
    bill = json.loads(files["usr/local/share/armllm/sbom.cdx.json"])
    assert [component["name"] for component in bill["components"]] == ["libc6"]
    assert files["usr/local/bin/armllm"].startswith(b"#!/usr/bin/python3.11\n")
    pyc = files["usr/local/lib/python3.11/dist-packages/armllm/__pycache__/__init__.cpython-311.pyc"]
    assert b"/usr/local/lib/python3.11/dist-packages/armllm/__init__.py" in pyc, "the path in the image"
    assert str(tmp_path).encode() not in pyc


@pytest.mark.parametrize(
    ("platform", "reason"),
    [
        ("manylinux_2_39_aarch64", r"needs glibc 2\.39, and the image has 2\.36"),
        ("musllinux_1_2_aarch64", "is for musl"),
    ],
)
def test_a_wheel_for_another_c_library_than_the_images_is_refused(tmp_path, world, platform, reason):
    name = NAME.replace("manylinux_2_28_aarch64", platform)
    libc = "musl" if "musl" in platform else "gnu"
    files = {"thing/_core.cpython-311-aarch64-linux-gnu.so": None}
    files[f"thing/_core.cpython-311-aarch64-linux-{libc}.so"] = wheels.elf()
    wheel = a_wheel(tmp_path / "1", name=name, **files)
    with pytest.raises(UsageError, match=reason):
        a_build(tmp_path, wheel)
    assert not (tmp_path / "x.tar").exists()


def test_a_wheel_may_need_all_of_the_images_c_library(tmp_path, world):
    tags = "manylinux_2_36_aarch64"  # as this machine's own compiler makes them
    a_build(tmp_path, a_wheel(tmp_path / "1", name=NAME.replace("manylinux_2_28_aarch64", tags)))


def test_uv_compares_pins_with_the_oldest_c_library_and_wheels_in_files_with_none(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(packages.process, "run", lambda command, **_: asked.append(command))
    options = {"python": "3.11", "architecture": "arm64", "index": None, "log": tmp_path / "log"}
    packages.install(["numpy==2"], tmp_path, **options)
    packages.install([tmp_path / NAME], tmp_path, **options)
    packages.install(["openvino==2026.4.1"], tmp_path, with_openvino=True, **options)
    platforms = [command[command.index("--python-platform") + 1] for command in asked]
    assert platforms == ["aarch64-manylinux_2_28", "aarch64-manylinux_2_40", "aarch64-manylinux_2_35"]


def test_openvino_is_asked_for_by_the_wheels_extra_and_labeled(tmp_path, world, monkeypatch):
    """It would catch an image that was asked to have OpenVINO, and has none, or does not say so."""
    asked = []
    lines = "torch==2.10.0 --hash=sha256:a\nopenvino==2026.4.1 --hash=sha256:b\n"
    monkeypatch.setattr(packages, "_uv", lambda command, **_: asked.append(command) or lines)
    wheel = a_wheel(tmp_path / "1")
    monkeypatch.setattr(packages, "resolve", RESOLVE)
    labels = []
    for chosen in (True, False):
        built = a_build(tmp_path, wheel, f"{chosen}.tar", with_openvino=chosen)
        labels.append(built.platforms["arm64"].image.annotations.get("armllm.openvino"))
        wanted = tmp_path / f"work-{chosen}/wanted.in"
        assert ("armllm[serve,openvino] @" in wanted.read_text()) is chosen
    assert labels == ["2026.4.1", None]
    machines = [command[command.index("--python-platform") + 1] for command in asked]
    assert machines == ["aarch64-manylinux_2_35", "aarch64-manylinux_2_28"]


def test_an_older_c_library_than_openvinos_and_a_wheel_without_the_extra_are_refused(tmp_path, world):
    settings = plan.ImageSettings(
        wheels=[a_wheel(tmp_path / "1")], output=tmp_path / "x.tar", with_openvino=True
    )
    made = plan.plan_image(tmp_path, settings)
    maker = build._Maker(
        made, "arm64", made.wheels["arm64"], tmp_path, mirror=None, step=build._silent, note=print
    )
    maker._check_c_library("2.36")
    with pytest.raises(UsageError, match=r"--with-openvino needs glibc 2\.35, and the image has 2\.31"):
        maker._check_c_library("2.31")
    with pytest.raises(BuildError, match="openvino is not among the packages"):
        packages.Pins(torch="torch==2.10.0", others=("numpy==2",)).version("openvino")


def test_an_index_that_does_not_answer_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    wheel = wheels.write(tmp_path, NAME, metadata="Provides-Extra: serve\nRequires-Dist: torch\n")
    with pytest.raises(MissingError, match=r"failed: no answer from 127\.0\.0\.1:9: Connection refused"):
        packages.resolve(
            wheel, python="3.11", architecture="arm64",
            index="http://127.0.0.1:9/simple", work=tmp_path, log=tmp_path / "log",
        )  # fmt: skip


def test_a_wheel_that_its_audit_refuses_leaves_no_archive(tmp_path, world):
    world.ok = False
    with pytest.raises(CheckFailed, match="a broken RECORD"):
        a_build(tmp_path, a_wheel(tmp_path / "1"))
    assert not list(tmp_path.glob("*.tar*"))
    assert not list(tmp_path.glob(".*"))


def test_an_interrupted_build_leaves_neither_an_archive_nor_a_layer(tmp_path, world, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(packages, "install", interrupt)
    with pytest.raises(KeyboardInterrupt):
        a_build(tmp_path, a_wheel(tmp_path / "1"))
    assert not (tmp_path / "x.tar").exists()
    kept = [path.name for path in (tmp_path / "cache/layers").iterdir() if path.is_dir()]
    assert len(kept) == 1, "the root, which was whole"


def test_a_base_gives_the_lowest_layers_and_gets_what_it_lacks(tmp_path, world):
    archive = small.write(
        tmp_path, BASE, {"app": "1"}, path="base.tar", Env=["A=b", "PATH=/opt/bin:/usr/bin"]
    )
    built = a_build(tmp_path, a_wheel(tmp_path / "1"), base=str(archive))
    image = built.platforms["arm64"].image
    assert len(image.layers) == 6, "two of the base, what it lacks, torch, dependencies, engine"
    with reader.open_image(archive) as opened:
        manifest = opened.manifest("arm64")
        assert layers_of(built)[:2] == [layer.digest for layer in manifest.layers]
    assert image.layers[2].comment.endswith("tini, libtcmalloc-minimal4")
    assert image.annotations["org.opencontainers.image.base.digest"] == manifest.digest
    assert image.annotations["org.opencontainers.image.base.name"] == "localhost/small:1", "not our path"
    environment = image.config["config"]["Env"]
    assert "A=b" in environment
    assert "PATH=/opt/bin:/usr/bin" in environment


def test_a_bases_own_version_of_a_package_is_hidden_below_ours(tmp_path, world):
    site = "usr/local/lib/python3.11/dist-packages"
    numpy = {
        f"{site}/numpy/__init__.py": "old",
        f"{site}/numpy/gone.py": "old",
        f"{site}/numpy-1.dist-info/METADATA": "Name: numpy",
        f"{site}/numpy-1.dist-info/RECORD": "numpy/__init__.py,,\n../../bin/f2py,,\n"
        + "numpy/gone.py,,\n" * 2,
    }
    mine = {f"{site}/mine-1.dist-info/METADATA": "Name: mine", f"{site}/mine-1.dist-info/RECORD": ""}
    archive = small.write(tmp_path, {**BASE, **numpy, **mine, "usr/local/lib/bin/f2py": ""}, path="base.tar")
    built = a_build(tmp_path, a_wheel(tmp_path / "1"), base=str(archive))
    assert built.platforms["arm64"].image.layers[1].comment == "base: without its own numpy"
    with reader.open_image(built.archive.path) as image:
        unpack.into_folder(image, image.manifest("arm64"), tmp_path / "tree")
    top = tmp_path / "tree" / site
    there = {path.relative_to(top).as_posix() for path in top.rglob("*.*")}
    assert not {"numpy/gone.py", "numpy-1.dist-info"} & there
    assert {"numpy/__init__.py", "mine-1.dist-info"} <= there


def test_a_layer_is_on_the_disk_before_it_is_in_the_cache(tmp_path, world, monkeypatch):
    """Else its folder may be there after a power cut, with empty files."""
    synchronized = {}

    def record(descriptor):
        state = os.fstat(descriptor)
        synchronized[state.st_ino] = Path(f"/proc/self/fd/{descriptor}").readlink(), state.st_size

    monkeypatch.setattr(os, "fsync", record)
    a_build(tmp_path, a_wheel(tmp_path / "1"))
    kept = [
        path
        for path in (tmp_path / "cache/layers").glob("*/*")
        if path.name in ("layer.json", "layer.tar.gz")
    ]
    assert kept
    for path in kept:
        place, size = synchronized[path.stat().st_ino]
        assert (place == path, size) == (False, path.stat().st_size)


@pytest.mark.parametrize("damage", ["a flipped bit", "a short file", "no file", "no facts"])
def test_a_kept_layer_that_is_damaged_is_made_anew(tmp_path, world, damage):
    wheel = a_wheel(tmp_path / "1")
    content = a_build(tmp_path, wheel).archive.path.read_bytes()
    for blob in (tmp_path / "cache/layers").glob("*/layer.tar.gz"):
        data = bytearray(blob.read_bytes())
        data[len(data) // 2] ^= 1
        if damage == "no facts":
            blob.with_name("layer.json").write_text("{}")
        elif damage == "no file":
            blob.unlink()
        else:
            blob.write_bytes(data if damage == "a flipped bit" else data[:-9])
    assert a_build(tmp_path, wheel, name="again.tar").archive.path.read_bytes() == content
