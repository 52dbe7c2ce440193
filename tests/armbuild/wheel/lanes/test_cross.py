"""What the cross lane does when a build asks for what was not brought before."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.armbuild.plans import planned

from armbuild.errors import BuildError
from armbuild.wheel.lanes import cross, local


@pytest.fixture
def lane(tmp_path, monkeypatch):
    """Run the lane's attempts with these hooks; returns what they returned and the setups they saw."""
    seen = []
    monkeypatch.setattr(cross, "prepare", lambda *_args, **_more: SimpleNamespace(tools_key="x", settings={}))

    def run(hooks):
        def build(*_args, prepare, attempt, **_more):
            log = tmp_path / "log"
            log.touch()

            def counted(setup):
                seen.append(setup)
                return hooks(len(seen), log)

            return attempt(counted, prepare(tmp_path), tmp_path, log)

        monkeypatch.setattr(local, "build", build)
        plan = SimpleNamespace(
            settings=SimpleNamespace(toolchain=None),
            toolchain="gcc",
            project=SimpleNamespace(name="thing"),
            packages=(),
        )
        return cross.build(plan, None, tmp_path, mirror=None, watcher=None), len(seen)

    return run


def call_rust(folder):
    (folder / "build").mkdir(exist_ok=True)
    (folder / cross.ASKED_FOR_RUST).touch()


@pytest.mark.parametrize("fails", [True, False], ids=["and fails", "and goes on without"])
def test_a_build_that_calls_rust_unannounced_is_run_again_with_it(lane, tmp_path, fails):
    def hooks(turn, _log):
        if turn == 1:
            call_rust(tmp_path)
            if fails:
                raise BuildError("cargo: Rust is not here yet")
        return f"wheel {turn}"

    assert lane(hooks) == ("wheel 2", 2)
    assert (tmp_path / cross.RUST_STAMP).exists(), "the next build has it at once"


def test_a_build_that_does_not_is_run_once(lane):
    assert lane(lambda turn, _log: f"wheel {turn}") == ("wheel 1", 1)


def test_what_fails_with_rust_too_says_why(lane, tmp_path):
    def hooks(turn, log):
        if turn == 1:
            call_rust(tmp_path)
        log.write_text("fatal error: 'ffi.h' file not found")
        raise BuildError("error: could not compile `thing`")

    with pytest.raises(BuildError, match=r"(?s)could not compile.*--with libffi-dev"):
        lane(hooks)


@pytest.fixture
def switching(tmp_path, monkeypatch):
    """A project that lacks what its log says: how to build it, with which compilers, and the notes."""
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cross.compilers, "gcc_for", lambda _what: True)
    notes, used = [], []

    def run(message, **settings):
        project = Path(__file__).parents[2] / "projects/setuptools"
        plan = planned(project, lane="cross", compile_cache="none", output=tmp_path, **settings)

        def build(plan, python, work, **_more):
            used.append(plan.toolchain)
            local.build_folder(plan, python).mkdir(parents=True, exist_ok=True)
            (work / f"built-{python.version}").mkdir()
            (work / f"build-{python.version}.log").write_text(message)
            if plan.toolchain == "zig" and not message.startswith("Built"):
                raise BuildError(f"failed: {message}")
            return SimpleNamespace(path=work / "x.whl", libraries=(), toolchain=plan.toolchain)

        monkeypatch.setattr(local, "build", build)
        monkeypatch.setattr(cross.symbols, "of_gnu_cxx", lambda *_args: message * ("GNU's C++" in message))
        work = Path(tempfile.mkdtemp(dir=tmp_path))
        watcher = SimpleNamespace(note=notes.append)
        return cross.build(plan, plan.pythons[0], work, mirror=None, watcher=watcher)

    return run, used, notes


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ("x.c:1:10: fatal error: 'omp.h' file not found", "OpenMP"),
        ("CMake Error at x.cmake:1 (message): Could NOT find OpenMP_CXX (missing: X)", "OpenMP"),
        ('meson.build:5:0: ERROR: Dependency "OpenMP" not found', "OpenMP"),
        ("error: unable to find dynamic system library 'gomp' using strategy", "OpenMP"),
        ("meson.build:88:0: ERROR: 'fortran' compiler binary not defined", "Fortran"),
        ("undefined symbol: typeinfo for re2::A<std::__1::string>", "GNU's C++ library"),
        ("Built, but x.so calls libre2.so.9, which is linked with GNU's C++ library", "GNU's C++ library"),
    ],
)
def test_what_zig_lacks_gcc_builds_with_one_line_that_says_so(switching, message, what):
    run, used, notes = switching
    assert run(message).toolchain == "gcc"
    assert used == ["zig", "gcc"]
    assert notes == [f"fixture-setuptools needs {what}, which zig lacks: GCC builds it"]
    run(message)
    assert used[2:] == ["gcc"], "the next build knows it"


@pytest.mark.parametrize(
    ("said", "notes_it"),
    [
        ("Run-time dependency OpenMP for c found: NO (tried system)", True),
        ("-- Could NOT find OpenMP_C (missing: OpenMP_C_FLAGS)", True),
        ("Run-time dependency OpenMP for c found: YES 5.0", False),
    ],
)
def test_a_wheel_that_zig_built_without_an_optional_openmp_says_so(switching, said, notes_it):
    run, used, notes = switching
    assert run(f"Built.\n{said}\n").toolchain == "zig"
    assert used == ["zig"]
    assert ["--toolchain gcc" in note for note in notes] == [True] * notes_it


def test_gcc_is_not_taken_for_other_faults_nor_against_a_choice_nor_where_it_is_absent(
    switching, monkeypatch
):
    run, used, _ = switching
    openmp = "x.c:1:10: fatal error: 'omp.h' file not found"
    with pytest.raises(BuildError):
        run(
            "x.c:1: error: use of undeclared identifier\n-- Could NOT find OpenMP_C (missing: OpenMP_C_FLAGS)"
        )
    with pytest.raises(BuildError, match=r"omp\.h"):
        run(openmp, toolchain="zig")
    monkeypatch.setattr(cross.compilers, "gcc_for", lambda _what: False)
    with pytest.raises(BuildError, match=r"omp\.h"):
        run(openmp)
    assert set(used) == {"zig"}
