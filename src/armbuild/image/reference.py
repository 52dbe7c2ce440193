"""Names of images, and platforms, checked as registries check them."""

from __future__ import annotations

import platform
import re
from pathlib import Path

from armbuild.errors import UsageError

# distribution/reference, regexp.go: [domain[:port]/]path[:tag], lower case, parts joined by . _ __ or dashes
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAIN = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_REFERENCE = re.compile(
    rf"(?:(?P<domain>{_DOMAIN})/)?(?P<path>{_PART}(?:/{_PART})*)(?::(?P<tag>[\w][\w.-]{{0,127}}))?", re.ASCII
)
MACHINES = {"arm64": "aarch64", "amd64": "x86_64"}
"""GOARCH, which images are labeled with -> Linux's name of the machine."""
_SPELLINGS = {"aarch64": "arm64", "arm64/v8": "arm64", "x86_64": "amd64", "amd64/v1": "amd64"}


def is_name(text: str) -> bool:
    """Return whether ``text`` names an image, by a tag or by a digest; a program's option never does."""
    name, at, digest = text.partition("@")
    known = not at or re.fullmatch(r"sha256:[0-9a-f]{64}", digest)
    return bool(known and len(text) <= 400 and _REFERENCE.fullmatch(name))


def check_tag(name: str) -> str:
    """Return ``name`` with a tag (``:latest`` for none); raises UsageError for what no registry takes."""
    match = _REFERENCE.fullmatch(name)
    if match is None or len(name) > 255:
        lower = re.sub(r"^.*?(?=(:[\w.-]+)?$)", lambda path: path[0].lower(), name)
        hint = f"; write {lower}" if _REFERENCE.fullmatch(lower) else ""
        raise UsageError(f"--tag {name}: not an image's name ([registry/]name[:tag], lower-case name){hint}")
    return name if match["tag"] else f"{name}:latest"


def check_base(base: str) -> str:
    """Return ``base``; raises UsageError for what can only be a file or a folder and is not there."""
    local = not base or re.match(r"[./~]", base) or base.endswith((".tar", ".tar.gz", ".tgz"))
    if local and not (base and Path(base).exists()):
        raise UsageError(f"--base {base or repr(base)}: no such file or folder")
    return base


def full_name(name: str) -> str:
    """Return a checked ``name`` as engines file it: ``localhost/`` in front where it names no registry."""
    first, slash, _ = name.partition("/")
    has_domain = bool(slash) and (first == "localhost" or re.search(r"[.:A-Z]", first) is not None)
    return name if has_domain else f"localhost/{name}"


def check_labels(labels: list[str]) -> dict[str, str]:
    """Return ``KEY=VALUE`` texts as a mapping; raises UsageError for no key, or one of our own."""
    parsed = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?", key):
            raise UsageError(f"--label {label}: say KEY=VALUE, such as org.example.team=inference")
        if key.startswith("armllm."):
            raise UsageError(f"--label {label}: what begins with armllm. comes from the audit of the image")
        parsed[key] = value
    return parsed


def architecture_here() -> str:
    """Return this machine's architecture as images are labeled."""
    machine = platform.machine()
    return next((name for name, known in MACHINES.items() if known == machine), machine)


def check_platforms(text: str) -> tuple[str, ...]:
    """Return the architectures ("arm64", ...) of ``linux/arm64,linux/amd64``; UsageError for others."""
    found = []
    for item in text.split(","):
        system, _, architecture = item.strip().partition("/")
        architecture = _SPELLINGS.get(architecture, architecture)
        if system != "linux" or architecture not in MACHINES:
            raise UsageError(f"--platform {item.strip() or text!r}: there are linux/arm64 and linux/amd64")
        found.append(architecture)
    return tuple(dict.fromkeys(found))
