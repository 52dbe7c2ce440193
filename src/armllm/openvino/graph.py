"""A causal language model of OpenVINO, with paged attention, in two compiled parts: decoder and head.

The decoder gives the hidden states of all tokens of a step, the head the logits of those that are looked at.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import TYPE_CHECKING, Any

import openvino
import openvino.frontend
import torch
from openvino._offline_transformations import paged_attention_transformation

from armllm.checkpoint.json_file import check_size
from armllm.engine.config import OPENVINO_BLOCK_SIZE
from armllm.errors import CheckpointError, RequestError
from armllm.openvino.conversion import IR

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from armllm.engine.runner import StepInput

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "u8": torch.uint8}
NAMES = {dtype: name for name, dtype in TYPES.items()}
LONGEST_XML = 64 << 20  # bytes; a model of 80 layers has 7 MB
STEP_INPUTS = {
    *("input_ids", "position_ids", "past_lens", "subsequence_begins"),
    *("block_indices", "block_indices_begins", "max_context_len"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """What OpenVINO computes in, and what its KV cache holds; None leaves it to OpenVINO."""

    dtype: torch.dtype | None
    cache: torch.dtype | None

    def properties(self) -> dict[str, str]:
        """For `openvino.Core.compile_model`."""
        found = {} if self.dtype is None else {"INFERENCE_PRECISION_HINT": NAMES[self.dtype]}
        if self.cache is not None:
            # the plugin makes bf16 of f16 where it computes in that, and takes bf16 by no other name
            cache = torch.float16 if self.cache is torch.bfloat16 else self.cache
            found["KV_CACHE_PRECISION"] = NAMES[cache]
        return found


class Graph:
    """The compiled model of a folder. dtype: what it computes in. cache_dtype: what its cache holds.

    vocab_size, hidden_size, num_layers: of the model. block_bytes: of a block of the KV cache, in all layers.
    CheckpointError says what the graph has that a paged cache can't serve.
    """

    def __init__(self, folder: Path, precision: Precision, num_threads: int) -> None:
        path = folder / IR
        core = openvino.Core()
        with _refusing(path, "OpenVINO does not take it"):
            model = _read(path)
            head = _cut_head(model, path)
        properties = {"INFERENCE_NUM_THREADS": num_threads, **precision.properties()}
        try:
            self._decoder = core.compile_model(model, "CPU", properties)
            self._head = core.compile_model(head, "CPU", properties)
        except RuntimeError as error:
            raise RequestError(f"{path}: OpenVINO cannot compile it: {_last_line(error)}") from None
        self.dtype = TYPES[self._decoder.get_property("INFERENCE_PRECISION_HINT").get_type_name()]
        if precision.dtype not in (None, self.dtype):
            raise RequestError(
                f"dtype {_name(precision.dtype)}: OpenVINO computes in {_name(self.dtype)} on this CPU"
            )
        self._path = path
        self._caches = [port for port in self._decoder.inputs if _is_cache(port.any_name)]
        self.num_layers = len(self._caches) // 2
        with _refusing(path, "its shapes are not those of a text model"):
            cache_types = {port.get_element_type().get_type_name() for port in self._caches}
            if not cache_types <= TYPES.keys() or len(cache_types) > 1:
                raise CheckpointError(f"{path} has a cache of {', '.join(sorted(cache_types))}")
            self.cache_dtype = TYPES[cache_types.pop()]
            self.block_bytes = sum(
                math.prod(_block_shape(port)) * port.get_element_type().size for port in self._caches
            )
            self.hidden_size = self._head.input(0).get_partial_shape()[2].get_length()
            self.vocab_size = self._head.output(0).get_partial_shape()[2].get_length()
        self._step = self._decoder.create_infer_request()
        self._scores = self._head.create_infer_request()

    def allocate(self, num_blocks: int) -> None:
        """Make the KV cache, and compute two tokens: what the graph says of itself may be wrong."""
        for port in self._caches:
            shape = openvino.Shape([num_blocks, *_block_shape(port)])
            self._step.set_tensor(port.any_name, openvino.Tensor(port.get_element_type(), shape))
        with _refusing(self._path, "OpenVINO cannot compute it"):
            numbers, ends = torch.arange(2), torch.tensor([0, 2], dtype=torch.int32)
            tables = torch.zeros(1, 1, dtype=torch.int32)
            self.logits(self._infer(numbers, numbers, ends, ends[1:], tables))

    def states(self, step: StepInput) -> Tensor:
        """Final hidden states fp32 ``[R, hidden_size]`` of a step's rows; caches keys and values of all."""
        metadata = step.metadata
        states = self._infer(
            step.token_ids,
            step.positions,
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_tables,
        )
        return states.clone() if step.rows is None else states[step.rows]

    def _infer(
        self, token_ids: Tensor, positions: Tensor, starts: Tensor, seq_lens: Tensor, block_tables: Tensor
    ) -> Tensor:
        """Hidden states of all tokens, valid until the next call."""
        counts = starts[1:] - starts[:-1]
        blocks = -(-seq_lens // OPENVINO_BLOCK_SIZE)
        tables = [table[:count] for table, count in zip(block_tables, blocks.tolist(), strict=True)]
        values = {
            "input_ids": token_ids,
            "position_ids": positions,
            "past_lens": seq_lens - counts,
            "subsequence_begins": starts,
            "block_indices": torch.cat(tables),
            "block_indices_begins": torch.cat([starts[:1], blocks.cumsum(0).int()]),
            "max_context_len": seq_lens.max(),
        }
        for port in self._decoder.inputs:
            if (name := port.any_name) in values:
                self._step.set_tensor(name, openvino.Tensor(values[name].numpy()))
        self._step.infer()
        found = torch.from_numpy(self._step.get_output_tensor(0).data)
        return found.view(-1, self.hidden_size)

    def logits(self, states: Tensor) -> Tensor:
        """Fp32 ``[R, vocab_size]`` of states ``[R, hidden_size]``, valid until the next call."""
        self._scores.set_input_tensor(openvino.Tensor(states.unsqueeze(1).contiguous().numpy()))
        self._scores.infer()
        return torch.from_numpy(self._scores.get_output_tensor(0).data).view(-1, self.vocab_size)


@contextlib.contextmanager
def _refusing(path: Path, reason: str) -> Iterator[None]:
    """CheckpointError in place of what OpenVINO and torch raise."""
    try:
        yield
    except RuntimeError as error:
        raise CheckpointError(f"{path}: {reason}: {_last_line(error)}") from None


def _read(path: Path) -> Any:
    """The model with paged attention. `Core.read_model` would try the formats of other programs, too."""
    check_size(path, LONGEST_XML)
    front_end = openvino.frontend.FrontEndManager().load_by_framework("ir")
    model = front_end.convert(front_end.load(path))
    paged_attention_transformation(model)
    return model


def _cut_head(model: Any, path: Path) -> Any:
    """Take the product that makes logits out of ``model``, whose result are the hidden states then."""
    unknown = {port.any_name for port in model.inputs if not _is_cache(port.any_name)} - STEP_INPUTS
    if unknown:
        raise CheckpointError(f"{path} asks for {', '.join(sorted(unknown))}: only text models are supported")
    if not any(_is_cache(port.any_name) for port in model.inputs):
        raise CheckpointError(
            f"{path} has no attention over a KV cache; convert with --task text-generation-with-past"
        )
    result = next((port.get_node() for port in model.outputs if "logits" in port.names), None)
    node = result
    while node is not None and node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node() if node.get_input_size() else None
    if node is None:
        raise CheckpointError(f"{path} has no output named logits that a product makes")
    states = node.input_value(0)
    source = openvino.opset13.parameter(states.get_partial_shape(), states.get_element_type())
    node.input(0).replace_source_output(source.output(0))
    head = openvino.Model([result], [source], "head")
    model.remove_result(result)
    model.add_results([openvino.opset13.result(states)])
    return head


def _is_cache(name: str) -> bool:
    return name.startswith(("key_cache.", "value_cache."))


def _block_shape(port: Any) -> list[int]:
    return [dimension.get_length() for dimension in list(port.get_partial_shape())[1:]]


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _last_line(error: RuntimeError) -> str:
    lines = [ascii(line.strip())[1:-1] for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"
