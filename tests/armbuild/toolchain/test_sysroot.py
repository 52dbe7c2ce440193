import pytest

from armbuild.errors import MissingError, UsageError
from armbuild.target import debian
from armbuild.toolchain import sysroot


def fake_archive(monkeypatch, *, without=()):
    asked = []

    def download(packages, *, suite, into, **_others):
        asked.append((suite, packages))
        if suite in without:
            raise MissingError("no such suite")
        files = []
        for name in (*packages, "libc6-dev", "libgcc-s1", "zlib1g"):
            files.append(into / f"{name}_1_arm64.deb")
            files[-1].touch()
        return files

    def unpack(files, folder, *, only):
        (folder / "packages").write_text(" ".join(sorted({file.name.split("_")[0] for file in files})))
        libraries = folder / "usr/lib/aarch64-linux-gnu"
        libraries.mkdir(parents=True)
        (libraries / "libgomp.so.1").touch()
        (libraries / "libc.so").write_text(
            "/* GNU ld script */\nGROUP ( /lib/aarch64-linux-gnu/libc.so.6 /usr/lib/x/libc_nonshared.a )\n"
        )

    monkeypatch.setattr(sysroot.debian, "download", download)
    monkeypatch.setattr(sysroot.debian.deb_files, "unpack", unpack)
    monkeypatch.setattr(sysroot.debian, "archive", lambda _mirror: debian.Archive(uri="http://x"))
    return asked


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))


def test_a_compiler_with_its_own_c_library_never_sees_another(monkeypatch):
    fake_archive(monkeypatch)
    made = sysroot.make(("zlib1g-dev",), compiler=False, mirror=None)
    assert (made.folder / "packages").read_text() == "zlib1g zlib1g-dev"
    whole = sysroot.make(("zlib1g-dev",), compiler=True, mirror=None)
    assert "libc6-dev" in (whole.folder / "packages").read_text()


def test_the_oldest_release_that_has_the_packages_is_taken(monkeypatch):
    asked = fake_archive(monkeypatch, without=("bullseye",))
    assert sysroot.make(("libnew-dev",), compiler=False, mirror=None).suite == "bookworm"
    assert [suite for suite, _ in asked] == ["bullseye", "bookworm"]


def test_linker_scripts_name_no_folders_and_runtimes_can_be_linked(monkeypatch):
    fake_archive(monkeypatch)
    made = sysroot.make((), compiler=True, mirror=None)
    script = (made.folder / "usr/lib/aarch64-linux-gnu/libc.so").read_text()
    assert "( libc.so.6 libc_nonshared.a )" in script
    assert (made.folder / "linkable/libgomp.so").resolve().name == "libgomp.so.1"
    assert made.libraries[0] == made.folder / "linkable"


def test_the_best_blas_is_where_debians_alternatives_would_link_it(tmp_path):
    libraries = tmp_path / "usr/lib/aarch64-linux-gnu"
    for name in ("lapack/liblapack.so", "blas/libblas.so", "openblas-pthread/libblas.so",
                 "openblas-pthread/pkgconfig/openblas.pc"):  # fmt: skip
        (libraries / name).parent.mkdir(parents=True, exist_ok=True)
        (libraries / name).write_text(name)
    (tmp_path / "usr/include/aarch64-linux-gnu/blas").mkdir(parents=True)
    (tmp_path / "usr/include/aarch64-linux-gnu/blas/cblas.h").touch()
    sysroot._link_alternatives(tmp_path)
    assert (libraries / "libblas.so").read_text() == "openblas-pthread/libblas.so"
    assert (libraries / "liblapack.so").read_text() == "lapack/liblapack.so"
    assert (libraries / "pkgconfig/openblas.pc").readlink().parent.name == "pkgconfig"
    assert (tmp_path / "usr/include/aarch64-linux-gnu/cblas.h").exists()


@pytest.mark.parametrize("place", ["llvm-11/include/openmp", "llvm-14/lib/clang/14.0.6/include"])
def test_llvms_openmp_is_where_any_compiler_looks(tmp_path, place):
    made = sysroot.Sysroot(folder=tmp_path, suite="bullseye")
    sysroot._link_openmp(tmp_path)
    assert not made.openmp.exists()
    (tmp_path / "usr/lib" / place).mkdir(parents=True)
    (tmp_path / "usr/lib" / place / "omp.h").write_text("omp")
    libraries = tmp_path / "usr/lib/aarch64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / "libomp.so.5").touch()
    sysroot._link_openmp(tmp_path)
    assert (tmp_path / "usr/include/omp.h").read_text() == "omp"
    assert made.openmp.samefile(libraries / "libomp.so.5")
    assert (libraries / "libgomp.so").samefile(made.openmp), "for what knows GCC alone"


def test_what_is_no_package_name_is_refused():
    with pytest.raises(UsageError, match="--with zlib1g-dev;rm"):
        sysroot.check_names(("zlib1g-dev;rm",))


def test_a_suite_can_be_named_as_apt_takes_it(monkeypatch):
    asked = fake_archive(monkeypatch)
    made = sysroot.make(("zlib1g-dev/bookworm",), compiler=False, mirror=None)
    assert (made.suite, sysroot.make(("zlib1g-dev",), compiler=False, mirror=None).suite) == (
        "bookworm",
        "bullseye",
    )
    assert asked == [("bookworm", ("zlib1g-dev",)), ("bullseye", ("zlib1g-dev",))]
    for names, reason in (
        (("zlib1g-dev/sid",), "from bullseye or bookworm"),
        (("a-dev/bullseye", "b-dev/bookworm"), "come from one suite"),
    ):
        with pytest.raises(UsageError, match=reason):
            sysroot.check_names(names)
