import contextlib
import json
import time

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.armbuild.image import small

from armbuild.artifact import archives
from armbuild.errors import CheckFailed, UsageError
from armbuild.image import content, root, sbom

SECONDS = 10  # of CPU time, where a fraction of one is usual


def document(components):
    whole = content.Content(components=tuple(components))
    return json.dumps(
        sbom.document(
            whole, name="armllm", version="0.1.0", created=315532800, properties={"armllm:torch": "2.10.0"}
        )
    )


def test_the_bill_of_materials_names_every_package_with_its_license(tmp_path):
    for name, lines in {
        "one-1.0": "Name: One\nVersion: 1.0\nLicense-Expression: MIT\n",
        "two-2.0": "Name: two\nVersion: 2.0\nClassifier: License :: OSI Approved :: BSD License\n",
        "three-3": "Name: three\nVersion: 3\n",
    }.items():
        (tmp_path / f"{name}.dist-info").mkdir()
        (tmp_path / f"{name}.dist-info/METADATA").write_text(f"{lines}\ntext\n")
    form = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
    copyrights = {
        "libc6": "This is the Debian package of the GNU C Library.\nLicense: none that counts\n",
        "libstdc++6": f"{form}\nFiles: *\nLicense: GPL-3+ with GCC exception \n\nFiles: a\nLicense: Expat\n",
    }
    tree = {f"usr/share/doc/{name}/copyright": text for name, text in copyrights.items()}
    small.tree(tmp_path, {**tree, "usr/share/doc/libgcc-s1": ("->", "/usr/share/doc/libstdc++6")})
    packages = [
        root.Package(
            name=name, version="1:2.36-9+deb12u1", architecture="arm64", source="x", suite="bookworm"
        )
        for name in (*copyrights, "libgcc-s1")
    ]
    components = [*sbom.python_components(tmp_path), *sbom.debian_components(packages, tmp_path)]
    found = [*map(sbom.as_json, components)]
    bill = document([*found, found[0]])
    assert bill == document(found[::-1]), "the same bytes, however the parts are sorted"
    assert json.loads(bill)["metadata"]["timestamp"] == "1980-01-01T00:00:00+00:00"
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    assert document(found[1:]) != bill
    bill = json.loads(bill)
    assert len({component["bom-ref"] for component in bill["components"]}) == len(bill["components"]) == 6
    by_name = {component["name"]: component for component in bill["components"]}
    assert by_name["One"]["licenses"] == [{"expression": "MIT"}]
    assert by_name["two"]["licenses"] == [{"license": {"name": "BSD License"}}]
    assert "licenses" not in by_name["three"]
    address = "pkg:deb/debian/libstdc%2B%2B6@1:2.36-9%2Bdeb12u1?arch=arm64&distro=bookworm"
    assert by_name["libstdc++6"]["purl"] == address
    named = [{"license": {"name": name}} for name in ("Expat", "GPL-3+ with GCC exception")]
    assert by_name["libstdc++6"]["licenses"] == by_name["libgcc-s1"]["licenses"] == named
    assert by_name["libc6"]["licenses"] == [{"license": {"name": "/usr/share/doc/libc6/copyright"}}]


def test_a_copyright_file_made_to_be_slow_is_read_at_once(tmp_path):
    """It would catch a pattern whose time grows with the square of the spaces: hours for these."""
    head = "Format: copyright-format/1.0\n\n"
    half = archives.TEXT_LIMIT // 2 - len(head)
    text = f"{head}License:{' ' * half}\n{'License: ' * (half // 9)}\nLicense: MIT\n"
    small.tree(tmp_path, {"usr/share/doc/a/copyright": text})
    before = time.process_time()
    names = sbom._licenses("a", tmp_path)
    assert time.process_time() - before < SECONDS
    assert "MIT" in names


def test_a_distribution_whose_metadata_are_broken_goes_by_its_folders_name(tmp_path):
    small.tree(tmp_path, {"odd_one-1.5.dist-info/METADATA": "no fields at all\n"})
    (found,) = map(sbom.as_json, sbom.python_components(tmp_path))
    assert (found["name"], found["version"], found["purl"]) == ("odd_one", "1.5", "pkg:pypi/odd-one@1.5")


ANY = st.text(max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ANY, ANY, ANY, ANY)
def test_whatever_packages_say_of_themselves_becomes_a_document_or_one_error(tmp_path, name, version, a, b):
    text = f"Name: {name}\nVersion: {version}\nLicense-Expression: {a}\nClassifier: License :: {b}\n"
    small.tree(tmp_path, {"x-1.dist-info/METADATA": text})
    package = root.Package(name=name or "x", version=version, architecture=a, source=b, suite=b, vendor=a)
    for components in (sbom.python_components(tmp_path), sbom.debian_components([package], tmp_path)):
        with contextlib.suppress(UsageError, CheckFailed):
            assert json.loads(document([*map(sbom.as_json, components)]))["components"]
