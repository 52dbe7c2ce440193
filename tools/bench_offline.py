"""One engine without a server, for `bench_serving.py`, which starts this in the engine's own environment.

    python tools/bench_offline.py ENGINE FOLDER THREADS DTYPE

reads lines ``[prompts, output tokens]`` of JSON, generates greedily for all prompts of a line at once, and
says "done" when it is ready and after each line. Imports nothing but the engine.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Generate = Callable[[list[list[int]], int], Any]

KV_CACHE_GIB = 2
# Computation and cache, as `armllm.openvino` has them. Where nothing is said, OpenVINO's cache has 16 bits.
OPENVINO_PRECISIONS = {
    "bfloat16": {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "f16"},
    "float32": {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"},
}


def same_interface(
    engine: str, folder: str, _threads: int, dtype: str, *, part: str = "", **options: object
) -> Generate:
    """Armllm and vllm, with the model in a ``part`` of the folder; OMP_NUM_THREADS says the threads."""
    module = importlib.import_module(engine)
    llm = module.LLM(f"{folder}/{part}", dtype=dtype, max_model_len=2048, **options)

    def generate(prompts: list[list[int]], output: int) -> Any:
        params = module.SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
        return llm.generate([{"prompt_token_ids": one} for one in prompts], params, use_tqdm=False)

    return generate


def transformers(folder: str, threads: int, dtype: str) -> Generate:
    import torch  # noqa: PLC0415 - each engine has its own imports
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    torch.set_num_threads(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.eval()

    @torch.inference_mode()
    def generate(prompts: list[list[int]], output: int) -> Any:
        ids = torch.tensor(prompts)
        lengths = {"max_new_tokens": output, "min_new_tokens": output}
        return model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, **lengths)

    return generate


def openvino(folder: str, threads: int, dtype: str) -> Generate:
    import openvino  # noqa: PLC0415
    import openvino_genai  # type: ignore[import-not-found]  # noqa: PLC0415

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = KV_CACHE_GIB
    scheduler.max_num_seqs = 256
    properties = {"INFERENCE_NUM_THREADS": threads, **OPENVINO_PRECISIONS[dtype]}
    pipeline = openvino_genai.ContinuousBatchingPipeline(f"{folder}/openvino", scheduler, "CPU", properties)

    def generate(prompts: list[list[int]], output: int) -> Any:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = output
        config.ignore_eos = True
        config.do_sample = False
        return pipeline.generate([openvino.Tensor([one]) for one in prompts], [config] * len(prompts))

    return generate


ENGINES: dict[str, Callable[[str, int, str], Generate]] = {
    "armllm": functools.partial(same_interface, "armllm"),
    "vllm": functools.partial(same_interface, "vllm"),
    "transformers": transformers,
    "openvino": openvino,
    "armllm-openvino": functools.partial(same_interface, "armllm", part="openvino", backend="openvino"),
}


def main() -> int:
    name, folder, threads, dtype = sys.argv[1:]
    generate = ENGINES[name](folder, int(threads), dtype)
    print("done", flush=True)
    for line in sys.stdin:
        prompts, output = json.loads(line)
        generate(prompts, output)
        print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
