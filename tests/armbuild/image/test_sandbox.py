import dataclasses
from pathlib import Path

import pytest

from armbuild.image.sandbox import Sandbox

BOX = Sandbox(root=Path("/image"), user=10001, group=10001, emulator=Path("/q"), isolated=True)
ENVIRONMENT = {"PATH": "/bin", "LD_PRELOAD": "/lib/tcmalloc.so", "NO_PROXY": "localhost,127.0.0.1"}


@pytest.mark.parametrize("isolated", [True, False])
def test_values_with_commas_reach_the_emulated_program_whole(isolated):
    box = dataclasses.replace(BOX, isolated=isolated)
    command, outer = box.command(["/usr/bin/python3"], ENVIRONMENT, "neoverse-n1")
    given = [command[place + 1] for place, word in enumerate(command) if word == "-E"]
    assert given == ["PATH=/bin", "LD_PRELOAD=/lib/tcmalloc.so"]  # QEMU cuts what follows -E at commas
    assert outer["NO_PROXY"] == "localhost,127.0.0.1"
    assert "LD_PRELOAD" not in outer  # the programs that start QEMU are of this machine
