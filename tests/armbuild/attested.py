"""A wheel and an image with all documents of a build, and ways to change them."""

import base64
import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

from tests.armbuild.audit.conftest import RET, make_elf, make_wheel
from tests.armbuild.image import small
from tests.armbuild.plans import planned

from armbuild import verify
from armbuild.image.entrypoint import SBOM
from armbuild.wheel import provenance, sbom
from armbuild.wheel.lanes.cross import ZIG_RUNTIME
from armbuild.wheel.lanes.lane import BuiltWheel
from armbuild.wheel.repair import RepairedWheel

PROJECT = Path(__file__).parent / "projects/scikit"
BILL = "demo-1.0.dist-info/sboms/armbuild.cdx.json"
SIGNER = verify.Signer(identity="https://ci.example/workflow", issuer="https://ci.example")
DEBIAN = {"var/lib/dpkg/status.d/libc6": "Package: libc6\nVersion: 2.36\n"}
LIBC = {"name": "libc6", "version": "2.36", "purl": "pkg:deb/libc6"}
TORCH = {"name": "torch", "version": "2.10.0", "purl": "pkg:pypi/torch"}
LABELS = {
    "org.opencontainers.image.version": "1.0",
    "org.opencontainers.image.revision": "a" * 40,
    "armllm.torch": "2.10.0",
}


def built_wheel(folder):
    """Write a wheel as `armbuild wheel` leaves it: bill of materials inside, provenance beside."""
    plan = planned(PROJECT, lane="cross", output=folder / "dist")
    built = BuiltWheel(
        plan=replace(plan, project=replace(plan.project, name="Demo")),
        python=plan.pythons[0],
        path=folder,
        compiler="zig 0.15.2",
        headers="this machine's",
        tools={"pybind11": "3.0.1", "Scikit_Build_Core": "1.1"},
        static=ZIG_RUNTIME,
    )
    code = make_elf([("plain", ".text", [RET])])
    files = {
        "demo/x.cpython-311-aarch64-linux-gnu.so": code,
        "demo/__init__.py": b"",
        BILL: sbom.document(built, "demo", "1.0"),
    }
    path = make_wheel(folder, files)
    provenance.write(RepairedWheel(built=built, path=path, pure=False), folder)
    return path


def rewrite(path, name, change, *, record=True):
    """Put ``change(content)`` in the place of a member; RECORD agrees with it unless ``record`` is False."""
    with zipfile.ZipFile(path) as archive:
        content = {member: archive.read(member) for member in archive.namelist()}
    row = f"{name},sha256={digest(content[name])},{len(content[name])}"
    content[name] = change(content[name])
    if record:
        place = "demo-1.0.dist-info/RECORD"
        new = f"{name},sha256={digest(content[name])},{len(content[name])}"
        assert row in content[place].decode()
        content[place] = content[place].replace(row.encode(), new.encode())
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in content.items():
            archive.writestr(member, data)


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def edit(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def restate(wheel):
    """Let the statement beside the wheel be of its bytes again, as somebody who tampers would."""
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    edit(beside(wheel), lambda document: document["subject"][0]["digest"].update(sha256=found))


def beside(wheel):
    return wheel.with_name(wheel.name + provenance.SUFFIX)


def image(folder, *, packages=(LIBC, TORCH), labels=LABELS):
    files = {
        **DEBIAN,
        "site/torch-2.10.0.dist-info/METADATA": "Name: torch\nVersion: 2.10.0\n",
        SBOM: json.dumps({"bomFormat": "CycloneDX", "components": packages}),
    }
    return small.write(folder, files, Labels=labels)
