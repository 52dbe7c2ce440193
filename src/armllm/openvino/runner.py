"""The engine's runner over a graph of OpenVINO: the same scheduler, blocks, sampler and grammars."""

from __future__ import annotations

import logging
import platform
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import openvino
import torch
from torch import Tensor

import armisa
from armllm.checkpoint.config import ConfigReader, ModelConfig
from armllm.checkpoint.hub import IR
from armllm.checkpoint.json_file import check_size
from armllm.checkpoint.safetensors_file import MAX_BYTES
from armllm.engine.runner import Runner
from armllm.engine.stats import LoadReport
from armllm.errors import CheckpointError, RequestError
from armllm.openvino.conversion import check_parts, convert, is_ir, weight_options
from armllm.openvino.graph import Graph, Precision
from armllm.progress import progress

if TYPE_CHECKING:
    from collections.abc import Sequence as Sequences

    from armllm.engine.config import EngineConfig
    from armllm.engine.placement import Placement
    from armllm.engine.runner import StepInput
    from armllm.engine.sequence import Sequence

logger = logging.getLogger(__name__)
# What GPT-2, GPT-Neo, BLOOM, MPT, ChatGLM and such call these keys of config.json.
OTHER_NAMES = {
    "vocab_size": ("padded_vocab_size",),
    "hidden_size": ("n_embd", "n_embed", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads", "num_heads"),
    "max_position_embeddings": ("n_positions", "max_seq_len", "seq_length"),
}


def read_config(folder: Path) -> ModelConfig:
    """What config.json says of a model that OpenVINO computes; the graph knows what the rest means.

    Only LongRoPE concerns the engine: a graph has one set of frequencies for all sequences of a step, so
    sequences end where the other set begins.
    """
    check_parts(folder)
    reader = ConfigReader.open(folder)
    for name, others in OTHER_NAMES.items():
        for other in others:
            if other in reader.values:
                reader.values.setdefault(name, reader.values[other])
    if "word_embed_proj_dim" in reader.values:  # of OPT, whose head may read fewer values than its layers
        reader.values["hidden_size"] = reader.values["word_embed_proj_dim"]
    named = reader.get("architectures", None)
    architecture = named[0] if isinstance(named, list) and named else reader.get("model_type", "unknown")
    fields = reader.common(str(architecture), default_positions=2048)
    rope = reader.get("rope_parameters", None) or reader.get("rope_scaling", None)
    if isinstance(rope, dict) and "longrope" in (rope.get("rope_type"), rope.get("type")):
        original = rope.get("original_max_position_embeddings")
        fields["max_model_len"] = reader.integer("original_max_position_embeddings", original)
    return ModelConfig(**fields, windows=(None,) * fields["num_layers"])


def check_cpu() -> None:
    """RequestError on a CPU for which OpenVINO has no paged attention, before it reads a model."""
    version = openvino.__version__.partition("-")[0]
    if platform.machine() == "aarch64" and "sve" not in armisa.detect().features:
        raise RequestError(
            f"backend openvino: OpenVINO {version} has paged attention only for Arm cores with"
            " SVE, and this one has none; leave out --backend to compute by armllm's own kernels"
        )


class OpenVINORunner(Runner):
    """Runs steps by OpenVINO. A checkpoint without an IR is converted first, at every start."""

    own_products = True  # of OpenVINO, on its threads

    def __init__(self, config: EngineConfig, model_config: ModelConfig, placement: Placement) -> None:
        check_cpu()
        self._node = placement.node
        self.model_config = model_config
        self._limit_length(config)
        self.block_size = config.block_size
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="armllm-openvino-") as converted:
            folder = self._ir(config, Path(converted))
            weight_bytes = _weight_bytes((folder / IR).with_suffix(".bin"))
            left = self._left_beside(weight_bytes)
            with progress.step(f"compiling {model_config.num_layers} layers for OpenVINO"):
                self._graph = Graph(folder, _precision(config), placement.num_threads)
        self._compare(model_config, folder)
        self.dtype, self.cache_dtype = self._graph.dtype, self._graph.cache_dtype
        self.num_blocks = self._count_blocks(config, self._graph.block_bytes, left)
        self.cache_bytes = self.num_blocks * self._graph.block_bytes
        self._graph.allocate(self.num_blocks)
        self._last: list[Sequence] = []  # of a step with a token each
        self._ends: list[int] = []  # how many tokens of each it had computed
        self.load_report = LoadReport(
            seconds=time.perf_counter() - started,
            weight_bytes=weight_bytes,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )

    @staticmethod
    def _ir(config: EngineConfig, target: Path) -> Path:
        """The folder of the IR, which is made in ``target`` where the model is none."""
        folder = config.model_folder
        if folder.is_file():
            raise CheckpointError(f"{folder}: backend openvino takes a folder with {IR} or a checkpoint")
        if is_ir(folder):
            if config.quantization is not None:
                raise RequestError(
                    f"quantization {config.quantization!r}: {folder / IR} has its weights already; take the"
                    " checkpoint that it was made from"
                )
            return folder
        options = weight_options(config.quantization, str(config.dtype).removeprefix("torch."))
        convert(folder, target, options)
        logger.warning(
            "converted %s for this start only; to start sooner: optimum-cli export openvino --model %s %s",
            folder,
            folder,
            " ".join(["--task", "text-generation-with-past", *options, "FOLDER"]),
        )
        return target

    def _compare(self, config: ModelConfig, folder: Path) -> None:
        """CheckpointError where config.json is not that of the graph."""
        for name in ("vocab_size", "hidden_size", "num_layers"):
            stated, found = getattr(config, name), getattr(self._graph, name)
            if stated != found:
                raise CheckpointError(f"{folder}: config.json has {name} {stated}, and {IR} has {found}")

    def computed_by(self) -> str:
        """OpenVINO and its version."""
        return f"OpenVINO {openvino.__version__}"

    def copy_states(self, copies: Sequences[tuple[int | None, int]]) -> None:
        """A graph keeps no states: there is nothing to copy."""

    def _run_recorded(self, sequences: Sequences[Sequence]) -> Tensor | None:
        """The logits of a step in which nobody looks at other states."""
        token_ids = self._next_tokens(sequences)
        if token_ids is not None:
            return self._graph.infer_next(token_ids)
        self._last = []
        if any(one.reader is not None or one.pooler is not None for one in sequences):
            return None
        starts = np.array([one.num_computed_tokens for one in sequences], dtype=np.int32)
        counts = np.array([one.num_scheduled_tokens for one in sequences], dtype=np.int32)
        lens = starts + counts
        begins = np.concatenate(([0], counts.cumsum()), dtype=np.int32)
        parts = [one.token_ids[start:end] for one, start, end in zip(sequences, starts, lens, strict=True)]
        num_blocks = -(-lens // self.block_size)
        tables = [one.block_table[:count] for one, count in zip(sequences, num_blocks, strict=True)]
        rows = begins[1:][[one.samples_next for one in sequences]] - 1
        logits = self._graph.infer(
            np.concatenate(parts, dtype=np.int64),
            np.arange(begins[-1]) + np.repeat(starts - begins[:-1], counts),
            begins,
            lens,
            blocks=np.concatenate(tables, dtype=np.int32),
            rows=(rows if rows.size else begins[:1]).astype(np.int64),
        )
        if rows.size == begins[-1]:
            self._last, self._ends = list(sequences), lens.tolist()
        return logits[: rows.size]

    def _next_tokens(self, sequences: Sequences[Sequence]) -> list[int] | None:
        """The last token of each, if the last step had these sequences, one token before, in these blocks."""
        if sequences != self._last:
            return None
        token_ids = []
        for row, one in enumerate(sequences):
            end = self._ends[row]
            if one.num_computed_tokens != end or one.num_scheduled_tokens != 1 or not end % self.block_size:
                return None
            token_ids.append(one.token_ids[-1])
        for row in range(len(token_ids)):
            self._ends[row] += 1
        return token_ids

    def _compute(self, x: StepInput | Tensor) -> Tensor:
        if isinstance(x, Tensor):
            return self._graph.logits(x)
        self._last = []
        lens = x.metadata.seq_lens.numpy()
        tables = zip(x.metadata.block_tables.numpy(), -(-lens // self.block_size), strict=True)
        self._graph.infer(
            x.token_ids.numpy(),
            x.positions.numpy(),
            x.metadata.query_start_loc.numpy(),
            lens,
            blocks=np.concatenate([table[:count] for table, count in tables]),
            rows=np.zeros(1, dtype=np.int64),
        )
        states = self._graph.states()
        return states.clone() if x.rows is None else states[x.rows]


def _weight_bytes(path: Path) -> int:
    try:
        return check_size(path, MAX_BYTES)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; {IR} has its weights there") from None


def _precision(config: EngineConfig) -> Precision:
    """What the options ask for; the cache has the dtype of the computation, or 8 bits."""
    dtype = None if config.dtype == "auto" else config.torch_dtype
    if config.kv_cache_dtype == "int8":
        return Precision(dtype=dtype, cache=torch.uint8)
    return Precision(dtype=dtype, cache=dtype)
