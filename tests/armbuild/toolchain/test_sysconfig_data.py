import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from armbuild.toolchain import sysconfig_data
from armbuild.toolchain.sysroot import MUSL, TRIPLET

HOST = {
    "VERSION": "3.11",
    "prefix": "/host",
    "exec_prefix": "/host",
    "CC": "gcc -pthread",
    "LDFLAGS": "-L/host/lib -march=x86-64",
    "SOABI": "cpython-311-x86_64-linux-gnu",
    "EXT_SUFFIX": ".cpython-311-x86_64-linux-gnu.so",
    "MULTIARCH": "x86_64-linux-gnu",
    "Py_ENABLE_SHARED": 1,
    "SIZEOF_LONG": 8,
}


def test_the_machines_words_are_the_targets_and_the_rest_the_hosts():
    values = sysconfig_data.target_values(HOST, Path("/kit/bin"), (), triplet=TRIPLET)
    assert values["EXT_SUFFIX"] == ".cpython-311-aarch64-linux-gnu.so"
    assert values["CC"] == "/kit/bin/cc -pthread"
    assert values["LDSHARED"].startswith("/kit/bin/cc")
    assert values["LDFLAGS"] == ""
    assert values["Py_ENABLE_SHARED"] == 0
    assert values["SIZEOF_LONG"] == 8
    assert "prefix" not in values
    assert not [name for name, value in values.items() if "x86" in str(value)]


def test_a_free_threaded_host_names_free_threaded_extensions():
    host = HOST | {"VERSION": "3.14", "Py_GIL_DISABLED": 1, "INCLUDEPY": "/uv/include/python3.14t"}
    values = sysconfig_data.target_values(host, Path("/kit/bin"), (), triplet=TRIPLET)
    assert values["EXT_SUFFIX"] == ".cpython-314t-aarch64-linux-gnu.so"
    assert values["Py_GIL_DISABLED"] == 1
    assert values["INCLUDEPY"] == "/uv/include/python3.14t"


def test_extensions_for_musl_are_named_as_its_pythons_look_for_them():
    suffixes = {}
    for version in ("3.10", "3.13"):
        host = HOST | {"VERSION": version}
        values = sysconfig_data.target_values(host, Path("/kit/bin"), (), triplet=MUSL)
        suffixes[version] = values["EXT_SUFFIX"]
    # CPython told the two apart from 3.11 on
    assert suffixes == {
        "3.10": ".cpython-310-aarch64-linux-gnu.so",
        "3.13": ".cpython-313-aarch64-linux-musl.so",
    }


def test_headers_of_the_target_replace_the_hosts():
    values = sysconfig_data.target_values(
        HOST, Path("/kit/bin"), [Path("/debian/python3.11")], triplet=TRIPLET
    )
    assert values["INCLUDEPY"] == "/debian/python3.11"


def test_an_interpreter_that_uses_it_answers_as_the_target_would(tmp_path):
    host = sysconfig.get_config_vars()
    values = sysconfig_data.target_values(host, Path("/kit/bin"), (), triplet=TRIPLET)
    (tmp_path / f"{sysconfig_data.name(TRIPLET)}.py").write_text(sysconfig_data.render(values))
    code = (
        "import sys, sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'), sysconfig.get_platform(),"
        " sysconfig.get_path('include') == sys.argv[1])"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "_PYTHON_SYSCONFIGDATA_NAME": sysconfig_data.name(TRIPLET),
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
    }
    said = subprocess.run(
        [sys.executable, "-c", code, sysconfig.get_path("include")],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    digits = "{}{}".format(*sys.version_info[:2])
    assert said.split() == [f".cpython-{digits}-aarch64-linux-gnu.so", "linux-aarch64", "True"]
