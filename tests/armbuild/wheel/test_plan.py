import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.armbuild import plans

import armisa
from armbuild.errors import MissingError, UsageError
from armbuild.host import pythons
from armbuild.wheel.project import KERNEL_TABLE, announces_rust
from armbuild.wheel.settings import KERNELS

ROOT = Path(__file__).parents[3]
PROJECTS = Path(__file__).parents[1] / "projects"
OPTIONAL = [target.name for target in armisa.kernel_targets() if target.name in KERNELS]


def planned(folder=ROOT, **options):
    return plans.planned(folder, **{"output": Path("/tmp/out"), "lane": "cross", **options})  # noqa: S108


def test_without_options_the_wheel_holds_every_kernel_target_and_runs_everywhere():
    chosen = planned()
    assert {"scalar", "neon", *OPTIONAL} == set(chosen.targets)
    assert chosen.flags == ()
    assert chosen.baseline is None
    assert [python.version for python in chosen.pythons] == [pythons.find().version]


@pytest.mark.parametrize("name", OPTIONAL)
def test_a_kernel_target_can_be_left_out(name):
    chosen = planned(**{name: False})
    assert name not in chosen.targets
    assert chosen.defines()[f"ARMLLM_{name.upper()}"] == "OFF"


def test_every_kernel_flag_has_a_target():
    assert set(KERNELS) == set(OPTIONAL)


def test_a_kernel_target_that_a_version_lacks_is_refused_when_asked_for_and_fine_when_not(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "armllm"\n')
    (tmp_path / KERNEL_TABLE).parent.mkdir(parents=True)
    (tmp_path / KERNEL_TABLE).write_text('[[target]]\nname = "neon"\nmachine = "aarch64"\n')
    with pytest.raises(UsageError, match="--sve: this version has no sve kernels; it has none of the opt"):
        planned(tmp_path, sve=True)
    without = planned(tmp_path, sve=False)
    assert without.targets == ("neon",)
    assert "ARMLLM_SVE" not in without.defines()


@pytest.mark.parametrize("value", [True, False])
def test_kernel_flags_mean_nothing_for_another_project_and_say_so(value):
    with pytest.raises(UsageError, match=r"bf16.*fixture-scikit has no kernel targets"):
        planned(PROJECTS / "scikit", bf16=value)


def test_a_baseline_raises_the_floor_and_marks_the_version():
    chosen = planned(baseline="Neoverse_V1")
    assert chosen.baseline == "neoverse-v1"
    assert chosen.label == "neoverse.v1"
    assert chosen.flags[0].startswith("-mcpu=")
    assert "sve" in chosen.flags[0]
    assert chosen.defines()["ARMLLM_BASELINE"] == "neoverse-v1"
    assert "+neoverse.v1-" in chosen.wheel_name(chosen.pythons[0])


def test_a_python_that_the_project_does_not_support_is_refused(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nrequires-python = ">=3.99"\n')
    with pytest.raises(UsageError, match=r"x needs Python >=3\.99"):
        planned(tmp_path)


def test_plans_that_compile_differently_do_not_share_a_folder():
    python = pythons.find()
    keys = {
        planned(**options).key(python) for options in ({}, {"baseline": "neoverse-n1"}, {OPTIONAL[0]: False})
    }
    assert len(keys) == 3
    assert planned().key(python) == planned(output=Path("/elsewhere"), cpu=("max",)).key(python)


def test_the_plan_is_a_json_document_that_says_what_would_happen():
    facts = json.loads(json.dumps(planned(python=(pythons.find().version,), smoke=False).as_dict()))
    assert facts["schema"] == 1
    assert facts["steps"] == ["build", "repair", "audit"]
    assert facts["wheels"][0]["file"].endswith("_aarch64.whl")
    assert facts["kernels"] == list(planned().targets)


def test_a_version_that_has_a_label_already_keeps_it(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.0+cpu"\n')
    chosen = planned(tmp_path, baseline="neoverse-n1")
    assert "x-1.0+cpu.neoverse.n1-" in chosen.wheel_name(chosen.pythons[0])


def test_wheels_of_the_engine_for_several_pythons_share_what_was_compiled_and_others_do_not():
    one, other = (replace(pythons.find(), version=version) for version in ("3.11", "3.12"))
    assert planned().key(one) == planned().key(other)
    scikit = planned(PROJECTS / "scikit")
    assert scikit.key(one) != scikit.key(other)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"packages": ("zlib1g-dev,;",)}, "--with ;"),
        ({"isolation": False, "lock": Path("x")}, "--lock"),
    ],
)
def test_options_that_cannot_be_honored_are_refused(options, reason):
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


@pytest.mark.parametrize(
    ("requirement", "rust"),
    [("maturin>=1,<2", True), ("Setuptools_Rust", True), ("puccinialin", True), ("rustworkx-like", False)],
)
def test_a_project_announces_rust_by_what_it_needs_to_be_built(tmp_path, requirement, rust):
    (tmp_path / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["{requirement}"]\n[project]\nname = "x"\n'
    )
    assert announces_rust(planned(tmp_path).project) is rust


def test_the_plan_names_the_pythons_that_cannot_be_had_and_tells_the_free_threaded_one_by_its_tag():
    def find(version):
        if version in ("3.11", "3.14t"):
            return replace(pythons.find(), version=version)
        raise MissingError(f"no Python {version}\nmore")

    chosen = planned(python=("all",), find=find)
    assert chosen.as_dict()["missing"][0] == {"python": "3.10", "reason": "no Python 3.10"}
    free = planned(PROJECTS / "setuptools", python=("3.14t",), find=find)
    assert "-cp314-cp314t-manylinux_" in free.wheel_name(free.pythons[0])
