"""What all commands share: help, errors, -q, Ctrl-C, completion; and `armbuild doctor`."""

import json
import re
import sys
import types

import pytest
from tests.armbuild import wheels
from tests.armbuild.cli.calls import run

import armbuild
from armbuild import __main__, cli
from armbuild.cli import main, wheel
from armbuild.cli.progress import Progress
from armbuild.host import cache as caching


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path / "cache"))


@pytest.mark.parametrize("columns", ["40", "80", "99", "100", "200"])
def test_help_shows_brackets_and_cuts_no_name_at_any_width(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = run(capsys, "audit", "--help")
    assert "[tool.armbuild.audit]" in re.sub(r"[\s│]", "", out)
    _, out, _ = run(capsys, "--help")
    assert "manylinux-image" in out
    for command in ("wheel", "docker"):
        _, out, _ = run(capsys, command, "--help")
        shown = set(re.findall(r"[\w./-]+", out))
        for option in {"--require-proof", "--no-require-proof", "--no-dotprod", "--baseline"} | (
            {"container", "podman", "sccache", "--config-settings", "--no-check-reproducible"}
            if command == "wheel"
            else set()
        ):
            assert option in shown, option


def test_shells_complete_the_names_of_commands(capsys, monkeypatch):
    monkeypatch.setenv("_ARMBUILD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "armbuild au")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == ["audit"]


def test_the_version_is_printed(capsys):
    status, out, _ = run(capsys, "--version")
    assert (status, out) == (0, f"armbuild {armbuild.version()}\n")
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", armbuild.version())


@pytest.mark.parametrize(
    ("arguments", "quiet"),
    [(["-q", "wheel"], True), (["wheel", "-q"], True), (["--quiet", "wheel"], True), (["wheel"], False)],
)
def test_quiet_stands_before_or_after_the_command(monkeypatch, arguments, quiet):
    seen = []
    monkeypatch.setattr(Progress, "quiet", False)
    plan = types.SimpleNamespace(cpus=())
    monkeypatch.setattr(wheel, "_plan", lambda *_arguments, **_options: plan)
    monkeypatch.setattr(wheel, "build_and_report", lambda _plan, **_options: seen.append(Progress.quiet) or 0)
    assert main([*arguments, "tests/armbuild/projects"]) == 0
    assert seen == [quiet]


COMMANDS = [
    "audit", "cache", "detect", "docker", "doctor", "index", "manylinux-image", "matrix", "settings", "sign",
    "smoke", "verify", "wheel",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_the_common_options_and_shows_no_types_of_flags(capsys, monkeypatch, command):
    for columns in ("80", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        status, out, _ = run(capsys, command, "-q", "--help")
        assert (status, "--quiet" in out, "<bool>" in out) == (0, True, False)


def test_the_commands_are_all_of_them(capsys):
    assert set(COMMANDS) == set(cli._program().commands)
    status, out, err = run(capsys)
    assert (status, "manylinux-image" in out + err, "error" in err) == (2, True, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["smoke"], "Missing argument 'WHEEL|IMAGE' (`armbuild smoke --help` shows what there is)"),
        (["wheel", "a", "b"], "(b) (`armbuild wheel --help` shows what there is)"),
        (["-q"], "Missing command (`armbuild --help` shows what there is)"),
        (["weel"], "No such command 'weel'. Did you mean 'wheel'?"),
    ],
)
def test_what_typer_refuses_is_one_line_with_a_way_on(capsys, arguments, said):
    status, _, err = run(capsys, *arguments)
    assert (status, err.count("\n")) == (2, 1)
    assert said in err


def test_an_interruption_while_modules_load_is_no_traceback(capsys, monkeypatch):
    class Loading(types.ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setattr(__main__, "interrupt_once", lambda: None)  # of this process
    monkeypatch.setitem(sys.modules, "armbuild.cli", Loading("armbuild.cli"))
    assert __main__.run() == 130
    assert capsys.readouterr().err == "armbuild: interrupted\n"


def test_an_interruption_is_no_error(capsys, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(caching, "parts", interrupted)
    status, _, err = run(capsys, "cache")
    assert (status, err) == (130, "armbuild: interrupted; nothing half-written is left\n")


def test_quiet_leaves_what_is_wrong(capsys, tmp_path, monkeypatch):
    from armbuild.host import doctor  # noqa: PLC0415 - the module under test is patched

    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _name: None)
    whole, broken = tmp_path / "a-1.0-py3-none-any.whl", tmp_path / "b-1.0-py3-none-any.whl"
    wheels.write(tmp_path, whole.name, {"thing/_core.cpython-311-aarch64-linux-gnu.so": None, "a.py": b""})
    broken.write_bytes(b"")
    for command in ("audit", "verify"):
        status, out, _ = run(capsys, command, "-q", str(whole), str(broken))
        assert (status, "passed" in out, f"{broken}: FAILED" in out) == (1, False, True)
        assert run(capsys, command, str(whole), "-q") == (0, "", "")
    status, out, _ = run(capsys, "doctor", "-q", "--mirror", "http://127.0.0.1:9/debian")
    assert status == 1
    assert all(
        line.startswith(("NO ", "    ", "to install", "  pip")) for line in filter(None, out.split("\n"))
    )


def test_doctor_names_one_command_for_all_that_is_missing(capsys, monkeypatch):
    from armbuild.host import doctor  # noqa: PLC0415 - the module under test is patched

    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(doctor.pythons, "tool", lambda _name: None)
    status, out, _ = run(capsys, "doctor", "--json")
    facts = json.loads(out)
    assert status == 1
    assert not facts["ok"]
    assert facts["command"] == "pip install 'armllm[build]'"


@pytest.mark.network
def test_doctor_asks_the_archives_and_fails_where_one_does_not_answer(capsys, monkeypatch, tmp_path):
    """It said that QEMU "will be fetched" from an archive that nobody had asked."""
    monkeypatch.setenv("ARMBUILD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("ARMBUILD_MIRROR", "http://127.0.0.1:9/debian")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    status, out, _ = run(capsys, "doctor", "--json")
    findings = {finding["name"]: finding for finding in json.loads(out)["findings"]}
    assert status == 1
    assert not findings["Debian archive"]["ok"]
    assert "127.0.0.1:9/debian/dists/trixie/InRelease: " in findings["Debian archive"]["found"]
    assert "127.0.0.1" in findings["Python index"]["found"]
    assert "will be fetched" not in findings["QEMU"]["found"]


def test_doctor_names_what_the_container_lane_lacks_and_asks_for_nothing(capsys, monkeypatch):
    from armbuild.host import doctor  # noqa: PLC0415 - the module under test is patched

    monkeypatch.setattr(doctor.shutil, "which", lambda _name: None)
    _, out, _ = run(capsys, "doctor", "--json")
    facts = json.loads(out)
    (engine,) = (finding for finding in facts["findings"] if finding["name"] == "containers")
    assert (engine["ok"], engine["optional"], engine["packages"]) == (False, True, ["podman"])
    assert "podman" not in (facts["command"] or "")


@pytest.mark.parametrize("columns", ["50", "100"])
def test_no_command_shows_the_help_as_it_is(capsys, monkeypatch, columns):
    """In a narrow terminal it is plain lines."""
    monkeypatch.setenv("COLUMNS", columns)
    status, out, err = run(capsys)
    assert status == 2
    assert "Usage: armbuild" in out + err
    assert "error:" not in out + err
