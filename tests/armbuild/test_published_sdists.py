"""Projects of others, as they are on the Python index: cross-built, repaired, audited, imported on a core."""

import json

import pytest
from tests.armbuild.cross_builds import built

import build_published


def test_the_page_shows_what_is_noted():
    assert build_published.PAGE.read_text() == build_published.page(build_published.read())


def test_the_page_counts_the_wheels_and_those_that_needed_no_option():
    entries = [
        {"project": "a"},
        {"project": "b", "options": "--with=c-dev"},
        {"project": "d", "failure": "no"},
    ]
    text = build_published.page([build_published.Entry(**entry) for entry in entries])
    assert "2 of 3 became wheels, 1 of them without any option." in text


def test_options_are_noted_as_one_word_each_and_without_places_of_this_machine(tmp_path):
    provenance = {"predicate": {"buildDefinition": {"internalParameters": {"backend": "mesonpy"}}}}
    (tmp_path / "p.json").write_text(json.dumps(provenance))
    wheel = {"ok": True, "provenance": tmp_path / "p.json", "path": "thing-1.0-py3-none-any.whl"}
    results = [{"cpu": "max", "said": "2 passed"}]
    wheel |= {"compiler": "zig", "cpu_seconds": 1.0, "smoke": {"results": results}}
    asked = ["thing", "--import", "thing", "--with", "a-dev,b-dev", "--source=x=/here/x.tar", "--env=A=/usr"]
    asked += ["--patch", "/here/x.patch", "--command", "pytest -q {project}/tests", "--requires=pytest"]
    found = build_published.note(asked, {"wheels": [wheel]}, "")
    assert found.options == "--with=a-dev,b-dev --source=x=x.tar --env=A=/usr --patch=x.patch"
    assert (found.version, found.backend, found.proven_on) == ("1.0", "meson-python", "max")
    assert found.tests == "`pytest -q {project}/tests`: 2 passed"


def test_a_failure_is_noted_with_its_reason_and_a_wheel_with_its_options():
    error = "no wheel: /y/z/a.c: 'a/sys/b.h' | b\n  say --with x (log: /y/z)\n  z"
    document = {"wheels": [{"ok": False, "error": error}]}
    found = build_published.note(["thing>=1", "--import=thing"], document, "")
    assert (found.project, found.failure, found.advice) == (
        "thing",
        "no wheel: a.c: 'a/sys/b.h' / b",
        "say --with x",
    )


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
@pytest.mark.parametrize(
    ("project", "module", "options"),
    [
        pytest.param("argon2-cffi-bindings", "_argon2_cffi_bindings", [], id="cffi, stable ABI"),
        pytest.param("cftime", "cftime", [], id="Cython with numpy's headers"),
        pytest.param("contourpy", "contourpy", [], id="meson-python with pybind11"),
        pytest.param("frozenlist", "frozenlist._frozenlist", [], id="a back end of its own"),
        pytest.param(
            "gmpy2",
            "gmpy2",
            ["--with=libgmp-dev,libmpfr-dev,libmpc-dev/bookworm"],
            id="a newer Debian's library",
        ),
        pytest.param(
            "google-re2==1.0",
            "re2",
            ["--with=libre2-dev/bookworm,pybind11-dev/bookworm"],
            id="a library of Debian's in C++, for which GCC takes over",
        ),
        pytest.param("levenshtein", "Levenshtein", [], id="scikit-build-core with Cython"),
        pytest.param("optree", "optree", [], id="setuptools that calls CMake, pybind11"),
        pytest.param("orjson==3.13.0", "orjson", [], id="maturin, with its crates inside"),
        pytest.param("pycairo", "cairo", ["--with=libcairo2-dev"], id="meson-python, and X11 of the system"),
        pytest.param(
            "shapely", "shapely", ["--with=libgeos-dev/bookworm"], id="meson-python, and meson's own numpy"
        ),
        pytest.param("simsimd==6.5.16", "simsimd", [], id="OpenMP, for which GCC takes over"),
        pytest.param("tornado", "tornado.speedups", [], id="setuptools, stable ABI"),
        pytest.param("ulid-transform", "ulid_transform._ulid_impl", [], id="poetry-core with a build script"),
        pytest.param("uvloop", "uvloop.loop", [], id="a library that Autoconf configures"),
    ],
)
def test_a_published_sdist_becomes_a_wheel_that_imports_on_the_target(tmp_path, project, module, options):
    result = built(project, tmp_path, f"--import={module}", "--cpu=neoverse-n1", *options)
    assert result["verdict"] == "proven"
    assert result["audit"]["ok"]
    assert "manylinux" in result["tag"]
