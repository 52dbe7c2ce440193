import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

subprocess.run(["cargo", "build", "--release", "--offline"], check=True)
path = Path(os.environ.get("CARGO_TARGET_DIR", "target"), os.environ.get("CARGO_BUILD_TARGET", ""), "release")
suffix = sysconfig.get_config_var("EXT_SUFFIX")
shutil.copy(path / "libfixture_rust.so", f"fixture_rust/fixture_rust{suffix}")
