import pytest

from armbuild.wheel import hints


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("meson.build:88:0: ERROR: 'fortran' compiler binary not defined in cross file", "needs Fortran"),
        ("No CMAKE_Fortran_COMPILER could be found.", "gfortran-aarch64-linux-gnu"),
        ("ERROR: Unknown compiler(s): [['gfortran'], ['flang']]", "needs Fortran"),
        ("x.c:1:10: fatal error: 'omp.h' file not found", "needs OpenMP"),
        ("x.c:15:10: fatal error: 'ffi.h' file not found", "--with libffi-dev"),
        ("x.c:1:10: fatal error: openssl/ssl.h: No such file or directory", "--with libssl-dev"),
        ("src/display.c:893:10: fatal error: 'xcb/xcb.h' file not found", "--with libxcb1-dev"),
        (
            "CMake Error at my_acl-subbuild/populate/clone.cmake:55: Failed to clone repository: x",
            "fetches my_acl, .* --source my_acl=DIR, and --env VARIABLE={my_acl} where",
        ),
        (
            "CMake Error at b/CMakeFiles/fc-tmp/googletest/googletest-gitclone.cmake:55: Failed to clone x",
            "fetches googletest, .* --source googletest=DIR",
        ),
        (
            "CMake Error at b/foo-prefix/tmp/foo-gitclone.cmake:55: Failed to clone repository: x",
            "--with the library's Debian package, where",  # ExternalProject takes no other folder
        ),
        (
            "ld.lld: error: undefined symbol: re2::RE2::RE2(std::__1::basic_string_view<char, A>)",
            "needs GNU's C.. library, .*--toolchain gcc",
        ),
        ("x.cpp:1:10: fatal error: 'boost/asio.hpp' file not found", "--with libboost-dev"),
        ("x.cc:2:10: fatal error: Eigen/Core: No such file or directory", "--with libeigen3-dev"),
        ("x.cpp:1:10: fatal error: 'qpdf/QPDF.hh' file not found", "--with libqpdf-dev"),
        ('Dependency "geos" not found, tried pkgconfig', "--with libgeos-dev"),
        (
            "x.c:1:10: fatal error: 'rare/thing.h' file not found",
            "no rare/thing.h: --with the Debian package",
        ),
        (
            "error: unable to find dynamic system library 'z' using strategy",
            "z is not among .* --with zlib1g-dev",
        ),
        ("ld: cannot find -lrare: No such file", "rare is not among .* --with the Debian package"),
        ("ld: cannot find -lquadmath: No such file", "libquadmath, .* not have for AArch64: --patch"),
        ("-- Could NOT find ZLIB (missing: ZLIB_LIBRARY)", "--with zlib1g-dev"),
        (
            'File "/env/nanobind/stubgen.py", line 1760, in <module>\nModuleNotFoundError: No module named x',
            "generator of stubs imports .* --patch can drop it, --lane container can",
        ),
        ("OSError: [Errno 8] Exec format error: './configure-check'", "runs an AArch64 program"),
        ("configure: error: cannot run test program while cross compiling", "runs an AArch64 program"),
        ("FAIL: verify1\nTestsuite summary for libsodium 1.0\n# FAIL: 80", "--lane container can"),
        ("lookup for geos failed: Invalid version, need 'geos' ['>=3.10']", "--with NAME/bookworm"),
        (
            (
                "Updating crates.io index\nerror: failed to get `base64` as a dependency of package `x`\n"
                "Caused by:\n [6] Could not resolve hostname (Could not resolve host: index.crates.io)"
            ),
            "`cargo vendor` in the unpacked sdist",
        ),
        ("error: no matching package named `pyo3` found\nlocation searched: crates.io index", "cargo vendor"),
        ("thread 'main' panicked at bindgen:\nUnable to find libclang: \"x\"", "--build-requires libclang"),
        ("swig: not found\nerror: command '/x/swig' failed with exit code 127", "--build-requires swig"),
        ("error: command 'swig' failed: No such file or directory", "--build-requires swig"),
        ("CMake Error: Could NOT find SWIG (missing: SWIG_EXECUTABLE)", "--build-requires swig"),
        ("Error: pg_config executable not found.", "asks pg_config, .*: --with libpq-dev"),
        (
            "Could not run curl-config: [Errno 2] No such file or directory: 'curl-config'",
            "--with libcurl4-openssl-dev",
        ),
        ("/bin/sh: 1: krb5-config: not found", "--with libkrb5-dev"),
        ("/bin/sh: 1: rare-config: not found", "asks a program .* this machine too .*, or --lane container"),
        ("proj executable not found. Please set", "asks a program where a library is"),
        (
            "Package libusb-1.0 was not found in the pkg-config search path.",
            "libusb-1.0 is not among .* --with libusb-1.0-0-dev",
        ),
        ("Exception: pkg-config package 'libusb-1.0 >= 1.0.9' not found", "--with libusb-1.0-0-dev"),
        (
            'CMake Error: By not providing "FindArrow.cmake" in CMAKE_MODULE_PATH this project',
            "Arrow is not among the target's libraries: --with the Debian package that brings it",
        ),
        ("Package 'yaml-0.1', required by 'virtual:world', not found", "yaml-0.1 is not among"),
        (
            "x.c:7:3: error: always_inline function '__crc32b' requires target feature 'crc', but would",
            "--baseline cortex-a72",
        ),
        ('src/x.h:100:4: error: "THING requires MPC 1.2.1 or later."', "--with NAME/bookworm"),
        ("Exception: This version of thing requires HDF5 >= 1.10.7 and", "--with NAME/bookworm"),
        ("src/x.h:9:2: error: #error Thing requires mpfr 4.0 or newer", "--with NAME/bookworm"),
        ('Could NOT find GEOS: Found unsuitable version "3.9.0", but required is', "--with NAME/bookworm"),
        ("SystemExit: ERROR: Minimum supported PROJ version is 9.4.0, installed", "--with NAME/bookworm"),
        ("error: libhdf5.so: cannot open shared object file: No such file", "--lane container can"),
        (
            "error: Unable to load dependency HDF5, make sure HDF5 is installed",
            "loads a library of the target",
        ),
        (
            "fc/download-bundled_libsodium.cmake:163 (message):\n\n  Each download failed!",
            "--with the library's Debian package, where",
        ),
        (
            "OSError: libhdf5.so: cannot open shared object file: No such file",
            "loads a library of the target",
        ),
    ],
)
def test_what_a_cross_build_cannot_do_is_one_line_with_what_does(said, hint):
    import re  # noqa: PLC0415

    assert re.search(hint, hints.explain(f"lines before\n{said}\nlines after"))
    assert "\n" not in hints.explain(said)


def test_a_name_that_an_old_library_lacks_is_sought_in_a_newer_release():
    said = "src/url.c:92:10: error: use of undeclared identifier 'CURLUE_NO_ZONEID'"
    assert "--with NAME/bookworm" in hints.explain(said, "pycurl", ("libcurl4-openssl-dev",))
    assert hints.explain(said, "pycurl", ("libcurl4-openssl-dev/bookworm",)) == ""
    assert hints.explain(said, "pycurl") == ""


def test_a_header_that_a_given_package_lacks_is_sought_in_a_newer_release():
    said = "src/error.h:33:10: fatal error: 'git2/sys/errors.h' file not found"
    assert hints.explain(said, "pygit2") == "the target has no git2/sys/errors.h: --with libgit2-dev"
    assert hints.explain(said, "pygit2", ("libgit2-dev",)) == hints.OLD
    assert hints.explain(said, "pygit2", ("zlib1g-dev",)) != hints.OLD


@pytest.mark.parametrize(
    ("module", "wanted"),
    [
        ("torch", "--build-requires torch, or"),
        ("numpy.core", "--build-requires numpy, or"),
        ("pkg_resources", "--build-requires 'setuptools<81'"),
        ("my_project._version", ""),
        ("_core", ""),
    ],
)
def test_a_module_that_a_build_imports_and_does_not_require_is_named_with_its_option(module, wanted):
    cause = f"the project's build failed: ModuleNotFoundError: No module named '{module}'"
    hint = hints.not_required(cause, "x", "my-project")
    assert wanted in hint
    assert bool(hint) is bool(wanted)


@pytest.mark.parametrize(
    ("project", "package"),
    [
        ("pyzmq", "libzmq3-dev"),
        ("PyStemmer", "libstemmer-dev"),
        ("dm-tree", "the library's Debian package"),
    ],
)
def test_a_binding_that_downloads_its_library_names_the_librarys_package(project, package):
    assert f"--with {package}, where" in hints.explain("fatal: Could not resolve host: x", project)


@pytest.mark.parametrize(
    "said",
    [
        "src/x.c:3:1: error: use of undeclared identifier 'oops'",
        "ld.lld: error: undefined symbol: std::__1::basic_ostream<char>::put(std::__1::locale)",
        'Could NOT find Python: Found unsuitable version "3.11.2", but required is at least "3.12"',
        "  Exception: thing requires Python >= 3.12",
        "x requires Python 3.12 or later, see docs/x.rst:12: errors",
    ],
)
def test_an_ordinary_error_of_the_project_gets_no_hint(said):
    assert hints.explain(said) == ""
