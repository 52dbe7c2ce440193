"""What building a model without its weights loads."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.armllm.models.random_configs import FAMILIES, random_config

BUILDING = """
import json, sys
from pathlib import Path
import torch
from armllm.checkpoint.dummy import DummyTensors
from armllm.models import check_model, read_model_config
for folder in map(Path, sys.argv[1:]):
    kind, config = read_model_config(folder)
    check_model(kind, config, DummyTensors(folder), torch.bfloat16, None)
    if found := {"torch._inductor", "sympy"} & {*sys.modules}:
        sys.exit(f"{folder.name} imports {found}")
"""


def test_a_check_without_data_does_not_load_torchs_compiler(tmp_path):
    """Some operations on the meta device do: 3 seconds of CPU time at each start."""
    folders = []
    for architecture in FAMILIES:
        folders.append(tmp_path / architecture)
        folders[-1].mkdir()
        (folders[-1] / "config.json").write_text(json.dumps(random_config(architecture, 0)))
    command = [sys.executable, "-c", BUILDING, *folders]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
