"""The target's torch, for a build on another machine: its headers, libraries and pure Python modules.

Nothing of it runs here. A stand-in for the package answers what `torch.utils.cpp_extension` and projects'
own build scripts ask; its path is the AArch64 package's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from armbuild.errors import MissingError
from armbuild.host import cache, isolation
from armbuild.target import target_packages

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from armbuild.host.pythons import HostPython

LAST_CPU_ONLY = "<2.11"
"""From 2.11 on, the AArch64 package on the Python index is a CUDA build."""
BUILD_TIME = ("filelock", "typing-extensions")
"""What torch.utils.cpp_extension imports from elsewhere."""

CONFIG = """\
# torch's CPU part, for a build on a machine without CUDA: a CUDA build's own file stops there.
set(TORCH_INSTALL_PREFIX "{package}")
set(TORCH_INCLUDE_DIRS "{package}/include" "{package}/include/torch/csrc/api/include")
set(TORCH_CXX_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=1")
set(TORCH_LIBRARY "{package}/lib/libtorch.so")
foreach(name c10 torch_cpu torch)
  if(NOT TARGET ${{name}})
    add_library(${{name}} SHARED IMPORTED GLOBAL)
    set_target_properties(${{name}} PROPERTIES
      IMPORTED_LOCATION "{package}/lib/lib${{name}}.so"
      INTERFACE_INCLUDE_DIRECTORIES "${{TORCH_INCLUDE_DIRS}}"
      INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=1"
      INTERFACE_COMPILE_FEATURES cxx_std_17)
  endif()
endforeach()
set_property(TARGET torch_cpu PROPERTY INTERFACE_LINK_LIBRARIES c10)
set_property(TARGET torch PROPERTY INTERFACE_LINK_LIBRARIES torch_cpu c10)
if(NOT TARGET torch_library)
  add_library(torch_library INTERFACE IMPORTED GLOBAL)
  set_property(TARGET torch_library PROPERTY INTERFACE_LINK_LIBRARIES torch)
endif()
set(TORCH_LIBRARIES torch)
set(TORCH_FOUND TRUE)
set(Torch_VERSION "{version}")
"""
STUB = '''\
"""Stands for torch while something is built for another machine: only what building asks for is here."""

import contextlib
import sys
import types

__path__ = [{package!r}]
__file__ = {package!r} + "/__init__.py"


class _Absent(types.ModuleType):
    """A part of torch that is there on the target, and says no or nothing here."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("is_available", "is_built", "_is_compiled", "is_initialized"):
            return lambda: False
        if name in ("device_count", "get_arch_list"):
            return lambda: 0 if name == "device_count" else []
        raise RuntimeError(f"{{self.__name__}}.{{name}}: this torch is the target's, and does not run here")


class _Counter:
    """A counter that counts nothing."""

    def __init__(self, *_arguments):
        pass

    def guard(self):
        return contextlib.nullcontext()


def _module(name, **values):
    module = _Absent(name)
    module.__dict__.update(values)
    sys.modules[name] = module
    return module


_folder = __path__[0]
utils = _module("torch.utils", __path__=[_folder + "/utils"], cmake_prefix_path={cmake!r})
# PyTorch's packages for Linux on Arm are built with OpenMP.
_parallel = "ATen parallel backend: OpenMP"
_C = _module("torch._C", _GLIBCXX_USE_CXX11_ABI=True, _parallel_info=lambda: _parallel)
cuda = _module("torch.cuda")
xpu = _module("torch.xpu")
distributed = _module("torch.distributed")
monitor = _module("torch.monitor", _WaitCounter=_Counter)
_parts = {{name: _module("torch.backends." + name) for name in ("mps", "cuda", "mkl")}}
backends = _module("torch.backends", **_parts)

import torch.version as version  # noqa: E402
from torch.torch_version import TorchVersion, __version__  # noqa: E402


def compiled_with_cxx11_abi():
    return True
'''


def split(requires: Iterable[str]) -> tuple[list[str], str | None]:
    """Return a project's build requirements without torch, and what they ask of torch; None for nothing."""
    lines = list(requires)
    named = [line for line in lines if canonicalize_name(Requirement(line).name) == "torch"]
    if not named:
        return lines, None
    first = Requirement(named[0])
    for line in named[1:]:
        first.specifier &= Requirement(line).specifier
    others = [line for line in lines if line not in named]
    return others + list(BUILD_TIME), named[0] if len(named) == 1 else str(first)


def make(requirement: str, python: HostPython, *, log: Path) -> tuple[Path, Path, Path]:
    """Return a folder to import the stand-in from, that of the AArch64 packages it speaks for, and CMake's.

    CMake's has Torch/TorchConfig.cmake: torch's own, but for a CUDA build one of ours, for its CPU part.

    Raises MissingError when no AArch64 package fits ``requirement``.
    """
    wanted = Requirement(requirement)
    wanted.extras, wanted.marker = set(), None
    cpu_only = Requirement(str(wanted))
    cpu_only.specifier &= LAST_CPU_ONLY
    try:
        site = _install(str(cpu_only), python, log)
    except MissingError:
        site = _install(str(wanted), python, log)
    package = site / "torch"
    config = ""
    if (package / "lib/libtorch_cuda.so").exists():
        release = re.search(r"__version__ = '(\d[\d.]*)", (package / "version.py").read_text())
        config = CONFIG.format(package=package, version=release[1] if release else "")
    place = cache.root() / "torch-stubs" / cache.digest([STUB, config, str(package)])
    cmake = place / "cmake" if config else package / "share/cmake"

    def fill(folder: Path) -> None:
        (folder / "torch").mkdir()
        (folder / "torch/__init__.py").write_text(STUB.format(package=str(package), cmake=str(cmake)))
        if config:
            (folder / "cmake/Torch").mkdir(parents=True)
            (folder / "cmake/Torch/TorchConfig.cmake").write_text(config)

    return cache.fill(place, fill), site, cmake


def _install(requirement: str, python: HostPython, log: Path) -> Path:
    def fill(folder: Path) -> None:
        target_packages.install([requirement], python.version, folder, log=log, dependencies=False)

    key = cache.digest([requirement, python.version, isolation.indexes()])
    return cache.fill(cache.root() / "target-packages" / key, fill)
