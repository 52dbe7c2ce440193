"""C++ extensions of torch, cross-built against the target's package and run with it on a core."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROJECTS = Path(__file__).parent / "projects"
USE = """\
import torch
from {module} import total
try:
    total([], "weights")
except ValueError as error:
    print(str(error).splitlines()[0], total([torch.ones(3), torch.arange(3.0)], "x").tolist())
"""


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
@pytest.mark.parametrize("project", ["torch_setuptools", "torch_cmake"])
def test_an_extension_of_torch_takes_and_raises_what_the_targets_torch_does(tmp_path, project):
    script = tmp_path / "use.py"
    script.write_text(USE.format(module=f"fixture_{project}"))
    done = subprocess.run(
        [sys.executable, "-m", "armbuild", "wheel", PROJECTS / project, "--lane=cross", "--cpu=neoverse-n1",
         f"--command=python {script}", "--json", f"--output={tmp_path}"],
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["wheels"]
    (run,) = result["smoke"]["results"]
    assert run["said"] == "nothing to add for weights [1.0, 2.0, 3.0]"
    assert "g++" in result["compiler"]
    assert int(result["tag"].rpartition("manylinux_2_")[2].split("_")[0]) <= 31, "Debian bullseye's glibc"
