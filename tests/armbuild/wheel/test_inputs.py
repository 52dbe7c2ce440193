"""Variables, requirements, patches and fetched sources: what is refused, and what they change."""

import difflib
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tests.armbuild.cross_builds import built
from tests.armbuild.plans import planned

from armbuild.errors import UsageError
from armbuild.host import pythons
from armbuild.wheel import inputs, source
from armbuild.wheel.lanes import local
from armbuild.wheel.lanes.setup import Setup

PROJECT = '[build-system]\nrequires = ["setuptools"]\n[project]\nname = "thing"\nversion = "{}"\n'
FETCH = "include(FetchContent)\nFetchContent_Declare(\n  Answer\n  URL https://nowhere.invalid/a.tar)\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project whose CMake file fetches something."""
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    place = tmp_path / "my project"
    place.mkdir()
    (place / "pyproject.toml").write_text(PROJECT.format(1))
    (place / "CMakeLists.txt").write_text(FETCH)
    return place


@pytest.fixture
def plan(folder, tmp_path):
    return lambda **settings: planned(folder, lane="cross", compile_cache="none", output=tmp_path, **settings)


def diff(name, old, new):
    """A patch of a file with one line."""
    return f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-{old}\n+{new}\n"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"env": ("A",)}, "--env A: expected NAME=VALUE"),
        ({"env": ("1A=x",)}, "--env 1A=x: expected NAME=VALUE"),
        ({"env": ("PATH=/x",)}, "--env PATH: armbuild decides it"),
        ({"env": ("A=1", "A=2")}, "--env A stands twice"),
        ({"env": ("ROOT={acl}/lib",)}, r"--env ROOT: no --source is called acl \(there: none\)"),
        ({"build_requires": ("torch=2",)}, "--build-requires: "),
        ({"patch": ("nowhere.patch",)}, "--patch nowhere.patch: no such file"),
        ({"source": ("answer",)}, "--source answer: expected NAME=DIR or NAME=ARCHIVE"),
        ({"source": ("a b=x",)}, "expected NAME=DIR"),
        ({"source": ("answer=nowhere",)}, "--source answer=.*nowhere: no such folder or file"),
        ({"source": ("answer=/etc/passwd",)}, "neither a folder nor an archive"),
        ({"source": ("answer=/usr/lib/os-release", "x=y")}, "neither a folder nor an archive"),
    ],
)
def test_what_a_build_cannot_take_is_refused_in_a_line(plan, settings, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        plan(**settings)
    assert "\n" not in str(caught.value)


def test_a_source_that_no_cmake_file_names_is_refused_with_those_that_are_declared(plan, tmp_path):
    """Else a misspelled one would be accepted, and the build would go on to download."""
    (tmp_path / "sources").mkdir()
    with pytest.raises(
        UsageError, match="--source anser: no CMake file of thing names it: they declare Answer"
    ):
        plan(source=(f"anser={tmp_path / 'sources'}",))
    with pytest.raises(UsageError, match="--source ANSWER stands twice"):
        plan(source=(f"answer={tmp_path / 'sources'}", f"ANSWER={tmp_path / 'sources'}"))
    (found,) = plan(source=(f"answer={tmp_path / 'sources'}",)).sources
    assert found.name == "answer"


def test_a_variable_names_the_folder_of_a_source_and_the_provenance_not_this_machines(plan, tmp_path):
    """A source that only a variable names need not stand in a CMake file."""
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/a.h").write_text("")
    asked = {"source": (f"acl={tmp_path / 'sources'}",), "env": ("ACL_ROOT_DIR={ACL}/x:{acl}", "A=${acl}")}
    found = plan(**asked)
    assert dict(found.variables) == {"ACL_ROOT_DIR": "{ACL}/x:{acl}", "A": "${acl}"}
    seen = inputs.environment(found, {}, tmp_path / "build")
    place = tmp_path / "build/sources/acl/source"
    assert (seen["ACL_ROOT_DIR"], seen["A"]) == (f"{place}/x:{place}", "${acl}")
    assert (place / "a.h").is_file()
    with pytest.raises(UsageError, match=r"--env B: no --source is called alc \(there: acl\)"):
        plan(source=asked["source"], env=("B={alc}",))


def test_the_container_lane_names_what_it_cannot_take_and_where_to_say_it(folder, tmp_path):
    for settings, reason in (
        ({"env": ("A=1",)}, r"\[tool.cibuildwheel\] environment"),
        ({"build_requires": ("cython",)}, r"\[build-system\] requires"),
        ({"source": (f"answer={tmp_path}",)}, "use --lane cross"),
    ):
        with pytest.raises(UsageError, match=reason):
            planned(folder, lane="container", output=tmp_path, **settings)


def test_what_changes_the_build_changes_its_folder(plan, tmp_path):
    """Else a changed variable would meet what CMake remembers of the former one."""
    (tmp_path / "sources").mkdir()
    settings = [{}, {"env": ("A=1",)}, {"env": ("A=2",)}, {"build_requires": ("cython",)}]
    settings.append({"source": (f"answer={tmp_path / 'sources'}",)})
    python = pythons.find()
    keys = [plan(**item).key(python) for item in settings]
    assert len(set(keys)) == len(keys)
    assert plan(env=("B=1", "A=1")).key(python) == plan(env=("A=1", "B=1")).key(python)


def test_other_added_sources_are_compiled_anew_at_the_same_paths(plan, tmp_path):
    """A compile cache knows objects by their paths: what did not change is not compiled again."""
    (sources := tmp_path / "answers").mkdir()
    stat, keys = None, set()
    for text, stays in (("1", False), ("1", True), ("2", False)):
        (sources / "a").write_text(text)
        if stat:  # as in archives whose files all have one time
            os.utime(sources / "a", ns=(stat.st_atime_ns, stat.st_mtime_ns))
        stat = (sources / "a").stat()
        made = plan(source=(f"answer={sources}",))
        keys.add(made.key(pythons.find()))
        for name in ("build", "source"):
            (tmp_path / name / "of-before").mkdir(parents=True, exist_ok=True)
        local.forget_other_sources(tmp_path, made.sources)
        assert [(tmp_path / name).exists() for name in ("build", "source")] == [stays, stays]
        copies = inputs.lay_out(made.sources, tmp_path)
        assert (copies["ANSWER"] / "a").read_text() == text
    assert len(keys) == 1


def test_shared_libraries_that_a_build_makes_in_added_sources_can_be_bundled(tmp_path):
    for name in ("a/source/build/libone.so", "b/source/lib/libtwo.so.1", "b/source/include/library.h"):
        (path := tmp_path / inputs.COPIES / name).parent.mkdir(parents=True)
        path.touch()
    found = [str(path.relative_to(tmp_path / inputs.COPIES)) for path in inputs.libraries(tmp_path)]
    assert found == ["a/source/build", "b/source/lib"]


def test_the_callers_flags_are_compiled_anew_when_they_change(tmp_path, monkeypatch):
    setup = Setup(environment={}, compiler="", headers="")
    local.forget_other_tools(tmp_path, setup)
    for value, stays in (("-DA=1", False), ("-DA=1", True), ("-DA=2", False)):
        (tmp_path / "build").mkdir(exist_ok=True)
        monkeypatch.setenv("CMAKE_ARGS", value)
        local.forget_other_tools(tmp_path, setup)
        assert (tmp_path / "build").exists() is stays, value


def test_a_variable_that_the_lane_decides_is_refused_and_flags_are_added_to():
    inputs.check_variables([("CFLAGS", "-O3"), ("A", "1")], {"CFLAGS": "-O3 -g0"}, "native")
    with pytest.raises(UsageError, match="--env CC: the cross lane decides it: /x/cc"):
        inputs.check_variables([("CC", "clang")], {"CC": "/x/cc"}, "cross")


def test_a_patch_changes_a_copy_which_is_what_the_plan_reads(plan, folder, tmp_path):
    fix = tmp_path / "fix.patch"
    fix.write_text(
        '--- a/pyproject.toml\n+++ b/pyproject.toml\n@@ -2,4 +2,4 @@\n requires = ["setuptools"]\n'
        ' [project]\n name = "thing"\n-version = "1"\n+version = "2"\n'
    )
    made = plan(patch=(str(fix),))
    assert (made.project.version, made.project.folder.name) == ("2", folder.name)
    assert made.project.unpatched == folder
    assert 'version = "1"' in (folder / "pyproject.toml").read_text()
    assert made.patches[0].digest == {"sha256": hashlib.sha256(fix.read_bytes()).hexdigest()}
    (folder / "CMakeLists.txt").write_text(f"{FETCH}# changed\n")
    assert plan(patch=(str(fix),)).project.folder != made.project.folder


def test_a_patch_that_applies_in_part_is_refused_and_leaves_nothing(plan, folder, tmp_path):
    (folder / "a").write_text("one\n")
    (folder / "b").write_text("two\n")
    half = tmp_path / "half.patch"
    half.write_text(diff("a", "one", "1") + diff("b", "three", "3"))
    outside = tmp_path / "outside.patch"
    outside.write_text("--- /dev/null\n+++ b/../../escaped\n@@ -0,0 +1 @@\n+x\n")
    (tmp_path / "empty.patch").touch()
    for name, reason in (("half", "b:1|b: patch"), ("outside", "escaped"), ("empty", "No valid patches")):
        with pytest.raises(
            UsageError, match=f"--patch .*{name}.patch: it does not apply to the sources: .*({reason})"
        ):
            plan(patch=(str(tmp_path / f"{name}.patch"),))
    assert not list((tmp_path / "cache/patched").glob("*/*"))
    assert not list(tmp_path.rglob("escaped"))


def test_an_archive_is_known_by_its_hash_and_its_one_folder_is_the_sources(plan, tmp_path):
    (tmp_path / "answer-1").mkdir()
    (tmp_path / "answer-1/CMakeLists.txt").write_text("add_library(answer INTERFACE)\n")
    archive = tmp_path / "answer_1.orig.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(tmp_path / "answer-1", "answer-1")
    (found,) = plan(source=(f"Answer={archive}",)).sources
    assert found.digest == {"sha256": hashlib.sha256(archive.read_bytes()).hexdigest()}
    variables = inputs.for_cmake(inputs.lay_out([found], tmp_path / "build"))
    place = tmp_path / "build/sources/Answer/source"
    assert variables["FETCHCONTENT_SOURCE_DIR_ANSWER"] == str(place)
    assert variables["ARMBUILD_SOURCES"] == f"FETCHCONTENT_SOURCE_DIR_ANSWER={place}"
    assert (place / "CMakeLists.txt").is_file()
    archive.write_bytes(archive.read_bytes()[:60])
    with pytest.raises(UsageError, match="a damaged archive"):
        plan(source=(f"Answer={archive}",))


def test_a_folders_hash_is_that_of_its_names_and_contents(tmp_path):
    """As `go mod` computes it: sha256 of the lines that sha256sum prints, by name."""
    (tmp_path / "b").mkdir()
    for name in ("b/c", "a"):
        (tmp_path / name).write_text(name)
    lines = "".join(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\n" for name in ("a", "b/c"))
    assert source.digest(tmp_path) == hashlib.sha256(lines.encode()).hexdigest()


SCIKIT = {
    "pyproject.toml": (
        '[build-system]\nrequires = ["scikit-build-core"]\nbuild-backend = "scikit_build_core.build"\n'
        '[project]\nname = "fetching"\nversion = "1"\n'
    ),
    "CMakeLists.txt": (
        "cmake_minimum_required(VERSION 3.24)\nproject(fetching C)\n"
        f"{FETCH}FetchContent_MakeAvailable(Answer)\n"
        'if(NOT "$ENV{FLAVOUR}" STREQUAL "sweet")\n  message(FATAL_ERROR "no flavour")\nendif()\n'
        "execute_process(COMMAND cat /proc/cpuinfo OUTPUT_VARIABLE cpu COMMAND_ERROR_IS_FATAL ANY)\n"
        'if(NOT cpu MATCHES " asimd")\n  message(FATAL_ERROR "another CPU: ${cpu}")\nendif()\n'
        "execute_process(COMMAND ldconfig -p OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)\n"
        'if(NOT known MATCHES "libz\\\\.so\\\\.1 .libc6,AArch64." OR known MATCHES "x86-64")\n'
        '  message(FATAL_ERROR "another machine: ${known}")\nendif()\n'
        "find_path(HEADERS answer.h PATHS ${FETCHCONTENT_SOURCE_DIR_ANSWER} REQUIRED NO_DEFAULT_PATH "
        "ONLY_CMAKE_FIND_ROOT_PATH)\n"
        "set(nested $ENV{NESTED_DIR}/build)\n"
        'foreach(step "-B;build" "--build;build")\n'
        "  execute_process(COMMAND ${CMAKE_COMMAND} ${step} WORKING_DIRECTORY $ENV{NESTED_DIR} "
        "COMMAND_ERROR_IS_FATAL ANY)\nendforeach()\n"
        "file(COPY_FILE ${nested}/libnested.a ${CMAKE_BINARY_DIR}/libshim.a)\n"
        "find_library(SHIM shim PATHS ${CMAKE_BINARY_DIR} REQUIRED NO_DEFAULT_PATH)\n"
        "find_library(OTHER other PATHS ${nested} REQUIRED NO_DEFAULT_PATH)\n"
        "find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)\n"
        "python_add_library(fetching MODULE WITH_SOABI module.c)\n"
        "target_link_libraries(fetching PRIVATE answer ${SHIM} ${OTHER})\n"
        'target_compile_definitions(fetching PRIVATE FLAVOUR="$ENV{FLAVOUR}")\n'
        "install(TARGETS fetching DESTINATION .)\n"
    ),
    "module.c": (
        '#include <Python.h>\n#include "answer.h"\nint nested(void), other(void);\n#error "patched away"\n'
        'static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "fetching", FLAVOUR, -1, 0};\n'
        "PyMODINIT_FUNC PyInit_fetching(void) {\n  PyObject *self = PyModule_Create(&module);\n"
        '  PyModule_AddIntConstant(self, "answer", ANSWER + nested() + other());\n  return self;\n}\n'
    ),
}


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_fetched_sources_a_patch_and_a_variable_make_a_wheel_whose_provenance_has_them(tmp_path):
    """All that vLLM's back end asks of a build is here, too: test_vllm_backend.py takes an hour."""
    project, answer, nested = tmp_path / "project", tmp_path / "answer", tmp_path / "nested"
    for place, files in (
        (project, SCIKIT),
        (answer, {
            "CMakeLists.txt": "add_library(answer INTERFACE)\n"
            "target_include_directories(answer INTERFACE ${CMAKE_CURRENT_SOURCE_DIR})\n",
            "answer.h": "#define ANSWER 40\n",
        }),
        (nested, {
            "CMakeLists.txt": "cmake_minimum_required(VERSION 3.24)\nproject(nested C)\n"
            "set(CMAKE_POSITION_INDEPENDENT_CODE ON)\nadd_library(nested STATIC nested.c)\n"
            "add_library(other SHARED other.c)\n",
            "nested.c": "int nested(void) { return 1; }\n",
            "other.c": "int other(void) { return 1; }\n",
        }),
    ):  # fmt: skip
        place.mkdir()
        for name, text in files.items():
            (place / name).write_text(text)
    old = SCIKIT["module.c"].splitlines(keepends=True)
    new = [line for line in old if "#error" not in line]
    (tmp_path / "fix.patch").write_text("".join(difflib.unified_diff(old, new, "a/module.c", "b/module.c")))
    result = built(
        project, tmp_path, "--cpu=neoverse-n1", "--env=FLAVOUR=sweet", f"--source=answer={answer}",
        f"--source=nested={nested}", "--env=NESTED_DIR={nested}", "--with=zlib1g-dev",
        f"--patch={tmp_path / 'fix.patch'}", "--build-requires=cmake>=3.24",
        "--check-reproducible", "--sandbox",
        "--command=python -c 'import fetching as f; print(f.answer, f.__doc__)'",
    )  # fmt: skip
    assert result["smoke"]["results"][0]["said"] == "42 sweet"
    with zipfile.ZipFile(result["path"]) as archive:
        assert [name for name in archive.namelist() if "libother" in name], "bundled"
    statement = json.loads(Path(result["provenance"]).read_text())
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["env"] == ["FLAVOUR=sweet", "NESTED_DIR={nested}"]
    found = {item["name"]: item["digest"] for item in definition["resolvedDependencies"] if "digest" in item}
    assert found["answer"] == {"dirHash": source.digest(answer)}
    assert "sha256" in found["fix.patch"]
    checked = subprocess.run(
        [sys.executable, "-m", "armbuild", "verify", result["path"]],
        check=False,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
    assert "and 1 patch and 2 fetched sources" in checked.stdout
