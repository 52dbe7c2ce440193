from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from tests.armbuild import wheels
from tests.armbuild.audit import conftest as make
from tests.armbuild.cli.calls import run
from tests.armbuild.cli.test_detect import check
from tests.armbuild.image import small

from armbuild.audit import effort
from armbuild.cli import main
from armbuild.cli.options import colored
from armbuild.image import archive

ROOT = Path(__file__).parents[3]
SDOT, RET = 0x4E829420, 0xD65F03C0


SCHEMA = json.loads((ROOT / "docs/schema/audit.json").read_text())


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    functions = [("fast_dotprod", ".text", [SDOT, RET]), ("plain", ".text", [RET])]
    return str(
        make.make_wheel(tmp_path, {"demo/x.cpython-311-aarch64-linux-gnu.so": make.make_elf(functions)})
    )


def test_without_a_floor_instructions_are_reported_and_pass(capsys, wheel):
    status, out, _ = run(capsys, "audit", wheel)
    assert status == 0
    assert "passed" in out
    assert "fast_dotprod" in out
    assert "4e829420" in out
    assert "only if dispatched" in out


def test_floor_makes_it_a_check(capsys, wheel):
    assert run(capsys, "audit", wheel, "--floor", "armv8-a")[0] == 1
    assert run(capsys, "audit", wheel, "--floor", "armv8.2-a+dotprod")[0] == 0
    assert run(capsys, "audit", wheel, "--floor", "neoverse-n1")[0] == 0
    assert run(capsys, "audit", wheel, "--floor", "armv8-a", "--guard", "*_dotprod=dotprod")[0] == 0


@pytest.mark.parametrize("command", ["audit", "verify"])
def test_images_of_an_archive_share_what_an_audit_may_come_to(tmp_path, capsys, monkeypatch, command):
    """Catches an archive of a hundred images, each of which costs as much as one may."""
    content = make.make_elf([("f", ".text", [RET])])
    images = [
        small.image([small.layer(tmp_path, {"lib/x.so": content}, name=name)], architecture=name)
        for name in ("arm64", "amd64")
    ]
    path = str(archive.write(images, tmp_path / "two.tar", name="localhost/two:1").path)
    for limit, refused in ((2, False), (1, True)):
        monkeypatch.setitem(effort.LIMITS, "files", limit)
        _, out, _ = run(capsys, command, path)
        assert ("more than 1 ELF files" in out) == refused, out


def test_a_wheel_for_another_machine_fails_unless_that_is_asked_for(capsys, tmp_path):
    """It was reported as passed: nothing in an x86-64 wheel contradicts itself."""
    x86 = str(
        make.make_wheel(
            tmp_path,
            {"demo/x.cpython-311-x86_64-linux-gnu.so": make.make_elf([("f", ".text", [RET])], machine=62)},
            tag="cp311-cp311-linux_x86_64",
        )
    )
    status, out, _ = run(capsys, "audit", x86)
    assert status == 1
    assert "linux_x86_64 is not for aarch64" in out
    assert "demo/x.cpython-311-x86_64-linux-gnu.so is for x86_64, not for aarch64 (--platform" in out
    status, out, _ = run(capsys, "audit", x86, "--platform", "x86_64")
    assert "not for" not in out
    status, _, err = run(capsys, "audit", x86, "--platform", "x68")
    assert (status, "choose from" in err) == (2, True)


def test_a_wheel_without_machine_code_is_for_every_platform(capsys, tmp_path):
    pure = str(make.make_wheel(tmp_path, {"demo/a.py": b""}, tag="py3-none-any"))
    assert run(capsys, "audit", pure, "--platform", "x86_64")[0] == run(capsys, "audit", pure)[0] == 0


@pytest.mark.parametrize(
    ("machine", "number", "triplet"),
    [("ppc64le", 21, "powerpc64le"), ("riscv64", 243, "riscv64"), ("loongarch64", 258, "loongarch64")],
)
def test_a_wheel_passes_on_the_platform_that_it_is_for_and_on_no_other(
    capsys, tmp_path, machine, number, triplet
):
    """CPython's suffixes and the tags of some machines were not known: their own platform refused them."""
    elf = make.make_elf([("f", ".text", [RET])], machine=number)
    name = f"demo/x.cpython-311-{triplet}-linux-gnu.so"
    path = str(make.make_wheel(tmp_path, {name: elf}, tag=f"cp311-cp311-linux_{machine}"))
    assert run(capsys, "audit", path, "--platform", machine)[0] == 0
    assert run(capsys, "audit", path)[0] == run(capsys, "audit", path, "--platform", "x86_64")[0] == 1


def test_a_static_library_for_another_machine_fails(capsys, tmp_path):
    extension = {"demo/x.cpython-311-aarch64-linux-gnu.so": make.make_elf([("f", ".text", [RET])])}
    x86 = make.make_elf([("f", ".text", [RET])], machine=62)
    library = {"demo/lib/libx.a": wheels.static_library(("x.o", x86))}
    path = str(make.make_wheel(tmp_path, extension | library, tag="cp311-cp311-linux_aarch64"))
    status, out, _ = run(capsys, "audit", path)
    assert status == 1
    assert "demo/lib/libx.a(x.o): an object for x86_64 in a wheel for aarch64" in out
    library = {"demo/lib/libx.a": wheels.static_library(("x.o", next(iter(extension.values()))))}
    path = str(make.make_wheel(tmp_path, extension | library, tag="cp311-cp311-linux_aarch64"))
    assert run(capsys, "audit", path)[0] == 0


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x.whl: passed", "x.whl: \x1b[32mpassed\x1b[0m"),
        ("x.whl: FAILED", "x.whl: \x1b[31mFAILED\x1b[0m"),
        ("max  FAILED   -", "max  \x1b[31mFAILED\x1b[0m   -"),
        ("NO  QEMU", "\x1b[31mNO\x1b[0m  QEMU"),
        (
            "x.whl\n  audited, not proven: --no-smoke",
            "x.whl\n  \x1b[33maudited, not proven\x1b[0m: --no-smoke",
        ),
        ("ok.whl is what passed", "ok.whl is what passed"),
    ],
)
def test_a_terminal_that_wants_it_shows_verdicts_in_color(monkeypatch, text, shown):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colored(text, Terminal()) == shown
    assert colored(text, io.StringIO()) == text
    monkeypatch.setenv("NO_COLOR", "1")
    assert colored(text, Terminal()) == text


def test_json_keeps_its_schema(capsys, wheel):
    status, out, _ = run(capsys, "audit", wheel, wheel, "--floor", "armv8-a", "--json")
    assert status == 1
    document = json.loads(out)
    check(document, SCHEMA)
    assert len(document["reports"]) == 2
    assert document["reports"][0]["offences"][0]["function"] == "fast_dotprod"
    assert "functions" not in document["reports"][0]["files"][0]
    _, out, _ = run(capsys, "audit", wheel, "--json", "--indent", "2", "--verbose")
    assert out.startswith('{\n  "schema"')
    document = json.loads(out)
    check(document, SCHEMA)
    assert [item["function"] for item in document["reports"][0]["files"][0]["functions"]] == ["fast_dotprod"]


def test_sarif_names_function_and_extension(capsys, wheel, tmp_path):
    run(capsys, "audit", wheel, "--floor", "armv8-a", "--sarif", str(tmp_path / "out.sarif"))
    log = json.loads((tmp_path / "out.sarif").read_text())
    assert log["version"] == "2.1.0"
    results = {result["ruleId"]: result for result in log["runs"][0]["results"]}
    assert {"packaging", "needs-dotprod"} <= set(results)
    assert results["needs-dotprod"]["level"] == "error"
    assert (
        results["needs-dotprod"]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"]
        == "fast_dotprod"
    )
    assert {rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]} == set(results)


def test_guards_and_floor_come_from_pyproject(capsys, wheel, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.armbuild.audit]\nfloor = "armv8-a"\n')
    assert run(capsys, "audit", wheel)[0] == 1
    other = tmp_path / "other.toml"
    other.write_text('[tool.armbuild.audit]\nfloor = "armv8-a"\nguards = { "fast_*" = "dotprod" }\n')
    assert run(capsys, "audit", wheel, "--config", str(other))[0] == 0


@pytest.mark.parametrize(
    "text",
    [
        "[tool.armbuild.audit]\nflor = 1\n",
        "[tool.armbuild.audit]\nfloor = 1\n",
        "not toml",
        "[tool.armbuild.audit]\nguards = []\n",
    ],
)
def test_bad_configuration_is_a_sentence(capsys, wheel, tmp_path, text):
    (tmp_path / "pyproject.toml").write_text(text)
    status, _, err = run(capsys, "audit", wheel)
    assert status == 2
    assert "pyproject.toml" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["missing.whl"], "no such file"),
        (["missing.whl", "--floor", "armv8-a", "--floor", "neoverse-n1"], "2 times"),
        (["missing.whl", "--floor", ""], "unknown target"),
        ([], "Missing argument"),
        (["missing.whl", "--floor", "armv7-a"], "unknown architecture"),
        (["missing.whl", "--floor", "neoverse-v12"], "neoverse-v1"),
        (["missing.whl", "--floor", "armv8-a+dotproduct"], "dotprod"),
        (["missing.whl", "--guard", "x"], "PATTERN=FEATURES"),
        (["missing.whl", "--guard", "x=sbe"], "unknown extension"),
    ],
)
def test_wrong_use_is_a_sentence_and_status_2(capsys, tmp_path, monkeypatch, arguments, word):
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, "audit", *arguments)
    assert status == 2
    assert word in err
    assert len(err.strip().splitlines()) <= 2


def test_broken_wheel_fails_with_status_1(capsys, tmp_path):
    path = tmp_path / "demo-1.0-cp311-cp311-manylinux_2_28_aarch64.whl"
    path.write_bytes(b"junk")
    status, out, _ = run(capsys, "audit", str(path), "--json")
    assert status == 1
    check(json.loads(out), SCHEMA)


def test_json_keeps_its_schema_for_every_kind_of_input(capsys, wheel, tmp_path):
    elf = tmp_path / "lone.so"
    elf.write_bytes(make.make_elf([("f", ".text", [SDOT, RET])]))
    big_endian = bytearray(elf.read_bytes())
    big_endian[5] = 2
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x.so").write_bytes(big_endian)
    (folder / "y.so").write_bytes(elf.read_bytes()[:100])
    (folder / "note").write_text("no ELF")
    empty = tmp_path / "empty"
    empty.mkdir()
    own = make.make_wheel(
        tmp_path,
        {
            "armllm/_kernels.cpython-311-aarch64-linux-gnu.so": make.make_elf(
                [("k", "armllm.neon", [RET]), ("f", ".text", [SDOT, RET])]
            ),
            "armllm/build_info.json": make.build_info(baseline="neoverse-n1"),
        },
        name="armllm",
        version="1.0+neoverse.n1",
    )
    paths = [wheel, str(elf), str(folder), str(empty), str(own)]
    status, out, err = run(capsys, "audit", *paths, "--json")
    document = json.loads(out)
    check(document, SCHEMA)
    assert status == 1
    assert err == ""
    assert [report["kind"] for report in document["reports"]] == ["wheel", "elf", "folder", "folder", "wheel"]
    raised = document["reports"][-1]
    assert raised["errors"] == []
    assert raised["floor"] == "neoverse-n1"
    assert raised["lowest_core"] == "a core with dotprod"
    verdicts = {core["core"]: core["verdict"] for core in raised["cores"]}
    assert (verdicts["Cortex-A72"], verdicts["Neoverse-N1"]) == ("no", "yes")


def test_text_shows_the_disassembled_word(capsys, wheel):
    _, out, _ = run(capsys, "audit", wheel)
    assert "4e829420  sdot v0.4s, v1.16b, v2.16b [dotprod]" in out


@pytest.mark.parametrize(("columns", "widest"), [(None, 110), (60, 60), (200, 200)])
def test_text_is_wrapped_at_the_terminals_width_and_in_a_pipe_at_110_columns(
    capsys, wheel, monkeypatch, columns, widest
):
    if columns:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))
    _, out, _ = run(capsys, "audit", wheel)
    cores = [line for line in out.splitlines() if line.startswith(("  yes:", "  no:", "              "))]
    assert widest - 30 < max(map(len, cores)) <= widest
    assert all(len(line) <= widest for line in out.splitlines() if line.startswith("  ELF:") and "," in line)


def test_a_name_does_not_write_to_the_terminal(capsys, tmp_path):
    assert main(["audit", str(tmp_path / "\x1b[31mred\x9b\r.whl")]) == 2
    assert not set(capsys.readouterr().err) & {"\x1b", "\x9b", "\r"}
