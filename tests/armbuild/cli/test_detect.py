from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from tests.armbuild.cli.calls import run

from armbuild.cli import main
from armisa import target_names

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "schema" / "detect.json").read_text())
KINDS = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "null": types.NoneType,
}
PI4 = "processor : 0\nFeatures : fp asimd evtstrm crc32 cpuid\nCPU implementer : 0x41\nCPU part : 0xd08\n"


def check(value, schema, where="$", root=None):
    """Fail where ``value`` is not what ``schema`` says: the part of JSON Schema that docs/schema uses."""
    root = root or schema
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    known = {
        "$schema",
        "$defs",
        "title",
        "description",
        "type",
        "const",
        "enum",
        "pattern",
        "items",
        "properties",
    }
    assert set(schema) <= known | {"required", "additionalProperties"}, where
    if "const" in schema:
        assert value == schema["const"], where
    if "enum" in schema:
        assert value in schema["enum"], where
    if "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert type(value) in [KINDS[kind] for kind in kinds], (where, value)
    if "pattern" in schema:
        assert re.search(schema["pattern"], value), (where, value)
    if isinstance(value, list):
        for index, item in enumerate(value):
            check(item, schema["items"], f"{where}[{index}]", root)
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        assert set(schema.get("required", ())) <= set(value), where
        for name, item in value.items():
            rule = properties.get(name, schema.get("additionalProperties"))
            assert isinstance(rule, dict), f"{where}.{name} is not in the schema"
            check(item, rule, f"{where}.{name}", root)


@pytest.mark.parametrize("target", [None, *target_names()])
def test_json_keeps_its_schema(capsys, target):
    status, out, _ = run(capsys, "detect", "--json", *(["--target", target] if target else []))
    assert status == 0
    check(json.loads(out), SCHEMA)


def test_text_explains_a_core(capsys):
    status, out, _ = run(capsys, "detect", "--target", "graviton3")
    assert status == 0
    for part in (
        "Neoverse-V1",
        "AWS Graviton3",
        "armv8.4-a",
        "256 bits",
        "SMMLA",
        "lacks:",
        "kernels:",
        "OMP_NUM_THREADS",
    ):
        assert part in out


def test_text_counts_ops_and_verbose_names_them(capsys):
    _, short, _ = run(capsys, "detect", "--target", "neoverse-n1")
    _, whole, _ = run(capsys, "detect", "--target", "neoverse-n1", "--verbose")
    assert re.search(r"kernels:  neon +\d\d ops\n", short)
    assert "rms_norm_f32" not in short
    assert "rms_norm_f32" in whole
    assert "crc32" in whole
    assert len(short.splitlines()) < 33 < len(whole.splitlines())


def test_text_says_why_no_better_kernel_is_used(capsys):
    _, out, _ = run(capsys, "detect", "--target", "neoverse-n1")
    assert "better: bf16 needs bf16" in out


def test_this_machine_in_text(capsys):
    status, out, _ = run(capsys, "detect")
    assert status == 0
    assert "threads:" in out


def test_list_names_what_target_takes(capsys):
    _, out, _ = run(capsys, "detect", "--list")
    assert out.split() == list(target_names())


def test_captured_file_and_standard_input(capsys, tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    file.write_text(PI4)
    status, out, _ = run(capsys, "detect", "--cpuinfo", str(file), "--hwcap", "0x87", "--json")
    assert status == 0
    assert json.loads(out)["cores"][0]["name"] == "Cortex-A72"
    check(json.loads(out), SCHEMA)
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(PI4.encode())))
    status, out, _ = run(capsys, "detect", "--cpuinfo", "-", "--flags", "gcc")
    assert (status, out) == (0, "-march=armv8-a+crc -mtune=cortex-a72\n")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--target", "gravitron3"], "graviton3"),
        (["--target", "max", "--list"], "exclude"),
        (["--cpuinfo", "/nonexistent/file"], "No such file"),
        (["--cpuinfo", "/"], "folder"),
        (["--hwcap", "0xff"], "--cpuinfo"),
        (["--flags", "msvc"], "gcc"),
        (["--flags", ""], "gcc"),
        (["--unknown"], "No such option"),
    ],
)
def test_wrong_use_is_a_sentence_and_status_2(capsys, arguments, word):
    status, out, err = run(capsys, "detect", *arguments)
    assert status == 2
    assert out == ""
    assert word in err
    assert len(err.strip().splitlines()) <= 2
    assert "Traceback" not in err


def test_wrong_hexadecimal_number_is_named(capsys, tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_text(PI4)
    status, _, err = run(capsys, "detect", "--cpuinfo", str(file), "--hwcap", "zz")
    assert status == 2
    assert "'zz'" in err


def test_binary_file_is_refused(capsys, tmp_path):
    file = tmp_path / "cpuinfo"
    file.write_bytes(bytes(range(256)) * 10)
    status, _, err = run(capsys, "detect", "--cpuinfo", str(file))
    assert status == 2
    assert "binary" in err


@pytest.mark.parametrize(
    "target", ["cortex-a53", "neoverse-v1", "neoverse-v2", "a64fx", "ampereone", "apple-m4", "max"]
)
def test_zig_accepts_the_flags(capsys, tmp_path, target):
    _, out, _ = run(capsys, "detect", "--target", target, "--flags", "zig")
    source = tmp_path / "empty.c"
    source.write_text("int x;\n")
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        "aarch64-linux-gnu.2.28",
        "-E",
        "-o",
        str(tmp_path / "out.c"),
    ]
    subprocess.run([*command, *out.split(), str(source)], check=True)


def test_no_heavy_module_is_imported():
    """`armbuild detect` answers at once; numpy alone would take longer than all of it."""
    code = (
        "import sys\nfrom armbuild.cli import main\nstatus = main(['detect', '--json'])\n"
        "bad = {'numpy', 'elftools', 'auditwheel', 'packaging', 'torch'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else status)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_machine_of_another_architecture_is_described_as_shortly(capsys, tmp_path):
    """It would catch an x86-64 machine whose hundred flags are all printed."""
    flags = " ".join(["lm", "avx2", "fma", "f16c", *(f"odd{number}" for number in range(90))])
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\nvendor_id : GenuineIntel\nflags : {flags}\n")
    assert main(["detect", "--cpuinfo", str(cpuinfo)]) == 0
    shown = capsys.readouterr().out
    assert "has:      avx2, f16c, fma" in shown
    assert re.search(r"lacks:    .*avx512f", shown)
    assert "further:  91 features (--verbose names them)" in shown
    assert "odd1" not in shown
    assert main(["detect", "--cpuinfo", str(cpuinfo), "--verbose"]) == 0
    assert "odd89" in capsys.readouterr().out
