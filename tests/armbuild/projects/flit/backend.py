"""flit_core, but an extension is compiled before it packs the files, and the tag is set after it."""

import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

from flit_core import buildapi


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    ask = sysconfig.get_config_var
    target = f"fixture_flit/_core{ask('EXT_SUFFIX')}"
    command = [*shlex.split(ask("LDSHARED")), *shlex.split(ask("CFLAGS")), *shlex.split(ask("CCSHARED"))]
    command += ["-I", sysconfig.get_path("include"), "core.c", "-o", target]
    subprocess.run(command, check=True)
    pure = Path(wheel_directory, buildapi.build_wheel(wheel_directory, config_settings, metadata_directory))
    python = "cp{}{}".format(*sys.version_info[:2])
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tags = ["--python-tag", python, "--abi-tag", python, "--platform-tag", platform, "--remove"]
    done = subprocess.run(
        [sys.executable, "-m", "wheel", "tags", *tags, pure], check=True, capture_output=True, text=True
    )
    return done.stdout.strip().splitlines()[-1]
