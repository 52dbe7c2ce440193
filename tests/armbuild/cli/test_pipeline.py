import json
from types import SimpleNamespace

import pytest
from tests.armbuild import wheels

from armbuild.cli.pipeline import Pipeline
from armbuild.errors import BuildError


def a_plan(*versions):
    return SimpleNamespace(
        pythons=tuple(SimpleNamespace(version=version) for version in versions),
        missing=(("3.10", "none here"),),
    )


def test_a_python_that_fails_is_named_and_the_others_are_built(capsys, monkeypatch):
    def one(_self, python):
        if python.version == "3.11":
            raise BuildError("no headers\n  log: x.log")
        return {"ok": True, "python": python.version}

    monkeypatch.setattr(Pipeline, "one", one)
    status = Pipeline(a_plan("3.11", "3.12"), mirror=None, verbose=False).all(as_json=True)
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert status == 4
    assert not document["ok"]
    assert [found["ok"] for found in document["wheels"]] == [False, True, False]
    assert "Python 3.11: no headers" in said.err
    assert "Python 3.10: none here" in said.err


def test_a_wheel_that_serves_later_pythons_is_built_once(capsys, monkeypatch, tmp_path):
    path = wheels.write(tmp_path, "thing-1.0-cp311-abi3-linux_aarch64.whl")
    asked = []

    def one(_self, python):
        asked.append(python.version)
        return {"ok": True, "python": python.version, "path": str(path)}

    monkeypatch.setattr(Pipeline, "one", one)
    assert Pipeline(a_plan("3.11", "3.12", "3.13"), mirror=None, verbose=False).all(as_json=True) == 3
    document = json.loads(capsys.readouterr().out)
    assert asked == ["3.11"]
    assert [found.get("shared", False) for found in document["wheels"]] == [False, True, True, False]


@pytest.mark.parametrize(
    ("lowest_core", "cached", "line"),
    [
        ("", {"hits": 0, "misses": 0}, "0.00 MB, py3-none-any, no machine code\n  proven on max\n"),
        (
            "any Armv8.0-A core",
            {"hits": 0, "misses": 2},
            "lowest core: any Armv8.0-A core\n  compile cache: 0 hits, 2 misses\n",
        ),
    ],
)
def test_a_wheel_is_summed_up_without_what_it_does_not_have(capsys, tmp_path, lowest_core, cached, line):
    path = wheels.write(tmp_path, "thing-1.0-py3-none-any.whl")
    plan = SimpleNamespace(baseline=None, cpus=("max",), lane="cross")
    Pipeline(plan, mirror=None, verbose=False)._finish(
        path,
        SimpleNamespace(version="3.11"),
        built=SimpleNamespace(headers="", compiler="", cached=cached),
        report=SimpleNamespace(tag="py3-none-any", lowest_core=lowest_core, kernel_targets=(), as_dict=dict),
        proof=SimpleNamespace(as_dict=dict),
        why="",
    )
    assert line in capsys.readouterr().err
