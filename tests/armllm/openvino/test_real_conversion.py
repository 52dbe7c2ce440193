"""A checkpoint that optimum-intel converts while it loads, beside OpenVINO's own engine."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.armllm.environments import python_with

import armllm

pytestmark = [pytest.mark.slow, pytest.mark.network]
# Tokens of `LLM` and of OpenVINO GenAI, from the IR that a checkpoint becomes.
PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
import openvino, openvino_genai
from armllm import LLM, SamplingParams
from armllm.openvino import conversion, runner

folder, quantization, kept = sys.argv[1], sys.argv[2] or None, Path(sys.argv[3])
convert = conversion.convert
runner.convert = lambda source, target, options: (convert(source, target, options), copy(target))

def copy(target):
    kept.mkdir()
    for file in target.iterdir():
        (kept / file.name).write_bytes(file.read_bytes())

prompt = [5, 77, 301, 9, 120, 44, 260, 18]
options = {"backend": "openvino", "dtype": "float32", "skip_tokenizer_init": True, "max_model_len": 64}
llm = LLM(folder, quantization=quantization, **options)
sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
[answer] = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
ours = list(answer.outputs[0].token_ids)
properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
theirs = openvino_genai.LLMPipeline(kept, "CPU", **properties).generate(
    openvino.Tensor(np.array([prompt])),
    openvino_genai.GenerationConfig(max_new_tokens=12, do_sample=False, ignore_eos=True),
)
print("RESULT", json.dumps([ours, list(theirs.tokens[0])]))
"""

PUBLISHED = """
import json, sys
import openvino_genai
from armllm import LLM, SamplingParams

folder, prompt = sys.argv[1:]
llm = LLM(folder, backend="openvino", dtype="float32", max_model_len=128)
[answer] = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=48), use_tqdm=False)
properties = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
pipeline = openvino_genai.LLMPipeline(folder, "CPU", **properties)
encoded = pipeline.get_tokenizer().encode(prompt)
config = openvino_genai.GenerationConfig(max_new_tokens=48, do_sample=False)
config.set_eos_token_id(pipeline.get_tokenizer().get_eos_token_id())
theirs = pipeline.generate(encoded, config)
ours = [answer.prompt_token_ids, list(answer.outputs[0].token_ids)]
print("RESULT", json.dumps([ours, [encoded.input_ids.data[0].tolist(), list(theirs.tokens[0])]]))
"""
SMOKE_MODEL = Path(armllm.__file__).parent / "smoke" / "model"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openvino") / "venv"
    return python_with(folder, "optimum-intel==2.2.0", "openvino-genai>=2026.1")


def result_of(command, folder):
    """What a program prints after RESULT."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    [line] = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


@pytest.mark.parametrize("quantization", ["", "int4-g32"])
def test_a_converted_checkpoint_gives_the_tokens_of_openvino_genai(
    make_checkpoint, tmp_path, python, quantization
):
    model = make_checkpoint(hidden_size=128, intermediate_size=256).folder
    ours, theirs = result_of([python, "-c", PROGRAM, model, quantization, tmp_path / "kept"], tmp_path)
    assert ours == theirs


def test_a_folder_of_the_published_tool_is_taken_as_it_is(tmp_path, python):
    """From a prompt in text to the end token: it would catch another tokenizer and other input names."""
    folder = tmp_path / "model"
    command = [python, "-m", "optimum.commands.optimum_cli", "export", "openvino", "--model", SMOKE_MODEL]
    command += ["--task", "text-generation-with-past", "--weight-format", "int8", folder]
    subprocess.run(command, check=True, capture_output=True)
    ours, theirs = result_of([python, "-c", PUBLISHED, folder, "A wheel is"], tmp_path)
    assert ours == theirs
    assert len(ours[1]) > 4
