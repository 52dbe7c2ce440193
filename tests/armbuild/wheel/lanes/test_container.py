"""The container lane: what it says where no container can run, and a wheel built in a real one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.armbuild import plans

from armbuild.artifact import wheelfile
from armbuild.errors import BuildError, MissingError, UsageError
from armbuild.wheel.build import Steps
from armbuild.wheel.lanes import container

PROJECTS = Path(__file__).parents[2] / "projects"
HANDLER = (
    "enabled\ninterpreter /usr/bin/qemu-aarch64-static\nflags: {flags}\noffset 0\n"
    "magic 7f454c460201010000000000000000000200b700\nmask ffffffffffffff00fffffffffffffffffeffffff\n"
)
ENGINE = """\
#!/bin/sh
case "$1 $2" in
  info*) {info} ;;
  "image inspect") {inspect} ;;
  version*) echo '{{"Client": {{"Version": "5.0", "ApiVersion": "5.0"}}}}' ;;
  create*) {create} ;;
  start*) {start} ;;
esac
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """An x86-64 machine with an engine whose answers a test chooses."""
    programs, binfmt = tmp_path / "bin", tmp_path / "binfmt"
    programs.mkdir()
    binfmt.mkdir()
    (binfmt / "qemu-aarch64").write_text(HANDLER.format(flags="PF"))
    monkeypatch.setattr(container, "BINFMT", binfmt)
    monkeypatch.setattr(container.platform, "machine", lambda: "x86_64")
    for name in ("DOCKER_HOST", "CONTAINER_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def make(name="podman", **answers):
        facts = {"info": "true", "inspect": "echo linux/arm64", "create": "true", "start": "exit 1"}
        (programs / name).write_text(ENGINE.format(**{**facts, **answers}))
        (programs / name).chmod(0o755)

    make()
    make.binfmt = binfmt
    make.programs = programs
    return make


def planned(folder, out, **options):
    facts = {"engine": "podman", "image": "localhost/image", "python": ("3.13",), "smoke": False}
    return plans.planned(folder, **{"lane": "container", "output": out, **facts, **options})


def build(plan, work):
    folder = work / f"work-{len(list(work.glob('work-*')))}"
    folder.mkdir()
    return container.build(plan, plan.pythons[0], folder, mirror=None, watcher=Steps())


def test_a_machine_without_an_engine_learns_how_to_get_one(machine, tmp_path, monkeypatch):
    made = planned(PROJECTS / "setuptools", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        MissingError, match="neither docker nor podman is installed: `apt-get install podman`"
    ):
        build(made, tmp_path)


def test_an_engine_that_does_not_answer_is_named_with_its_reason(machine, tmp_path):
    machine(info="echo 'Cannot connect to the daemon' >&2; exit 1")
    with pytest.raises(MissingError, match=r"podman info`: Cannot connect to the daemon\): start it"):
        build(planned(PROJECTS / "setuptools", tmp_path), tmp_path)


@pytest.mark.parametrize("text", ["", HANDLER.format(flags="P"), HANDLER.format(flags="PF")[2:]])
def test_without_a_handler_for_aarch64_that_containers_see_nothing_is_started(machine, tmp_path, text):
    machine(create="echo started >&2; exit 1")
    (machine.binfmt / "qemu-aarch64").write_text(text)
    with pytest.raises(
        MissingError, match="runs no AArch64 programs in containers: `apt-get install qemu-user"
    ):
        build(planned(PROJECTS / "setuptools", tmp_path), tmp_path)


def test_an_engine_elsewhere_has_emulation_of_its_own(machine, tmp_path, monkeypatch):
    (machine.binfmt / "qemu-aarch64").unlink()
    monkeypatch.setenv("DOCKER_HOST", "ssh://builder")
    container.check(planned(PROJECTS / "setuptools", tmp_path).container, asked=None)


def test_this_machines_clang_comes_as_a_static_program_and_only_where_the_engine_sees_it(
    machine, tmp_path, monkeypatch
):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    made = planned(PROJECTS / "setuptools", tmp_path, toolchain="clang")
    assert "--env=CC=/opt/armbuild/bin/cc" in made.container.arguments
    with pytest.raises(BuildError):  # the engine of this test starts nothing
        build(made, tmp_path)
    mounts = dict(
        word.removeprefix("--volume=").removesuffix(":ro").split(":")[::-1]
        for word in made.container.arguments
        if word.endswith(":ro")
    )
    assert b"INTERP" not in subprocess.check_output(["readelf", "-lW", mounts["/opt/armbuild/zig"] + "/zig"])
    for tool, mode in (("cc", "gcc"), ("c++", "g++")):
        script = Path(mounts["/opt/armbuild/bin"], tool)
        assert os.access(script, os.X_OK)
        assert f"/opt/armbuild/zig/zig clang --driver-mode={mode}" in script.read_text()
    monkeypatch.setenv("DOCKER_HOST", "ssh://builder")
    with pytest.raises(MissingError, match="--toolchain clang: the engine is on another machine"):
        build(made, tmp_path)
    with pytest.raises(UsageError, match="--toolchain gcc: the container lane has the image's compiler"):
        planned(PROJECTS / "setuptools", tmp_path, toolchain="gcc")


def test_an_image_for_another_machine_is_refused(machine, tmp_path):
    machine(inspect="echo linux/amd64")
    with pytest.raises(MissingError, match="localhost/image: it is for linux/amd64, not linux/arm64"):
        build(planned(PROJECTS / "setuptools", tmp_path), tmp_path)


def test_for_a_local_image_that_is_not_there_the_error_says_how_to_make_it(machine, tmp_path):
    machine(inspect="exit 1")
    with pytest.raises(MissingError, match="`armbuild manylinux-image --load podman` makes one"):
        build(planned(PROJECTS / "setuptools", tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "Error: initializing source docker://quay.io/a/b:1: pinging container registry: no such host",
            "cannot be fetched: pinging container registry: no such host",
        ),
        (
            "docker: Error response from daemon: Get https://quay.io/v2/: net/http: TLS handshake timeout.",
            "cannot be fetched: .*TLS handshake timeout",
        ),
        ("Error: unknown flag: --pull", "cibuildwheel failed"),
    ],
)
def test_a_registry_out_of_reach_is_one_line_with_its_reason(machine, tmp_path, said, reason):
    machine(inspect="exit 1", create=f"echo '{said}' >&2; exit 125")
    with pytest.raises((MissingError, BuildError), match=reason):
        build(planned(PROJECTS / "setuptools", tmp_path, image="quay.io/a/b:1"), tmp_path)


def test_an_image_whose_programs_do_not_run_names_the_remedy(machine, tmp_path):
    machine(start="echo 'exec /bin/bash: exec format error' >&2; exit 1")
    with pytest.raises(MissingError, match="its programs do not run here: `apt-get install qemu-user-static"):
        build(planned(PROJECTS / "setuptools", tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            'runc create failed: exec: "/bin/bash": stat /bin/bash: no such file or directory: OCI',
            "localhost/image has no /bin/bash, which cibuildwheel runs: choose another --image",
        ),
        ("error setting rlimits for ready process: error setting rlimit type 7: x", "see default_ulimits"),
    ],
)
def test_a_container_that_cannot_start_is_named_with_what_helps(machine, tmp_path, said, told):
    machine(start=f"echo '{said}' >&2; exit 127")
    with pytest.raises(MissingError) as caught:
        build(planned(PROJECTS / "setuptools", tmp_path), tmp_path)
    assert told in str(caught.value)


def test_an_image_without_the_python_names_its_place(machine, tmp_path):
    machine(start="exec sh")
    with pytest.raises(MissingError, match=r"has no Python 3\.13 \(/opt/python/cp313-cp313\)"):
        build(planned(PROJECTS / "setuptools", tmp_path), tmp_path)


def test_a_library_that_the_image_lacks_is_named_with_its_package(machine, tmp_path):
    machine(start='echo "x.c:1:10: fatal error: zlib.h: No such file or directory" >&2; exit 1')
    with pytest.raises(BuildError, match=r"no zlib\.h: .*`armbuild manylinux-image --with zlib1g-dev`"):
        build(planned(PROJECTS / "setuptools", tmp_path), tmp_path)


def test_a_library_of_the_image_that_is_too_old_is_named_with_what_brings_a_newer_one(machine, tmp_path):
    machine(start='echo "  Exception: thing requires HDF5 >= 1.10.7 (got 1.10.6)" >&2; exit 1')
    with pytest.raises(BuildError, match=r"library is too old: `armbuild manylinux-image --suite`"):
        build(planned(PROJECTS / "setuptools", tmp_path), tmp_path)


TESTED = """\
Building wheel...
src/a.c:1:1: error: never mind, a configure check
                    done 1.00s
Testing wheel...
{said}
                    error 2.00s
"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            f"{TESTED.format(said='FAILED test_it.py::test_one - assert 1 == 2')}",
            "test_it.py::test_one - assert",
        ),
        (f"{TESTED.format(said='E   ImportError: libhdf5.so.200: cannot open')}", "ImportError: libhdf5"),
        (f"{TESTED.format(said='ERROR: No matching distribution found for pytest-x')}", "for pytest-x"),
        (
            f"KeyError: 'HOME'\n{TESTED.format(said='x.h: No such file').replace('error:', '')}",
            "KeyError: 'HOME'",
        ),
        (TESTED.format(said="FAILED it\n\nCopying wheels back to host..."), None),
    ],
)
def test_failing_tests_of_the_project_are_no_failing_build(machine, tmp_path, monkeypatch, said, reason):
    def fails(*_command, log, **_rest):
        log.write_text(said)
        raise BuildError(f"cibuildwheel failed: src/a.c:1:1: error: never mind\n  log: {log}")

    monkeypatch.setattr(container.process, "run", fails)
    with pytest.raises(BuildError) as found:
        build(planned(PROJECTS / "setuptools", tmp_path), tmp_path)
    text = str(found.value)
    if reason is None:
        assert "test-command" not in text
    else:
        assert "the wheel was built, and the project's own test-command failed: " in text
        assert reason in text.splitlines()[0]
        assert "CIBW_TEST_SKIP='*' leaves it out" in text
        assert text.count("\n") == 1


def test_a_python_that_the_projects_configuration_leaves_out_is_a_wrong_choice(machine, tmp_path):
    text = '[project]\nname = "x"\nversion = "1"\n[tool.cibuildwheel]\nskip = "cp313-*"\n'
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=r"\[tool.cibuildwheel\] leaves Python 3\.13 out"):
        build(planned(tmp_path, tmp_path / "out"), tmp_path)


def test_an_interrupted_build_removes_its_own_container_and_no_other(machine, tmp_path, monkeypatch):
    machine(start="true")
    (machine.programs / "podman").write_text(
        '#!/bin/sh\n[ "$1" = image ] && echo linux/arm64\n[ "$1" = ps ] && echo one\n'
        f'echo "$@" >>{tmp_path}/asked\n'
    )
    seen = {}

    def interrupted(_command, *, env, **_rest):
        seen.update(env)
        raise KeyboardInterrupt

    monkeypatch.setattr(container.process, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(planned(PROJECTS / "setuptools", tmp_path), tmp_path)
    *_, listed, removed = (tmp_path / "asked").read_text().splitlines()
    label = listed.removeprefix("ps -aq --filter label=")
    assert f"--label={label}" in seen["CIBW_CONTAINER_ENGINE"]
    assert removed == "rm --force --volumes one"


def test_build_requirements_reach_the_bill_of_materials_with_the_versions_that_were_installed():
    said = (
        "* Installing packages in isolated environment:\n  - pybind11>=3.0\n  - Cython==0.1\n"
        "* Installed build dependency versions:\n  - pybind11==3.1.0\n  - Scikit_Build.core==1.1\n"
        "* Building wheel...\n"
    )
    assert container.requirements(said) == {"pybind11": "3.1.0", "scikit-build-core": "1.1"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """A real engine that runs AArch64 programs, and the variables that it needs."""
    if not container.registered():
        pytest.skip(
            "no handler for AArch64 programs in binfmt_misc, which only root registers: ci/setup.sh does"
        )
    found, why = None, "neither docker nor podman is installed"
    folder = tmp_path_factory.mktemp("engine")
    # limits and cgroups as they are: a container that runs this suite may not change them
    (folder / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]\nnetns = "host"\n'
        '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        + ('runtime = "runc"\n' if shutil.which("runc") else "")
    )
    environment = {**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")}
    for name in filter(shutil.which, ("podman", "docker")):
        said = subprocess.run([name, "info"], check=False, capture_output=True, text=True, env=environment)
        if said.returncode == 0:
            found = name
            break
        why = f"{name}: {said.stderr.strip().splitlines()[-1]}"
    if found is None:
        pytest.fail(f"no container engine answers here: {why}")
    return found, environment


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_a_project_is_built_in_an_image_of_debian_packages_with_its_own_library(engine, tmp_path):
    name, environment = engine
    armbuild = [sys.executable, "-m", "armbuild"]
    tag = "localhost/armbuild-test-manylinux:1"
    made = subprocess.run(
        [
            *armbuild,
            "manylinux-image",
            "--python=3.11",
            f"--tag={tag}",
            f"--load={name}",
            "--output=image.tar",
        ],
        cwd=tmp_path,
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    try:
        project = tmp_path / "project"
        shutil.copytree(PROJECTS / "setuptools", project)
        # the project's own configuration makes a library in the container, and tests its extension there
        compile_own = "echo 'int own(void) { return 7; }' > own.c && cc -shared -fPIC -Wl,-soname,libown.so.3"
        described = project / "pyproject.toml"
        described.write_text(
            described.read_text() + "\n[tool.cibuildwheel]\nrepair-wheel-command = 'false'\n"
            f'before-all = "mkdir /opt/own && cd /opt/own && {compile_own} -o libown.so own.c '
            '&& ln -s libown.so libown.so.3"\n'
            "test-command = 'python -c \"import fixture_setuptools\"'\n"
            "[tool.cibuildwheel.environment]\nLD_LIBRARY_PATH = '/opt/own'\n"
            "LDFLAGS = '-L/opt/own -Wl,--no-as-needed -lown'\n"
        )
        done = subprocess.run(
            [*armbuild, "wheel", project, "--lane=container", f"--engine={name}", f"--image={tag}",
             "--json", "--python=3.11", "--import=fixture_setuptools", "--cpu=neoverse-n1",
             f"--output={tmp_path / 'dist'}"],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        own = subprocess.run(
            [*armbuild, "wheel", PROJECTS / "setuptools", "--lane=container", f"--engine={name}",
             f"--image={tag}", "--json", "--python=3.11", "--import=fixture_setuptools", "--cpu=neoverse-n1",
             f"--output={tmp_path / 'clang'}", "--toolchain=clang"],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )  # fmt: skip
        assert own.returncode == 0, own.stderr
    finally:
        subprocess.run([name, "rmi", "--force", tag], check=False, env=environment, capture_output=True)
    (result,) = json.loads(done.stdout)["wheels"]
    assert (result["lane"], result["verdict"]) == ("container", "proven")
    assert "10.2" in result["compiler"]
    (compiled_here,) = json.loads(own.stdout)["wheels"]
    assert compiled_here["compiler"].startswith("clang version")
    assert compiled_here["verdict"] == "proven"
    used = json.loads(Path(result["provenance"]).read_text())["predicate"]["buildDefinition"]
    assert "setuptools" in {item["name"] for item in used["resolvedDependencies"]}
    wheel = wheelfile.read(Path(result["path"]))
    assert "manylinux" in wheel.path.name
    assert wheelfile.mismatches(wheel) == []
    listed = subprocess.run(["unzip", "-Z1", wheel.path], check=True, capture_output=True, text=True).stdout
    assert "fixture_setuptools.libs/libown-" in listed
