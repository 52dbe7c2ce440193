import sys

import pytest

from armbuild.errors import UsageError
from armbuild.host import isolation, pythons
from armbuild.host.isolation import BuildEnvironment
from armbuild.target import target_packages


@pytest.fixture
def here():
    return isolation.existing(pythons.find())


def test_what_an_environment_lacks_is_named(here):
    missing = isolation.unsatisfied(
        here, ["pytest", "Packaging>=1", "packaging<1", "not-there-at-all", "not-there; python_version < '3'"]
    )
    assert missing == ["packaging<1", "not-there-at-all"]


def test_the_running_environment_is_its_own_folder(here):
    assert here.python_executable.startswith(sys.prefix)


def test_bindgen_finds_the_package_libclang_where_a_project_requires_it(tmp_path, monkeypatch):
    monkeypatch.delenv("LIBCLANG_PATH", raising=False)
    environment = BuildEnvironment(tmp_path)
    assert set(environment.make_extra_environ()) == {"PATH"}
    native = tmp_path / "lib/python3.11/site-packages/clang/native"
    native.mkdir(parents=True)
    (native / "libclang.so").touch()
    assert environment.make_extra_environ()["LIBCLANG_PATH"] == str(native)
    monkeypatch.setenv("LIBCLANG_PATH", "/own")
    assert set(environment.make_extra_environ()) == {"PATH"}, "the variable stays as it is"


def test_a_lock_that_lacks_a_requirement_is_refused(here, tmp_path):
    lock = tmp_path / "build.lock"
    lock.touch()
    isolation.check_locked(lock, here, ["pytest"])
    with pytest.raises(UsageError, match=r"build\.lock: lacks not-there>=2"):
        isolation.check_locked(lock, here, ["pytest", "not-there>=2"])


def test_the_compilers_own_search_paths_do_not_leak_into_a_build(monkeypatch):
    monkeypatch.setenv("CPATH", "/opt/include")
    monkeypatch.setenv("LIBRARY_PATH", "/opt/lib")
    monkeypatch.setenv("PYTHONPATH", "/opt/python")
    assert not {"CPATH", "LIBRARY_PATH", "PYTHONPATH"} & isolation.clean().keys()
    assert isinstance(isolation.existing(pythons.find()), BuildEnvironment)


def test_what_another_index_gave_is_not_taken(tmp_path, monkeypatch):
    for name in isolation.INDEXES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(isolation.cache, "fill", lambda folder, _fill: folder)
    monkeypatch.setattr(target_packages.cache, "fill", lambda folder, _fill: folder)

    def folders():
        log = tmp_path / "log"
        site = target_packages.cached(["numpy"], "3.11", host=None, log=log)
        return isolation.environment(pythons.find(), ["numpy"], log=log).folder, site

    own = folders()
    assert folders() == own
    for name in ("UV_DEFAULT_INDEX", "UV_EXCLUDE_NEWER"):
        monkeypatch.setenv(name, "x")
        assert not set(folders()) & set(own)
        monkeypatch.delenv(name)
