"""More parsers of strangers' files, for ``test_mutations``: what they read, and how it is damaged."""

import base64
import contextlib
import copy
import functools
import hashlib
import io
import json
import tarfile
import tempfile
import zipfile
from pathlib import Path
from unittest import mock

from sigstore import dsse
from sigstore.sign import SigningContext
from sigstore.verify import Verifier
from tests.armbuild import wheels
from tests.armbuild.audit.test_sections import CRC32B, RET, an_object
from tests.armbuild.damage import changed, damaged, with_checksums, written
from tests.armbuild.image import small
from tests.armbuild.wheel import sigstore_services

from armbuild import audit, index, verify
from armbuild.host import cache
from armbuild.image import claims, reader, unpack
from armbuild.image.entrypoint import FACTS, SBOM
from armbuild.wheel import provenance, signature

SIGNER = verify.Signer(identity="https://ci.example/workflow", issuer="https://ci.example")
BILL = {
    "bomFormat": "CycloneDX", "specVersion": "1.6",
    "components": [
        {"purl": "pkg:deb/debian/a@1", "name": "a", "version": "1", "licenses": [{"license": {"id": "MIT"}}]},
        {"purl": "pkg:pypi/b@2", "name": "b", "version": "2", "licenses": [{"expression": "MIT"}]},
    ],
}  # fmt: skip
STATUS = (
    b"Package: a\nStatus: install ok installed\nVersion: 1\nArchitecture: arm64\n\nPackage: c\nVersion: 2:3\n"
)
KNOWN = {
    "schema": 1, "version": "1.0", "machine": "aarch64", "python": "3.11", "torch": "2.10.0",
    "kernels": ["neon"], "floor": {"features": [], "lowest_core": "Armv8.0-A"},
    "dispatched": [], "elf_files": 1,
}  # fmt: skip


def docker_archive(random, folder):
    """What docker saved before version 25: manifest.json, and diff ids instead of digests."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name, kind, target in (("usr/a", tarfile.REGTYPE, ""), ("b", tarfile.LNKTYPE, "usr/a")):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = kind, target, 0 if target else 3
            tar.addfile(entry, io.BytesIO(b"abc"))
    content = layer.getvalue()
    if random.random() < 0.5:
        content = with_checksums(damaged(random, content))
    diff = f"sha256:{hashlib.sha256(content).hexdigest()}"
    document = {"architecture": "arm64", "config": {}, "rootfs": {"diff_ids": [diff, diff]}}
    listed = [{"Config": "c.json", "RepoTags": ["a:1"], "Layers": ["1/layer.tar", "2/layer.tar"]}]
    if random.random() < 0.5:
        document, listed = changed(random, document), changed(random, listed)
    path = folder / "image.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in (
            ("1/layer.tar", content),
            ("c.json", json.dumps(document).encode()),
            ("manifest.json", json.dumps(listed).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("2/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../1/layer.tar"
        tar.addfile(link)
    if random.random() < 0.5:
        written(path, with_checksums(damaged(random, path.read_bytes())))
    json.dumps(audit.audit_path(path, keep=claims.keep).as_dict())
    (root := folder / "root").mkdir()
    with reader.open_image(path) as image:
        for manifest in image.manifests():
            unpack.into_folder(image, manifest, root)


def image_documents(random, folder):
    """What an image says of itself: its bill of materials, its packages, its facts, and its provenance."""
    bill = json.dumps(changed(random, BILL) if random.random() < 0.5 else BILL).encode()
    status, facts = STATUS, json.dumps(changed(random, KNOWN)).encode()
    if random.random() < 0.5:
        bill, status = damaged(random, bill), damaged(random, status)
    metadata = damaged(random, b"Metadata-Version: 2.1\nName: b\nVersion: 2\n")
    files = {
        SBOM: bill, FACTS: facts, "var/lib/dpkg/status": status, "var/lib/dpkg/status.d/x": status,
        "usr/lib/python3/dist-packages/b-2.dist-info/METADATA": metadata,
        "usr/lib/python3/dist-packages/armllm/build_info.json": damaged(random, b'{"baseline": "armv8-a"}'),
    }  # fmt: skip
    labels = changed(random, {"org.opencontainers.image.version": "1.0", "armllm.kernels": "neon"})
    path = small.write(folder, files, Labels=labels)
    parts = [{"uri": "pkg:pypi/b@2", "name": "b"}, {"uri": "git+x", "name": "source"}]
    statement = {
        "_type": provenance.STATEMENT, "predicateType": provenance.PREDICATE,
        "subject": [
            {"name": path.name, "digest": {"sha256": cache.sha256(path)}},
            {"name": "linux/arm64", "digest": {"sha256": "0" * 64}},
        ],
        "predicate": {"buildDefinition": {"resolvedDependencies": parts}},
    }  # fmt: skip
    content = json.dumps(changed(random, statement)).encode()
    if random.random() < 0.3:
        content = damaged(random, content)
    beside = written(path.with_name(path.name + provenance.SUFFIX), content)
    for file in (None, beside):
        checks = verify.check(path, statement=file)
        json.dumps([check.as_dict() for check in checks])
        assert all(str(check).isprintable() for check in checks)


def oci_manifests(random, folder):
    """A layout whose index, manifest and configuration are odd, although every digest is right."""
    lowest = small.layer(folder, {"etc/x": "1"})
    document = small.image([lowest], Labels={"a": "b"}, Env=["A=b"], Entrypoint=["/x"]).config
    manifest = {
        "schemaVersion": 2, "layers": [lowest.descriptor(), lowest.descriptor()], "annotations": {"a": "b"},
    }  # fmt: skip
    document["rootfs"]["diff_ids"] *= 2
    parts = [document, manifest, {"annotations": {"org.opencontainers.image.ref.name": "a:1"}}, {}]
    which = random.randrange(len(parts))
    parts[which] = changed(random, parts[which])
    (blobs := folder / "layout/blobs/sha256").mkdir(parents=True)
    (blobs / lowest.digest.partition(":")[2]).write_bytes(lowest.blob.read_bytes())

    def put(value):
        content = json.dumps(value).encode()
        digest = hashlib.sha256(content).hexdigest()
        written(blobs / digest, content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    def joined(first, second):
        return {**second, **first} if isinstance(first, dict) else first

    document, manifest, entry, top = parts
    manifest = joined(manifest, {"config": put(document)})
    index = joined(top, {"manifests": [joined(entry, put(manifest)), joined(entry, put(manifest))]})
    written(folder / "layout/oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
    written(folder / "layout/index.json", json.dumps(changed(random, index)).encode())
    for check in verify.check(folder / "layout"):
        assert str(check).isprintable()
    (root := folder / "root").mkdir()
    with reader.open_image(folder / "layout") as image:
        unpack.into_folder(image, image.manifests()[0], root)


def record(random, folder):
    """RECORD, METADATA and WHEEL of a wheel, which no hash guards."""
    path = wheels.write(
        folder,
        "thing-1.0-py3-none-any.whl",
        {"thing/a.py": b"x", "thing/_core.cpython-311-aarch64-linux-gnu.so": None},
    )
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, damaged(random, content) if ".dist-info/" in name else content)
    json.dumps(audit.audit_path(path).as_dict())
    index.add(folder / "index", [path])
    for page in (folder / "index").rglob("*.html"):
        assert "<script" not in page.read_text()


def elf_object(random, folder):
    """An object whose sections are counted beside its header and its symbols."""
    content = an_object([[RET]] * random.randrange(1, 40) + [[CRC32B, RET]])
    audit.audit_path(written(folder / "x.o", damaged(random, content)))


def static_library(random, folder):
    member = an_object([[RET]])
    content = damaged(random, wheels.static_library(("a.o", member), ("b.o", member)))
    path = wheels.write(folder, "thing-1.0-cp311-cp311-linux_aarch64.whl", {"thing/x.a": content})
    json.dumps(audit.audit_path(path).as_dict())


class Token:
    """The identity of a job, as sigstore's own code has it."""

    identity, issuer = SIGNER.identity, SIGNER.issuer

    def in_validity_period(self):
        return True


@functools.cache
def signed():
    """Return a bundle that services in this process have signed, and who trusts these."""
    authority, log = sigstore_services.Authority(), sigstore_services.Log()
    with tempfile.TemporaryDirectory() as place:
        root = sigstore_services.trusted_root(Path(place), authority, log)
    statement = {
        "_type": provenance.STATEMENT, "subject": [{"name": "x", "digest": {"sha256": "0" * 64}}],
        "predicateType": provenance.PREDICATE, "predicate": {},
    }  # fmt: skip
    context = SigningContext(fulcio=authority, rekor=log, trusted_root=root)
    with context.signer(Token()) as session:
        bundle = session.sign_dsse(dsse.Statement(json.dumps(statement).encode())).to_json()
    return json.loads(bundle), Verifier(trusted_root=root)


def leaves(value):
    """Yield (parent, key) of each text in a JSON value."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, (dict, list)):
            yield from leaves(item)
        elif isinstance(item, str):
            yield value, key


def signature_bundle(random, folder):
    """A signature: its JSON, the DER of its certificate, the proofs of its log."""
    whole, verifier = signed()
    bundle = copy.deepcopy(whole)
    match random.randrange(4):
        case 0:
            bundle = changed(random, bundle)
        case 1:
            parent, key = random.choice(list(leaves(bundle)))
            parent[key] = random.choice(("", "x", "\0", "1" * 5000, "-1", "\ud800", "9" * 19))
        case _:
            parent, key = random.choice(list(leaves(bundle)))
            with contextlib.suppress(ValueError):
                content = base64.b64decode(parent[key], validate=True)
                parent[key] = base64.b64encode(damaged(random, content)).decode()
    content = json.dumps(bundle).encode()
    if random.random() < 0.2:
        content = damaged(random, content)
    path = wheels.write(
        folder, "thing-1.0-py3-none-any.whl", {"thing/_core.cpython-311-aarch64-linux-gnu.so": None}
    )
    written(path.with_name(path.name + signature.SUFFIX), content)
    with mock.patch.object(Verifier, "production", return_value=verifier):
        checks = verify.check(path, signer=SIGNER)
    assert all(str(check).isprintable() for check in checks)


PARSERS = (
    docker_archive, image_documents, oci_manifests, record, elf_object, static_library, signature_bundle,
)  # fmt: skip
