"""The cross lane: a compiler for AArch64 Linux on any machine, driven through the project's own back end."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING

from armbuild.host import cache, process
from armbuild.toolchain import compilers, kit, torch_stub
from armbuild.wheel.lanes.setup import Setup, backend_family, prefix_map, settings
from armbuild.wheel.plan import GLIBC

if TYPE_CHECKING:
    from pathlib import Path

    from armbuild.host.pythons import HostPython
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


def prepare(plan: Plan, python: HostPython, folder: Path, *, mirror: str | None) -> Setup:
    """Make the kit and return the back end's world; raises MissingError without zig or headers."""
    compiler = compilers.find(plan.toolchain, glibc=GLIBC)
    tools = kit.make(
        python,
        compiler,
        flags=plan.flags,
        prefix_map=prefix_map(plan, folder),
        packages=plan.packages,
        mirror=mirror,
    )
    environment = tools.environment(meson=backend_family(plan.project.backend) == "meson")
    torch = torch_stub.split(plan.project.requires)[1]
    if torch:
        environment = _with_torch(environment, torch, python, folder)
    zig_cache = cache.root() / "zig"
    own = {"ZIG_GLOBAL_CACHE_DIR": str(zig_cache), "ZIG_LOCAL_CACHE_DIR": str(zig_cache)}
    runtime = zig_cache / f"runtime-{compiler.description.replace(' ', '-')}-{GLIBC}"
    ready = plan.toolchain != "zig" or runtime.is_dir()
    return Setup(
        environment=environment | own,
        settings=settings(plan, folder, meson_arguments=[f"--cross-file={tools.cross_file}"]),
        compiler=compiler.description,
        headers=tools.headers_source,
        runtime=None if ready else functools.partial(_build_runtime, runtime, tools, own),
        world=str(tools.tools) if plan.project.is_armllm else "",
        static=ZIG_RUNTIME if plan.toolchain == "zig" else (),
        libraries=tools.sysroot.libraries if tools.sysroot else (),
    )


def _with_torch(
    environment: dict[str, str], requirement: str, python: HostPython, folder: Path
) -> dict[str, str]:
    """Let the back end find the target's torch: from Python, and as a package of CMake's."""
    folder.mkdir(parents=True, exist_ok=True)
    stub, site = torch_stub.make(requirement, python, log=folder / "torch.log")
    return environment | {
        "PYTHONPATH": os.pathsep.join((environment["PYTHONPATH"], str(stub))),
        "CMAKE_PREFIX_PATH": str(site / "torch"),
        kit.TARGET_SITE: str(site),
    }


def _build_runtime(marker: Path, tools: kit.Kit, environment: dict[str, str], log: Path) -> None:
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
