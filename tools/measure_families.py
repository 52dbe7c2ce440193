#!/usr/bin/env python3
"""Measure the start and the memory of every family, at a size of about 100 million weights.

    python tools/measure_families.py                                # writes docs/data/families.csv
    python tools/measure_families.py GptOssForCausalLM --output -   # some of them, to the terminal

A checkpoint has the family's defaults in config.json, sizes of a small model, and as many layers as make 100
million weights: random numbers in bfloat16, under the names that the family takes. A new process loads it and
generates one token, or an embedding. Of several such processes the middle one counts. CPU time counts all
threads. Memory is the largest resident size, with the file's pages that are mapped.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from armllm import LLM, SamplingParams  # isort: skip - tells torch how to wait
import torch
from safetensors.torch import save_file

from armllm.checkpoint.dummy import DummyTensors
from armllm.errors import ArmllmError
from armllm.models import ENCODERS, FAMILIES, check_model, read_model_config

WEIGHTS = 100e6
DATA = Path(__file__).resolve().parent.parent / "docs" / "data" / "families.csv"
PROMPT = list(range(10, 42))
# Keys of other families have no effect.
SIZES: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "moe_intermediate_size": 512,
    "num_experts_per_tok": 2,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 8),
}
ENCODER_SIZES = {"vocab_size": 32000, "hidden_size": 768, "intermediate_size": 2048}
ALL_HEADS = {"num_key_value_heads": 12}
LATENT = ALL_HEADS | {"n_group": 1, "topk_group": 1}
DELTA = {"full_attention_interval": 2, "linear_num_key_heads": 4, "linear_num_value_heads": 8}
NARROW = {"intermediate_size": 512}  # the width of an expert
# What these sizes do not fit.
SPECIAL: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"), LATENT),
    **dict.fromkeys(("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"), LATENT),
    **dict.fromkeys(("MiniCPM3ForCausalLM", "YoutuForCausalLM"), LATENT),
    "MiniCPMForCausalLM": {"num_experts": 0},
    **dict.fromkeys(("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"), DELTA),
    **dict.fromkeys(
        ("GptOssForCausalLM", "GraniteMoeForCausalLM", "MixtralForCausalLM", "OlmoeForCausalLM"), NARROW
    ),
    "PhimoeForCausalLM": NARROW,
    "Cohere2MoeForCausalLM": NARROW,
    "GraniteMoeSWAForCausalLM": NARROW,
    **dict.fromkeys(("FlexOlmoForCausalLM", "HunYuanMoEV1ForCausalLM", "MiniMaxM2ForCausalLM"), NARROW),
    "Dots1ForCausalLM": {"n_shared_experts": 1},
    "Llama4ForCausalLM": NARROW,
    "GraniteMoeHybridForCausalLM": NARROW | {"shared_intermediate_size": 512},
    "Qwen2MoeForCausalLM": {"shared_expert_intermediate_size": 512},
    "Gemma3nForCausalLM": {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 32000},
    "Gemma4ForCausalLM": {"vocab_size_per_layer_input": 32000, "hidden_size_per_layer_input": 64},
    "FalconH1ForCausalLM": {"mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_state": 128},
    "NemotronHForCausalLM": {
        "mamba_num_heads": 24,
        "ssm_state_size": 64,
        "moe_shared_expert_intermediate_size": 512,
    },
    "GPT2LMHeadModel": ALL_HEADS,
    "GPTJForCausalLM": ALL_HEADS,
    "GPTNeoXForCausalLM": ALL_HEADS,
    "OPTForCausalLM": ALL_HEADS | {"ffn_dim": 2048},
    "Qwen2_5_VLForConditionalGeneration": {
        "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        "vision_config": {"depth": 4, "hidden_size": 512, "out_hidden_size": 768, "num_heads": 8},
    },
}


def is_measured(architecture: str) -> bool:
    """Classes that have the same text model as another one, or another head, are not."""
    if architecture in ENCODERS:
        return architecture.endswith("Model")
    return not architecture.endswith("ForConditionalGeneration") or "VL" in architecture


def config_of(architecture: str, layers: int) -> dict[str, Any]:
    sizes = ENCODER_SIZES if architecture in ENCODERS else SIZES
    counts = dict.fromkeys(("num_hidden_layers", "n_layers"), layers)
    if architecture == "Lfm2MoeForCausalLM":  # its class has no default
        sizes = {**sizes, "layer_types": [("conv", "full_attention")[index % 2] for index in range(layers)]}
    if architecture == "NemotronHForCausalLM":  # which counts the letters
        sizes = {**sizes, "hybrid_override_pattern": ("ME*-" * layers)[:layers]}
    return {"architectures": [architecture], **sizes, **counts, **SPECIAL.get(architecture, {})}


def shapes_of(folder: Path, architecture: str, layers: int) -> dict[str, tuple[int, ...]]:
    """The tensors of such a model, whose config.json is written."""
    (folder / "config.json").write_text(json.dumps(config_of(architecture, layers)), encoding="utf-8")
    kind, config = read_model_config(folder)
    tensors = DummyTensors(folder)
    check_model(kind, config, tensors, torch.bfloat16, None)
    return {name: tensors.describe(name)[1] for name in tensors.names()}


def count(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(torch.Size(shape).numel() for shape in shapes.values())


def write_checkpoint(folder: Path, architecture: str) -> tuple[int, int]:
    """The numbers of layers and weights of what is written."""
    few, more = (count(shapes_of(folder, architecture, layers)) for layers in (4, 8))
    layers = max(2, round(4 + 4 * (WEIGHTS - few) / (more - few)))
    shapes = shapes_of(folder, architecture, layers)
    numbers = torch.empty(1 << 20).normal_(std=0.02, generator=torch.Generator().manual_seed(0)).bfloat16()
    tensors = {}
    for name, shape in sorted(shapes.items()):
        size = torch.Size(shape).numel()
        tensors[name] = numbers.repeat(size // len(numbers) + 1)[:size].reshape(shape).clone()
    save_file(tensors, folder / "model.safetensors")
    return layers, count(shapes)


def run(folder: str) -> None:
    """Load and compute, and print what it took."""
    imported = time.process_time()
    llm = LLM(folder, dtype="bfloat16", skip_tokenizer_init=True, num_gpu_blocks_override=64, max_num_seqs=4)
    loaded = time.process_time()
    if llm.llm_engine.processor.is_encoder:
        llm.embed([PROMPT], use_tqdm=False)
    else:
        llm.generate([PROMPT], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
    status = Path("/proc/self/status").read_text(
        encoding="utf-8"
    )  # getrusage knows the largest of the parent
    peak = int(status.partition("VmHWM:")[2].split()[0])
    print(json.dumps({"load": loaded - imported, "cpu": time.process_time(), "peak": peak}))


def measure(folder: Path, architecture: str, runs: int) -> dict[str, Any]:
    """A row of the table."""
    layers, weights = write_checkpoint(folder, architecture)
    found = []
    for _ in range(runs):
        command = [sys.executable, __file__, "--run", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ArmllmError(done.stderr.strip().rpartition("\n")[2])
        found.append(json.loads(done.stdout.strip().rpartition("\n")[2]))
    middle = {name: statistics.median(one[name] for one in found) for name in found[0]}
    return {
        "architecture": architecture,
        "layers": layers,
        "weights, M": f"{weights / 1e6:.0f}",
        "load, CPU-s": f"{middle['load']:.2f}",
        "start to first result, CPU-s": f"{middle['cpu']:.2f}",
        "peak, MiB": round(middle["peak"] / 1024),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the start and the memory of families.")
    parser.add_argument("architectures", nargs="*", help="default: all")
    parser.add_argument("--output", default=str(DATA), help="a CSV file; - is the terminal")
    parser.add_argument("--runs", type=int, default=3, help="of which the middle one counts")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.run)
        return 0
    names = arguments.architectures or [name for name in (*FAMILIES, *ENCODERS) if is_measured(name)]
    rows = []
    for architecture in sorted(names, key=str.lower):
        with tempfile.TemporaryDirectory() as root:
            rows.append(measure(Path(root), architecture, arguments.runs))
        print(*rows[-1].values(), sep=", ", file=sys.stderr, flush=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if arguments.output == "-":
        print(text.getvalue(), end="")
    else:
        Path(arguments.output).write_text(text.getvalue(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
