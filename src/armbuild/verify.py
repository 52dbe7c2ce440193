"""Whether a wheel or an image is what its documents say, and whether these agree with one another."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from packaging.utils import canonicalize_name

from armbuild import audit
from armbuild.artifact.archives import BROKEN
from armbuild.artifact.wheelfile import parse_name
from armbuild.audit.archive import BrokenArchive
from armbuild.audit.effort import Effort
from armbuild.audit.opening import kind_of
from armbuild.errors import CheckFailed, UsageError, one_line
from armbuild.host import cache
from armbuild.image import claims, installed
from armbuild.image.entrypoint import SBOM
from armbuild.wheel import provenance, signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from armbuild.artifact.wheelfile import FileName
    from armbuild.audit import AuditReport


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at."""

    part: str
    """wheel, image, labels, sbom, provenance or signature."""
    ok: bool | None
    """None: there is nothing to check."""
    text: str

    def as_dict(self) -> dict[str, Any]:
        """Return the check as a JSON value."""
        return {"part": self.part, "ok": self.ok, "text": one_line(self.text)}

    def __str__(self) -> str:
        mark = {True: "ok", False: "FAILED", None: "-"}[self.ok]
        return f"  {mark:<8}{self.part:<12}{one_line(self.text)}"


@dataclass(frozen=True, kw_only=True)
class Signer:
    """Who must have signed: the certificate's subject, and who vouches for it."""

    identity: str
    issuer: str


def check(
    path: Path, *, statement: Path | None = None, signer: Signer | None = None, wheels: Iterable[Path] = ()
) -> tuple[Check, ...]:
    """Check a wheel or an image against all that is said of it.

    ``statement`` is the provenance file; None: the one beside it, if any. With ``signer`` a wheel must
    have a signature of theirs beside it. An image that has the projects of ``wheels`` must have these very
    files. Raises UsageError for what is neither, or a file that is not there.
    """
    if statement and not statement.is_file():
        raise UsageError(f"{statement}: no such provenance file")
    kind = kind_of(path)
    if kind == "wheel":
        return tuple(_wheel(path, statement, signer))
    if kind != "oci":
        raise UsageError(f"{path}: neither a wheel nor an OCI archive")
    if signer:
        raise UsageError(f"{path}: --cert-identity goes with wheels; of images sign the digest in a registry")
    return tuple(_image(path, statement, tuple(wheels)))


def _checks(part: str, problems: Iterable[str], holds: str) -> Iterator[Check]:
    """Yield a check for each problem, or one that says what holds."""
    found = [Check(part=part, ok=False, text=problem) for problem in problems]
    yield from found or [Check(part=part, ok=True, text=holds)]


def _wheel(path: Path, file: Path | None, signer: Signer | None) -> Iterator[Check]:
    report = audit.audit_path(path, keep=lambda name: ".dist-info/sboms/" in name)
    yield from _checks("wheel", report.errors, f"RECORD has all files as they are; tag {report.tag}")
    name = None
    with contextlib.suppress(UsageError):  # which the audit says, too
        name = parse_name(path.name)
    bills = {member: text for member, text in report.texts.items() if member.endswith(".cdx.json")}
    if not bills:
        yield Check(part="sbom", ok=None, text="none in the wheel")
    built_with: frozenset[str] | None = None
    for member, text in bills.items():
        problems: list[str] = []
        holds = ""
        try:
            bill = json.loads(text)
            form = f"{bill['bomFormat']} {bill['specVersion']}"
            holds = f"{member.rpartition('/')[2]}: {form}, components: {len(bill['components'])}"
            if bill["bomFormat"] != "CycloneDX":
                problems = [f"{member} is {form}"]
            if member.endswith("/armbuild.cdx.json"):
                problems, built_with = [*problems, *_bill(bill, name)], _tools(bill)
        except BROKEN as error:
            problems = [f"{member} is no CycloneDX document: {error}"]
        yield from _checks("sbom", problems, holds)
    beside = file or provenance.beside(path)
    if beside.is_file():
        yield from _provenance(path, beside, name, built_with)
    else:
        yield Check(part="provenance", ok=None, text="none beside it")
    yield _signature(path, beside, signer)


def _bill(bill: Mapping[str, Any], name: FileName | None) -> Iterator[str]:
    """Yield where armbuild's bill of materials contradicts the wheel that it is in."""
    whole = bill["metadata"]["component"]
    subject = f"{canonicalize_name(whole['name'])} {whole['version']}"
    if name and subject != f"{name.name} {name.version}":
        yield f"it is of {subject}, the wheel is {name.name} {name.version}"
    if bill["serialNumber"] != provenance.serial_number(bill):
        yield "it was changed after it was written: its serial number is of other content"


def _tools(bill: Mapping[str, Any]) -> frozenset[str]:
    """Return the Python packages and the compiler of a bill of materials, each with its version."""
    compilers = {f"compiler {tool['name']}" for tool in bill["metadata"]["tools"]["components"]}
    addresses = (str(part.get("purl", "")) for part in bill["components"])
    return frozenset(compilers.union(*map(_package, addresses)))


def _package(address: str) -> set[str]:
    """Return name and version that the package URL of a Python distribution has, as a set of one or none."""
    match = re.fullmatch(r"pkg:pypi/([^@]+)@(.+)", unquote(address))
    return {f"{canonicalize_name(match[1])} {match[2]}"} if match else set()


def _provenance(
    path: Path, file: Path, name: FileName | None, built_with: frozenset[str] | None
) -> Iterator[Check]:
    """Check that a statement is of these bytes, and that it agrees with the bill of materials in them."""
    problems, holds = [], ""
    try:
        statement = provenance.read(file)
        definition = statement["predicate"]["buildDefinition"]
        source, *materials = definition["resolvedDependencies"]
        problems = list(_subject(path, statement))
        project = canonicalize_name(definition["externalParameters"]["project"])
        if name and project != name.name:
            problems.append(f"it is of the project {project}, the wheel is {name.name}")
        used: frozenset[str] = frozenset().union(*map(_material, materials))
        gone, added = (built_with - used, used - built_with) if built_with is not None else ((), ())
        for how, difference in (("leaves out", gone), ("has, and the bill of materials has not", added)):
            problems += [f"it {how}: {', '.join(sorted(difference))}"] if difference else []
        kinds = [part.get("annotations", {}).get("kind") for part in materials]
        inputs = "".join(
            f" and {kinds.count(kind)} {kind}{'' if kinds.count(kind) == 1 else ends}"
            for kind, ends in (("patch", "es"), ("fetched source", "s"))
            if kind in kinds
        )
        holds = f"of these bytes, from {_source(source)}{inputs}, with {len(used)} tools"
    except BROKEN as error:
        problems.append(f"{file.name} is no SLSA provenance: {type(error).__name__} {error}")
    yield from _checks("provenance", problems, holds)


def _material(part: Mapping[str, Any]) -> set[str]:
    """Return what one of a statement's dependencies is, in the words of ``_tools``."""
    if part["name"] == "compiler":
        return {f"compiler {part['annotations']['version']}"}
    return _package(str(part.get("uri", "")))


def _subject(path: Path, statement: Mapping[str, Any]) -> Iterator[str]:
    if (statement["_type"], statement["predicateType"]) != (provenance.STATEMENT, provenance.PREDICATE):
        yield f"it is {statement['predicateType']} in {statement['_type']}, not SLSA provenance v1"
    subject, *others = statement["subject"]
    if others:
        yield f"it is of {len(others) + 1} files, not of this one alone"
    if subject["name"] != path.name:
        yield f"it is of {subject['name']}"
    found = cache.sha256(path)
    if subject["digest"]["sha256"] != found:
        yield f"it is of other bytes: sha256 {subject['digest']['sha256']}, the file has {found}"


def _source(source: Mapping[str, Any]) -> str:
    """Return where the sources came from, and which state of them."""
    digest = source.get("digest", {})
    state = next((f" at {kind} {value[:12]}" for kind, value in digest.items()), ", in no repository")
    changed = source.get("annotations", {}).get("uncommitted_changes")
    return f"{source['uri']}{state}{', with uncommitted changes' if changed else ''}"


def _signature(path: Path, statement: Path, signer: Signer | None) -> Check:
    file = path.with_name(path.name + signature.SUFFIX)
    if not file.is_file():
        text = "none beside it" if signer else "none beside it, so nothing shows who made the wheel"
        return Check(part="signature", ok=False if signer else None, text=text)
    if signer is None:
        return Check(part="signature", ok=None, text="there is one; --cert-identity says whose it must be")
    try:
        signed = signature.signed_statement(
            provenance.content(file), signer=signer.identity, issuer=signer.issuer
        )
        same = statement.is_file() and signed == provenance.content(statement)
    except (CheckFailed, *BROKEN) as error:
        return Check(part="signature", ok=False, text=str(error))
    text = f"{signer.identity} signed the provenance" if same else f"it signs another file than {statement}"
    return Check(part="signature", ok=same, text=text)


def _image(path: Path, file: Path | None, wheels: tuple[Path, ...]) -> Iterator[Check]:
    """Check each image of an archive: digests, labels, bill of materials, the files of wheels, provenance."""
    number, count = 0, 1
    images, effort = [], Effort()
    beside = provenance.beside(path)
    while number < count:
        report = audit.audit_path(path, image=number, keep=claims.keep, effort=effort)
        image = claims.read(report)
        images.append(image)
        number, count = number + 1, report.images
        name = f"{image.name or path.name}, linux/{image.architecture}, {image.digest}"
        yield from _checks("image", report.errors, f"{name}: every layer has its digest")
        about_bill = [error for error in image.errors if error.startswith(SBOM)]
        others = [error for error in image.errors if error not in about_bill]
        if image.labels or others:
            yield from _checks("labels", others, f"{len(image.labels)} labels, as the content is")
        else:
            yield Check(part="labels", ok=None, text="none on the image")
        if image.sbom is None and not about_bill:
            yield Check(part="sbom", ok=None, text="none in the image")
        else:
            components = len(image.sbom.get("components", ())) if image.sbom else 0
            yield from _checks("sbom", about_bill, f"components: {components}, as installed")
        for wheel in wheels if report.ok else ():
            yield from _installed(wheel, report, image.architecture)
        yield from _origin(image, file) if file and not _is_of_images(file) else ()
    if file is None or _is_of_images(file):
        statement = file or beside
        if statement.is_file():
            yield from _image_provenance(path, statement, images)
        else:
            yield Check(part="provenance", ok=None, text="none beside it")
    text = "an archive has none, so nothing shows who made the image: sign its digest in a registry"
    yield Check(part="signature", ok=None, text=text)


def _installed(wheel: Path, report: AuditReport, architecture: str) -> Iterator[Check]:
    """Check that an image has the files of a wheel of its architecture."""
    try:
        if not installed.is_for(wheel, architecture):
            return
        folders, others = installed.sites(wheel, report.texts)
        problems = [f"the image has version {version}, not that of {wheel.name}" for version in others]
        files = 0
        for folder in folders:
            same, different = installed.differences(wheel, report.path, report.image, folder)
            files, problems = files + same, [*problems, *different]
        if not (folders or others):
            yield Check(part="wheel", ok=None, text=f"linux/{architecture} has nothing of {wheel.name}")
            return
    except (UsageError, BrokenArchive, *BROKEN) as error:
        problems = [f"{wheel.name} can't be compared with the image: {error}"]
    yield from _checks("wheel", problems, f"linux/{architecture} has the {files} files of {wheel.name}")


def _is_of_images(file: Path) -> bool:
    """Return whether a statement is of an archive, not of the wheel that an image was made of."""
    try:
        return not str(provenance.read(file)["subject"][0]["name"]).endswith(".whl")
    except BROKEN:
        return False


def _image_provenance(path: Path, file: Path, images: Iterable[claims.Claims]) -> Iterator[Check]:
    """Check that a statement is of this archive and its images, with the packages of their bills."""
    problems, holds = [], ""
    try:
        statement = provenance.read(file)
        archive, *manifests = statement["subject"]
        problems = list(_subject(path, {**statement, "subject": [archive]}))
        stated = {f"sha256:{item['digest']['sha256']}" for item in manifests}
        if stated != {image.digest for image in images}:
            problems.append("it names other images than the archive holds")
        parts = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
        used = {str(part["uri"]) for part in parts if "uri" in part}
        listed = {part["purl"] for image in images if image.sbom for part in image.sbom.get("components", ())}
        for how, difference in (
            ("leaves out", listed - used),
            ("has, and the bill of materials has not", used - listed),
        ):
            problems += [f"it {how}: {', '.join(sorted(difference))}"] if difference else []
        holds = f"of these bytes, with {len(used)} packages"
    except BROKEN as error:
        problems.append(f"{file.name} is no SLSA provenance: {type(error).__name__} {error}")
    yield from _checks("provenance", problems, holds)


def _origin(image: claims.Claims, file: Path) -> Iterator[Check]:
    """Check that an image's labels name the version and the commit that a wheel's provenance states."""
    problems = []
    revision = ""
    try:
        statement = provenance.read(file)
        revision = provenance.commit(statement) or "no commit"
        version = str(parse_name(statement["subject"][0]["name"]).version)
        for label, stated in (("version", version), ("revision", revision)):
            value = image.labels.get(f"org.opencontainers.image.{label}", "nothing")
            if value != stated:
                problems.append(f"it states the {label} {stated}, the image's label {value}")
    except (UsageError, *BROKEN) as error:
        problems.append(f"{file.name} is no SLSA provenance: {type(error).__name__} {error}")
    yield from _checks("provenance", problems, f"of the commit that the image's label names, {revision}")
