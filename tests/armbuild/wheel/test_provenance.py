import hashlib
import json
import subprocess
import zipfile
from dataclasses import replace

import pytest
from tests.armbuild import wheels
from tests.armbuild.plans import built_wheel

from armbuild.wheel import provenance, reproduce
from armbuild.wheel.fetch import Origin
from armbuild.wheel.repair import RepairedWheel, repack


@pytest.fixture
def built(tmp_path):
    return built_wheel(tmp_path)


def test_a_file_added_to_the_metadata_folder_is_in_the_record(built, tmp_path):
    (tmp_path / "out").mkdir()
    made = repack(built.path, tmp_path / "out", label="x", epoch=0, add={"sboms/a.json": b"{}"})
    with zipfile.ZipFile(made) as archive:
        assert archive.read("thing-1.0+x.dist-info/sboms/a.json") == b"{}"
        assert (
            "thing-1.0+x.dist-info/sboms/a.json,sha256="
            in archive.read("thing-1.0+x.dist-info/RECORD").decode()
        )


def statement(built):
    return provenance.statement(RepairedWheel(built=built, path=built.path, pure=False))


def test_the_statement_is_of_exactly_this_wheel(built, tmp_path):
    said = statement(built)
    assert said["subject"][0]["digest"]["sha256"] == hashlib.sha256(built.path.read_bytes()).hexdigest()
    path = provenance.write(RepairedWheel(built=built, path=built.path, pure=False), tmp_path)
    assert path.name == built.path.name + ".provenance.json"
    assert json.loads(path.read_text()) == said


def source_of(built):
    return statement(built)["predicate"]["buildDefinition"]["resolvedDependencies"][0]


def test_the_source_is_the_sdist_with_its_hash_or_the_commit_with_its_state(built, tmp_path):
    origin = Origin(uri="file:///thing-1.0.tar.gz", sha256="a" * 64, epoch=0)
    sdist = replace(built, plan=replace(built.plan, project=replace(built.plan.project, origin=origin)))
    assert source_of(sdist) == {"name": "source", "uri": origin.uri, "digest": {"sha256": "a" * 64}}
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "x").touch()
    git = ["git", "-C", folder, "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "x"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    tree = replace(built, plan=replace(built.plan, project=replace(built.plan.project, folder=folder)))
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    assert source_of(tree)["digest"] == {"gitCommit": head}
    assert source_of(tree)["annotations"] == {"uncommitted_changes": False}
    marker = tmp_path / "ran"
    for words in (
        ["config", "remote.origin.url", "https://token:hunter2@example.org/x.git"],
        ["config", "filter.a=b.clean", f"touch {marker}; cat"],
    ):
        subprocess.run([*git, *words], check=True)
    (folder / ".gitattributes").write_text("* filter=a=b\n")
    (folder / "x").write_text("changed")
    assert source_of(tree)["uri"] == "git+https://example.org/x.git"
    assert source_of(tree)["annotations"] == {"uncommitted_changes": True}
    assert not marker.exists()  # a program that the repository's own settings name


def test_a_revision_is_read_back_for_the_very_bytes_only(tmp_path):
    path = wheels.write(tmp_path)
    source = {"digest": {"gitCommit": "a" * 40}, "annotations": {"uncommitted_changes": False}}
    said = {
        "subject": [{"digest": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}}],
        "predicate": {"buildDefinition": {"resolvedDependencies": [source]}},
    }
    beside = path.with_name(path.name + provenance.SUFFIX)
    assert provenance.revision(path) is None
    beside.write_text(json.dumps(said))
    assert provenance.revision(path) == "a" * 40
    source["annotations"]["uncommitted_changes"] = True
    beside.write_text(json.dumps(said))
    assert provenance.revision(path) == "a" * 40 + "-dirty"
    for spoiled in (
        "no JSON",
        "[]",
        json.dumps(said).replace("a" * 40, "--help"),
        json.dumps(said | {"subject": []}),
    ):
        beside.write_text(spoiled)
        assert provenance.revision(path) is None
    beside.write_text(json.dumps(said))
    path.write_bytes(path.read_bytes() + b"!")
    assert provenance.revision(path) is None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, ""),
        ({"thing/x.py": b"1"}, "thing/x.py is in one of them only"),
        ({"thing/_core.cpython-311-aarch64-linux-gnu.so": wheels.elf() + b"!"}, r"differs at byte 64 of 64"),
    ],
)
def test_the_first_difference_of_two_wheels_is_named(tmp_path, files, reason):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    found = reproduce.difference(wheels.write(tmp_path / "a"), wheels.write(tmp_path / "b", files=files))
    assert reason in found
    assert bool(found) == bool(files)


@pytest.mark.parametrize(
    "document",
    [
        "[]",
        '{"predicate": {"buildDefinition": {"resolvedDependencies": [[]]}}, "subject": [{"digest": {}}]}',
        "{" * 10_000,
        '{"a": 1, "a": 2}',
    ],
)
def test_nonsense_beside_a_wheel_states_no_revision(tmp_path, document):
    path = wheels.write(tmp_path)
    provenance.beside(path).write_text(document)
    assert provenance.revision(path) is None


def test_a_statement_that_says_a_thing_twice_is_refused(tmp_path):
    """One reader would take the first subject, another the last."""
    (tmp_path / "x").write_text('{"subject": [], "subject": [1]}')
    with pytest.raises(ValueError, match="stands twice"):
        provenance.read(tmp_path / "x")
