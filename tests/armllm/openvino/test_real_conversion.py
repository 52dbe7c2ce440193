"""A checkpoint that optimum-intel converts while it loads, beside OpenVINO's own engine."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

import httpx2
import pytest
from tests.armllm.environments import python_with, result_of, run

import armllm
from armbuild.image.client import free_port
from armllm import LLM, SamplingParams
from armllm.sampling_params import StructuredOutputsParams

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
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["wheel", "image"]},
        "cores": {"type": "integer", "minimum": 1, "maximum": 64},
    },
    "required": ["kind", "cores"],
    "additionalProperties": False,
}
DEADLINE = 300  # seconds


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openvino") / "venv"
    return python_with(folder, "optimum-intel==2.2.0", "openvino-genai>=2026.1")


@pytest.mark.parametrize("quantization", ["", "int4-g32"])
def test_a_converted_checkpoint_gives_the_tokens_of_openvino_genai(
    make_checkpoint, tmp_path, python, quantization
):
    model = make_checkpoint(hidden_size=128, intermediate_size=256).folder
    command = [python, "-c", PROGRAM, model, quantization, tmp_path / "kept"]
    ours, theirs = result_of(run(command, cwd=tmp_path))
    assert ours == theirs


def export(python, folder, weight_format):
    """The smoke model as the published tool writes it."""
    command = [python, "-m", "optimum.commands.optimum_cli", "export", "openvino", "--model", SMOKE_MODEL]
    command += ["--task", "text-generation-with-past", "--weight-format", weight_format, folder]
    run(command)


@contextlib.contextmanager
def serve(python, folder, log):
    """``armllm serve --backend openvino``: its address once it answers."""
    port, end = str(free_port()), time.monotonic() + DEADLINE
    command = [python, "-m", "armllm", "serve", folder, "--backend", "openvino", "--dtype", "float32"]
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    with log.open("w") as output:
        options = ["--host", "127.0.0.1", "--port", port]
        server = subprocess.Popen([*command, *options], stdout=output, stderr=output, env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            assert server.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            with contextlib.suppress(httpx2.TransportError):
                httpx2.get(f"{url}/health").raise_for_status()
                break
            time.sleep(0.1)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def test_a_server_over_openvino_answers_in_the_form_of_a_schema(tmp_path, python):
    """The text is that of armllm's own kernels: it would catch a grammar that another back end passes by."""
    export(python, tmp_path / "model", "fp32")
    prompt = {"prompt": "A wheel is", "temperature": 0, "max_tokens": 48}
    schema = {"type": "json_schema", "json_schema": {"name": "made", "schema": SCHEMA}}
    asked = {"model": str(tmp_path / "model"), **prompt, "response_format": schema}
    with serve(python, tmp_path / "model", tmp_path / "log") as url:
        answer = httpx2.post(f"{url}/v1/completions", json=asked, timeout=DEADLINE).json()
    [choice] = answer["choices"]
    made = json.loads(choice["text"])
    assert made.keys() == {"kind", "cores"}
    assert made["kind"] in {"wheel", "image"}
    assert 1 <= made["cores"] <= 64
    assert choice["finish_reason"] == "stop"
    own = LLM(str(SMOKE_MODEL), dtype="float32")
    outputs = StructuredOutputsParams(json=SCHEMA)
    params = SamplingParams(temperature=0, max_tokens=48, structured_outputs=outputs)
    [expected] = own.generate([prompt["prompt"]], params, use_tqdm=False)
    assert choice["text"] == expected.outputs[0].text


def test_a_folder_of_the_published_tool_is_taken_as_it_is(tmp_path, python):
    """From a prompt in text to the end token: it would catch another tokenizer and other input names."""
    folder = tmp_path / "model"
    export(python, folder, "int8")
    ours, theirs = result_of(run([python, "-c", PUBLISHED, folder, "A wheel is"], cwd=tmp_path))
    assert ours == theirs
    assert len(ours[1]) > 4
