"""Names that lead out of a wheel's folder, and names that are one place where case or form is ignored."""

import pytest

from armbuild.audit import audit_path, names


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("demo/a.py", "demo/A.py"),
        ("demo/a.py", "Demo/a.py"),
        ("demo/caf\u00e9.py", "demo/cafe\u0301.py"),
        ("demo/CAF\u00c9.py", "demo/cafe\u0301.py"),
        ("demo/\u212bngstrom.py", "demo/\u00e5ngstrom.py"),
        ("demo/stra\u00dfe.py", "demo/STRASSE.py"),
        ("demo/a.py", "demo/a\u200d.py"),  # nobody sees it, HFS+ ignores it
        ("demo/a.py", "demo/a.py."),
        ("demo/a.py", "demo/a.py . "),
        ("demo/a.py", "demo./a.py"),
        ("demo/a.py", "demo/a.py::$DATA"),
        ("demo/a.py", "demo/a.py:stream"),
        ("demo/a", "demo/a/b.py"),
        ("demo/A", "demo/a/b/c.py"),
    ],
)
@pytest.mark.parametrize("swap", [False, True])
def test_names_of_one_place_are_refused_in_each_order(wheel, elf, one, other, swap):
    first, second = (other, one) if swap else (one, other)
    files = {"demo/x.so": elf(), first: b"1", second: b"2"}
    errors = audit_path(wheel(files)).errors
    assert [error for error in errors if "writes it over" in error] == list(errors)
    assert len(errors) == 1


@pytest.mark.parametrize(
    "name",
    ["demo/aux.py", "demo/con", "demo/b.", "demo/.hidden", "demo/a b.py", "demo/\u00fcber.py", "demo/..."],
)
def test_names_that_only_windows_refuses_pass_alone(wheel, elf, name):
    """A wheel for Linux is not installed there, and nothing is written over."""
    assert audit_path(wheel({"demo/x.so": elf(), "demo/a.py": b"1", name: b"2"})).ok


def test_a_name_of_very_many_folders_is_refused(wheel, elf):
    report = audit_path(wheel({"demo/x.so": elf(), "a/" * 20_000 + "b": b"1"}))
    assert any("lies in more than 100 folders" in error for error in report.errors)


def test_a_place_is_found_at_once():
    assert names.place("demo/a.py") == "demo/a.py"
    assert names.place("a. ./b ") == "a/b"
    places = names.Places()
    assert not any(places.clash(f"demo/{number}/x.py") for number in range(1000))
