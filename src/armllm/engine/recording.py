"""Decode steps without Python between their ops: recorded once per number of sequences, then replayed.

A recording is what the model did in one step: the kernels' ops in programs of the extension, each of which is
one call, and the few ops of torch between them. It reads its inputs from fixed places, and its tensors lie in
buffers of its own. A step that is replayed has the bits of one that is computed: the same ops get the same
arguments in the same order.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from armllm.engine.decode_inputs import DecodeInputs, DecodeStep
from armllm.kernels._extension import ALIGNMENT, aligned_bytes, extension

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Sequence as Sequences

    import numpy.typing as npt

    from armllm.engine.messages import Message
    from armllm.engine.runner import StepInput
    from armllm.engine.sequence import Sequence
    from armllm.layers.lora import AdapterSlots
    from armllm.models import Model, StagedModel

    Compute = Callable[[DecodeStep, tuple[Tensor, ...]], tuple[Tensor, ...]]

logger = logging.getLogger(__name__)

MOST_SEQUENCES = 64  # beyond, Python's share of a step is small

# What a model may call of torch. Everything else could depend on numbers in a way that a replay does not see.
ALLOCATIONS = frozenset({"aten::empty", "aten::empty_like", "aten::new_empty"})
CONSTANTS = frozenset({"aten::lift_fresh", "aten::detach_"})  # what torch.tensor calls
IN_PLACE = frozenset(f"aten::{name}_" for name in ("add", "clamp", "div", "mul", "relu", "silu", "tanh"))
# Of the same arguments they have the same result, of the same shape; a view, or a new tensor.
FUNCTIONS = frozenset(
    {"mkldnn::_linear_pointwise"}
    | {
        f"aten::{name}"
        for name in (
            *(
                "abs",
                "add",
                "addcmul",
                "amax",
                "amin",
                "cat",
                "chunk",
                "clamp",
                "clamp_max",
                "clamp_min",
                "detach",
            ),
            *("bmm", "mean", "select", "sqrt", "tanh"),
            *("alias", "contiguous", "div", "eq", "expand", "flatten", "gather", "gt", "index_select"),
            *("linear", "unbind", "unsqueeze", "view"),
            *("masked_fill", "mul", "pad", "relu", "reshape", "scatter", "slice", "zeros_like"),
            *("round", "rsub", "sigmoid", "silu", "softmax", "split", "split_with_sizes", "sub", "sum", "to"),
            *("expm1", "ones_like", "softplus", "topk"),
        )
    }
)


class Buffers:
    """Memory for the tensors of all recordings of a model, of which one runs at a time.

    A buffer is free when no tensor on it is left, as it would be for torch's allocator. It is as large as the
    tensor of a step of ``most`` sequences, so that recordings for all numbers of them share it. The system
    gives it memory where it is written to.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._memory: dict[int, npt.NDArray[Any]] = {}  # by address
        self._users: defaultdict[int, dict[int, StorageWeakRef]] = defaultdict(dict)  # by size and address

    @property
    def nbytes(self) -> int:
        """Size of all buffers."""
        return sum(memory.nbytes for memory in self._memory.values())

    def like(self, x: Tensor, sequences: int) -> Tensor:
        """A tensor of x's dtype, shape and strides, which keeps its buffer in use.

        x is one of a step of so many ``sequences``.
        """
        size = -(-x.untyped_storage().nbytes() // (ALIGNMENT * sequences)) * ALIGNMENT * self.most
        users = self._users[size]
        free = (address for address, user in users.items() if user.expired())  # type: ignore[no-untyped-call]
        address = next(free, None)
        if address is None:
            memory = aligned_bytes(size).numpy()
            address = memory.ctypes.data
            self._memory[address] = memory
        tensor = self._on(address, x, 0)
        users[address] = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        return tensor

    def alias(self, x: Tensor) -> Tensor:
        """The same tensor, which does not keep its buffer in use; x itself if it is in none."""
        if x.layout is not torch.strided:
            return x
        address = x.untyped_storage().data_ptr()
        return self._on(address, x, int(x.storage_offset())) if address in self._memory else x

    def _on(self, address: int, x: Tensor, offset: int) -> Tensor:
        base = torch.from_numpy(self._memory[address]).view(x.dtype)
        return base.as_strided(x.shape, x.stride(), offset)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records a step of so many ``sequences``; ``refused`` names the first op of torch that is not known."""

    def __init__(self, buffers: Buffers, sequences: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._new = functools.partial(buffers.like, sequences=sequences)
        self.refused: str | None = None
        self.ops: list[Callable[[], Any]] = []
        self._buffers = buffers
        self.constants: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch asks it. True would import torch._dynamo in the first step, which takes seconds."""
        return False

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Record what this thread does within."""
        extension.start_recording()
        try:
            with self:
                yield
            self._cut()
        finally:
            extension.stop_recording()

    def __torch_dispatch__(
        self, op: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result, name = op(*args, **(kwargs or {})), op.name().partition(".")[0]
        if name in ALLOCATIONS:
            return self._new(result)
        if name in CONSTANTS:
            self.constants.append(result)
            return result
        if (name not in IN_PLACE and name not in FUNCTIONS) or "out" in (kwargs or {}):
            self.refused = self.refused or str(op)
            return result
        inputs = _storages((args, kwargs))
        is_new = [address not in inputs for address in _storages(result)]
        if name in FUNCTIONS and not any(is_new):
            return result  # a view, or what needed no conversion
        self._cut()
        aliases = tree_map_only(Tensor, self._buffers.alias, (args, kwargs or {}))
        call = functools.partial(op, *aliases[0], **aliases[1])
        if name in IN_PLACE:
            self.ops.append(call)
            return result
        outputs = tree_map_only(Tensor, lambda one: self._new(one).copy_(one), result)
        places = [self._buffers.alias(one) for one in tree_leaves(outputs)]
        self.ops.append(functools.partial(_call_into, call, places))
        return outputs

    def _cut(self) -> None:
        """End the program of kernels that were called so far."""
        program = extension.take_recording()
        if program is not None:
            self.ops.append(program.run)


def _storages(values: Any) -> list[int]:
    """Addresses of the memory of all tensors that have one."""
    tensors = (one for one in tree_leaves(values) if isinstance(one, Tensor) and one.layout is torch.strided)
    return [one.untyped_storage().data_ptr() for one in tensors]


def _call_into(call: Callable[[], Any], outputs: list[Tensor]) -> None:
    result = call()
    if isinstance(result, Tensor):
        outputs[0].copy_(result)
        return
    for output, one in zip(outputs, result, strict=True):
        output.copy_(one)


class Recording(NamedTuple):
    """A step of some number of sequences: its inputs, its ops in order, and where its results come to lie.

    states: those of the stage before. constants: tensors of the ops that nothing else owns.
    """

    step: DecodeStep
    states: tuple[Tensor, ...]
    ops: list[Callable[[], Any]]
    constants: list[Tensor]
    results: tuple[Tensor, ...]


class RecordedDecode:
    """Runs steps in which every sequence computes one token; ``refused`` says why it no longer tries.

    Steps with adapters are recorded apart from those without, and again when ``slots`` has new tensors for
    them. What they return is valid until the next step.
    """

    def __init__(
        self, model: Model, *, max_blocks: int, block_size: int, slots: AdapterSlots | None = None
    ) -> None:
        self.most_sequences = MOST_SEQUENCES
        self.refused: str | None = "the states of recurrent layers" if model.recurrent_layers else None
        self.recordings: dict[int, Recording] = {}
        self.with_adapters: dict[int, Recording] = {}
        self.buffers = Buffers(MOST_SEQUENCES)
        self._model = model
        self._block_size = block_size
        self._inputs = DecodeInputs(MOST_SEQUENCES, max_blocks)
        self._tables: list[Tensor] = []  # those of the recordings
        self._slots = slots
        self._version = 0  # of the slots that those with adapters read

    def takes(self, sequences: Sequences[Sequence]) -> bool:
        """Whether this is such a step, and it can be recorded."""
        return (
            self.refused is None
            and len(sequences) <= self.most_sequences
            and all(
                sequence.num_scheduled_tokens == 1
                and sequence.samples_next
                and sequence.reader is None
                and not sequence.in_pictures
                for sequence in sequences
            )
        )

    def run(self, sequences: Sequences[Sequence], tell: Callable[[Message], None] = lambda _: None) -> Tensor:
        """Fp32 logits ``[S, vocab_size]``. ``tell``: is told what other ranks `follow`."""
        size, adapters = len(sequences), [sequence.adapter for sequence in sequences]
        self._inputs.fill(sequences, self._block_size)
        held = None if self._slots is None or not any(adapters) else self._slots.hold(adapters)
        self._inputs.adapter_slots.numpy()[:size] = -1 if held is None else held
        tell(self._inputs.message(size))
        return self._replay(size, adapted=held is not None)

    def follow(self, message: Message) -> None:
        """Do a rank's part of the step that rank 0 runs."""
        size = self._inputs.read(message)
        self._replay(size, adapted=bool((self._inputs.adapter_slots[:size] >= 0).any()))

    def _replay(self, size: int, *, adapted: bool) -> Tensor:
        if self._slots is None or not adapted:
            return self._run(size, (), self._logits, self.recordings)[0]
        if self._version != self._slots.version:
            self.with_adapters.clear()
            self._version = self._slots.version
        return self._run(size, (), self._adapted_logits, self.with_adapters)[0]

    def takes_input(self, x: StepInput) -> bool:
        """As `takes`, of a step whose sequences are elsewhere."""
        metadata = x.metadata
        return (
            self.refused is None
            and (self._slots is None or not self._slots.rows)
            and x.rows is None
            and len(metadata.query_start_loc) - 1 == len(x.token_ids) <= self.most_sequences
            and metadata.state_slots is None
            and metadata.token_types is None
        )

    def advance(self, x: StepInput, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The layers of a stage, as `StagedModel.advance`."""
        self._inputs.copy(x)
        return self._run(len(x.token_ids), states, self._layers, self.recordings)

    def _run(
        self, size: int, states: tuple[Tensor, ...], compute: Compute, recordings: dict[int, Recording]
    ) -> tuple[Tensor, ...]:
        found = recordings.get(size)
        step = DecodeStep(self._inputs, size) if found is None else found.step
        step.places.copy_(self._model.places(step.positions, step.total_lens))
        tables = [rotary.cos_sin_cache for rotary in self._model.rotaries]
        if len(tables) != len(self._tables) or any(
            one is not other for one, other in zip(tables, self._tables, strict=True)
        ):
            self.recordings.clear()  # they read the tables that were too short
            self.with_adapters.clear()
            self._tables, found = tables, None
        if found is None:
            recording, results = self._record(step, states, compute)
            if recording is not None:
                recordings[size] = recording
            return results
        for place, state in zip(found.states, states, strict=True):
            place.copy_(state)
        for op in found.ops:
            op()
        return found.results

    def _record(
        self, step: DecodeStep, states: tuple[Tensor, ...], compute: Compute
    ) -> tuple[Recording | None, tuple[Tensor, ...]]:
        size = len(step.token_ids)
        places = tuple(self.buffers.like(state, size).copy_(state) for state in states)
        recorder = Recorder(self.buffers, size)
        with recorder.record():
            results = compute(step, places)
        if recorder.refused is not None:
            self.refused = recorder.refused
            logger.info("decode steps are not recorded: the model calls %s", self.refused)
            return None, results
        recording = Recording(
            step,
            tuple(map(self.buffers.alias, places)),
            recorder.ops,
            recorder.constants,
            tuple(map(self.buffers.alias, results)),
        )
        return recording, results

    def _logits(self, step: DecodeStep, _states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden = self._model(step.token_ids, step.places, step.metadata, rows=None)
        return (self._model.logits(hidden),)

    def _adapted_logits(self, step: DecodeStep, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        slots = cast("AdapterSlots", self._slots)
        with slots.applied_rows({len(step.token_ids): step.adapter_slots}):
            return self._logits(step, states)

    def _layers(self, step: DecodeStep, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        model = cast("StagedModel", self._model)
        return model.advance(states, step.token_ids, step.places, step.metadata, rows=None)
