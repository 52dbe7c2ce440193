"""What can be asked of a build and what is refused: lanes, outputs, baselines, Pythons."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.armbuild.plans import planned

from armbuild.errors import MissingError, UsageError
from armbuild.host import pythons
from armbuild.wheel import planning, project
from armbuild.wheel.interpreters import find_interpreters
from armbuild.wheel.settings import Settings
from armisa.errors import IsaError

PROJECT = Path(__file__).parents[1] / "projects/setuptools"


def test_an_unknown_baseline_is_refused():
    with pytest.raises(IsaError, match="neoverse-v9"):
        planning.baseline("neoverse-v9", as_variant=False)


@pytest.mark.parametrize(
    ("lane", "machine", "expected"),
    [
        (None, "x86_64", "cross"),
        (None, "aarch64", "native"),
        ("cross", "aarch64", "cross"),
        (None, "riscv64", "cross"),
    ],
)
def test_the_lane_follows_the_machine_unless_named(monkeypatch, tmp_path, lane, machine, expected):
    monkeypatch.setattr("platform.machine", lambda: machine)
    plan = planned(PROJECT, lane=lane, output=tmp_path, compile_cache="none")
    assert plan.lane == expected


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"lane": "crsos"}, "--lane crsos: there are cross, native and container; did you mean cross"),
        ({"lane": "continer"}, "did you mean container"),
        ({"toolchain": "gc"}, "--toolchain gc: there are zig, gcc and clang; did you mean gcc"),
    ],
)
def test_a_value_that_a_setting_does_not_have_is_refused(settings, reason):
    with pytest.raises(UsageError, match=reason):
        Settings(**settings).check()


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("one", "version 'one': Invalid version"),
        ("1." * 99 + "1", "its version has more than 128 characters"),
    ],
)
def test_a_version_that_no_file_name_can_hold_is_refused(version, reason):
    with pytest.raises(UsageError, match=reason):
        planning.check_version(replace(project.read(PROJECT), version=version))


def test_the_native_lane_needs_an_arm_machine(monkeypatch, tmp_path):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(UsageError, match="builds on an AArch64 machine, and this is x86_64"):
        planned(PROJECT, lane="native", output=tmp_path)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"lane": "container"}, "--lane container: the cross lane builds for musl"),
        ({"toolchain": "gcc"}, "--toolchain gcc: it has GNU's C library"),
        ({"glibc": "2.28"}, "--glibc: musl is another C library"),
        ({"packages": ("zlib1g-dev",)}, "--with: Debian's libraries need GNU's C library"),
        ({"build_requires": ("torch==2.10.0",)}, "it needs torch, which has no wheels for musl"),
        ({"build_requires": ("maturin",)}, "Rust: Debian has no standard library of Rust for musl"),
    ],
)
def test_what_musl_rules_out_is_refused_by_its_name(tmp_path, settings, reason):
    asked = {"lane": "cross", "platform": "musllinux", "output": tmp_path, **settings}
    with pytest.raises(UsageError, match=rf"--platform musllinux, .*{reason}"):
        planned(PROJECT, **asked)


def test_a_plan_for_musl_names_the_target_and_the_tag(tmp_path):
    plan = planned(PROJECT, lane="cross", platform="musllinux", output=tmp_path)
    assert (plan.target, plan.glibc) == ("aarch64-linux-musl", None)
    assert plan.wheel_name(plan.pythons[0]).endswith("-musllinux_1_2_aarch64.whl")
    other = planned(PROJECT, lane="cross", output=tmp_path)
    assert plan.key(plan.pythons[0]) != other.key(other.pythons[0])


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "dist").touch()
    with pytest.raises(UsageError, match="--output"):
        planning.check_writable(tmp_path / "dist", "--output dist")


@pytest.mark.parametrize("out", ["/proc/dist", "/sys/kernel/dist/deeper", "/dev/null/dist"])
def test_an_output_that_takes_no_files_is_found_before_the_build_even_by_root(out):
    with pytest.raises(UsageError, match=f"--output {out}: .*(cannot be written to|is not a folder)"):
        planning.check_writable(Path(out), f"--output {out}")


def test_looking_at_the_output_leaves_nothing_there(tmp_path):
    planning.check_writable(tmp_path / "dist", "--output dist")
    assert not list(tmp_path.iterdir())


def fake_find(*here):
    def find(version):
        if version in here:
            return replace(pythons.find(), version=version)
        raise MissingError(f"no Python {version}\nmore")

    return find


def described(folder, *lines):
    text = "\n".join(('[project]\nname = "x"\nversion = "1"', *lines))
    (folder / "pyproject.toml").write_text(text)
    return project.read(folder, None)


def test_all_means_every_python_the_project_allows_and_names_those_that_cannot_be_had(tmp_path):
    read = described(tmp_path, 'requires-python = ">=3.10,<3.14"')
    found, missing = find_interpreters(read, ["all"], fake_find("3.11", "3.13"))
    assert [python.version for python in found] == ["3.11", "3.13"]
    assert missing == (("3.10", "no Python 3.10"), ("3.12", "no Python 3.12"))
    with pytest.raises(MissingError, match="can be built for none here"):
        find_interpreters(read, ["all"], fake_find())
    with pytest.raises(UsageError, match="name no other"):
        find_interpreters(read, ["all", "3.11"], fake_find("3.11"))


def test_all_says_so_where_a_project_allows_no_python_that_there_is(tmp_path):
    read = described(tmp_path, 'requires-python = ">=3.99"')
    with pytest.raises(UsageError, match=r"x needs Python >=3\.99: none fits"):
        find_interpreters(read, ["all"], fake_find("3.11"))


@pytest.mark.parametrize(
    ("classifiers", "tried"),
    [
        ('["Programming Language :: Python :: Free Threading :: 2 - Beta"]', ["3.13", "3.14", "3.14t"]),
        ('["Programming Language :: Python :: Free Threading"]', ["3.13", "3.14", "3.14t"]),
        ('["Programming Language :: Python :: 3"]', ["3.13", "3.14"]),
    ],
)
def test_all_includes_the_free_threaded_python_where_the_project_says_that_it_supports_it(
    tmp_path, classifiers, tried
):
    read = described(tmp_path, 'requires-python = ">=3.13"', f"classifiers = {classifiers}")
    found, _ = find_interpreters(read, ["all"], fake_find(*tried))
    assert [python.version for python in found] == tried
    _, missing = find_interpreters(read, ["all"], fake_find("3.13", "3.14"))
    assert [version for version, _ in missing] == tried[2:]


def test_a_wheel_without_a_test_is_refused_where_it_must_be_run(monkeypatch, tmp_path):
    def plan(**settings):
        return planned(PROJECT, output=tmp_path, compile_cache="none", lane="cross", **settings)

    monkeypatch.setenv("CI", "true")
    for settings, reason in (
        ({}, "in CI a wheel must be run .*: no test of fixture-setuptools was named: use --import NAME"),
        ({"require_proof": True}, "--require-proof: no test of fixture-setuptools was named"),
        ({"require_proof": True, "smoke": False}, "--no-smoke that it is not"),
    ):
        with pytest.raises(UsageError, match=reason):
            plan(**settings)
    assert plan(smoke=False).cpus == plan(require_proof=False).cpus == ()
    assert plan(imports=("fixture_setuptools",)).cpus
    monkeypatch.setenv("CI", "0")
    assert plan().cpus == ()
