"""armllm once OpenVINO is removed."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from tests.armllm.environments import run

# OpenVINO's packages, as pip and the file system call them.
REMOVED = ("openvino", "openvino_telemetry")
IR = Path(__file__).parent / "llama"
PROGRAM = """
import sys
from armllm import LLM, SamplingParams
from armllm.errors import RequestError
from armllm.smoke.passages import MODEL

prompt = [{"prompt_token_ids": [5, 6, 7]}]
greedy = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
options = {"dtype": "float32", "skip_tokenizer_init": True, "num_gpu_blocks_override": 8}
[answer] = LLM(str(MODEL), **options).generate(prompt, greedy, use_tqdm=False)
print(len(answer.outputs[0].token_ids))
try:
    [answer] = LLM(sys.argv[1], backend="openvino", **options).generate(prompt, greedy, use_tqdm=False)
    print(len(answer.outputs[0].token_ids))
except RequestError as error:
    print(error)
print(*sorted({name.partition(".")[0] for name in sys.modules} & {"openvino"}))
"""


@pytest.mark.slow
def test_armllm_computes_on_once_pip_has_removed_openvino(tmp_path):
    """It would catch an import of OpenVINO outside of its back end, and a message that misleads."""
    venv.create(tmp_path / "venv", symlinks=True, with_pip=False)
    python = tmp_path / "venv/bin/python"
    [own] = (tmp_path / "venv/lib").glob("python3*/site-packages")
    for source in Path(sysconfig.get_path("purelib")).iterdir():
        if source.name.split("-")[0] in REMOVED:
            shutil.copytree(source, own / source.name)
        else:
            (own / source.name).symlink_to(source)

    def said():
        return run([python, "-c", PROGRAM, IR], timeout=300).stdout.splitlines()

    assert said() == ["4", "4", "openvino"]
    removal = [sys.executable, "-m", "pip", "--python", python, "uninstall", "--yes", *REMOVED]
    run(removal)
    missing = "backend openvino: OpenVINO is not installed: pip install 'armllm[openvino]'"
    assert said() == ["4", missing, ""]
    run([python, "-m", "armllm", "doctor"])
