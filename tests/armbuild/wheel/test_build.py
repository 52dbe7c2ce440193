"""Whole builds of small projects, one per back end; the wheels are imported under emulation."""

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from tests.armbuild import cpp_runtime, wheels
from tests.armbuild.plans import planned

from armbuild.artifact import wheelfile
from armbuild.audit import audit_path
from armbuild.errors import BuildError, MissingError
from armbuild.host import cache, pythons
from armbuild.target import arm64_root, qemu, target_packages
from armbuild.wheel import build, repair
from armbuild.wheel.lanes import cross, local

PROJECTS = Path(__file__).parents[1] / "projects"


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory):
    """One cache for the module."""
    folder = tmp_path_factory.mktemp("cache")
    cpp_runtime.copy(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARMBUILD_CACHE_DIR", str(folder))
        yield


def make(project, work, **settings):
    plan = planned(project, lane="cross", output=work, **settings)
    built = build.build_wheel(plan, plan.pythons[0], work)
    return repair.repair_wheel(built, work).path


def under_emulation(wheel, code, work):
    python = wheelfile.read(wheel).python or "3.11"
    root = arm64_root.make(python)
    target_packages.install([wheel], python, work / "site", log=work / "log", dependencies=False)
    return subprocess.run(
        [
            qemu.find(("neoverse-n1",)),
            "-L",
            root,
            "-cpu",
            "neoverse-n1",
            arm64_root.interpreter(root, python),
            "-c",
            code,
        ],
        env={"PYTHONPATH": str(work / "site"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("no rare things, going on", "--build-requires thing, or"),
        ('File "/env/nanobind/stubgen.py", line 1760', "a generator of stubs imports"),
    ],
)
def test_a_module_that_is_absent_is_required_unless_it_is_what_was_built(tmp_path, said, hint):
    cause = "ModuleNotFoundError: No module named 'thing'"
    log = f"x.c:1:10: fatal error: 'rare/thing.h' file not found\n{said}\n{cause}\n"
    error = cross.with_hint(BuildError(f"failed: {cause}\n  log: x"), log, tmp_path / "log")
    assert hint in str(error)


def test_the_hint_is_about_the_error_and_not_about_a_check_that_failed_in_vain(tmp_path):
    said = "x.c:1:10: fatal error: 'rare/thing.h' file not found\nno rare things, going on\nerror: {}\n"
    library = "unable to find dynamic system library 'z' using strategy 'paths_first'"
    for cause, hint in (
        (library, "z is not among the target's libraries: --with zlib1g-dev"),
        ("it failed", "the target has no rare/thing.h: --with the Debian package that brings it"),
    ):
        error = cross.with_hint(
            BuildError(f"failed: {cause}\n  log: x"), said.format(cause), tmp_path / "log"
        )
        assert str(error) == f"failed: {cause}\n  {hint} (log: {tmp_path / 'log'})"


@pytest.mark.parametrize(
    ("packages", "advice"),
    [
        (("libproj-dev",), "--with NAME/bookworm"),
        (("libproj-dev/bookworm",), "an older version of the project"),
    ],
)
def test_a_newer_library_is_proposed_only_where_there_is_one(tmp_path, packages, advice):
    said = "failed: ERROR: Minimum supported PROJ version is 9.4.0, installed version is 9.1.1"
    error = cross.with_hint(BuildError(f"{said}\n  log: x"), said, tmp_path / "log", "pyproj", packages)
    assert advice in str(error)


def test_a_back_end_that_leaves_no_wheel_has_failed(tmp_path):
    path = tmp_path / "thing-1-py3-none-any.whl"
    for content in (None, b"no zip"):
        if content:
            path.write_bytes(content)
        with pytest.raises(BuildError, match=r"the project's build left no wheel: .*\n  log: x"):
            build.check(path, Path("x"))


def test_an_optional_extension_that_was_left_out_names_the_package_that_it_lacked(tmp_path):
    log = tmp_path / "log"
    log.write_text("ext/_yaml.h:2:10: fatal error: 'yaml.h' file not found\nError compiling module\n")
    core = {"thing/_core.cpython-311-aarch64-linux-gnu.so": None}
    with pytest.raises(
        BuildError, match=r"(?s)no machine code.*the target has no yaml.h: --with libyaml-dev"
    ):
        build.check(wheels.write(tmp_path, files=core), log)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize(
    ("project", "code", "said"),
    [
        ("setuptools", "import fixture_setuptools as f; print(f.answer())", "42"),
        ("meson", "import fixture_meson as f; print(f.long_double_size())", "16"),
        (
            "scikit",
            (
                "import fixture_scikit as f\ntry: f.add(2**31 - 1, 1)\n"
                "except OverflowError as e: print(f.add(2, 3), e)"
            ),
            "5 sum too large",
        ),
        ("hatch", "import fixture_hatch as f; print(f.answer())", "42"),
        ("flit", "import fixture_flit as f; print(f.answer())", "42"),
        ("nanobind", "import fixture_nanobind as f; print(f.join([1, 2]))", "1;2;"),
    ],
)
def test_a_project_of_each_back_end_runs_on_the_target(tmp_path, project, code, said):
    wheel = make(PROJECTS / project, tmp_path)
    assert "manylinux" in wheel.name
    assert wheelfile.mismatches(wheelfile.read(wheel)) == []
    assert under_emulation(wheel, code, tmp_path) == said


def stand_in_for_free_threaded(folder):
    """Debian's 3.15 with headers and build variables of a free-threaded one, which Debian does not have."""
    found = pythons.obtain("3.15")
    source = found.executable.parents[2]
    shutil.copytree(source / "usr", folder / "usr", symlinks=True)
    library = folder / "usr/lib/python3.15"

    def change(path, *changes):
        text = path.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)

    (values,) = library.glob("_sysconfigdata__linux_*.py")
    change(values, ("'Py_GIL_DISABLED': 0", "'Py_GIL_DISABLED': 1"), ("cpython-315-", "cpython-315t-"))
    for name in ("_sysconfigdata_t_linux", "_sysconfigdata_t"):
        link = library / values.name.replace("_sysconfigdata__linux", name)
        link.unlink(missing_ok=True)
        link.symlink_to(values.name)
    config = folder / "usr/include/python3.15/pyconfig.h"
    change(config, ("/* #undef Py_GIL_DISABLED */", "#define Py_GIL_DISABLED 1"))
    for place in ("include", "lib"):
        (folder / "usr" / place / "python3.15t").symlink_to("python3.15")
    free = ("\nimport sys\n", "\nimport sys\nsys.abiflags = 't'\n")
    change(library / "site.py", free, ('"python%d.%d"', '"python%d.%dt"'))
    program = shutil.copy(found.executable, folder / "usr/bin/python3.15t")
    change(program, (str(source), str(folder)), ('"$@"', '-X frozen_modules=off "$@"'))
    return program.parent


@pytest.mark.hours
@pytest.mark.network
@pytest.mark.emulated
@pytest.mark.usefixtures("shared_cache")
def test_a_wheel_for_the_next_python_runs_and_one_for_the_free_threaded_is_compiled_as_such(
    tmp_path, monkeypatch
):
    """A minute, with packages of Debian's development release, which may be broken for some days."""
    project = shutil.copytree(PROJECTS / "setuptools", tmp_path / "project")
    (work := tmp_path / "ordinary").mkdir()
    wheel = make(project, work, python=("3.15",), find=pythons.obtain)
    assert wheel.name.startswith("fixture_setuptools-0.4-cp315-cp315-manylinux")
    assert under_emulation(wheel, "import fixture_setuptools as f; print(f.answer())", work) == "42"

    folder = stand_in_for_free_threaded(tmp_path / "free")
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    (source,) = project.glob("src/core.c")
    source.write_text(source.read_text() + "#ifndef Py_GIL_DISABLED\n#error\n#endif\n")
    (work := tmp_path / "work").mkdir()
    wheel = make(project, work, python=("3.15t",))
    assert wheel.name.startswith("fixture_setuptools-0.4-cp315-cp315t-manylinux")
    assert wheelfile.mismatches(wheelfile.read(wheel)) == []
    assert audit_path(wheel).errors == ()
    names = zipfile.ZipFile(wheel).namelist()
    assert "fixture_setuptools/_core.cpython-315t-aarch64-linux-gnu.so" in names


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.usefixtures("shared_cache")
def test_what_zig_compiles_goes_with_the_build(tmp_path):
    """zig never removes anything: one folder for all builds had 9 GB after a day."""
    project = shutil.copytree(PROJECTS / "setuptools", tmp_path / "project")
    seen = []
    for turn in range(2):
        (work := tmp_path / str(turn)).mkdir()
        make(project, work)
        (source,) = project.glob("src/**/*.c")
        source.write_text(source.read_text() + f"int more_{turn};\n")
        seen.append(sorted((cache.root() / "zig").glob("o/*")))
    assert seen[0] == seen[1]
    assert not list(cache.root().glob(f"builds/*/{local.ZIG_OBJECTS}/*"))


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("project", ["setuptools", "meson"])
def test_folders_may_have_spaces_colons_and_quotes(tmp_path, monkeypatch, project):
    odd = tmp_path / "it's: a folder"
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(odd / "ca che"))
    (odd / "out: put").mkdir(parents=True)
    copied = shutil.copytree(PROJECTS / project, odd / "my 'project")
    assert "manylinux" in make(copied, odd / "out: put").name


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.usefixtures("shared_cache")
def test_a_function_that_nobody_defines_fails_the_build_and_is_named(tmp_path):
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "pyproject.toml").write_text('[build-system]\nrequires = ["setuptools"]\n')
    (project / "setup.py").write_text(
        "from setuptools import Extension, setup\n"
        'setup(name="x", version="1", ext_modules=[Extension("x", ["src/x.c"])])\n'
    )
    (project / "src/x.c").write_text("int nowhere(int);\nint PyInit_x(void) { return nowhere(1); }\n")
    with pytest.raises(BuildError, match="nowhere"):
        make(project, tmp_path)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.usefixtures("shared_cache")
def test_an_object_of_the_build_machine_in_the_wheel_fails_the_build_and_is_named(tmp_path):
    project = tmp_path / "project"
    (project / "thing").mkdir(parents=True)
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\n[project]\nname = "thing"\nversion = "1"\n'
        '[tool.setuptools]\npackages = ["thing"]\n[tool.setuptools.package-data]\nthing = ["*"]\n'
    )
    (project / "thing/__init__.py").touch()
    (project / "thing/helper").write_bytes(Path("/bin/true").read_bytes())
    (project / "setup.py").write_text(
        "from setuptools import Extension, setup\nsetup(ext_modules=[Extension('thing._x', ['x.c'])])\n"
    )
    (project / "x.c").write_text("int PyInit__x(void) { return 0; }\n")
    with pytest.raises(BuildError, match="thing/helper is x86_64 machine code"):
        make(project, tmp_path)
    assert not list(cache.root().glob("work/*.whl"))


@pytest.fixture
def compressing(tmp_path):
    """A C extension that calls lz4."""
    project = tmp_path / "compressing"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\n[project]\nname = "compressing"\nversion = "1"\n'
    )
    (project / "setup.py").write_text(
        "from setuptools import Extension, setup\n"
        "lz4 = {'libraries': ['lz4'], 'include_dirs': ['/usr/include']}\n"
        "setup(ext_modules=[Extension('compressing', ['c.c'], **lz4)])\n"
    )
    (project / "c.c").write_text(
        "#include <Python.h>\n#include <lz4.h>\n"
        "static PyObject* version(PyObject* m, PyObject* a)\n"
        "{ return PyUnicode_FromString(LZ4_versionString()); }\n"
        'static PyMethodDef methods[] = {{"version", version, METH_NOARGS, ""}, {0}};\n'
        'static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "compressing", "", -1, methods};\n'
        "PyMODINIT_FUNC PyInit_compressing(void) { return PyModule_Create(&module); }\n"
    )
    return project


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
@pytest.mark.usefixtures("shared_cache")
def test_a_library_is_named_when_it_is_absent_and_bundled_when_its_package_is_given(tmp_path, compressing):
    plan = planned(compressing, lane="cross", output=tmp_path)
    advice = r"lz4\.h' file not found\n  the target has no lz4\.h: --with liblz4-dev"
    with pytest.raises(BuildError, match=advice):
        build.build_wheel(plan, plan.pythons[0], tmp_path)
    work = tmp_path / "work"
    work.mkdir()
    plan = planned(compressing, lane="cross", output=tmp_path, packages=("liblz4-dev",))
    wheel = repair.repair_wheel(build.build_wheel(plan, plan.pythons[0], work), work).path
    with zipfile.ZipFile(wheel) as archive:
        assert any(name.startswith("compressing.libs/liblz4") for name in archive.namelist())
    assert under_emulation(wheel, "import compressing as c; print(c.version()[:2])", work) == "1."


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
@pytest.mark.usefixtures("shared_cache")
def test_gcc_builds_against_an_old_glibc_and_the_targets_libstdcxx(tmp_path):
    plan = planned(PROJECTS / "scikit", lane="cross", output=tmp_path, toolchain="gcc")
    wheel = repair.repair_wheel(build.build_wheel(plan, plan.pythons[0], tmp_path), tmp_path).path
    glibc = int(wheel.name.rpartition("manylinux_2_")[2].split("_")[0])
    assert glibc <= 31
    code = (
        "import fixture_scikit as f\ntry: f.add(2**31 - 1, 1)\n"
        "except OverflowError as e: print(f.add(2, 3), e)"
    )
    assert under_emulation(wheel, code, tmp_path) == "5 sum too large"


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.usefixtures("shared_cache")
def test_without_isolation_nothing_is_installed_and_what_is_there_builds_for_the_target(tmp_path):
    before = sorted(cache.root().glob("environments/*"))
    plan = planned(PROJECTS / "setuptools", lane="cross", output=tmp_path, isolation=False)
    built = build.build_wheel(plan, plan.pythons[0], tmp_path)
    assert wheelfile.mismatches(wheelfile.read(built.path)) == []
    assert "pytest" in built.tools, "the environment is the one of these tests"
    assert sorted(cache.root().glob("environments/*")) == before
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools", "not-there-at-all"]\n[project]\nname = "x"\n'
    )
    plan = planned(project, lane="cross", output=tmp_path, isolation=False)
    with pytest.raises(MissingError, match=r"--no-isolation: .* lacks not-there-at-all: install it"):
        build.build_wheel(plan, plan.pythons[0], project)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.usefixtures("shared_cache")
def test_a_lock_is_written_once_obeyed_and_its_hashes_checked(tmp_path):
    def built(name):
        (tmp_path / name).mkdir()
        plan = planned(PROJECTS / "setuptools", lane="cross", output=tmp_path, lock=tmp_path / "build.lock")
        return build.build_wheel(plan, plan.pythons[0], tmp_path / name)

    assert "setuptools" in built("one").tools
    lock = tmp_path / "build.lock"
    text = lock.read_text()
    assert "--hash=sha256:" in text
    assert str(tmp_path) not in text
    digest = text.partition("--hash=sha256:")[2][:64]
    lock.write_text(re.sub(r"--hash=sha256:[0-9a-f]{64}", f"--hash=sha256:{digest[::-1]}", text))
    with pytest.raises(BuildError, match=r"build requirements of build\.lock"):
        built("two")
