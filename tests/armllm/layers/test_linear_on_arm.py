"""What torch does in a step on an Arm server, asked of torch itself under emulation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OPERATORS = ROOT / "tests" / "armllm" / "kernels" / "test_torch_ops.py"
PACKAGES = ("safetensors", "tokenizers", "tqdm", "jinja2", "llguidance", "huggingface-hub")
REQUIRED = ("torch==2.10.0", "pytest", *PACKAGES)
STEPS = """
import os, sys
os.environ["ONEDNN_VERBOSE"] = "1"
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 1)
from armllm import LLM, SamplingParams
from armllm.smoke.passages import MODEL
params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False)
bfloat16 = [("bfloat16", quantization) for quantization in (None, "int8", "int4")]
for dtype, quantization in (*bfloat16, ("float32", None)):
    llm = LLM(str(MODEL), dtype=dtype, max_model_len=64, quantization=quantization)
    print("loaded", dtype, quantization, flush=True)
    decode, tokens = llm.llm_engine.runner.decode, []
    for decode.most_sequences in (64, 0):
        prompts = [{"prompt_token_ids": [5] * length} for length in (1, 20)]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        tokens.append([output.outputs[0].token_ids for output in outputs])
    assert tokens[0] == tokens[1], "a replayed step is not a computed one"
    assert [len(one.ops) for one in decode.recordings.values()] == [1], decode.refused
    print("generated", dtype, quantization, flush=True)
import torch
torch.nn.functional.linear(*(torch.ones(64, 64, dtype=torch.bfloat16) for _ in range(2)))
print("computed by torch", flush=True)
sys.path.insert(0, sys.argv[2])
import test_torch_ops
for dtype in test_torch_ops.DTYPES:
    test_torch_ops.test_operators_compute_what_the_functions_compute(dtype)
    test_torch_ops.test_operators_in_place_change_what_the_functions_change(dtype)
print("computed operators", flush=True)
"""


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.emulated
def test_a_step_copies_no_weight_into_another_order(tmp_path):
    """oneDNN does so on AArch64, with 16 bits in every product, in fp32 from 15 rows on.

    That is three times the bytes of a decode.

    And without a product of torch's, a recorded step is one call.

    The operators that vLLM gets compute there, too.
    """
    armbuild = [sys.executable, "-m", "armbuild"]
    build = ["wheel", ROOT, "--python=3.11", "--no-smoke", f"--output={tmp_path}"]
    subprocess.run([*armbuild, *build], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    script, trace = tmp_path / "steps.py", tmp_path / "trace"
    script.write_text(STEPS)
    requires = [f"--requires={name}" for name in REQUIRED]
    command = f"--command=python {script} {trace} {OPERATORS.parent}"
    run = ["smoke", wheel, "--cpu=neoverse-v1", command, *requires]
    done = subprocess.run([*armbuild, *run], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    steps, last, rest = trace.read_text().partition("generated float32 None\n")
    assert last
    assert "reorder" not in steps
    torchs, last, operators = rest.partition("computed by torch\n")
    assert last
    assert "computed operators" in operators
    assert "reorder" in torchs, "torch's product copies no weight any more, or oneDNN does not say so"
