import json
from dataclasses import replace

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from tests.armbuild.plans import built_wheel

from armbuild.wheel import sbom
from armbuild.wheel.crates import Crate
from armbuild.wheel.inputs import Input
from armbuild.wheel.lanes.cross import ZIG_RUNTIME


@pytest.fixture
def built(tmp_path):
    return built_wheel(tmp_path, static=ZIG_RUNTIME)


def test_fetched_sources_are_parts_of_the_wheel_with_the_hash_of_their_archive(built, tmp_path):
    found = Input(name="oneDNN", path=tmp_path / "onednn.tar.xz", digest={"sha256": "a" * 64})
    plan = replace(built.plan, sources=(found, replace(found, name="acl", digest={"dirHash": "b" * 64})))
    document = sbom.document(replace(built, plan=plan), "thing", "1.0")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(document.decode()) is None
    parts = {part["name"]: part for part in json.loads(document)["components"]}
    assert parts["oneDNN"]["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert parts["oneDNN"]["scope"] == parts["acl"]["scope"] == "required"


def test_the_parts_list_names_what_is_linked_in_and_what_only_built_it(built):
    document = json.loads(sbom.document(built, "thing", "1.0"))
    scopes = {part["name"]: part["scope"] for part in document["components"]}
    assert scopes["pybind11"] == scopes["libc++"] == "required"
    assert scopes["scikit-build-core"] == "excluded"
    references = {part["bom-ref"] for part in document["components"]}
    (whole,) = (item for item in document["dependencies"] if item["ref"] == "pkg:pypi/thing@1.0")
    assert set(whole["dependsOn"]) == {
        "pkg:pypi/pybind11@3.0.1",
        *(f"static:{name}" for name, _ in ZIG_RUNTIME),
    }
    assert set(whole["dependsOn"]) < references
    assert len(references) == len(document["components"])


def test_the_document_is_valid_and_has_no_time_of_its_own(built):
    for static in ((), built.static):
        text = sbom.document(
            replace(built, static=static, tools={"hatchling": "1.0"}), "thing", "1.0"
        ).decode()
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
        assert "timestamp" not in text


def test_equal_parts_give_equal_bytes_and_other_parts_another_number(built):
    assert sbom.document(built, "thing", "1.0") == sbom.document(built, "thing", "1.0")
    other = sbom.document(replace(built, tools={}), "thing", "1.0")
    numbers = {json.loads(text)["serialNumber"] for text in (other, sbom.document(built, "thing", "1.0"))}
    assert len(numbers) == 2


def test_crates_are_listed_with_where_they_come_from(built):
    registry = Crate(
        name="memchr", version="2.8.0", linked=True, source="registry+https://x", sha256="ab" * 32
    )
    git = Crate(name="thing", version="1.0.0", linked=False, source="git+https://example.org/thing#0123")
    text = sbom.document(replace(built, crates=(registry, git)), "thing", "1.0")
    parts = {part["name"]: part for part in json.loads(text)["components"]}
    assert parts["memchr"]["purl"] == "pkg:cargo/memchr@2.8.0"
    assert parts["memchr"]["hashes"] == [{"alg": "SHA-256", "content": "ab" * 32}]
    assert (parts["memchr"]["scope"], parts["thing"]["scope"]) == ("required", "excluded")
    assert "vcs_url=git%2Bhttps" in parts["thing"]["purl"]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.decode()) is None
