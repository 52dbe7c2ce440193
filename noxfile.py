"""Every check of the project. `ci/test.sh` makes the environment (.venv) and runs all of them."""

import concurrent.futures
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import nox
import yaml

nox.options.default_venv_backend = "none"  # the sessions share the environment they are started in
nox.options.sessions = ["lint", "types", "tests", "wheel", "costly"]  # covers kernels and docs
nox.options.stop_on_first_error = True

# A test that fails has one more try, and the summary names it: signals are late on a busy machine.
PYTEST = ["pytest", "--reruns", "1", "--hypothesis-seed=0"]  # two runs of a commit try the same inputs
START = time.time()
MOST_MINUTES = 66
"""A costly test that has not begun so long after nox is skipped, and named: pipelines end after 90."""
WHEELS = Path("build/wheel")
"""What the session `wheel` built, from which `costly` makes images."""
PYTHON_SOURCES = ["src", "tests", "tools", "cmake", "noxfile.py"]


SHARED = Path("compile_flags.txt").read_text(encoding="utf-8").split()


def headers_alone() -> dict[tuple[str, ...], list[str]]:
    """The headers of csrc, by the flags that clangd gives to whoever opens one alone."""
    fragments = list(yaml.safe_load_all(Path(".clangd").read_text(encoding="utf-8")))
    by_flags: dict[tuple[str, ...], list[str]] = {}
    for header in sorted(map(str, Path("csrc").rglob("*.h"))):
        flags = [*SHARED, f"-I{sysconfig.get_path('include')}"]
        for fragment in fragments:
            files = fragment["If"]
            if re.fullmatch(files["PathMatch"], header) and not re.fullmatch(
                files.get("PathExclude", ""), header
            ):
                flags += fragment["CompileFlags"]["Add"]
        by_flags.setdefault(tuple(flags), []).append(header)
    return by_flags


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff over Python, clang-format and clang-tidy over C++."""
    session.run("ruff", "check", *PYTHON_SOURCES)
    session.run("ruff", "format", "--check", *PYTHON_SOURCES)
    sources = [str(path) for path in Path("csrc").rglob("*") if path.suffix in {".cpp", ".h"}]
    session.run("clang-format", "--dry-run", "-Werror", *sources)
    with tempfile.TemporaryDirectory() as build:
        # The targets that are left include most headers of csrc/kernels.
        pybind11 = str(session.run("python", "-m", "pybind11", "--cmakedir", silent=True)).strip()
        options = ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DARMLLM_AVX512=OFF"]
        options += ["-DARMLLM_AVX512_VNNI=OFF", "-DARMLLM_AVX512_BF16=OFF", "-DARMLLM_AMX=OFF"]
        options += [f"-Dpybind11_DIR={pybind11}", f"-DPython_EXECUTABLE={sys.executable}"]
        session.run("cmake", "-G", "Ninja", "-S", ".", "-B", build, *options, silent=True)
        session.run("cmake", "--build", build, "--target", "csrc/kernel_table.inc", silent=True)
        commands = json.loads(Path(build, "compile_commands.json").read_text(encoding="utf-8"))
        tidy(session, [entry["file"] for entry in commands], before=["-p", build])
    targets = {str(path): path.read_text(encoding="utf-8") for path in Path("csrc/targets").glob("*.cpp")}
    arm = [path for path, text in targets.items() if "#include <arm_" in text]
    tidy(session, arm, after=["--", "--target=aarch64-linux-gnu", *SHARED])
    for flags, headers in headers_alone().items():
        # Every check where none of the sources above includes them, else what depends on being alone.
        checks = "" if "--target=x86_64-linux-gnu" in flags else "-*,"
        checks += "clang-diagnostic-*,readability-function-size"
        tidy(session, headers, before=[f"--checks={checks}"], after=["--", *flags])


def tidy(
    session: nox.Session, files: list[str], before: Sequence[str] = (), after: Sequence[str] = ()
) -> None:
    """Run clang-tidy over the files, one for each core at a time."""

    def run(file: str) -> None:
        session.run("clang-tidy", "--quiet", *before, file, *after)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, files))


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict."""
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """The site of the documents, into build/site, with every link checked, and the rules of their prose."""
    session.run("python", "-m", "mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})
    session.run("python", "tools/prose.py")


@nox.session
def tests(session: nox.Session) -> None:
    """The fast tests; arguments go to pytest."""
    selection = ["-m", "not slow and not emulated and not network"]
    options = ["-n", "2", "--durations=40"]
    session.run(*PYTEST, *options, *selection, *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session
def kernels(session: nox.Session) -> None:
    """Conformance of every kernel, natively and on emulated cores."""
    session.run("python", "tools/conformance.py", "--native", *session.posargs)
    session.run("python", "tools/conformance.py", *session.posargs)
    session.run("python", "tools/cycles.py", "--check")


@nox.session
def wheel(session: nox.Session) -> None:
    """The README's first command, in a clone of this commit with an environment of its own."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "clone")
        session.run("git", "clone", "--quiet", ".", str(clone), external=True)
        env = {"PYTHON": os.environ.get("PYTHON", "python3")}
        session.run("bash", str(clone / "ci" / "wheel.sh"), *session.posargs, env=env, external=True)
        shutil.rmtree(WHEELS, ignore_errors=True)
        shutil.copytree(clone / "dist", WHEELS)


@nox.session
def costly(session: nox.Session) -> None:
    """The tests that build, download or emulate; arguments go to pytest."""
    # Emulators and waiting for packages use one core; the tests of a file share what they build.
    # tests/conftest.py says which files come first and last.
    options = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", "--durations=40"]
    env = {"TESTS_END": str(START + 60 * MOST_MINUTES)}
    # Only a wheel of this run is one of this commit.
    for path in WHEELS.glob("*-cp311-*.whl"):
        if path.stat().st_mtime > START:
            env["TEST_WHEEL"] = str(path.resolve())
    session.run(*PYTEST, "-m", "slow or emulated or network", *options, *session.posargs, env=env)
