"""The target's sysconfig: the host interpreter's build variables with the names of the target.

Debian's arm64 pyconfig.h differs from amd64's in no macro of the binary interface, so the host's variables
do.
"""

from __future__ import annotations

import os
import pprint
from typing import TYPE_CHECKING, Any

from armbuild.toolchain.sysroot import TRIPLET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PROBE = """\
import importlib, json, sysconfig
print(json.dumps(importlib.import_module(sysconfig._get_sysconfigdata_name()).build_time_vars))
"""

DROPPED = frozenset({"prefix", "exec_prefix"})
"""Python computes these itself; as build variables they would point at where it was once installed."""
EMPTY = (
    "LDFLAGS",
    "CPPFLAGS",
    "CONFIGURE_CFLAGS",
    "CONFIGURE_LDFLAGS",
    "PY_LDFLAGS",
    "PY_CPPFLAGS",
    "BASECPPFLAGS",
)
CFLAGS = "-O2 -fwrapv -Wall -DNDEBUG"


def name(triplet: str) -> str:
    """Return the module's name, as ``_PYTHON_SYSCONFIGDATA_NAME`` has it."""
    return f"_sysconfigdata__linux_{triplet}"


def target_values(
    host: Mapping[str, Any], bin_folder: Path, headers: Sequence[Path], *, triplet: str
) -> dict[str, Any]:
    """Return the target's ``build_time_vars``, given the host's and the folder with its compilers."""
    values = {name: value for name, value in host.items() if name not in DROPPED}
    digits = str(host["VERSION"]).replace(".", "") + ("t" if host.get("Py_GIL_DISABLED") else "")
    if digits == "310":  # which calls musl so, too
        triplet = TRIPLET
    soabi = f"cpython-{digits}-{triplet}"
    compiler, linker = f"{bin_folder / 'cc'} -pthread", f"{bin_folder / 'c++'} -pthread"
    values |= dict.fromkeys(EMPTY, "")
    values |= {
        "CC": compiler,
        "CXX": linker,
        "LINKCC": compiler,
        "LDSHARED": f"{compiler} -shared",
        "BLDSHARED": f"{compiler} -shared",
        "LDCXXSHARED": f"{linker} -shared",
        "AR": os.fspath(bin_folder / "ar"),
        "ARFLAGS": "rcs",
        "RANLIB": os.fspath(bin_folder / "ranlib"),
        "CFLAGS": CFLAGS,
        "PY_CFLAGS": CFLAGS,
        "OPT": CFLAGS,
        "CCSHARED": "-fPIC",
        "CFLAGSFORSHARED": "-fPIC",
        "SOABI": soabi,
        "EXT_SUFFIX": f".{soabi}.so",
        "MULTIARCH": triplet,
        "HOST_GNU_TYPE": triplet,
        "BUILD_GNU_TYPE": triplet,
        "MACHDEP": "linux",
        "Py_ENABLE_SHARED": 0,
        "SIZEOF_LONG_DOUBLE": 16,
        "ALIGNOF_LONG_DOUBLE": 16,
    }
    if headers:
        values |= {"INCLUDEPY": os.fspath(headers[0]), "CONFINCLUDEPY": os.fspath(headers[0])}
    return values


def render(values: Mapping[str, Any]) -> str:
    """Return the module's text."""
    return f"build_time_vars = {pprint.pformat(dict(values), sort_dicts=True)}\n"
