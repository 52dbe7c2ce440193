"""What cargo and rustc are told, with programs that stand for them."""

import os
import subprocess
from pathlib import Path

import pytest

from armbuild.errors import MissingError
from armbuild.toolchain import rust
from armbuild.toolchain.compilers import program
from armbuild.toolchain.rust import TARGET, Rust


@pytest.fixture
def toolchain(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("cargo", "rustc"):
        program(tmp_path / name, '#!/bin/sh\nprintf "%s\\n" "$@"\n')
    return Rust(
        cargo=tmp_path / "cargo", rustc=tmp_path / "rustc", folder=tmp_path, description="rustc 1.96.0"
    )


@pytest.fixture
def world(toolchain, tmp_path):
    return toolchain.environment(
        Path("/tools/bin"),
        Path("/sysconfig"),
        "3.11",
        build=tmp_path / "build",
        home=Path("/home/x/.cargo"),
        baseline=["-mcpu=generic+fullfp16+sve2_aes+pauth"],
        prefix_map={"/source": "/build/source"},
    )


def compiled(world, tmp_path, *arguments, **variables):
    (tmp_path / "build").mkdir(exist_ok=True)
    done = subprocess.run(
        [world["RUSTC_WRAPPER"], world["RUSTC"], *arguments],
        env={"PATH": os.environ["PATH"], "ARMBUILD_CRATES": world["ARMBUILD_CRATES"], **variables},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def test_features_have_rustcs_names():
    flags = ["-O2", "-mcpu=generic+crc+fullfp16+fp16fml+rcpc_immo+complxnum+pauth+sve2_bitperm"]
    assert rust.target_features(flags) == [
        "-C", "target-feature=+crc,+fp16,+fhm,+rcpc2,+fcma,+paca,+pacg,+sve2-bitperm",
    ]  # fmt: skip
    assert rust.target_features(["-O2"]) == []


@pytest.mark.parametrize("target", [("--target", TARGET), (f"--target={TARGET}",)])
def test_the_baseline_is_compiled_into_the_target_and_folders_into_nothing(world, tmp_path, target):
    said = compiled(world, tmp_path, "--crate-name", "x", *target)
    assert "target-feature=+fp16,+sve2-aes,+paca,+pacg" in said
    assert said[-2:] == [
        "--remap-path-prefix=/home/x/.cargo=/cargo",
        "--remap-path-prefix=/source=/build/source",
    ]


def test_what_runs_on_this_machine_has_no_baseline(world, tmp_path):
    said = compiled(world, tmp_path, "--crate-name", "build_script_build")
    assert not any("target-feature" in line for line in said)


def test_the_crates_that_are_compiled_are_recorded(world, tmp_path):
    compiled(world, tmp_path, "--target", TARGET, CARGO_PKG_NAME="memchr", CARGO_PKG_VERSION="2.8.0")
    compiled(world, tmp_path, "x", CARGO_PKG_NAME="cc", CARGO_PKG_VERSION="1.6.0")
    compiled(world, tmp_path, "-vV")  # a question about no crate
    assert Path(world["ARMBUILD_CRATES"]).read_text() == "target memchr 2.8.0\nhost cc 1.6.0\n"


def test_sccache_sees_the_whole_command_line_and_ccache_none(world, tmp_path):
    program(tmp_path / "sccache", '#!/bin/sh\necho sccache "$@" "${ARMBUILD_LAUNCHER-alone}"\n')
    program(tmp_path / "ccache", "#!/bin/sh\nexit 1\n")
    (line,) = compiled(world, tmp_path, "--target", TARGET, ARMBUILD_LAUNCHER=str(tmp_path / "sccache"))
    assert line.startswith(f"sccache {world['RUSTC']} --target {TARGET} -C target-feature=")
    assert "--remap-path-prefix=" in line
    assert line.endswith(" alone"), "its server would call itself when the linker asks who it is"
    assert compiled(world, tmp_path, "x", ARMBUILD_LAUNCHER=str(tmp_path / "ccache"))[0] == "x"


@pytest.mark.parametrize(
    ("file", "text", "stated"),
    [
        ("home/config.toml", "[net]\nretry = 5\n", True),
        ("home/config", "net.retry = 5\n", True),
        ("up/project/.cargo/config.toml", "[net]\nretry = 5\n", True),
        ("up/.cargo/config.toml", "[net]\nretry = 5\n", True),
        ("home/config.toml", "[net]\ngit-fetch-with-cli = true\n", False),
        ("home/config.toml", "[net\n", False),
        ("home/other.toml", "[net]\nretry = 5\n", False),
    ],
)
def test_cargo_repeats_a_download_once_unless_its_settings_say_otherwise(tmp_path, file, text, stated):
    """A variable would override the user's file."""
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    places = tmp_path / "home", tmp_path / "up/project"
    assert rust.retries(*places, {"PATH"}) == ({} if stated else {"CARGO_NET_RETRY": "1"})
    assert rust.retries(*places, {"PATH", "CARGO_NET_RETRY"}) == {}, "the variable stays as it is"


def test_bindgen_searches_headers_where_the_cross_compiler_does(tmp_path):
    said = "#include <...> search starts here:\\n /zig lib/include\\n target/include\\nEnd of search list.\\n"
    program(tmp_path / "cc", f"#!/bin/sh\nprintf '{said}' >&2\n")
    name = "BINDGEN_EXTRA_CLANG_ARGS_aarch64_unknown_linux_gnu"
    arguments = "-nostdinc -isystem '/zig lib/include' -isystem /target/include"
    assert rust.bindgen(tmp_path / "cc", {"PATH"}) == {name: arguments}
    assert rust.bindgen(tmp_path / "cc", {"BINDGEN_EXTRA_CLANG_ARGS"}) == {}, "the variable stays as it is"


def test_the_hosts_code_gets_the_hosts_compilers(world, monkeypatch, toolchain):
    assert world["CARGO_BUILD_TARGET"] == TARGET
    assert world[f"CARGO_TARGET_{TARGET.replace('-', '_').upper()}_LINKER"] == "/tools/bin/cc"
    assert world["CC_aarch64_unknown_linux_gnu"] == "/tools/bin/cc"
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    there = toolchain.environment(
        Path("/t"), Path("/s"), "3.11", build=Path("/b"), home=Path("/h"), baseline=(), prefix_map={}
    )
    host = Path(there["CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER"])
    assert "x86_64-linux-gnu.2.28" in host.read_text()
    assert Path(there["CXX_x86_64_unknown_linux_gnu"]).name == "host-c++"
    assert Path(there["PATH"], "rustc").readlink() == toolchain.rustc


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (("build", "--release"), "."),
        (("build", "--manifest-path", "native/Cargo.toml"), "native"),
        (("build", "--manifest-path=native/Cargo.toml", "-v"), "native"),
    ],
)
def test_a_hook_finds_what_cargo_made_where_a_build_for_its_own_machine_puts_it(
    world, tmp_path, toolchain, arguments, place
):
    made = f'"$CARGO_TARGET_DIR/{TARGET}/release"'
    program(toolchain.cargo, f'#!/bin/sh\nmkdir -p {made} && echo "$*" > {made}/libthing.so\n')
    (project := tmp_path / "a project").mkdir()
    variables = {"PATH": os.environ["PATH"], "CARGO_TARGET_DIR": world["CARGO_TARGET_DIR"]}
    subprocess.run([Path(world["PATH"], "cargo"), *arguments], cwd=project, env=variables, check=True)
    for folder in (project / place / "target", Path(world["CARGO_TARGET_DIR"])):
        assert (folder / "release/libthing.so").read_text() == " ".join(arguments) + "\n"


def test_a_hook_sees_that_cargo_failed(world, tmp_path, toolchain):
    program(toolchain.cargo, "#!/bin/sh\nexit 101\n")
    done = subprocess.run([Path(world["PATH"], "cargo"), "build"], cwd=tmp_path, env={}, check=False)
    assert done.returncode == 101
    assert not (tmp_path / "target").exists()


def test_a_call_of_rust_where_it_is_not_leaves_a_mark(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    mark = tmp_path / "build 1/asked"
    done = subprocess.run([rust.ask(mark) / "cargo", "build"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (127, "cargo: Rust is not here yet\n")
    assert mark.exists()


@pytest.mark.parametrize(
    ("library", "cargo", "found"),
    [(TARGET, "1.96.0", True), ("x86_64-unknown-linux-gnu", "1.96.0", False), (TARGET, "1.85.1", False)],
    ids=["whole", "without the target's library", "cargo of another version"],
)
def test_this_machines_rust_serves_if_it_is_whole(tmp_path, monkeypatch, library, cargo, found):
    (tmp_path / f"lib/rustlib/{library}/lib").mkdir(parents=True)
    (tmp_path / f"lib/rustlib/{library}/lib/libstd-1.rlib").touch()
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin/cargo", f"#!/bin/sh\necho cargo {cargo}\n")
    answer = f'case "$*" in *sysroot*) echo {tmp_path} ;; *) echo "rustc 1.96.0 (abc)" ;; esac'
    program(tmp_path / "bin/rustc", f"#!/bin/sh\n{answer}\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert (rust.installed() is not None) is found
    if found:
        assert rust.installed().description == "rustc 1.96.0 (abc), this machine's"


def test_where_no_rust_can_be_had_the_message_says_what_brings_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(rust, "installed", lambda: None)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(MissingError, match="rustup target add aarch64-unknown-linux-gnu") as caught:
        rust.find(None)
    assert "riscv64" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2


def test_debians_rust_brings_its_libraries_and_no_compiler():
    depends = (
        "libc6 (>= 2.34), libgcc-s1, rustc-web (= 1.96), binutils, gcc | clang, libc6-dev | libc-dev, libssl3"
    )
    assert rust._libraries(f"{depends}, libstd-rust-web-dev (= 1.96), libstd-rust-web-1.96") == [
        "libc6", "libgcc-s1", "libssl3", "libstd-rust-web-1.96",
    ]  # fmt: skip


def test_a_raised_baseline_reaches_the_cargo_of_an_arm_machine_beside_the_users_flags(monkeypatch):
    monkeypatch.delenv("RUSTFLAGS", raising=False)
    assert rust.baseline(()) == {}
    name = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS"
    assert rust.baseline(["-mcpu=generic+sve"]) == {name: "-C target-feature=+sve"}
    monkeypatch.setenv("RUSTFLAGS", "--cfg tokio_unstable")
    assert rust.baseline(["-mcpu=generic+sve"]) == {
        "RUSTFLAGS": "--cfg tokio_unstable -C target-feature=+sve"
    }


@pytest.mark.parametrize("fields", [[{}] * 3, [{"Version": "1"}, {"Version": "2"}, {}]])
def test_packages_of_rust_that_do_not_match_are_an_error_in_one_line(tmp_path, monkeypatch, fields):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    answers = iter(fields)
    monkeypatch.setattr(rust.debian, "archive", lambda _mirror: None)
    monkeypatch.setattr(rust.debian, "download", lambda names, **_options: [Path(name) for name in names])
    monkeypatch.setattr(rust.deb_files, "control", lambda _package: next(answers))
    with pytest.raises(MissingError, match="of different versions, or of none"):
        rust._unpack(tmp_path / "root", "amd64", None)
