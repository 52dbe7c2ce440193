"""Where an image came from: an in-toto statement with a SLSA provenance predicate, beside its archive.

The formats are those of a wheel's statement (``armbuild.wheel.provenance``).
"""

from __future__ import annotations

import json
import platform
from typing import TYPE_CHECKING, Any

import armbuild
from armbuild.host import cache
from armbuild.wheel.provenance import PREDICATE, STATEMENT, SUFFIX

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from armbuild.image.build import Built
    from armbuild.image.plan import ImagePlan

BUILD_TYPE = "https://github.com/opencontainers/image-spec/blob/v1.1.0/manifest.md"


def write(built: Built, plan: ImagePlan, wheels: Mapping[str, Path], folder: Path) -> Path:
    """Write the statement of a finished archive into ``folder`` and return its path.

    ``wheels`` are those that the image holds, by architecture.
    """
    path = folder / (built.archive.path.name + SUFFIX)
    path.write_text(json.dumps(statement(built, plan, wheels), indent=2, sort_keys=True) + "\n")
    return path


def statement(built: Built, plan: ImagePlan, wheels: Mapping[str, Path]) -> dict[str, Any]:
    """Return the statement as a JSON value: of the archive's bytes, then of each image's manifest."""
    archive = built.archive
    images = [
        {"name": f"{plan.tag} linux/{name}", "digest": {"sha256": digest.removeprefix("sha256:")}}
        for name, digest in sorted(archive.manifests.items())
    ]
    return {
        "_type": STATEMENT,
        "subject": [{"name": archive.path.name, "digest": {"sha256": cache.sha256(archive.path)}}, *images],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "tag": plan.tag,
                    "platforms": [f"linux/{name}" for name in plan.architectures],
                    "python": plan.python,
                    "torch": plan.torch,
                    "base": plan.base,
                    "model": plan.model.name if plan.model else None,
                    "labels": dict(plan.labels),
                    "source_date_epoch": plan.epoch,
                },
                "internalParameters": {},
                "resolvedDependencies": [*_source(plan), *_wheels(wheels), *_packages(built)],
            },
            "runDetails": {
                "builder": {
                    "id": "pkg:pypi/armllm",
                    "version": {"armbuild": armbuild.version(), "python": platform.python_version()},
                },
            },
        },
    }


def _source(plan: ImagePlan) -> list[dict[str, Any]]:
    if plan.revision is None:
        return []
    commit = plan.revision.removesuffix("-dirty")
    changed = {"uncommitted_changes": commit != plan.revision}
    return [{"name": "source", "digest": {"gitCommit": commit}, "annotations": changed}]


def _wheels(wheels: Mapping[str, Path]) -> list[dict[str, Any]]:
    return [
        {
            "name": path.name,
            "digest": {"sha256": cache.sha256(path)},
            "annotations": {"platform": f"linux/{name}"},
        }
        for name, path in sorted(wheels.items())
    ]


def _packages(built: Built) -> list[dict[str, Any]]:
    """Return the packages of all platforms as their bills of materials name them, and the base images."""
    platforms = built.platforms.values()
    addresses = {str(part["purl"]) for item in platforms for part in item.content.components}
    bases = {
        (labels["org.opencontainers.image.base.name"], labels["org.opencontainers.image.base.digest"])
        for labels in (item.image.annotations for item in platforms)
        if "org.opencontainers.image.base.digest" in labels
    }
    images = [
        {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}} for name, digest in sorted(bases)
    ]
    return [*images, *({"uri": address} for address in sorted(addresses))]
