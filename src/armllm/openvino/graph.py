"""A causal language model of OpenVINO, with paged attention.

It gives the hidden states of all tokens of a step, and the logits of chosen rows. Its head is compiled once
more, alone, when logits of other states are asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino
import openvino.frontend
import torch
from openvino._offline_transformations import paged_attention_transformation

import armisa
from armllm.checkpoint.hub import IR
from armllm.checkpoint.json_file import check_size
from armllm.engine.config import OPENVINO_BLOCK_SIZE
from armllm.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt
    from torch import Tensor

logger = logging.getLogger(__name__)

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "u8": torch.uint8}
NAMES = {dtype: name for name, dtype in TYPES.items()}
LONGEST_XML = 64 << 20  # bytes; a model of 80 layers has 7 MB
ROWS, STATES = "rows", "states"  # what is added to a graph
STEP_INPUTS = {
    *("input_ids", "position_ids", "past_lens", "subsequence_begins"),
    *("block_indices", "block_indices_begins", "max_context_len"),
}


# Of the types that AMX multiplies, the CPU's features.
TILES = {"bf16": "amx_bf16", "f16": "amx_fp16"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Precision:
    """What OpenVINO computes in, and what its KV cache holds; None leaves it to OpenVINO."""

    dtype: torch.dtype | None
    cache: torch.dtype | None

    def in_float32(self) -> Precision:
        """The same in float32; a cache of 8 bits stays."""
        cache = torch.float32 if self.cache is None else self.cache
        return Precision(dtype=torch.float32, cache=cache)

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
        usual = core.get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
        if precision.dtype is None and ends_the_process(num_threads, usual):
            logger.warning("computing in float32: OpenVINO cannot in %s with one thread (AMX)", usual)
            precision = precision.in_float32()
        if usual == NAMES[torch.float32]:  # the CPU has products in no other type
            _check_computes(precision, torch.float32)
        wanted = usual if precision.dtype is None else NAMES[precision.dtype]
        if ends_the_process(num_threads, wanted):
            raise RequestError(
                f"OpenVINO cannot compute in {_name(TYPES[wanted])} with one thread on this CPU (AMX):"
                " give it more than one core, or take --dtype float32"
            )
        with _refusing(path, "OpenVINO does not take it"):
            model = _read(path)
            _choose_rows(model, path, wanted)
        self._path, self._core = path, core
        self._properties = {"INFERENCE_NUM_THREADS": num_threads, **precision.properties()}
        self._model = self._compile(model)
        self.dtype = TYPES[self._model.get_property("INFERENCE_PRECISION_HINT").get_type_name()]
        _check_computes(precision, self.dtype)
        self._caches = [port for port in self._model.inputs if _is_cache(port.any_name)]
        self.num_layers = len(self._caches) // 2
        with _refusing(path, "its shapes are not those of a text model"):
            cache_types = {port.get_element_type().get_type_name() for port in self._caches}
            if not cache_types <= TYPES.keys() or len(cache_types) > 1:
                raise CheckpointError(f"{path} has a cache of {', '.join(sorted(cache_types))}")
            self.cache_dtype = TYPES[cache_types.pop()]
            self.block_bytes = sum(
                math.prod(_block_shape(port)) * port.get_element_type().size for port in self._caches
            )
            self.hidden_size = self._model.output(STATES).get_partial_shape()[2].get_length()
            self.vocab_size = self._model.output("logits").get_partial_shape()[2].get_length()
        self._inputs = {port.any_name for port in self._model.inputs if not _is_cache(port.any_name)}
        self._step = self._model.create_infer_request()
        self._held: dict[str, npt.NDArray[Any]] = {}  # the inputs of the last step
        self._views: dict[str, memoryview] = {}  # of the same in one dimension
        self._logits = torch.empty(0, self.vocab_size)  # of the last step

    def _compile(self, model: Any) -> Any:
        try:
            return self._core.compile_model(model, "CPU", self._properties)
        except RuntimeError as error:
            raise RequestError(f"{self._path}: OpenVINO cannot compile it: {_last_line(error)}") from None

    def allocate(self, num_blocks: int) -> None:
        """Make the KV cache, and compute two tokens: what the graph says of itself may be wrong."""
        for port in self._caches:
            shape = openvino.Shape([num_blocks, *_block_shape(port)])
            self._step.set_tensor(port.any_name, openvino.Tensor(port.get_element_type(), shape))
        with _refusing(self._path, "OpenVINO cannot compute it"):
            numbers = np.arange(2)
            begins = np.array([0, 2], dtype=np.int32)
            blocks = np.zeros(1, dtype=np.int32)
            self.infer(numbers, numbers, begins, begins[1:], blocks=blocks, rows=numbers[1:])

    def infer(
        self,
        token_ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        begins: npt.NDArray[np.int32],
        lens: npt.NDArray[np.int32],
        *,
        blocks: npt.NDArray[np.int32],
        rows: npt.NDArray[np.int64],
    ) -> Tensor:
        """Compute a step, and cache its keys and values; fp32 logits ``[R, vocab_size]`` of ``rows`` [R].

        token_ids, positions [T]: of S sequences in a row. begins [S + 1]: where each begins, and the end.
        lens [S]: tokens, with those that are cached. blocks: the block tables in a row, each as long as its
        sequence needs. The logits are valid until the next call.
        """
        counts = -(-lens // OPENVINO_BLOCK_SIZE)
        values = {
            "input_ids": token_ids,
            "position_ids": positions,
            "past_lens": lens - (begins[1:] - begins[:-1]),
            "subsequence_begins": begins,
            "block_indices": blocks,
            "block_indices_begins": np.concatenate(([0], counts.cumsum()), dtype=np.int32),
            "max_context_len": lens.max(keepdims=True).reshape(()),
            ROWS: rows,
        }
        for name in self._inputs:
            self._put(name, values[name])
        if len(rows) != len(self._logits):
            self._place_logits(len(rows))
        return self._infer()

    def infer_next(self, token_ids: list[int]) -> Tensor:
        """The same for one more token of each sequence, when the last step had one of each.

        No sequence needs another block. Most inputs are those of the last step, and stay where they are.
        They change by views: between two steps, whose weights fill the caches, numpy takes ten times as long.
        """
        views = self._views
        ids = views["input_ids"]
        for row, token_id in enumerate(token_ids):
            ids[row] = token_id
        for name in ("position_ids", "past_lens", "max_context_len"):
            if name in views:
                view = views[name]
                for row in range(len(view)):
                    view[row] += 1
        return self._infer()

    def _infer(self) -> Tensor:
        self._step.infer(share_outputs=True)  # else they are copied
        return self._logits

    def _place_logits(self, num_rows: int) -> None:
        """Say where the logits of so many rows go: to ask for that in every step takes a tenth of a ms."""
        tensor = openvino.Tensor(openvino.Type.f32, openvino.Shape([num_rows, 1, self.vocab_size]))
        self._step.set_tensor("logits", tensor)
        self._logits = torch.from_numpy(tensor.data.reshape(-1, self.vocab_size))

    def _put(self, name: str, value: npt.NDArray[Any]) -> None:
        """Give the next step an input; in the memory of the last step's where the shape is the same."""
        held = self._held.get(name)
        if held is not None and held.shape == value.shape:
            held[...] = value
            return
        tensor = openvino.Tensor(value)
        self._step.set_tensor(name, tensor)
        self._held[name] = tensor.data
        self._views[name] = memoryview(tensor.data.reshape(-1))

    def states(self) -> Tensor:
        """Final hidden states fp32 ``[T, hidden_size]`` of the latest step, valid until the next one."""
        data = self._step.get_tensor(STATES).data
        if data.dtype == np.float32:
            states = torch.from_numpy(data)
        else:  # numpy has no bf16: OpenVINO gives its bits as those of f16
            states = torch.from_numpy(data.view(np.int16)).view(self.dtype).float()
        return states.view(-1, self.hidden_size)

    def logits(self, states: Tensor) -> Tensor:
        """Fp32 ``[R, vocab_size]`` of states ``[R, hidden_size]``, valid until the next call."""
        self._head.set_input_tensor(openvino.Tensor(states.unsqueeze(1).contiguous().numpy()))
        self._head.infer(share_outputs=True)
        return torch.from_numpy(self._head.get_output_tensor(0).data).view(-1, self.vocab_size)

    @functools.cached_property
    def _head(self) -> Any:
        """A request for the head alone, which few requests need."""
        return self._compile(_head(_read(self._path), self._path)).create_infer_request()


@contextlib.contextmanager
def _refusing(path: Path, reason: str) -> Iterator[None]:
    """CheckpointError in place of what OpenVINO and torch raise."""
    try:
        yield
    except RuntimeError as error:
        raise CheckpointError(f"{path}: {reason}: {_last_line(error)}") from None


def ends_the_process(num_threads: int, dtype: str) -> bool:
    """Whether OpenVINO divides by zero (SIGFPE): 2026.4 does with one thread on CPUs with AMX."""
    return num_threads == 1 and TILES.get(dtype) in armisa.detect().features


def _read(path: Path) -> Any:
    """The model with paged attention. `Core.read_model` would try the formats of other programs, too."""
    check_size(path, LONGEST_XML)
    front_end = openvino.frontend.FrontEndManager().load_by_framework("ir")
    model = front_end.convert(front_end.load(path))
    has_beams = any("beam_idx" in port.names for port in model.inputs)  # it chooses each sequence's cache
    try:
        paged_attention_transformation(model)
    except RuntimeError:
        if has_beams:
            raise
        raise CheckpointError(
            f"{path} has no input beam_idx, by which OpenVINO finds the KV cache; make it by optimum-cli"
            " export openvino --task text-generation-with-past, or leave out --backend for an encoder"
        ) from None
    return model


def _choose_rows(model: Any, path: Path, dtype: str) -> None:
    """Let the head compute the ``rows`` of an input alone; what it reads becomes an output in ``dtype``.

    OpenVINO computes what an output of f32 is made of in f32, and here that is the end of every layer.
    """
    unknown = {port.any_name for port in model.inputs if not _is_cache(port.any_name)} - STEP_INPUTS
    if unknown:
        raise CheckpointError(
            f"{path} asks for {', '.join(sorted(unknown))}: models for pictures, and those with recurrent"
            " layers, are not supported"
        )
    if not any(_is_cache(port.any_name) for port in model.inputs):
        raise CheckpointError(
            f"{path} has no attention over a KV cache; convert with --task text-generation-with-past"
        )
    _, product = _logits(model, path)
    states = product.input_value(0)
    rows = openvino.opset13.parameter([-1], np.int64, name=ROWS)
    rows.output(0).get_tensor().set_names({ROWS})
    wanted_states = openvino.opset13.gather(states, rows, openvino.opset13.constant(0))
    product.input(0).replace_source_output(wanted_states.output(0))
    shown = states if dtype == "f32" else openvino.opset13.convert(states, dtype).output(0)
    result = openvino.opset13.result(shown)
    result.output(0).get_tensor().add_names({STATES})
    model.add_parameters([rows])
    model.add_results([result])
    model.validate_nodes_and_infer_types()


def _head(model: Any, path: Path) -> Any:
    """The product of a model that makes logits of hidden states, as a model."""
    result, product = _logits(model, path)
    states = product.input_value(0)
    source = openvino.opset13.parameter(states.get_partial_shape(), states.get_element_type())
    product.input(0).replace_source_output(source.output(0))
    return openvino.Model([result], [source], "head")


def _logits(model: Any, path: Path) -> tuple[Any, Any]:
    """The result that holds the logits, and the product that makes them."""
    result = next((port.get_node() for port in model.outputs if "logits" in port.names), None)
    node = result
    while node is not None and node.get_type_name() != "MatMul":
        node = node.input_value(0).get_node() if node.get_input_size() else None
    if node is None:
        raise CheckpointError(f"{path} has no output named logits that a product makes")
    return result, node


def _is_cache(name: str) -> bool:
    return name.startswith(("key_cache.", "value_cache."))


def _block_shape(port: Any) -> list[int]:
    return [dimension.get_length() for dimension in list(port.get_partial_shape())[1:]]


def _check_computes(precision: Precision, computes: torch.dtype) -> None:
    if precision.dtype not in (None, computes):
        raise RequestError(
            f"dtype {_name(precision.dtype)}: OpenVINO computes in {_name(computes)} on this CPU"
        )


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def _last_line(error: RuntimeError) -> str:
    lines = [ascii(line.strip())[1:-1] for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no reason given"
