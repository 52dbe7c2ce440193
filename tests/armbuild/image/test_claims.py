"""What `armbuild audit IMAGE` reads back: labels, annotations and the bill of materials, true or not."""

import dataclasses
import json
import tarfile
from pathlib import Path

import pytest
from tests.armbuild import wheels
from tests.armbuild.audit.conftest import RET, make_elf
from tests.armbuild.cli.test_detect import check
from tests.armbuild.image import small

from armbuild.audit import audit_path
from armbuild.cli import main
from armbuild.image import archive, claims, content, sbom
from armbuild.image.entrypoint import FACTS

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/schema/audit.json").read_text())
SITE = "usr/local/lib/python3.11/dist-packages"
DEBIAN = {"var/lib/dpkg/status.d/libc6": "Package: libc6\nVersion: 2.36-9+deb12u1\nDescription: x\n"}
PYTHON = {
    f"{SITE}/armllm-0.1.0.dist-info/METADATA": "Name: armllm\nVersion: 0.1.0\n",
    f"{SITE}/typing_extensions-4.12.dist-info/METADATA": "Name: typing_extensions\nVersion: 4.12\n",
    f"{SITE}/armllm-0.1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_24_aarch64\n",
    f"{SITE}/torch-2.10.0.dist-info/METADATA": "Name: torch\nVersion: 2.10.0\n",
    f"{SITE}/armllm/_kernels.so": wheels.elf("aarch64"),
    "usr/lib/python3/dist-packages/theirs-1.dist-info/METADATA": "Name: theirs\nVersion: 1\n",
}
LABELS = {
    "armllm.kernels": "neon,sve",
    "armllm.floor": "atomics",
    "armllm.lowest-core": "armv8.1-a or newer",
    "armllm.dispatched": "bf16,i8mm",
    "armllm.torch": "2.10.0",
    "armllm.python": "3.11",
    "armllm.manylinux": "manylinux_2_24_aarch64",
    "org.example.team": "arm",
}
FOUND = {
    "kernel_targets": ("sve", "neon"),
    "needs_everywhere": frozenset({"lse"}),
    "needs_dispatched": frozenset({"bf16"}),
    "needs_guarded": frozenset({"i8mm", "lse"}),
}


def bill(**changes):
    licenses = [{"license": {"id": "MIT"}}, {"license": {"name": "see copyright"}}]
    components = {
        "libc6": {"version": "2.36-9+deb12u1", "purl": "pkg:deb/debian/libc6", "licenses": licenses},
        "armllm": {"version": "0.1.0", "purl": "pkg:pypi/armllm", "licenses": [{"expression": "Apache-2.0"}]},
        "typing_extensions": {"version": "4.12", "purl": "pkg:pypi/typing-extensions"},
        "torch": {"version": "2.10.0", "purl": "pkg:pypi/torch"},
        "theirs": {"version": "1", "purl": "pkg:pypi/theirs"},
    }
    kept = [
        {"name": name, **item, **changes.get(name, {})}
        for name, item in components.items()
        if changes.get(name, item)
    ]
    return {claims.SBOM: json.dumps({"bomFormat": "CycloneDX", "components": kept})}


def facts(**changes):
    """Return the bill, and what the entry point reads, true but for ``changes``."""
    told = {
        "kernels": ["neon", "sve"],
        "floor": {"features": ["atomics"], "lowest_core": "armv8.1-a or newer"},
        "dispatched": ["bf16", "i8mm"],
        "torch": "2.10.0",
        "python": "3.11",
    }
    return {**bill(), FACTS: json.dumps({**told, **changes})}


def write(folder, *, sbom=None, labels=LABELS, annotations=LABELS):
    made = [
        small.layer(folder, DEBIAN, name="root"),
        small.layer(folder, PYTHON | (sbom or bill()), name="top"),
    ]
    made_image = small.image(made, Labels=labels)
    image = archive.Image(config=made_image.config, layers=made_image.layers, annotations=annotations)
    return archive.write([image], folder / "image.tar", name="localhost/small:1")


def read(path, image=0, **found):
    """Read the claims, as though the audit had found this of the code."""
    report = audit_path(path, image=image, keep=claims.keep)
    return claims.read(dataclasses.replace(report, **{**FOUND, **found}))


def test_labels_annotations_and_the_bill_come_back_as_they_were_written(tmp_path):
    written = write(tmp_path, sbom=facts())
    said = read(written.path)
    assert said.errors == ()
    assert (said.name, said.digest, said.architecture) == ("localhost/small:1", written.digest, "arm64")
    assert said.labels == said.annotations == LABELS
    assert [part["name"] for part in said.sbom["components"]] == [
        "libc6",
        "armllm",
        "typing_extensions",
        "torch",
        "theirs",
    ]
    text = "\n".join(said.lines())
    assert "armllm.kernels=neon,sve" in text
    assert "1 of Debian, 4 of Python" in text


@pytest.mark.parametrize(
    ("image", "found", "reason"),
    [
        ({}, {"kernel_targets": ("neon",)}, "label armllm.kernels=neon,sve: what is inside says neon"),
        ({}, {"needs_everywhere": frozenset()}, "label armllm.floor=atomics: what is inside says nothing"),
        (
            {"annotations": {**LABELS, "org.example.team": "x"}},
            {},
            "org.example.team=arm: the annotation says x",
        ),
        ({"sbom": bill(libc6={"version": "2.35"})}, {}, "lists, and the image has not: pkg:deb/libc6@2.35"),
        ({"sbom": bill(libc6=None)}, {}, "leaves out, and the image has: pkg:deb/libc6@2.36-9+deb12u1"),
        ({"sbom": bill(typing_extensions=None)}, {}, "the image has: pkg:pypi/typing-extensions@4.12"),
        ({"sbom": bill(armllm={"version": "9"})}, {}, "the image has not: pkg:pypi/armllm@9"),
        *(
            ({"labels": {f"armllm.{name}": said}, "annotations": {}}, {}, f"armllm.{name}={said}: {reason}")
            for name, said, reason in (
                ("lowest-core", "armv8-a or newer", "what is inside says armv8.1-a or newer"),
                ("dispatched", "sve", "what is inside says bf16,i8mm"),
                ("torch", "2.11.0", "what is inside says 2.10.0"),
                ("openvino", "2026.4.1", "what is inside says nothing"),
                ("python", "3.13", "what is inside says 3.11"),
                ("manylinux", "manylinux_2_17_aarch64", "what is inside says manylinux_2_24_aarch64"),
            )
        ),
        (
            {"sbom": facts(floor={"features": [], "lowest_core": "x"})},
            {},
            "image.json: floor nothing: what is",
        ),
        ({"sbom": facts(torch=["9"])}, {}, "image.json: torch ['9']: what is inside says 2.10.0"),
        ({"sbom": facts(openvino="9")}, {}, "image.json: openvino 9: what is inside says nothing"),
        ({"sbom": {FACTS: "{}"}}, {}, "image.json cannot be read: 'floor'"),
        ({"sbom": {claims.SBOM: "no JSON"}}, {}, "sbom.cdx.json cannot be read"),
        ({"sbom": {claims.SBOM: '{"components": [1]}'}}, {}, "sbom.cdx.json cannot be read"),
    ],
)
def test_a_claim_that_is_not_true_is_an_error_of_a_line(tmp_path, image, found, reason):
    said = read(write(tmp_path, **image).path, **found)
    assert any(reason in error for error in said.errors), said.errors
    assert not any("\n" in error for error in said.errors)


def test_an_image_that_claims_nothing_is_held_to_nothing(tmp_path):
    path = small.write(tmp_path, {"a": "1"})
    said = read(path)
    assert (said.errors, said.labels, said.sbom) == ((), {}, None)


def test_a_bill_of_the_engines_own_code_agrees_with_it(tmp_path):
    """What `armbuild docker` writes is what the audit expects: the same names, versions and addresses."""
    tree = small.tree(tmp_path / "tree", PYTHON)
    components = tuple(map(sbom.as_json, sbom.python_components(tree)))
    document = sbom.document(
        content.Content(components=components), name="x", version="1", created=0, properties={}
    )
    made = small.layer(tmp_path, {**PYTHON, claims.SBOM: json.dumps(document)})
    path = archive.write([small.image([made])], tmp_path / "x.tar", name="localhost/x:1").path
    assert read(path).errors == ()


def test_a_base_with_dpkgs_own_list_agrees_with_the_bill(tmp_path):
    status = (
        "Package: libc6\nStatus: install ok installed\nVersion: 2.36-9+deb12u1\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    made = [
        small.layer(tmp_path, {"var/lib/dpkg/status": status}, name="root"),
        small.layer(tmp_path, PYTHON | bill(), name="top"),
    ]
    path = archive.write([small.image(made)], tmp_path / "x.tar", name="localhost/x:1").path
    assert read(path).errors == ()
    made[1] = small.layer(tmp_path, PYTHON | bill(libc6=None), name="other")
    path = archive.write([small.image(made)], tmp_path / "x.tar", name="localhost/x:1").path
    assert "leaves out, and the image has: pkg:deb/libc6@" in read(path).errors[0]


@pytest.mark.parametrize(
    ("baseline", "lies"),
    [("armv8.2-a+dotprod", []), ("armv8-a", ["floor", "lowest-core"]), ("warp9", ["floor", "lowest-core"])],
)
def test_the_engine_needs_what_its_own_baseline_says(tmp_path, baseline, lies):
    """Of an image built with --baseline only the engine's own file tells that nothing checks for dotprod."""
    files = {
        **DEBIAN,
        **PYTHON,
        **bill(),
        f"{SITE}/armllm/_kernels.so": make_elf([("f", ".text", [0x4E829420, RET])]),  # sdot
        f"{SITE}/armllm/build_info.json": json.dumps({"baseline": baseline}),
    }
    floor = {"armllm.floor": "asimddp,atomics", "armllm.lowest-core": "armv8.1-a or newer with dotprod"}
    made = small.layer(tmp_path, files)
    images = [small.image([made], Labels={**LABELS, **floor})]
    errors = read(archive.write(images, tmp_path / "x.tar", name="localhost/x:1").path).errors
    assert [error.partition("=")[0] for error in errors] == [f"label armllm.{name}" for name in lies]


def test_every_platform_of_an_index_is_audited_and_held_to_its_own_claims(tmp_path, capsys):
    lies = {"armllm.kernels": "sve"}
    images = []
    for architecture, labels in (("arm64", {}), ("amd64", lies)):
        made = small.layer(tmp_path / architecture, {"usr/lib/x.so": wheels.elf("aarch64")})
        images.append(small.image([made], architecture=architecture, Labels=labels))
    path = archive.write(images, tmp_path / "both.tar", name="localhost/x:1").path
    assert main(["audit", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    check(document, SCHEMA)
    arm, amd = document["reports"]
    assert (arm["image"]["architecture"], arm["ok"]) == ("arm64", True)
    assert (amd["image"]["architecture"], amd["ok"]) == ("amd64", False)
    assert amd["errors"] == ["label armllm.kernels=sve: what is inside says nothing"]
    assert [len(report["files"]) for report in document["reports"]] == [1, 1]


def test_a_layout_folder_is_audited_as_the_archive_of_it(tmp_path):
    path = write(tmp_path).path
    with tarfile.open(path) as tar:
        tar.extractall(tmp_path / "layout", filter="data")
    assert read(tmp_path / "layout") == read(path)
    assert 0 < audit_path(tmp_path / "layout").size < path.stat().st_size, "without the tar's headers"


def test_the_command_tells_it_and_refuses_a_tampered_layer(tmp_path, capsys):
    written = write(tmp_path, labels={"org.example.team": "arm"}, annotations={})
    assert main(["audit", str(written.path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    check(document, SCHEMA)
    (report,) = document["reports"]
    assert report["image"]["labels"] == {"org.example.team": "arm"}
    bill_of = {part["name"]: part for part in report["image"]["sbom"]["components"]}
    assert bill_of["armllm"]["licenses"] == ["Apache-2.0"]
    assert bill_of["libc6"]["licenses"] == ["MIT", "see copyright"]
    changed = small.layer(tmp_path / "other", PYTHON, name="top").blob.read_bytes()
    blob = small.layer(tmp_path, PYTHON | bill(), name="top").blob.read_bytes()
    data = written.path.read_bytes()
    assert data.count(blob) == 1
    assert len(changed) < len(blob)
    written.path.write_bytes(data.replace(blob, changed.ljust(len(blob), b"\0")))
    assert main(["audit", str(written.path)]) == 1
    assert "was tampered with or damaged" in capsys.readouterr().out.replace("\n              ", " ")
