"""Every kind of tampering with a wheel, an image or what is said of them is found, and named by its part."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from sigstore import dsse
from sigstore.sign import SigningContext
from sigstore.verify import Verifier
from tests.armbuild.attested import (
    BILL,
    LABELS,
    SIGNER,
    TORCH,
    beside,
    built_wheel,
    edit,
    image,
    restate,
    rewrite,
)
from tests.armbuild.cli.test_detect import check
from tests.armbuild.damaged_documents import Token
from tests.armbuild.image import small
from tests.armbuild.wheel import sigstore_services

from armbuild import verify
from armbuild.cli import main
from armbuild.errors import CheckFailed, MissingError, UsageError
from armbuild.image import archive
from armbuild.image.entrypoint import SBOM
from armbuild.wheel import provenance, signature

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/verify.json").read_text())


@pytest.fixture
def wheel(tmp_path):
    return built_wheel(tmp_path)


def verdicts(path, **options):
    return {item.part: item.ok for item in verify.check(path, **options)}


def failures(path, **options):
    return [f"{item.part}: {item.text}" for item in verify.check(path, **options) if item.ok is False]


def test_what_is_whole_passes_and_what_is_not_there_is_said(wheel, capsys):
    assert verdicts(wheel) == {"wheel": True, "sbom": True, "provenance": True, "signature": None}
    assert main(["verify", str(wheel)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{wheel}: passed"
    assert lines[1].startswith("  ok      wheel       RECORD has all files")
    assert "armbuild.cdx.json: CycloneDX 1.6, components: 6" in lines[2]
    assert "with 3 tools" in lines[3]
    assert lines[4] == "  -       signature   none beside it, so nothing shows who made the wheel"
    beside(wheel).unlink()
    assert verdicts(wheel)["provenance"] is None
    with pytest.raises(UsageError, match="no such provenance file"):
        verify.check(wheel, statement=beside(wheel))


def test_a_changed_file_is_found_by_record_and_by_the_provenance(wheel):
    rewrite(wheel, "demo/__init__.py", lambda _: b"evil = 1\n", record=False)
    found = failures(wheel)
    assert any("wheel: demo/__init__.py: its content does not match" in line for line in found)
    assert any("provenance: it is of other bytes" in line for line in found)


def test_a_changed_file_with_its_record_is_found_by_the_provenance(wheel):
    rewrite(wheel, "demo/__init__.py", lambda _: b"evil = 1\n")
    (found,) = failures(wheel)
    assert found.startswith("provenance: it is of other bytes: sha256 ")


def test_a_renamed_wheel_is_found_by_its_tags_its_bill_and_its_provenance(wheel):
    other = wheel.rename(wheel.with_name("demo-1.1-cp312-cp312-manylinux_2_28_aarch64.whl"))
    beside(wheel).rename(beside(other))
    found = failures(other)
    assert any(line.startswith("wheel: renamed: the file name says version 1.1") for line in found)
    assert any(line.startswith("wheel: renamed: the file name's tags") for line in found)
    assert "sbom: it is of demo 1.0, the wheel is demo 1.1" in found
    assert f"provenance: it is of {wheel.name}" in found


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace(b"3.0.1", b"3.0.2"), "the bill of materials has not: pybind11 3.0.1"),
        (lambda text: text.replace(b"zig 0.15.2", b"zig 0.14.0"), "leaves out: compiler zig 0.14.0"),
        (lambda text: text.replace(b'"demo"', b'"other"'), "sbom: it is of other 1.0, the wheel is demo 1.0"),
        (
            lambda text: text.replace(
                b'"components": [', b'"components": [{"name": "evil", "type": "file"},', 1
            ),
            "sbom: it was changed after it was written",
        ),
        (lambda text: text.replace(b"CycloneDX", b"SPDX"), f"sbom: {BILL} is SPDX 1.6"),
        (lambda _: b"[1]", f"sbom: {BILL} is no CycloneDX document"),
        (lambda _: b"[" * 100_000, f"sbom: {BILL} is no CycloneDX document"),
    ],
)
def test_a_changed_bill_is_found_though_record_and_digest_agree(wheel, change, reason):
    rewrite(wheel, BILL, change)
    restate(wheel)
    assert any(reason in line for line in failures(wheel)), failures(wheel)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda said: said["subject"][0]["digest"].update(sha256="0" * 64), "it is of other bytes"),
        (lambda said: said["subject"][0].update(name="x.whl"), "it is of x.whl"),
        (lambda said: said.update(predicateType="https://example.org/x"), "not SLSA provenance v1"),
        (lambda said: said.update(subject=said["subject"] * 2), "it is of 2 files, not of this one alone"),
        (
            lambda said: said["predicate"]["buildDefinition"]["externalParameters"].update(project="x"),
            "it is of the project x",
        ),
        (
            lambda said: said["predicate"]["buildDefinition"]["resolvedDependencies"].pop(1),
            "it leaves out: scikit-build-core 1.1",
        ),
        (lambda said: said["predicate"].clear(), "no SLSA provenance: KeyError"),
    ],
)
def test_a_changed_statement_is_found(wheel, change, reason):
    edit(beside(wheel), change)
    assert any(reason in line for line in failures(wheel)), failures(wheel)


def test_the_same_files_in_another_archive_are_other_bytes(wheel):
    with zipfile.ZipFile(wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    (found,) = failures(wheel)
    assert found.startswith("provenance: it is of other bytes")


def test_a_statement_of_another_wheel_of_the_same_name_is_refused(wheel, tmp_path):
    statement = tmp_path / "of-another.json"
    statement.write_bytes(beside(wheel).read_bytes())
    rewrite(wheel, "demo/__init__.py", lambda _: b"other = 1\n")
    restate(wheel)
    assert failures(wheel) == []
    (found,) = failures(wheel, statement=statement)
    assert found.startswith("provenance: it is of other bytes")


@pytest.mark.parametrize("text", ["", "[]", "null", '"x"', "[" * 100_000, '{"subject": [{}]}'])
def test_nonsense_for_a_statement_is_a_verdict(wheel, text):
    beside(wheel).write_text(text)
    (found,) = failures(wheel)
    assert "is no SLSA provenance" in found


def test_a_document_that_is_too_large_is_a_verdict(wheel, monkeypatch):
    monkeypatch.setattr(provenance, "MAX_DOCUMENT", 100)
    wheel.with_name(wheel.name + signature.SUFFIX).write_text("x" * 101)
    found = failures(wheel, signer=SIGNER)
    assert [line.partition(":")[0] for line in found] == ["provenance", "signature"]
    assert all("larger than" in line for line in found)


def test_a_wheel_that_cannot_be_read_is_a_verdict(wheel):
    wheel.write_bytes(wheel.read_bytes()[:200])
    assert [line.partition(":")[0] for line in failures(wheel)] == ["wheel", "provenance"]


def test_a_signature_must_be_there_of_this_statement_and_of_this_signer(wheel, monkeypatch):
    assert failures(wheel, signer=SIGNER) == ["signature: none beside it"]
    bundle = wheel.with_name(wheel.name + signature.SUFFIX)
    bundle.write_text("{}")
    assert verdicts(wheel)["signature"] is None, "nobody said whose it must be"
    (found,) = failures(wheel, signer=SIGNER)
    assert "signature: failed to load bundle" in found
    signed = beside(wheel).read_bytes()
    monkeypatch.setattr(signature, "signed_statement", lambda *_, **__: signed)
    assert verdicts(wheel, signer=SIGNER)["signature"] is True
    edit(beside(wheel), lambda said: said["subject"][0].update(digest={"sha256": "0" * 64}))
    assert any("signature: it signs another file" in line for line in failures(wheel, signer=SIGNER))

    def refused(*_, **__):
        raise CheckFailed("Certificate's SANs do not match")

    monkeypatch.setattr(signature, "signed_statement", refused)
    assert "signature: Certificate's SANs do not match" in failures(wheel, signer=SIGNER)


def test_what_a_job_signed_holds_until_bytes_and_documents_are_changed_together(wheel, tmp_path, monkeypatch):
    """Whoever can change a wheel can change all that says so, but for the signature."""
    authority, log = sigstore_services.Authority(), sigstore_services.Log()
    root = sigstore_services.trusted_root(tmp_path, authority, log)
    with SigningContext(fulcio=authority, rekor=log, trusted_root=root).signer(Token()) as session:
        bundle = session.sign_dsse(dsse.Statement(beside(wheel).read_bytes())).to_json()
    wheel.with_name(wheel.name + signature.SUFFIX).write_text(bundle)
    monkeypatch.setattr(Verifier, "production", lambda **_: Verifier(trusted_root=root))
    asked = ["verify", str(wheel), "--cert-identity", SIGNER.identity, "--cert-oidc-issuer", SIGNER.issuer]
    assert main(asked) == 0
    assert verdicts(wheel, signer=SIGNER) == dict.fromkeys(("wheel", "sbom", "provenance", "signature"), True)
    (found,) = failures(wheel, signer=replace(SIGNER, identity="https://ci.example/another"))
    assert "SANs do not match" in found
    rewrite(wheel, "demo/__init__.py", lambda _: b"evil = 1\n")
    restate(wheel)
    (found,) = failures(wheel, signer=SIGNER)
    assert found.startswith("signature: it signs another file")
    assert main(asked) == 1


def test_the_command_exits_with_1_and_its_document_says_why(wheel, capsys):
    rewrite(wheel, "demo/__init__.py", lambda _: b"evil = 1\n")
    assert main(["verify", str(wheel), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    check(said, SCHEMA)
    assert said["ok"] is said["files"][0]["ok"] is False
    assert {item["part"]: item["ok"] for item in said["files"][0]["checks"]}["provenance"] is False
    assert main(["verify", str(wheel), str(wheel), "--provenance", str(beside(wheel))]) == 2
    assert main(["verify", str(wheel), "--cert-identity", "x"]) == 2
    assert main(["verify", str(wheel.with_name("none.whl"))]) == 2


def test_only_what_holds_is_signed_and_the_bundle_lies_beside_it(wheel, monkeypatch, capsys):
    asked = []

    def sign(statement, identity):
        asked.append((statement, identity))
        return '{"bundle": 1}'

    monkeypatch.setattr(signature, "identity", lambda: "me")
    monkeypatch.setattr(signature, "sign", sign)
    assert main(["sign", str(wheel)]) == 0
    assert asked == [(beside(wheel).read_bytes(), "me")]
    bundle = wheel.with_name(wheel.name + ".sigstore.json")
    assert json.loads(bundle.read_text()) == {"bundle": 1}
    assert capsys.readouterr().out.strip() == str(bundle)
    rewrite(wheel, "demo/__init__.py", lambda _: b"evil = 1\n")
    assert main(["sign", str(wheel)]) == 1
    assert "not signed: provenance: it is of other bytes" in capsys.readouterr().err
    assert len(asked) == 1


def test_without_an_identity_nothing_is_signed(wheel, monkeypatch, capsys):
    def nobody():
        raise MissingError("no identity to sign with")

    monkeypatch.setattr(signature, "identity", nobody)
    assert main(["sign", str(wheel)]) == 3
    assert "no identity to sign with" in capsys.readouterr().err


def test_an_image_is_held_to_its_digests_labels_and_bill(tmp_path):
    assert verdicts(image(tmp_path / "whole")) == {
        "image": True,
        "labels": True,
        "sbom": True,
        "provenance": None,
        "signature": None,
    }
    wrong = image(tmp_path / "label", labels={**LABELS, "armllm.torch": "9"})
    assert failures(wrong) == ["labels: label armllm.torch=9: what is inside says 2.10.0"]
    gone = {"name": "gone", "version": "1", "purl": "pkg:deb/gone"}
    found = failures(image(tmp_path / "bill", packages=(gone, TORCH)))
    assert [line.partition(":")[0] for line in found] == ["sbom", "sbom"]
    assert "the image has not: pkg:deb/gone@1" in found[0]
    assert "the image has: pkg:deb/libc6@2.36" in found[1]


def test_an_image_whose_layer_was_changed_is_found(tmp_path):
    path = image(tmp_path)
    content = bytearray(path.read_bytes())
    content[content.index(b"\x1f\x8b") + 40] ^= 1
    path.write_bytes(content)
    assert any(line.startswith("image: ") for line in failures(path))


def test_an_image_without_documents_is_said_to_have_none(tmp_path):
    path = small.write(tmp_path, {"a": "1"})
    nothing = dict.fromkeys(("labels", "sbom", "provenance", "signature"))
    assert verdicts(path) == {"image": True, **nothing}
    assert "nothing shows who made the image" in verify.check(path)[-1].text


def test_an_images_labels_must_be_those_of_the_provenance(wheel, tmp_path):
    path = image(tmp_path / "image")
    source = {"name": "source", "uri": "git+x", "digest": {"gitCommit": "a" * 40}}
    clean = source | {"annotations": {"uncommitted_changes": False}}

    def from_source(item):
        def change(said):
            said["predicate"]["buildDefinition"]["resolvedDependencies"][0] = item

        edit(beside(wheel), change)
        return failures(path, statement=beside(wheel))

    assert from_source(clean) == []
    (found,) = from_source(clean | {"digest": {"gitCommit": "b" * 40}})
    assert found.startswith("provenance: it states the revision bbbb")
    (found,) = from_source(source | {"annotations": {"uncommitted_changes": True}})
    assert "revision " + "a" * 40 + "-dirty" in found
    beside(wheel).write_text("{}")
    (found,) = failures(path, statement=beside(wheel))
    assert "is no SLSA provenance" in found
    with pytest.raises(UsageError, match="--cert-identity goes with wheels"):
        verify.check(path, signer=SIGNER)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "x").write_text("x")
    for path in (tmp_path, tmp_path / "x", tmp_path / "none"):
        with pytest.raises(UsageError):
            verify.check(path)


def test_every_image_of_an_archive_is_checked(tmp_path):
    made = [small.layer(tmp_path, {"a": "1"}, name="one"), small.layer(tmp_path, {"b": "1"}, name="two")]
    labeled = small.image([made[1]], architecture="amd64", Labels={"armllm.torch": "9"})
    path = archive.write([small.image([made[0]]), labeled], tmp_path / "x.tar", name="localhost/x:1").path
    assert failures(path) == ["labels: label armllm.torch=9: what is inside says nothing"]
    assert sum(item.part == "image" for item in verify.check(path)) == 2


def test_a_bill_of_materials_without_components_is_read(tmp_path):
    path = small.write(tmp_path, {SBOM: "{}"})
    (found,) = (check for check in verify.check(path) if check.part == "sbom")
    assert found.text == "components: 0, as installed"
