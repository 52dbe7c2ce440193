"""The statement beside an image's archive: of which bytes, which images, which packages and wheels."""

import hashlib
import json

import pytest
from tests.armbuild.image.test_build import a_build, a_wheel, world  # noqa: F401 - a fixture

from armbuild import verify
from armbuild.errors import ArmbuildError
from armbuild.host import outputs


def verdict(path, **options):
    return [check for check in verify.check(path, **options) if check.part == "provenance"]


@pytest.fixture
def built(tmp_path, world):  # noqa: F811
    return a_build(tmp_path, a_wheel(tmp_path / "1")).archive.path


def edit(path, change):
    beside = path.with_name(f"{path.name}.provenance.json")
    statement = json.loads(beside.read_text())
    change(statement)
    beside.write_text(json.dumps(statement))


def test_it_is_of_the_archive_its_images_and_what_went_in(built, tmp_path):
    statement = json.loads(built.with_name("x.tar.provenance.json").read_text())
    archive, image = statement["subject"]
    assert archive == {"name": "x.tar", "digest": {"sha256": hashlib.sha256(built.read_bytes()).hexdigest()}}
    assert image["name"].endswith(" linux/arm64")
    parts = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    (wheel,) = (part for part in parts if part.get("name", "").endswith(".whl"))
    content = next((tmp_path / "1").glob("*.whl")).read_bytes()
    assert wheel["digest"]["sha256"] == hashlib.sha256(content).hexdigest()
    assert any(part.get("uri", "").startswith("pkg:deb/debian/libc6@2.36") for part in parts)
    (check,) = verdict(built)
    assert check.ok, check.text
    assert "of these bytes" in check.text
    assert verdict(built, statement=built.with_name("x.tar.provenance.json"))[0].ok


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda said: said["subject"][1]["digest"].update(sha256="0" * 64), "it names other images"),
        (lambda said: said["subject"].pop(), "it names other images"),
        (lambda said: said["subject"][0].update(name="y.tar"), "it is of y.tar"),
        (
            lambda said: said["predicate"]["buildDefinition"]["resolvedDependencies"].pop(),
            "it leaves out: pkg:",
        ),
        (
            lambda said: said["predicate"]["buildDefinition"]["resolvedDependencies"].append(
                {"uri": "pkg:pypi/other@1"}
            ),
            "the bill of materials has not: pkg:pypi/other@1",
        ),
        (lambda said: said["predicate"].clear(), "is no SLSA provenance: KeyError"),
    ],
)
def test_a_changed_statement_is_found(built, change, reason):
    edit(built, change)
    (check,) = verdict(built)
    assert check.ok is False
    assert reason in check.text


def test_changed_bytes_are_found(built):
    with built.open("ab") as file:
        file.write(bytes(1024))
    (check,) = verdict(built)
    assert check.ok is False
    assert "it is of other bytes" in check.text


def test_there_is_no_archive_where_its_statement_cannot_be_written(tmp_path, world, monkeypatch):  # noqa: F811
    real = outputs.move_into

    def full(file, folder):
        if file.name.endswith(".provenance.json"):
            raise OSError(28, "No space left on device", str(folder / file.name))
        return real(file, folder)

    monkeypatch.setattr(outputs, "move_into", full)
    with pytest.raises((OSError, ArmbuildError)):
        a_build(tmp_path, a_wheel(tmp_path / "1"))
    assert not (tmp_path / "x.tar").exists()
