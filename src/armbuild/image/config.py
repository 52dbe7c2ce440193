"""What an image says about itself: configuration, labels, annotations, the facts its entry point reads.

OCI image specification, config.md and annotations.md; Healthcheck is docker's, which podman reads too.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from armbuild.image import root
from armisa.tables import architectures, implied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from armbuild.image.base import Foundation
    from armbuild.image.content import Content
    from armbuild.image.layers import Layer

MODELS = "models"
LICENSE = "Apache-2.0"
SECOND = 1_000_000_000


def stamp(epoch: int) -> str:
    """Return a time as RFC 3339 has it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))


def lowest(found: Content, machine: str) -> str:
    """Return the lowest architecture level, and features beside it, that the content needs for certain."""
    if machine != "aarch64":
        return "x86-64"  # the audit knows the instructions of AArch64 only
    # Above Armv8.1 a level says too much: Neoverse N1 has dotprod without being Armv8.4, V1 SVE without v9.
    levels = list(architectures().values())[:2]
    best = min(levels, key=lambda level: len(found.needs - level.extensions))
    lacking = found.needs - best.extensions
    beside = sorted(lacking.difference(*(implied([name]) - {name} for name in lacking)))
    return f"{best.name} or newer" + (f" with {', '.join(beside)}" if beside else "")


def facts(
    found: Content, *, machine: str, version: str, python: str, torch: str, openvino: str | None = None
) -> dict[str, Any]:
    """Return what the entry point must know, and whoever looks into the image may."""
    return {
        "schema": 1,
        "version": version,
        "machine": machine,
        "python": python,
        "torch": torch,
        **({"openvino": openvino} if openvino else {}),
        "kernels": sorted(found.kernels),
        "floor": {"features": sorted(found.floor), "lowest_core": lowest(found, machine)},
        "dispatched": sorted(found.dispatched),
        "elf_files": found.elf_files,
    }


def description(version: str, created: str, revision: str | None) -> dict[str, str]:
    """Return the labels that are known before anything is built (OCI image specification, annotations.md)."""
    facts = {
        "title": "armllm",
        "description": "LLM inference for Arm CPUs: OpenAI-compatible server",
        "version": version,
        "revision": revision,
        "created": created,
        "licenses": LICENSE,
    }
    return {f"org.opencontainers.image.{name}": value for name, value in facts.items() if value is not None}


def labels(
    known: Mapping[str, Any],
    foundation: Foundation,
    *,
    tag: str | None,
    baseline: str | None,
    created: str,
    revision: str | None,
    own: Mapping[str, str],
) -> dict[str, str]:
    """Return the image's labels, which are its annotations too; ``own`` are the user's and win."""
    facts = {
        **description(known["version"], created, revision),
        "org.opencontainers.image.base.name": foundation.name,
        "org.opencontainers.image.base.digest": foundation.digest,
        "armllm.kernels": ",".join(known["kernels"]),
        "armllm.floor": ",".join(known["floor"]["features"]),
        "armllm.lowest-core": known["floor"]["lowest_core"],
        "armllm.dispatched": ",".join(known["dispatched"]),
        "armllm.baseline": baseline,
        "armllm.manylinux": tag,
        "armllm.torch": known["torch"],
        "armllm.openvino": known.get("openvino"),
        "armllm.python": known["python"],
        "armllm.debian": foundation.suite if not foundation.name else None,
        "armllm.sbom": "/usr/local/share/armllm/sbom.cdx.json",
    }
    return {name: value for name, value in {**facts, **own}.items() if value is not None}


def document(
    layers: Sequence[Layer],
    foundation: Foundation,
    *,
    architecture: str,
    created: str,
    labels: Mapping[str, str],
    model: str | None,
) -> dict[str, Any]:
    """Return the image's configuration."""
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        **foundation.environment,
        "HOME": f"/home/{root.USER}",
        # the root may be read-only and the user any: what wants to cache does so where a tmpfs is mounted
        "XDG_CACHE_HOME": "/tmp/cache",  # noqa: S108
        "HF_HOME": f"/{root.HUB}",
        "LD_PRELOAD": root.allocator(architecture),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        **({"ARMLLM_MODEL": f"/{MODELS}/{model}"} if model else {}),
    }
    return {
        "architecture": architecture,
        "os": "linux",
        "created": created,
        "config": {
            "User": f"{root.USER_ID}:{root.USER_ID}",
            "Env": [f"{name}={value}" for name, value in environment.items()],
            "Entrypoint": ["/usr/bin/tini", "--", foundation.python, "-m", "armbuild.image.entrypoint"],
            "WorkingDir": "/",
            "ExposedPorts": {"8000/tcp": {}},
            "StopSignal": "SIGTERM",
            "Labels": dict(labels),
            "Healthcheck": {
                "Test": ["CMD", foundation.python, "-m", "armbuild.image.health"],
                "Interval": 30 * SECOND,
                "Timeout": 10 * SECOND,
                "StartPeriod": 300 * SECOND,  # a large model takes minutes to load
                "Retries": 3,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [
            {"created": created, "created_by": "armbuild docker", "comment": layer.comment}
            for layer in layers
        ],
    }
