"""A causal language model of OpenVINO, with paged attention, in two compiled parts: decoder and head.

The decoder gives the hidden states of all tokens of a step, the head the logits of those that are looked at.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import openvino
import torch
from openvino._offline_transformations import paged_attention_transformation

from armllm.engine.config import OPENVINO_BLOCK_SIZE
from armllm.errors import CheckpointError, RequestError
from armllm.openvino.conversion import IR

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from armllm.engine.runner import StepInput

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "u8": torch.uint8}
NAMES = {dtype: name for name, dtype in TYPES.items()}
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
        try:
            model = core.read_model(path)
            paged_attention_transformation(model)
        except RuntimeError as error:
            raise CheckpointError(f"{path}: OpenVINO does not take it: {_last_line(error)}") from None
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
        self._caches = [port for port in self._decoder.inputs if _is_cache(port.any_name)]
        self.num_layers = len(self._caches) // 2
        self.cache_dtype = TYPES[self._caches[0].get_element_type().get_type_name()]
        self.block_bytes = sum(
            math.prod(_block_shape(port)) * port.get_element_type().size for port in self._caches
        )
        self.hidden_size = self._head.input(0).get_partial_shape()[2].get_length()
        self.vocab_size = self._head.output(0).get_partial_shape()[2].get_length()
        self._step = self._decoder.create_infer_request()
        self._scores = self._head.create_infer_request()

    def allocate(self, num_blocks: int) -> None:
        """Make the KV cache."""
        for port in self._caches:
            shape = openvino.Shape([num_blocks, *_block_shape(port)])
            self._step.set_tensor(port.any_name, openvino.Tensor(port.get_element_type(), shape))

    def states(self, step: StepInput) -> Tensor:
        """Final hidden states fp32 ``[R, hidden_size]`` of a step's rows; caches keys and values of all."""
        metadata = step.metadata
        starts = metadata.query_start_loc
        counts = starts[1:] - starts[:-1]
        blocks = -(-metadata.seq_lens // OPENVINO_BLOCK_SIZE)
        tables = [table[:count] for table, count in zip(metadata.block_tables, blocks.tolist(), strict=True)]
        values = {
            "input_ids": step.token_ids,
            "position_ids": step.positions,
            "past_lens": metadata.seq_lens - counts,
            "subsequence_begins": starts,
            "block_indices": torch.cat(tables),
            "block_indices_begins": torch.cat([starts[:1], blocks.cumsum(0).int()]),
            "max_context_len": metadata.seq_lens.max(),
        }
        for port in self._decoder.inputs:
            if (name := port.any_name) in values:
                self._step.set_tensor(name, openvino.Tensor(values[name].numpy()))
        self._step.infer()
        found = torch.from_numpy(self._step.get_output_tensor(0).data)
        states = found.view(-1, self.hidden_size)
        return states.clone() if step.rows is None else states[step.rows]

    def logits(self, states: Tensor) -> Tensor:
        """Fp32 ``[R, vocab_size]`` of states ``[R, hidden_size]``, valid until the next call."""
        self._scores.set_input_tensor(openvino.Tensor(states.unsqueeze(1).contiguous().numpy()))
        self._scores.infer()
        return torch.from_numpy(self._scores.get_output_tensor(0).data).view(-1, self.vocab_size)


def _cut_head(model: Any, path: Path) -> Any:
    """Take the product that makes logits out of ``model``, whose result are the hidden states then."""
    unknown = {port.any_name for port in model.inputs if not _is_cache(port.any_name)} - STEP_INPUTS
    if unknown:
        raise CheckpointError(f"{path} asks for {', '.join(sorted(unknown))}: only text models are supported")
    if not any(_is_cache(port.any_name) for port in model.inputs):
        raise CheckpointError(
            f"{path} has no attention over a KV cache; convert with --task text-generation-with-past"
        )
    [result] = [port.get_node() for port in model.outputs if port.any_name == "logits"] or [None]
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
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"
