import dataclasses
from pathlib import Path

import pytest
from tests.armbuild.image import small

from armbuild.image import sandbox
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


def test_a_script_is_emulated_by_its_interpreter_and_found_on_the_images_path(tmp_path):
    small.tree(
        tmp_path,
        {
            "usr/bin/python3.11": b"\x7fELF",
            "usr/bin/python3": ("->", "/usr/bin/python3.11"),
            "usr/local/bin/armllm": "#!/usr/bin/python3 -I\nimport armllm\n",
        },
    )
    box = dataclasses.replace(BOX, root=tmp_path)
    for name in ("/usr/local/bin/armllm", "armllm"):
        words, _ = box.command([name, "serve"], {"PATH": "/bin:/usr/local/bin"}, None)
        assert words[-4:] == ["/usr/bin/python3", "-I", "/usr/local/bin/armllm", "serve"]
    words, _ = box.command(["/usr/bin/python3", "-V"], {}, None)
    assert words[-2:] == ["/usr/bin/python3", "-V"]
    assert sandbox.find(tmp_path, "none", {"PATH": "/usr/bin"}) is None
