"""auditwheel's verdict on symbol versions and outside libraries, for any machine's wheels on any host."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from auditwheel.architecture import Architecture
from auditwheel.error import AuditwheelError, NonPlatformWheelError
from auditwheel.libc import Libc
from auditwheel.wheel_abi import analyze_wheel_abi, get_wheel_elfdata

if TYPE_CHECKING:
    from pathlib import Path

# Their symbols come with the process: torch loads its own libraries before an extension that needs them.
EXCLUDED = frozenset({"libtorch*.so*", "libc10*.so*", "libgomp*.so*", "libshm.so*"})


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The strictest policy that the wheel keeps, the versions it needs, the libraries it expects outside."""

    name: str
    versions: dict[str, tuple[str, ...]]
    outside: tuple[str, ...]


def check_policy(
    path: Path, platforms: frozenset[str], machine: str
) -> tuple[Policy | None, list[str], list[str]]:
    """Return auditwheel's findings on a wheel with these platform tags, with errors and warnings."""
    log = logging.getLogger("auditwheel")
    level = log.level
    log.setLevel(logging.CRITICAL)
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
    except (AuditwheelError, RuntimeError, ValueError, OSError, AssertionError, KeyError) as error:
        return None, [f"auditwheel can't analyse it: {error}".splitlines()[0][:300]], []
    finally:
        log.setLevel(level)
        get_wheel_elfdata.cache_clear()  # it keeps every wheel's symbols for the process's life
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
    versions = {name: tuple(sorted(values)) for name, values in sorted(found.versioned_symbols.items())}
    return Policy(name=actual.name, versions=versions, outside=tuple(outside)), errors, warnings


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
