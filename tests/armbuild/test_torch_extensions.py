"""C++ extensions of torch, cross-built against the target's package and run with it on a core."""

from pathlib import Path

import pytest
from tests.armbuild.cross_builds import built

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
    result = built(PROJECTS / project, tmp_path, "--cpu=neoverse-n1", f"--command=python {script}")
    (run,) = result["smoke"]["results"]
    assert run["said"] == "nothing to add for weights [1.0, 2.0, 3.0]"
    assert "g++" in result["compiler"]
    assert int(result["tag"].rpartition("manylinux_2_")[2].split("_")[0]) <= 31, "Debian bullseye's glibc"
