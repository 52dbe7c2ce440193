"""The cross lane: a compiler for AArch64 Linux on any machine, driven through the project's own back end."""

from __future__ import annotations

import functools
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from armbuild.artifact import symbols
from armbuild.errors import BuildError, UsageError
from armbuild.host import cache, failure, process
from armbuild.host.pythons import SUPPORTED
from armbuild.target import arm64_root, qemu
from armbuild.toolchain import compile_cache, compilers, crossenv, rust, sysroot, torch_stub
from armbuild.wheel import hints, project
from armbuild.wheel.interpreters import find_interpreters
from armbuild.wheel.lanes import local
from armbuild.wheel.lanes.local import refuse_container_settings
from armbuild.wheel.lanes.setup import Setup, backend_family, prefix_map, settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from armbuild.host import isolation
    from armbuild.host.pythons import HostPython
    from armbuild.wheel.lanes.lane import BuiltWheel, Watcher
    from armbuild.wheel.plan import Plan

RUNTIME_PROBE = """\
#include <stdexcept>
#include <string>
extern "C" int probe(int n) {
  std::string text(static_cast<std::size_t>(n), 'x');
  if (n > 5) throw std::runtime_error(text);
  return static_cast<int>(text.size());
}
"""
ZIG_RUNTIME = (
    ("libc++", "LLVM's C++ library"),
    ("libc++abi", "LLVM's C++ runtime"),
    ("libunwind", "LLVM's unwinder"),
    ("compiler-rt", "the compiler's own functions, as zig brings them"),
)
"""What `zig c++` links statically into every shared object that needs it."""
ASKED_FOR_RUST = "build/asked-for-rust"
"""What a call of cargo or rustc leaves in a build's folder, where the project did not announce Rust."""
RUST_STAMP = "rust"
"""The file that then says so to all later builds there."""
NO_RUST_FOR_MUSL = (
    "Debian has no standard library of Rust for musl: cibuildwheel builds it in PyPA's musllinux image"
)
GCC_STAMP = "needs-gcc"
"""The file that says what a project needs that zig lacks, to all later builds of the same plan."""


def plan(draft: Plan, find: Callable[[str], HostPython]) -> Plan:
    """Choose the compiler: zig, but GCC for what must share torch's libstdc++."""
    settings, described = draft.settings, draft.project
    refuse_container_settings(settings, "cross")
    pythons, missing = find_interpreters(described, settings.python, find)
    extends_torch = project.needs_torch(described)
    if settings.toolchain == "zig" and extends_torch:
        raise UsageError(
            f"--toolchain zig: {described.name} extends torch and must share its libstdc++: use gcc or clang"
        )
    toolchain = settings.toolchain or ("gcc" if extends_torch else "zig")
    sysroot.check_names(draft.packages)
    return replace(
        draft,
        pythons=pythons,
        missing=missing,
        toolchain=toolchain,
        flags=draft.baseline_flags("zig" if toolchain == "zig" else "gcc"),
        compile_cache=compile_cache.find("none" if settings.sandbox else settings.compile_cache),
    )


def build(plan: Plan, python: HostPython, work: Path, *, mirror: str | None, watcher: Watcher) -> BuiltWheel:
    """Build with the project's own back end; QEMU is fetched for one whose checks run on the target.

    GCC builds what needs Fortran, OpenMP or GNU's C++ library, which zig does not have, unless --toolchain
    names zig.
    """
    if plan.settings.toolchain or plan.toolchain != "zig":
        return _build(plan, python, work, mirror=mirror, watcher=watcher)
    stamp = local.build_folder(plan, python) / GCC_STAMP
    if not stamp.is_file():
        log = work / f"build-{python.version}.log"
        try:
            built = _build(plan, python, work, mirror=mirror, watcher=watcher)
        except BuildError as error:
            what = hints.wants_gcc(str(error).splitlines()[0], failure.read_log(log))
            if plan.musl and what:
                raise BuildError(
                    f"{plan.project.name} needs {what}, which zig lacks; GCC here has no musl\n  log: {log}"
                ) from error
            if not what or not compilers.gcc_for(what):
                raise
            log.rename(log.with_name(f"build-{python.version}-zig.log"))
            shutil.rmtree(work / f"built-{python.version}")
            stamp.write_text(what)
        else:
            if not plan.musl and hints.WITHOUT_OPENMP.search(failure.read_log(log)):
                watcher.note(f"{plan.project.name} {hints.WITHOUT_OPENMP_SENTENCE}")
            return built
    watcher.note(f"{plan.project.name} needs {stamp.read_text()}, which zig lacks: GCC builds it")
    other = replace(plan, toolchain="gcc", flags=plan.baseline_flags("gcc"))
    return _build(other, python, work, mirror=mirror, watcher=watcher)


def _build(plan: Plan, python: HostPython, work: Path, *, mirror: str | None, watcher: Watcher) -> BuiltWheel:
    def setup(folder: Path) -> Setup:
        return prepare(plan, python, folder, mirror=mirror)

    def attempt(
        hooks: local.Hooks, current: Setup, folder: Path, log: Path
    ) -> tuple[Path, isolation.BuildEnvironment]:
        try:
            built = hooks(current)
        except BuildError as error:
            text = failure.read_log(log)
            if not (_asked_for_rust(folder) or _bring_emulator(text, mirror)):
                raise with_hint(error, text, log, plan.project.name, plan.packages) from error
        else:
            if not _asked_for_rust(folder):
                return built
        following = setup(folder)
        local.forget_other_tools(folder, following)
        return attempt(hooks, following, folder, log)

    built = local.build(plan, python, work, mirror=mirror, watcher=watcher, prepare=setup, attempt=attempt)
    if plan.toolchain == "zig" and (cause := symbols.of_gnu_cxx(built.path, built.libraries)):
        log = work / f"build-{python.version}.log"
        raise BuildError(f"{built.path.name}: {cause}\n  {hints.GNU_CXX_SENTENCE} (log: {log})")
    return built


def _bring_emulator(text: str, mirror: str | None) -> bool:
    """Fetch QEMU if a log's ``text`` asks for it and it is not there yet."""
    if crossenv.emulator().exists() or not hints.NO_EMULATOR.search(text):
        return False
    qemu.find(("max",), mirror=mirror)
    if arm64_root.cached(mirror) is None:
        released = [version for version in arm64_root.SUITES if version in SUPPORTED]
        arm64_root.make(max(released, key=Version), mirror=mirror)
    return True


def _asked_for_rust(folder: Path) -> bool:
    """Return whether a build without Rust called it; from then on, builds in ``folder`` have it."""
    if not (folder / ASKED_FOR_RUST).exists():
        return False
    (folder / ASKED_FOR_RUST).unlink()
    (folder / RUST_STAMP).touch()
    return True


def with_hint(
    error: BuildError, text: str, log: Path, name: str = "", packages: tuple[str, ...] = ()
) -> BuildError:
    """Add what to do: about the error, else about the log's ``text``, where checks may fail in vain.

    ``name`` is the project's, ``packages`` are those of --with.
    """
    cause = str(error).splitlines()[0]
    hint = hints.explain(cause, name, packages) or hints.not_required(cause, text, name)
    hint = hint or hints.explain(text, name)
    if hint == hints.OLD and any(item.endswith(f"/{sysroot.SUITES[-1]}") for item in packages):
        hint = hints.NONE_NEWER
    return BuildError(f"{cause}\n  {hint} (log: {log})") if hint else error


def prepare(plan: Plan, python: HostPython, folder: Path, *, mirror: str | None) -> Setup:
    """Return the environment of the back end; raises MissingError without zig or headers."""
    if plan.toolchain is None:
        raise UsageError(f"--lane {plan.lane} is not the cross lane")
    compiler = compilers.find(plan.toolchain, target=plan.target)
    tools = crossenv.make(
        python,
        compiler,
        flags=plan.flags,
        prefix_map=prefix_map(plan, folder),
        packages=plan.packages,
        baseline=plan.settings.baseline,
        mirror=mirror,
    )
    environment = tools.environment(meson=backend_family(plan.project.backend) == "meson")
    found = _rust(plan, folder, mirror)
    if found:
        answers = environment["PATH"]
        environment |= found.environment(
            tools.bin,
            tools.folder / "sysconfig",
            python.version,
            build=folder / "build",
            home=local.cargo_home(plan, folder),
            baseline=plan.baseline_flags("zig"),
            prefix_map=prefix_map(plan, folder),
        )
        environment["PATH"] += f"{os.pathsep}{answers}"
        stated = {*os.environ, *dict(plan.variables)}
        environment |= rust.bindgen(tools.bin / "cc", stated)
        if plan.settings.sandbox:
            environment["CARGO_NET_OFFLINE"] = "true"
        else:
            environment |= rust.retries(rust.home(), plan.project.folder, stated)
    else:
        environment["PATH"] += f"{os.pathsep}{rust.ask(folder / ASKED_FOR_RUST)}"
    torch = torch_stub.split(plan.project.requires)[1]
    if torch:
        environment = with_torch(environment, torch, python, folder)
    name = f"runtime-{compiler.description.replace(' ', '-')}-{plan.target}"
    if plan.settings.sandbox:  # whose code may not write what other builds link
        zig_cache, runtime = folder / local.ZIG_CACHE, cache.root() / "zig-copied" / name
        build_runtime, ready = _copy_runtime, zig_cache.is_dir()
    else:
        zig_cache = cache.root() / "zig"
        runtime = zig_cache / name
        build_runtime, ready = _build_runtime, runtime.is_dir()
    own = {"ZIG_GLOBAL_CACHE_DIR": str(zig_cache), "ZIG_LOCAL_CACHE_DIR": str(folder / local.ZIG_OBJECTS)}
    ready = ready or plan.toolchain != "zig"
    return Setup(
        environment=environment | own,
        settings=settings(plan, folder, meson_arguments=[f"--cross-file={tools.cross_file}"]),
        compiler=f"{compiler.description}, {found.description}" if found else compiler.description,
        headers=tools.headers_source,
        runtime=None if ready else functools.partial(build_runtime, runtime, tools, own),
        tools_key=str(tools.tools) if plan.project.is_armllm else "",
        static=(*(ZIG_RUNTIME if plan.toolchain == "zig" else ()), *(rust.STATIC if found else ())),
        rust=found,
        libraries=tools.sysroot.libraries if tools.sysroot else (),
    )


def _rust(plan: Plan, folder: Path, mirror: str | None) -> rust.Rust | None:
    """Return Rust for a project that announces it, or that has called it before."""
    wanted = project.announces_rust(plan.project) or (folder / RUST_STAMP).exists()
    if wanted and plan.musl:
        raise BuildError(f"--platform musllinux: the build calls Rust: {NO_RUST_FOR_MUSL}")
    return rust.find(mirror) if wanted else None


def with_torch(
    environment: dict[str, str], requirement: str, python: HostPython, folder: Path
) -> dict[str, str]:
    """Let the back end find the target's torch: from Python, and as a package of CMake's."""
    folder.mkdir(parents=True, exist_ok=True)
    stub, site, cmake = torch_stub.make(requirement, python, log=folder / "torch.log")
    return environment | {
        "PYTHONPATH": os.pathsep.join((environment["PYTHONPATH"], str(stub))),
        "CMAKE_PREFIX_PATH": str(cmake),  # torch's own folder has libraries of others, too
        "Torch_DIR": str(cmake / "Torch"),
        crossenv.TARGET_SITE: str(site),
    }


def _build_runtime(
    marker: Path, tools: crossenv.CrossEnvironment, environment: dict[str, str], log: Path
) -> None:
    """Link one small library, for which zig compiles libc++, libunwind and glibc's stubs into its cache."""

    def fill(folder: Path) -> None:
        source = folder / "probe.cpp"
        source.write_text(RUNTIME_PROBE)
        process.run(
            [tools.bin / "c++", "-O2", "-fPIC", "-shared", "-o", folder / "probe.so", source],
            log=log,
            what="zig's C++ runtime",
            env={**os.environ, **environment},
        )

    cache.fill(marker, fill)


def _copy_runtime(
    marker: Path, tools: crossenv.CrossEnvironment, environment: dict[str, str], log: Path
) -> None:
    """Give a build a copy of zig's cache, in which nothing but the runtime was ever compiled."""
    original = marker.with_name(f"{marker.name}-cache")
    shared = dict.fromkeys(environment, str(original))
    _build_runtime(marker, tools, shared, log)

    def fill(folder: Path) -> None:
        shutil.copytree(original, folder, dirs_exist_ok=True)

    cache.fill(Path(environment["ZIG_GLOBAL_CACHE_DIR"]), fill)
