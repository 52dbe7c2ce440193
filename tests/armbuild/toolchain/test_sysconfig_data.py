import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from armbuild.toolchain import sysconfig_data

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
    values = sysconfig_data.target_values(HOST, Path("/kit/bin"), ())
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
    values = sysconfig_data.target_values(host, Path("/kit/bin"), ())
    assert values["EXT_SUFFIX"] == ".cpython-314t-aarch64-linux-gnu.so"
    assert values["Py_GIL_DISABLED"] == 1
    assert values["INCLUDEPY"] == "/uv/include/python3.14t"


def test_headers_of_the_target_replace_the_hosts():
    values = sysconfig_data.target_values(HOST, Path("/kit/bin"), [Path("/debian/python3.11")])
    assert values["INCLUDEPY"] == "/debian/python3.11"


def test_an_interpreter_told_to_use_it_answers_as_the_target_would(tmp_path):
    host = sysconfig.get_config_vars()
    values = sysconfig_data.target_values(host, Path("/kit/bin"), ())
    (tmp_path / f"{sysconfig_data.NAME}.py").write_text(sysconfig_data.render(values))
    code = (
        "import sys, sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'), sysconfig.get_platform(),"
        " sysconfig.get_path('include') == sys.argv[1])"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "_PYTHON_SYSCONFIGDATA_NAME": sysconfig_data.NAME,
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
