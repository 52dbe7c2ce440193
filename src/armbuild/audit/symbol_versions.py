"""auditwheel's verdict on a wheel's symbol versions and outside libraries, as a separate program.

An untrusted ELF file can keep auditwheel busy for ever (a version table that names itself as its next), or
fill the memory: `policy.py` starts this file with limits. It imports nothing of armbuild. Arguments: the
seconds of CPU time that it may take, the wheel, its machine, its platform tags. The answer is a JSON list.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from pathlib import Path
from typing import Any

from auditwheel.architecture import Architecture
from auditwheel.error import AuditwheelError, NonPlatformWheelError
from auditwheel.libc import Libc
from auditwheel.wheel_abi import analyze_wheel_abi

# Their symbols come with the process: torch loads its own libraries before an extension that needs them.
EXCLUDED = frozenset({"libtorch*.so*", "libc10*.so*", "libgomp*.so*", "libshm.so*"})


MEMORY, MEMORY_PER_BYTE = 768 << 20, 4
"""Of addresses, and for each byte of the wheel: auditwheel reads its files as a whole."""
Answer = tuple["dict[str, Any] | None", "list[str]", "list[str]"]


def check(path: Path, platforms: frozenset[str], machine: str) -> Answer:
    """Return the strictest policy kept (None: no verdict), errors and warnings."""
    logging.getLogger("auditwheel").setLevel(logging.CRITICAL)
    try:
        found = analyze_wheel_abi(
            Libc.MUSL if any(tag.startswith("musllinux") for tag in platforms) else Libc.GLIBC,
            Architecture(machine),
            path,
            EXCLUDED,
            disable_isa_ext_check=False,
            allow_graft=False,
            args_ldpaths="",  # never the host's libraries: they are another machine's
        )
    except NonPlatformWheelError:
        return None, [], []
    # A wheel that breaks auditwheel is a finding; a traceback would hide all others.
    except AuditwheelError as error:
        return None, [f"auditwheel can't analyze it: {error}".splitlines()[0][:300]], []
    except Exception as error:  # noqa: BLE001 - pyelftools raises anything for broken files
        reason = f"auditwheel can't analyze it: {type(error).__name__}: {error}"
        return None, [reason.splitlines()[0][:300]], []
    policies = {name: item for item in found.policies for name in (item.name, *item.aliases)}
    actual = found.overall_policy
    errors, warnings = [], []
    for tag in sorted(platforms):
        if tag.startswith("linux_"):
            warnings.append(f"the tag {tag} promises no C library version: package indexes refuse it")
        elif tag not in policies:
            errors.append(f"unknown platform tag {tag}")
        elif actual < policies[tag]:
            errors.append(
                f"the tag {tag} is not kept: {_reason(found, policies[tag])} ({actual.name} at best)"
            )
    outside = sorted({name for item in found.external_refs.values() for name in item.libs})
    versions = {name: sorted(values) for name, values in sorted(found.versioned_symbols.items())}
    return {"name": actual.name, "versions": versions, "outside": outside}, errors, warnings


def _reason(found: Any, policy: Any) -> str:
    external = found.external_refs[policy.name]
    if external.libs:
        return f"it needs {', '.join(sorted(external.libs))} from outside"
    if found.sym_policy < policy:
        newest = max(
            (version for versions in found.versioned_symbols.values() for version in versions),
            key=_version,
        )
        return f"it needs symbols of {newest}"
    if external.blacklist:
        return f"it uses forbidden symbols of {', '.join(sorted(external.blacklist))}"
    return "its symbols or its machine flags go beyond it"


def _version(text: str) -> tuple[bool, tuple[int, ...]]:
    name, _, number = text.rpartition("_")
    return name == "GLIBC", tuple(int(part) for part in number.split(".") if part.isdecimal())


if __name__ == "__main__":
    for kind, limit in (
        (resource.RLIMIT_CPU, int(sys.argv[1])),
        (resource.RLIMIT_AS, MEMORY + MEMORY_PER_BYTE * Path(sys.argv[2]).stat().st_size),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]  # which cannot be raised
        most = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (most, most))
    print(json.dumps(check(Path(sys.argv[2]), frozenset(sys.argv[4:]), sys.argv[3])))
