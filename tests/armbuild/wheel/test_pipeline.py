import json
from types import SimpleNamespace

import pytest
from tests.armbuild import wheels

from armbuild.cli import wheel as cli
from armbuild.errors import BuildError, CheckFailed, MissingError
from armbuild.wheel import pipeline
from armbuild.wheel.settings import Settings


def a_plan(*versions, missing=(("3.10", "none here"),), **settings):
    return SimpleNamespace(
        pythons=tuple(SimpleNamespace(version=version) for version in versions),
        missing=missing,
        project=SimpleNamespace(name="thing", is_armllm=False),
        lane="cross",
        baseline=None,
        variant=None,
        cpus=("max",),
        tests=("import thing",),
        settings=Settings(**{"provenance": False, **settings}),
    )


def finished(plan, path, *, lowest_core="", cached=None):
    return pipeline.Finished(
        path=path,
        size=path.stat().st_size,
        built=SimpleNamespace(
            plan=plan, python=SimpleNamespace(version="3.11"), headers="", compiler="", cached=cached
        ),
        report=SimpleNamespace(tag="py3-none-any", lowest_core=lowest_core, kernel_targets=(), as_dict=dict),
        proof=SimpleNamespace(as_dict=dict),
        not_proven_because="",
        seconds={},
        cpu_seconds=None,
    )


def test_a_python_that_fails_is_named_and_the_others_are_built(capsys, monkeypatch, tmp_path):
    def one(plan, python, _observer, *, mirror):
        if python.version == "3.11":
            raise BuildError("no headers\n  log: x.log")
        return finished(plan, wheels.write(tmp_path, "thing-1.0-cp312-cp312-linux_aarch64.whl"))

    monkeypatch.setattr(pipeline, "build_one", one)
    status = cli.build_and_report(a_plan("3.11", "3.12"), mirror=None, verbose=False, as_json=True)
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert status == 4
    assert not document["ok"]
    assert [found["ok"] for found in document["wheels"]] == [False, True, False]
    assert "Python 3.11: no headers" in printed.err
    assert "Python 3.10: none here" in printed.err


def test_the_only_python_of_a_plan_fails_with_its_own_error(monkeypatch):
    def one(*_arguments, **_options):
        raise BuildError("no headers")

    monkeypatch.setattr(pipeline, "build_one", one)
    with pytest.raises(BuildError, match="no headers"):
        list(pipeline.run(a_plan("3.11", missing=()), observer(), mirror=None))


def test_a_wheel_that_serves_later_pythons_is_built_once(capsys, monkeypatch, tmp_path):
    path = wheels.write(tmp_path, "thing-1.0-cp311-abi3-linux_aarch64.whl")
    asked = []

    def one(plan, python, _observer, *, mirror):
        asked.append(python.version)
        return finished(plan, path)

    monkeypatch.setattr(pipeline, "build_one", one)
    plan = a_plan("3.11", "3.12", "3.13")
    assert cli.build_and_report(plan, mirror=None, verbose=False, as_json=True) == 3
    document = json.loads(capsys.readouterr().out)
    assert asked == ["3.11"]
    assert [found.get("shared", False) for found in document["wheels"]] == [False, True, True, False]


def observer():
    return cli.Console(verbose=False)


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """Every step replaced by one that succeeds; a test changes one of them."""
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    wheel = wheels.write(tmp_path)
    built = SimpleNamespace(cached=None, python=SimpleNamespace(version="3.11"))
    made = {
        "build_wheel": lambda *_a, **_k: built,
        "repair_wheel": lambda *_a: SimpleNamespace(path=wheel),
        "audit_path": lambda *_a, **_k: SimpleNamespace(ok=True, errors=()),
    }
    for name, step in made.items():
        monkeypatch.setattr(pipeline, name, step)
    monkeypatch.setattr(pipeline.smoke, "smoke_test", lambda *_a, **_k: SimpleNamespace(ok=True, results=()))
    return lambda name, step: monkeypatch.setattr(
        pipeline.smoke if name in ("smoke_test", "explain_failure") else pipeline, name, step
    )


def one_wheel(tmp_path):
    plan = a_plan("3.11", output=tmp_path / "dist")
    return pipeline.build_one(plan, plan.pythons[0], observer(), mirror=None)


def test_a_wheel_that_passes_every_gate_reaches_the_output_folder(steps, tmp_path):
    result = one_wheel(tmp_path)
    assert [path.name for path in (tmp_path / "dist").iterdir()] == [result.path.name]
    assert result.verdict == "proven"


@pytest.mark.parametrize("gate", ["audit_path", "smoke_test"])
def test_a_gate_that_refuses_the_wheel_leaves_the_output_folder_empty(steps, tmp_path, gate):
    steps("explain_failure", lambda _report, _path: "max: it crashed")
    steps(gate, lambda *_a, **_k: SimpleNamespace(ok=False, errors=("it is broken",)))
    with pytest.raises(CheckFailed, match="the wheel stays in"):
        one_wheel(tmp_path)
    assert not (tmp_path / "dist").exists()


def test_a_wheel_that_cannot_be_run_here_fails_in_ci_and_is_kept_elsewhere(steps, tmp_path, monkeypatch):
    def cannot(*_arguments, **_options):
        raise MissingError("no QEMU")

    steps("smoke_test", cannot)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(MissingError, match=r"^not proven: no QEMU \(--no-require-proof") as caught:
        one_wheel(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "dist").exists()
    monkeypatch.setenv("CI", "false")
    result = one_wheel(tmp_path)
    assert (result.verdict, result.not_proven_because) == ("audited, not proven", "no QEMU")
    assert result.path.is_file()


@pytest.mark.parametrize(
    ("lowest_core", "cached", "line"),
    [
        ("", {"hits": 0, "misses": 0}, "0.00 MB, py3-none-any, no machine code\n  proven on max"),
        (
            "any Armv8.0-A core",
            {"hits": 0, "misses": 2},
            "lowest core: any Armv8.0-A core\n  compile cache: 0 hits, 2 misses\n",
        ),
    ],
)
def test_a_wheel_is_summed_up_without_what_it_does_not_have(tmp_path, lowest_core, cached, line):
    path = wheels.write(tmp_path, "thing-1.0-py3-none-any.whl")
    result = finished(a_plan("3.11"), path, lowest_core=lowest_core, cached=cached)
    assert line in "\n".join(cli.summary(result))
