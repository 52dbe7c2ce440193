"""Programs as vLLM's guides teach to write them, with armllm for vllm, on names of the hub's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from tests.armllm.hub import put_into_cache
from tests.armllm.models.test_classifiers import classifier

from armllm.smoke.passages import MODEL

GENERATE = """
from vllm import LLM, EngineArgs, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.inputs import TokensPrompt
from vllm.outputs import RequestOutput
from vllm.sampling_params import BeamSearchParams, StructuredOutputsParams
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.metrics.reader import Counter

parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
parser.set_defaults(model="facebook/opt-125m", enforce_eager=True, gpu_memory_utilization=0.4)
parser.add_argument("--max-tokens", type=int)
options = vars(parser.parse_args("--max-tokens 6 --max_model_len 1k --no-enable-prefix-caching".split()))
count = options.pop("max_tokens")
llm = LLM(**options)
params = llm.get_default_sampling_params()
params.max_tokens, params.temperature = count, 0.0
prompts = ["A wheel left the workshop", "Hello, my name is"]
first, second = llm.generate(prompts, params)
assert isinstance(first, RequestOutput)
same = llm.generate(TokensPrompt(prompt_token_ids=first.prompt_token_ids), params)[0]
assert same.outputs[0].text == first.outputs[0].text
form = SamplingParams(max_tokens=9, structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
assert llm.generate("Is it?", form, use_tqdm=False)[0].outputs[0].text in ("yes", "no")
beams = llm.beam_search([{"prompt": prompts[0]}], BeamSearchParams(beam_width=2, max_tokens=4))
assert len(beams[0].sequences) == 2
conversation = [{"role": "user", "content": "Hello"}]
assert len(llm.chat([conversation] * 2, params, chat_template="{{ messages[0].content }}")) == 2
assert any(isinstance(metric, Counter) for metric in llm.get_metrics())
del llm
cleanup_dist_env_and_memory()
print(first.outputs[0].text)
"""
POOL = """
from vllm import LLM, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.print_utils import print_embeddings

parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
parser.set_defaults(model="someone/reward", runner="pooling", enforce_eager=True, trust_remote_code=True)
llm = LLM(**vars(parser.parse_args([])))
prompts = ["Hello, my name is", "The capital of France is"]
for output in llm.classify(prompts):
    assert len(output.outputs.probs) == 1
for output in llm.encode(prompts, pooling_task="classify"):
    print_embeddings(output.outputs.data.tolist(), prefix="Reward")
print(len(llm.score(prompts[0], prompts)))
"""
STREAM = """
import asyncio
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

async def main():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="facebook/opt-125m", enforce_eager=True))
    params = SamplingParams(max_tokens=6, temperature=0, output_kind=RequestOutputKind.DELTA)
    text = ""
    async for output in engine.generate("A wheel left the workshop", params, request_id="one"):
        text += output.outputs[0].text
        if output.finished:
            break
    engine.shutdown()
    print(text)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory, tokenizer_folder):
    """What `hf download` leaves: a model that generates, and one that rewards."""
    root = tmp_path_factory.mktemp("cache")
    put_into_cache(root, "facebook/opt-125m", [path for path in MODEL.iterdir() if path.is_file()])
    reward = tmp_path_factory.mktemp("reward")
    classifier(reward, "Qwen3ForSequenceClassification", 1)
    shutil.copytree(tokenizer_folder, reward, dirs_exist_ok=True)
    put_into_cache(root, "someone/reward", list(reward.iterdir()))
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "last"), [(GENERATE, " at 6:40 one"), (POOL, "2"), (STREAM, " at 6:40 one")]
)
def test_a_program_runs_with_another_import(cache, program, last):
    variables = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    command = [sys.executable, "-c", program.replace("from vllm", "from armllm")]
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, env=os.environ | variables, timeout=300
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1].startswith(last)
