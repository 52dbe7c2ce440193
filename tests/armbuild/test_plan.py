import json
from dataclasses import replace
from pathlib import Path

import pytest

from armbuild import isa, plan, pythons
from armbuild.errors import MissingError, UsageError

ROOT = Path(__file__).parents[2]
PROJECTS = Path(__file__).parent / "projects"
OPTIONAL = [target.name for target in isa.kernel_targets() if target.name in plan.KERNEL_FLAGS]


def planned(folder=ROOT, **options):
    return plan.plan(folder, **{"out": Path("/tmp/out"), "lane": "cross", **options})  # noqa: S108


def test_without_options_the_wheel_holds_every_kernel_target_and_runs_everywhere():
    chosen = planned()
    assert {"scalar", "neon", *OPTIONAL} == set(chosen.targets)
    assert chosen.flags == ()
    assert chosen.baseline is None
    assert [python.version for python in chosen.pythons] == [pythons.find().version]


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_kernel_target_can_be_left_out(name):
    chosen = planned(kernels={name: False})
    assert name not in chosen.targets
    assert chosen.defines()[f"ARMLLM_{name.upper()}"] == "OFF"


def test_every_kernel_flag_has_a_target():
    assert set(plan.KERNEL_FLAGS) == set(OPTIONAL)


def test_a_kernel_target_that_does_not_exist_is_refused_when_asked_for_and_fine_when_not():
    with pytest.raises(UsageError, match="--warp9: this version has no warp9 kernels"):
        planned(kernels={"warp9": True})
    assert "warp9" not in planned(kernels={"warp9": False}).targets
    assert "ARMLLM_WARP9" not in planned(kernels={"warp9": False}).defines()


@pytest.mark.parametrize("value", [True, False])
def test_kernel_flags_mean_nothing_for_another_project_and_say_so(value):
    with pytest.raises(UsageError, match=r"bf16.*fixture-scikit has no kernel targets"):
        planned(PROJECTS / "scikit", kernels={"bf16": value})


def test_a_baseline_raises_the_floor_and_marks_the_version():
    chosen = planned(baseline="Neoverse_V1")
    assert chosen.baseline == "neoverse-v1"
    assert chosen.label == "neoverse.v1"
    assert chosen.flags[0].startswith("-mcpu=")
    assert "sve" in chosen.flags[0]
    assert chosen.defines()["ARMLLM_BASELINE"] == "neoverse-v1"
    assert "+neoverse.v1-" in chosen.wheel_name(chosen.pythons[0])


def test_an_unknown_baseline_is_refused():
    with pytest.raises(UsageError, match="neoverse-v9"):
        planned(baseline="neoverse-v9")


@pytest.mark.parametrize(
    ("lane", "machine", "chosen"),
    [
        (None, "x86_64", "cross"),
        (None, "aarch64", "native"),
        ("cross", "aarch64", "cross"),
        (None, "riscv64", "cross"),
    ],
)
def test_the_lane_follows_the_machine_unless_named(monkeypatch, lane, machine, chosen):
    monkeypatch.setattr(plan.platform, "machine", lambda: machine)
    assert planned(lane=lane).lane == chosen


@pytest.mark.parametrize(
    ("lane", "reason"),
    [
        ("crsos", "did you mean cross"),
        ("continer", "did you mean container"),
        ("native", "builds on an AArch64 machine, and this is x86_64"),
    ],
)
def test_a_lane_that_cannot_be_is_refused(monkeypatch, lane, reason):
    monkeypatch.setattr(plan.platform, "machine", lambda: "x86_64")
    with pytest.raises(UsageError, match=reason):
        planned(lane=lane)


def test_a_python_that_the_project_does_not_support_is_refused(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nrequires-python = ">=3.99"\n')
    with pytest.raises(UsageError, match=r"x needs Python >=3\.99"):
        planned(tmp_path)


def test_an_output_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "dist").touch()
    with pytest.raises(UsageError, match="--out"):
        planned(out=tmp_path / "dist")


@pytest.mark.parametrize("out", ["/proc/dist", "/sys/kernel/dist/deeper", "/dev/null/dist"])
def test_an_output_that_takes_no_files_is_found_before_the_build_even_by_root(out):
    with pytest.raises(UsageError, match=f"--out {out}: .*(cannot be written to|is not a folder)"):
        planned(out=Path(out))


def test_looking_at_the_output_leaves_nothing_there(tmp_path):
    planned(out=tmp_path / "dist")
    assert not list(tmp_path.iterdir())


def test_plans_that_compile_differently_do_not_share_a_folder():
    python = pythons.find()
    keys = {
        planned(**options).key(python)
        for options in ({}, {"baseline": "neoverse-n1"}, {"kernels": {OPTIONAL[0]: False}})
    }
    assert len(keys) == 3
    assert planned().key(python) == planned(out=Path("/elsewhere"), cpus=("max",)).key(python)


def test_the_plan_is_a_json_document_that_says_what_would_happen():
    facts = json.loads(json.dumps(planned(python_versions=(pythons.find().version,), cpus=()).as_dict()))
    assert facts["schema"] == 1
    assert facts["steps"] == ["build", "repair", "audit"]
    assert facts["wheels"][0]["file"].endswith("_aarch64.whl")
    assert facts["kernels"] == list(planned().targets)


def test_a_version_that_has_a_label_already_keeps_it(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.0+cpu"\n')
    chosen = planned(tmp_path, baseline="neoverse-n1")
    assert "x-1.0+cpu.neoverse.n1-" in chosen.wheel_name(chosen.pythons[0])


def fake_find(*here):
    def find(version):
        if version in here:
            return replace(pythons.find(), version=version)
        raise MissingError(f"no Python {version}\nmore")

    return find


def test_all_means_every_python_the_project_allows_and_names_those_that_cannot_be_had():
    chosen = planned(python_versions=["all"], find=fake_find("3.11", "3.13"))
    assert [python.version for python in chosen.pythons] == ["3.11", "3.13"]
    assert [version for version, _ in chosen.missing] == ["3.10", "3.12", "3.14"]
    assert chosen.as_dict()["missing"][0] == {"python": "3.10", "reason": "no Python 3.10"}
    with pytest.raises(MissingError, match="can be built for none here"):
        planned(python_versions=["all"], find=fake_find())
    with pytest.raises(UsageError, match="name no other"):
        planned(python_versions=["all", "3.11"])


def test_all_says_so_where_a_project_allows_no_python_that_there_is(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.99"\n'
    )
    with pytest.raises(UsageError, match=r"x needs Python >=3\.99: none fits"):
        planned(tmp_path, python_versions=["all"], find=fake_find("3.11"))


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
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.13"\nclassifiers = {classifiers}\n'
    )
    chosen = planned(tmp_path, python_versions=["all"], find=fake_find(*tried))
    assert [python.version for python in chosen.pythons] == tried
    without = planned(tmp_path, python_versions=["all"], find=fake_find("3.13", "3.14"))
    assert [version for version, _ in without.missing] == tried[2:]
    named = planned(tmp_path, python_versions=["3.14t"], find=fake_find("3.14t"))
    assert named.wheel_name(named.pythons[0]).startswith("x-1-cp314-cp314t-manylinux_")


def test_wheels_of_the_engine_for_several_pythons_share_what_was_compiled_and_others_do_not():
    one, other = (replace(pythons.find(), version=version) for version in ("3.11", "3.12"))
    assert planned().key(one) == planned().key(other)
    scikit = planned(PROJECTS / "scikit")
    assert scikit.key(one) != scikit.key(other)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"toolchain": "gc"}, "did you mean gcc"),
        ({"packages": ["zlib1g-dev,;"]}, "--with ;"),
        ({"isolation": False, "lock": Path("x")}, "--lock"),
    ],
)
def test_options_that_cannot_be_honoured_are_refused(options, reason):
    with pytest.raises(UsageError, match=reason):
        planned(**options)


def test_what_extends_torch_is_compiled_with_gcc_unless_another_is_named(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools", "torch>=2.10"]\n[project]\nname = "x"\nversion = "1"\n'
    )
    assert planned(tmp_path).toolchain == "gcc"
    assert planned(tmp_path, toolchain="clang").toolchain == "clang"
    with pytest.raises(UsageError, match=r"share its libstdc\+\+"):
        planned(tmp_path, toolchain="zig")


def test_a_project_in_rust_is_refused_at_once(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["maturin"]\n[project]\nname = "x"\n'
    )
    with pytest.raises(MissingError, match="needs Rust"):
        planned(tmp_path)
