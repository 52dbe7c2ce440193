"""What a build hears of the target when it asks this machine: its CPU, its libraries."""

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import armisa
from armbuild.toolchain import crossenv, target_answers
from armbuild.toolchain.compilers import program
from armbuild.toolchain.sysroot import Sysroot

PROGRAMS = {
    "pkg-config": "exit 1",  # the build's own stays
    "aarch64-linux-gnu-pkg-config": "exit 1",
    "curl-config": 'echo "$1 -I/usr/include/x -L/usr/lib -lusr /opt/usr/lib -DA=/usr"; echo /usr',
    "krb5-config": "echo broken; exit 3",
    "curl": "echo no",
}

UNAME_OF_A_HOST = """\
#!{python}
import argparse
fields = dict(s="Linux", n="{m}-host", r="6.1.{m}", v="built on {m}", m="{m}", p="{m}", i="{m}")
fields["o"] = "GNU/Linux"
names = dict(s="--kernel-name", n="--nodename", r="--kernel-release", m="--machine", v="--kernel-version")
parser = argparse.ArgumentParser()
parser.add_argument("-a", "--all", action="store_true")
for letter in fields:
    parser.add_argument("-" + letter, names.get(letter, "--" + letter), dest=letter, action="store_true")
wanted = parser.parse_args()
print(*(text for letter, text in fields.items() if wanted.all or getattr(wanted, letter)))
"""


@pytest.mark.parametrize("core", ["neoverse-v1", "neoverse-n1", None])
def test_the_cpu_that_is_described_has_the_features_of_the_baseline_and_no_others(core):
    text = target_answers.cpuinfo(core, 2)
    read = armisa.Isa.from_cpuinfo(text)
    expected = armisa.Isa.from_target(core or "cortex-a53")
    assert read.features == (expected.features if core else target_answers.LOWEST)
    assert {found.name for found in read.cores} == {found.name for found in expected.cores}
    assert text.count("processor\t") == 2


@pytest.fixture
def answers(tmp_path):
    """A folder with the programs, a sitecustomize.py, and a sysroot with one library."""
    libraries = tmp_path / "root/usr/lib/aarch64-linux-gnu"
    libraries.mkdir(parents=True)
    (libraries / "libtcmalloc.so.4").touch()
    programs = tmp_path / "root/usr/bin"
    programs.mkdir(parents=True)
    for name, text in PROGRAMS.items():
        program(programs / name, f"#!/bin/sh\n{text}\n")
    (programs / "broken-config").symlink_to("/nowhere")
    system = Sysroot(folder=tmp_path / "root", suite="bullseye")
    opening = target_answers.write(tmp_path, tmp_path, "neoverse-v1", system, Path("/usr/bin/env"))
    (tmp_path / "sitecustomize.py").write_text(crossenv.SITECUSTOMIZE + opening)
    return tmp_path


def run(answers, *command):
    path = f"{answers / 'answers'}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "PYTHONPATH": str(answers)}
    return subprocess.run(
        command, env=env, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL
    ).stdout


def test_scripts_and_pythons_open_read_the_targets_cpu(answers):
    described = (answers / "cpuinfo").read_text()
    assert " i8mm " in described
    assert run(answers, "cat", "/proc/cpuinfo") == described
    assert run(answers, "sh", "-c", "grep -c i8mm /proc/cpuinfo").strip() == str(os.cpu_count())
    for code in (
        "print(open('/proc/cpuinfo').read(), end='')",
        "from pathlib import Path; print(Path('/proc/cpuinfo').read_text(), end='')",
        "import io; print(io.open(file='/proc/cpuinfo', mode='rb').read().decode(), end='')",
        "class A:\n  o = open\nprint(A().o('/proc/cpuinfo').read(), end='')",
    ):
        assert run(answers, sys.executable, "-c", code) == described


def test_other_files_are_read_as_they_are(answers):
    (answers / "a b").write_text("one\n")
    assert run(answers, "cat", str(answers / "a b")) == "one\n"
    assert run(answers, "grep", "-o", "n", str(answers / "a b")) == "n\n"
    code = "import sys; print(open(sys.argv[1]).read(), open(0).read() == '', end='')"
    assert run(answers, sys.executable, "-c", code, str(answers / "a b")) == "one\n True"


def test_uname_names_the_targets_machine_and_for_the_rest_this_one(answers):
    """Else a Makefile of libdeflate's kind compiles code for x86-64."""
    machine, system = platform.machine(), platform.system()
    assert run(answers, "uname", "-m") == "aarch64\n"
    assert run(answers, "uname", "-sm") == f"{system} aarch64\n"
    assert run(answers, "uname") == f"{system}\n"
    plain = subprocess.run(["uname", "-a"], check=True, capture_output=True, text=True).stdout
    assert run(answers, "uname", "-a") == plain.replace(machine, "aarch64")
    with pytest.raises(subprocess.CalledProcessError):
        run(answers, "uname", "--no-such-option")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("-n", "{m}-host"),
        ("--nodename", "{m}-host"),
        ("-r", "6.1.{m}"),
        ("--kernel-release --machine", "6.1.{m} aarch64"),
        ("-m -n", "{m}-host aarch64"),
        ("-vsm", "Linux built on {m} aarch64"),
        ("-pi", "aarch64 aarch64"),
        ("-a", "Linux {m}-host 6.1.{m} built on {m} aarch64 aarch64 aarch64 GNU/Linux"),
        ("--all", "Linux {m}-host 6.1.{m} built on {m} aarch64 aarch64 aarch64 GNU/Linux"),
    ],
)
def test_uname_changes_no_host_or_release_that_contains_the_machines_name(answers, tmp_path, options, said):
    """Else a build on a host called x86_64-host would hear of a host that is nowhere."""
    m = platform.machine()
    program(tmp_path / "host-uname", UNAME_OF_A_HOST.format(python=sys.executable, m=m))
    text = (answers / "answers/uname").read_text()
    program(answers / "answers/uname", text.replace(shutil.which("uname"), str(tmp_path / "host-uname")))
    assert run(answers, "uname", *options.split()) == said.format(m=m) + "\n"


def test_ldconfig_lists_the_sysroots_libraries_and_changes_nothing(answers):
    """Else a build would copy this machine's libraries into the wheel."""
    listed = run(answers, "ldconfig", "-p").splitlines()
    place = answers / "root/usr/lib/aarch64-linux-gnu/libtcmalloc.so.4"
    assert listed == [
        "1 libs found in cache `/etc/ld.so.cache'",
        f"\tlibtcmalloc.so.4 (libc6,AArch64) => {place}",
    ]
    assert run(answers, "ldconfig") == ""


def test_a_librarys_own_program_answers_with_folders_of_the_target(answers):
    """Else a build would compile with this machine's libcurl, or with none."""
    usr = answers / "root/usr"
    assert run(answers, "curl-config", "--libs").splitlines() == [
        f"--libs -I{usr}/include/x -L{usr}/lib -lusr /opt/usr/lib -DA={usr}",
        str(usr),
    ]
    assert sorted(path.name for path in (answers / "answers").glob("*-config")) == [
        "curl-config",
        "krb5-config",
    ]
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run(answers, "krb5-config", "--libs")
    assert failed.value.returncode == 3
    assert not (answers / "answers/curl").exists()


def test_swig_reads_the_targets_headers(answers, tmp_path):
    """Else it would wrap functions of this machine's OpenSSL, which the target's does not have."""
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run(answers, "swig", "-version")
    assert (failed.value.returncode, failed.value.stderr) == (127, "swig: not found\n")
    (tools := tmp_path / "tools").mkdir()
    program(tools / "swig", "#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    path = os.pathsep.join((str(answers / "answers"), str(tools), os.environ["PATH"]))
    own = f"-I/usr/include/{platform.machine()}-linux-gnu"
    asked = [own, f"{own}/x", "-I/usr/include", "-I/usr/include/openssl", "-I/usr/included", "-I.", "a b.i"]
    said = subprocess.run(
        ["swig", *asked], env={"PATH": path}, check=True, capture_output=True, text=True
    ).stdout  # fmt: skip
    usr = f"-I{answers / 'root/usr/include'}"
    assert said.splitlines() == [
        f"{usr}/aarch64-linux-gnu",
        f"{usr}/aarch64-linux-gnu/x",
        usr,
        f"{usr}/openssl",
        "-I/usr/included",
        "-I.",
        "a b.i",
    ]
