"""Extensions for Python's stable ABI, compiled here: they import what it had in the tag's Python."""

import subprocess

import pytest

from armbuild.audit import audit_path


@pytest.fixture
def importing(tmp_path):
    """Compile a shared object that imports these functions; a leading "?" makes a weak one."""

    def make(*names):
        source = tmp_path / "x.c"
        declared = [
            f"int {name.strip('?')}(void){' __attribute__((weak))' * ('?' in name)};" for name in names
        ]
        calls = " + ".join(f"{name.strip('?')}()" for name in names) or "0"
        source.write_text("\n".join([*declared, f"int PyInit_x(void) {{ return {calls}; }}\n"]))
        library = tmp_path / "x.so"
        command = ["aarch64-linux-gnu-gcc", "-shared", "-nostdlib", "-fPIC", "-O1", "-s", "-Wl,-z,relro"]
        command += ["-Wl,-z,max-page-size=65536", "-o", library, source]
        subprocess.run(command, check=True)
        return library.read_bytes()

    return make


TAG = "cp38-abi3-manylinux_2_28_aarch64"


def test_a_wheel_that_keeps_to_the_stable_abi_passes(wheel, importing):
    content = importing("PyLong_FromLong", "?PyType_GetName", "Pythagoras")
    report = audit_path(
        wheel({"demo/x.abi3.so": content, "demo/y.so": importing("PyLong_FromLong")}, tag=TAG)
    )
    assert report.errors == ()


@pytest.mark.parametrize("name", ["x.abi3.so", "x.so"])
def test_what_is_newer_than_the_tag_or_private_is_named(wheel, importing, name):
    """PyType_GetName came with 3.11; _PyLong_Sign is CPython's own."""
    content = importing("PyLong_FromLong", "PyType_GetName", "_PyLong_Sign")
    report = audit_path(wheel({f"demo/{name}": content}, tag=TAG))
    assert f"demo/{name}: not in Python's stable ABI: _PyLong_Sign" in report.errors
    assert f"demo/{name}: the tag says Python 3.8, it needs 3.11 for PyType_GetName" in report.errors
    newer = audit_path(wheel({f"demo/{name}": content}, tag=TAG.replace("38", "311")))
    assert [error for error in newer.errors if "Python" in error] == [
        f"demo/{name}: not in Python's stable ABI: _PyLong_Sign"
    ]


def test_the_suffix_alone_in_a_wheel_for_one_python_is_a_warning(wheel, importing):
    report = audit_path(wheel({"demo/x.abi3.so": importing("PyLong_FromLong", "_PyLong_Sign")}))
    assert report.errors == ()
    assert "demo/x.abi3.so: not in Python's stable ABI: _PyLong_Sign" in report.warnings


def test_an_extension_for_one_python_may_import_anything(wheel, importing):
    name = "demo/x.cpython-311-aarch64-linux-gnu.so"
    report = audit_path(wheel({name: importing("_PyLong_Sign")}))
    assert report.errors == ()
    assert not [warning for warning in report.warnings if "ABI" in warning]


BOTH = "cp315-abi3.abi3t-manylinux_2_28_aarch64"


def test_a_wheel_for_both_stable_abis_passes(wheel, importing):
    """PEP 803: .abi3t.so is imported with and without the global lock."""
    content = importing("PyModule_FromSlotsAndSpec", "PyLong_FromLong", "_Py_DecRef")
    for name in ("x.abi3t.so", "x.abi3t-aarch64-linux-gnu.so", "x.so"):
        assert audit_path(wheel({f"demo/{name}": content}, tag=BOTH)).errors == ()
    files = {"demo/x.abi3.so": importing("PyModuleDef_Init"), "demo/x.abi3t.so": content}
    assert audit_path(wheel(files, tag=BOTH)).errors == ()


def test_code_that_knows_the_structures_is_not_for_abi3t(wheel, importing):
    content = importing("PyModuleDef_Init", "_Py_Dealloc", "PyLong_FromLong")
    error = "demo/x.abi3t.so: not in abi3t, whose structures are opaque: PyModuleDef_Init, _Py_Dealloc"
    assert error in audit_path(wheel({"demo/x.abi3t.so": content}, tag=BOTH)).errors
    alone = audit_path(wheel({"demo/x.abi3t.so": content}, tag=TAG.replace("38-abi3", "315-cp315")))
    assert error in alone.warnings
    assert audit_path(wheel({"demo/x.so": content}, tag=TAG.replace("38", "315"))).errors == ()


@pytest.mark.parametrize(
    ("name", "tag", "problem"),
    [
        ("x.abi3.so", BOTH, "the tag abi3t is for Pythons without the global lock"),
        ("x.abi3t.so", TAG, "Python 3.8 of the wheel's tag does not import .abi3t.so"),
        ("x.abi3-aarch64-linux-gnu.so", TAG, "Python 3.8 of the wheel's tag does not import"),
        ("x.abi3t-x86_64-linux-gnu.so", BOTH, "belongs to another machine"),
    ],
)
def test_a_file_that_a_python_of_the_tag_does_not_import_is_an_error(wheel, importing, name, tag, problem):
    report = audit_path(wheel({f"demo/{name}": importing("PyLong_FromLong")}, tag=tag))
    assert any(problem in error for error in report.errors), report.errors
