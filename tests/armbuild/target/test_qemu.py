import pytest

from armbuild.errors import MissingError
from armbuild.target import qemu


def emulator(path, cpus):
    path.parent.mkdir(parents=True, exist_ok=True)
    listed = "\n".join(f"  {cpu}" for cpu in cpus)
    path.write_text(f"#!/bin/sh\ncat <<END\nAvailable CPUs:\n{listed}\nEND\nexit 1\n")  # as QEMU 10 does
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine with an empty cache, nothing but a folder on PATH, and no Debian archive."""
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def unreachable(*_args, **_kwargs):
        raise MissingError("no Debian archive in this machine's apt sources")

    monkeypatch.setattr(qemu.debian, "archive", unreachable)
    monkeypatch.setattr(qemu, "NAMES", ("test-qemu-aarch64", "test-qemu-aarch64-static"))
    monkeypatch.setattr(qemu.emulated_features, "fault", lambda *_: "")
    return tmp_path


def fetched_from(mirror):
    return qemu.debian.cache_folder("qemu", "suite-amd64", mirror) / "usr/bin/qemu-aarch64"


def test_an_emulator_from_another_archive_is_not_run(machine):
    there = emulator(fetched_from("http://other.example/debian"), ["max"])
    assert qemu.installed(("max",)) is None
    assert qemu.installed(("max",), mirror="http://other.example/debian") == there


def test_the_systems_emulator_is_taken_if_it_knows_every_cpu(machine):
    own = emulator(machine / "bin/test-qemu-aarch64-static", ["max", "neoverse-v1"])
    assert qemu.find(("max", "neoverse-v1")) == own


def test_an_emulator_that_lacks_a_cpu_is_passed_over(machine):
    emulator(machine / "bin/test-qemu-aarch64", ["max", "neoverse-n1"])
    fetched = emulator(fetched_from(None), ["max", "neoverse-v1"])
    assert qemu.find(("neoverse-v1",)) == fetched
    assert qemu.installed(("neoverse-v1",)) == fetched


def test_an_old_emulator_that_shows_the_hosts_cpuinfo_is_the_last_choice(machine):
    old = emulator(machine / "bin/test-qemu-aarch64", ["max", "neoverse-n1"])
    assert qemu.find(("neoverse-n1",)) == old
    newer = emulator(fetched_from(None), ["max", "neoverse-n1", "neoverse-v1"])
    assert qemu.find(("neoverse-n1",)) == qemu.installed(("neoverse-n1",)) == newer


def test_an_emulator_whose_core_lacks_a_feature_is_passed_over(machine, monkeypatch):
    """QEMU 11's neoverse-v1 has no BF16: a smoke test there would run other kernels than the core does."""
    newest = emulator(machine / "bin/test-qemu-aarch64", ["max", "neoverse-v1"])
    fetched = emulator(fetched_from(None), ["max", "neoverse-v1"])
    faults = {newest: "emulates neoverse-v1 without bf16"}
    monkeypatch.setattr(qemu.emulated_features, "fault", lambda program, _: faults.get(program, ""))
    assert qemu.find(("neoverse-v1",)) == qemu.installed(("neoverse-v1",)) == fetched
    faults[fetched] = "emulates neoverse-v1 without bf16, i8mm"
    assert qemu.installed(("neoverse-v1",)) is None
    with pytest.raises(MissingError, match="emulates neoverse-v1 without bf16"):
        qemu.find(("neoverse-v1",))


def test_without_any_the_reasons_and_the_way_out_are_named(machine):
    emulator(machine / "bin/test-qemu-aarch64", ["max"])
    with pytest.raises(MissingError) as caught:
        qemu.find(("neoverse-v1",))
    message = str(caught.value)
    assert "does not know neoverse-v1" in message
    assert "no Debian archive" in message
    assert "--mirror" in message


def test_a_program_that_does_not_run_knows_nothing(machine):
    broken = machine / "bin/test-qemu-aarch64"
    broken.parent.mkdir()
    broken.write_text("#!/nowhere\n")
    broken.chmod(0o755)
    assert qemu.known_cpus(broken) == frozenset()
    assert qemu.installed(("max",)) is None


def test_a_program_that_hangs_or_answers_in_bytes_knows_nothing(machine, monkeypatch):
    monkeypatch.setattr(qemu.emulated_features, "SECONDS", 0.2)
    for name, text in (("hangs", "sleep 9"), ("bytes", "printf '\\377\\376\\n'")):
        program = machine / name
        program.write_text(f"#!/bin/sh\nexec {text}\n")
        program.chmod(0o755)
        assert qemu.known_cpus(program) == frozenset()


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.emulated
def test_an_emulator_is_fetched_without_root_rights_and_knows_our_models(tmp_path, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(qemu, "_installed", list)
    program = qemu.find(("neoverse-v1", "max"))
    assert program.is_relative_to(tmp_path / "cache")
    assert not qemu.MODELS - qemu.known_cpus(program)
