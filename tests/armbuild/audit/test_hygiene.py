"""Wheels compiled with one bad linker option each: the audit names what is wrong with the ELF file."""

from __future__ import annotations

import struct
import subprocess
import sys
import zipfile

import pytest

from armbuild.audit import audit_path

SUFFIX = ".cpython-311-aarch64-linux-gnu.so"
LINK = [sys.executable, "-m", "ziglang", "ld.lld", "-shared", "--eh-frame-hdr"]
COMPILE = [sys.executable, "-m", "ziglang", "clang", "--target=aarch64-linux-gnu", "-fPIC", "-O1"]
GOOD = ("-z", "max-page-size=65536", "-z", "relro", "-z", "noexecstack")
CODE = "extern int outside(void); int *const pointer = 0; int f(void) { return outside(); }\n"


@pytest.fixture(scope="module")
def link(tmp_path_factory):
    """Link a small shared object with these options and this code."""
    folder = tmp_path_factory.mktemp("link")

    def make(*options, code=CODE, flags=()):
        source, part, library = folder / "x.c", folder / "x.o", folder / "x.so"
        source.write_text(code)
        subprocess.run([*COMPILE, *flags, "-c", "-o", str(part), str(source)], check=True)
        subprocess.run([*LINK, *(options or GOOD), "-o", str(library), str(part)], check=True)
        return library.read_bytes()

    return make


def test_a_well_linked_module_has_nothing_to_say_about(link, wheel):
    report = audit_path(wheel({f"demo/x{SUFFIX}": link()}))
    assert (report.errors, report.warnings) == ((), ())


def test_missing_relro_is_warned_of(link, wheel):
    report = audit_path(wheel({f"demo/x{SUFFIX}": link("-z", "max-page-size=65536", "-z", "norelro")}))
    assert report.errors == ()
    assert [word for word in report.warnings if "RELRO" in word] == list(report.warnings) != []


def test_executable_stack_is_an_error(link, wheel):
    report = audit_path(wheel({f"demo/x{SUFFIX}": link("-z", "max-page-size=65536", "-z", "execstack")}))
    assert ["executable stack" in error for error in report.errors] == [True]


@pytest.mark.parametrize(
    ("size", "fine"), [("4096", False), ("16384", False), ("65536", True), ("2097152", True)]
)
def test_segments_must_fit_64_kib_pages(link, wheel, size, fine):
    report = audit_path(wheel({f"demo/x{SUFFIX}": link("-z", f"max-page-size={size}")}))
    assert (not any("64 KiB" in error for error in report.errors)) == fine


def with_headers_for_large_pages(library):
    """The file with an alignment of 64 KiB in the header of each segment that is loaded, and no more."""
    changed = bytearray(library)
    (place,), (count,) = struct.unpack_from("<Q", library, 32), struct.unpack_from("<H", library, 56)
    for header in range(place, place + 56 * count, 56):
        if struct.unpack_from("<I", library, header) == (1,):
            struct.pack_into("<Q", changed, header + 48, 0x10000)
    return bytes(changed)


def test_headers_that_promise_64_kib_pages_are_not_believed(link, wheel):
    """Where each segment's address is its place in the file, only their distance shows the page size."""
    apart = ("-z", "separate-loadable-segments", "-z", "relro", "-z", "noexecstack", "-z")
    for size, fine in (("4096", False), ("65536", True)):
        library = with_headers_for_large_pages(link(*apart, f"max-page-size={size}"))
        report = audit_path(wheel({f"demo/x{SUFFIX}": library}))
        assert (not any("64 KiB" in error for error in report.errors)) == fine


@pytest.mark.parametrize(
    ("path", "fine"),
    [("$ORIGIN/../demo.libs", True), ("${ORIGIN}", True), ("/root/build/lib", False), ("lib", False)],
)
@pytest.mark.parametrize("kind", ["--enable-new-dtags", "--disable-new-dtags"])
def test_rpath_of_the_build_machine_is_warned_of(link, wheel, path, fine, kind):
    report = audit_path(wheel({f"demo/x{SUFFIX}": link(*GOOD, kind, "-rpath", path)}))
    assert report.errors == ()
    assert (not any(repr(path) in warning for warning in report.warnings)) == fine
    assert report.files[0].runpath == (path,)


def test_debug_information_is_warned_of(link, wheel):
    report = audit_path(wheel({f"demo/x{SUFFIX}": link(flags=("-g",))}))
    assert any("debug information" in warning for warning in report.warnings)


def test_a_policy_lower_than_the_symbols_need_is_an_error(link, wheel, tmp_path):
    """A module that needs GLIBC_2.34's dlopen under a tag that promises 2.17."""
    script, stub, libc = tmp_path / "libc.map", tmp_path / "libc.c", tmp_path / "libc.so.6"
    script.write_text("GLIBC_2.17 { global: outside; }; GLIBC_2.34 { global: dlopen; } GLIBC_2.17;\n")
    stub.write_text("int outside(void) { return 0; } void *dlopen(void) { return 0; }\n")
    subprocess.run([*COMPILE, "-c", "-o", str(stub.with_suffix(".o")), str(stub)], check=True)
    options = ["-soname", "libc.so.6", "--version-script", str(script), "-o", str(libc)]
    subprocess.run([*LINK, *options, str(stub.with_suffix(".o"))], check=True)
    code = "extern void *dlopen(const char *, int); void *f(void) { return dlopen(0, 1); }\n"
    module = {f"demo/x{SUFFIX}": link(*GOOD, str(libc), code=code)}
    report = audit_path(wheel(module, tag="cp311-cp311-manylinux_2_17_aarch64"))
    assert len(report.errors) == 1
    assert "manylinux_2_17_aarch64 is not kept: it needs symbols of GLIBC_2.34" in report.errors[0]
    report = audit_path(wheel(module, tag="cp311-cp311-manylinux_2_34_aarch64"))
    assert report.errors == ()
    assert report.policy.name == "manylinux_2_34_aarch64"


def test_a_library_from_outside_the_policy_is_an_error(link, wheel, tmp_path):
    stub, library = tmp_path / "foo.c", tmp_path / "libfoo.so.1"
    stub.write_text("int outside(void) { return 0; }\n")
    subprocess.run([*COMPILE, "-c", "-o", str(stub.with_suffix(".o")), str(stub)], check=True)
    subprocess.run(
        [*LINK, "-soname", "libfoo.so.1", "-o", str(library), str(stub.with_suffix(".o"))], check=True
    )
    report = audit_path(wheel({f"demo/x{SUFFIX}": link(*GOOD, str(library))}))
    assert ["libfoo.so.1" in error for error in report.errors] == [True]
    assert report.files[0].needed == ("libfoo.so.1",)


@pytest.mark.parametrize(
    ("page", "error"),
    [("0x1000", "pages of 4 KiB"), ("0x4000", "pages of 16 KiB"), ("0x10000", None)],
)
@pytest.mark.parametrize("optimized", ["-O0", "-O2"])
def test_an_allocator_that_was_built_for_small_pages_is_an_error(link, wheel, page, error, optimized):
    """As jemalloc's pages_boot asks, says and gives up."""
    code = (
        "extern long sysconf(int); extern void outside(const char *); int booted;\n"
        f"int boot(void) {{ unsigned long page = sysconf(30); if (page > {page}ul) {{"
        ' outside("<jemalloc>: Unsupported system page size\\n"); return 1; } booted = 1; return 0; }\n'
    )
    report = audit_path(wheel({f"demo/x{SUFFIX}": link(*GOOD, code=code, flags=(optimized,))}))
    found = [line for line in (*report.errors, *report.warnings) if "jemalloc" in line]
    assert [error in line for line in found] == [True] if error else found == []


@pytest.mark.parametrize(
    ("names", "several"),
    [
        (["libgomp-a34b3233.so.1.0.0"], False),
        (["libgomp-a34b3233.so.1.0.0", "libomp-1.so"], True),
        (["libgomp-1.so.1", "libgomp-2.so.1"], True),
        (["libiomp5.so", "libgomp.so.1"], True),
        (["libgompertz.so"], False),
    ],
)
def test_duplicate_openmp_runtimes_are_warned_of(link, wheel, names, several):
    library = link()
    report = audit_path(
        wheel({f"demo/x{SUFFIX}": library, **{f"demo.libs/{name}": library for name in names}})
    )
    assert any("more than one OpenMP" in warning for warning in report.warnings) == several


@pytest.mark.parametrize(
    ("mode", "word"),
    [
        (0o644, None),
        (0o755, None),
        (0o666, "writable by everybody"),
        (0o777, "writable by everybody"),
        (0o4755, "set-user"),
    ],
)
def test_odd_file_modes_are_warned_of(wheel, link, mode, word):
    path = wheel({f"demo/x{SUFFIX}": link()})
    with zipfile.ZipFile(path) as archive:
        content = [(item, archive.read(item)) for item in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for item, data in content:
            item.external_attr = (0o100000 | mode) << 16
            archive.writestr(item, data)
    report = audit_path(path)
    assert report.errors == ()
    assert (word is None) == (report.warnings == ())
    assert word is None or all(word in warning for warning in report.warnings)


def test_modes_of_a_folder_are_its_files(tmp_path, link):
    file = tmp_path / "x.so"
    file.write_bytes(link())
    file.chmod(0o666)
    assert any("writable by everybody" in warning for warning in audit_path(tmp_path).warnings)
