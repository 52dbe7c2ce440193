"""Changed checkpoints of every format are loaded whole, and generate: tokens or one of the project's errors.

As in test_fuzz.py; ARMLLM_FUZZ is the number of changed files per kind.
"""

from __future__ import annotations

import pytest
from tests.armllm.checkpoint.gguf_files import KINDS
from tests.armllm.checkpoint.test_fuzz import (
    COUNT,
    USUAL,
    gguf_header,
    json_file,
    noise,
    run,
    safetensors_header,
)
from tests.armllm.quant.forms import GROUPED, write_quantized
from tests.armllm.quant.test_floats import CASES as FLOATS
from tests.armllm.quant.test_floats import SIZES
from tests.armllm.quant.test_gguf import SIZES as GGUF_SIZES
from tests.armllm.quant.test_gguf import write_gguf

from armllm import LLM, SamplingParams
from armllm.quant.gguf_format import SCHEMES

FEW = 4 if COUNT == USUAL else COUNT  # each takes a tenth of a second
GREEDY = SamplingParams(temperature=0, max_tokens=2, detokenize=False, logprobs=2)
OPTIONS = {"dtype": "float32", "skip_tokenizer_init": True, "max_model_len": 32, "num_gpu_blocks_override": 4}


def generate(path):
    llm = LLM(str(path), **OPTIONS)
    [answer] = llm.generate([{"prompt_token_ids": [1, 2, 3]}], GREEDY, use_tqdm=False)
    assert len(answer.outputs[0].token_ids) <= 2


def gguf_file(path, rng):
    """The header, or the blocks behind it."""
    if rng.random() < 0.5:
        gguf_header(path, rng)
        return
    data = path.read_bytes()
    start = len(data) // 2 if rng.random() < 0.5 else 4000
    path.write_bytes(data[:start] + noise(data[start:], rng))


def folder_file(folder, rng):
    name = rng.choice(["config.json", "model.safetensors", "model.safetensors"])
    change = json_file(name) if name.endswith(".json") else safetensors_header(name)
    change(folder, rng)


@pytest.fixture
def source(make_checkpoint):
    return make_checkpoint(**GGUF_SIZES)


@pytest.mark.parametrize("kind", sorted(SCHEMES))
def test_changed_blocks_of_gguf(source, tmp_path, kind):
    assert hasattr(KINDS, kind)
    for parameter in source.model.parameters():
        parameter.requires_grad_(False)
    write_gguf(tmp_path / "sound.gguf", source, kind)
    generate(tmp_path / "sound.gguf")
    run(f"gguf {kind}", tmp_path / "sound.gguf", tmp_path / "changed.gguf", gguf_file, generate, count=FEW)


FORMS = FLOATS | GROUPED


@pytest.mark.parametrize("name", FORMS)
def test_changed_formats_of_weights(make_checkpoint, tmp_path, name):
    settings, form = FORMS[name]
    write_quantized(tmp_path / "sound", make_checkpoint(**SIZES), settings, form)
    generate(tmp_path / "sound")
    run(f"form {name}", tmp_path / "sound", tmp_path / "changed", folder_file, generate, count=FEW)
