"""What the cross lane does when a build asks for what was not brought before."""

from types import SimpleNamespace

import pytest

from armbuild.errors import BuildError
from armbuild.wheel.lanes import cross, local


@pytest.fixture
def lane(tmp_path, monkeypatch):
    """Run the lane's attempts with these hooks; returns what they returned and the setups they saw."""
    seen = []
    monkeypatch.setattr(cross, "prepare", lambda *_args, **_more: SimpleNamespace(world="x", settings={}))

    def run(hooks):
        def build(*_args, prepare, attempt, **_more):
            log = tmp_path / "log"
            log.touch()

            def counted(setup):
                seen.append(setup)
                return hooks(len(seen), log)

            return attempt(counted, prepare(tmp_path), tmp_path, log)

        monkeypatch.setattr(local, "build", build)
        return cross.build(SimpleNamespace(), None, tmp_path, mirror=None, watcher=None), len(seen)

    return run


def call_rust(folder):
    (folder / "build").mkdir(exist_ok=True)
    (folder / cross.ASKED_FOR_RUST).touch()


@pytest.mark.parametrize("fails", [True, False], ids=["and fails", "and goes on without"])
def test_a_build_that_calls_rust_unannounced_is_run_again_with_it(lane, tmp_path, fails):
    def hooks(turn, _log):
        if turn == 1:
            call_rust(tmp_path)
            if fails:
                raise BuildError("cargo: Rust is not here yet")
        return f"wheel {turn}"

    assert lane(hooks) == ("wheel 2", 2)
    assert (tmp_path / cross.RUST_STAMP).exists(), "the next build has it at once"


def test_a_build_that_does_not_is_run_once(lane):
    assert lane(lambda turn, _log: f"wheel {turn}") == ("wheel 1", 1)


def test_what_fails_with_rust_too_says_why(lane, tmp_path):
    def hooks(turn, log):
        if turn == 1:
            call_rust(tmp_path)
        log.write_text("fatal error: 'ffi.h' file not found")
        raise BuildError("error: could not compile `thing`")

    with pytest.raises(BuildError, match=r"(?s)could not compile.*--with libffi-dev"):
        lane(hooks)
